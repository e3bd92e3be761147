package neutron

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"

	"github.com/kuryr/kuryr/internal/sortslice"
	"github.com/kuryr/kuryr/internal/valid"
	"github.com/kuryr/kuryr/sdn"
	"go4.org/netipx"
)

// checkSubnet refuses what no network can have.
func checkSubnet(spec sdn.SubnetSpec) error {
	if err := valid.Base("subnet", spec.Base); err != nil {
		return err
	}
	if !spec.CIDR.IsValid() {
		if spec.Pool == "" {
			return sdn.Invalid("subnet", "cidr", "is missing, and there is no pool to cut one from")
		}
		if spec.Gateway.Addr.IsValid() || len(spec.Ranges) > 0 {
			return sdn.Invalid("subnet", "cidr", "is missing: gateway and ranges need it")
		}
		return nil
	}
	if err := valid.Prefix("subnet", "cidr", spec.CIDR); err != nil {
		return err
	}
	if spec.PrefixLen != 0 && spec.PrefixLen != spec.CIDR.Bits() {
		return sdn.Invalid("subnet", "prefix_len", "is %d, but that of the cidr is %d", spec.PrefixLen, spec.CIDR.Bits())
	}
	if err := checkGateway(spec.CIDR, spec.Gateway); err != nil {
		return err
	}
	if spec.Mode != sdn.Static && spec.CIDR.Addr().Is4() {
		return sdn.Invalid("subnet", "mode", "%s is for IPv6", spec.Mode)
	}
	if err := valid.Ranges(spec.CIDR, spec.Ranges); err != nil {
		return err
	}
	if spec.WithoutRanges && len(spec.Ranges) > 0 {
		return sdn.Invalid("subnet", "ranges", "must be empty without automatic allocation")
	}
	if err := valid.Routes("subnet", "host_routes", spec.HostRoutes); err != nil {
		return err
	}
	if err := valid.RouteFamily(spec.CIDR, spec.HostRoutes); err != nil {
		return err
	}
	if spec.CIDR.Addr().Is6() && spec.CIDR.Bits() == 127 {
		return sdn.Unsupported("subnet", "of the two addresses of %v Neutron would give out one", spec.CIDR)
	}
	if gateway := gatewayOf(spec.CIDR, spec.Gateway); gateway.IsValid() && spec.Mode == sdn.Static && spec.CIDR.Bits() >= gateway.BitLen()-1 {
		return sdn.Unsupported("subnet", "Neutron has no gateway in a range as small as %v", spec.CIDR)
	}
	if len(allocatable(spec.CIDR, gatewayOf(spec.CIDR, spec.Gateway), spec.Ranges, spec.Reserved)) == 0 && len(spec.Ranges)+len(spec.Reserved) > 0 {
		return sdn.Invalid("subnet", "ranges", "leave no address to be given out")
	}
	return nil
}

func checkGateway(cidr netip.Prefix, g sdn.Gateway) error {
	switch {
	case g.None && g.Addr.IsValid():
		return sdn.Invalid("subnet", "gateway", "is %v and none", g.Addr)
	case g.Addr.IsValid() && !cidr.Contains(g.Addr):
		return sdn.Invalid("subnet", "gateway", "%v is not inside %v", g.Addr, cidr)
	}
	return nil
}

