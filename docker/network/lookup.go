package network

import (
	"context"
	"iter"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/sdn"
)

// What the SDN has of a network whose row is lost, or that an earlier version or kuryr-libnetwork
// made, becomes a row again.

// found is what the SDN has of a network.
type found struct {
	reconcile.Found[Spec, Last]
	deleted bool // the previous version was told to delete it
	used    bool // it can have had an endpoint
}

// lister reads networks from the SDN.
type lister struct {
	target
	tags   tagTarget
	routed bool // Config.Routed
	row    func(id string) (row, bool)
	ref    func(pool string) string
}

// List implements reconcile.Lister. A network that cannot be described is left out: a later call
// that names it finds it.
func (l lister) List(ctx context.Context) iter.Seq2[reconcile.Found[Spec, Last], error] {
	return func(yield func(reconcile.Found[Spec, Last], error) bool) {
		own, links, err := l.unknown(ctx, yield)
		l := l // which reads from memory
		if err == nil {
			l.target.sdn, err = l.read(ctx, own, links)
		}
		if err != nil {
			yield(reconcile.Found[Spec, Last]{}, err)
			return
		}
		more := func(id sdn.ID, f found, err error) bool {
			switch {
			case err == nil:
				return yield(f.Found, nil)
			case ctx.Err() != nil, sdn.IsUnavailable(err):
				yield(f.Found, err)
				return false
			}
			l.log.WarnContext(ctx, "network not imported", "id", id, "err", err)
			return true
		}
		for _, n := range own {
			if f, err := l.own(ctx, n); !more(n.ID, f, err) {
				return
			}
		}
		for _, p := range links {
			if f, err := l.linked(ctx, p); !more(linkedNetwork(p), f, err) {
				return
			}
		}
	}
}

// unknown returns the networks and links without a row. It yields the objects of the others.
func (l lister) unknown(
	ctx context.Context, yield func(reconcile.Found[Spec, Last], error) bool,
) (own []sdn.Network, links []sdn.SubnetPool, err error) {
	known := func(key sdn.Key) bool {
		o, _ := l.object(key)
		r, ok := l.row(o.Key)
		return ok && r.Object == o && (r.Done || r.Phase != reconcile.Wanted) &&
			yield(reconcile.Found[Spec, Last]{Object: o}, nil)
	}
	match := sdn.Match{Owner: l.namer.Owner, Kind: identity.KindNetwork, Tags: []string{l.namer.HostTag()}}
	for n, err := range l.sdn.FindNetworks(ctx, sdn.NetworkQuery{Match: match}) {
		if err != nil {
			return nil, nil, err
		}
		if !n.Foreign && !ofSwarm(n.Tags) && !known(n.Key) {
			own = append(own, n)
		}
	}
	if !l.sdn.Capabilities().SubnetPools {
		return own, nil, nil
	}
	match.Kind = identity.KindLink
	for p, err := range l.sdn.FindSubnetPools(ctx, sdn.SubnetPoolQuery{Match: match}) {
		if err != nil {
			return nil, nil, err
		}
		if l.namer.Ours(p.Meta, identity.KindLink) && !known(linkedKey(p)) {
			links = append(links, p)
		}
	}
	return own, links, nil
}

// linkedKey returns the Key that the network of a link would have, and linkedNetwork its id.
func linkedKey(link sdn.SubnetPool) sdn.Key {
	_, name, _ := strings.Cut(link.Key.Name, "/")
	return sdn.Key{Name: name}
}

func linkedNetwork(link sdn.SubnetPool) sdn.ID {
	id, _, _ := strings.Cut(link.Name, ",")
	return sdn.ID(id)
}

// ofSwarm reports whether managers or other nodes may have a network.
func ofSwarm(tags []string) bool {
	return slices.ContainsFunc(tags, func(t string) bool {
		return t == identity.TagSwarm || t == identity.TagAllocated ||
			strings.HasPrefix(t, identity.TagAllocating) || strings.HasPrefix(t, identity.TagNode) ||
			strings.HasPrefix(t, identity.TagLeaving)
	})
}

