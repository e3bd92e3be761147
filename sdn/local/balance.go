package local

import (
	"net/netip"
	"time"

	"github.com/kuryr/kuryr/datapath/lb"
	"github.com/kuryr/kuryr/datapath/router"
	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/engine"
)

// defaultAffinity is how long a client keeps its member where nobody says, as Kubernetes has it.
const defaultAffinity = 3 * time.Hour

// eachBalance calls f with what a load balancer means to the data path: on the routers of the subnets of
// its VIPs, the VIPs and the floating IPs that lead to them. A floating IP is one more address of the
// same: a packet is translated once.
func eachBalance(b engine.Tx, r *engine.LoadBalancerRow, f func(domain sdn.ID, at balance)) error {
	for _, v := range r.VIPs {
		domain := engine.Routers.ID(b, "subnet", string(v.Subnet))
		if domain == "" || engine.RouterDown(b, domain) {
			continue
		}
		s, err := engine.Subnets.Need(b, v.Subnet)
		if err != nil {
			return err
		}
		if engine.NetworkDown(b, s.Network) {
			continue
		}
		vips := []router.VIP{{Addr: v.Addr, Network: string(s.Network)}}
		fips, err := engine.FloatingIPs.All(b, "port", string(v.Port))
		if err != nil {
			return err
		}
		if down, err := engine.UplinkDown(b, domain); err != nil {
			return err
		} else if down {
			fips = nil
		}
		for _, fip := range fips {
			vips = append(vips, router.VIP{Addr: fip.Address})
		}
		for _, vip := range vips {
			at := balance{vip: vip}
			for _, l := range r.Listeners {
				at.frontends = append(at.frontends, frontend(l, vip.Addr))
			}
			f(domain, at)
		}
	}
	return nil
}

// projectBalance returns what a domain balances at the address of a part; nil for nothing, and then the
// domain where the part's load balancer has the address, if any. Another's may have the same elsewhere.
func projectBalance(b engine.Tx, domain sdn.ID, k partKey) (found *balance, elsewhere sdn.ID, err error) {
	found, elsewhere, err = balanceOf(b, domain, k.id, k.addr)
	if found != nil || err != nil {
		return found, "", err
	}
	others, err := balancersAt(b, domain, k.addr)
	for _, id := range others {
		if found, _, err := balanceOf(b, domain, id, k.addr); found != nil || err != nil {
			return found, "", err
		}
	}
	return nil, elsewhere, err
}

// balanceOf returns what a load balancer is at an address in a domain; nil for nothing, and then the domain
// where it has the address, if any.
func balanceOf(b engine.Tx, domain, balancer sdn.ID, addr netip.Addr) (found *balance, elsewhere sdn.ID, err error) {
	r, err := engine.LoadBalancers.Get(b, balancer)
	if r == nil {
		return nil, "", err
	}
	err = eachBalance(b, r, func(of sdn.ID, at balance) {
		switch {
		case at.vip.Addr != addr:
		case of == domain:
			found = &at
		default:
			elsewhere = of
		}
	})
	return found, elsewhere, err
}

// balancersAt returns the load balancers that may have an address on a router: as a VIP on one of its subnets,
// or as a floating IP.
func balancersAt(b engine.Tx, router sdn.ID, addr netip.Addr) (ids []sdn.ID, err error) {
	r, err := engine.Routers.Get(b, router)
	if r == nil {
		return nil, err
	}
	for _, leg := range r.Interfaces {
		port, err := engine.Ports.By(b, "address", engine.AddrKey(leg.Subnet, addr))
		if err != nil {
			return nil, err
		}
		if port != nil && port.Balancer() != "" {
			ids = append(ids, port.Balancer())
		}
	}
	for _, network := range engine.Networks.IDs(b, "external", "x") {
		f, err := engine.FloatingIPs.By(b, "address", engine.AddrKey(network, addr))
		if err != nil {
			return nil, err
		}
		if f != nil && f.Balancer != "" {
			ids = append(ids, f.Balancer)
		}
	}
	return ids, nil
}

// frontend is a listener at one address.
func frontend(l sdn.Listener, at netip.Addr) lb.Frontend {
	f := lb.Frontend{Key: lb.Key{Addr: at, Protocol: l.Protocol, Port: l.Port}, Endpoints: endpoints(l.Pool.Members, at), Draining: draining(l.Pool.Members, at)}
	switch a := l.Pool.Affinity; {
	case a.ClientIP && a.Timeout > 0:
		f.Affinity = a.Timeout
	case a.ClientIP || l.Pool.Algorithm == sdn.SourceIP:
		f.Affinity = defaultAffinity
	}
	for _, p := range l.Sources {
		if p.Addr().BitLen() == at.BitLen() {
			f.Sources = append(f.Sources, p)
		}
	}
	if len(l.Sources) > 0 && f.Sources == nil {
		f.Sources = []netip.Prefix{netip.PrefixFrom(nobody(at), at.BitLen())} // no source at all would be everyone
	}
	return f
}

// nobody is an address that no client has.
func nobody(of netip.Addr) netip.Addr {
	if of.Is4() {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

// endpoints are the members that get new connections, each as often as its share is.
func endpoints(members []sdn.Member, at netip.Addr) []netip.AddrPort {
	var open []sdn.Member
	for _, m := range members {
		if !m.Drain && m.Addr.Addr().BitLen() == at.BitLen() {
			open = append(open, m)
		}
	}
	shares := shares(open)
	var list []netip.AddrPort
	for i, m := range open {
		for range shares[i] {
			list = append(list, m.Addr)
		}
	}
	return list
}

// draining are the members that get no new connections and keep those that they have.
func draining(members []sdn.Member, at netip.Addr) (list []netip.AddrPort) {
	for _, m := range members {
		if m.Drain && m.Addr.Addr().BitLen() == at.BitLen() {
			list = append(list, m.Addr)
		}
	}
	return list
}

// mostShares bounds how many places a pool has in the kernel for the sake of weights.
const mostShares = 1 << 10

// shares are how many places each member has: in the proportion of their weights, as exactly as there is room.
func shares(members []sdn.Member) []int {
	out := make([]int, len(members))
	divisor, sum := 0, 0
	for i, m := range members {
		out[i] = max(m.Weight, 1)
		divisor = gcd(divisor, out[i])
		sum += out[i]
	}
	if divisor == 0 {
		return out
	}
	sum /= divisor
	room := min(max(mostShares, len(members)), 2*(lb.MaxEndpoints-len(members))) // half of it, and a place for each, is what the kernel holds at most
	for i := range out {
		if out[i] /= divisor; sum > room {
			out[i] = max(1, out[i]*room/(2*sum))
		}
	}
	return out
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// projectBalances gives what all load balancers are in the kernel. Its order is that of ids.
func projectBalances(b engine.Tx, s *router.State) error {
	return engine.LoadBalancers.Each(b, func(r *engine.LoadBalancerRow) error {
		return eachBalance(b, r, func(domain sdn.ID, at balance) {
			id := string(domain)
			s.VIPs[id] = append(s.VIPs[id], at.vip)
			s.Frontends[id] = append(s.Frontends[id], at.frontends...)
		})
	})
}
