package engine

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"slices"

	"github.com/kuryr/kuryr/internal/valid"
	"github.com/kuryr/kuryr/sdn"
)

var errNoCIDR = sdn.Invalid("subnet", "cidr", "is missing, and there is no pool to take one from")

func (e *Engine) showSubnet(_ Tx, r *subnetRow) (sdn.Subnet, error) {
	e.fillMeta(&r.Meta)
	return r.Subnet, nil
}

// EnsureSubnet makes, finishes or adopts a subnet.
func (e *Engine) EnsureSubnet(ctx context.Context, spec sdn.SubnetSpec) (sdn.Subnet, error) {
	return only(e.EnsureAllSubnets(ctx, []sdn.SubnetSpec{spec}))
}

func (t *tx) ensureSubnet(spec sdn.SubnetSpec) (*subnetRow, error) {
	if err := checkSubnet(spec); err != nil {
		return nil, err
	}
	r, err := Subnets.ensured(t, spec.Base)
	if err != nil {
		return nil, err
	}
	if r != nil {
		return r, t.adoptSubnet(r, spec)
	}
	n, err := Networks.Need(t.Tx, spec.Network)
	if err != nil {
		return nil, err
	}
	if n.ID == t.e.external {
		return nil, builtIn("network", n.ID)
	}
	return t.makeSubnet(n, spec)
}

// makeSubnet makes a subnet of n.
func (t *tx) makeSubnet(n *NetworkRow, spec sdn.SubnetSpec) (*subnetRow, error) {
	if !spec.CIDR.IsValid() && spec.Pool == "" {
		return nil, errNoCIDR
	}
	r := &subnetRow{sdn.Subnet{
		Meta: newMeta(spec.Base), Network: n.ID, CIDR: spec.CIDR, Pool: spec.Pool, Ranges: spec.Ranges, Reserved: spec.Reserved,
		Mode: spec.Mode, NoDHCP: spec.NoDHCP, Nameservers: spec.Nameservers, HostRoutes: spec.HostRoutes,
		WithoutRanges: spec.WithoutRanges, ServiceTypes: spec.ServiceTypes,
	}}
	var err error
	if spec.Pool != "" {
		if r.CIDR, err = t.cutPrefix(spec.Pool, spec.Project, spec.CIDR, spec.PrefixLen); err != nil {
			return nil, err
		}
	}
	if err := valid.Ranges(r.CIDR, r.Ranges); err != nil {
		return nil, err
	}
	if err := valid.RouteFamily(r.CIDR, r.HostRoutes); err != nil {
		return nil, err
	}
	if r.Gateway, err = gatewayOf(r.CIDR, spec.Gateway); err != nil {
		return nil, err
	}
	if r.CIDR.Addr().Is6() && n.MTU < leastMTUv6 {
		return nil, sdn.Invalid("subnet", "cidr", "%v is IPv6 and needs an MTU of %d; its network has %d", r.CIDR, leastMTUv6, n.MTU)
	}
	scope, err := scopeOf(t.Tx, r)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(t.checkOverlap(n, r.CIDR), t.checkNetworkScope(n, r.CIDR, scope)); err != nil {
		return nil, err
	}
	if err := buildAddressing(t.Tx, &r.Subnet, nil); err != nil {
		return nil, err
	}
	if err := Subnets.put(t, r); err != nil {
		return nil, err
	}
	n.Subnets = append(n.Subnets, r.ID)
	return r, Networks.put(t, n)
}

// checkOverlap keeps ranges apart: those of one network, and those of all external networks, which lead to one host.
func (t *tx) checkOverlap(n *NetworkRow, cidr netip.Prefix) error {
	near := []*NetworkRow{n}
	if n.External {
		others, err := Networks.All(t.Tx, "external", "x")
		if err != nil {
			return err
		}
		near = append(near, others...)
	}
	return t.checkApart(n, near, cidr)
}

// checkApart refuses a range for n that overlaps a subnet of these networks.
func (t *tx) checkApart(n *NetworkRow, near []*NetworkRow, cidr netip.Prefix) error {
	for _, other := range near {
		for _, id := range other.Subnets {
			s, err := Subnets.Need(t.Tx, id)
			if err != nil {
				return err
			}
			if s.CIDR.Overlaps(cidr) {
				return sdn.Conflict(sdn.Exists, "subnet", "cidr", "%v overlaps %v of %s", cidr, s.CIDR, whose(other, n))
			}
		}
	}
	return nil
}

func whose(other, n *NetworkRow) string {
	if other.ID == n.ID {
		return "the same network"
	}
	return "another external network"
}

