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

// work is a call of the target for one network. last is what the SDN has so far. Its files are
// target.go for networks of Kuryr's own, router.go, empty.go, and existing.go.
type work struct {
	*Service
	o    reconcile.Object
	spec Spec
	last Last
}

// newKey is the key of what the caller of a first Set knows: that the SDN has no object
// with the Key of the network, and the existing network, as it was read for this call.
type newKey struct{}

func withNew(ctx context.Context, e *existing) context.Context {
	return context.WithValue(ctx, newKey{}, e)
}

func (w *work) isNew(ctx context.Context) (e *existing, isNew bool) {
	e, known := ctx.Value(newKey{}).(*existing)
	return e, known && !w.o.Earlier && w.last.ID == ""
}

// key returns the Key of an object of the network, in the form of its first Set. It has
// the name of the network's own Key, which an earlier store may have given.
func (w *work) key(kind, part string) sdn.Key {
	n := w.Names
	n.Compat = w.spec.Form != formOwn
	if w.last.Key.IsZero() {
		return n.Key(kind, w.o.Key+part, w.o)
	}
	name, incarnation, has := strings.Cut(w.last.Key.Name, "~")
	if name += part; has {
		name += "~" + incarnation
	}
	return n.GlobalKey(kind, name)
}

func (w *work) subnetKey(r Range) sdn.Key {
	return w.key(identity.KindSubnet, identity.SubnetPart(r.CIDR, r.Place))
}

// networkOf returns the engine's network that a subnet was made for, "" if it is not of
// ours.
func (s *Service) networkOf(subnet sdn.Subnet) string {
	parts := strings.Split(subnet.Key.Name, "/")
	switch {
	case !s.Names.Ours(subnet.Meta, identity.KindSubnet):
		return ""
	case len(parts) == 5: // HOST/STORE/ID/INCARNATION/PLACE
		return parts[2]
	}
	return parts[0]
}

// Ensure implements reconcile.Target.
func (l lister) Ensure(ctx context.Context, o reconcile.Object, spec Spec, last Last) (Last, error) {
	w := &work{l.Service, o, spec, last}
	ensure := w.ensureOwn
	if spec.Existing != "" {
		ensure = w.ensureExisting
	}
	err := ensure(ctx)
	return w.last, identity.Outcome(err, true)
}

func (w *work) ensureOwn(ctx context.Context) error {
	key, subnets := w.key(identity.KindNetwork, ""), w.subnetSpecs()
	_, first := w.isNew(ctx)
	made, err := w.SDN.EnsureNetwork(ctx, sdn.NetworkSpec{
		Base:    sdn.Base{Key: key, Name: identity.NetworkTitle(w.o.Key), Tags: w.networkTags()},
		MTU:     w.spec.MTU,
		Shared:  w.spec.Shared,
		Subnets: subnets,
		New:     first,
	})
	if err != nil {
		return err
	}
	w.last.ID, w.last.Key, w.last.Project = made.ID, key, made.Project
	w.last.MTU, w.last.NoPortSecurity = made.MTU, made.NoPortSecurity
	if first && len(made.Subnets) == 1 && len(subnets) == 1 {
		w.last.Subnets = []sdn.Subnet{madeOf(subnets[0], made)}
	} else if err := w.readSubnets(ctx, made); err != nil {
		return err
	}
	if err := w.dropAbsent(ctx); err != nil {
		return err
	}
	if w.spec.Routed && len(w.spec.Ranges) > 0 {
		if err := w.route(ctx, first); err != nil {
			return err
		}
	}
	return w.forgetEmptied(ctx)
}

