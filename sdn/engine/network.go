package engine

import (
	"context"
	"fmt"
	"iter"

	"github.com/kuryr/kuryr/internal/valid"
	"github.com/kuryr/kuryr/sdn"
)

const (
	leastMTU   = 68    // RFC 791
	leastMTUv6 = 1280  // RFC 8200
	mostMTU    = 65535 // of an IP packet
)

func (e *Engine) showNetwork(b Tx, r *NetworkRow) (out sdn.Network, err error) {
	e.fillMeta(&r.Meta)
	if r.ID == e.external {
		r.MTU = e.realm.ExternalMTU()
	}
	out = r.Network
	out.Scope4, out.Scope6, err = networkScopes(b, r)
	return out, err
}

// EnsureNetwork makes, finishes or adopts a network with its subnets, in one transaction.
func (e *Engine) EnsureNetwork(ctx context.Context, spec sdn.NetworkSpec) (sdn.Network, error) {
	return only(e.EnsureAllNetworks(ctx, []sdn.NetworkSpec{spec}))
}

// checkNetwork refuses a spec that no store could hold.
func checkNetwork(spec sdn.NetworkSpec) error {
	if err := valid.Base("network", spec.Base); err != nil {
		return err
	}
	if spec.MTU != 0 && (spec.MTU < leastMTU || spec.MTU > mostMTU) {
		return sdn.Invalid("network", "mtu", "must be from %d to %d, not %d", leastMTU, mostMTU, spec.MTU)
	}
	if err := lacking("network", "segment", spec.Segment != (sdn.Segment{}), "has no physical networks"); err != nil {
		return err
	}
	for i, s := range spec.Subnets {
		if s.Key.IsZero() != spec.Key.IsZero() {
			return sdn.Invalid("network", fmt.Sprintf("subnets[%d].key", i), "a network with a key has subnets with keys, one without has none")
		}
	}
	return nil
}

// ensureNetwork gives a new network that does not say otherwise the MTU of the host's way out.
func (t *tx) ensureNetwork(spec sdn.NetworkSpec, uplink int) (*NetworkRow, error) {
	r, err := Networks.ensured(t, spec.Base)
	if err != nil {
		return nil, err
	}
	if r == nil {
		mtu := spec.MTU
		if mtu == 0 {
			mtu = uplink
		}
		r = &NetworkRow{Network: sdn.Network{Meta: newMeta(spec.Base), MTU: mtu, External: spec.External,
			Shared: spec.Shared, NoPortSecurity: spec.NoPortSecurity, Disabled: spec.Disabled,
			QoSPolicy: spec.QoSPolicy, Default: spec.Default}}
		if r.QoSPolicy == "" && !r.External && t.e.realm.Supports().Limits {
			r.QoSPolicy = t.defaultPolicy(spec.Project)
		}
		if err := t.checkNetwork(r); err != nil {
			return nil, err
		}
		err = Networks.put(t, r)
	} else {
		err = t.adoptNetwork(r, spec)
	}
	if err != nil {
		return nil, err
	}
	for _, s := range spec.Subnets {
		s.Network = r.ID
		if _, err := t.ensureSubnet(s); err != nil {
			return nil, err
		}
	}
	return Networks.Need(t.Tx, r.ID)
}

func (t *tx) adoptNetwork(r *NetworkRow, spec sdn.NetworkSpec) error {
	switch {
	case spec.External && !r.External:
		return immutable("network", r.ID, "external", r.External, spec.External)
	case spec.Shared && !r.Shared:
		return immutable("network", r.ID, "shared", r.Shared, spec.Shared)
	}
	changed, err := adopt("network", &r.Meta, spec.Base)
	if err != nil {
		return err
	}
	changed = set(&r.NoPortSecurity, spec.NoPortSecurity) || changed
	changed = set(&r.Disabled, spec.Disabled) || changed
	changed = set(&r.QoSPolicy, spec.QoSPolicy) || changed
	changed = set(&r.Default, spec.Default) || changed
	if err := t.checkNetwork(r); err != nil {
		return err
	}
	if set(&r.MTU, spec.MTU) {
		changed = true
		if err := t.checkMTU(r); err != nil {
			return err
		}
	}
	if !changed {
		return nil
	}
	return Networks.put(t, r)
}

