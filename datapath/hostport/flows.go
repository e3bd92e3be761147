//go:build linux

package hostport

import (
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kuryr/kuryr/sdn"
)

// flows are those to ports that lead elsewhere now, at addresses of the host.
type flows struct {
	changed []Mapping
	own     []netip.Addr
}

// MatchConntrackFlow implements netlink.CustomConntrackFilter.
func (w flows) MatchConntrackFlow(f *netlink.ConntrackFlow) bool {
	to, _ := netip.AddrFromSlice(f.Forward.DstIP)
	to = to.Unmap()
	return f.Forward.Protocol == unix.IPPROTO_UDP && slices.ContainsFunc(w.changed, func(m Mapping) bool {
		return m.Port == f.Forward.DstPort && m.To.Addr().Is4() == to.Is4() &&
			(m.face() == to || m.face().IsUnspecified() && slices.Contains(w.own, to))
	})
}

// forget has connection tracking forget UDP flows to ports that changed hands: where a
// flow leads is decided by its first packet, so that who never pauses would be sent to
// where the port led before, for ever. Flows of other protocols end by themselves.
func forget(changed []Mapping) error {
	changed = slices.DeleteFunc(changed, func(m Mapping) bool { return m.Protocol != sdn.UDP })
	if len(changed) == 0 {
		return nil
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return fmt.Errorf("addresses of the host: %w", err)
	}
	w := flows{changed: changed}
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			w.own = append(w.own, p.Addr())
		}
	}
	for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
		if _, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, family, w); err != nil {
			return fmt.Errorf("forget flows to host ports: %w", err)
		}
	}
	return nil
}