// networkTags returns the tags of a network: those of kuryr-libnetwork, the host's, and
// those that the previous version judges the network by.
func (w *work) networkTags() []string {
	tags := append(identity.IDTags(w.o.Key), w.Names.HostTag())
	if w.spec.Form == formCompat {
		tags = append(tags, identity.NetworkOptionTags(w.spec.options())...)
	}
	for _, r := range w.spec.Ranges {
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

func (w *work) readSubnets(ctx context.Context, n sdn.Network) (err error) {
	if w.last.Subnets = nil; len(n.Subnets) > 0 {
		w.last.Subnets, err = w.subnetsOf(ctx, n.ID)
	}
	return err
}

// subnetsOf reads the subnets of a network in the order of a Last.
func (s *Service) subnetsOf(ctx context.Context, network sdn.ID) ([]sdn.Subnet, error) {
	subnets, err := sdn.All(s.SDN.FindSubnets(ctx, sdn.SubnetQuery{Networks: []sdn.ID{network}}))
	sortslice.Func(subnets, byRange)
	return subnets, err
}

func byRange(a, b sdn.Subnet) int { return a.CIDR.Compare(b.CIDR) }

// subnetOf returns the index of the subnet that was made for a range, -1 if there is none.
func (w *work) subnetOf(r Range) int {
	key := w.subnetKey(r)
	return slices.IndexFunc(w.last.Subnets, func(s sdn.Subnet) bool { return s.Key == key })
}

func (w *work) subnetSpecs() (list []sdn.SubnetSpec) {
	for _, r := range w.spec.Ranges {
		if r.Standing != "" || r.Absent {
			continue
		}
		s := sdn.SubnetSpec{
			Base:       sdn.Base{Key: w.subnetKey(r), Name: identity.SubnetTitle(r.CIDR)},
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
		list = append(list, s)
	}
	return list
}

// dropAbsent deletes the subnets of ranges that are absent.
func (w *work) dropAbsent(ctx context.Context) error {
	for _, r := range w.spec.Ranges {
		at := w.subnetOf(r)
		if !r.Absent || at < 0 {
			continue
		}
		id := w.last.Subnets[at].ID
		if err := w.noteEmptied(ctx, r, w.last.Subnets[at]); err != nil {
			return err
		}
		w.last.Emptied = append(slices.Clone(w.last.Emptied), r.PoolID)
		if w.spec.Routed {
			if err := w.detach(ctx, id); err != nil {
				return err
			}
		}
		if err := w.SDN.DeleteSubnet(ctx, id); err != nil {
			return err
		}
		w.last.Subnets = slices.Delete(slices.Clone(w.last.Subnets), at, at+1)
	}
	return nil
}

func (w *work) delete(ctx context.Context) error {
	del := w.deleteOwn
	if w.spec.Existing != "" {
		del = w.deleteExisting
	}
	err := del(ctx)
	if err == nil || errors.Is(err, reconcile.ErrAbsent) {
		return err
	}
	return reconcile.Remaining(w.last, err)
}

func (w *work) deleteOwn(ctx context.Context) error {
	if w.last.ID == "" { // the answer of its creation was lost
		match := identity.ByKey(w.key(identity.KindNetwork, ""))
		n, found, err := sdn.First(w.SDN.FindNetworks(ctx, sdn.NetworkQuery{Match: match}))
		if found {
			w.last.ID = n.ID
			err = w.readSubnets(ctx, n)
		}
		if err != nil {
			return err
		}
	}
	routed, err := w.unroute(ctx)
	switch {
	case err != nil:
		return err
	case w.last.ID != "":
		return w.deleteWithPorts(ctx, sdn.PortQuery{Networks: []sdn.ID{w.last.ID}}, func() error {
			return w.SDN.DeleteNetwork(ctx, w.last.ID)
		})
	case routed:
		return nil
	}
	return reconcile.ErrAbsent
}

// deleteWithPorts deletes a network or a subnet. Ports of ours in its way are left of
// endpoints that the engine no longer has: they are deleted first. Ports of others keep
// it.
func (w *work) deleteWithPorts(ctx context.Context, of sdn.PortQuery, del func() error) error {
	err := del()
	if sdn.ReasonOf(err) != sdn.InUse {
		return err
	}
	deleted, others, failed := w.DropPorts(ctx, of)
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
