package local

import (
	"net/netip"
	"reflect"

	"github.com/kuryr/kuryr/datapath/lb"
	"github.com/kuryr/kuryr/datapath/router"
	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/engine"
)

// balance is what the kernel has of one load balancer, by domain.
type balance map[string]*share

// share is a domain's: the addresses that are the load balancer's there whatever the port, and where clients connect.
type share struct {
	addresses []router.VIP
	frontends []lb.Frontend
}

// nearBalancer notes what the kernel has of a load balancer before the transaction changes what that is made of: the load balancer, its floating IPs, the
// routers of its VIPs.
func (t *tx) nearBalancer(id sdn.ID) error {
	if _, noted := t.balances[id]; noted || id == "" {
		return nil
	}
	b, err := projectBalance(t.Tx, id)
	if err != nil {
		return err
	}
	if t.balances == nil {
		t.balances = map[sdn.ID]balance{}
	}
	t.balances[id] = b
	return nil
}

// nearBalancersOf is nearBalancer for all that have VIPs on a subnet.
func (t *tx) nearBalancersOf(subnet sdn.ID) error {
	for _, id := range loadBalancers.ids(t.Tx, "subnet", string(subnet)) {
		if err := t.nearBalancer(id); err != nil {
			return err
		}
	}
	return nil
}

// rebalance compares the load balancers that the transaction came near with what they were. What has gone is noted before what has come, since an address may
// go from one of them to another.
func (t *tx) rebalance() error {
	afters := make(map[sdn.ID]balance, len(t.balances))
	for id, before := range t.balances {
		after, err := projectBalance(t.Tx, id)
		if err != nil {
			return err
		}
		afters[id] = after
		for domain, was := range before {
			c, is := t.change(sdn.ID(domain)), after.of(domain)
			noteGone(was.addresses, is.addresses, addressOf, c.vip)
			noteGone(was.frontends, is.frontends, keyOf, c.frontend)
		}
	}
	for id, after := range afters {
		for domain, is := range after {
			c, was := t.change(sdn.ID(domain)), t.balances[id].of(domain)
			noteCome(was.addresses, is.addresses, addressOf, c.vip)
			noteCome(was.frontends, is.frontends, keyOf, c.frontend)
		}
	}
	return nil
}

// of is what a domain has, which may be nothing.
func (b balance) of(domain string) *share {
	if s := b[domain]; s != nil {
		return s
	}
	return &share{}
}

func addressOf(v router.VIP) netip.Addr { return v.Addr }

func keyOf(f lb.Frontend) lb.Key { return f.Key }

// noteGone notes what of before is no longer in after.
func noteGone[T any, K comparable](before, after []T, key func(T) K, note func(old, new *T)) {
	stays := make(map[K]bool, len(after))
	for _, v := range after {
		stays[key(v)] = true
	}
	for i := range before {
		if !stays[key(before[i])] {
			note(&before[i], nil)
		}
	}
}

// noteCome notes what in after is new, or another than in before.
func noteCome[T any, K comparable](before, after []T, key func(T) K, note func(old, new *T)) {
	was := make(map[K]*T, len(before))
	for i := range before {
		was[key(before[i])] = &before[i]
	}
	for i := range after {
		if old := was[key(after[i])]; old == nil || !reflect.DeepEqual(*old, after[i]) {
			note(old, &after[i])
		}
	}
}

// projectBalance says what a load balancer means to the kernel: on the routers of its VIPs' subnets, the VIPs and the floating IPs that lead to
// them. A floating IP is one more address of the same: a packet is translated once.
func projectBalance(b engine.Tx, id sdn.ID) (balance, error) {
	r, err := loadBalancers.get(b, id)
	if err != nil || r == nil {
		return nil, err
	}
	out := balance{}
	for _, v := range r.VIPs {
		domain := string(routers.id(b, "subnet", string(v.Subnet)))
		if domain == "" {
			continue
		}
		s, err := subnets.need(b, v.Subnet)
		if err != nil {
			return nil, err
		}
		of := out[domain]
		if of == nil {
			of = &share{}
			out[domain] = of
		}
		addresses := []netip.Addr{v.Addr}
		of.addresses = append(of.addresses, router.VIP{Addr: v.Addr, Network: string(s.Network)})
		fips, err := floatingIPs.all(b, "port", string(v.Port))
		if err != nil {
			return nil, err
		}
		for _, f := range fips {
			addresses = append(addresses, f.Address)
			of.addresses = append(of.addresses, router.VIP{Addr: f.Address})
		}
		for _, l := range r.Listeners {
			for _, a := range addresses {
				of.frontends = append(of.frontends, frontend(l, a))
			}
		}
	}
	return out, nil
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
		if family(p.Addr()) == family(at) {
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
		if !m.Drain && family(m.Addr.Addr()) == family(at) {
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
		if m.Drain && family(m.Addr.Addr()) == family(at) {
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

// frontendsOf is all that a domain is to balance by now. Later changes of it come behind, and say the same once more.
func (p *Provider) frontendsOf(domain sdn.ID) (all []lb.Frontend, err error) {
	return all, p.view(func(b engine.Tx) error {
		r, err := routers.get(b, domain)
		if err != nil || r == nil {
			return err
		}
		seen := map[sdn.ID]bool{}
		for _, leg := range r.Interfaces {
			for _, id := range loadBalancers.ids(b, "subnet", string(leg.Subnet)) {
				if seen[id] {
					continue
				}
				seen[id] = true
				of, err := projectBalance(b, id)
				if err != nil {
					return err
				}
				if s := of[string(domain)]; s != nil {
					all = append(all, s.frontends...)
				}
			}
		}
		return nil
	})
}

// projectBalances gives what all load balancers are in the kernel. Its order is that of ids.
func projectBalances(b engine.Tx, s *router.State) error {
	return loadBalancers.each(b, func(r *loadBalancerRow) error {
		of, err := projectBalance(b, r.ID)
		for domain, share := range of {
			s.VIPs[domain] = append(s.VIPs[domain], share.addresses...)
			s.Frontends[domain] = append(s.Frontends[domain], share.frontends...)
		}
		return err
	})
}
