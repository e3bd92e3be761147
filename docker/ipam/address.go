package ipam

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/sdn"
)

// AddressSpec is what the engine asked of a port: its addresses on one network.
type AddressSpec struct {
	Network sdn.ID  `json:"network"`
	MAC     string  `json:"mac,omitempty"` // that the engine gave
	Asked   []Asked `json:"asked"`
}

// Asked is an address that the engine requested.
type Asked struct {
	Pool   string     `json:"pool,omitempty"` // the key of its row
	Subnet sdn.ID     `json:"subnet"`
	Addr   netip.Addr `json:"addr"` // invalid: any
	// Unmanaged is set if the subnet is an existing one.
	Unmanaged bool `json:"unmanaged,omitempty"`
	// Shared is the pool in the SDN if a swarm's network has it, and Owner the row of that network.
	Shared sdn.ID `json:"shared,omitempty"`
	Owner  string `json:"owner,omitempty"`
}

// AddressState is a port that has addresses.
type AddressState struct {
	Port     sdn.Port `json:"port"` // without its status
	Key      sdn.Key  `json:"key"`
	Existing bool     `json:"existing,omitempty"` // its user made it
	// Freed are the addresses that the engine released. The port keeps them until all are.
	Freed []netip.Addr `json:"freed,omitempty"`
	// Again are the addresses that the engine requested for other endpoints as well, once for each. It
	// releases them for those, too.
	Again []netip.Addr `json:"again,omitempty"`
}

// Index implements reconcile.Indexed: an address is found by the keys of its pools' rows.
func (a AddressSpec) Index() []string {
	var pools []string
	for _, q := range a.Asked {
		if q.Pool != "" {
			pools = append(pools, q.Pool)
		}
	}
	return pools
}

func addressClaim(subnet sdn.ID, addr netip.Addr) string {
	return "address/" + string(subnet) + "/" + addr.String()
}

func portClaim(id sdn.ID) string { return "port/" + string(id) }

func macClaim(network sdn.ID, mac string) string { return "mac/" + string(network) + "/" + mac }

func (a AddressSpec) claims() []string {
	var claims []string
	if a.MAC != "" {
		claims = append(claims, macClaim(a.Network, a.MAC))
	}
	for _, asked := range a.Asked {
		if asked.Addr.IsValid() {
			claims = append(claims, addressClaim(asked.Subnet, asked.Addr))
		}
		if asked.Addr.IsValid() && asked.Shared != "" {
			claims = append(claims, sharedClaim(asked.Shared, asked.Addr))
		}
	}
	return claims
}

// sharedClaim is the claim on an address of a pool that a swarm's network has. A release by a node
// has the pool, and the subnet may be gone.
func sharedClaim(pool sdn.ID, addr netip.Addr) string {
	return "shared/" + string(pool) + "/" + addr.String()
}

func addressClaims(a addressRow) []string {
	if a.Last.Port.ID == "" {
		return nil
	}
	claims := []string{portClaim(a.Last.Port.ID)}
	for _, at := range a.Last.Port.Addresses {
		claims = append(claims, addressClaim(at.Subnet, at.Addr))
	}
	for _, q := range a.Spec.Asked {
		if at, ok := addressOn(a.Last.Port, q.Subnet); ok && q.Shared != "" {
			claims = append(claims, sharedClaim(q.Shared, at))
		}
	}
	return claims
}

func addressOn(p sdn.Port, subnet sdn.ID) (netip.Addr, bool) {
	for _, a := range p.Addresses {
		if a.Subnet == subnet {
			return a.Addr, true
		}
	}
	return netip.Addr{}, false
}

// complete returns what is asked of a port together with the addresses that it has besides, as one
// that an earlier row made.
func (a AddressSpec) complete(last AddressState) AddressSpec {
	a.Asked = slices.Clone(a.Asked)
	if last.Existing {
		return a
	}
	for _, has := range last.Port.Addresses {
		asked := func(q Asked) bool { return q.Subnet == has.Subnet && (q.Addr == has.Addr || !q.Addr.IsValid()) }
		if !slices.ContainsFunc(a.Asked, asked) {
			a.Asked = append(a.Asked, Asked{Subnet: has.Subnet, Addr: has.Addr})
		}
	}
	return a
}

