package network

import (
	"context"
	"slices"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/sdn"
)

// What the SDN has of a network whose row is lost, or that an earlier version or
// kuryr-libnetwork made, becomes a row again.

// byID describes a network by the engine's id, as far as the SDN has it.
func (l lister) byID(ctx context.Context, id string) (f found, ok bool, err error) {
	match := identity.ByKey(l.Names.GlobalKey(identity.KindNetwork, id))
	n, ok, err := sdn.First(l.SDN.FindNetworks(ctx, sdn.NetworkQuery{Match: match}))
	switch {
	case err != nil:
		return f, false, err
	case !ok:
		return l.linkByID(ctx, id)
	}
	f, err = l.own(ctx, n)
	return f, err == nil, err
}

// linkByID is byID for an existing network.
func (l lister) linkByID(ctx context.Context, id string) (f found, ok bool, err error) {
	if !l.SDN.Capabilities().SubnetPools {
		return f, false, nil
	}
	match := identity.ByKey(l.Names.GlobalKey(identity.KindLink, l.Names.Host+"/"+id))
	link, ok, err := sdn.First(l.SDN.FindSubnetPools(ctx, sdn.SubnetPoolQuery{Match: match}))
	if err != nil || !ok {
		return f, false, err
	}
	f, err = l.linked(ctx, link)
	return f, err == nil, err
}

// Delete implements reconcile.Target.
func (l lister) Delete(ctx context.Context, o reconcile.Object, spec Spec, last Last) error {
	if !spec.Unknown {
		return (&work{l.Service, o, spec, last}).delete(ctx)
	}
	f, ok, err := l.byID(ctx, o.Key)
	switch {
	case err != nil:
		return err
	case !ok:
		return reconcile.ErrAbsent
	}
	if f.Spec.Existing != "" {
		err := tagTarget{l.Service}.Delete(ctx, o, tagsOf(f.Spec, f.Last), struct{}{})
		if err != nil {
			return err
		}
	}
	return (&work{l.Service, f.Object, f.Spec, f.Last}).delete(ctx)
}

// lookUp makes the row of a network that a call names, of what the SDN has. It reports
// whether there is one.
func (s *Service) lookUp(ctx context.Context, id string) (bool, error) {
	l := s.lister()
	return s.importBy(ctx, id, func(ctx context.Context, id string) (found, bool, error) {
		f, ok, err := l.byID(ctx, id)
		if !ok && err == nil {
			f, ok, err = l.byTags(ctx, id)
		}
		return f, ok, err
	})
}

// lookUpLink is lookUp for the link to an existing network.
func (s *Service) lookUpLink(ctx context.Context, id string) (bool, error) {
	return s.importBy(ctx, id, s.lister().linkByID)
}

// importBy makes the row of a network that has none, and reports whether it has one then.
func (s *Service) importBy(
	ctx context.Context, id string, read func(ctx context.Context, id string) (found, bool, error),
) (bool, error) {
	var f found
	imported, err := s.networks.ImportFound(ctx, id, func(ctx context.Context) (*row, error) {
		var ok bool
		var err error
		if f, ok, err = read(ctx, id); err != nil || !ok {
			return nil, err
		}
		f.Key = id
		r := f.row()
		return &r, nil
	})
	switch {
	case err != nil:
		return false, err
	case imported:
		return true, s.imported(ctx, f)
	}
	_, ok := s.networks.Get(id)
	return ok, nil
}

// imported does what follows from a row that was stored.
func (s *Service) imported(ctx context.Context, f found) error {
	s.Log.InfoContext(ctx, "network imported", "network", f.Key, "id", f.Last.ID)
	if f.deleted {
		return s.removeImported(ctx, f.Key)
	}
	if f.Spec.Existing == "" {
		return nil
	}
	s.setTags(ctx, f.Key, f.Spec, f.Last)
	if f.Last.Link != "" {
		return nil
	}
	return s.restoreRow(ctx, f.Key) // which makes the link
}

// Import makes the row of a network, if the SDN has it and there is none.
func (s *Service) Import(ctx context.Context, id string) error {
	if _, ok := s.networks.Get(id); ok {
		return nil
	}
	_, err := s.lookUp(ctx, id)
	return err
}

// ImportDelete stores the deletion of a network that an earlier version was asked for.
func (s *Service) ImportDelete(ctx context.Context, id string) error {
	err := s.networks.Import(ctx, []row{{
		Object: reconcile.Object{Key: id}, Phase: reconcile.Deleting, Spec: Spec{Form: formCompat, Unknown: true},
	}})
	if err != nil {
		return err
	}
	return s.removeImported(ctx, id)
}