// ensureSubnets makes, finishes or adopts the subnets of a network, in the order of the
// specs. It makes all that are missing by one request. fresh says that this very call
// made the network: then there is nothing to find, and the caller looks afterwards.
func (p *Provider) ensureSubnets(ctx context.Context, network sdn.ID, specs []sdn.SubnetSpec, fresh bool) ([]*subnetWire, error) {
	if len(specs) == 0 {
		return nil, nil
	}
	unlock, err := p.locks.lock(ctx, "subnets of "+string(network))
	if err != nil {
		return nil, err
	}
	defer unlock()
	p.cache.networks.drop(network)
	defer p.cache.networks.drop(network)
	out := make([]*subnetWire, len(specs))
	for n := 1; ; n++ {
		if !fresh || n > 1 {
			if err := p.adoptSubnets(ctx, network, specs, out); err != nil {
				return nil, err
			}
		}
		made, err := p.makeSubnets(ctx, network, specs, out)
		if err == nil && len(made) > 0 && (!fresh || n > 1) {
			err = p.settleSubnets(ctx, network, made)
		}
		switch {
		case err == nil:
			return out, p.tagSubnets(ctx, specs, out)
		case n == maxRaces || !sdn.IsConflict(err) && !sdn.IsUnavailable(err):
			return nil, err
		}
		// Either the answer was lost, or another process was at it: what is there now tells. Where it is not there the error stands, except for a
		// pair that took back both, and for what Neutron was too busy for.
		again := !slices.ContainsFunc(specs, keyless) && p.client.makeAgain(ctx, n, err)
		missing, errLook := p.missing(ctx, network, specs, out)
		if errLook != nil || missing && !isRace(err) && !again {
			return nil, err
		}
		if isRace(err) && !p.client.backoff(ctx, n, nil) {
			return nil, err
		}
	}
}

// keyless reports whether a subnet cannot be searched for.
func keyless(s sdn.SubnetSpec) bool { return s.Key.IsZero() }

// missing adopts what exists and reports whether something does not.
func (p *Provider) missing(ctx context.Context, network sdn.ID, specs []sdn.SubnetSpec, out []*subnetWire) (bool, error) {
	clear(out)
	if err := p.adoptSubnets(ctx, network, specs, out); err != nil {
		return false, err
	}
	return slices.Contains(out, nil), nil
}

// adoptSubnets finds existing subnets by their Keys, and finishes them.
func (p *Provider) adoptSubnets(ctx context.Context, network sdn.ID, specs []sdn.SubnetSpec, out []*subnetWire) error {
	keys := url.Values{}
	for i, s := range specs {
		if out[i] == nil && !s.Key.IsZero() {
			keys.Add("description", s.Key.String())
		}
	}
	if len(keys) == 0 {
		return nil
	}
	found, err := sdn.All(subnets.find(ctx, p, keys))
	if err != nil {
		return err
	}
	slices.SortFunc(found, func(a, b *subnetWire) int { return older(a.common(), b.common()) })
	for i, s := range specs {
		at := slices.IndexFunc(found, func(w *subnetWire) bool { return w.Description == s.Key.String() && w.Project == p.projectOf(s.Base) })
		if out[i] != nil || s.Key.IsZero() || at < 0 {
			continue
		}
		if out[i], err = p.finishSubnet(ctx, found[at], network, s); err != nil {
			return err
		}
	}
	return nil
}

// makeSubnets makes those that are missing by one request, all or none.
func (p *Provider) makeSubnets(ctx context.Context, network sdn.ID, specs []sdn.SubnetSpec, out []*subnetWire) (made []*subnetWire, err error) {
	var bodies []map[string]any
	var at []int
	for i, s := range specs {
		if out[i] == nil {
			body, err := p.completeSubnetBody(ctx, network, s)
			if err != nil {
				return nil, err
			}
			bodies, at = append(bodies, body), append(at, i)
		}
	}
	switch len(bodies) {
	case 0:
		return nil, nil
	case 1:
		var w *subnetWire
		w, err = subnets.create(ctx, p, bodies[0])
		made = []*subnetWire{w}
	default:
		made, err = subnets.createBulk(ctx, p.client, bodies)
	}
	if err != nil {
		return nil, p.subnetError(ctx, specs[at[0]], err)
	}
	for i, w := range made {
		out[at[i]] = w
		p.cache.subnets.put(w)
	}
	return made, nil
}

// completeSubnetBody adds the family of a subnet whose range its pool chooses, which
// Neutron requires.
func (p *Provider) completeSubnetBody(ctx context.Context, network sdn.ID, spec sdn.SubnetSpec) (map[string]any, error) {
	body := p.subnetBody(network, spec)
	if spec.CIDR.IsValid() {
		return body, nil
	}
	pool, err := cached(ctx, p, p.cache.pools, subnetPools, spec.Pool)
	if err != nil {
		return nil, err
	}
	body["ip_version"] = pool.IPVersion
	return body, nil
}