// checkSubnet checks what can be said without the store.
func checkSubnet(spec sdn.SubnetSpec) error {
	err := errors.Join(valid.Base("subnet", spec.Base), checkWithoutRanges(spec.WithoutRanges, spec.Ranges))
	if err != nil {
		return err
	}
	if spec.CIDR.IsValid() {
		if err := valid.Prefix("subnet", "cidr", spec.CIDR); err != nil {
			return err
		}
		if first := spec.CIDR.Addr(); first.IsMulticast() || first.IsLoopback() || first.IsLinkLocalUnicast() && first.Is6() || spec.CIDR.Bits() == 0 {
			return sdn.Invalid("subnet", "cidr", "%v is no range of unicast addresses that can be routed", spec.CIDR)
		}
		if spec.PrefixLen != 0 && spec.PrefixLen != spec.CIDR.Bits() {
			return sdn.Invalid("subnet", "prefix_len", "is %d, but the CIDR is %v", spec.PrefixLen, spec.CIDR)
		}
		if err := valid.Ranges(spec.CIDR, spec.Ranges); err != nil {
			return err
		}
		if _, err := gatewayOf(spec.CIDR, spec.Gateway); err != nil {
			return err
		}
	} else if spec.Pool == "" && spec.Key.IsZero() {
		return errNoCIDR
	}
	switch spec.Mode {
	case sdn.Static:
	case sdn.Stateful, sdn.Stateless, sdn.SLAAC:
		return &sdn.Error{Kind: sdn.KindUnsupported, Noun: "subnet", Field: "mode", Detail: "this SDN has static addresses only"}
	default:
		return sdn.Invalid("subnet", "mode", "%q is none", spec.Mode)
	}
	return errors.Join(checkServiceTypes(spec.ServiceTypes),
		checkSubnetLists(spec.Reserved, spec.Nameservers, spec.HostRoutes))
}

func checkServiceTypes(types []string) error {
	for i, owner := range types {
		field := fmt.Sprintf("service_types[%d]", i)
		if owner == "" || slices.Contains(types[:i], owner) {
			return sdn.Invalid("subnet", field, "%q is empty or there twice", owner)
		}
		if err := valid.Text("subnet", field, owner); err != nil {
			return err
		}
	}
	return nil
}

// checkWithoutRanges refuses ranges of a subnet that is to have none.
func checkWithoutRanges(without bool, ranges []sdn.AddressRange) error {
	if without && len(ranges) > 0 {
		return sdn.Invalid("subnet", "ranges", "must be empty without automatic allocation")
	}
	return nil
}

func checkSubnetLists(reserved, nameservers []netip.Addr, routes []sdn.HostRoute) error {
	for i, a := range reserved {
		if err := valid.Addr("subnet", fmt.Sprintf("reserved[%d]", i), a); err != nil {
			return err
		}
	}
	for i, a := range nameservers {
		if err := valid.Addr("subnet", fmt.Sprintf("nameservers[%d]", i), a.WithZone("")); err != nil {
			return err
		}
	}
	return valid.Routes("subnet", "host_routes", routes)
}

// gatewayOf gives the gateway address that g means for cidr; invalid for none.
func gatewayOf(cidr netip.Prefix, g sdn.Gateway) (netip.Addr, error) {
	switch {
	case g.None && g.Addr.IsValid():
		return netip.Addr{}, sdn.Invalid("subnet", "gateway", "is both none and %v", g.Addr)
	case g.None:
		return netip.Addr{}, nil
	case !g.Addr.IsValid():
		return automatic(cidr).first, nil
	case !cidr.Contains(g.Addr):
		return netip.Addr{}, sdn.Invalid("subnet", "gateway", "%v is not inside %v", g.Addr, cidr)
	case !usable(cidr).contains(g.Addr):
		return netip.Addr{}, sdn.Invalid("subnet", "gateway", "%v is the network or broadcast address of %v", g.Addr, cidr)
	}
	return g.Addr, nil
}

