package swarm

import (
	"context"
	"net/netip"
	"slices"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/sdn"
)

// RequestPool answers for a range that a network of the swarm has already: a node's
// request, or that of a manager that was restarted or elected since. Otherwise docker/ipam makes a
// pool.
func (s *Service) RequestPool(
	ctx context.Context, r *api.RequestPoolRequest,
) (answer api.RequestPoolResponse, err error) {
	manager := r.AddressSpace == api.GlobalSpace
	if !s.SDN.Capabilities().SubnetPools || !r.Pool.IsValid() || !manager && r.AddressSpace != api.LocalSpace ||
		len(r.Existing.Subnet)+len(r.Existing.Pool) > 0 {
		return s.IPAM.RequestPool(ctx, r)
	}
	if manager {
		if err := s.finishRange(ctx, r.Pool); err != nil {
			return answer, err
		}
	}
	subnet, found, err := s.allocated(ctx, r.Pool, manager)
	switch {
	case err != nil:
		return answer, err
	case !found:
		return s.IPAM.RequestPool(ctx, r)
	}
	id := api.PoolID{Pool: subnet.Pool, Node: true}
	if manager {
		// It was not told that the range is the network's.
		if err := s.IPAM.HandOver(ctx, subnet.Pool); err != nil {
			return answer, err
		}
		s.issue(subnet.Pool)
		id = api.PoolID{Pool: subnet.Pool, Life: s.Names.Nonce()}
	}
	return api.RequestPoolResponse{
		PoolID: id.String(), Pool: r.Pool.String(), Data: map[string]string{},
	}, nil
}

// finishRange deletes the networks of a range that a manager was not told of. Their pools
// are free then.
func (s *Service) finishRange(ctx context.Context, cidr netip.Prefix) error {
	for r := range s.allocation.Rows() {
		has := func(subnet sdn.SubnetSpec) bool { return subnet.CIDR == cidr }
		if r.Phase == reconcile.Deleting && slices.ContainsFunc(r.Spec.Network.Subnets, has) {
			if err := s.allocation.Remove(ctx, r.Key); err != nil {
				return err
			}
		}
	}
	return nil
}

// allocated returns the subnet with a range that a manager allocates addresses from.
// hidden includes those of networks that another driver has.
func (s *Service) allocated(ctx context.Context, cidr netip.Prefix, hidden bool) (sdn.Subnet, bool, error) {
	match := sdn.Match{Owner: s.Names.Owner, Kind: identity.KindPool, Names: []string{identity.PoolTitle(cidr)}}
	var ids []sdn.ID
	for p, err := range s.SDN.FindSubnetPools(ctx, sdn.SubnetPoolQuery{Match: match}) {
		if err != nil {
			return sdn.Subnet{}, false, err
		}
		if name, _ := identity.ParsePoolName(p.Key.Name); s.isGlobal(p) && name.CIDR == cidr {
			ids = append(ids, p.ID)
		}
	}
	if len(ids) == 0 {
		return sdn.Subnet{}, false, nil
	}
	subnets, err := sdn.All(s.SDN.FindSubnets(ctx, sdn.SubnetQuery{Pools: ids}))
	if err != nil {
		return sdn.Subnet{}, false, err
	}
	for _, subnet := range subnets {
		if !hasSwarm(subnet.Meta) {
			continue
		}
		if s.isHidden(subnet) {
			if hidden {
				return subnet, true, nil
			}
			continue
		}
		n, err := s.SDN.Network(ctx, subnet.Network)
		if err == nil && slices.Contains(n.Tags, identity.TagAllocated) {
			return subnet, true, nil
		}
		if identity.IgnoreAbsent(err) != nil {
			return sdn.Subnet{}, false, err
		}
	}
	return sdn.Subnet{}, false, nil
}

func (s *Service) isHidden(subnet sdn.Subnet) bool {
	return s.Names.Ours(subnet.Meta, identity.KindHiddenSubnet)
}

// ReleasePool releases a pool that a manager has, or a node's use of it. Other pools are left to
// docker/ipam.
func (s *Service) ReleasePool(ctx context.Context, r *api.ReleasePoolRequest) (none api.Empty, err error) {
	if ours, err := s.ReleaseShared(ctx, r); ours || err != nil {
		return none, err
	}
	return s.IPAM.ReleasePool(ctx, r)
}