// removeImported removes a row that may be of an import. The tags of an existing network get a row
// first, as they have none yet and go with their row.
func (s *Service) removeImported(ctx context.Context, id string) error {
	r, ok := s.networks.Get(id)
	if _, tagged := s.tags.Get(id); ok && !tagged && r.Spec.Existing != "" {
		s.setTags(ctx, id, r.Spec, r.Last)
	}
	return s.networks.RemoveLater(ctx, id)
}

// ImportTags stores that an earlier version had not written, or not deleted, all tags of
// an existing network. Finish finds out which.
func (s *Service) ImportTags(ctx context.Context, id string, network sdn.ID, pools []sdn.ID) error {
	return s.tags.Import(ctx, []reconcile.Row[TagSpec, struct{}]{{
		Object: reconcile.Object{Key: id}, Phase: reconcile.Wanted,
		Spec: TagSpec{Network: network, Pools: pools, Subnets: make([]sdn.ID, len(pools))},
	}})
}

// byTags describes a network by its tags. It takes over what kuryr-libnetwork made or
// used.
func (l lister) byTags(ctx context.Context, id string) (f found, ok bool, err error) {
	if _, ok := l.tags.Get(id); ok {
		return f, false, nil // its tags are ours, and not deleted yet
	}
	query := sdn.NetworkQuery{Match: sdn.Match{Tags: identity.IDTags(id)}}
	networks, err := sdn.All(l.SDN.FindNetworks(ctx, query))
	if err != nil {
		return f, false, err
	}
	networks = slices.DeleteFunc(networks, func(n sdn.Network) bool { return !identity.HasID(n.Tags, id) })
	for _, n := range networks {
		if l.Names.Ours(n.Meta, identity.KindNetwork) { // its Key has the name of a lost store
			f, err = l.own(ctx, n)
			return f, err == nil, err
		}
	}
	networks = slices.DeleteFunc(networks, func(n sdn.Network) bool { return !n.Foreign })
	switch {
	case len(networks) == 0:
		return f, false, nil
	case len(networks) > 1:
		return f, false, api.Refuse("%d networks have the tags of network %s: delete those that are not in use",
			len(networks), api.Clip(id, 12))
	case identity.PeersNetwork(networks[0], id):
		var n sdn.Network
		if n, err = l.adopt(ctx, id, networks[0]); err == nil {
			f, err = l.own(ctx, n)
		}
	case !l.SDN.Capabilities().SubnetPools:
		err = api.Refuse("this SDN has no subnet pools, which existing networks need")
	default:
		spec := Spec{Existing: networks[0].ID, Form: l.form(row{}, false)}
		f, err = l.existing(ctx, reconcile.Object{Key: id}, spec, Last{}, nil, nil)
	}
	return f, err == nil, err
}

// adopt gives Keys to a network that kuryr-libnetwork made, its subnets and their pools.
// The network's is the last: until then all of it is repeated.
func (s *Service) adopt(ctx context.Context, id string, n sdn.Network) (sdn.Network, error) {
	subnets, err := sdn.All(s.SDN.FindSubnets(ctx, sdn.SubnetQuery{Networks: []sdn.ID{n.ID}}))
	if err != nil {
		return n, err
	}
	place := map[bool]int{}
	for _, subnet := range subnets {
		v6 := subnet.CIDR.Addr().Is6()
		w := &work{s, reconcile.Object{Key: id}, Spec{Form: formCompat}, Last{}}
		key := w.subnetKey(Range{CIDR: subnet.CIDR, Place: place[v6]})
		place[v6]++
		if subnet.Name != identity.SubnetTitle(subnet.CIDR) || !subnet.Key.IsZero() || subnet.Description != "" {
			continue
		}
		if err := s.adoptSubnet(ctx, subnet, key); err != nil {
			return n, err
		}
	}
	key := s.Names.GlobalKey(identity.KindNetwork, id)
	adopted, err := s.SDN.UpdateNetwork(ctx, n.ID, sdn.NetworkPatch{Patch: sdn.Patch{Key: &key}})
	if err == nil {
		s.Log.InfoContext(ctx, "network of kuryr-libnetwork taken over", "network", id, "id", n.ID)
	}
	return adopted, err
}

func (s *Service) adoptSubnet(ctx context.Context, subnet sdn.Subnet, key sdn.Key) error {
	pools, err := existingPools(ctx, s.SDN.SubnetPool, subnetPools(subnet))
	if err != nil {
		return err
	}
	for _, p := range pools {
		if !identity.PeersPool(p) {
			continue
		}
		if err := s.Pools.AdoptPool(ctx, p.ID); err != nil {
			return err
		}
	}
	_, err = s.SDN.UpdateSubnet(ctx, subnet.ID, sdn.SubnetPatch{Patch: sdn.Patch{Key: &key}})
	return err
}
