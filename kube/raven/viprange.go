package raven

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/kuryr/kuryr/kube/raven/core"
	"github.com/kuryr/kuryr/sdn"
)

// vipSubnet is a subnet of the VIP network.
type vipSubnet struct {
	cidr    netip.Prefix
	gateway netip.Addr
	free    []sdn.AddressRange // that the SDN may give to what is its own: load balancers may need more addresses than their VIP
}

// vipPlan is what the VIP network is to be.
type vipPlan struct {
	ranges  []netip.Prefix // of ClusterIPs that are served
	subnets []vipSubnet
	refused map[netip.Prefix]error // the ranges that are not, and why
}

// planVIPs plans the VIP network for the cluster's ranges of ClusterIPs, the oldest first: one that cannot be served beside those before it is refused, and changes nothing for them.
// there are the subnets that the VIP network has already: one that serves stays. given are those that people have chosen, and others the ranges of all else.
func planVIPs(services, given, there []netip.Prefix, others []core.Claim) (plan vipPlan) {
	plan.refused = map[netip.Prefix]error{}
	for _, p := range services {
		if slices.Contains(plan.ranges, p) || plan.refused[p] != nil { // it is named twice
			continue
		}
		subnets, err := subnetsForVIPs(append(slices.Clone(plan.ranges), p), given, there, others)
		for _, s := range plan.subnets {
			stays := slices.ContainsFunc(subnets, func(o vipSubnet) bool { return o.cidr == s.cidr })
			if err == nil && !stays && slices.Contains(there, s.cidr) {
				err = fmt.Errorf("its subnet would be in place of %s, where there may be Services: want another range", s.cidr)
			}
		}
		if err != nil {
			plan.refused[p] = fmt.Errorf("the services' range %s: %w", p, err)
			continue
		}
		plan.ranges, plan.subnets = append(plan.ranges, p), subnets
	}
	return plan
}

// planNodeBalanced is the plan where nodes balance: there are no subnets. A range that is in another one is served with that.
func planNodeBalanced(services []netip.Prefix, others []core.Claim) (plan vipPlan) {
	plan.refused = map[netip.Prefix]error{}
	for _, p := range services {
		if slices.ContainsFunc(plan.ranges, func(o netip.Prefix) bool { return core.Covers(o, p) }) {
			continue
		}
		if err := core.Overlap(append([]core.Claim{{What: "the services' range", Prefix: p}}, others...)); err != nil {
			plan.refused[p] = fmt.Errorf("%w: want another range", err)
			continue
		}
		plan.ranges = append(slices.DeleteFunc(plan.ranges, func(o netip.Prefix) bool { return core.Covers(p, o) }), p)
	}
	return plan
}

// subnetsForVIPs gives subnets for all of these ranges. Each is larger than its range, so that the gateway and what the SDN gives away are never addresses that
// Kubernetes may give to a Service; it may choose each of its range, and a Service may ask for one.
func subnetsForVIPs(services, given, there []netip.Prefix, others []core.Claim) (all []vipSubnet, err error) {
	slices.SortFunc(services, netip.Prefix.Compare)
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
				return nil, fmt.Errorf("the subnets %s and %s overlap: %s", s.cidr, chosen, remedy(there, s.cidr, chosen))
			}
		}
		if err := core.Overlap(append([]core.Claim{{What: "the subnet for the services' range " + p.String() + ", which is larger than it,", Prefix: chosen}}, others...)); err != nil {
			return nil, fmt.Errorf("%w: %s", err, remedy(there, chosen))
		}
		all = append(all, vipSubnet{cidr: chosen})
	}
	for i := range all {
		s := &all[i]
		s.free = freeOf(s.cidr, services)
		if len(s.free) == 0 {
			return nil, fmt.Errorf("the ranges leave no address of their subnet %s: %s", s.cidr, remedy(there, s.cidr))
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

// remedy is what helps where these subnets do not do: one that is there stays as it is.
func remedy(there []netip.Prefix, subnets ...netip.Prefix) string {
	if slices.ContainsFunc(subnets, func(p netip.Prefix) bool { return slices.Contains(there, p) }) {
		return "want another range"
	}
	return "want another range, or another subnet in controller.vip_subnets"
}

// freeOf are the addresses of hosts in a subnet that are in none of the ranges.
func freeOf(subnet netip.Prefix, ranges []netip.Prefix) (free []sdn.AddressRange) {
	next := subnet.Masked().Addr().Next()
	last := core.LastAddress(subnet)
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
	last := core.LastAddress(p)
	if last.Is4() {
		return last.Next()
	}
	return last
}
