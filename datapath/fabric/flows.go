//go:build linux

package fabric

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// forgetFlows makes connection tracking forget UDP flows to a removed forwarding: a client that never pauses would keep its flow, and
// so be sent to where the forwarding led before, for ever. They are told by the port the client calls and by who answers, so no flow but those of
// the forwarding is touched. Flows of TCP end with their connections.
//
// Connection tracking can only be searched whole, so this costs by the number of flows in the namespace; only removing UDP forwardings pays it.
func (s *space) forgetFlows(port uint16, answerer netip.Addr) error {
	h, err := netlink.NewHandleAt(s.ns, unix.NETLINK_NETFILTER)
	if err != nil {
		return fmt.Errorf("connection tracking socket: %w", err)
	}
	defer h.Close()
	family := netlink.InetFamily(unix.AF_INET6)
	if answerer.Is4() {
		family = unix.AF_INET
	}
	filter := &netlink.ConntrackFilter{}
	if err := filter.AddProtocol(unix.IPPROTO_UDP); err != nil {
		return err
	}
	if err := filter.AddPort(netlink.ConntrackOrigDstPort, port); err != nil {
		return err
	}
	if err := filter.AddIP(netlink.ConntrackReplySrcIP, answerer.AsSlice()); err != nil {
		return err
	}
	if _, err := h.ConntrackDeleteFilters(netlink.ConntrackTable, family, filter); err != nil {
		return fmt.Errorf("forget flows to port %d of %s: %w", port, answerer, err)
	}
	return nil
}

// forgetForwards forgets the flows of removed forwardings in the router and in the host.
func forgetForwards(host, router *space, removed []Forward, u *Uplink) error {
	for _, w := range removed {
		if w.Protocol != unix.IPPROTO_UDP {
			continue
		}
		if err := router.forgetFlows(w.Port, w.To.Addr()); err != nil {
			return err
		}
		if a := u.addr(w.Address.Is4()); w.Address.IsUnspecified() && a.IsValid() {
			if err := host.forgetFlows(w.Port, a); err != nil {
				return err
			}
		}
	}
	return nil
}
