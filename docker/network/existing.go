package network

import (
	"cmp"
	"context"
	"net/netip"
	"slices"
	"strings"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/internal/sortslice"
	"github.com/kuryr/kuryr/sdn"
)

// An existing network cannot carry Kuryr's Key: it is its owner's, and may be several of
// Docker's networks. The previous version finds it by a link: a subnet pool that no
// subnet is allocated from, with the network and its pools in its name. Each host has its
// own links.

// unusedRange is the prefix of links without a range: a subnet pool must have one (RFC
// 5737).
var unusedRange = netip.MustParsePrefix("192.0.2.0/24")

// maxLinkPools is how many pools the name of a link has room for.
const maxLinkPools = 5

func linkName(spec Spec) string {
	parts := []string{string(spec.Existing)}
	for _, r := range spec.Ranges {
		if r.PoolID != "" {
			parts = append(parts, string(r.PoolID))
		}
	}
	return strings.Join(parts, ",")
}

func (t target) linkKey(o reconcile.Object, spec Spec) sdn.Key {
	of := o
	of.Key = t.Names.Host + "/" + o.Key
	return t.key(identity.KindLink, "", of, spec, Last{})
}

// ensureExisting links an existing network, and adds the ranges to it that it does not
// have.
func (t target) ensureExisting(ctx context.Context, o reconcile.Object, spec Spec, last Last) (Last, error) {
	read, first := isNew(ctx, o, last)
	if !first {
		var err error
		if read, err = t.readExisting(ctx, spec.Existing); err != nil {
			return last, err
		}
	}
	n := read.network
	last.Key = t.networkKey(o, spec, last)
	last.ID, last.Project, last.MTU, last.NoPortSecurity = n.ID, n.Project, n.MTU, n.NoPortSecurity
	if spec.Form == formCompat {
		var err error
		if last, err = t.ensureLink(ctx, o, spec, last, first); err != nil {
			return last, err
		}
	}
	for _, want := range t.subnetSpecs(o, spec, last) {
		want.Network = n.ID
		s, err := t.SDN.EnsureSubnet(ctx, want)
		if err != nil {
			return last, err
		}
		if !slices.Contains(last.Added, s.ID) {
			last.Added = append(slices.Clone(last.Added), s.ID)
		}
		last.Home = cmp.Or(last.Home, s.Project)
		others := slices.DeleteFunc(slices.Clone(read.subnets), func(o sdn.Subnet) bool { return o.ID == s.ID })
		read.subnets = append(others, s)
	}
	last.Subnets = sortslice.Sorted(read.subnets, byRange)
	return last, nil
}

func byRange(a, b sdn.Subnet) int { return a.CIDR.Compare(b.CIDR) }

func (t target) readExisting(ctx context.Context, id sdn.ID) (e *existing, err error) {
	e = &existing{}
	if e.network, err = t.SDN.Network(ctx, id); err != nil {
		return nil, err
	}
	e.subnets, err = sdn.All(t.SDN.FindSubnets(ctx, sdn.SubnetQuery{Networks: []sdn.ID{id}}))
	return e, err
}

func (t target) ensureLink(
	ctx context.Context, o reconcile.Object, spec Spec, last Last, first bool,
) (Last, error) {
	cidr := unusedRange
	if len(spec.Ranges) > 0 {
		cidr = spec.Ranges[0].CIDR
	}
	name := linkName(spec)
	link, err := t.SDN.EnsureSubnetPool(ctx, sdn.SubnetPoolSpec{
		Base: sdn.Base{
			Key: t.linkKey(o, spec), Name: name,
			Tags: append(identity.NetworkOptionTags(spec.options()), t.Names.HostTag()),
		},
		Prefixes:   []netip.Prefix{cidr},
		DefaultLen: cidr.Bits(),
		MinLen:     cidr.Bits(),
		New:        first,
	})
	if err != nil {
		return last, err
	}
	last.Link, last.Home = link.ID, link.Project
	if network, _, _ := strings.Cut(link.Name, ","); network != string(spec.Existing) {
		return last, api.Refuse("network %s is another network of the SDN already", api.Clip(o.Key, 12))
	}
	return last, nil
}

// deleteExisting deletes what was added to an existing network, and the link.
func (t target) deleteExisting(ctx context.Context, o reconcile.Object, spec Spec, last Last) (Last, error) {
	added, err := t.added(ctx, o, spec, last)
	if err != nil {
		return last, err
	}
	for _, id := range added {
		err := t.deleteWithPorts(ctx, sdn.PortQuery{Subnets: []sdn.ID{id}}, func() error {
			return t.SDN.DeleteSubnet(ctx, id)
		})
		if err != nil {
			return last, err
		}
	}
	if last.Link == "" && spec.Form == formCompat {
		match := sdn.Match{Keys: []sdn.Key{t.linkKey(o, spec)}}
		link, found, err := sdn.First(t.SDN.FindSubnetPools(ctx, sdn.SubnetPoolQuery{Match: match}))
		if err != nil {
			return last, err
		}
		if found {
			last.Link = link.ID
		}
	}
	switch {
	case last.Link != "":
		return last, t.SDN.DeleteSubnetPool(ctx, last.Link)
	case len(added) > 0:
		return last, nil
	}
	return last, reconcile.ErrAbsent
}