// own describes a network that Kuryr made.
func (l lister) own(ctx context.Context, n sdn.Network) (found, error) {
	o, form := l.object(n.Key)
	spec := Spec{MTU: 0, Shared: n.Shared, Form: form}
	spec.setOptions(n.Tags)
	last := Last{ID: n.ID, Key: n.Key, Project: n.Project, MTU: n.MTU, NoPortSecurity: n.NoPortSecurity}
	f := found{
		deleted: slices.Contains(n.Tags, identity.TagDeleted) || slices.Contains(n.Tags, identity.TagCreating),
	}
	subnets, err := sdn.All(l.sdn.FindSubnets(ctx, sdn.SubnetQuery{Networks: []sdn.ID{n.ID}}))
	if err != nil {
		return f, err
	}
	if last.Subnets, err = l.addRanges(ctx, o.Key, subnets, &spec); err != nil {
		return f, err
	}
	for _, id := range identity.Values(n.Tags, tagEmptied) {
		if err := l.addAbsent(ctx, o.Key, sdn.ID(id), &spec); err != nil {
			return f, err
		}
		last.Emptied = append(last.Emptied, sdn.ID(id))
	}
	if err := l.setRouter(ctx, o, &spec, &last); err != nil {
		return f, err
	}
	l.fill(&f, o, spec, last, n.Tags)
	return f, nil
}

// linked describes the existing network of a link.
func (l lister) linked(ctx context.Context, link sdn.SubnetPool) (found, error) {
	o, form := l.object(linkedKey(link))
	parts := strings.Split(link.Name, ",")
	spec := Spec{Existing: sdn.ID(parts[0]), Form: form}
	spec.setOptions(link.Tags)
	f, err := l.existing(ctx, o, spec, parts[1:])
	f.Last.Link, f.Last.Home = link.ID, link.Project
	f.deleted = slices.Contains(link.Tags, identity.TagDeleted)
	l.fill(&f, o, f.Spec, f.Last, link.Tags)
	return f, err
}

// existing describes an existing network that has the pools.
func (l lister) existing(ctx context.Context, o reconcile.Object, spec Spec, pools []string) (f found, err error) {
	last := Last{ID: spec.Existing}
	n, err := l.sdn.Network(ctx, spec.Existing)
	if ignoreAbsent(err) != nil {
		return f, err
	}
	if err == nil {
		last.Project, last.MTU, last.NoPortSecurity = n.Project, n.MTU, n.NoPortSecurity
	}
	subnets, err := sdn.All(l.sdn.FindSubnets(ctx, sdn.SubnetQuery{Networks: []sdn.ID{spec.Existing}}))
	if err != nil {
		return f, err
	}
	for _, s := range subnets {
		if l.networkOf(s) != o.Key {
			continue
		}
		last.Added = append(last.Added, s.ID)
		if at := strings.LastIndexByte(s.Key.Name, '/'); spec.Form == formOwn {
			last.Key = l.namer.GlobalKey(identity.KindNetwork, s.Key.Name[:at])
			o, _ = l.object(last.Key)
		}
	}
	if last.Subnets, err = l.addRanges(ctx, o.Key, subnets, &spec); err != nil {
		return f, err
	}
	for _, id := range pools {
		if err := l.addStanding(ctx, sdn.ID(id), subnets, &spec); err != nil {
			return f, err
		}
	}
	l.fill(&f, o, spec, last, nil)
	return f, nil
}

// fill completes what was found by what its row needs.
func (l lister) fill(f *found, o reconcile.Object, spec Spec, last Last, tags []string) {
	q := requestOf(o.Key, spec, l.ref)
	f.Found = reconcile.Found[Spec, Last]{
		Object: o, Spec: spec, Last: last, Claims: q.Claims, Owners: q.Owners,
	}
	for _, engine := range identity.Values(tags, identity.TagEngine) {
		f.Engine = engine
	}
	// An object of this version can have been used: only its row tells.
	f.used = slices.Contains(tags, identity.TagUsed) || slices.Contains(tags, l.namer.HostTag())
}

