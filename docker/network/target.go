package network

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/internal/sortslice"
	"github.com/kuryr/kuryr/sdn"
)

// target makes networks. Its files are target.go for networks of Kuryr's own, router.go,
// empty.go, and existing.go.
type target struct{ *Service }

// newKey is the key of what the caller of a first Set knows: that the SDN has no object
// with the Key of the network, and the existing network, as it was read for this call.
type newKey struct{}

func withNew(ctx context.Context, e *existing) context.Context {
	return context.WithValue(ctx, newKey{}, e)
}

func isNew(ctx context.Context, o reconcile.Object, last Last) (e *existing, isNew bool) {
	e, known := ctx.Value(newKey{}).(*existing)
	return e, known && !o.Earlier && last.ID == ""
}

// key returns the Key of an object of the network, in the form of its first Set. It has
// the name of the network's own Key, which an earlier store may have given.
func (t target) key(kind, part string, o reconcile.Object, spec Spec, last Last) sdn.Key {
	n := t.Names
	n.Compat = spec.Form != formOwn
	if last.Key.IsZero() {
		return n.Key(kind, o.Key+part, o)
	}
	name, incarnation, has := strings.Cut(last.Key.Name, "~")
	if name += part; has {
		name += "~" + incarnation
	}
	return n.GlobalKey(kind, name)
}

func (t target) networkKey(o reconcile.Object, spec Spec, last Last) sdn.Key {
	return t.key(identity.KindNetwork, "", o, spec, last)
}

func (t target) subnetKey(o reconcile.Object, spec Spec, last Last, r Range) sdn.Key {
	return t.key(identity.KindSubnet, identity.SubnetPart(r.CIDR, r.Place), o, spec, last)
}

// networkOf returns the engine's network that a subnet was made for, "" if it is not of
// ours.
func (t target) networkOf(s sdn.Subnet) string {
	parts := strings.Split(s.Key.Name, "/")
	switch {
	case !t.Names.Ours(s.Meta, identity.KindSubnet):
		return ""
	case len(parts) == 5: // HOST/STORE/ID/INCARNATION/PLACE
		return parts[2]
	}
	return parts[0]
}

// Ensure implements reconcile.Target.
func (t target) Ensure(ctx context.Context, o reconcile.Object, spec Spec, last Last) (Last, error) {
	var err error
	if spec.Existing != "" {
		last, err = t.ensureExisting(ctx, o, spec, last)
	} else {
		last, err = t.ensureOwn(ctx, o, spec, last)
	}
	return last, identity.Outcome(err, true)
}

func (t target) ensureOwn(ctx context.Context, o reconcile.Object, spec Spec, last Last) (Last, error) {
	key := t.networkKey(o, spec, last)
	_, first := isNew(ctx, o, last)
	subnets := t.subnetSpecs(o, spec, last)
	made, err := t.SDN.EnsureNetwork(ctx, sdn.NetworkSpec{
		Base:    sdn.Base{Key: key, Name: identity.NetworkTitle(o.Key), Tags: t.networkTags(o.Key, spec)},
		MTU:     spec.MTU,
		Shared:  spec.Shared,
		Subnets: subnets,
		New:     first,
	})
	if err != nil {
		return last, err
	}
	last.ID, last.Key, last.Project = made.ID, key, made.Project
	last.MTU, last.NoPortSecurity = made.MTU, made.NoPortSecurity
	if first && len(made.Subnets) == 1 && len(subnets) == 1 {
		last.Subnets = []sdn.Subnet{madeOf(subnets[0], made)}
	} else if last.Subnets, err = t.subnets(ctx, made); err != nil {
		return last, err
	}
	if last, err = t.dropAbsent(ctx, o, spec, last); err != nil {
		return last, err
	}
	if spec.Routed && len(spec.Ranges) > 0 {
		if last, err = t.route(ctx, o, spec, last, first); err != nil {
			return last, err
		}
	}
	return t.forgetEmptied(ctx, spec, last)
}

// networkTags returns the tags of a network: those of kuryr-libnetwork, the host's, and
// those that the previous version judges the network by.
func (t target) networkTags(id string, spec Spec) []string {
	tags := append(identity.IDTags(id), t.Names.HostTag())
	if spec.Form == formCompat {
		tags = append(tags, identity.NetworkOptionTags(spec.options())...)
	}
	for _, r := range spec.Ranges {
		if r.Absent && r.PoolID != "" {
			tags = append(tags, tagEmptied+string(r.PoolID))
		}
	}
	return tags
}

// madeOf returns the only subnet of a new network.
func madeOf(s sdn.SubnetSpec, n sdn.Network) sdn.Subnet {
	made := sdn.Subnet{
		Meta: sdn.Meta{ID: n.Subnets[0], Base: s.Base}, Network: n.ID, CIDR: s.CIDR, Pool: s.Pool,
		Gateway: s.Gateway.Addr, Ranges: s.Ranges, Reserved: s.Reserved, NoDHCP: s.NoDHCP, HostRoutes: s.HostRoutes,
	}
	made.Project = n.Project
	if !s.Gateway.None && !made.Gateway.IsValid() {
		made.Gateway = identity.FirstHost(s.CIDR)
	}
	return made
}

