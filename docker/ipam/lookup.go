package ipam

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"net/netip"
	"slices"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/sdn"
)

func (s *Service) wantedPool(ctx context.Context, id api.PoolID) (poolRow, error) {
	p, err := s.findPool(ctx, id.Pool)
	if err == nil && p.Phase != reconcile.Wanted {
		err = noPool(id.Pool)
	}
	return p, err
}

func noPool(id sdn.ID) error { return api.Refuse("there is no pool %s", id) }

func isRefusal(err error) bool {
	_, ok := errors.AsType[*api.Refusal](err)
	return ok
}

// findPool returns the row of a pool by its id, also of one that is being deleted. A pool that has
// none is of an earlier version, of kuryr-libnetwork, or of a database that was lost. A refusal
// says that there is no such pool.
func (s *Service) findPool(ctx context.Context, id sdn.ID) (poolRow, error) {
	if p, ok := s.pools.Holder(poolClaim(id)); ok {
		return p, nil
	}
	unlock, err := s.locks.Lock(ctx, poolClaim(id))
	if err != nil {
		return poolRow{}, err
	}
	defer unlock()
	if p, ok := s.pools.Holder(poolClaim(id)); ok {
		return p, nil
	}
	found, err := s.SDN.SubnetPool(ctx, id)
	if sdn.IsNotFound(err) {
		return poolRow{}, noPool(id)
	}
	if err != nil {
		return poolRow{}, err
	}
	p, err := s.importPool(ctx, found)
	if err == nil {
		s.pools.Ack(p.Key) // the engine names it
	}
	return p, err
}

func (s *Service) importPool(ctx context.Context, p sdn.SubnetPool) (row poolRow, err error) {
	f, ok := s.foundPool(p)
	if !ok {
		if f, err = s.peersPool(ctx, p); err != nil {
			return row, err
		}
	}
	if s.isGlobal(f.Spec) {
		swarm, err := s.ofSwarm(ctx, p.ID)
		if err != nil {
			return row, err
		}
		if swarm {
			return row, noPool(p.ID)
		}
	}
	if row, err = importFound(ctx, s.pools, f); err == nil {
		s.Log.InfoContext(ctx, "pool imported", "pool", p.ID, "range", f.Spec.CIDR)
	}
	return row, err
}

// importFound makes the row of an object that was found. The answer of a row that exists was lost.
func importFound[S, T any](
	ctx context.Context, k *reconcile.Kind[S, T], f reconcile.Found[S, T],
) (row reconcile.Row[S, T], err error) {
	if _, ok := k.Get(f.Key); ok {
		k.Note(f.Key, func(T) T { return f.Last })
	} else {
		err = k.Import(ctx, []reconcile.Row[S, T]{{
			Object: f.Object, Phase: cmp.Or(f.Phase, reconcile.Wanted), Spec: f.Spec, Last: f.Last, Done: true,
			Claims: f.Claims, Owners: f.Owners, Engine: f.Engine,
		}})
	}
	row, _ = k.Get(f.Key)
	return row, err
}

// LookUpPool makes the rows of a pool, and of the hidden network that it may have, unless they are
// there. It reports whether there is such a pool.
func (s *Service) LookUpPool(ctx context.Context, id sdn.ID) (found bool, err error) {
	p, err := s.findPool(ctx, id)
	if err == nil {
		_, _, err = s.subnetOf(ctx, p, netip.Addr{})
	}
	if isRefusal(err) {
		return false, nil
	}
	return err == nil, err
}

func (s *Service) foundPool(p sdn.SubnetPool) (f reconcile.Found[PoolSpec, PoolState], ok bool) {
	name, ok := identity.ParsePoolName(p.Key.Name)
	if !ok || !s.Names.OfThisHost(p.Meta, identity.KindPool) {
		return f, false
	}
	f.Key = name.Nonce
	if row, ok := s.pools.Get(f.Key); ok {
		f.Object = row.Object
	} else if row, ok := s.pools.Holder(poolClaim(p.ID)); ok {
		f.Object = row.Object
	}
	f.Spec = PoolSpec{
		Space: name.Space, CIDR: name.CIDR, Sub: name.Sub, OfSubnet: name.OfSubnet, OfPool: name.OfPool,
	}
	if ids := identity.IDs(p.Tags); len(ids) > 0 && name.OfSubnet == "" {
		f.Spec.Stands = ids[0]
	}
	for _, text := range identity.Values(p.Tags, identity.TagGateway) {
		f.Spec.Gateway, _ = netip.ParseAddr(text)
	}
	for _, text := range identity.Values(p.Tags, identity.TagAux) {
		if a, err := netip.ParseAddr(text); err == nil {
			f.Spec.Aux = append(f.Spec.Aux, a)
		}
	}
	slices.SortFunc(f.Spec.Aux, netip.Addr.Compare)
	for _, engine := range identity.Values(p.Tags, identity.TagEngine) {
		f.Engine = engine
	}
	if slices.Contains(p.Tags, identity.TagReleased) {
		f.Phase = reconcile.Deleting
	}
	f.Last = s.stateOf(p, f.Spec)
	return f, true
}

