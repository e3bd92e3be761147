package ipam

import (
	"context"
	"errors"
	"iter"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/sdn"
)

// PoolSpec is what the engine asked of a range.
type PoolSpec struct {
	Space string       `json:"space"`
	CIDR  netip.Prefix `json:"cidr"`
	Sub   netip.Prefix `json:"sub"` // of automatic addresses; invalid: the whole range
	// OfSubnet and OfPool are what RequestPool named for the range, at most one of them.
	OfSubnet sdn.ID `json:"of_subnet,omitempty"`
	OfPool   sdn.ID `json:"of_pool,omitempty"`
	// Stands is the existing subnet that CreateNetwork named for the range.
	Stands  sdn.ID       `json:"stands,omitempty"`
	Gateway netip.Addr   `json:"gateway"`
	Aux     []netip.Addr `json:"aux,omitempty"`
	// Unknown is set in rows that are being deleted and have only the id of the pool: the SDN is asked.
	Unknown bool `json:"unknown,omitempty"`
}

// Index implements reconcile.Indexed: the range, and the blocks that it is a part of.
func (p PoolSpec) Index() []string {
	values := []string{p.CIDR.String()}
	for bits := blockBits; bits < p.CIDR.Bits(); bits += blockBits {
		values = append(values, blockOf(p.CIDR, bits))
	}
	return values
}

// blockBits is the difference in length of the blocks by which the ranges within a range are found.
const blockBits = 8

func blockOf(p netip.Prefix, bits int) string {
	return "block/" + netip.PrefixFrom(p.Addr(), bits).Masked().String()
}

// Standing returns the existing subnet that stands for the range, "" if none does.
func (p PoolSpec) Standing() sdn.ID {
	if p.OfSubnet != "" {
		return p.OfSubnet
	}
	return p.Stands
}

// gateway returns the address that the engine took as the range's gateway, or takes if it says
// nothing.
func (p PoolSpec) gateway() netip.Addr {
	if p.Gateway.IsValid() {
		return p.Gateway
	}
	return identity.FirstHost(p.CIDR)
}

// isUntouched reports whether the engine did nothing with the range that is in its row.
func (p PoolSpec) isUntouched() bool { return !p.Gateway.IsValid() && len(p.Aux) == 0 }

// PoolState is a range's subnet pool.
type PoolState struct {
	ID      sdn.ID   `json:"id,omitempty"`
	Key     sdn.Key  `json:"key"`
	Project string   `json:"project,omitempty"`
	Tags    []string `json:"tags,omitempty"` // of Kuryr's, that it has
	// Peer is set if the pool is an operator's, or if kuryr-libnetwork made it for an existing
	// network: it is not deleted.
	Peer bool `json:"peer,omitempty"`
}

// Pool is a requested range. The zero Pool is that of a range of another IPAM driver.
type Pool struct {
	Nonce string // the key of its row
	ID    sdn.ID
	PoolSpec
	Project string
	Peer    bool // as in PoolState: several networks can have it
	// Fresh is set if the range was requested in this process and no network has used it: then
	// no network of it can exist.
	Fresh bool
}

// CutFrom returns the subnet pool that the range's subnet is allocated from.
func (p Pool) CutFrom() sdn.ID {
	if p.OfPool != "" {
		return p.OfPool
	}
	return p.ID
}

func (s *Service) poolOf(r poolRow) Pool {
	i := s.noted(r.Key)
	return Pool{
		Nonce: r.Key, ID: r.Last.ID, PoolSpec: r.Spec, Project: r.Last.Project, Peer: r.Last.Peer,
		Fresh: !i.at.IsZero() && !i.used && !s.isUsed(r.Key),
	}
}

func poolClaim(id sdn.ID) string { return "poolid/" + string(id) }

func poolClaims(p poolRow) []string {
	if p.Last.ID == "" {
		return nil
	}
	return []string{poolClaim(p.Last.ID)}
}

// creation is how long the engine may take from RequestPool to CreateNetwork before its range can
// be requested for another network. CreateNetwork does not tell the two apart.
const creation = time.Minute

