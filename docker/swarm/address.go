package swarm

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/docker/ipam"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/sdn"
)

// RequestAddress answers for a range of the swarm: a manager takes addresses for tasks
// and as VIPs of services, and a node asks for those of its tasks again. Other ranges are left to
// docker/ipam.
func (s *Service) RequestAddress(
	ctx context.Context, r *api.RequestAddressRequest,
) (answer api.RequestAddressResponse, err error) {
	id := r.PoolID
	auxiliary := r.MAC == nil && r.Address.IsValid() && !r.Serial
	if (r.Gateway || auxiliary) && s.IPAM.Has(id.Pool) {
		return s.IPAM.RequestAddress(ctx, r)
	}
	subnet, found, err := s.subnetOf(ctx, id.Pool)
	switch {
	case err != nil:
		return answer, err
	case found && !id.Node && !hasSwarm(subnet.Meta):
		return s.IPAM.RequestAddress(ctx, r)
	case !found && s.IPAM.IsBare(id.Pool):
		if subnet, err = s.IPAM.Hide(ctx, id.Pool); err != nil {
			return answer, err
		}
		if err := s.IPAM.HandOver(ctx, id.Pool); err != nil {
			return answer, err
		}
	case !found && (id.Node || id.Life != ""):
		return answer, api.Refuse("there is no pool %s", id)
	case !found:
		return s.IPAM.RequestAddress(ctx, r)
	}
	if r.Gateway {
		return ipam.GatewayOf(subnet, r.Address)
	}
	if err := ipam.CheckAddress(subnet, r.Address); err != nil {
		return answer, err
	}
	if id.Node {
		return s.nodeAddress(ctx, subnet, r)
	}
	return s.managerAddress(ctx, subnet, r)
}

func inUse(a netip.Addr) error { return api.Refuse("address %s is in use", a) }

// hold is the Spec of an address that a manager takes or releases.
type hold struct {
	Pool    sdn.ID     `json:"pool"`
	Subnet  sdn.ID     `json:"subnet,omitempty"`
	Network sdn.ID     `json:"network,omitempty"`
	Addr    netip.Addr `json:"addr,omitzero"` // invalid: any
	Life    string     `json:"life,omitempty"`
	// Released is when the manager released it; zero: it takes it. It is not compared.
	Released time.Time `json:"released,omitzero"`
}

// held is what the SDN has of the address.
type held struct {
	Port sdn.Port   `json:"port,omitzero"` // as it was read
	Addr netip.Addr `json:"addr,omitzero"`
	Tags []string   `json:"tags,omitempty"` // TagHeld of the port before
}

func heldClaim(pool sdn.ID, a netip.Addr) []string {
	if !a.IsValid() {
		return nil
	}
	return []string{"held/" + string(pool) + "/" + a.String()}
}

// managerAddress takes an address for a manager. A manager that was restarted or elected
// takes those that it has again: they are its own. A second request in one life is
// another's.
func (s *Service) managerAddress(
	ctx context.Context, subnet sdn.Subnet, r *api.RequestAddressRequest,
) (answer api.RequestAddressResponse, err error) {
	spec := hold{
		Pool: r.PoolID.Pool, Subnet: subnet.ID, Network: subnet.Network, Addr: r.Address, Life: r.PoolID.Life,
	}
	var last held
	err = whileStale(ctx, func() (err error) {
		last, err = once(ctx, s.hold, reconcile.Request[hold]{
			Key: s.Names.Nonce(), Spec: spec, Claims: heldClaim(spec.Pool, spec.Addr),
		})
		return err
	})
	if reconcile.IsConflict(err) {
		err = api.RefuseFor(err, "address %s is in use", r.Address)
	}
	if err != nil {
		return answer, err
	}
	_, again := s.given.LoadOrStore(last.Port.ID, true) // a manager was given it in this process
	if again && slices.Contains(last.Tags, identity.TagHeld+spec.Life) {
		return answer, inUse(r.Address)
	}
	return api.NewRequestAddressResponse(last.Addr, subnet.CIDR.Bits()), nil
}

type holdTarget struct{ *Service }

