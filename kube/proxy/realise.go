package proxy

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/kuryr/kuryr/datapath/lb"
)

// Node is what of the node itself the realisation depends on.
type Node struct {
	Name  string
	Zone  string
	Addrs []netip.Addr
	// Leg is set where the node reaches pods by a port of its own in the SDN (Neutron). Pods answer whom they see by their own router, not by this node: so they must see the node.
	Leg bool
}

// realised is what a Service comes to on this node.
type realised struct {
	frontends []lb.Frontend // no two have one key
	health    uint16        // port of the health check; 0 is none
	locals    int           // ready endpoints on this node, for the health check
	cut       []string      // frontends with more endpoints than there can be, a line each
}

// target is an endpoint with the port that a Service's port leads to.
type target struct {
	netip.AddrPort
	state state
	zones []string
}

// realise is the whole of what the node has to do for a Service with these slices. A nil Service is nothing.
func (r Rules) realise(s *service, of []*slice, n Node) (out realised) {
	if s == nil {
		return out
	}
	out.health = s.health
	if s.health != 0 {
		out.locals = locals(of)
	}
	has := map[lb.Key]bool{}
	add := func(f lb.Frontend) {
		if has[f.Key] {
			return
		}
		has[f.Key] = true
		most := cut(&f.Endpoints)
		f.Draining = besides(f.Draining, f.Endpoints)
		if f.Inside != nil {
			most = max(most, cut(&f.Inside.Endpoints))
			f.Draining = besides(f.Draining, f.Inside.Endpoints)
		}
		if most > lb.MaxEndpoints {
			out.cut = append(out.cut, fmt.Sprintf("%s: only %d of the %d endpoints get connections by this node", f.Key, lb.MaxEndpoints, most))
		}
		out.frontends = append(out.frontends, f)
	}
	for _, cluster := range s.clusterIPs {
		for _, p := range s.ports {
			c := choose(merge(of, p, cluster.Is4()), n.Zone)
			at := func(a netip.Addr, port uint16) lb.Key { return lb.Key{Addr: a, Protocol: p.protocol, Port: port} }
			if r.ClusterIPs {
				// The SDN's router brings pods' connections to any node: one without an endpoint of its own leads them to others'.
				add(frontend(at(cluster, p.port), s.localIn && (!n.Leg || len(c.local) > 0), c, s.affinity, n))
			}
			// An address that is claimed in two ways is the load balancer's first: that may be restricted.
			for _, a := range ofFamily(s.ingress, cluster) {
				if slices.Contains(s.clusterIPs, a) { // an internal load balancer's address is the SDN's, as the ClusterIP is
					continue
				}
				add(restrict(outer(at(a, p.port), s.localOut, c, s.affinity, n), s.sources))
			}
			for _, a := range ofFamily(s.external, cluster) {
				add(outer(at(a, p.port), s.localOut, c, s.affinity, n))
			}
			if p.node != 0 {
				add(outer(at(unspecified(cluster), p.node), s.localOut, c, s.affinity, n))
			}
		}
	}
	return out
}

func frontend(k lb.Key, localOnly bool, c choice, affinity time.Duration, n Node) lb.Frontend {
	f := lb.Frontend{Key: k, Draining: c.serving, Affinity: affinity}
	chosen := c.cluster
	if localOnly {
		chosen = c.local
		if c.some {
			f.Empty = lb.Drop // whoever sends it here is to try another node, and not be told that there is no service
		}
	}
	f.Endpoints, f.Masquerade = n.ends(chosen)
	return f
}

// outer is a frontend where clients outside connect. Clients inside may, too: whatever the policy is they get any endpoint, as if they had gone out to a load balancer that knows where the endpoints are.
func outer(k lb.Key, localOnly bool, c choice, affinity time.Duration, n Node) lb.Frontend {
	f := frontend(k, localOnly, c, affinity, n)
	if localOnly && !slices.EqualFunc(c.local, c.cluster, func(x, y target) bool { return x.AddrPort == y.AddrPort }) {
		f.Inside = &lb.Inside{}
		f.Inside.Endpoints, f.Inside.Masquerade = n.ends(c.cluster)
	}
	return f
}