// RequestPool makes the subnet pool of a range.
func (s *Service) RequestPool(
	ctx context.Context, r *api.RequestPoolRequest,
) (none api.RequestPoolResponse, err error) {
	if !s.SDN.Capabilities().SubnetPools {
		return none, api.Refuse("this SDN has no subnet pools: " +
			"use the kuryr network driver with another IPAM driver")
	}
	spec, err := s.requested(ctx, r)
	if err != nil {
		return none, err
	}
	var p poolRow
	if spec.CIDR.IsValid() {
		p, err = s.namedPool(ctx, spec)
	} else {
		p, err = s.automaticPool(ctx, r)
	}
	if err != nil {
		return none, err
	}
	if len(r.Foreign) > 0 {
		s.Log.WarnContext(ctx, "IPAM options ignored", "range", p.Spec.CIDR,
			"options", api.Line(strings.Join(r.Foreign[:min(len(r.Foreign), 20)], " ")))
	}
	return api.RequestPoolResponse{
		PoolID: string(p.Last.ID), Pool: p.Spec.CIDR.String(), Data: map[string]string{},
	}, nil
}

// namedPool makes the pool of a range that the user chose.
func (s *Service) namedPool(ctx context.Context, spec PoolSpec) (p poolRow, err error) {
	unlock, err := s.lockRange(ctx, spec)
	if err != nil {
		return p, err
	}
	defer unlock()
	if s.isGlobal(spec) {
		return s.globalPool(ctx, spec)
	}
	if s.isRecent(spec) {
		return p, api.Refuse("the range %s was just given to another network that is being created; "+
			"try again in a minute", spec.CIDR)
	}
	fits := func(p poolRow) bool {
		return p.Spec.CIDR == spec.CIDR && p.Spec.Space == spec.Space && p.Spec.Sub == spec.Sub
	}
	if spec.OfSubnet == "" && spec.OfPool == "" {
		if p, ok, err := s.unansweredPool(ctx, s.ofRange(spec.CIDR), fits); ok || err != nil {
			return p, err
		}
	}
	return s.makePool(ctx, spec)
}

func (s *Service) makePool(ctx context.Context, spec PoolSpec) (poolRow, error) {
	return s.setPool(withNew(ctx), s.Names.Nonce(), spec)
}

// setPool sets the row of a pool that this process tells the engine of.
func (s *Service) setPool(ctx context.Context, key string, spec PoolSpec) (p poolRow, err error) {
	var claims []string
	if s.isGlobal(spec) {
		claims = []string{globalClaim(spec.CIDR)}
	}
	_, err = s.pools.Set(ctx, reconcile.Request[PoolSpec]{Key: key, Spec: spec, Claims: claims})
	if err != nil {
		return p, err
	}
	s.issue(key)
	// A kill before the engine has made a network of the range can lose the answer.
	s.pools.NoteHeard(key, false)
	time.AfterFunc(creation, func() {
		if !s.noted(key).unheard {
			s.pools.NoteHeard(key, true)
		}
	})
	p, _ = s.pools.Get(key)
	return p, nil
}

// NoteHeard notes whether the engine has got the answer of the call that made something of pools.
func (s *Service) NoteHeard(heard bool, pools ...string) {
	for _, pool := range pools {
		s.note(pool, func(i *issued) { i.unheard = !heard })
		s.pools.NoteHeard(pool, heard)
	}
}

// NoteUnheard notes that the engine has not got the answer of a RequestPool.
func (s *Service) NoteUnheard(id sdn.ID) {
	if p, ok := s.pools.Holder(poolClaim(id)); ok {
		s.NoteHeard(false, p.Key)
	}
}

// issue notes that this process tells the engine of a pool.
func (s *Service) issue(pool string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := s.issued[pool]
	i.at = time.Now()
	s.issued[pool] = i
}

// note changes what is noted of a pool that this process told the engine of.
func (s *Service) note(pool string, change func(*issued)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i, ok := s.issued[pool]; ok {
		change(&i)
		s.issued[pool] = i
	}
}

func has[T any](rows iter.Seq[T]) bool {
	for range rows {
		return true
	}
	return false
}

func (s *Service) ofRange(cidr netip.Prefix) iter.Seq[poolRow] { return s.pools.ByIndex(cidr.String()) }

// overlapsPool reports whether the row of a pool has a range that overlaps another.
func (s *Service) overlapsPool(cidr netip.Prefix) bool {
	for bits := range cidr.Bits() + 1 {
		if has(s.ofRange(netip.PrefixFrom(cidr.Addr(), bits).Masked())) {
			return true
		}
	}
	rows := s.pools.Rows()
	if bits := cidr.Bits() / blockBits * blockBits; bits > 0 {
		rows = s.pools.ByIndex(blockOf(cidr, bits))
	}
	for p := range rows {
		if p.Spec.CIDR.Overlaps(cidr) {
			return true
		}
	}
	return false
}