// with returns the spec with one more address. The address that the port has on the subnet will do
// unless another one is asked for.
func (a AddressSpec) with(q Asked, last AddressState) AddressSpec {
	a = a.complete(last)
	for i, has := range a.Asked {
		if has.Subnet != q.Subnet {
			continue
		}
		if at, _ := addressOn(last.Port, q.Subnet); !q.Addr.IsValid() || q.Addr == has.Addr || q.Addr == at {
			q.Addr = has.Addr
		}
		a.Asked[i] = q
		return a
	}
	a.Asked = append(a.Asked, q)
	return a
}

// RequestAddress serves three requests that differ little: that for a gateway has a type; that for
// an auxiliary address has no MAC and comes before the pool has a network; all others are for
// endpoints.
func (s *Service) RequestAddress(
	ctx context.Context, r *api.RequestAddressRequest,
) (none api.RequestAddressResponse, err error) {
	p, err := s.wantedPool(ctx, r.PoolID)
	if err != nil {
		return none, err
	}
	release, err := s.networks.Hold(ctx, p.Key)
	if err != nil {
		return none, err
	}
	defer release()
	sub, ok, err := s.subnetOf(ctx, p, r.Address)
	if err == nil && !ok { // a network may be made of the pool now
		unlock, err := s.lockRange(ctx, p.Spec)
		if err != nil {
			return none, err
		}
		defer unlock()
		if p, err = s.wantedPool(ctx, r.PoolID); err != nil {
			return none, err
		}
		if sub, ok, err = s.subnetOf(ctx, p, r.Address); err != nil {
			return none, err
		}
	}
	switch {
	case err != nil:
		return none, err
	case ok:
		return s.inSubnet(ctx, p, sub, r)
	case p.Spec.Standing() != "":
		return none, api.Refuse("subnet %s, which stands for pool %s, is gone", p.Spec.Standing(), p.Last.ID)
	case r.Gateway:
		return s.takeGateway(ctx, p, r.Address)
	case r.MAC == nil && r.Address.IsValid() && !r.Serial:
		return s.takeAux(ctx, p, r.Address)
	}
	if sub, err = s.hiddenSubnet(ctx, p); err != nil {
		return none, err
	}
	return s.inSubnet(ctx, p, sub, r)
}

func (s *Service) inSubnet(
	ctx context.Context, p poolRow, sub sdn.Subnet, r *api.RequestAddressRequest,
) (none api.RequestAddressResponse, err error) {
	if r.Gateway {
		return GatewayOf(sub, r.Address)
	}
	if err := CheckAddress(sub, r.Address); err != nil {
		return none, err
	}
	q := Asked{Pool: p.Key, Subnet: sub.ID, Addr: r.Address, Unmanaged: !s.isOurs(sub)}
	return s.takeAddress(ctx, p, sub, q, r.MAC)
}

// CheckAddress refuses an address that an endpoint cannot have on a subnet. An invalid one is any.
func CheckAddress(sub sdn.Subnet, a netip.Addr) error {
	switch {
	case a.IsValid() && !sub.CIDR.Contains(a):
		return api.Refuse("%s is not in %s", a, sub.CIDR)
	case a.IsValid() && a == sub.Gateway:
		return api.Refuse("address %s is in use: it is the gateway", a)
	}
	return nil
}

