package ipam

import (
	"bytes"
	"context"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/sdn"
)

type poolTarget struct{ *Service }

func (s *Service) poolKey(nonce string, spec PoolSpec) sdn.Key {
	return s.Names.PoolKey(identity.PoolName{
		Host: s.Names.Host, Space: spec.Space, Nonce: nonce, CIDR: spec.CIDR, Sub: spec.Sub,
		OfSubnet: spec.OfSubnet, OfPool: spec.OfPool,
	})
}

// tags returns the tags of a pool: that of its host, its gateway and its auxiliary addresses, which
// the previous version and an import know it by, and for the same the id of the subnet that stands for
// it, as kuryr-libnetwork has it. The default gateway needs no tag, which may cost a request.
func (t poolTarget) tags(spec PoolSpec) (tags []string) {
	if !t.SDN.Capabilities().HasTags() {
		return nil
	}
	if !t.isGlobal(spec) {
		tags = append(tags, t.Names.HostTag())
	}
	if spec.gateway() != identity.FirstHost(spec.CIDR) {
		tags = append(tags, identity.TagGateway+spec.Gateway.String())
	}
	for _, a := range spec.Aux {
		tags = append(tags, identity.TagAux+a.String())
	}
	if id := spec.Standing(); id != "" && !t.isGlobal(spec) && t.Names.Compat {
		tags = append(tags, string(id))
	}
	return tags
}

// isStaleTag reports whether a tag names a gateway or an auxiliary address that a pool had before.
func isStaleTag(spec PoolSpec, tag string) bool {
	if text, ok := strings.CutPrefix(tag, identity.TagGateway); ok {
		return text != spec.gateway().String()
	}
	text, ok := strings.CutPrefix(tag, identity.TagAux)
	return ok && !slices.ContainsFunc(spec.Aux, func(a netip.Addr) bool { return text == a.String() })
}

func (t poolTarget) isTagged(spec PoolSpec, last PoolState) bool {
	stale := func(tag string) bool { return isStaleTag(spec, tag) }
	return last.Peer || identity.HasAll(last.Tags, t.tags(spec)) && !slices.ContainsFunc(last.Tags, stale)
}

// Ensure implements reconcile.Target. Callers do not wait for tags where these are calls of their
// own.
func (t poolTarget) Ensure(
	ctx context.Context, o reconcile.Object, spec PoolSpec, last PoolState,
) (PoolState, error) {
	if last.ID != "" {
		if sdn.IsUnawaited(ctx) && !t.isTagged(spec, last) {
			return t.tag(ctx, spec, last)
		}
		return last, nil
	}
	var tags []string
	if t.SDN.Capabilities().TagsAtCreate {
		tags = t.tags(spec)
	}
	key := t.poolKey(o.Key, spec)
	isNew, _ := ctx.Value(newKey{}).(bool)
	p, err := t.SDN.EnsureSubnetPool(ctx, sdn.SubnetPoolSpec{
		Base:       sdn.Base{Key: key, Name: identity.PoolTitle(spec.CIDR), Tags: tags},
		Prefixes:   []netip.Prefix{spec.CIDR},
		DefaultLen: spec.CIDR.Bits(),
		MinLen:     spec.CIDR.Bits(),
		New:        isNew,
	})
	if err != nil {
		return PoolState{Key: key}, identity.Outcome(err, false)
	}
	return PoolState{ID: p.ID, Key: key, Project: p.Project, Tags: tags}, nil
}

// newKey is the key of a context's value: the caller of the Set has made the nonce up, so the SDN has
// no pool with it.
type newKey struct{}

func withNew(ctx context.Context) context.Context { return context.WithValue(ctx, newKey{}, true) }

func (t poolTarget) tag(ctx context.Context, spec PoolSpec, last PoolState) (PoolState, error) {
	p, err := t.SDN.SubnetPool(ctx, last.ID)
	if sdn.IsNotFound(err) {
		return last, nil // its deletion will find that
	}
	if err != nil {
		return last, err
	}
	fresh := slices.DeleteFunc(slices.Clone(p.Tags), func(tag string) bool { return isStaleTag(spec, tag) })
	if err = t.TagPool(ctx, p, identity.WithAll(fresh, t.tags(spec)...)); err == nil {
		last.Tags = t.tags(spec)
	}
	return last, err
}

// Delete implements reconcile.Target.
func (t poolTarget) Delete(ctx context.Context, o reconcile.Object, spec PoolSpec, last PoolState) error {
	if spec.Unknown {
		return t.deleteUnknown(ctx, o, last.ID)
	}
	if last.Peer {
		return t.Unmark(ctx, last.ID, "")
	}
	if last.ID != "" {
		return t.SDN.DeleteSubnetPool(ctx, last.ID)
	}
	match := identity.ByKey(last.Key)
	if last.Key.IsZero() {
		match = identity.ByKey(t.poolKey(o.Key, spec))
	}
	match.Names = []string{identity.PoolTitle(spec.CIDR)}
	p, found, err := sdn.First(t.SDN.FindSubnetPools(ctx, sdn.SubnetPoolQuery{Match: match}))
	switch {
	case err != nil:
		return err
	case !found:
		return reconcile.ErrAbsent
	}
	return t.SDN.DeleteSubnetPool(ctx, p.ID)
}

