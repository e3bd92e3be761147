package network

import (
	"context"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/sdn"
)

// found is what the SDN has of a network.
type found struct {
	reconcile.Found[Spec, Last]
	deleted bool // the previous version was told to delete it
	used    bool // it can have had an endpoint
}

func (l lister) own(ctx context.Context, n sdn.Network) (found, error) {
	o, form := l.object(n.Key)
	spec := taggedSpec(n.Tags, form)
	spec.Shared = n.Shared
	last := Last{ID: n.ID, Key: n.Key, Project: n.Project, MTU: n.MTU, NoPortSecurity: n.NoPortSecurity}
	subnets, err := l.subnets(ctx, n.ID)
	if err != nil {
		return found{}, err
	}
	last.Subnets = subnets
	if err := l.addRanges(ctx, o.Key, subnets, &spec); err != nil {
		return found{}, err
	}
	for _, id := range identity.Values(n.Tags, tagEmptied) {
		if err := l.addAbsent(ctx, o.Key, sdn.ID(id), &spec); err != nil {
			return found{}, err
		}
		last.Emptied = append(last.Emptied, sdn.ID(id))
	}
	if err := l.setRouter(ctx, o, &spec, &last); err != nil {
		return found{}, err
	}
	return l.found(o, spec, last, n.Tags), nil
}

// linked describes the existing network of a link.
func (l lister) linked(ctx context.Context, link sdn.SubnetPool) (found, error) {
	o, form := l.object(linkedKey(link))
	parts := strings.Split(link.Name, ",")
	spec := taggedSpec(link.Tags, form)
	spec.Existing = sdn.ID(parts[0])
	return l.existing(ctx, o, spec, Last{Link: link.ID, Home: link.Project}, parts[1:], link.Tags)
}

// existing describes an existing network that has the pools.
func (l lister) existing(
	ctx context.Context, o reconcile.Object, spec Spec, last Last, pools, tags []string,
) (found, error) {
	last.ID = spec.Existing
	n, err := l.network(ctx, spec.Existing)
	if identity.IgnoreAbsent(err) != nil {
		return found{}, err
	}
	last.Project, last.MTU, last.NoPortSecurity = n.Project, n.MTU, n.NoPortSecurity
	subnets, err := l.subnets(ctx, spec.Existing)
	if err != nil {
		return found{}, err
	}
	for _, s := range subnets {
		if l.networkOf(s) != o.Key {
			continue
		}
		last.Added = append(last.Added, s.ID)
		if at := strings.LastIndexByte(s.Key.Name, '/'); spec.Form == formOwn {
			last.Key = l.Names.GlobalKey(identity.KindNetwork, s.Key.Name[:at])
			o, _ = l.object(last.Key)
		}
	}
	last.Subnets = subnets
	if err := l.addRanges(ctx, o.Key, subnets, &spec); err != nil {
		return found{}, err
	}
	for _, id := range pools {
		if err := l.addStanding(ctx, sdn.ID(id), subnets, &spec); err != nil {
			return found{}, err
		}
	}
	return l.found(o, spec, last, tags), nil
}

// found completes what was found by what its row needs.
func (l lister) found(o reconcile.Object, spec Spec, last Last, tags []string) found {
	q := l.request(o.Key, spec)
	f := found{
		Found: reconcile.Found[Spec, Last]{
			Object: o, Spec: spec, Last: last, Claims: q.Claims, Owners: q.Owners,
		},
		deleted: slices.Contains(tags, identity.TagDeleted) || slices.Contains(tags, identity.TagCreating),
		// An object of this version can have been used: only its row tells.
		used: slices.Contains(tags, identity.TagUsed) || slices.Contains(tags, l.Names.HostTag()),
	}
	for _, engine := range identity.Values(tags, identity.TagEngine) {
		f.Engine = engine
	}
	return f
}

// object returns the row's object of a Key, and the form of the Key. Only second
// incarnations of the previous version's names have the incarnation.
func (l lister) object(k sdn.Key) (o reconcile.Object, form uint8) {
	var text string
	if parts := strings.Split(k.Name, "/"); len(parts) == 4 && parts[0] == l.Names.Host {
		o.Key, text, form = parts[2], parts[3], formOwn
	} else {
		form = formCompat
		o.Key, text, o.Earlier = strings.Cut(k.Name, "~")
	}
	o.Incarnation, _ = strconv.ParseUint(text, 10, 64)
	if r, ok := l.networks.Get(o.Key); ok {
		w := &work{l.Service, r.Object, r.Spec, r.Last}
		if w.key(identity.KindNetwork, "").Name == k.Name {
			o = r.Object
		}
	}
	return o, form
}

func (l lister) addRanges(ctx context.Context, network string, subnets []sdn.Subnet, spec *Spec) error {
	for _, s := range subnets {
		if l.networkOf(s) != network {
			continue
		}
		r := Range{
			CIDR: s.CIDR, Place: placeOf(s.Key), Gateway: s.Gateway, None: !s.Gateway.IsValid(),
			Reserved: s.Reserved, Routes: s.HostRoutes, CutFrom: s.Pool,
		}
		pools, err := existingPools(ctx, l.pool, subnetPools(s))
		if err != nil {
			return err
		}
		if len(pools) > 0 {
			l.setPool(&r, pools[0])
		}
		spec.Ranges = append(spec.Ranges, r)
	}
	return nil
}