// checkNetwork refuses a policy and a mark that the network cannot have. A new one without a policy gets its project's.
func (t *tx) checkNetwork(r *NetworkRow) error {
	if err := t.checkPolicy(r.QoSPolicy); err != nil {
		return err
	}
	if r.External && r.QoSPolicy != "" {
		return lacking("network", "qos_policy", true, "limits no gateways: an external network has no policy")
	}
	if !t.e.realm.Supports().Limits && r.QoSPolicy != "" {
		return errNoQoSPolicies
	}
	if !r.Default {
		return nil
	}
	if !r.External {
		return sdn.Invalid("network", "default", "only an external network can be the default one")
	}
	others, err := Networks.All(t.Tx, "external", "x")
	if err != nil {
		return err
	}
	for _, other := range others {
		if other.Default && other.ID != r.ID {
			return sdn.Invalid("network", "default", "network %s is the default one", other.ID)
		}
	}
	return nil
}

// defaultPolicy is the QoS policy of a project's new networks; "" for none.
func (t *tx) defaultPolicy(project string) sdn.ID {
	return QoSPolicies.ID(t.Tx, "default", "x"+project)
}

// checkMTU refuses less than IPv6 needs.
func (t *tx) checkMTU(r *NetworkRow) error {
	for _, id := range r.Subnets {
		s, err := Subnets.Need(t.Tx, id)
		if err != nil {
			return err
		}
		if s.CIDR.Addr().Is6() && r.MTU < leastMTUv6 {
			return sdn.Invalid("network", "mtu", "must be at least %d with IPv6, not %d", leastMTUv6, r.MTU)
		}
	}
	return nil
}

// Network gets a network.
func (e *Engine) Network(ctx context.Context, id sdn.ID) (out sdn.Network, err error) {
	return get(ctx, e, Networks, id, e.showNetwork)
}

// get reads one row.
func get[T any, R row[T], V any](
	ctx context.Context, e *Engine, t table[T, R], id sdn.ID, show func(Tx, R) (V, error),
) (out V, err error) {
	if err := ctx.Err(); err != nil {
		return out, err
	}
	err = e.view(func(b Tx) error {
		r, err := t.Need(b, id)
		if err != nil {
			return err
		}
		e.disown(ctx, r.meta())
		out, err = show(b, r)
		return err
	})
	return out, err
}

// FindNetworks streams networks.
func (e *Engine) FindNetworks(ctx context.Context, q sdn.NetworkQuery) iter.Seq2[sdn.Network, error] {
	var external []scan
	if q.External != nil && *q.External {
		external = byEach("external", []string{"x"})
	}
	scans, err := e.scansOf(ctx, Networks.Noun, q.Match, external, byProject(q.Match), sharedOnly(q.Shared))
	if err != nil {
		return broken[sdn.Network](err)
	}
	return search(ctx, e, Networks, scans, e.showNetwork, q.Matches)
}

// UpdateNetwork changes a network.
func (e *Engine) UpdateNetwork(ctx context.Context, id sdn.ID, change sdn.NetworkPatch) (out sdn.Network, err error) {
	if err := valid.Patch("network", change.Patch); err != nil {
		return out, err
	}
	if change.MTU != nil && (*change.MTU < leastMTU || *change.MTU > mostMTU) {
		return out, sdn.Invalid("network", "mtu", "must be from %d to %d, not %d", leastMTU, mostMTU, *change.MTU)
	}
	err = e.update(ctx, func(t *tx) error {
		r, err := Networks.Need(t.Tx, id)
		if err != nil {
			return err
		}
		if id == e.external {
			return builtIn("network", id)
		}
		if err := Networks.patch(t, &r.Meta, change.Patch); err != nil {
			return err
		}
		if change.Shared != nil {
			if err := t.setShared(r, *change.Shared); err != nil {
				return err
			}
		}
		if change.External != nil && *change.External != r.External {
			if err := t.setExternal(r, *change.External); err != nil {
				return err
			}
			if r.Restricted = false; !r.External {
				if err := t.dropExternalAccess(id); err != nil {
					return err
				}
			}
		}
		if change.NoPortSecurity != nil {
			r.NoPortSecurity = *change.NoPortSecurity
		}
		if change.QoSPolicy != nil {
			r.QoSPolicy = *change.QoSPolicy
		}
		if change.Default != nil {
			r.Default = *change.Default
		}
		if change.External != nil || change.QoSPolicy != nil || change.Default != nil {
			if err := t.checkNetwork(r); err != nil {
				return err
			}
		}
		if change.Disabled != nil {
			r.Disabled = *change.Disabled
			Networks.touch(t, r)
		}
		if change.MTU != nil {
			r.MTU = *change.MTU
			if err := t.checkMTU(r); err != nil {
				return err
			}
			Networks.touch(t, r)
		}
		if err := Networks.put(t, r); err != nil {
			return err
		}
		out, err = e.showNetwork(t.Tx, r)
		e.disown(ctx, &out.Meta)
		return err
	})
	return out, err
}