// Ensure implements reconcile.Target.
func (t holdTarget) Ensure(ctx context.Context, o reconcile.Object, spec hold, _ held) (held, error) {
	if spec.Addr.IsValid() {
		p, found, err := t.PortAt(ctx, spec.Subnet, spec.Addr)
		if err != nil {
			return held{}, identity.Outcome(err, false)
		}
		if found {
			return t.again(ctx, p, spec)
		}
	}
	ports, err := t.SDN.EnsurePorts(ctx, []sdn.PortSpec{{
		Base: sdn.Base{
			Key: t.portKey(spec.Network, o.Key), Name: identity.UnboundPort,
			Tags: []string{identity.TagHeld + spec.Life, identity.TagPort},
		},
		Network: spec.Network, DeviceOwner: sdn.OwnerContainer,
		Addresses: []sdn.Address{{Subnet: spec.Subnet, Addr: spec.Addr}},
	}})
	if err != nil {
		if sdn.ReasonOf(err) == sdn.AddressInUse && spec.Addr.IsValid() {
			err = reconcile.Refused(api.RefuseFor(err, "address %s is in use", spec.Addr))
		}
		return held{}, identity.Outcome(err, false)
	}
	last := held{Port: ports[0], Addr: spec.Addr}
	for _, a := range ports[0].Addresses {
		if !last.Addr.IsValid() && a.Subnet == spec.Subnet {
			last.Addr = a.Addr
		}
	}
	if !last.Addr.IsValid() {
		return last, api.Refuse("the SDN gave port %s no address", last.Port.ID)
	}
	return last, nil
}

// portKey returns the Key of a port that a manager has made. Any host can release it.
func (s *Service) portKey(network sdn.ID, nonce string) sdn.Key {
	return s.Names.GlobalKey(identity.KindPort, string(network)+"/"+nonce)
}

// isManagers reports whether a manager made a port, and not a node.
func isManagers(p sdn.Port) bool { return strings.Count(p.Key.Name, "/") == 1 }

// again gives a manager an address that a port has: its own of an earlier life, or one
// that it was not told of.
func (t holdTarget) again(ctx context.Context, p sdn.Port, spec hold) (last held, err error) {
	mark := identity.TagHeld + spec.Life
	has := heldBy(p)
	last = held{Port: p, Addr: spec.Addr, Tags: has}
	switch {
	case !t.Names.Ours(p.Meta, identity.KindPort, identity.KindEndpoint),
		len(has) == 0 && (p.DeviceID != "" || !isManagers(p)):
		return last, reconcile.Refused(inUse(spec.Addr))
	case slices.Equal(has, []string{mark}):
		return last, nil
	}
	tags := append(identity.Without(p.Tags, has...), mark)
	patch := sdn.PortPatch{Patch: sdn.Patch{IfRevision: p.Revision, Tags: &tags}}
	_, err = t.SDN.UpdatePort(ctx, p.ID, patch)
	return last, identity.Outcome(err, false)
}

// Delete implements reconcile.Target.
func (t holdTarget) Delete(ctx context.Context, o reconcile.Object, spec hold, last held) error {
	if !spec.Released.IsZero() {
		return t.release(ctx, spec, last)
	}
	// What a manager was not answered. Of a port that it had before, it asks again.
	keys := []sdn.Key{t.portKey(spec.Network, o.Key)}
	p, found, err := sdn.First(t.SDN.FindPorts(ctx, sdn.PortQuery{Match: sdn.Match{Keys: keys}}))
	if err != nil {
		return err
	}
	if !found {
		return reconcile.ErrAbsent
	}
	others := identity.Without(heldBy(p), identity.TagHeld+spec.Life)
	if p.DeviceID != "" || len(others) > 0 {
		return nil
	}
	return identity.IgnoreAbsent(t.SDN.DeletePort(ctx, p.ID, p.Revision))
}

