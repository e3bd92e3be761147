package swarm

import (
	"context"
	"iter"
	"slices"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/docker/ipam"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/sdn"
)

// allocation is the Spec of a network, by the engine's id, that a manager allocates or
// frees.
type allocation struct {
	Network sdn.NetworkSpec `json:"network,omitzero"`
	Tags    []string        `json:"tags,omitempty"` // that it must have
	Free    bool            `json:"free,omitempty"` // the manager has freed it
}

// AllocateNetwork makes the network and its subnets before a node hears of it, so that
// addresses of the manager are ports on it. The first node attaches it to a router: a
// manager does not know whether it is internal. The answered options replace the user's
// on the nodes. A network whose ranges another IPAM driver has is left to its nodes.
func (s *Service) AllocateNetwork(
	ctx context.Context, r *api.AllocateNetworkRequest,
) (api.AllocateNetworkResponse, error) {
	keys := []string{"network/" + r.NetworkID}
	for _, data := range r.Ranges {
		keys = append(keys, "range/"+data.Pool.String())
	}
	unlock, err := s.locks.LockAll(ctx, keys...)
	if err != nil {
		return api.AllocateNetworkResponse{}, err
	}
	defer unlock()
	err = whileStale(ctx, func() error { return s.allocate(ctx, r) })
	return api.AllocateNetworkResponse{Options: r.UserOptions}, err
}

func (s *Service) allocate(ctx context.Context, r *api.AllocateNetworkRequest) error {
	if err := finish(ctx, s.allocation, r.NetworkID); err != nil {
		return err
	}
	n, exists, err := s.network(ctx, r.NetworkID)
	if err != nil {
		return err
	}
	var subnets []sdn.Subnet
	switch {
	case !exists:
	case isDeleted(n):
		return api.Refuse("network %s is being deleted", r.NetworkID)
	case !slices.Contains(n.Tags, identity.TagAllocated) && len(nodes(n.Tags)) > 0:
		return nil // a node has made it, of another IPAM driver's ranges
	default:
		if subnets, err = s.subnets(ctx, n.ID); err != nil {
			return err
		}
		other := slices.IndexFunc(subnets, func(subnet sdn.Subnet) bool {
			return !slices.ContainsFunc(r.Ranges, func(data *api.IPAMData) bool { return data.Pool == subnet.CIDR })
		})
		if other >= 0 && len(nodes(n.Tags)) > 0 {
			return api.Refuse("network %s has the range %s already", r.NetworkID, subnets[other].CIDR)
		}
		if other >= 0 {
			// An earlier try chose another range, and its end was lost.
			if err := s.free(ctx, r.NetworkID); err != nil {
				return err
			}
			if _, pending := s.allocation.Get(r.NetworkID); pending {
				return api.Refuse("network %s is being deleted", r.NetworkID)
			}
			exists, subnets = false, nil
		}
	}
	ranges, err := s.requested(ctx, r, subnets)
	if err != nil || len(ranges) == 0 {
		return err
	}
	if len(subnets) >= len(ranges) && slices.Contains(n.Tags, identity.TagAllocated) {
		_, err = s.TagNetwork(ctx, n, identity.Without(n.Tags, allocating(n.Tags)...))
	} else {
		err = s.make(ctx, r, ranges, n, exists)
	}
	if err == nil { // the manager has its network of the pools
		for _, has := range ranges {
			s.issued.Delete(has.ID)
		}
	}
	return err
}

func (s *Service) make(
	ctx context.Context, r *api.AllocateNetworkRequest, ranges map[*api.IPAMData]ipam.Pool, n sdn.Network, exists bool,
) error {
	if !exists {
		project := ""
		for _, has := range ranges {
			project = has.Project
		}
		if err := s.Networks.CheckGroups(ctx, r.Options, project, true); err != nil {
			return err
		}
	}
	// From here on the pools are the network's, which another manager may free. A manager
	// that is refused the network releases them, or requests them again.
	for _, has := range ranges {
		if err := s.IPAM.HandOver(ctx, has.ID); err != nil {
			return err
		}
	}
	spec := s.allocationOf(r, ranges, n, exists)
	_, err := once(ctx, s.allocation, reconcile.Request[allocation]{Key: r.NetworkID, Spec: spec})
	return err
}