func (s *Service) stateOf(p sdn.SubnetPool, spec PoolSpec) PoolState {
	state := PoolState{ID: p.ID, Key: p.Key, Project: p.Project}
	wanted := poolTarget{s}.tags(spec)
	for _, tag := range p.Tags {
		if slices.Contains(wanted, tag) || isStaleTag(spec, tag) {
			state.Tags = append(state.Tags, tag)
		}
	}
	return state
}

// peersPool describes a pool whose id kuryr-libnetwork gave the engine. What that program made for a
// network of its own gets a Key, and is Kuryr's from then on. A pool of an existing network is deleted
// with the last use of that, on whichever host. Those of operators stay.
func (s *Service) peersPool(
	ctx context.Context, p sdn.SubnetPool,
) (f reconcile.Found[PoolSpec, PoolState], err error) {
	isPeers := identity.PeersPool(p)
	if !isPeers && !slices.Contains(p.Tags, identity.TagExistingPool) {
		return f, api.Refuse("pool %s was not made for the engine", p.ID)
	}
	f.Key = s.Names.Nonce()
	f.Spec = PoolSpec{Space: api.LocalSpace, CIDR: p.Prefixes[0]}
	f.Last = PoolState{ID: p.ID, Peer: true}
	if isPeers {
		isPeers, err = s.adopts(ctx, p)
	}
	if err != nil || !isPeers {
		return f, err
	}
	key := s.poolKey(f.Key, f.Spec)
	patch := sdn.SubnetPoolPatch{Patch: sdn.Patch{IfRevision: p.Revision, Key: &key}}
	adopted, err := s.SDN.UpdateSubnetPool(ctx, p.ID, patch)
	f.Last = s.stateOf(adopted, f.Spec)
	return f, err
}

// adopts reports whether kuryr-libnetwork made a pool for a network of its own, or for none.
func (s *Service) adopts(ctx context.Context, p sdn.SubnetPool) (bool, error) {
	sub, found, err := sdn.First(s.SDN.FindSubnets(ctx, taggedBy(p.ID)))
	switch {
	case err != nil:
		return false, err
	case !found:
		return len(identity.IDs(p.Tags)) == 0, nil
	case sub.Pool != p.ID || sub.Name != identity.SubnetTitle(sub.CIDR):
		return false, nil
	}
	n, err := s.SDN.Network(ctx, sub.Network)
	return len(identity.WithPrefix(n.Tags, identity.TagExisting)) == 0 && identity.IsNetworkTitle(n.Name), err
}

// taggedBy finds the subnets that kuryr-libnetwork used with a pool.
func taggedBy(pool sdn.ID) sdn.SubnetQuery {
	return sdn.SubnetQuery{Match: sdn.Match{Tags: []string{string(pool)}}}
}

// AdoptPool makes the row of the pool of a subnet that kuryr-libnetwork made.
func (s *Service) AdoptPool(ctx context.Context, id sdn.ID) error {
	_, err := s.findPool(ctx, id)
	return err
}

// Unmark removes kuryr-libnetwork's tag from an operator's pool that it used, unless a subnet is of
// it; those of the network that goes do not count. The engine has one id for the pool however many
// networks are of it, so a release does not tell which of them goes.
func (s *Service) Unmark(ctx context.Context, pool, going sdn.ID) error {
	p, err := s.SDN.SubnetPool(ctx, pool)
	if sdn.IsNotFound(err) || err == nil && !slices.Contains(p.Tags, identity.TagExistingPool) {
		return nil
	}
	if err != nil {
		return err
	}
	for sub, err := range s.SDN.FindSubnets(ctx, taggedBy(pool)) {
		if err != nil || sub.Network != going {
			return err
		}
	}
	err = s.TagPool(ctx, p, identity.Without(p.Tags, identity.TagExistingPool))
	if sdn.IsDenied(err) || sdn.IsNotFound(err) {
		s.Log.WarnContext(ctx, "existing pool keeps its tag", "pool", p.ID, "err", err)
		return nil
	}
	return err
}