// release takes an address from a manager. The port goes unless an endpoint has it.
func (t holdTarget) release(ctx context.Context, spec hold, last held) error {
	tags := last.Tags
	p, found, err := last.Port, true, error(nil)
	switch {
	case p.ID != "" && p.Revision == 0: // it is not known whether it has changed
		p, err = t.SDN.Port(ctx, p.ID)
	case p.ID == "":
		// The SDN was unavailable. Since then another life may have taken the address.
		tags = []string{identity.TagHeld + spec.Life}
		p, found, err = t.heldAt(ctx, spec.Pool, spec.Addr)
		found = found && !p.Created.After(spec.Released)
	}
	if sdn.IsNotFound(err) || err == nil && !found {
		return reconcile.ErrAbsent
	}
	if err != nil {
		return err
	}
	left := identity.Without(p.Tags, tags...)
	patch := sdn.PortPatch{Patch: sdn.Patch{IfRevision: p.Revision}}
	others := slices.DeleteFunc(slices.Clone(p.Addresses), func(a sdn.Address) bool { return a.Addr == spec.Addr })
	switch {
	case len(left) == len(p.Tags):
		return nil // released already
	case p.DeviceID != "" || len(identity.WithPrefix(left, identity.TagHeld)) > 0:
		patch.Tags = &left
		_, err = t.SDN.UpdatePort(ctx, p.ID, patch)
	case len(others) > 0:
		patch.Addresses = &others
		_, err = t.SDN.UpdatePort(ctx, p.ID, patch)
	default:
		err = t.SDN.DeletePort(ctx, p.ID, p.Revision)
	}
	if sdn.ReasonOf(err) == sdn.Stale {
		last.Port.Revision = 0 // the next attempt reads it
		return reconcile.Remaining(last, err)
	}
	return identity.IgnoreAbsent(err)
}

// lookUp returns the subnet of a pool that a manager allocates from, and the port that
// has an address of it other than the gateway. The zero values stand for what is absent.
func (s *Service) lookUp(
	ctx context.Context, pool sdn.ID, a netip.Addr,
) (subnet sdn.Subnet, p sdn.Port, err error) {
	subnet, _, err = s.subnetOf(ctx, pool)
	if err == nil && hasSwarm(subnet.Meta) && subnet.Gateway != a {
		p, _, err = s.PortAt(ctx, subnet.ID, a)
	}
	return subnet, p, err
}

// heldAt returns the port of ours that has an address of a pool.
func (s *Service) heldAt(ctx context.Context, pool sdn.ID, a netip.Addr) (sdn.Port, bool, error) {
	_, p, err := s.lookUp(ctx, pool, a)
	return p, s.Names.Ours(p.Meta, identity.KindPort), err
}

// ReleaseAddress takes an address from a manager or a node. Other ranges are left to docker/ipam.
func (s *Service) ReleaseAddress(ctx context.Context, r *api.ReleaseAddressRequest) (none api.Empty, err error) {
	if ours, err := s.ReleaseSharedAddress(ctx, r); ours || err != nil {
		return none, err
	}
	return s.IPAM.ReleaseAddress(ctx, r)
}

// ReleaseSharedAddress is ReleaseAddress for the ranges of the swarm. It reports false for others. The port
// goes when neither a manager nor a node has the address.
func (s *Service) ReleaseSharedAddress(ctx context.Context, r *api.ReleaseAddressRequest) (ours bool, err error) {
	switch {
	case r.PoolID.Node:
		return true, s.releaseByNode(ctx, r.PoolID.Pool, r.Address)
	case r.PoolID.Life == "" && s.IPAM.Has(r.PoolID.Pool):
		return false, nil
	}
	spec := hold{Pool: r.PoolID.Pool, Addr: r.Address, Life: r.PoolID.Life, Released: time.Now()}
	row := reconcile.Row[hold, held]{
		Object: reconcile.Object{Key: s.Names.Nonce()}, Spec: spec, Claims: heldClaim(spec.Pool, spec.Addr),
	}
	look, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	subnet, p, err := s.lookUp(look, spec.Pool, spec.Addr)
	switch {
	case unavailable(err):
	case err != nil:
		return true, err
	case !hasSwarm(subnet.Meta):
		return spec.Life != "", nil
	case !s.Names.Ours(p.Meta, identity.KindPort) || len(heldBy(p)) == 0:
		return true, nil // a gateway, or released already
	default:
		s.given.Delete(p.ID)
		row.Last = held{Port: p, Tags: heldBy(p)}
	}
	return true, free(ctx, s, s.hold, row)
}

