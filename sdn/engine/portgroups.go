package engine

import (
	"context"
	"slices"
	"strings"

	"github.com/kuryr/kuryr/sdn"
)

// ownersOfSDN begins the device owners whose ports the SDN trusts: they get no default group.
const ownersOfSDN = "network:"

// groupsOf gives a new port its security groups: those that are asked for, or else its project's own.
func (t *tx) groupsOf(spec sdn.PortSpec, unguarded bool) ([]sdn.ID, error) {
	switch {
	case spec.Groups != nil || spec.WithoutGroups:
		return t.checkGroups(spec.Groups, unguarded)
	case unguarded || !t.e.realm.Supports().Groups || strings.HasPrefix(spec.DeviceOwner, ownersOfSDN):
		return nil, nil
	}
	id, err := t.defaultGroup(spec.Project)
	if err != nil || id == "" {
		return nil, err
	}
	return []sdn.ID{id}, nil
}

// checkGroups gives groups in order and each once, if a port can have them.
func (t *tx) checkGroups(groups []sdn.ID, unguarded bool) ([]sdn.ID, error) {
	if len(groups) == 0 {
		return nil, nil
	}
	if unguarded {
		return nil, sdn.Conflict(sdn.InUse, "port", "groups", "a port without port security has no security groups")
	}
	for _, id := range groups {
		if !SecurityGroups.has(t.Tx, id) {
			return nil, sdn.NotFound("security group", id)
		}
	}
	set := slices.Clone(groups)
	slices.Sort(set)
	return slices.Compact(set), nil
}

// changedGroups gives a port's groups after a change of it.
func (t *tx) changedGroups(r *PortRow, c sdn.PortPatch) ([]sdn.ID, error) {
	unguarded := r.NoPortSecurity
	if c.NoPortSecurity != nil {
		unguarded = *c.NoPortSecurity
	}
	if c.Groups != nil {
		return t.checkGroups(*c.Groups, unguarded)
	}
	if unguarded {
		return nil, nil
	}
	return r.Groups, nil
}

func (t *tx) checkPolicy(id sdn.ID) error {
	if id != "" && !QoSPolicies.has(t.Tx, id) {
		return sdn.NotFound("QoS policy", id)
	}
	return nil
}

// AddGroups gives a port further security groups.
func (e *Engine) AddGroups(ctx context.Context, id sdn.ID, groups []sdn.ID) error {
	if len(groups) > 0 && !e.realm.Supports().Groups {
		return errNoSecurityGroups
	}
	return e.changeGroups(ctx, id, func(have []sdn.ID) []sdn.ID { return slices.Concat(have, groups) })
}

// RemoveGroups takes security groups away from a port, those that it does not have among them.
func (e *Engine) RemoveGroups(ctx context.Context, id sdn.ID, groups []sdn.ID) error {
	return e.changeGroups(ctx, id, func(have []sdn.ID) []sdn.ID {
		return slices.DeleteFunc(slices.Clone(have), func(g sdn.ID) bool { return contains(groups, g) })
	})
}

func (e *Engine) changeGroups(ctx context.Context, id sdn.ID, f func(have []sdn.ID) []sdn.ID) error {
	return e.update(ctx, func(t *tx) error {
		r, err := Ports.Need(t.Tx, id)
		if err != nil {
			return err
		}
		if r.Own {
			return inUse("port", id, "it is the SDN's own (%s)", r.DeviceOwner)
		}
		groups := f(r.Groups)
		return t.changePort(r, sdn.PortPatch{Groups: &groups}, func(*PortRow) bool { return false })
	})
}