// GatewayOf answers for the gateway of a subnet that exists.
func GatewayOf(sub sdn.Subnet, asked netip.Addr) (none api.RequestAddressResponse, err error) {
	gateway := sub.Gateway
	if !gateway.IsValid() {
		if gateway = asked; !asked.IsValid() {
			gateway = identity.FirstHost(sub.CIDR)
		}
	}
	switch {
	case asked.IsValid() && asked != gateway:
		return none, api.Refuse("the gateway of %s is %s, not %s", sub.CIDR, gateway, asked)
	case !gateway.IsValid() || !sub.CIDR.Contains(gateway):
		return none, api.Refuse("%s has no room for a gateway", sub.CIDR)
	}
	return api.NewRequestAddressResponse(gateway, sub.CIDR.Bits()), nil
}

// takeAddress takes an address for an endpoint: that of a port with its MAC, or one more address of
// such a port. p is the zero row for a pool of a swarm's.
func (s *Service) takeAddress(
	ctx context.Context, p poolRow, sub sdn.Subnet, q Asked, given net.HardwareAddr,
) (none api.RequestAddressResponse, err error) {
	mac := ""
	if given != nil {
		mac = given.String()
		unlock, err := s.locks.Lock(ctx, macClaim(sub.Network, mac))
		if err != nil {
			return none, err
		}
		defer unlock()
	}
	state, err := s.setAddress(ctx, sub, mac, q)
	if left, ok := errors.AsType[*leftoverError](err); ok {
		if err := s.addresses.Remove(ctx, left.key); err != nil {
			return none, err
		}
		state, err = s.setAddress(ctx, sub, mac, q)
	}
	if err != nil {
		return none, s.explain(err, p, sub, mac, q.Addr)
	}
	addr, ok := addressOn(state.Port, sub.ID)
	if q.Addr.IsValid() && identity.HasAddress(state.Port, q.Addr) {
		addr, ok = q.Addr, true
	}
	if !ok {
		return none, api.Refuse("the SDN gave the port no address in %s", sub.CIDR)
	}
	if p.Key != "" {
		s.NoteHeard(true, p.Key) // its engine uses it
	}
	return api.NewRequestAddressResponse(addr, sub.CIDR.Bits()), nil
}

func (s *Service) setAddress(ctx context.Context, sub sdn.Subnet, mac string, q Asked) (none AddressState, err error) {
	key, spec, again := s.Names.Nonce(), AddressSpec{Network: sub.Network, MAC: mac, Asked: []Asked{q}}, false
	row, ok, err := s.rowFor(ctx, sub, mac, q.Addr)
	if err != nil {
		return none, err
	}
	if ok {
		if id, _ := s.endpoints.Of(row.Key); id != "" {
			used, err := s.endpoints.DropUnused(ctx, id)
			if err != nil {
				return none, err
			}
			if used {
				return none, inUse(row.Last.Port, mac, q.Addr)
			}
			if row, ok, err = s.rowFor(ctx, sub, mac, q.Addr); err != nil {
				return none, err
			}
		}
	}
	if ok {
		key, spec = row.Key, row.Spec.with(q, row.Last)
		again = slices.ContainsFunc(row.Spec.Asked, func(has Asked) bool {
			at, _ := addressOn(row.Last.Port, q.Subnet)
			return has.Subnet == q.Subnet && (!q.Addr.IsValid() || q.Addr == has.Addr || q.Addr == at)
		})
	}
	state, err := s.addresses.Set(ctx, reconcile.Request[AddressSpec]{
		Key: key, Spec: spec, Claims: spec.claims(), Owners: s.owners(spec),
	})
	if err == nil && (again || len(state.Freed) > 0) {
		s.addresses.Note(key, func(a AddressState) AddressState { return a.requested(q, again) })
	}
	return state, err
}

// requested notes that an address was requested. again says that it was before, and if it was not
// released since, it is so for another endpoint.
func (a AddressState) requested(q Asked, again bool) AddressState {
	addr := q.Addr
	if at, ok := addressOn(a.Port, q.Subnet); ok && !identity.HasAddress(a.Port, addr) {
		addr = at
	}
	if i := slices.Index(a.Freed, addr); i >= 0 {
		a.Freed = slices.Delete(slices.Clone(a.Freed), i, i+1)
	} else if again {
		a.Again = append(slices.Clone(a.Again), addr)
	}
	return a
}