// setShared changes whether other projects may use a network. A network with ports of other
// projects stays shared.
func (t *tx) setShared(r *NetworkRow, shared bool) error {
	if r.Shared && !shared {
		there, err := Ports.All(t.Tx, "network", string(r.ID))
		if err != nil {
			return err
		}
		for _, p := range there {
			if p.counted() && p.Project != r.Project && !granted(t.Tx, r.ID, false, p.Project) {
				return inUse("network", r.ID, "ports of other projects are on it")
			}
		}
	}
	r.Shared = shared
	return nil
}

// setExternal changes whether a network is external. The kernel has nothing of external networks,
// so the network must have no ports, and its ranges must be apart from those of the others.
func (t *tx) setExternal(r *NetworkRow, external bool) error {
	switch {
	case r.External == external:
		return nil
	case Ports.any(t.Tx, "network", string(r.ID)):
		return inUse("network", r.ID, "it has ports")
	case Routers.any(t.Tx, "gateway", string(r.ID)):
		return inUse("network", r.ID, "routers have their gateway on it")
	case FloatingIPs.any(t.Tx, "network", string(r.ID)):
		return inUse("network", r.ID, "it has floating IPs")
	}
	if external {
		others, err := Networks.All(t.Tx, "external", "x")
		if err != nil {
			return err
		}
		for _, id := range r.Subnets {
			s, err := Subnets.Need(t.Tx, id)
			if err != nil {
				return err
			}
			if err := t.checkApart(r, others, s.CIDR); err != nil {
				return err
			}
		}
		r.Own = false
	}
	r.External, r.Default = external, r.Default && external
	return nil
}

// DeleteNetwork deletes a network without ports, with its subnets.
func (e *Engine) DeleteNetwork(ctx context.Context, id sdn.ID) error {
	return e.release(ctx, func(t *tx) error { return t.deleteNetwork(id) })
}

func (t *tx) deleteNetwork(id sdn.ID) error {
	r, err := Networks.Get(t.Tx, id)
	if err != nil || r == nil {
		return err
	}
	switch {
	case id == t.e.external:
		return builtIn("network", id)
	case Ports.any(t.Tx, "network", string(id)):
		return inUse("network", id, "it has ports")
	case Routers.any(t.Tx, "gateway", string(id)):
		return inUse("network", id, "routers have their gateway on it")
	case FloatingIPs.any(t.Tx, "network", string(id)):
		return inUse("network", id, "it has floating IPs")
	}
	for _, s := range r.Subnets {
		if err := t.dropSubnet(s); err != nil {
			return err
		}
	}
	if err := t.dropAccess(id); err != nil {
		return err
	}
	return Networks.del(t, id)
}

// DomainOf is the domain a network's ports are in; "" where it has none (yet).
func DomainOf(b Tx, network sdn.ID) (sdn.ID, error) {
	if rt := Routers.ID(b, "network", string(network)); rt != "" {
		return rt, nil
	}
	n, err := Networks.Get(b, network)
	if err != nil || n == nil || !n.Own {
		return "", err
	}
	return network, nil
}
