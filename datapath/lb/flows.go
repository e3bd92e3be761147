//go:build linux

package lb

import (
	"context"
	"fmt"
	"net"
	"net/netip"

	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/kuryr/kuryr/sdn"
)

// asksAtMost is how many frontends of a family and a protocol are asked for one by one. For more, all its flows are looked through once.
const asksAtMost = 16

// stale tells entries of connection tracking that lead elsewhere than a new one would be led. Where a flow leads is decided by its first packet, so that a UDP client that never pauses would be
// sent to an endpoint that is gone, or to none, for ever. Of TCP and SCTP it is those whose first packet came before the frontend and was lost, on its way to a VIP that nobody had:
// the client's next attempts, and later connections from that port, would go the same way, and be refused when the address is there. Their connections go on until they end.
type stale struct {
	frontends map[Key]*frontend
	changed   map[Key]map[netip.AddrPort]bool // their endpoints, where flows may lead to others
	own       map[netip.Addr]bool             // the namespace's addresses, if a frontend of these changed
}

func (s stale) has(f flow) bool {
	key := Key{f.to.Addr(), f.protocol, f.to.Port()}
	if _, changed := s.changed[key]; s.frontends[key] == nil && !changed {
		key.Addr = versionOf(key.Addr).unspecified()
	}
	endpoints, changed := s.changed[key]
	if f.protocol != sdn.UDP {
		return changed && s.frontends[key] != nil && f.status&settles(f.protocol) == 0 && (!key.Addr.IsUnspecified() || s.own[f.to.Addr()])
	}
	led := f.answerer != f.to
	if !changed || !led && (s.frontends[key] == nil || f.answered.Addr() != f.client.Addr() || key.Addr.IsUnspecified() && !s.own[f.to.Addr()]) {
		return false // one that is not led is not ours to forget, if nothing leads it now, or others translate its source, or it only passes through
	}
	return !endpoints[f.answerer]
}

// addresses are those of the namespace's links.
func (t *Table) addresses() (map[netip.Addr]bool, error) {
	own := map[netip.Addr]bool{}
	err := t.config.run(func() error {
		list, err := net.InterfaceAddrs()
		for _, a := range list {
			if p, err := netip.ParsePrefix(a.String()); err == nil {
				own[p.Addr().Unmap()] = true
			}
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	return own, nil
}

func (v version) unspecified() netip.Addr {
	if v == v4 {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

// forget has connection tracking forget what is stale of the frontends that are owed it, and then the kernel that it was owed.
func (t *Table) forget(ctx context.Context) error {
	if len(t.owed) == 0 {
		return nil
	}
	s := stale{frontends: t.frontends, changed: map[Key]map[netip.AddrPort]bool{}}
	asks := map[ask][]ask{} // by what all of them have in common
	for key := range t.owed {
		all := ask{version: versionOf(key.Addr), protocol: key.Protocol}
		one := all
		one.to = netip.AddrPortFrom(key.Addr, key.Port)
		asks[all] = append(asks[all], one)
		var endpoints map[netip.AddrPort]bool
		if f := t.frontends[key]; f != nil && key.Protocol == sdn.UDP {
			endpoints = make(map[netip.AddrPort]bool, len(f.slots))
			for e := range f.reached() {
				endpoints[e] = true
			}
		}
		s.changed[key] = endpoints
		if key.Addr.IsUnspecified() && s.own == nil {
			var err error
			if s.own, err = t.addresses(); err != nil {
				return err
			}
		}
	}
	for all, list := range asks {
		if len(list) > asksAtMost {
			list = []ask{all}
		}
		for _, a := range list {
			if err := ctx.Err(); err != nil {
				return err
			}
			var found []flow
			err := t.kernel.flows.each(a, func(f flow) {
				if s.has(f) {
					found = append(found, f)
				}
			})
			if err == nil {
				err = t.kernel.flows.forget(all.version, found)
			}
			if err != nil {
				return fmt.Errorf("stale flows of %d frontends: %w", len(t.owed), err)
			}
		}
	}
	failpoint.Here("lb.flows.forgotten")
	c := &change{}
	for key, told := range t.owed {
		if told {
			c.remove = append(c.remove, key.owed())
		}
	}
	if !c.empty() {
		if err := t.kernel.commit(ctx, c); err != nil {
			t.reopen()
			return err
		}
	}
	t.owed = map[Key]bool{}
	return nil
}
