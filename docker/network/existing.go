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

func (w *work) linkKey() sdn.Key {
	link := work{Service: w.Service, o: w.o, spec: w.spec}
	link.o.Key = w.Names.Host + "/" + w.o.Key
	return link.key(identity.KindLink, "")
}

// ensureExisting links an existing network, and adds the ranges to it that it does not
// have.
func (w *work) ensureExisting(ctx context.Context) (err error) {
	read, first := w.isNew(ctx)
	if !first {
		read = &existing{}
		if read.network, err = w.SDN.Network(ctx, w.spec.Existing); err != nil {
			return err
		}
		if read.subnets, err = w.subnetsOf(ctx, w.spec.Existing); err != nil {
			return err
		}
	}
	n := read.network
	w.last.Key = w.key(identity.KindNetwork, "")
	w.last.ID, w.last.Project, w.last.MTU, w.last.NoPortSecurity = n.ID, n.Project, n.MTU, n.NoPortSecurity
	if w.spec.Form == formCompat {
		if err := w.ensureLink(ctx, first); err != nil {
			return err
		}
	}
	for _, want := range w.subnetSpecs() {
		want.Network = n.ID
		s, err := w.SDN.EnsureSubnet(ctx, want)
		if err != nil {
			return err
		}
		if !slices.Contains(w.last.Added, s.ID) {
			w.last.Added = append(slices.Clone(w.last.Added), s.ID)
		}
		w.last.Home = cmp.Or(w.last.Home, s.Project)
		others := slices.DeleteFunc(slices.Clone(read.subnets), func(o sdn.Subnet) bool { return o.ID == s.ID })
		read.subnets = append(others, s)
	}
	w.last.Subnets = sortslice.Sorted(read.subnets, byRange)
	return nil
}

func (w *work) ensureLink(ctx context.Context, first bool) error {
	cidr := unusedRange
	if len(w.spec.Ranges) > 0 {
		cidr = w.spec.Ranges[0].CIDR
	}
	link, err := w.SDN.EnsureSubnetPool(ctx, sdn.SubnetPoolSpec{
		Base: sdn.Base{
			Key: w.linkKey(), Name: linkName(w.spec),
			Tags: append(identity.NetworkOptionTags(w.spec.options()), w.Names.HostTag()),
		},
		Prefixes:   []netip.Prefix{cidr},
		DefaultLen: cidr.Bits(),
		MinLen:     cidr.Bits(),
		New:        first,
	})
	if err != nil {
		return err
	}
	w.last.Link, w.last.Home = link.ID, link.Project
	if linkedNetwork(link) != w.spec.Existing {
		return api.Refuse("network %s is another network of the SDN already", api.Clip(w.o.Key, 12))
	}
	return nil
}

// deleteExisting deletes what was added to an existing network, and the link.
func (w *work) deleteExisting(ctx context.Context) error {
	added, err := w.added(ctx)
	if err != nil {
		return err
	}
	for _, id := range added {
		err := w.deleteWithPorts(ctx, sdn.PortQuery{Subnets: []sdn.ID{id}}, func() error {
			return w.SDN.DeleteSubnet(ctx, id)
		})
		if err != nil {
			return err
		}
	}
	if w.last.Link == "" && w.spec.Form == formCompat {
		query := sdn.SubnetPoolQuery{Match: identity.ByKey(w.linkKey())}
		link, _, err := sdn.First(w.SDN.FindSubnetPools(ctx, query))
		if err != nil {
			return err
		}
		w.last.Link = link.ID
	}
	switch {
	case w.last.Link != "":
		return w.SDN.DeleteSubnetPool(ctx, w.last.Link)
	case len(added) > 0:
		return nil
	}
	return reconcile.ErrAbsent
}

// added returns the subnets that were added to an existing network.
func (w *work) added(ctx context.Context) (ids []sdn.ID, err error) {
	var match sdn.Match
	for _, want := range w.subnetSpecs() {
		match.Keys = append(match.Keys, want.Key)
	}
	if len(w.last.Added) == len(match.Keys) || len(match.Keys) == 0 {
		return w.last.Added, nil // without a Key all subnets would match
	}
	subnets, err := sdn.All(w.SDN.FindSubnets(ctx, sdn.SubnetQuery{Match: match}))
	for _, s := range subnets {
		ids = append(ids, s.ID)
	}
	return ids, err
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
	if e.subnets, err = s.subnetsOf(ctx, e.network.ID); err != nil {
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
			case subnet.CIDR == data.Pool && s.networkOf(subnet) == r.NetworkID:
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
