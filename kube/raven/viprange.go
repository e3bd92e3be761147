package raven

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/kuryr/kuryr/sdn"
)

// vipSubnet is a subnet of the VIP network.
type vipSubnet struct {
	cidr    netip.Prefix
	gateway netip.Addr
	free    []sdn.AddressRange // that the SDN may give to what is its own: load balancers may need more addresses than their VIP
}

// planVIPs gives the subnets for the cluster's ranges of ClusterIPs. Each is larger than its range, so that the gateway and what the SDN gives away are never addresses that
// Kubernetes may give to a Service; it may choose each of its range, and a Service may ask for one. there are the subnets that the VIP network has already: one that serves stays.
// given are those that people have chosen, and others the ranges of all else.
func planVIPs(services, given, there []netip.Prefix, others []claim) (all []vipSubnet, err error) {
	services = slices.Clone(services)
	slices.SortFunc(services, netip.Prefix.Compare)
	services = slices.Compact(services)
	for _, p := range services {
		larger := func(q netip.Prefix) bool { return q.Bits() < p.Bits() && q.Contains(p.Addr()) }
		if slices.ContainsFunc(all, func(s vipSubnet) bool { return s.cidr.Overlaps(p) && s.cidr.Bits() <= p.Bits() }) {
			continue
		}
		chosen := netip.PrefixFrom(p.Addr(), p.Bits()-1).Masked()
		for _, from := range [][]netip.Prefix{there, given} { // what is there is not moved, as there may be VIPs on it
			if i := slices.IndexFunc(from, larger); i >= 0 {
				chosen = from[i]
				break
			}
		}
		for _, s := range all {
			if s.cidr.Overlaps(chosen) {
				return nil, fmt.Errorf("the services' ranges need the subnets %s and %s, which overlap: want one for both in controller.vip_subnets", s.cidr, chosen)
			}
		}
		if err := collision(append([]claim{{"the subnet for the services' range " + p.String() + ", which is larger than it,", chosen}}, others...)); err != nil {
			return nil, fmt.Errorf("%w: want other ranges, or another subnet in controller.vip_subnets", err)
		}
		all = append(all, vipSubnet{cidr: chosen})
	}
	for i := range all {
		s := &all[i]
		s.free = freeOf(s.cidr, services)
		if len(s.free) == 0 {
			return nil, fmt.Errorf("the services' ranges leave no address of their subnet %s: want a larger one in controller.vip_subnets", s.cidr)
		}
		last := &s.free[len(s.free)-1]
		s.gateway = last.Last
		if last.First == last.Last {
			s.free = s.free[:len(s.free)-1]
		} else {
			last.Last = last.Last.Prev()
		}
	}
	return all, nil
}

// freeOf are the addresses of hosts in a subnet that are in none of the ranges.
func freeOf(subnet netip.Prefix, ranges []netip.Prefix) (free []sdn.AddressRange) {
	next := subnet.Masked().Addr().Next()
	last := lastAddress(subnet)
	add := func(first, last netip.Addr) {
		if !last.Less(first) {
			free = append(free, sdn.AddressRange{First: first, Last: last})
		}
	}
	for _, p := range ranges { // which are in order
		if !subnet.Contains(p.Addr()) {
			continue
		}
		if begin := p.Masked().Addr(); next.Less(begin) {
			add(next, begin.Prev())
		}
		if end := veryLast(p).Next(); end.IsValid() && next.Less(end) {
			next = end
		}
	}
	if subnet.Contains(next) {
		add(next, last)
	}
	return free
}

// veryLast is the last address of a range, a broadcast address too.
func veryLast(p netip.Prefix) netip.Addr {
	last := lastAddress(p)
	if last.Is4() {
		return last.Next()
	}
	return last
}