func (t *tx) adoptSubnet(r *subnetRow, spec sdn.SubnetSpec) error {
	switch {
	case spec.Network != "" && spec.Network != r.Network:
		return immutable("subnet", r.ID, "network", r.Network, spec.Network)
	case spec.CIDR.IsValid() && spec.CIDR != r.CIDR:
		return immutable("subnet", r.ID, "cidr", r.CIDR, spec.CIDR)
	case spec.Pool != "" && spec.Pool != r.Pool:
		return immutable("subnet", r.ID, "pool", r.Pool, spec.Pool)
	case spec.PrefixLen != 0 && spec.PrefixLen != r.CIDR.Bits():
		return immutable("subnet", r.ID, "prefix_len", r.CIDR.Bits(), spec.PrefixLen)
	case spec.Mode != "" && spec.Mode != r.Mode:
		return immutable("subnet", r.ID, "mode", r.Mode, spec.Mode)
	}
	changed, err := adopt("subnet", &r.Meta, spec.Base)
	if err != nil {
		return err
	}
	c := sdn.SubnetPatch{WithoutRanges: spec.WithoutRanges}
	if spec.Gateway != (sdn.Gateway{}) {
		c.Gateway = &spec.Gateway
	}
	if spec.NoDHCP {
		c.NoDHCP = &spec.NoDHCP
	}
	for _, l := range []struct {
		asked bool
		set   func()
	}{
		{spec.Ranges != nil && !spec.WithoutRanges, func() { c.Ranges = &spec.Ranges }},
		{spec.Reserved != nil, func() { c.Reserved = &spec.Reserved }},
		{spec.Nameservers != nil, func() { c.Nameservers = &spec.Nameservers }},
		{spec.HostRoutes != nil, func() { c.HostRoutes = &spec.HostRoutes }},
		{spec.ServiceTypes != nil, func() { c.ServiceTypes = &spec.ServiceTypes }},
	} {
		if l.asked {
			l.set()
		}
	}
	also, err := t.changeSubnet(r, c)
	if err != nil {
		return err
	}
	if also || changed {
		return Subnets.put(t, r)
	}
	return nil
}

// changeSubnet changes the row, not what every object has, and rebuilds its index of free addresses where that follows.
func (t *tx) changeSubnet(r *subnetRow, c sdn.SubnetPatch) (changed bool, err error) {
	rebuild := false
	if c.WithoutRanges && !r.WithoutRanges {
		r.Ranges, r.WithoutRanges, rebuild = nil, true, true
	}
	if c.Ranges != nil && (r.WithoutRanges || !slices.Equal(r.Ranges, *c.Ranges)) {
		if err := valid.Ranges(r.CIDR, *c.Ranges); err != nil {
			return false, err
		}
		r.Ranges, r.WithoutRanges, rebuild = *c.Ranges, false, true
	}
	if c.Reserved != nil && !slices.Equal(r.Reserved, *c.Reserved) {
		for _, a := range *c.Reserved {
			if holder := Ports.ID(t.Tx, "address", AddrKey(r.ID, a)); holder != "" && !slices.Contains(r.Reserved, a) {
				return false, sdn.Conflict(sdn.AddressInUse, "subnet", "reserved", "%v is a port's", a)
			}
		}
		r.Reserved, rebuild = *c.Reserved, true
	}
	if c.Gateway != nil {
		gateway, err := gatewayOf(r.CIDR, *c.Gateway)
		if err != nil {
			return false, err
		}
		if gateway != r.Gateway {
			if err := t.moveGateway(r, gateway); err != nil {
				return false, err
			}
			rebuild = true
		}
	}
	changed = rebuild
	if c.Nameservers != nil {
		changed = setList(&r.Nameservers, append([]netip.Addr{}, *c.Nameservers...)) || changed
	}
	if c.HostRoutes != nil {
		if err := valid.RouteFamily(r.CIDR, *c.HostRoutes); err != nil {
			return false, err
		}
		changed = setList(&r.HostRoutes, append([]sdn.HostRoute{}, *c.HostRoutes...)) || changed
	}
	if c.ServiceTypes != nil {
		changed = setList(&r.ServiceTypes, append([]string{}, *c.ServiceTypes...)) || changed
	}
	if c.NoDHCP != nil && *c.NoDHCP != r.NoDHCP {
		r.NoDHCP, changed = *c.NoDHCP, true
	}
	if rebuild {
		return true, buildAddressing(t.Tx, &r.Subnet, t.taken(r.ID))
	}
	return changed, nil
}

func (t *tx) moveGateway(r *subnetRow, gateway netip.Addr) error {
	if router, err := Routers.By(t.Tx, "subnet", string(r.ID)); err != nil {
		return err
	} else if router != nil && slices.ContainsFunc(router.Interfaces, func(leg sdn.RouterInterface) bool { return leg.Subnet == r.ID && leg.Addr == r.Gateway }) {
		return &sdn.Error{Kind: sdn.KindConflict, Reason: sdn.InUse, Noun: "subnet", ID: string(r.ID), Field: "gateway", Detail: fmt.Sprintf("a router holds %v", r.Gateway)}
	}
	if gateway.IsValid() {
		if holder := Ports.ID(t.Tx, "address", AddrKey(r.ID, gateway)); holder != "" {
			p, err := Ports.Need(t.Tx, holder)
			if err != nil {
				return err
			}
			if !p.Own || p.Balancer() != "" {
				return sdn.Conflict(sdn.AddressInUse, "subnet", "gateway", "%v is a port's", gateway)
			}
		}
	}
	r.Gateway = gateway
	return nil
}