// subnets reads the subnets of a network.
func (t target) subnets(ctx context.Context, n sdn.Network) ([]sdn.Subnet, error) {
	if len(n.Subnets) == 0 {
		return nil, nil
	}
	list, err := sdn.All(t.SDN.FindSubnets(ctx, sdn.SubnetQuery{Networks: []sdn.ID{n.ID}}))
	sortslice.Func(list, byRange)
	return list, err
}

// subnetSpecs returns the subnets that are made for the ranges.
func (t target) subnetSpecs(o reconcile.Object, spec Spec, last Last) (list []sdn.SubnetSpec) {
	for _, r := range spec.Ranges {
		if r.Standing == "" && !r.Absent {
			list = append(list, subnetSpec(t.subnetKey(o, spec, last, r), r))
		}
	}
	return list
}

func subnetSpec(key sdn.Key, r Range) sdn.SubnetSpec {
	s := sdn.SubnetSpec{
		Base:       sdn.Base{Key: key, Name: identity.SubnetTitle(r.CIDR)},
		CIDR:       r.CIDR,
		Pool:       r.CutFrom,
		Gateway:    sdn.Gateway{Addr: r.Gateway, None: r.None},
		Reserved:   slices.Clone(r.Reserved),
		HostRoutes: slices.Clone(r.Routes),
		NoDHCP:     true,
	}
	if r.PoolID != "" {
		s.Tags = []string{string(r.PoolID)}
	}
	if r.Sub.IsValid() {
		s.Ranges = identity.Within(r.Sub, r.CIDR)
	}
	return s
}

// dropAbsent deletes the subnets of ranges that are absent.
func (t target) dropAbsent(ctx context.Context, o reconcile.Object, spec Spec, last Last) (Last, error) {
	for _, r := range spec.Ranges {
		key := t.subnetKey(o, spec, last, r)
		at := slices.IndexFunc(last.Subnets, func(s sdn.Subnet) bool { return s.Key == key })
		if !r.Absent || at < 0 {
			continue
		}
		id := last.Subnets[at].ID
		if err := t.noteEmptied(ctx, o, spec, r, last.Subnets[at]); err != nil {
			return last, err
		}
		last.Emptied = append(slices.Clone(last.Emptied), r.PoolID)
		if spec.Routed {
			if err := t.detach(ctx, o, spec, &last, id); err != nil {
				return last, err
			}
		}
		if err := t.SDN.DeleteSubnet(ctx, id); err != nil {
			return last, err
		}
		last.Subnets = slices.Delete(slices.Clone(last.Subnets), at, at+1)
	}
	return last, nil
}

// Delete implements reconcile.Target.
func (t target) Delete(ctx context.Context, o reconcile.Object, spec Spec, last Last) error {
	del := t.deleteOwn
	if spec.Existing != "" {
		del = t.deleteExisting
	}
	left, err := del(ctx, o, spec, last)
	if err == nil || errors.Is(err, reconcile.ErrAbsent) {
		return err
	}
	return reconcile.Remaining(left, err)
}

func (t target) deleteOwn(ctx context.Context, o reconcile.Object, spec Spec, last Last) (Last, error) {
	if last.ID == "" {
		var err error
		if last, err = t.find(ctx, o, spec, last); err != nil {
			return last, err
		}
	}
	had := last.ID != ""
	last, routed, err := t.unroute(ctx, o, spec, last)
	if err != nil {
		return last, err
	}
	if !had {
		if routed {
			return last, nil
		}
		return last, reconcile.ErrAbsent
	}
	return last, t.deleteWithPorts(ctx, sdn.PortQuery{Networks: []sdn.ID{last.ID}}, func() error {
		return t.SDN.DeleteNetwork(ctx, last.ID)
	})
}

// find looks for a network whose answer was lost.
func (t target) find(ctx context.Context, o reconcile.Object, spec Spec, last Last) (Last, error) {
	match := sdn.Match{Keys: []sdn.Key{t.networkKey(o, spec, last)}}
	n, found, err := sdn.First(t.SDN.FindNetworks(ctx, sdn.NetworkQuery{Match: match}))
	if err != nil || !found {
		return last, err
	}
	last.ID = n.ID
	last.Subnets, err = t.subnets(ctx, n)
	return last, err
}

// deleteWithPorts deletes a network or a subnet. Ports of ours in its way are left of
// endpoints that the engine no longer has: they are deleted first. Ports of others keep
// it.
func (t target) deleteWithPorts(ctx context.Context, of sdn.PortQuery, del func() error) error {
	err := del()
	if sdn.ReasonOf(err) != sdn.InUse {
		return err
	}
	deleted, others, failed := t.DropPorts(ctx, of)
	if failed != nil {
		return failed
	}
	if deleted > 0 {
		err = del()
	}
	if sdn.ReasonOf(err) == sdn.InUse && len(others) > 0 {
		var ids []string
		for _, p := range others[:min(len(others), maxNamedPorts)] {
			ids = append(ids, string(p.ID))
		}
		return fmt.Errorf("ports of others: %s: %w", strings.Join(ids, " "), err)
	}
	return err
}

// maxNamedPorts is how many ports of others an error names.
const maxNamedPorts = 5