// lookUpPools makes rows of this host's pools of ranges that have none.
func (s *Service) lookUpPools(ctx context.Context, ranges ...netip.Prefix) error {
	match := sdn.Match{Owner: s.Names.Owner, Kind: identity.KindPool}
	for _, cidr := range ranges {
		match.Names = append(match.Names, identity.PoolTitle(cidr))
	}
	for p, err := range s.SDN.FindSubnetPools(ctx, sdn.SubnetPoolQuery{Match: match}) {
		if err != nil {
			return err
		}
		if !s.Names.OfThisHost(p.Meta, identity.KindPool) {
			continue
		}
		if _, err := s.LookUpPool(ctx, p.ID); err != nil {
			return err
		}
	}
	return nil
}

// subnetOf returns the subnet of a pool that an address is of, and whether there is one. In the SDN
// it is looked for only if an earlier process made the pool and there is no row of a network.
func (s *Service) subnetOf(ctx context.Context, p poolRow, addr netip.Addr) (sdn.Subnet, bool, error) {
	if subnets := s.networks.Subnets(p.Key); len(subnets) > 0 {
		return pick(subnets, p, addr), true, nil
	}
	if h, ok := s.hidden.Get(p.Key); ok && h.Phase == reconcile.Wanted {
		return h.Last.Subnet, h.Done, nil // the next RequestAddress finishes what was not answered
	}
	if id := p.Spec.Standing(); id != "" {
		sub, err := s.SDN.Subnet(ctx, id)
		if sdn.IsNotFound(err) {
			return sub, false, nil
		}
		return sub, err == nil, err
	}
	if !s.noted(p.Key).at.IsZero() {
		return sdn.Subnet{}, false, nil
	}
	return s.lookUpSubnet(ctx, p, addr)
}

func (s *Service) lookUpSubnet(
	ctx context.Context, p poolRow, addr netip.Addr,
) (none sdn.Subnet, ok bool, err error) {
	query := sdn.SubnetQuery{Pools: []sdn.ID{s.poolOf(p).CutFrom()}}
	if p.Spec.OfPool != "" {
		query.CIDRs = []netip.Prefix{p.Spec.CIDR} // subnets of one pool never overlap
	}
	if p.Last.Peer {
		query = taggedBy(p.Last.ID)
	}
	subnets, err := sdn.All(s.SDN.FindSubnets(ctx, query))
	if err != nil || len(subnets) == 0 {
		return none, false, err
	}
	if sub := subnets[0]; s.Names.Ours(sub.Meta, identity.KindHiddenSubnet) {
		n, err := s.SDN.Network(ctx, sub.Network)
		if err == nil {
			_, err = importFound(ctx, s.hidden, s.foundHidden(p, n, sub))
		}
		return sub, err == nil, err
	}
	return pick(subnets, p, addr), true, nil
}

// pick returns the subnet of a pool that an address is of. A pool of an operator's can have several
// subnets: kuryr-libnetwork's have its id among their tags.
func pick(subnets []sdn.Subnet, p poolRow, addr netip.Addr) sdn.Subnet {
	for _, is := range []func(sdn.Subnet) bool{
		func(sub sdn.Subnet) bool { return addr.IsValid() && sub.CIDR.Contains(addr) },
		func(sub sdn.Subnet) bool { return slices.Contains(sub.Tags, string(p.Last.ID)) },
	} {
		if i := slices.IndexFunc(subnets, is); i >= 0 {
			return subnets[i]
		}
	}
	return subnets[0]
}

func (s *Service) foundHidden(
	p poolRow, n sdn.Network, sub sdn.Subnet,
) (f reconcile.Found[HiddenSpec, HiddenState]) {
	f.Key = p.Key
	if row, ok := s.hidden.Get(p.Key); ok {
		f.Object = row.Object
	}
	f.Owners, f.Spec = []string{s.pools.Ref(p.Key)}, s.hiddenSpec(p, sub.Gateway)
	f.Last = HiddenState{Network: n.ID, Subnet: sub, Key: n.Key}
	return f
}

