package sdn

import (
	"net/netip"
	"slices"
)

// in tells whether v is among wanted, or nothing is wanted.
func in[T comparable](wanted []T, v T) bool { return len(wanted) == 0 || slices.Contains(wanted, v) }

// hasAll tells whether every wanted tag is there.
func hasAll(tags, wanted []string) bool {
	for _, w := range wanted {
		if !slices.Contains(tags, w) {
			return false
		}
	}
	return true
}

// equal tells whether v is what is wanted, or nothing is wanted.
func equal[T comparable](wanted *T, v T) bool { return wanted == nil || *wanted == v }

// Matches tells whether n is selected by q.
func (q NetworkQuery) Matches(n Network) bool {
	return q.Match.Matches(n.Meta) && equal(q.External, n.External) && equal(q.Shared, n.Shared)
}

// Matches tells whether s is selected by q.
func (q SubnetPoolQuery) Matches(s SubnetPool) bool {
	return q.Match.Matches(s.Meta) && equal(q.Shared, s.Shared) && equal(q.Default, s.Default) &&
		(len(q.Overlaps) == 0 || slices.ContainsFunc(s.Prefixes, func(p netip.Prefix) bool {
			return slices.ContainsFunc(q.Overlaps, p.Overlaps)
		}))
}

// Matches tells whether s is selected by q.
func (q SubnetQuery) Matches(s Subnet) bool {
	return q.Match.Matches(s.Meta) && in(q.Networks, s.Network) && in(q.Pools, s.Pool) && in(q.CIDRs, s.CIDR)
}

// Matches tells whether p is selected by q.
func (q PortQuery) Matches(p Port) bool {
	return q.Match.Matches(p.Meta) && in(q.Networks, p.Network) && in(q.Devices, p.DeviceID) &&
		in(q.DeviceOwners, p.DeviceOwner) && in(q.Hosts, p.Host) && q.matchesMAC(p) && q.matchesAddress(p) &&
		(len(q.Groups) == 0 || slices.ContainsFunc(p.Groups, func(g ID) bool { return in(q.Groups, g) }))
}

func (q PortQuery) matchesMAC(p Port) bool {
	if len(q.MACs) == 0 {
		return true
	}
	for _, m := range q.MACs {
		if m.String() == p.MAC.String() {
			return true
		}
	}
	return false
}

func (q PortQuery) matchesAddress(p Port) bool {
	if len(q.Subnets) == 0 && len(q.Addresses) == 0 {
		return true
	}
	return slices.ContainsFunc(p.Addresses, func(a Address) bool {
		return in(q.Subnets, a.Subnet) && in[netip.Addr](q.Addresses, a.Addr)
	})
}

// Matches tells whether f is selected by q.
func (q FloatingIPQuery) Matches(f FloatingIP) bool {
	return q.Match.Matches(f.Meta) && in(q.Networks, f.Network) && in(q.Addresses, f.Address) &&
		in(q.Ports, f.Target.Port) && in(q.Routers, f.Router)
}

// Matches tells whether t is selected by q.
func (q TrunkQuery) Matches(t Trunk) bool {
	return q.Match.Matches(t.Meta) && in(q.Parents, t.Parent)
}

// Matches tells whether l is selected by q.
func (q LoadBalancerQuery) Matches(l LoadBalancer) bool {
	if !q.Match.Matches(l.Meta) || len(q.Parts) > 0 && !slices.ContainsFunc(l.Parts(), func(id ID) bool { return slices.Contains(q.Parts, id) }) {
		return false
	}
	if len(q.Subnets)+len(q.Addresses)+len(q.Ports) == 0 {
		return true
	}
	return slices.ContainsFunc(l.VIPs, func(v VIP) bool { return in(q.Subnets, v.Subnet) && in(q.Addresses, v.Addr) && in(q.Ports, v.Port) })
}