// ReleaseShared is ReleasePool for the ranges of the swarm. It reports false for others.
func (s *Service) ReleaseShared(ctx context.Context, r *api.ReleasePoolRequest) (ours bool, err error) {
	id := r.PoolID
	switch {
	case id.Node:
		return true, s.releaseNodePool(ctx, id.Pool)
	case id.Life == "" && s.IPAM.Has(id.Pool):
		return false, nil
	case id.Life == "":
		p, err := s.SDN.SubnetPool(ctx, id.Pool)
		if sdn.IsNotFound(err) || err == nil && !s.isGlobal(p) {
			return false, nil
		}
		if err != nil && !unavailable(err) {
			return true, err
		}
	}
	s.issued.Delete(id.Pool)
	return true, free(ctx, s, s.release, reconcile.Row[release, none]{
		Object: reconcile.Object{Key: string(id.Pool)}, Spec: release{Life: id.Life},
	})
}

// release is the Spec of a pool, by its id, that a manager releases.
type release struct {
	Life string `json:"life,omitempty"` // of the manager, as in its PoolID
}

// poolTarget releases pools. Its rows are only deleted.
type poolTarget struct{ *Service }

// Ensure implements reconcile.Target.
func (poolTarget) Ensure(context.Context, reconcile.Object, release, none) (none, error) {
	return none{}, reconcile.ErrUnwanted
}

// Delete implements reconcile.Target. A pool that a network has gets a tag, and the host
// that deletes the network deletes it.
func (t poolTarget) Delete(ctx context.Context, o reconcile.Object, spec release, _ none) error {
	p, err := t.SDN.SubnetPool(ctx, sdn.ID(o.Key))
	if sdn.IsNotFound(err) || err == nil && !t.isGlobal(p) {
		return reconcile.ErrAbsent
	}
	if err != nil {
		return err
	}
	subnet, used, err := t.subnetOf(ctx, p.ID)
	if err != nil {
		return err
	}
	if !used {
		return identity.IgnoreAbsent(t.SDN.DeleteSubnetPool(ctx, p.ID))
	}
	if t.isHidden(subnet) {
		if err := t.TagPool(ctx, p, identity.WithAll(p.Tags, identity.TagReleased)); err != nil {
			return err
		}
		if err := t.dropPorts(ctx, subnet.Network); err != nil {
			return err
		}
		if err := identity.IgnoreAbsent(t.SDN.DeleteNetwork(ctx, subnet.Network)); err != nil {
			return err
		}
		return identity.IgnoreAbsent(t.SDN.DeleteSubnetPool(ctx, p.ID))
	}
	n, err := t.SDN.Network(ctx, subnet.Network)
	if sdn.IsNotFound(err) { // it went since the subnet was read
		return identity.IgnoreAbsent(t.SDN.DeleteSubnetPool(ctx, p.ID))
	}
	if err != nil {
		return err
	}
	if spec.Life != "" && slices.Contains(n.Tags, identity.TagAllocated) {
		// The network is freed next, or another network was refused the range and its
		// manager releases what it was given for it.
		return t.TagPool(ctx, p, identity.WithAll(p.Tags, identity.TagLetGo))
	}
	if err := t.TagPool(ctx, p, identity.WithAll(p.Tags, identity.TagReleased)); err != nil {
		return err
	}
	if err := t.freeReleased(ctx, n); err != nil {
		return err
	}
	// The last node may have looked for released pools before the tag was there.
	return t.dropPools(ctx, []sdn.SubnetPool{p})
}

// freeReleased frees a network whose ranges are all released: its manager was not told
// that it was allocated.
func (s *Service) freeReleased(ctx context.Context, n sdn.Network) error {
	if !s.Names.Ours(n.Meta, identity.KindNetwork) || !slices.Contains(n.Tags, identity.TagAllocated) {
		return nil
	}
	subnets, err := s.subnets(ctx, n.ID)
	if err != nil {
		return err
	}
	var ids []sdn.ID
	for _, subnet := range subnets {
		if subnet.Pool == "" {
			return nil
		}
		ids = append(ids, subnet.Pool)
	}
	if len(ids) == 0 {
		return nil
	}
	released, err := s.releasedPools(ctx, sdn.Match{IDs: ids}, identity.TagReleased)
	if err != nil || len(released) < len(ids) {
		return err
	}
	return s.unallocate(ctx, n)
}

// unallocate takes a network from its manager, and deletes it unless a node has it.
func (s *Service) unallocate(ctx context.Context, n sdn.Network) error {
	return s.giveUp(ctx, n, identity.Without(n.Tags, append(allocating(n.Tags), identity.TagAllocated)...))
}