// lookUpAddress returns the port that has an address and no row, or makes a row of it.
func (s *Service) lookUpAddress(
	ctx context.Context, sub sdn.Subnet, addr netip.Addr,
) (h Held, found bool, err error) {
	p, found, err := s.PortAt(ctx, sub.ID, addr)
	if err != nil || !found {
		return h, false, err
	}
	if s.mayImport(p) {
		row, err := s.importPort(ctx, p)
		if err == nil {
			h, err = s.held(ctx, row)
		}
		return h, err == nil, err
	}
	return Held{Port: p, Existing: !s.IsOwn(p)}, true, nil
}

// mayImport reports whether a port of an address is this host's, as far as its Key has the host.
// kuryr-libnetwork's has no Key: it is one that no endpoint has.
func (s *Service) mayImport(p sdn.Port) bool {
	if p.Key.IsZero() {
		return s.IsOwn(p) && p.DeviceID == ""
	}
	host, _ := portNonce(p.Key)
	return s.Names.Ours(p.Meta, identity.KindPort) && !s.isManagers(p) && !identity.Elsewhere(p, s.Host) &&
		(host == s.Names.Host || host == "")
}

func (s *Service) importPort(ctx context.Context, p sdn.Port) (addressRow, error) {
	if row, ok := s.addresses.Holder(portClaim(p.ID)); ok {
		return row, nil
	}
	return importFound(ctx, s.addresses, s.foundPort(p))
}

func (s *Service) foundPort(p sdn.Port) (f reconcile.Found[AddressSpec, AddressState]) {
	if _, f.Key = portNonce(p.Key); f.Key == "" {
		f.Key = s.Names.Nonce()
	}
	if row, ok := s.addresses.Holder(portClaim(p.ID)); ok {
		f.Object = row.Object
	} else if row, ok := s.addresses.Get(f.Key); ok {
		f.Object = row.Object
	}
	f.Spec = AddressSpec{Network: p.Network, MAC: p.MAC.String()}
	for _, a := range p.Addresses {
		f.Spec.Asked = append(f.Spec.Asked, Asked{Pool: s.poolAt(a.Subnet), Subnet: a.Subnet, Addr: a.Addr})
	}
	for _, q := range f.Spec.Asked {
		if h, ok := s.hidden.Get(q.Pool); ok {
			f.Phase = h.Phase // of which the addresses go with the pool
		}
	}
	f.Last = stateOf(p, p.Key)
	f.Claims, f.Owners = f.Spec.claims(), s.owners(f.Spec)
	return f
}

// poolAt returns the pool that has a subnet, "" if it is unknown.
func (s *Service) poolAt(subnet sdn.ID) string {
	if pool := s.networks.PoolAt(subnet); pool != "" {
		return pool
	}
	for h := range s.hidden.Rows() {
		if h.Last.Subnet.ID == subnet {
			return h.Key
		}
	}
	return ""
}

// List implements reconcile.Lister.
func (t poolTarget) List(ctx context.Context) iter.Seq2[reconcile.Found[PoolSpec, PoolState], error] {
	match := sdn.Match{Owner: t.Names.Owner, Kind: identity.KindPool, Tags: []string{t.Names.HostTag()}}
	return func(yield func(reconcile.Found[PoolSpec, PoolState], error) bool) {
		if !t.SDN.Capabilities().SubnetPools {
			return
		}
		for p, err := range t.SDN.FindSubnetPools(ctx, sdn.SubnetPoolQuery{Match: match}) {
			f, ok := t.foundPool(p)
			if (ok || err != nil) && !yield(f, err) {
				return
			}
		}
	}
}

// List implements reconcile.Lister. The network of a pool without a row is left for the next time.
func (t hiddenTarget) List(ctx context.Context) iter.Seq2[reconcile.Found[HiddenSpec, HiddenState], error] {
	match := sdn.Match{Owner: t.Names.Owner, Kind: identity.KindHidden, Tags: []string{t.Names.HostTag()}}
	return func(yield func(reconcile.Found[HiddenSpec, HiddenState], error) bool) {
		for n, err := range t.SDN.FindNetworks(ctx, sdn.NetworkQuery{Match: match}) {
			var f reconcile.Found[HiddenSpec, HiddenState]
			if err == nil {
				f, err = t.found(ctx, n)
			}
			if (f.Key != "" || err != nil) && !yield(f, err) {
				return
			}
		}
	}
}