// requested returns the pools of the network's ranges: those of its subnets, or those
// that this manager has requested. There are none if another IPAM driver has the ranges.
func (s *Service) requested(
	ctx context.Context, r *api.AllocateNetworkRequest, subnets []sdn.Subnet,
) (map[*api.IPAMData]ipam.Pool, error) {
	ranges := map[*api.IPAMData]ipam.Pool{}
	for _, data := range r.Ranges {
		at := slices.IndexFunc(subnets, func(subnet sdn.Subnet) bool { return subnet.CIDR == data.Pool })
		if at >= 0 && subnets[at].Pool == "" {
			return nil, nil // a node is making it
		}
		if at >= 0 {
			ranges[data] = ipam.Pool{ID: subnets[at].Pool, Project: subnets[at].Project}
			continue
		}
		bare, found, err := s.IPAM.Bare(ctx, data.Pool, data.Gateway)
		if err != nil {
			return nil, err
		}
		if found {
			ranges[data] = bare
			continue
		}
		other, found, err := s.allocated(ctx, data.Pool, true)
		if err != nil {
			return nil, err
		}
		if _, issued := s.issued.Load(other.Pool); found && issued {
			// A swarm that has lost its manager may not know the network.
			n, err := s.SDN.Network(ctx, other.Network)
			if err != nil {
				return nil, err
			}
			return nil, api.Refuse("the range %s is another network's: %s", data.Pool, n.Key.Name)
		}
	}
	if missing := len(r.Ranges) - len(ranges); missing > 0 && len(ranges) > 0 {
		at := slices.IndexFunc(r.Ranges, func(data *api.IPAMData) bool { _, ok := ranges[data]; return !ok })
		return nil, api.Refuse("the range %s was not requested from kuryr", r.Ranges[at].Pool)
	}
	return ranges, nil
}

// allocationOf returns the Spec of a network. Tags are written at its creation only:
// those of one that exists are changed one by one, since other hosts change them too.
func (s *Service) allocationOf(
	r *api.AllocateNetworkRequest, ranges map[*api.IPAMData]ipam.Pool, n sdn.Network, exists bool,
) allocation {
	tags := slices.Concat(identity.IDTags(r.NetworkID), []string{identity.TagSwarm, identity.TagAllocated},
		identity.NetworkOptionTags(r.Options))
	spec := sdn.NetworkSpec{Base: s.networkBase(r.NetworkID), MTU: r.Options.MTU}
	if exists {
		spec.Name, spec.MTU = n.Name, n.MTU
	} else {
		spec.Tags = identity.WithAll(tags, s.allocatingTag())
	}
	for _, data := range r.Ranges {
		has, ok := ranges[data]
		if !ok {
			continue
		}
		data.AuxAddresses = has.Aux
		subnet := s.subnetSpec(r.NetworkID, data, has, !r.Options.Routed())
		subnet.Tags = append(subnet.Tags, identity.TagSwarm)
		spec.Subnets = append(spec.Subnets, subnet)
	}
	return allocation{Network: spec, Tags: tags}
}

// subnetSpec returns the subnet of a range. The zero Pool is that of another IPAM driver.
func (s *Service) subnetSpec(networkID string, data *api.IPAMData, p ipam.Pool, noGateway bool) sdn.SubnetSpec {
	key := s.Names.GlobalKey(identity.KindSubnet, networkID+identity.SubnetPart(data.Pool, data.Place))
	return ipam.SubnetSpec(key, data, p, noGateway)
}