// added returns the subnets that were added to an existing network.
func (t target) added(ctx context.Context, o reconcile.Object, spec Spec, last Last) ([]sdn.ID, error) {
	var keys []sdn.Key
	for _, want := range t.subnetSpecs(o, spec, last) {
		keys = append(keys, want.Key)
	}
	if len(last.Added) == len(keys) || len(keys) == 0 {
		return last.Added, nil // without a Key all subnets would match
	}
	var ids []sdn.ID
	for s, err := range t.SDN.FindSubnets(ctx, sdn.SubnetQuery{Match: sdn.Match{Keys: keys}}) {
		if err != nil {
			return nil, err
		}
		ids = append(ids, s.ID)
	}
	return ids, nil
}

// existing is an existing network that the options of a CreateNetwork name.
type existing struct {
	network  sdn.Network
	subnets  []sdn.Subnet
	standing map[*api.IPAMData]sdn.Subnet // for the ranges that it has
}

// resolveExisting finds the network and its subnets, and refuses what it cannot be used
// for.
func (s *Service) resolveExisting(ctx context.Context, r *api.CreateNetworkRequest) (e existing, err error) {
	if !s.SDN.Capabilities().SubnetPools {
		return e, api.Refuse("this SDN has no subnet pools, which existing networks need")
	}
	named := r.Options.Existing
	if !named.Network.Given() {
		if named.Network, err = s.networkOfSubnet(ctx, named); err != nil {
			return e, err
		}
	}
	if e.network, err = s.Pools.FindNetwork(ctx, named); err != nil {
		return e, err
	}
	if e.subnets, err = sdn.All(s.SDN.FindSubnets(ctx, sdn.SubnetQuery{Networks: []sdn.ID{e.network.ID}})); err != nil {
		return e, err
	}
	e.standing, err = s.standing(ctx, r, e)
	return e, err
}

// networkOfSubnet returns a reference to the network of the subnet that options name
// alone.
func (s *Service) networkOfSubnet(ctx context.Context, e api.Existing) (api.Reference, error) {
	for _, v6 := range []bool{false, true} {
		if named, ok := e.Subnet[v6]; ok {
			subnet, err := s.Pools.FindSubnet(ctx, named, nil)
			return api.Reference{Option: named.Option, ID: subnet.Network}, err
		}
	}
	return api.Reference{}, nil
}

// standing returns the existing subnets that stand for the ranges. A range that no subnet
// has is added to the network.
func (s *Service) standing(
	ctx context.Context, r *api.CreateNetworkRequest, e existing,
) (map[*api.IPAMData]sdn.Subnet, error) {
	for v6, named := range r.Options.Existing.Subnet {
		asked, err := s.namedSubnet(ctx, named, e)
		if err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(r.Ranges, func(data *api.IPAMData) bool {
			return data.Pool == asked.CIDR && asked.CIDR.Addr().Is6() == v6
		}) {
			return nil, api.Refuse("option %s: the range of subnet %s is %s, which was not asked for",
				named.Option, asked.ID, asked.CIDR)
		}
	}
	standing := map[*api.IPAMData]sdn.Subnet{}
	for _, data := range r.Ranges {
		for _, subnet := range e.subnets {
			switch {
			case subnet.CIDR == data.Pool && s.addedFor(subnet, r.NetworkID):
				// A repeated call: it was added.
			case subnet.CIDR == data.Pool:
				standing[data] = subnet
			case subnet.CIDR.Overlaps(data.Pool):
				return nil, api.Refuse("the range %s overlaps %s, which network %s has",
					data.Pool, subnet.CIDR, e.network.ID)
			}
		}
		if subnet, ok := standing[data]; ok && data.Gateway.IsValid() && subnet.Gateway.IsValid() &&
			data.Gateway != subnet.Gateway {
			return nil, api.Refuse("the gateway of subnet %s is %s, not %s: name it by --gateway",
				subnet.ID, subnet.Gateway, data.Gateway)
		}
	}
	return standing, nil
}

// namedSubnet returns the subnet of an existing network that a reference names.
func (s *Service) namedSubnet(ctx context.Context, named api.Reference, e existing) (sdn.Subnet, error) {
	found := slices.DeleteFunc(slices.Clone(e.subnets), func(s sdn.Subnet) bool {
		return s.ID != named.ID && (named.ID != "" || s.Name != named.Name)
	})
	if len(found) == 1 {
		return found[0], nil
	}
	return s.Pools.FindSubnet(ctx, named, []sdn.ID{e.network.ID}) // it chooses, or says why there is none
}

// addedFor reports whether a subnet was added for an engine's network.
func (s *Service) addedFor(subnet sdn.Subnet, network string) bool {
	return target{s}.networkOf(subnet) == network
}