// found describes a hidden network. It has no Key if its pool is unknown.
func (t hiddenTarget) found(
	ctx context.Context, n sdn.Network,
) (f reconcile.Found[HiddenSpec, HiddenState], err error) {
	for sub, err := range t.SDN.FindSubnets(ctx, sdn.SubnetQuery{Networks: []sdn.ID{n.ID}}) {
		if err != nil {
			return f, err
		}
		for _, id := range append(identity.IDs(sub.Tags), sub.Pool) {
			if p, ok := t.pools.Holder(poolClaim(id)); ok {
				f = t.foundHidden(p, n, sub)
				f.Phase = p.Phase
				return f, nil
			}
		}
	}
	return f, nil
}

// List implements reconcile.Lister. A port that no endpoint has has no tags yet.
func (t addressTarget) List(ctx context.Context) iter.Seq2[reconcile.Found[AddressSpec, AddressState], error] {
	return func(yield func(reconcile.Found[AddressSpec, AddressState], error) bool) {
		for _, match := range []sdn.Match{
			{Owner: t.Names.Owner, Kind: identity.KindPort, Tags: []string{t.Names.HostTag()}},
			{Owner: t.Names.Owner, Kind: identity.KindPort, Names: []string{identity.UnboundPort}},
		} {
			for p, err := range t.SDN.FindPorts(ctx, sdn.PortQuery{Match: match}) {
				if err == nil && (!t.Names.OfThisHost(p.Meta, identity.KindPort) || t.isManagers(p)) {
					continue
				}
				var f reconcile.Found[AddressSpec, AddressState]
				if row, ok := t.addresses.Holder(portClaim(p.ID)); ok && row.Done {
					f.Object = row.Object
				} else if err == nil {
					f = t.foundPort(p)
				}
				if !yield(f, err) {
					return
				}
			}
		}
	}
}

// What the previous version left becomes rows: its cleanups, and its objects.

// ImportRelease stores the deletion of a port. It can be called before the store is started.
func (s *Service) ImportRelease(ctx context.Context, port sdn.ID) error {
	if _, ok := s.addresses.Holder(portClaim(port)); ok {
		return nil
	}
	return s.importDeletion(ctx, addressRow{
		Object: reconcile.Object{Key: s.Names.Nonce()}, Done: true,
		Last: AddressState{Port: sdn.Port{Meta: sdn.Meta{ID: port}}},
	})
}

func (s *Service) importDeletion(ctx context.Context, row addressRow) error {
	row.Phase = reconcile.Deleting
	if err := s.addresses.Import(ctx, []addressRow{row}); err != nil {
		return err
	}
	return s.addresses.RemoveLater(ctx, row.Key)
}

// ImportUnconfirmed stores the deletion of a port with this Key, which the SDN may yet create.
func (s *Service) ImportUnconfirmed(ctx context.Context, network sdn.ID, key sdn.Key) error {
	_, nonce := portNonce(key)
	return s.importDeletion(ctx, addressRow{
		Object: reconcile.Object{Key: nonce}, Unconfirmed: true,
		Spec: AddressSpec{Network: network}, Last: AddressState{Key: key},
	})
}

// ImportPoolRelease is ReleasePool of a pool that has no row, with the hidden network that it may
// have.
func (s *Service) ImportPoolRelease(ctx context.Context, id api.PoolID) error {
	found, err := s.LookUpPool(ctx, id.Pool)
	if found {
		_, err = s.ReleasePool(ctx, &api.ReleasePoolRequest{PoolID: id})
	}
	return err
}

// ImportPort makes the row of a port that has addresses and was listed. Its addresses can have been
// released since, so it is read again.
func (s *Service) ImportPort(ctx context.Context, p sdn.Port) error {
	if _, ok := s.addresses.Holder(portClaim(p.ID)); ok || !s.mayImport(p) {
		return nil
	}
	_, nonce := portNonce(p.Key)
	unlock, err := s.locks.LockAll(ctx, macClaim(p.Network, p.MAC.String()), kindAddress+"/"+nonce)
	if err != nil {
		return err
	}
	defer unlock()
	p, err = s.SDN.Port(ctx, p.ID)
	if sdn.IsNotFound(err) || err == nil && !s.mayImport(p) {
		return nil
	}
	if err != nil {
		return err
	}
	_, err = s.importPort(ctx, p)
	return err
}