// setPool completes a range by its pool.
func (l lister) setPool(r *Range, p sdn.SubnetPool) {
	r.PoolID = p.ID
	name, ok := identity.ParsePoolName(p.Key.Name)
	if !ok || !l.Names.Ours(p.Meta, identity.KindPool) {
		return // an operator's, or kuryr-libnetwork's of an existing network
	}
	r.Pool, r.Sub = name.Nonce, name.Sub
	for _, text := range identity.Values(p.Tags, identity.TagAux) {
		if a, err := netip.ParseAddr(text); err == nil && r.CIDR.Contains(a) && !slices.Contains(r.Reserved, a) {
			r.Reserved = append(slices.Clone(r.Reserved), a)
		}
	}
	slices.SortFunc(r.Reserved, netip.Addr.Compare)
}

// addAbsent adds the range of a pool whose subnet the previous version deleted.
func (l lister) addAbsent(ctx context.Context, network string, pool sdn.ID, spec *Spec) error {
	p, err := l.pool(ctx, pool)
	if err != nil {
		return identity.IgnoreAbsent(err)
	}
	name, ok := identity.ParsePoolName(p.Key.Name)
	place := identity.Values(p.Tags, tagEmptied)
	if !ok || len(place) == 0 || !strings.HasPrefix(place[0], network+"/") ||
		slices.ContainsFunc(spec.Ranges, func(r Range) bool { return r.CIDR == name.CIDR }) {
		return nil
	}
	r := Range{CIDR: name.CIDR, Place: placeOf(sdn.Key{Name: place[0]}), CutFrom: pool, Absent: true, None: true}
	for _, text := range identity.Values(p.Tags, identity.TagGateway) {
		if a, err := netip.ParseAddr(text); err == nil && !spec.Internal && !spec.NoGateway {
			r.Gateway, r.None = a, false
		}
	}
	for _, text := range identity.Values(p.Tags, tagRoute) {
		to, via, _ := strings.Cut(text, "=")
		destination, err := netip.ParsePrefix(to)
		hop, failed := netip.ParseAddr(via)
		if err == nil && failed == nil {
			r.Routes = append(r.Routes, sdn.HostRoute{Destination: destination, NextHop: hop})
		}
	}
	l.setPool(&r, p)
	spec.Ranges = append(spec.Ranges, r)
	return nil
}

// addStanding adds the range of a pool that an existing subnet stands for.
func (l lister) addStanding(ctx context.Context, pool sdn.ID, subnets []sdn.Subnet, spec *Spec) error {
	if slices.ContainsFunc(spec.Ranges, func(r Range) bool { return r.PoolID == pool }) {
		return nil
	}
	p, err := l.pool(ctx, pool)
	if sdn.IsNotFound(err) { // Docker has released it; the subnet still has its tag
		for _, s := range subnets {
			if slices.Contains(s.Tags, string(pool)) {
				spec.Ranges = append(spec.Ranges, Range{CIDR: s.CIDR, PoolID: pool, Standing: s.ID, None: true})
			}
		}
		return nil
	}
	if err != nil {
		return err
	}
	name, ok := identity.ParsePoolName(p.Key.Name)
	if !ok {
		return nil
	}
	r := Range{CIDR: name.CIDR, CutFrom: pool}
	l.setPool(&r, p)
	for _, s := range subnets {
		if s.CIDR == name.CIDR {
			r.Standing, r.Gateway, r.None = s.ID, s.Gateway, !s.Gateway.IsValid()
		}
	}
	spec.Ranges = append(spec.Ranges, r)
	return nil
}

// placeOf returns the place of a subnet, whose Key ends in FAMILY.PLACE.
func placeOf(k sdn.Key) int {
	_, text, _ := strings.Cut(k.Name[strings.LastIndexByte(k.Name, '/')+1:], ".")
	text, _, _ = strings.Cut(text, "~")
	place, _ := strconv.Atoi(text)
	return place
}

// setRouter finds the router that a network is on.
func (l lister) setRouter(ctx context.Context, o reconcile.Object, spec *Spec, last *Last) error {
	if !l.SDN.Capabilities().Routers {
		return nil
	}
	asked := spec.Router != "" || spec.External != ""
	spec.Routed = !spec.Internal && !spec.NoGateway && (l.Routed || asked)
	if len(last.Subnets) == 0 || !spec.Routed && spec.Form == formCompat {
		return nil
	}
	var ids []sdn.ID
	for _, s := range last.Subnets {
		ids = append(ids, s.ID)
	}
	routers, err := l.routersOf(ctx, ids)
	for _, r := range routers {
		switch {
		case l.Names.Ours(r.Meta, identity.KindSharedRouter): // the option is not in a tag
			spec.Routed, spec.Router, last.Router, last.RouterOurs = true, r.Key.Name, r.ID, true
		case r.Key == (&work{l.Service, o, *spec, *last}).routerKey():
			spec.Routed, last.Router, last.RouterOurs = true, r.ID, true
		case spec.Router != "" && (r.Name == spec.Router || string(r.ID) == spec.Router):
			last.Router, spec.RouterID = r.ID, r.ID
		}
	}
	return err
}

func (f found) row() row {
	r := row{
		Object: f.Object, Phase: reconcile.Wanted, Spec: f.Spec, Last: f.Last, Done: true,
		Claims: f.Claims, Owners: f.Owners, Engine: f.Engine, Acked: f.used,
	}
	if f.deleted {
		r.Phase = reconcile.Deleting
	}
	return r
}