type addressTarget struct{ *Service }

// leftoverError says that a port is the object of a row that is being deleted.
type leftoverError struct{ key string }

func (e *leftoverError) Error() string { return "port of address " + e.key + " is being deleted" }

// Ensure implements reconcile.Target.
func (t addressTarget) Ensure(
	ctx context.Context, o reconcile.Object, spec AddressSpec, last AddressState,
) (AddressState, error) {
	if last.Port.ID != "" {
		return t.change(ctx, spec, last)
	}
	mac, _ := net.ParseMAC(spec.MAC)
	key := t.Names.PortKey(spec.Network, mac, o.Key)
	for _, q := range spec.Asked {
		// The port of an address that a user chose on an existing subnet mostly exists.
		if q.Addr.IsValid() && q.Unmanaged {
			if state, found, err := t.existing(ctx, byAddress(q), spec, key); found || err != nil {
				return state, err
			}
		}
	}
	ports, err := t.SDN.EnsurePorts(ctx, []sdn.PortSpec{{
		Base:        sdn.Base{Key: key, Name: identity.UnboundPort},
		Network:     spec.Network,
		MAC:         mac,
		Addresses:   wanted(spec, last.Port),
		DeviceOwner: sdn.OwnerContainer,
	}})
	if err == nil {
		return stateOf(ports[0], key), nil
	}
	// A MAC or an address that is in use, or that must not be chosen, can be that of a port which
	// exists.
	var queries []sdn.PortQuery
	reason, denied := sdn.ReasonOf(err), sdn.IsDenied(err)
	if mac != nil && (reason == sdn.MACInUse || denied) {
		queries = append(queries, sdn.PortQuery{Networks: []sdn.ID{spec.Network}, MACs: []net.HardwareAddr{mac}})
	}
	for _, q := range spec.Asked {
		if q.Addr.IsValid() && (reason == sdn.AddressInUse || denied) {
			queries = append(queries, byAddress(q))
		}
	}
	for _, q := range queries {
		if state, found, err := t.existing(ctx, q, spec, key); found || err != nil {
			return state, err
		}
	}
	return AddressState{Key: key}, identity.Outcome(err, false)
}

func byAddress(q Asked) sdn.PortQuery {
	return sdn.PortQuery{Subnets: []sdn.ID{q.Subnet}, Addresses: []netip.Addr{q.Addr}}
}

func stateOf(p sdn.Port, key sdn.Key) AddressState {
	p.Status = ""
	return AddressState{Port: p, Key: key}
}

// wanted returns the addresses that a port is to have. Those that it has are kept.
func wanted(spec AddressSpec, p sdn.Port) []sdn.Address {
	var list []sdn.Address
	for _, q := range spec.Asked {
		a := sdn.Address{Subnet: q.Subnet, Addr: q.Addr}
		if at, ok := addressOn(p, q.Subnet); ok && !q.Addr.IsValid() {
			a.Addr = at
		}
		list = append(list, a)
	}
	return list
}

// change makes the addresses of a port those of the spec.
func (t addressTarget) change(ctx context.Context, spec AddressSpec, last AddressState) (AddressState, error) {
	if last.Existing {
		return last, checkAddresses(last.Port, spec)
	}
	addresses := wanted(spec, last.Port)
	differs := func(a sdn.Address) bool { return !slices.Contains(last.Port.Addresses, a) }
	if len(addresses) == len(last.Port.Addresses) && !slices.ContainsFunc(addresses, differs) {
		return last, nil
	}
	p, err := t.SDN.UpdatePort(ctx, last.Port.ID, sdn.PortPatch{Addresses: &addresses})
	if err != nil {
		return last, identity.Outcome(err, false)
	}
	last.Port = stateOf(p, last.Key).Port
	return last, nil
}

// checkAddresses refuses an existing port that lacks an address which is asked for.
func checkAddresses(p sdn.Port, spec AddressSpec) error {
	for _, q := range spec.Asked {
		if _, ok := addressOn(p, q.Subnet); !ok || q.Addr.IsValid() && !identity.HasAddress(p, q.Addr) {
			return reconcile.Refused(api.Refuse("port %s has MAC %s, but not the address that is asked for: it has %s",
				p.ID, p.MAC, identity.Addresses(p)))
		}
	}
	return nil
}

