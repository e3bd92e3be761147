//go:build linux

package lb

import (
	"context"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/kuryr/kuryr/sdn"
)

// stale tells entries of connection tracking that lead a UDP flow elsewhere than a new one would be led. Where a flow leads is decided by its first packet, so that
// a client that never pauses would be sent to an endpoint that is gone, or to none, for ever.
type stale struct {
	frontends map[Key]*frontend
	changed   map[Key]map[netip.AddrPort]bool // their endpoints
}

// MatchConntrackFlow implements netlink.CustomConntrackFilter.
func (s stale) MatchConntrackFlow(f *netlink.ConntrackFlow) bool {
	if f.Forward.Protocol != unix.IPPROTO_UDP {
		return false
	}
	client, to, answerer := addr(f.Forward.SrcIP), addr(f.Forward.DstIP), netip.AddrPortFrom(addr(f.Reverse.SrcIP), f.Reverse.SrcPort)
	key := Key{to, sdn.UDP, f.Forward.DstPort}
	if _, changed := s.changed[key]; s.frontends[key] == nil && !changed {
		key.Addr = netip.IPv6Unspecified()
		if to.Is4() {
			key.Addr = netip.IPv4Unspecified()
		}
	}
	endpoints, changed := s.changed[key]
	led := answerer != netip.AddrPortFrom(to, key.Port)
	if !changed || !led && (s.frontends[key] == nil || addr(f.Reverse.DstIP) != client) {
		return false // one that is not led is not ours to forget, if nothing leads it now or others translate its source
	}
	return !endpoints[answerer]
}

func addr(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}

// forget has connection tracking forget what is stale of the frontends that are owed it, and then the kernel that it was owed. Connection tracking can only be searched whole, so
// that this costs by the number of flows in the namespace; only UDP frontends pay it, once for all of a call.
func (t *Table) forget(ctx context.Context) error {
	if len(t.owed) == 0 {
		return nil
	}
	s := stale{t.frontends, map[Key]map[netip.AddrPort]bool{}}
	there := map[version]bool{}
	for key := range t.owed {
		there[versionOf(key.Addr)] = true
		endpoints := map[netip.AddrPort]bool{}
		if f := t.frontends[key]; f != nil {
			for _, e := range f.slots {
				endpoints[e] = true
			}
		}
		s.changed[key] = endpoints
	}
	for _, v := range versions {
		if !there[v] {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		family := netlink.InetFamily(unix.AF_INET)
		if v == v6 {
			family = unix.AF_INET6
		}
		if _, err := t.kernel.flows.ConntrackDeleteFilters(netlink.ConntrackTable, family, s); err != nil {
			return fmt.Errorf("forget stale flows of %d frontends: %w", len(t.owed), err)
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
			t.known = false
			return err
		}
	}
	t.owed = map[Key]bool{}
	return nil
}