// A raceError says that a subnet was deleted because another one of its range was made
// concurrently.
type raceError struct{ error }

func (e raceError) Unwrap() error { return e.error }

func isRace(err error) bool {
	var race raceError
	return errors.As(err, &race)
}

// settleSubnets looks if the subnets just made overlap others of the network, which
// Neutron allows to concurrent requests. It decides as keepOldest does. The error after it
// has deleted one is a race.
func (p *Provider) settleSubnets(ctx context.Context, network sdn.ID, made []*subnetWire) error {
	for n := 1; ; n++ {
		all, err := sdn.All(subnets.find(ctx, p, url.Values{"network_id": {string(network)}}))
		if err != nil {
			return err
		}
		var conflict error
		wait := false
		for _, mine := range made {
			for _, other := range all {
				if !mine.cidr().Overlaps(other.cidr()) || slices.ContainsFunc(made, func(w *subnetWire) bool { return w.ID == other.ID }) {
					continue
				}
				if older(mine.common(), other.common()) < 0 && n < settleLooks {
					wait = true
					continue
				}
				p.cache.subnets.drop(sdn.ID(mine.ID))
				if err := subnets.erase(ctx, p, sdn.ID(mine.ID), 0); err != nil {
					return err
				}
				conflict = raceError{sdn.Conflict(sdn.Exists, "subnet", "cidr", "%v overlaps %v, which was made at the same time", mine.CIDR, other.CIDR)}
				break
			}
		}
		if conflict != nil || !wait {
			return conflict
		}
		if !p.client.backoff(ctx, n, nil) {
			return sdn.Conflict(sdn.Exists, "subnet", "cidr", "others that overlap are being made at the same time")
		}
	}
}

// finishSubnet changes an existing subnet to what the spec says. Tags come later.
func (p *Provider) finishSubnet(ctx context.Context, w *subnetWire, network sdn.ID, spec sdn.SubnetSpec) (*subnetWire, error) {
	now := w.decode(p.owner)
	for _, f := range []struct {
		name       string
		same       bool
		have, want any
	}{
		{"network", now.Network == network, now.Network, network},
		{"cidr", !spec.CIDR.IsValid() || spec.CIDR == now.CIDR, now.CIDR, spec.CIDR},
		{"pool", spec.Pool == "" || spec.Pool == now.Pool, now.Pool, spec.Pool},
		{"prefix_len", spec.PrefixLen == 0 || spec.PrefixLen == now.CIDR.Bits(), now.CIDR.Bits(), spec.PrefixLen},
		{"mode", spec.Mode == sdn.Static || spec.Mode == now.Mode, now.Mode, spec.Mode},
	} {
		if !f.same {
			return nil, immutable("subnet", w.ID, f.name, f.have, f.want)
		}
	}
	change := sdn.SubnetPatch{}
	body := map[string]any{}
	if err := adopt("subnet", &w.meta, spec.Base, body); err != nil {
		return nil, err
	}
	if spec.Nameservers != nil && !slices.Equal(spec.Nameservers, now.Nameservers) {
		body["dns_nameservers"] = texts(spec.Nameservers)
	}
	if spec.HostRoutes != nil && !slices.Equal(sortedRoutes(spec.HostRoutes), sortedRoutes(now.HostRoutes)) {
		body["host_routes"] = routeBodies(spec.HostRoutes)
	}
	if spec.ServiceTypes != nil && !sameSet(spec.ServiceTypes, now.ServiceTypes) {
		body["service_types"] = spec.ServiceTypes
	}
	setNot(body, "enable_dhcp", unless(nonZero(spec.NoDHCP), now.NoDHCP, is))
	if g := spec.Gateway; g.None && now.Gateway.IsValid() || g.Addr.IsValid() && g.Addr != now.Gateway {
		change.Gateway = &g
	}
	if spec.WithoutRanges {
		change.WithoutRanges = !now.WithoutRanges
	} else if len(spec.Ranges) > 0 {
		gateway := now.Gateway
		if change.Gateway != nil {
			gateway = change.Gateway.Addr
		}
		if want := allocatable(now.CIDR, gateway, spec.Ranges, spec.Reserved); !slices.Equal(want, now.Ranges) {
			change.Ranges, change.Reserved = &spec.Ranges, &spec.Reserved
		}
	} else if slices.ContainsFunc(spec.Reserved, func(a netip.Addr) bool { return inRanges(now.Ranges, a) }) {
		change.Reserved = &spec.Reserved
	}
	if err := p.repool(ctx, w, change, body); err != nil {
		return nil, err
	}
	if len(body) == 0 {
		p.cache.subnets.put(w)
		return w, nil
	}
	return p.cache.subnets.changing(now.ID, func() (*subnetWire, error) { return subnets.update(ctx, p, now.ID, 0, body) })
}