// address is the Spec of the port of an endpoint of this node, whose address a manager
// holds.
type address struct {
	Port sdn.ID `json:"port,omitempty"`
	// Claims are of the addresses that the engine has not released: one of each family.
	Claims []string `json:"claims,omitempty"`
	// Merge are ports whose addresses Port gets, since an endpoint has one port.
	Merge []sdn.ID `json:"merge,omitempty"`

	// Of a release, whose port may not be known.
	Pool     sdn.ID     `json:"pool,omitempty"`
	Addr     netip.Addr `json:"addr,omitzero"`
	Released time.Time  `json:"released,omitzero"`
}

func nodeClaim(pool sdn.ID, a netip.Addr) string { return "node/" + string(pool) + "/" + a.String() }

// nodeAddress answers for an address that a manager took for a task of this node. Any
// other is taken by docker/ipam.
func (s *Service) nodeAddress(
	ctx context.Context, subnet sdn.Subnet, r *api.RequestAddressRequest,
) (answer api.RequestAddressResponse, err error) {
	if !r.Address.IsValid() {
		return s.IPAM.RequestIn(ctx, subnet, s.ownerOf(subnet.Network), r)
	}
	claims := []string{nodeClaim(r.PoolID.Pool, r.Address)}
	has, known := s.address.Holder(claims[0])
	if known && has.Phase == reconcile.Deleting { // of an earlier endpoint
		if err := s.address.Remove(ctx, has.Key); err != nil {
			return answer, err
		}
		known = false
	}
	p, found, err := s.PortAt(ctx, subnet.ID, r.Address)
	switch {
	case err != nil:
		return answer, err
	case !found || len(heldBy(p)) == 0:
		return s.IPAM.RequestIn(ctx, subnet, s.ownerOf(subnet.Network), r)
	case p.DeviceID != "":
		return answer, identity.InUse(p)
	}
	answer = api.NewRequestAddressResponse(r.Address, subnet.CIDR.Bits())
	if known && has.Spec.Port == p.ID {
		return answer, nil // the endpoint was never made, or is gone
	}
	if known {
		if err := s.address.Forget(ctx, has.Key); err != nil {
			return answer, err
		}
	}
	q := reconcile.Request[address]{
		Key: s.Names.Nonce(), Spec: address{Port: p.ID, Claims: claims}, Claims: claims,
	}
	if owner := s.ownerOf(subnet.Network); owner != "" {
		q.Owners = []string{owner}
	}
	_, err = s.address.Set(ctx, q)
	return answer, err
}

// ownerOf returns the row of a network that owns its addresses, "" if there is none: a
// network of one node that has the range of a swarm's network is not known here.
func (s *Service) ownerOf(network sdn.ID) string {
	for r := range s.share.Rows() {
		if r.Last.ID == network && r.Phase == reconcile.Wanted {
			return s.share.Ref(r.Key)
		}
	}
	return ""
}

// At returns the ports of a network whose addresses were requested for an endpoint, by the subnets
// of the network.
func (s *Service) At(
	ctx context.Context, subnets []sdn.Subnet, addresses []netip.Prefix,
) (ports []ipam.Held, err error) {
	if len(subnets) == 0 || s.ownerOf(subnets[0].Network) == "" {
		return s.IPAM.At(ctx, subnets, addresses)
	}
	for _, a := range addresses {
		at := slices.IndexFunc(subnets, func(subnet sdn.Subnet) bool { return subnet.CIDR.Contains(a.Addr()) })
		has := func(h ipam.Held) bool { return identity.HasAddress(h.Port, a.Addr()) }
		if at < 0 || slices.ContainsFunc(ports, has) {
			continue
		}
		h, ok, err := s.IPAM.HeldAt(ctx, subnets[at].ID, a.Addr())
		if err != nil {
			return nil, err
		}
		if ok {
			ports = append(ports, h)
			continue
		}
		p, found, err := s.PortAt(ctx, subnets[at].ID, a.Addr())
		if err != nil {
			return nil, err
		}
		if !found {
			continue
		}
		h = ipam.Held{Port: p, Existing: !s.Names.Ours(p.Meta, identity.KindPort, identity.KindEndpoint)}
		r, ok := s.address.Holder(nodeClaim(subnets[at].Pool, a.Addr()))
		if ok && r.Phase == reconcile.Wanted && r.Spec.Port == p.ID {
			h.Ref, h.Shared = s.address.Ref(r.Key), true
		}
		ports = append(ports, h)
	}
	return ports, nil
}

