package network

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/sdn"
)

// An existing network that is a network of Docker's, and the subnets that are used, carry
// kuryr-libnetwork's tags: for people, and for that program if it gets the deployment
// back. Each tag is a call of the SDN, so Docker does not wait for them. Rows of a kind
// of their own outlive the network.

// TagSpec is what carries the tags of a network.
type TagSpec struct {
	Network sdn.ID   `json:"network"`           // existing
	Pools   []sdn.ID `json:"pools,omitempty"`   // that Docker has, or had, for it
	Subnets []sdn.ID `json:"subnets,omitempty"` // existing, of the pools in their order; "": unknown
	Project string   `json:"project,omitempty"` // Kuryr's; "": unknown, or the SDN has no projects
	Unknown bool     `json:"unknown,omitempty"` // no object of Kuryr's tells Project
}

// tagTarget writes and deletes the tags. It fails if another has changed the object since it
// was read, and the store repeats it.
type tagTarget struct{ *Service }

func useTags(id string) []string { return append(identity.IDTags(id), identity.ExistingTag(id)) }

// tagsOf returns what carries the tags of an existing network.
func tagsOf(spec Spec, last Last) TagSpec {
	t := TagSpec{Network: spec.Existing, Project: last.Home}
	t.Unknown = last.Home == "" && last.Link == "" && len(last.Added) == 0
	for _, r := range spec.Ranges {
		if r.PoolID != "" && r.Standing != "" {
			t.Pools, t.Subnets = append(t.Pools, r.PoolID), append(t.Subnets, r.Standing)
		}
	}
	return t
}

func (s *Service) setTags(ctx context.Context, id string, spec Spec, last Last) {
	want := tagsOf(spec, last)
	if old, ok := s.tags.Get(id); ok && old.Spec.Network == want.Network {
		want.Project = cmp.Or(want.Project, old.Spec.Project)
		want.Unknown = want.Unknown && old.Spec.Unknown
		for _, pool := range old.Spec.Pools {
			if !slices.Contains(want.Pools, pool) { // its tag may still be there
				want.Pools, want.Subnets = append(want.Pools, pool), append(want.Subnets, "")
			}
		}
	}
	if err := s.tags.SetLater(ctx, reconcile.Request[TagSpec]{Key: id, Spec: want}); err != nil {
		s.Log.WarnContext(ctx, "network tags not queued", "network", spec.Existing, "err", err)
	}
}

// dropTags deletes the tags of a network that has no row any longer, as after it was an
// orphan.
func (s *Service) dropTags(id string) {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	unlock, err := s.locks.Lock(ctx, lockNetwork+id)
	if err != nil {
		return // Finish repeats it
	}
	defer unlock()
	if n, ok := s.networks.Get(id); ok && n.Phase == reconcile.Wanted {
		return
	}
	if err := s.tags.RemoveLater(ctx, id); err != nil && !errors.Is(err, reconcile.ErrClosed) {
		s.Log.WarnContext(ctx, "network tags not deleted", "network", id, "err", err)
	}
}

// tagFirst writes the tag by which kuryr-libnetwork knows that a network is in use.
func (s *Service) tagFirst(ctx context.Context, id string, network sdn.ID) {
	n, err := s.SDN.UpdateNetwork(ctx, network, sdn.NetworkPatch{}) // reads past caches
	if err == nil {
		_, err = s.TagNetwork(ctx, n, identity.WithAll(n.Tags, identity.ExistingTag(id)))
	}
	if err != nil {
		s.Log.WarnContext(ctx, "existing network not tagged", "network", network, "err", err)
	}
}

// removeTags deletes the tags of a network that is no longer Docker's. Docker waits if
// objects of kuryr-libnetwork depend on them.
func (s *Service) removeTags(ctx context.Context, id string, spec Spec, last Last) error {
	if _, ok := s.tags.Get(id); !ok { // the network is of an earlier version
		s.setTags(ctx, id, spec, last)
	}
	if peers, err := s.peersWork(ctx, spec, last); err != nil || !peers {
		return s.tags.RemoveLater(ctx, id)
	}
	return s.tags.Remove(ctx, id)
}

func (s *Service) peersWork(ctx context.Context, spec Spec, last Last) (bool, error) {
	n, err := s.SDN.Network(ctx, spec.Existing)
	return err == nil && identity.PeersWork(n, last.Subnets), identity.IgnoreAbsent(err)
}

// Ensure implements reconcile.Target.
func (t tagTarget) Ensure(
	ctx context.Context, o reconcile.Object, spec TagSpec, _ struct{},
) (none struct{}, err error) {
	return none, t.unlessRefused(ctx, spec, t.write(ctx, o.Key, spec))
}

func (t tagTarget) write(ctx context.Context, id string, spec TagSpec) error {
	n, err := t.SDN.Network(ctx, spec.Network)
	if err != nil {
		return identity.IgnoreAbsent(err)
	}
	if _, err := t.TagNetwork(ctx, n, identity.WithAll(n.Tags, useTags(id)...)); err != nil {
		return err
	}
	for i, id := range spec.Subnets {
		if id == "" {
			continue
		}
		subnet, err := t.SDN.Subnet(ctx, id)
		if err == nil && subnet.Network == spec.Network {
			_, err = t.TagSubnet(ctx, subnet, identity.WithAll(subnet.Tags, string(spec.Pools[i])))
		}
		if identity.IgnoreAbsent(err) != nil {
			return err
		}
	}
	return nil
}