// object returns the row's object of a Key, and the form of the Key. Only second incarnations of
// the previous version's names have the incarnation.
func (l lister) object(k sdn.Key) (o reconcile.Object, form uint8) {
	var text string
	if parts := strings.Split(k.Name, "/"); len(parts) == 4 && parts[0] == l.namer.Host {
		o.Key, text, form = parts[2], parts[3], formOwn
	} else {
		form = formCompat
		o.Key, text, o.Earlier = strings.Cut(k.Name, "~")
	}
	o.Incarnation, _ = strconv.ParseUint(text, 10, 64)
	if r, ok := l.row(o.Key); ok && l.networkKey(r.Object, r.Spec, r.Last).Name == k.Name {
		o = r.Object
	}
	return o, form
}

// addRanges adds the ranges of the subnets that were made for a network. It returns all subnets in
// the order of a Last.
func (l lister) addRanges(
	ctx context.Context, network string, subnets []sdn.Subnet, spec *Spec,
) ([]sdn.Subnet, error) {
	slices.SortFunc(subnets, byRange)
	for _, s := range subnets {
		if l.networkOf(s) != network {
			continue
		}
		r := Range{
			CIDR: s.CIDR, Place: placeOf(s.Key), Gateway: s.Gateway, None: !s.Gateway.IsValid(),
			Reserved: s.Reserved, Routes: s.HostRoutes, CutFrom: s.Pool,
		}
		pools, err := poolsOf(ctx, l.sdn, s)
		if err != nil {
			return nil, err
		}
		if len(pools) > 0 {
			l.setPool(&r, pools[0])
		}
		spec.Ranges = append(spec.Ranges, r)
	}
	return subnets, nil
}

