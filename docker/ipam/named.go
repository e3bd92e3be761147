package ipam

import (
	"context"
	"iter"
	"net/netip"
	"slices"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/sdn"
)

// requested returns the spec of a RequestPool, with the existing subnet or pool that its options
// name. Nothing is changed.
func (s *Service) requested(ctx context.Context, r *api.RequestPoolRequest) (PoolSpec, error) {
	spec := PoolSpec{Space: r.AddressSpace, CIDR: r.Pool, Sub: r.SubPool}
	for _, named := range []api.Reference{r.Existing.Subnet[r.V6], r.Existing.Pool[r.V6]} {
		if named.Given() && r.AnyOfLength.IsValid() {
			return spec, api.Refuse("option %s: name the range, not %s", named.Option, r.AnyOfLength)
		}
	}
	if named, ok := r.Existing.Subnet[r.V6]; ok {
		return s.ofSubnet(ctx, spec, named, r)
	}
	if named, ok := r.Existing.Pool[r.V6]; ok {
		return s.ofPool(ctx, spec, named)
	}
	return spec, nil
}

func (s *Service) ofSubnet(
	ctx context.Context, spec PoolSpec, named api.Reference, r *api.RequestPoolRequest,
) (PoolSpec, error) {
	var in []sdn.ID
	if r.Existing.Network.Given() {
		network, err := s.FindNetwork(ctx, r.Existing)
		if err != nil {
			return spec, err
		}
		in = []sdn.ID{network.ID}
	}
	sub, err := s.FindSubnet(ctx, named, in)
	if err != nil {
		return spec, err
	}
	switch {
	case s.Global:
		err = api.Refuse("option %s: a swarm's networks cannot be made of existing ones", named.Option)
	case sub.CIDR.Addr().Is6() != r.V6:
		err = api.Refuse("option %s: the range of subnet %s is %s, of the other family",
			named.Option, sub.ID, sub.CIDR)
	case r.Pool.IsValid() && r.Pool != sub.CIDR:
		err = api.Refuse("option %s: the range of subnet %s is %s, not %s",
			named.Option, sub.ID, sub.CIDR, r.Pool)
	case r.SubPool.IsValid() && r.SubPool != sub.CIDR:
		err = api.Refuse("option %s: subnet %s has its owner's allocation pools: leave out --ip-range",
			named.Option, sub.ID)
	}
	spec.CIDR, spec.Sub, spec.OfSubnet = sub.CIDR, netip.Prefix{}, sub.ID
	return spec, err
}

func (s *Service) ofPool(ctx context.Context, spec PoolSpec, named api.Reference) (PoolSpec, error) {
	p, err := s.FindPool(ctx, named)
	if err != nil {
		return spec, err
	}
	if s.isGlobal(spec) {
		return spec, api.Refuse("option %s: a swarm's networks cannot be made of existing ones", named.Option)
	}
	if !spec.CIDR.IsValid() {
		if len(p.Prefixes) != 1 {
			return spec, api.Refuse("option %s: pool %s has %d prefixes: name a subnet",
				named.Option, p.ID, len(p.Prefixes))
		}
		spec.CIDR = p.Prefixes[0].Masked()
	}
	within := func(prefix netip.Prefix) bool {
		return prefix.Bits() <= spec.CIDR.Bits() && prefix.Contains(spec.CIDR.Addr())
	}
	if !slices.ContainsFunc(p.Prefixes, within) {
		return spec, api.Refuse("option %s: %s is in no prefix of pool %s", named.Option, spec.CIDR, p.ID)
	}
	spec.OfPool = p.ID
	return spec, nil
}

// Project returns Kuryr's project, by what Kuryr made; "" if there is nothing.
func (s *Service) Project(ctx context.Context) (string, error) {
	for p := range s.pools.Rows() {
		if !p.Last.Peer && p.Last.Project != "" {
			return p.Last.Project, nil
		}
	}
	match := sdn.Match{Owner: s.Names.Owner, Kind: identity.KindPool}
	if s.SDN.Capabilities().SubnetPools {
		for p, err := range s.SDN.FindSubnetPools(ctx, sdn.SubnetPoolQuery{Match: match}) {
			if err != nil || !p.Foreign {
				return p.Project, err
			}
		}
	}
	match.Kind = identity.KindNetwork
	for n, err := range s.SDN.FindNetworks(ctx, sdn.NetworkQuery{Match: match}) {
		if err != nil || !n.Foreign {
			return n.Project, err
		}
	}
	return "", nil
}

// resolve returns the one object that a reference names. Of several with the name, that of Kuryr's
// project is meant: any project can have one.
func resolve[T any](
	ctx context.Context, s *Service, named api.Reference, noun string, meta func(T) sdn.Meta,
	read func(context.Context, sdn.ID) (T, error), list func(sdn.Match) iter.Seq2[T, error],
) (one T, err error) {
	if named.ID != "" {
		if one, err = read(ctx, named.ID); sdn.IsNotFound(err) {
			err = api.Refuse("option %s: there is no %s %s", named.Option, noun, named.ID)
		}
		return one, err
	}
	found, err := sdn.All(list(sdn.Match{Names: []string{named.Name}}))
	if err == nil && len(found) > 1 {
		var project string
		project, err = s.Project(ctx)
		others := func(v T) bool { return meta(v).Project != project }
		if ours := slices.DeleteFunc(slices.Clone(found), others); len(ours) > 0 {
			found = ours
		}
	}
	if err != nil {
		return one, err
	}
	return api.Only(found, named, noun)
}

// FindNetwork returns the network that options name, which must be shared or not as they say.
func (s *Service) FindNetwork(ctx context.Context, e api.Existing) (sdn.Network, error) {
	n, err := resolve(ctx, s, e.Network, "network", func(n sdn.Network) sdn.Meta { return n.Meta }, s.SDN.Network,
		func(m sdn.Match) iter.Seq2[sdn.Network, error] {
			return s.SDN.FindNetworks(ctx, sdn.NetworkQuery{Match: m})
		})
	if err == nil && e.Shared != nil && *e.Shared != n.Shared {
		err = api.Refuse("option %s: network %s has the shared flag %t, not %t",
			api.OptNetShared, n.ID, n.Shared, *e.Shared)
	}
	return n, err
}

// FindSubnet returns the subnet that a reference names, of one of the networks if some are given.
func (s *Service) FindSubnet(ctx context.Context, named api.Reference, in []sdn.ID) (sdn.Subnet, error) {
	sub, err := resolve(ctx, s, named, "subnet", func(v sdn.Subnet) sdn.Meta { return v.Meta }, s.SDN.Subnet,
		func(m sdn.Match) iter.Seq2[sdn.Subnet, error] {
			return s.SDN.FindSubnets(ctx, sdn.SubnetQuery{Match: m, Networks: in})
		})
	if err == nil && len(in) > 0 && !slices.Contains(in, sub.Network) {
		err = api.Refuse("option %s: subnet %s is not in network %s", named.Option, sub.ID, in[0])
	}
	return sub, err
}

// FindPool returns the subnet pool that a reference names.
func (s *Service) FindPool(ctx context.Context, named api.Reference) (sdn.SubnetPool, error) {
	return resolve(ctx, s, named, "subnet pool", func(p sdn.SubnetPool) sdn.Meta { return p.Meta }, s.SDN.SubnetPool,
		func(m sdn.Match) iter.Seq2[sdn.SubnetPool, error] {
			return s.SDN.FindSubnetPools(ctx, sdn.SubnetPoolQuery{Match: m})
		})
}
