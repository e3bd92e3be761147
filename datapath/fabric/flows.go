//go:build linux

package fabric

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// forgetFlows makes connection tracking forget UDP flows to a port that changed hands: where a flow leads is decided by its first packet, so a
// client that never pauses would be sent to where the port led before, for ever. Flows are told by the port the client calls and by who
// answers, so none but those of the forwarding is touched. Flows of TCP end with their connections.
//
// Connection tracking can only be searched whole, so this costs by the number of flows in the namespace; only UDP forwardings pay it.
func (s *space) forgetFlows(port uint16, four bool, answerers ...netip.Addr) error {
	h, err := netlink.NewHandleAt(s.ns, unix.NETLINK_NETFILTER)
	if err != nil {
		return fmt.Errorf("connection tracking socket: %w", err)
	}
	defer h.Close()
	family := netlink.InetFamily(unix.AF_INET6)
	if four {
		family = unix.AF_INET
	}
	var filters []netlink.CustomConntrackFilter
	for _, answerer := range answerers {
		filter := &netlink.ConntrackFilter{}
		if err := errors.Join(filter.AddProtocol(unix.IPPROTO_UDP), filter.AddPort(netlink.ConntrackOrigDstPort, port), filter.AddIP(netlink.ConntrackReplySrcIP, answerer.AsSlice())); err != nil {
			return err
		}
		filters = append(filters, filter)
	}
	if _, err := h.ConntrackDeleteFilters(netlink.ConntrackTable, family, filters...); err != nil {
		return fmt.Errorf("forget flows to port %d of %v: %w", port, answerers, err)
	}
	return nil
}

// forgetForwards forgets the flows of removed forwardings in the router and in the host, and those to added ones that began before and so lead to
// the router or the host itself.
func forgetForwards(host, router *space, removed, added []Forward, u *Uplink) error {
	for _, w := range removed {
		if w.Protocol != unix.IPPROTO_UDP {
			continue
		}
		four := w.Address.Is4()
		if err := router.forgetFlows(w.Port, four, w.To.Addr()); err != nil {
			return err
		}
		if a := u.addr(four); w.Address.IsUnspecified() && a.IsValid() {
			if err := host.forgetFlows(w.Port, four, a); err != nil {
				return err
			}
		}
	}
	for _, w := range added {
		if w.Protocol != unix.IPPROTO_UDP || !w.Address.IsUnspecified() {
			continue // a packet to a floating address that leads nowhere is dropped, so there is no flow
		}
		four := w.Address.Is4()
		own, err := host.ownAddrs(four)
		if err != nil {
			return err
		}
		if err := host.forgetFlows(w.Port, four, own...); err != nil {
			return err
		}
		if err := router.forgetFlows(w.Port, four, u.addr(four)); err != nil {
			return err
		}
	}
	return nil
}

// ownAddrs are the namespace's addresses of a family, each once.
func (s *space) ownAddrs(four bool) ([]netip.Addr, error) {
	byLink, err := s.addrs()
	if err != nil {
		return nil, err
	}
	var list []netip.Addr
	for _, addrs := range byLink {
		for _, text := range addrs {
			if p, err := netip.ParsePrefix(text); err == nil && p.Addr().Is4() == four {
				list = append(list, p.Addr())
			}
		}
	}
	slices.SortFunc(list, netip.Addr.Compare)
	return slices.Compact(list), nil
}
