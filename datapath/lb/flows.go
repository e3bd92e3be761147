//go:build linux

package lb

import (
	"context"
	"fmt"
	"net"
	"net/netip"

	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/kuryr/kuryr/sdn"

	"github.com/kuryr/kuryr/datapath/nft"
)

// asksAtMost is how many frontends are asked for one by one. For more, all UDP flows of
// the family are looked through once.
const asksAtMost = 16

// stale tells entries of connection tracking that lead a UDP flow elsewhere than a new
// one would be led, and to no endpoint that drains. Where a flow leads is decided by its
// first packet, so that a client that never pauses would be sent to an endpoint that is
// gone, or to none, for ever. A flow does not tell by which link its client came: one of
// a client outside, to an endpoint that only clients inside still have, is taken for one
// of theirs and not forgotten.
type stale struct {
	frontends map[Key]*frontend
	changed   map[Key]map[netip.AddrPort]bool // their endpoints, those that drain among them
	own       map[netip.Addr]bool             // the namespace's addresses, if a frontend of these changed
}

func (s stale) has(f flow) bool {
	if f.protocol != sdn.UDP {
		return false
	}
	key := Key{f.to.Addr(), sdn.UDP, f.to.Port()}
	if _, changed := s.changed[key]; s.frontends[key] == nil && !changed {
		key.Addr = unspecified(nft.VersionOf(key.Addr))
	}
	endpoints, changed := s.changed[key]
	led := f.answerer != f.to
	if !changed || !led &&
		(s.frontends[key] == nil || f.answered.Addr() != f.client.Addr() || key.Addr.IsUnspecified() && !s.own[f.to.Addr()]) {
		// one that is not led is not ours to forget, if nothing leads it now, or others
		// translate its source, or it only passes through
		return false
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

func unspecified(v nft.Version) netip.Addr {
	if v == nft.V4 {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

// forget has connection tracking forget what is stale of the frontends that wait for it,
// and then the kernel that it waited. Only UDP frontends pay for it.
func (t *Table) forget(ctx context.Context) error {
	if len(t.owed) == 0 {
		return nil
	}
	s := stale{frontends: t.frontends, changed: map[Key]map[netip.AddrPort]bool{}}
	asks := map[nft.Version][]ask{}
	for key := range t.owed {
		v := nft.VersionOf(key.Addr)
		asks[v] = append(asks[v], ask{v, sdn.UDP, netip.AddrPortFrom(key.Addr, key.Port)})
		s.changed[key] = t.frontends[key].keeps()
		if key.Addr.IsUnspecified() && s.own == nil {
			var err error
			if s.own, err = t.addresses(); err != nil {
				return err
			}
		}
	}
	for v, list := range asks {
		if len(list) > asksAtMost {
			list = []ask{{Version: v, protocol: sdn.UDP}}
		}
		for _, a := range list {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := t.kernel.flows.forgetThose(a, s.has); err != nil {
				return fmt.Errorf("stale flows of %d frontends: %w", len(t.owed), err)
			}
		}
	}
	failpoint.Here("lb.flows.forgotten")
	c := &change{}
	for key, told := range t.owed {
		if told {
			c.remove = append(c.remove, key.cleanup())
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