// existing answers with a port that exists, if there is one: one of Kuryr's gets the addresses, and
// one that its user made must have them.
func (t addressTarget) existing(
	ctx context.Context, q sdn.PortQuery, spec AddressSpec, key sdn.Key,
) (state AddressState, found bool, err error) {
	p, found, err := sdn.First(t.SDN.FindPorts(ctx, q))
	if err != nil {
		return state, false, reconcile.Refused(err)
	}
	if !found {
		return state, false, nil
	}
	if !t.IsOwn(p) {
		if err := identity.Usable(p, t.Host, ""); err != nil {
			return state, true, reconcile.Refused(err)
		}
		state = stateOf(p, sdn.Key{})
		state.Existing = true
		return state, true, checkAddresses(p, spec)
	}
	if err := t.mayTake(p, spec); err != nil {
		return state, true, reconcile.Refused(err)
	}
	state, err = t.adopt(ctx, p, spec, key)
	return state, true, err
}

// mayTake refuses a port of Kuryr's that is another endpoint's, or another host's.
func (t addressTarget) mayTake(p sdn.Port, spec AddressSpec) error {
	if row, ok := t.addresses.Holder(portClaim(p.ID)); ok && row.Phase == reconcile.Deleting {
		return &leftoverError{row.Key}
	} else if ok {
		return inUse(p, spec.MAC, spec.Asked[0].Addr)
	}
	host, nonce := portNonce(p.Key)
	if row, ok := t.addresses.Get(nonce); ok && row.Phase == reconcile.Deleting {
		return &leftoverError{row.Key}
	}
	switch {
	case p.DeviceID != "" || t.isManagers(p):
		return inUse(p, spec.MAC, spec.Asked[0].Addr)
	case !p.Key.IsZero() && (spec.MAC != p.MAC.String() || host != "" && host != t.Names.Host):
		return api.Refuse("address %s is in use", identity.Addresses(p))
	}
	return nil
}

// portNonce returns the host and the key of the row in the Key of a port. Earlier versions have no
// host there.
func portNonce(key sdn.Key) (host, nonce string) {
	parts := strings.Split(key.Name, "/")
	if key.Kind != identity.KindPort || len(parts) < 2 {
		return "", ""
	}
	if len(parts) > 3 { // HOST/STORE/NETWORK[/MAC]/NONCE
		host = parts[0]
	}
	return host, parts[len(parts)-1]
}

// adopt gives addresses to a port that has no row, and a Key if kuryr-libnetwork made it.
func (t addressTarget) adopt(ctx context.Context, p sdn.Port, spec AddressSpec, key sdn.Key) (AddressState, error) {
	patch := sdn.PortPatch{Patch: sdn.Patch{IfRevision: p.Revision}}
	mac, _ := net.ParseMAC(spec.MAC)
	if p.Key.IsZero() {
		patch.Key = &key
		if mac != nil && !bytes.Equal(mac, p.MAC) {
			patch.MAC = mac
		}
	} else {
		key = p.Key
	}
	addresses := slices.Clone(p.Addresses)
	for _, a := range wanted(spec, p) {
		if !slices.Contains(addresses, a) {
			addresses = slices.DeleteFunc(addresses, func(has sdn.Address) bool { return has.Subnet == a.Subnet })
			addresses = append(addresses, a)
			patch.Addresses = &addresses
		}
	}
	if patch.Key == nil && patch.Addresses == nil {
		return stateOf(p, key), nil
	}
	adopted, err := t.SDN.UpdatePort(ctx, p.ID, patch)
	if sdn.ReasonOf(err) == sdn.Stale {
		return AddressState{}, reconcile.Refused(api.RefuseFor(err, "%s", identity.InUse(p)))
	}
	if err != nil {
		return AddressState{}, identity.Outcome(err, false)
	}
	return stateOf(adopted, key), nil
}

// Delete implements reconcile.Target. A row without a Key is of a record or of kuryr-libnetwork, so
// the port is asked whose it is.
func (t addressTarget) Delete(ctx context.Context, o reconcile.Object, spec AddressSpec, last AddressState) error {
	if last.Existing {
		return nil
	}
	if last.Port.ID != "" && last.Key.IsZero() {
		p, err := t.SDN.Port(ctx, last.Port.ID)
		if sdn.IsNotFound(err) || err == nil && !t.IsOwn(p) {
			return nil
		}
		if err != nil {
			return err
		}
		return t.SDN.DeletePort(ctx, p.ID, p.Revision)
	}
	if last.Port.ID != "" {
		return t.SDN.DeletePort(ctx, last.Port.ID, 0)
	}
	match := identity.ByKey(last.Key)
	if last.Key.IsZero() {
		mac, _ := net.ParseMAC(spec.MAC)
		match = identity.ByKey(t.Names.PortKey(spec.Network, mac, o.Key))
	}
	p, found, err := sdn.First(t.SDN.FindPorts(ctx, sdn.PortQuery{Match: match}))
	if err != nil {
		return err
	}
	if !found {
		return reconcile.ErrAbsent
	}
	if row, ok := t.addresses.Holder(portClaim(p.ID)); ok && row.Key != o.Key || p.DeviceID != "" {
		return nil // another row or an endpoint has it
	}
	return t.SDN.DeletePort(ctx, p.ID, p.Revision)
}