// unansweredPool returns a pool of an earlier process that the engine was not told of, as far as
// is known, and that fits.
func (s *Service) unansweredPool(
	ctx context.Context, rows iter.Seq[poolRow], fits func(poolRow) bool,
) (p poolRow, found bool, err error) {
	unlock, err := s.locks.Lock(ctx, "unanswered")
	if err != nil {
		return p, false, err
	}
	defer unlock()
	for p := range rows {
		if p.Phase != reconcile.Wanted || p.Acked || p.Last.Peer || !p.Spec.isUntouched() || p.Spec.Standing() != "" ||
			p.Spec.OfPool != "" || !s.noted(p.Key).at.IsZero() || s.isUsed(p.Key) || !fits(p) {
			continue
		}
		if p, err = s.remake(ctx, p); err != nil {
			return p, false, err
		}
		_, used, err := s.subnetOf(ctx, p, netip.Addr{})
		if err != nil {
			return p, false, err
		}
		if !used {
			s.issue(p.Key)
			return p, true, nil
		}
	}
	return poolRow{}, false, nil
}

// remake makes the pool of a row exist, of which the answer may have been lost. A Set would say that
// the engine knows a pool, so one that exists has none.
func (s *Service) remake(ctx context.Context, p poolRow) (poolRow, error) {
	if p.Last.ID != "" {
		return p, nil
	}
	query := sdn.SubnetPoolQuery{Match: identity.ByKey(s.poolKey(p.Key, p.Spec))}
	made, found, err := sdn.First(s.SDN.FindSubnetPools(ctx, query))
	switch {
	case err != nil:
		return p, err
	case !found:
		return s.setPool(ctx, p.Key, p.Spec)
	}
	return s.importPool(ctx, made)
}

func (s *Service) isUsed(pool string) bool {
	_, hidden := s.hidden.Get(pool)
	network, _ := s.networks.Of(pool)
	return hidden || network != ""
}

// issued is what this process told the engine of a pool, which had no subnet then.
type issued struct {
	at      time.Time
	used    bool // by a network
	unheard bool // the engine has not got an answer about it
}

// noted returns what this process told the engine of a pool; the zero value if it is of an earlier
// process.
func (s *Service) noted(pool string) issued {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.issued[pool]
}

// isFresh reports whether the engine was told of a pool so recently that it can be creating a
// network of it.
func (s *Service) isFresh(pool string) bool { return time.Since(s.noted(pool).at) <= creation }

// isRecent reports whether the engine can be creating a network of a pool of the same range.
func (s *Service) isRecent(spec PoolSpec) bool {
	for p := range s.ofRange(spec.CIDR) {
		if p.Spec.Space == spec.Space && p.Spec.OfSubnet == spec.OfSubnet &&
			p.Phase == reconcile.Wanted && s.isFresh(p.Key) && !s.isUsed(p.Key) {
			return true
		}
	}
	return false
}

func (s *Service) forgetPool(p poolRow) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.issued, p.Key)
}

// LockRanges keeps other calls from changing what pools of the ranges are used for: CreateNetwork
// does not tell pools of one range apart.
func (s *Service) LockRanges(ctx context.Context, ranges ...*api.IPAMData) (unlock func(), err error) {
	var names []string
	for _, r := range ranges {
		names = append(names, rangeLock(r.Pool))
	}
	return s.locks.LockAll(ctx, names...)
}

func (s *Service) lockRange(ctx context.Context, p PoolSpec) (unlock func(), err error) {
	return s.locks.Lock(ctx, rangeLock(p.CIDR))
}

func rangeLock(cidr netip.Prefix) string { return "range/" + cidr.String() }

// takeGateway notes the gateway of a pool that has no network yet, also the default one: a pool without
// it is given to the next request of its range after a kill. No port is made: the router's interface
// will have the address.
func (s *Service) takeGateway(
	ctx context.Context, p poolRow, asked netip.Addr,
) (none api.RequestAddressResponse, err error) {
	cidr, gateway := p.Spec.CIDR, asked
	if !asked.IsValid() {
		gateway = identity.FirstHost(cidr)
		for slices.Contains(p.Spec.Aux, gateway) {
			gateway = gateway.Next()
		}
	}
	switch {
	case asked.IsValid() && !cidr.Contains(asked):
		return none, api.Refuse("gateway %s is not in %s", asked, cidr)
	case !gateway.IsValid() || !cidr.Contains(gateway):
		return none, api.Refuse("%s has no room for a gateway", cidr)
	case slices.Contains(p.Spec.Aux, gateway):
		return none, api.Refuse("%s is an auxiliary address already", gateway)
	}
	spec := p.Spec
	spec.Gateway = gateway
	if err := s.changePool(ctx, p, spec); err != nil {
		return none, err
	}
	return api.NewRequestAddressResponse(gateway, cidr.Bits()), nil
}