// rowFor returns the row of the port that a request is for. Two requests for the address of one
// existing port are for one row: the endpoint that comes first has the port.
func (s *Service) rowFor(
	ctx context.Context, sub sdn.Subnet, mac string, addr netip.Addr,
) (row addressRow, ok bool, err error) {
	if mac != "" {
		if row, ok = s.addresses.Holder(macClaim(sub.Network, mac)); ok && row.Phase == reconcile.Wanted {
			return row, true, nil
		}
	}
	if !addr.IsValid() {
		return row, false, nil
	}
	row, ok = s.addresses.Holder(addressClaim(sub.ID, addr))
	if !ok || row.Phase != reconcile.Wanted {
		return row, false, nil
	}
	if row.Last.Port.ID == "" {
		row, err = identity.Again(ctx, s.addresses, row)
	}
	return row, row.Last.Existing, err
}

// owners returns the rows that outlive that of a port.
func (s *Service) owners(spec AddressSpec) []string {
	var refs []string
	for _, q := range spec.Asked {
		if q.Owner != "" {
			refs = append(refs, q.Owner)
		}
		if q.Pool == "" {
			continue
		}
		if _, ok := s.hidden.Get(q.Pool); ok {
			refs = append(refs, s.hidden.Ref(q.Pool))
			continue
		}
		refs = append(refs, s.pools.Ref(q.Pool))
		if _, network := s.networks.Of(q.Pool); network != "" {
			refs = append(refs, network)
		}
	}
	slices.Sort(refs)
	return slices.Compact(refs)
}

// inUse returns the refusal of a port that an endpoint has.
func inUse(p sdn.Port, mac string, addr netip.Addr) error {
	switch {
	case addr.IsValid() && identity.HasAddress(p, addr):
		return api.Refuse("address %s is in use by another endpoint", addr)
	case mac != "":
		return api.Refuse("MAC %s is in use by another endpoint of the network", mac)
	}
	return identity.InUse(p)
}

// explain puts an error of a request for an address into words for its user.
func (s *Service) explain(err error, p poolRow, sub sdn.Subnet, mac string, addr netip.Addr) error {
	if _, ok := errors.AsType[*api.Refusal](err); ok {
		return err
	}
	conflict, isConflict := errors.AsType[*reconcile.ConflictError](err)
	switch {
	case reconcile.IsOwnerGone(err):
		return api.RefuseFor(err, "there is no pool %s", p.Last.ID)
	case isConflict && mac != "" && conflict.Resource == macClaim(sub.Network, mac):
		return api.RefuseFor(err, "MAC %s is in use by another endpoint of the network", mac)
	case reconcile.IsPending(err) && sdn.IsConflict(err) && addr.IsValid():
		return api.RefuseFor(err, "address %s is in use: the SDN does not delete its port yet", addr)
	case reconcile.IsPending(err) && sdn.IsConflict(err) && mac != "":
		return api.RefuseFor(err, "MAC %s is in use: the SDN does not delete its port yet", mac)
	case addr.IsValid() && (isConflict || sdn.ReasonOf(err) == sdn.AddressInUse):
		return api.RefuseFor(err, "address %s is in use", addr)
	case sdn.IsNotFound(err) && p.Spec.Standing() == sub.ID:
		return api.RefuseFor(err, "subnet %s, which stands for pool %s, is gone", sub.ID, p.Last.ID)
	case sdn.IsDenied(err):
		return api.RefuseFor(err, "the SDN does not let Kuryr choose the address or the MAC of a port in %s: "+
			"give those of a port that is there by --ip and --mac-address", sub.CIDR)
	}
	return err
}

// Held is a port that was requested with addresses.
type Held struct {
	Ref      string // of its row; "" if it has none
	Port     sdn.Port
	Existing bool // its user made it
	Shared   bool // other hosts change it, too
}