// sortedRoutes orders routes: Neutron keeps no order.
func sortedRoutes(routes []sdn.HostRoute) []sdn.HostRoute {
	return sortslice.Sorted(routes, func(a, b sdn.HostRoute) int {
		if c := a.Destination.Addr().Compare(b.Destination.Addr()); c != 0 {
			return c
		}
		if c := a.Destination.Bits() - b.Destination.Bits(); c != 0 {
			return c
		}
		return a.NextHop.Compare(b.NextHop)
	})
}

// repool puts into body what a change of gateway, ranges or reserved addresses means for
// the allocation pools. Reserved addresses are holes in them. Neutron does not know why:
// they stay holes until the ranges are written again.
func (p *Provider) repool(ctx context.Context, w *subnetWire, change sdn.SubnetPatch, body map[string]any) error {
	now := w.decode(p.owner)
	gateway := now.Gateway
	delete(body, "gateway_ip") // of a round before
	delete(body, "allocation_pools")
	if change.Gateway != nil {
		if err := checkGateway(now.CIDR, *change.Gateway); err != nil {
			return err
		}
		if gateway = gatewayOf(now.CIDR, *change.Gateway); gateway == now.Gateway {
			change.Gateway = nil
		}
	}
	if change.WithoutRanges {
		body["allocation_pools"] = []rangeWire{}
	}
	if change.Gateway == nil && change.Ranges == nil && change.Reserved == nil {
		return nil
	}
	ranges := now.Ranges
	if change.Ranges != nil {
		if err := valid.Ranges(now.CIDR, *change.Ranges); err != nil {
			return err
		}
		ranges = *change.Ranges
		if len(ranges) == 0 {
			ranges = []sdn.AddressRange{whole(now.CIDR)}
		}
	} else if change.Gateway != nil && now.Gateway.IsValid() && touches(ranges, now.Gateway) {
		ranges = append(slices.Clone(ranges), sdn.AddressRange{First: now.Gateway, Last: now.Gateway})
	}
	var reserved []netip.Addr
	if change.Reserved != nil {
		reserved = *change.Reserved
	}
	if change.Gateway != nil {
		if gateway.IsValid() {
			if err := p.freeForGateway(ctx, now, gateway); err != nil {
				return err
			}
			body["gateway_ip"] = gateway.String()
		} else {
			body["gateway_ip"] = nil
		}
	}
	switch pools := allocatable(now.CIDR, gateway, ranges, reserved); {
	case change.WithoutRanges, now.WithoutRanges && change.Ranges == nil:
	case !slices.Equal(pools, now.Ranges):
		body["allocation_pools"] = rangeBodies(pools)
	}
	return nil
}