// changePool changes what the engine asked of a pool, whose range is locked. One that it has released
// stays released.
func (s *Service) changePool(ctx context.Context, p poolRow, spec PoolSpec) error {
	if now, ok := s.pools.Get(p.Key); !ok || now.Phase != reconcile.Wanted {
		return noPool(p.Last.ID)
	}
	if spec.Gateway == p.Spec.Gateway && slices.Equal(spec.Aux, p.Spec.Aux) {
		s.pools.Ack(p.Key)
		return nil
	}
	err := s.setPoolLater(ctx, p, spec)
	if errors.Is(err, reconcile.ErrAbsent) {
		return noPool(p.Last.ID)
	}
	return err
}

// setPoolLater stores another spec of a pool that has a row. An orphan that is being deleted since
// does not come back.
func (s *Service) setPoolLater(ctx context.Context, p poolRow, spec PoolSpec) error {
	return s.pools.SetLater(ctx, reconcile.Request[PoolSpec]{
		Key: p.Key, Spec: spec, Claims: p.Claims, Existing: true,
	})
}

// takeAux notes an auxiliary address, which no endpoint gets. The engine also requests those
// outside of the range, which mean nothing.
func (s *Service) takeAux(
	ctx context.Context, p poolRow, addr netip.Addr,
) (none api.RequestAddressResponse, err error) {
	cidr, spec := p.Spec.CIDR, p.Spec
	if addr.Is6() != cidr.Addr().Is6() {
		return none, api.Refuse("%s is not of the family of %s", addr, cidr)
	}
	if addr == spec.Gateway {
		return none, api.Refuse("%s is the gateway", addr)
	}
	if cidr.Contains(addr) && !slices.Contains(spec.Aux, addr) {
		spec.Aux = append(slices.Clone(spec.Aux), addr)
		slices.SortFunc(spec.Aux, netip.Addr.Compare)
	}
	if err := s.changePool(ctx, p, spec); err != nil {
		return none, err
	}
	return api.NewRequestAddressResponse(addr, cidr.Bits()), nil
}

// Range is a range of a network.
type Range struct {
	*api.IPAMData
	Existing bool   // the network is an existing one
	Standing sdn.ID // its subnet that stands for the range; "" if the range is added to it
}

// isOurs reports whether the range was requested from Kuryr. The design document of
// kuryr-libnetwork has no address space.
func (r Range) isOurs() bool {
	return r.AddressSpace == api.LocalSpace || r.AddressSpace == api.GlobalSpace || r.AddressSpace == ""
}

// ForRanges returns the pools that the ranges of a network were requested from, in their order.
// The engine does not tell which these are: they have the range, and no other network uses them.
func (s *Service) ForRanges(ctx context.Context, ranges []Range, network string) ([]Pool, error) {
	pools := make([]Pool, len(ranges))
	for i, r := range ranges {
		if !r.isOurs() {
			continue
		}
		p, ok := s.bestPool(r, pools, network)
		if !ok {
			if err := s.lookUpPools(ctx, r.Pool); err != nil {
				return nil, err
			}
			p, ok = s.bestPool(r, pools, network)
		}
		switch {
		case ok:
			pools[i] = s.poolOf(p)
		case r.AddressSpace != "":
			return nil, api.Refuse("the range %s was not requested from kuryr, or is another network's", r.Pool)
		}
	}
	return pools, nil
}

// bestPool returns the pool of a range that fits best what the engine requested, without those
// that other ranges of the network have.
func (s *Service) bestPool(r Range, others []Pool, network string) (best poolRow, found bool) {
	score := -1
	for p := range s.ofRange(r.Pool) {
		if p.Phase != reconcile.Wanted || r.AddressSpace != "" && p.Spec.Space != r.AddressSpace ||
			slices.ContainsFunc(others, func(o Pool) bool { return o.Nonce == p.Key }) {
			continue
		}
		of, _ := s.networks.Of(p.Key)
		n, fits := s.fit(r, p, of != "" && of == network)
		if fits && (n > score || n == score && p.Incarnation > best.Incarnation) {
			best, score, found = p, n, true
		}
	}
	return best, found
}