// At returns the ports that have the addresses, which are of the subnets of a network: those that
// were requested with them, and others.
func (s *Service) At(
	ctx context.Context, subnets []sdn.Subnet, addresses []netip.Prefix,
) (held []Held, err error) {
	has := func(addr netip.Addr) bool {
		return slices.ContainsFunc(held, func(h Held) bool { return identity.HasAddress(h.Port, addr) })
	}
	for _, a := range addresses {
		for _, sub := range subnets {
			if !sub.CIDR.Contains(a.Addr()) || has(a.Addr()) {
				continue
			}
			h, ok, err := s.HeldAt(ctx, sub.ID, a.Addr())
			if !ok && err == nil {
				h, ok, err = s.lookUpAddress(ctx, sub, a.Addr())
			}
			if err != nil {
				return nil, err
			}
			if ok {
				held = append(held, h)
			}
		}
	}
	return held, nil
}

// HeldAt returns the port of a row that has an address of a subnet.
func (s *Service) HeldAt(ctx context.Context, subnet sdn.ID, addr netip.Addr) (h Held, found bool, err error) {
	row, ok := s.addresses.Holder(addressClaim(subnet, addr))
	if !ok || row.Phase != reconcile.Wanted {
		return h, false, nil
	}
	if row.Last.Port.ID == "" {
		row, err = identity.Again(ctx, s.addresses, row)
	}
	if err == nil {
		h, err = s.held(ctx, row)
	}
	return h, err == nil, err
}

// held returns the port of a row. The user of an existing one may have changed it. Others only this
// process changes, and the revision that the row has may be old.
func (s *Service) held(ctx context.Context, row addressRow) (h Held, err error) {
	h = Held{Ref: s.addresses.Ref(row.Key), Port: row.Last.Port, Existing: row.Last.Existing}
	if h.Port.Revision = 0; h.Existing {
		h.Port, err = s.SDN.Port(ctx, h.Port.ID)
	}
	return h, err
}

// Merge makes one port of those that an engine without MACs took the addresses of an endpoint
// with. The others are deleted first, since an address has one port. A call that is killed leaves
// the engine without an answer, and it releases the addresses.
func (s *Service) Merge(ctx context.Context, held []Held) (Held, error) {
	for _, h := range held {
		if h.Existing || h.Ref == "" {
			return Held{}, api.Refuse("the addresses are of several ports, of which %s is not Kuryr's: give all that "+
				"are wanted of it by --ip and --ip6, or its MAC by --mac-address: it has %s",
				h.Port.ID, identity.Addresses(h.Port))
		}
	}
	row, ok := s.rowOf(held[0].Ref)
	if !ok {
		return Held{}, identity.InUse(held[0].Port)
	}
	spec := row.Spec.complete(row.Last)
	for _, h := range held[1:] {
		other, ok := s.rowOf(h.Ref)
		if !ok {
			return Held{}, identity.InUse(h.Port)
		}
		for _, q := range other.Spec.complete(other.Last).Asked {
			if at, ok := addressOn(other.Last.Port, q.Subnet); ok && !q.Addr.IsValid() {
				q.Addr = at
			}
			spec.Asked = append(spec.Asked, q)
		}
		if err := s.addresses.Remove(ctx, other.Key); err != nil {
			return Held{}, err
		}
	}
	_, err := s.addresses.Set(ctx, reconcile.Request[AddressSpec]{
		Key: row.Key, Spec: spec, Claims: spec.claims(), Owners: s.owners(spec),
	})
	if err != nil {
		return Held{}, err
	}
	row, _ = s.addresses.Get(row.Key)
	return s.held(ctx, row)
}

// rowOf returns the Wanted row that a Held names.
func (s *Service) rowOf(ref string) (addressRow, bool) {
	row, ok := s.addresses.Get(strings.TrimPrefix(ref, kindAddress+"/"))
	return row, ok && row.Phase == reconcile.Wanted
}

// Deleting reports whether the row of a port is being deleted, or gone.
func (s *Service) Deleting(ref string) bool {
	_, wanted := s.rowOf(ref)
	return !wanted
}