// freeForGateway refuses an address of a port that is no router's interface: Neutron does not.
func (p *Provider) freeForGateway(ctx context.Context, s sdn.Subnet, a netip.Addr) error {
	filter := url.Values{
		"fixed_ips": {"subnet_id=" + string(s.ID), "ip_address=" + a.String()},
		"fields":    {"id", "device_owner"},
	}
	for port, err := range portParts.find(ctx, p, filter) {
		if err != nil {
			return err
		}
		if port.Owner != sdn.OwnerRouterInterface {
			return sdn.Conflict(sdn.AddressInUse, "subnet", "gateway", "%v is a port's", a)
		}
	}
	return nil
}

// tagSubnets writes the tags that specs have.
func (p *Provider) tagSubnets(ctx context.Context, specs []sdn.SubnetSpec, out []*subnetWire) error {
	for i, s := range specs {
		if _, err := writeTags(ctx, p, p.cache.subnets, subnets, out[i], s.Tags); err != nil {
			return fmt.Errorf("the subnet is there, its tags are not: %w", err)
		}
	}
	return nil
}

// subnetError returns the contract's error for one that only the spec explains.
func (p *Provider) subnetError(ctx context.Context, spec sdn.SubnetSpec, err error) error {
	if sdn.ReasonOf(err) != sdn.NoPrefixes || !spec.CIDR.IsValid() || spec.Pool == "" {
		return err
	}
	// A range that was asked for is either not the pool's or taken; Neutron has one error for it all.
	pool, errPool := subnetPools.read(ctx, p, spec.Pool)
	if errPool != nil {
		return err
	}
	inside := slices.ContainsFunc(pool.decode(p.owner).Prefixes, func(prefix netip.Prefix) bool {
		return prefix.Bits() <= spec.CIDR.Bits() && prefix.Contains(spec.CIDR.Addr())
	})
	if !inside {
		return sdn.Invalid("subnet", "cidr", "%v is not in the subnet pool", spec.CIDR)
	}
	return sdn.Conflict(sdn.Exists, "subnet", "cidr", "%v overlaps a subnet that was cut from the pool before", spec.CIDR)
}

// whole returns the addresses of a subnet that Neutron can allocate: of IPv4 neither the
// network's nor the broadcast address, of IPv6 not the routers' anycast address, and all
// of a range of one or two.
func whole(cidr netip.Prefix) sdn.AddressRange {
	r := sdn.AddressRange{First: cidr.Addr(), Last: netipx.PrefixLastIP(cidr)}
	if cidr.Bits() >= cidr.Addr().BitLen()-1 {
		return r
	}
	r.First = r.First.Next()
	if cidr.Addr().Is4() {
		r.Last = r.Last.Prev()
	}
	return r
}

// allocatable returns the ranges that are given out automatically, in order: those of the subnet,
// or the whole subnet if it has none, without the gateway and the reserved addresses.
func allocatable(
	cidr netip.Prefix, gateway netip.Addr, ranges []sdn.AddressRange, reserved []netip.Addr,
) (out []sdn.AddressRange) {
	if len(ranges) == 0 {
		ranges = []sdn.AddressRange{whole(cidr)}
	}
	var left netipx.IPSetBuilder
	for _, r := range ranges {
		left.AddRange(netipx.IPRangeFrom(r.First, r.Last))
	}
	for _, hole := range append(slices.Clone(reserved), gateway) {
		if hole.IsValid() {
			left.Remove(hole)
		}
	}
	set, _ := left.IPSet() // without ranges that are invalid
	for _, r := range set.Ranges() {
		out = append(out, sdn.AddressRange{First: r.From(), Last: r.To()})
	}
	return out
}

// inRanges reports whether an address is in one of the ranges. An invalid one is in none.
func inRanges(ranges []sdn.AddressRange, a netip.Addr) bool {
	return slices.ContainsFunc(ranges, func(r sdn.AddressRange) bool {
		return a.IsValid() && a.BitLen() == r.First.BitLen() && !a.Less(r.First) && !r.Last.Less(a)
	})
}

// touches reports whether an address lies right before or after a range, as a gateway
// that was left out does.
func touches(ranges []sdn.AddressRange, a netip.Addr) bool {
	return inRanges(ranges, a.Next()) || inRanges(ranges, a.Prev())
}