// fit rates a pool of a range, and reports whether it can be the range's at all. mine says that
// the network has it already.
func (s *Service) fit(r Range, p poolRow, mine bool) (score int, fits bool) {
	standing := p.Spec.Standing()
	switch {
	case r.Standing != "" && (standing != "" && standing != r.Standing || p.Spec.OfPool != ""),
		r.Existing && r.Standing == "" && standing != "":
		return 0, false
	case mine:
		score += 16
	case s.isUsed(p.Key):
		return 0, false
	}
	if r.Standing != "" && standing != "" {
		score += 8 // it was requested with the subnet
	}
	if p.Spec.gateway() == r.Gateway {
		score += 4
	}
	if s.isFresh(p.Key) {
		score += 2
	}
	if p.Spec.reserves(r.IPAMData) {
		score++
	}
	return score, true
}

// reserves reports whether the range has just the auxiliary addresses of a network's.
func (p PoolSpec) reserves(data *api.IPAMData) bool {
	inside := slices.DeleteFunc(slices.Clone(data.AuxAddresses), func(a netip.Addr) bool { return !p.CIDR.Contains(a) })
	slices.SortFunc(inside, netip.Addr.Compare)
	return slices.Equal(p.Aux, inside)
}

// RefOf returns the name of a pool's row for the Owners of others.
func (s *Service) RefOf(nonce string) string { return s.pools.Ref(nonce) }

// IsReleased reports whether the engine released a pool that a network still has. Of a pool without
// a row, as after the database was lost, that is unknown.
func (s *Service) IsReleased(nonce string) bool {
	p, ok := s.pools.Get(nonce)
	return ok && p.Phase == reconcile.Deleting
}

// TagLater writes the tags of pools that a network was made of, whose ranges are locked, and stores
// which existing subnets stand for ranges. CreateNetwork does not wait for the tags.
func (s *Service) TagLater(ctx context.Context, nonces ...string) (err error) {
	for _, nonce := range nonces {
		s.note(nonce, func(i *issued) { i.used = true })
		p, ok := s.pools.Get(nonce)
		if !ok || p.Phase != reconcile.Wanted {
			continue
		}
		subnets := s.networks.Subnets(nonce)
		if p.Spec.Standing() == "" && len(subnets) > 0 && !s.isOurs(subnets[0]) {
			p.Spec.Stands = subnets[0].ID
			if err = s.setPoolLater(ctx, p, p.Spec); errors.Is(err, reconcile.ErrAbsent) {
				err = nil // the network is about to be deleted too
			}
		} else if !(poolTarget{s}).isTagged(p.Spec, p.Last) {
			err = s.pools.Repeat(ctx, nonce, 0, nil)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// isOurs reports whether a subnet is Kuryr's, and not an existing one.
func (s *Service) isOurs(sub sdn.Subnet) bool {
	return s.Names.Ours(sub.Meta, identity.KindSubnet, identity.KindHiddenSubnet)
}

// SubnetSpec returns the subnet of a range of a network. The zero Pool is that of a range of
// another IPAM driver. noGateway says that the network has no way out.
func SubnetSpec(key sdn.Key, data *api.IPAMData, p Pool, noGateway bool) sdn.SubnetSpec {
	spec := sdn.SubnetSpec{
		Base:       sdn.Base{Key: key, Name: identity.SubnetTitle(data.Pool)},
		CIDR:       data.Pool,
		Pool:       p.CutFrom(),
		Gateway:    sdn.Gateway{Addr: data.Gateway},
		Reserved:   slices.Clone(data.AuxAddresses),
		HostRoutes: data.Routes,
		NoDHCP:     true,
	}
	if p.ID != "" {
		spec.Tags = []string{string(p.ID)}
	}
	switch {
	case noGateway:
		// The engine may have taken a gateway nevertheless, which no endpoint must get.
		spec.Gateway = sdn.Gateway{None: true}
		if data.Gateway.IsValid() {
			spec.Reserved = append(spec.Reserved, data.Gateway)
		}
	case !data.Gateway.IsValid() && !identity.FirstHost(data.Pool).IsValid():
		spec.Gateway = sdn.Gateway{None: true}
	}
	spec.Reserved = slices.DeleteFunc(spec.Reserved, func(a netip.Addr) bool {
		return !data.Pool.Contains(a) || a == spec.Gateway.Addr
	})
	slices.SortFunc(spec.Reserved, netip.Addr.Compare)
	spec.Reserved = slices.Compact(spec.Reserved)
	if p.Sub.IsValid() {
		spec.Ranges = identity.Within(p.Sub, data.Pool)
	}
	return spec
}