// Merge makes one port of those of an endpoint of two families. The others are deleted
// first, since an address has one port. The manager goes on to hold all addresses.
func (s *Service) Merge(ctx context.Context, ports []ipam.Held) (ipam.Held, error) {
	if !slices.ContainsFunc(ports, func(h ipam.Held) bool { return s.isNodes(h.Ref) }) {
		return s.IPAM.Merge(ctx, ports)
	}
	var rows []reconcile.Row[address, none]
	for _, h := range ports {
		at := strings.TrimPrefix(h.Ref, s.address.Ref(""))
		r, ok := s.address.Get(at)
		if !ok || r.Phase != reconcile.Wanted {
			return ipam.Held{}, identity.InUse(h.Port)
		}
		rows = append(rows, r)
	}
	q := reconcile.Request[address]{Key: rows[0].Key, Spec: rows[0].Spec, Owners: rows[0].Owners}
	for _, r := range rows[1:] {
		q.Spec.Merge = append(q.Spec.Merge, r.Spec.Port)
		q.Spec.Claims = append(q.Spec.Claims, r.Spec.Claims...)
		// From here until the Set an address has no row. The engine has no answer then,
		// and releases it.
		if err := s.address.Forget(ctx, r.Key); err != nil {
			return ipam.Held{}, err
		}
	}
	q.Claims = q.Spec.Claims
	if _, err := s.address.Set(ctx, q); err != nil {
		return ipam.Held{}, err
	}
	p, err := s.SDN.Port(ctx, q.Spec.Port)
	return ipam.Held{Ref: s.address.Ref(q.Key), Port: p, Shared: true}, err
}

// Deleting reports whether a row of docker/ipam is being deleted. A port that the manager
// may hold is always given back by its endpoint.
func (s *Service) Deleting(ref string) bool { return !s.isNodes(ref) && s.IPAM.Deleting(ref) }

// isNodes reports whether a row is of an address that a manager took for this node.
func (s *Service) isNodes(ref string) bool { return strings.HasPrefix(ref, s.address.Ref("")) }

// YieldMAC takes a MAC from a port that waits for the release of its manager: it has the
// MAC of an endpoint that is gone.
func (s *Service) YieldMAC(ctx context.Context, network sdn.ID, mac net.HardwareAddr) (bool, error) {
	query := sdn.PortQuery{Networks: []sdn.ID{network}, MACs: []net.HardwareAddr{mac}}
	p, found, err := sdn.First(s.SDN.FindPorts(ctx, query))
	if err != nil || !found || p.DeviceID != "" || len(heldBy(p)) == 0 {
		return false, err
	}
	random := uuid.New()
	other := net.HardwareAddr(random[10:16])
	other[0] = other[0]&^1 | 2 // unicast, locally administered
	patch := sdn.PortPatch{Patch: sdn.Patch{IfRevision: p.Revision}, MAC: other}
	_, err = s.SDN.UpdatePort(ctx, p.ID, patch)
	return err == nil, err
}

// releaseByNode releases an address of a node. What a manager holds stays. An endpoint
// that has it is one whose DeleteEndpoint was lost.
func (s *Service) releaseByNode(ctx context.Context, pool sdn.ID, a netip.Addr) error {
	claim := nodeClaim(pool, a)
	if r, ok := s.address.Holder(claim); ok {
		if len(r.Spec.Claims) > 1 && r.Phase == reconcile.Wanted {
			// The port has the address of another family, too: it stays until that is
			// released.
			left := r.Spec
			left.Claims = slices.DeleteFunc(slices.Clone(left.Claims), func(c string) bool { return c == claim })
			_, err := s.address.Set(ctx, reconcile.Request[address]{
				Key: r.Key, Spec: left, Claims: left.Claims, Owners: r.Owners,
			})
			return err
		}
		return s.Queued(ctx, s.address.RemoveTree(ctx, r.Key))
	}
	if ours, err := s.IPAM.ReleaseIn(ctx, pool, "", a); ours || err != nil {
		return err
	}
	row := reconcile.Row[address, none]{
		Object: reconcile.Object{Key: s.Names.Nonce()}, Claims: []string{claim},
		Spec: address{Pool: pool, Addr: a, Claims: []string{claim}, Released: time.Now()},
	}
	look, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	subnet, p, err := s.lookUp(look, pool, a)
	switch {
	case unavailable(err):
		return free(ctx, s, s.address, row)
	case err != nil || p.ID == "" || p.Host != "" && p.Host != s.Host:
		return err
	case len(heldBy(p)) > 0 && p.DeviceID == "":
		return nil
	}
	ours, err := s.IPAM.ReleaseIn(ctx, pool, subnet.ID, a)
	if ours || err != nil || !s.Names.Ours(p.Meta, identity.KindPort) {
		return err
	}
	row.Spec.Port = p.ID
	return free(ctx, s, s.address, row)
}