// taken lists the addresses of a subnet that ports have, in order.
func (t *tx) taken(subnet sdn.ID) []netip.Addr {
	var out []netip.Addr
	prefix := key(string(subnet), "")
	for k := range with(t.Tx, Ports.indexTable("address"), prefix) {
		if a, ok := netip.AddrFromSlice(k[len(prefix):]); ok {
			out = append(out, a)
		}
	}
	return out
}

// Subnet gets a subnet.
func (e *Engine) Subnet(ctx context.Context, id sdn.ID) (sdn.Subnet, error) {
	return get(ctx, e, Subnets, id, e.showSubnet)
}

// FindSubnets streams subnets.
func (e *Engine) FindSubnets(ctx context.Context, q sdn.SubnetQuery) iter.Seq2[sdn.Subnet, error] {
	scans, err := e.scansOf(ctx, Subnets.Noun, q.Match, byEach("network", q.Networks), byEach("pool", q.Pools),
		byProject(q.Match))
	if err != nil {
		return broken[sdn.Subnet](err)
	}
	return search(ctx, e, Subnets, scans, e.showSubnet, q.Matches)
}

// UpdateSubnet changes a subnet.
func (e *Engine) UpdateSubnet(ctx context.Context, id sdn.ID, change sdn.SubnetPatch) (out sdn.Subnet, err error) {
	if err := valid.Patch("subnet", change.Patch); err != nil {
		return out, err
	}
	var reserved, nameservers []netip.Addr
	var routes []sdn.HostRoute
	if change.Reserved != nil {
		reserved = *change.Reserved
	}
	if change.Nameservers != nil {
		nameservers = *change.Nameservers
	}
	if change.HostRoutes != nil {
		routes = *change.HostRoutes
	}
	var ranges []sdn.AddressRange
	if change.Ranges != nil {
		ranges = *change.Ranges
	}
	if change.ServiceTypes != nil {
		if err := checkServiceTypes(*change.ServiceTypes); err != nil {
			return out, err
		}
	}
	err = errors.Join(checkWithoutRanges(change.WithoutRanges, ranges), checkSubnetLists(reserved, nameservers, routes))
	if err != nil {
		return out, err
	}
	err = e.update(ctx, func(t *tx) error {
		r, err := Subnets.Need(t.Tx, id)
		if err != nil {
			return err
		}
		if r.Network == e.external {
			return builtIn("subnet", id)
		}
		if err := Subnets.patch(t, &r.Meta, change.Patch); err != nil {
			return err
		}
		if _, err := t.changeSubnet(r, change); err != nil {
			return err
		}
		if err := Subnets.put(t, r); err != nil {
			return err
		}
		out, err = e.showSubnet(t.Tx, r)
		e.disown(ctx, &out.Meta)
		return err
	})
	return out, err
}

// DeleteSubnet deletes a subnet that no port has an address of.
func (e *Engine) DeleteSubnet(ctx context.Context, id sdn.ID) error {
	return e.release(ctx, func(t *tx) error { return t.deleteSubnet(id) })
}

func (t *tx) deleteSubnet(id sdn.ID) error {
	r, err := Subnets.Get(t.Tx, id)
	if err != nil || r == nil {
		return err
	}
	switch {
	case r.Network == t.e.external:
		return builtIn("subnet", id)
	case Ports.any(t.Tx, "address", string(id)):
		return inUse("subnet", id, "ports have addresses of it")
	}
	n, err := Networks.Need(t.Tx, r.Network)
	if err != nil {
		return err
	}
	n.Subnets = slices.DeleteFunc(n.Subnets, func(s sdn.ID) bool { return s == id })
	if err := Networks.put(t, n); err != nil {
		return err
	}
	return t.dropSubnet(id)
}

// dropSubnet deletes a subnet that nothing depends on; its network forgets it by itself.
func (t *tx) dropSubnet(id sdn.ID) error {
	r, err := Subnets.Need(t.Tx, id)
	if err != nil {
		return err
	}
	if r.Pool != "" {
		if err := t.joinPrefix(r.Pool, r.CIDR); err != nil {
			return err
		}
	}
	if err := dropIntervals(t.Tx, addressIndexes, id); err != nil {
		return err
	}
	return Subnets.del(t, id)
}

// SubnetUsage tells how full a subnet is. It does not count: counters are kept.
func (e *Engine) SubnetUsage(ctx context.Context, id sdn.ID) (out sdn.SubnetUsage, err error) {
	return get(ctx, e, Subnets, id, func(b Tx, r *subnetRow) (sdn.SubnetUsage, error) {
		ad, err := openAddressing(b, &r.Subnet)
		if err != nil {
			return sdn.SubnetUsage{}, err
		}
		return ad.usage(), nil
	})
}