// Delete implements reconcile.Target. It also deletes what kuryr-libnetwork made for the
// use of the network, unless others use it.
func (t tagTarget) Delete(ctx context.Context, o reconcile.Object, spec TagSpec, _ struct{}) error {
	return t.unlessRefused(ctx, spec, t.remove(ctx, o.Key, spec))
}

func (t tagTarget) remove(ctx context.Context, id string, spec TagSpec) error {
	n, err := t.SDN.Network(ctx, spec.Network)
	if err != nil {
		return identity.IgnoreAbsent(err)
	}
	if _, err := t.TagNetwork(ctx, n, identity.Without(n.Tags, useTags(id)...)); err != nil {
		return err
	}
	var pools []string
	for _, p := range spec.Pools {
		pools = append(pools, string(p))
	}
	var peers []peerUse
	for s, err := range t.SDN.FindSubnets(ctx, sdn.SubnetQuery{Networks: []sdn.ID{spec.Network}}) {
		use := peerUse{pools: subnetPools(s)}
		if err == nil && !t.Names.Ours(s.Meta, identity.KindSubnet) {
			s, err = t.TagSubnet(ctx, s, identity.Without(s.Tags, pools...))
		}
		if err != nil {
			return err
		}
		use.subnet = s
		if slices.ContainsFunc(use.pools, func(id sdn.ID) bool { return !slices.Contains(spec.Pools, id) }) {
			peers = append(peers, use)
		}
	}
	if len(peers) == 0 {
		return nil
	}
	return t.dropPeersPools(ctx, spec, peers)
}

// peerUse is a subnet of an existing network with the pools that it had before its tags
// were deleted.
type peerUse struct {
	subnet sdn.Subnet
	pools  []sdn.ID
}

// unlessRefused returns an error after which tags are tried again. An owner may not allow
// others to tag a network, and nothing depends on the tags.
func (t tagTarget) unlessRefused(ctx context.Context, spec TagSpec, err error) error {
	if err == nil || sdn.IsUnavailable(err) || sdn.ReasonOf(err) == sdn.Stale || ctx.Err() != nil {
		return err
	}
	t.Log.WarnContext(ctx, "tags of existing network refused", "network", spec.Network, "err", err)
	return nil
}

// dropPeersPools deletes what kuryr-libnetwork made for the use of an existing network,
// if no other host uses the network.
func (t tagTarget) dropPeersPools(ctx context.Context, spec TagSpec, peers []peerUse) error {
	now, err := t.SDN.UpdateNetwork(ctx, spec.Network, sdn.NetworkPatch{}) // reads past caches
	if err != nil || len(identity.Values(now.Tags, identity.TagExisting)) > 0 {
		return err
	}
	for _, use := range peers {
		pools, err := existingPools(ctx, t.SDN.SubnetPool, use.pools)
		if err != nil {
			return err
		}
		for _, p := range pools {
			use.subnet, err = t.dropPeersPool(ctx, spec, use.subnet, p)
			if err != nil && sdn.ReasonOf(err) != sdn.InUse && !sdn.IsNotFound(err) {
				return err
			}
		}
	}
	return nil
}

// dropPeersPool deletes a pool of a subnet, and the subnet if it has kuryr-libnetwork's
// name. An operator's pool loses its tag. It returns the changed subnet.
func (t tagTarget) dropPeersPool(
	ctx context.Context, spec TagSpec, s sdn.Subnet, p sdn.SubnetPool,
) (_ sdn.Subnet, err error) {
	peers := isPeersPool(spec, s, p)
	if !peers && !slices.Contains(p.Tags, identity.TagExistingPool) {
		return s, nil
	}
	if peers && s.Foreign && s.Name == identity.SubnetTitle(s.CIDR) && s.Pool == p.ID {
		err = t.SDN.DeleteSubnet(ctx, s.ID)
	} else {
		s, err = t.TagSubnet(ctx, s, identity.Without(s.Tags, string(p.ID)))
	}
	switch {
	case err != nil:
		return s, err
	case peers:
		return s, t.SDN.DeleteSubnetPool(ctx, p.ID)
	}
	return s, t.Pools.Unmark(ctx, p.ID, "")
}

// isPeersPool reports whether kuryr-libnetwork made a pool for a subnet. The owner of the
// subnet can give it the id of any pool as a tag. So the pool must be of Kuryr's project,
// and name the subnet. The project is unknown if Kuryr has made nothing for the network:
// then the pool must name the subnet by a tag, which its owner alone can write.
func isPeersPool(spec TagSpec, s sdn.Subnet, p sdn.SubnetPool) bool {
	if !identity.PeersPool(p) || p.Prefixes[0] != s.CIDR {
		return false
	}
	named := slices.Contains(p.Tags, string(s.ID))
	if spec.Unknown {
		return named
	}
	return p.Project == spec.Project && (named || s.Pool == p.ID)
}

// subnetPools returns the pools of a subnet. One that is allocated from an operator's
// pool names Docker's by a tag.
func subnetPools(s sdn.Subnet) []sdn.ID {
	if ids := identity.IDs(s.Tags); len(ids) > 0 {
		return ids
	}
	if s.Pool == "" {
		return nil
	}
	return []sdn.ID{s.Pool}
}

func existingPools(
	ctx context.Context, read func(context.Context, sdn.ID) (sdn.SubnetPool, error), ids []sdn.ID,
) (pools []sdn.SubnetPool, err error) {
	for _, id := range ids {
		pool, err := read(ctx, id)
		if identity.IgnoreAbsent(err) != nil {
			return nil, err
		}
		if err == nil {
			pools = append(pools, pool)
		}
	}
	return pools, nil
}