// setPool completes a range by its pool.
func (l lister) setPool(r *Range, p sdn.SubnetPool) {
	r.PoolID = p.ID
	name, ok := identity.ParsePoolName(p.Key.Name)
	if !ok || !l.namer.Ours(p.Meta, identity.KindPool) {
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
	p, err := l.sdn.SubnetPool(ctx, pool)
	if err != nil {
		return ignoreAbsent(err)
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
	p, err := l.sdn.SubnetPool(ctx, pool)
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
	if !l.sdn.Capabilities().Routers {
		return nil
	}
	asked := spec.Router != "" || spec.External != ""
	spec.Routed = !spec.Internal && !spec.NoGateway && (l.routed || asked)
	if len(last.Subnets) == 0 || !spec.Routed && spec.Form == formCompat {
		return nil
	}
	var ids []sdn.ID
	for _, s := range last.Subnets {
		ids = append(ids, s.ID)
	}
	for r, err := range l.sdn.FindRouters(ctx, sdn.RouterQuery{Subnets: ids}) {
		switch {
		case err != nil:
			return err
		case l.namer.Ours(r.Meta, identity.KindSharedRouter): // the option is not in a tag
			spec.Routed, spec.Router, last.Router, last.RouterOurs = true, r.Key.Name, r.ID, true
		case r.Key == l.routerKey(o, *spec, *last):
			spec.Routed, last.Router, last.RouterOurs = true, r.ID, true
		case spec.Router != "" && (r.Name == spec.Router || string(r.ID) == spec.Router):
			last.Router, spec.RouterID = r.ID, r.ID
		}
	}
	return nil
}

// setOptions reads the options that tags store.
func (s *Spec) setOptions(tags []string) {
	first := func(prefix string) string {
		for _, v := range identity.Values(tags, prefix) {
			return v
		}
		return ""
	}
	s.Internal = slices.Contains(tags, identity.TagInternal)
	s.NoGateway = slices.Contains(tags, identity.TagNoGateway)
	s.Router, s.External = first(identity.TagRouter), sdn.ID(first(identity.TagExternal))
	s.HostBinding, _ = netip.ParseAddr(first(identity.TagBinding))
	s.Publish, s.Groups = first(identity.TagPublish), identity.Values(tags, identity.TagGroup)
}

// options returns the options of a network, as tags store them and endpoints need them.
func (s Spec) options() api.NetworkOptions {
	return api.NetworkOptions{
		Internal: s.Internal, NoGateway: s.NoGateway, MTU: s.MTU, Router: s.Router,
		External: string(s.External), HostBinding: s.HostBinding, Publish: s.Publish, Groups: s.Groups,
	}
}

// byID describes a network by the engine's id, as far as the SDN has it.
func (l lister) byID(ctx context.Context, id string) (f found, ok bool, err error) {
	keys := []sdn.Key{l.namer.GlobalKey(identity.KindNetwork, id)}
	n, ok, err := sdn.First(l.sdn.FindNetworks(ctx, sdn.NetworkQuery{Match: sdn.Match{Keys: keys}}))
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
	if !l.sdn.Capabilities().SubnetPools {
		return f, false, nil
	}
	match := sdn.Match{Keys: []sdn.Key{l.namer.GlobalKey(identity.KindLink, l.namer.Host+"/"+id)}}
	link, ok, err := sdn.First(l.sdn.FindSubnetPools(ctx, sdn.SubnetPoolQuery{Match: match}))
	if err != nil || !ok {
		return f, false, err
	}
	f, err = l.linked(ctx, link)
	return f, err == nil, err
}

// Delete implements reconcile.Target.
func (l lister) Delete(ctx context.Context, o reconcile.Object, spec Spec, last Last) error {
	if !spec.Unknown {
		return l.target.Delete(ctx, o, spec, last)
	}
	f, ok, err := l.byID(ctx, o.Key)
	switch {
	case err != nil:
		return err
	case !ok:
		return reconcile.ErrAbsent
	}
	if f.Spec.Existing != "" {
		if err := l.tags.Delete(ctx, o, tagsOf(f.Spec, f.Last), struct{}{}); err != nil {
			return err
		}
	}
	return l.target.Delete(ctx, f.Object, f.Spec, f.Last)
}

// lookUp makes the row of a network that a call names, of what the SDN has. It reports whether
// there is one.
func (s *Service) lookUp(ctx context.Context, id string) (bool, error) {
	l := s.lister()
	found, err := s.importBy(ctx, id, l.byID)
	if found || err != nil {
		return found, err
	}
	return s.lookUpTagged(ctx, l, id)
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
		r := f.row()
		r.Key = id
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

func (s *Service) importOwn(ctx context.Context, l lister, n sdn.Network) (bool, error) {
	f, err := l.own(ctx, n)
	if err != nil {
		return false, err
	}
	return true, s.importFound(ctx, f)
}

// row returns the row of what was found.
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

// importFound stores the row of what was found.
func (s *Service) importFound(ctx context.Context, f found) error {
	if err := s.networks.Import(ctx, []row{f.row()}); err != nil {
		return err
	}
	return s.imported(ctx, f)
}

// imported does what follows from a row that was stored.
func (s *Service) imported(ctx context.Context, f found) error {
	s.log.InfoContext(ctx, "network imported", "network", f.Key, "id", f.Last.ID)
	if f.deleted {
		return s.networks.RemoveLater(ctx, f.Key)
	}
	s.bind(f.Spec, f.Last)
	if f.Spec.Existing != "" {
		s.setTags(ctx, f.Key, f.Spec, f.Last)
	}
	return nil
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
	return s.networks.RemoveLater(ctx, id)
}

// ImportTags stores that an earlier version had not written, or not deleted, all tags of an
// existing network. Finish finds out which.
func (s *Service) ImportTags(ctx context.Context, id string, network sdn.ID, pools []sdn.ID) error {
	return s.tags.Import(ctx, []reconcile.Row[TagSpec, struct{}]{{
		Object: reconcile.Object{Key: id}, Phase: reconcile.Wanted,
		Spec: TagSpec{Network: network, Pools: pools, Subnets: make([]sdn.ID, len(pools))},
	}})
}

// lookUpTagged finds a network by its tags. It takes over what kuryr-libnetwork made or used.
func (s *Service) lookUpTagged(ctx context.Context, l lister, id string) (bool, error) {
	unlock, err := s.locks.Lock(ctx, lockTagged+id)
	if err != nil {
		return false, err
	}
	defer unlock()
	if _, ok := s.networks.Get(id); ok {
		return true, nil // another call has taken it over
	}
	if _, ok := s.tags.Get(id); ok {
		return false, nil // its tags are ours, and not deleted yet
	}
	query := sdn.NetworkQuery{Match: sdn.Match{Tags: identity.IDTags(id)}}
	networks, err := sdn.All(s.sdn.FindNetworks(ctx, query))
	if err != nil {
		return false, err
	}
	for _, n := range networks {
		if s.namer.Ours(n.Meta, identity.KindNetwork) && identity.HasID(n.Tags, id) {
			return s.importOwn(ctx, l, n) // its Key has the name of a lost store
		}
	}
	networks = slices.DeleteFunc(networks, func(n sdn.Network) bool {
		return !n.Foreign || !identity.HasID(n.Tags, id)
	})
	switch {
	case len(networks) == 0:
		return false, nil
	case len(networks) > 1:
		return false, api.Refuse("%d networks have the tags of network %s: delete those that are not in use",
			len(networks), api.Clip(id, 12))
	case identity.PeersNetwork(networks[0], id):
		n, err := s.adopt(ctx, id, networks[0])
		if err != nil {
			return false, err
		}
		return s.importOwn(ctx, l, n)
	case !s.sdn.Capabilities().SubnetPools:
		return false, api.Refuse("this SDN has no subnet pools, which existing networks need")
	}
	spec := Spec{Existing: networks[0].ID, Form: s.form(row{}, false)}
	f, err := l.existing(ctx, reconcile.Object{Key: id}, spec, nil)
	if err != nil {
		return false, err
	}
	if err := s.importFound(ctx, f); err != nil {
		return false, err
	}
	return true, s.restoreRow(ctx, id) // which makes its link
}

// adopt gives Keys to a network that kuryr-libnetwork made, its subnets and their pools. The
// network's is the last: until then all of it is repeated.
func (s *Service) adopt(ctx context.Context, id string, n sdn.Network) (sdn.Network, error) {
	subnets, err := sdn.All(s.sdn.FindSubnets(ctx, sdn.SubnetQuery{Networks: []sdn.ID{n.ID}}))
	if err != nil {
		return n, err
	}
	place := map[bool]int{}
	for _, subnet := range subnets {
		v6 := subnet.CIDR.Addr().Is6()
		spec := Spec{Form: formCompat}
		key := s.target().subnetKey(reconcile.Object{Key: id}, spec, Last{}, Range{CIDR: subnet.CIDR, Place: place[v6]})
		place[v6]++
		if subnet.Name != identity.SubnetTitle(subnet.CIDR) || !subnet.Key.IsZero() || subnet.Description != "" {
			continue
		}
		if err := s.adoptSubnet(ctx, subnet, key); err != nil {
			return n, err
		}
	}
	key := s.namer.GlobalKey(identity.KindNetwork, id)
	var adopted sdn.Network
	err = retryStale(func(again bool) (err error) {
		if again { // an SDN may count a change of a subnet as one of its network
			if n, err = s.sdn.Network(ctx, n.ID); err != nil {
				return err
			}
		}
		adopted, err = s.sdn.UpdateNetwork(ctx, n.ID, sdn.NetworkPatch{Patch: sdn.Patch{IfRevision: n.Revision, Key: &key}})
		return err
	})
	if err == nil {
		s.log.InfoContext(ctx, "network of kuryr-libnetwork taken over", "network", id, "id", n.ID)
	}
	return adopted, err
}

func (s *Service) adoptSubnet(ctx context.Context, subnet sdn.Subnet, key sdn.Key) error {
	pools, err := poolsOf(ctx, s.sdn, subnet)
	if err != nil {
		return err
	}
	for _, p := range pools {
		if !identity.PeersPool(p) {
			continue
		}
		if _, err := s.pools.AdoptPool(ctx, p.ID); err != nil {
			return err
		}
	}
	return retryStale(func(again bool) (err error) {
		if again {
			if subnet, err = s.sdn.Subnet(ctx, subnet.ID); err != nil {
				return err
			}
		}
		patch := sdn.SubnetPatch{Patch: sdn.Patch{IfRevision: subnet.Revision, Key: &key}}
		_, err = s.sdn.UpdateSubnet(ctx, subnet.ID, patch)
		return err
	})
}