// FreeNetwork takes a network from its manager. While a node has it, it stays until the
// last one has left.
func (s *Service) FreeNetwork(ctx context.Context, r *api.NetworkRequest) error {
	unlock, err := s.locks.LockAll(ctx, "network/"+r.NetworkID)
	if err != nil {
		return err
	}
	defer unlock()
	return s.free(ctx, r.NetworkID)
}

func (s *Service) free(ctx context.Context, id string) error {
	// The row of an allocation that failed deletes only what that call made.
	if r, ok := s.allocation.Get(id); ok && !r.Spec.Free {
		if err := s.allocation.Forget(ctx, id); err != nil {
			return err
		}
	}
	return free(ctx, s, s.allocation, reconcile.Row[allocation, none]{
		Object: reconcile.Object{Key: id}, Spec: allocation{Free: true},
	})
}

type allocationTarget struct{ *Service }

// Ensure implements reconcile.Target. Until TagAllocating is gone, the manager was not
// answered.
func (t allocationTarget) Ensure(ctx context.Context, _ reconcile.Object, spec allocation, _ none) (none, error) {
	n, err := t.SDN.EnsureNetwork(ctx, spec.Network)
	if err != nil {
		return none{}, identity.Outcome(err, true) // it may have made a part of the network
	}
	if !isDeleted(n) {
		n, err = t.TagNetwork(ctx, n, identity.Without(identity.WithAll(n.Tags, spec.Tags...), allocating(n.Tags)...))
	}
	if err == nil && isDeleted(n) {
		err = api.Refuse("network %s is being deleted", n.Key.Name)
	}
	return none{}, identity.Outcome(err, true)
}

// Delete implements reconcile.Target. What a manager was not answered is deleted, unless
// another manager or a node has it since.
func (t allocationTarget) Delete(ctx context.Context, o reconcile.Object, spec allocation, _ none) error {
	n, found, err := t.network(ctx, o.Key)
	if err != nil {
		return err
	}
	if !found {
		if err := t.sweep(ctx); err != nil {
			return err
		}
		return reconcile.ErrAbsent
	}
	switch {
	case isDeleted(n):
		return t.drop(ctx, n)
	case spec.Free && hasSwarm(n.Meta):
		return t.unallocate(ctx, n)
	case spec.Free:
		return nil
	}
	tags := identity.Without(n.Tags, t.allocatingTag())
	if slices.Contains(n.Tags, t.allocatingTag()) && len(nodes(tags)) == 0 {
		tags = identity.Without(tags, identity.TagAllocated)
	}
	return t.giveUp(ctx, n, tags)
}

// List implements reconcile.Lister: what a killed process of this host, or of the
// previous version, has left of an allocation, and networks that a host has begun to
// delete.
func (t allocationTarget) List(ctx context.Context) iter.Seq2[reconcile.Found[allocation, none], error] {
	return func(yield func(reconcile.Found[allocation, none], error) bool) {
		for _, tag := range []string{t.allocatingTag(), identity.TagDeleted} {
			for n, err := range t.tagged(ctx, tag) {
				f := reconcile.Found[allocation, none]{
					Object: reconcile.Object{Key: n.Key.Name}, Phase: reconcile.Deleting,
				}
				if _, known := t.allocation.Get(n.Key.Name); known && err == nil {
					continue
				}
				if !yield(f, err) {
					return
				}
			}
		}
	}
}

func (s *Service) tagged(ctx context.Context, tag string) iter.Seq2[sdn.Network, error] {
	match := sdn.Match{Owner: s.Names.Owner, Kind: identity.KindNetwork, Tags: []string{tag}}
	return func(yield func(sdn.Network, error) bool) {
		for n, err := range s.SDN.FindNetworks(ctx, sdn.NetworkQuery{Match: match}) {
			if (err != nil || IsSwarm(n.Key.Name)) && !yield(n, err) {
				return
			}
		}
	}
}