// ends are endpoints as the kernel is told of them, and whether they are to see the node's address.
func (n Node) ends(chosen []target) (list []netip.AddrPort, masquerade bool) {
	for _, t := range chosen {
		list = append(list, t.AddrPort)
		masquerade = masquerade || !n.hears(t)
	}
	return list, masquerade
}

// cut leaves as many endpoints as there can be, and says how many there were.
func cut(list *[]netip.AddrPort) int {
	n := len(*list)
	*list = (*list)[:min(n, lb.MaxEndpoints)]
	return n
}

// besides are those of a list that are not chosen. Both are in order.
func besides(list, chosen []netip.AddrPort) (out []netip.AddrPort) {
	for _, a := range list {
		if _, is := slices.BinarySearchFunc(chosen, a, netip.AddrPort.Compare); !is {
			out = append(out, a)
		}
	}
	return out
}

// hears tells whether an endpoint's answers to a client elsewhere come by this node: those of the node itself do, and those of its pods unless they have a router of their own.
func (n Node) hears(t target) bool {
	return slices.Contains(n.Addrs, t.Addr()) || t.state.is(local) && !n.Leg
}

// restrict lets only clients of the ranges in. Ranges of the other family alone let nobody in: they are a list of who may, and no client of this family is on it.
func restrict(f lb.Frontend, sources []netip.Prefix) lb.Frontend {
	if len(sources) == 0 {
		return f
	}
	for _, p := range sources {
		if !p.IsValid() || p.Addr().Is4() != f.Addr.Is4() {
			continue
		}
		if p.Bits() == 0 {
			f.Sources = nil
			return f
		}
		f.Sources = append(f.Sources, p)
	}
	if len(f.Sources) == 0 {
		f.Endpoints, f.Draining, f.Empty, f.Inside = nil, nil, lb.Drop, nil
	}
	return f
}

// merge are the endpoints that one port of a Service leads to. One that is in two slices, as when the controller moves it from one to the other, is one; the better state counts.
func merge(all []*slice, p servicePort, four bool) (out []target) {
	for _, s := range all {
		for _, sp := range s.ports {
			if sp.name != p.name || sp.protocol != p.protocol {
				continue
			}
			for _, e := range s.endpoints {
				if e.addr.Is4() == four {
					out = append(out, target{netip.AddrPortFrom(e.addr, sp.port), e.state, e.zones})
				}
			}
		}
	}
	slices.SortStableFunc(out, func(x, y target) int {
		if c := x.Compare(y.AddrPort); c != 0 {
			return c
		}
		return y.state.rank() - x.state.rank()
	})
	return slices.CompactFunc(out, func(x, y target) bool { return x.AddrPort == y.AddrPort })
}

// rank is higher for the better state.
func (s state) rank() int {
	switch {
	case s.is(ready):
		return 2
	case s.is(serving):
		return 1
	}
	return 0
}

// locals counts this node's ready endpoints: their addresses of the family that has more, as a pod with both is one.
func locals(all []*slice) int {
	four, six := map[netip.Addr]bool{}, map[netip.Addr]bool{}
	for _, s := range all {
		for _, e := range s.endpoints {
			switch {
			case !e.state.is(ready | local):
			case e.addr.Is4():
				four[e.addr] = true
			default:
				six[e.addr] = true
			}
		}
	}
	return max(len(four), len(six))
}

func ofFamily(all []netip.Addr, like netip.Addr) (out []netip.Addr) {
	for _, a := range all {
		if a.Is4() == like.Is4() {
			out = append(out, a)
		}
	}
	return out
}

func unspecified(like netip.Addr) netip.Addr {
	if like.Is4() {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}