type addressTarget struct{ *Service }

// Ensure implements reconcile.Target: it merges ports.
func (t addressTarget) Ensure(ctx context.Context, _ reconcile.Object, spec address, _ none) (none, error) {
	if len(spec.Merge) == 0 {
		return none{}, nil
	}
	p, err := t.SDN.Port(ctx, spec.Port)
	if err != nil {
		return none{}, identity.Outcome(err, false)
	}
	addresses, tags := slices.Clone(p.Addresses), p.Tags
	for _, id := range spec.Merge {
		other, err := t.SDN.Port(ctx, id)
		if sdn.IsNotFound(err) {
			continue // an earlier attempt has merged it
		}
		if err == nil && other.DeviceID != "" {
			err = identity.InUse(other)
		}
		if err == nil {
			err = t.SDN.DeletePort(ctx, id, other.Revision)
		}
		if err != nil {
			return none{}, identity.Outcome(err, true)
		}
		addresses, tags = append(addresses, other.Addresses...), identity.WithAll(tags, heldBy(other)...)
	}
	if len(addresses) == len(p.Addresses) {
		return none{}, nil
	}
	patch := sdn.PortPatch{Patch: sdn.Patch{IfRevision: p.Revision, Tags: &tags}, Addresses: &addresses}
	_, err = t.SDN.UpdatePort(ctx, p.ID, patch)
	return none{}, identity.Outcome(err, true)
}

// Delete implements reconcile.Target. The endpoint is gone by then, unless it has no row.
func (t addressTarget) Delete(ctx context.Context, _ reconcile.Object, spec address, _ none) error {
	p, found, err := sdn.Port{}, true, error(nil)
	if spec.Port != "" {
		p, err = t.SDN.Port(ctx, spec.Port)
	} else {
		// The SDN was unavailable. Since then the address may be another endpoint's.
		p, found, err = t.heldAt(ctx, spec.Pool, spec.Addr)
		found = found && !p.Created.After(spec.Released) && p.DeviceID == ""
	}
	if sdn.IsNotFound(err) || err == nil && !found {
		return reconcile.ErrAbsent
	}
	if err != nil || p.Host != "" && p.Host != t.Host {
		return err
	}
	return t.dropEndpoint(ctx, p)
}

// dropEndpoint deletes an endpoint of this host that has no row, and its port unless a
// manager holds that.
func (s *Service) dropEndpoint(ctx context.Context, p sdn.Port) error {
	if p.DeviceID != "" {
		if err := s.Binder.Unplug(ctx, p); err != nil {
			return err
		}
	}
	held := heldBy(p)
	if len(held) == 0 {
		return identity.IgnoreAbsent(s.SDN.DeletePort(ctx, p.ID, p.Revision))
	}
	if p.DeviceID == "" {
		return nil
	}
	nobody, name, tags := "", identity.UnboundPort, append(held, identity.TagPort)
	_, err := s.SDN.UpdatePort(ctx, p.ID, sdn.PortPatch{
		Patch:    sdn.Patch{IfRevision: p.Revision, Name: &name, Tags: &tags},
		DeviceID: &nobody, Host: &nobody, AllowedPairs: &[]sdn.AllowedPair{},
	})
	return identity.IgnoreAbsent(err)
}
