//go:build linux

package router

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kuryr/kuryr/datapath/nft"
)

// flow tells UDP flows by what the client calls and by who answers.
type flow struct {
	to       netip.Addr // unspecified: any address
	port     uint16
	answerer netip.Addr
	from     uint16 // the answerer's port; 0: any
}

// MatchConntrackFlow implements netlink.CustomConntrackFilter.
func (w flow) MatchConntrackFlow(f *netlink.ConntrackFlow) bool {
	return f.Forward.Protocol == unix.IPPROTO_UDP && f.Forward.DstPort == w.port && same(f.Reverse.SrcIP, w.answerer) &&
		(w.to.IsUnspecified() || same(f.Forward.DstIP, w.to)) && (w.from == 0 || f.Reverse.SrcPort == w.from)
}

func same(ip net.IP, a netip.Addr) bool {
	have, ok := netip.AddrFromSlice(ip)
	return ok && have.Unmap() == a
}

// forgetFlows makes connection tracking forget UDP flows to a port that changed hands:
// where a flow leads is decided by its first packet, so a client that never pauses would
// be sent to where the port led before, for ever. None but those of the forwarding is
// touched. Flows of TCP end with their connections.
//
// Connection tracking can only be searched whole, so this costs by the number of flows in
// the namespace; only UDP forwardings pay it, once for all of a call.
func (s *space) forgetFlows(four bool, flows []flow) error {
	if len(flows) == 0 {
		return nil
	}
	h, err := netlink.NewHandleAt(s.ns, unix.NETLINK_NETFILTER)
	if err != nil {
		return fmt.Errorf("connection tracking socket: %w", err)
	}
	defer h.Close()
	family := netlink.InetFamily(unix.AF_INET6)
	if four {
		family = unix.AF_INET
	}
	filters := make([]netlink.CustomConntrackFilter, len(flows))
	for i, w := range flows {
		filters[i] = w
	}
	if _, err := h.ConntrackDeleteFilters(netlink.ConntrackTable, family, filters...); err != nil {
		return fmt.Errorf("forget flows to %v: %w", flows, err)
	}
	return nil
}

// forgetForwards forgets the flows of removed forwardings in the router and in the host,
// and those to added ones that began before and so lead to the router or the host itself.
func (k *Kernel) forgetForwards(router *space, removed, added []Forward, u *Uplink) error {
	host, err := k.openHost()
	if err != nil {
		return err
	}
	defer host.close()
	for _, four := range []bool{true, false} {
		var there, here []flow
		a := u.addr(four)
		for _, w := range removed {
			if w.Protocol != unix.IPPROTO_UDP || w.Address.Is4() != four {
				continue
			}
			if !w.ofHost() {
				here = append(here, flow{to: w.Address, port: w.Port, answerer: w.To.Addr()})
			} else if a.IsValid() {
				there = append(there, w.hostFlow(a))
				here = append(here, flow{to: a, port: w.via(), answerer: w.To.Addr()})
			}
		}
		for _, w := range added {
			if w.Protocol != unix.IPPROTO_UDP || w.Address.Is4() != four || !w.ofHost() {
				continue // a packet to a floating address that leads nowhere is dropped, so there is no flow
			}
			own := []netip.Addr{w.Address}
			if w.Address.IsUnspecified() {
				var err error
				if own, err = host.ownAddrs(four); err != nil {
					return err
				}
			}
			for _, address := range own {
				there = append(there, flow{to: w.Address, port: w.Port, answerer: address})
			}
			here = append(here, flow{to: a, port: w.via(), answerer: a})
		}
		if err := errors.Join(host.forgetFlows(four, there), router.forgetFlows(four, here)); err != nil {
			return err
		}
	}
	return nil
}

// hostFlow is a flow to a published port as the host sees it.
func (w Forward) hostFlow(uplink netip.Addr) flow {
	return flow{to: w.Address, port: w.Port, answerer: uplink, from: w.via()}
}

// forgetElements is forgetForwards by what a comparison changed in a namespace's table: a
// killed run may have told the kernel of a forwarding, and not have come to its flows.
func (s *space) forgetElements(removed, added []nft.Element) error {
	for _, four := range []bool{true, false} {
		var flows []flow
		for _, e := range removed {
			if w, ok := flowOf(e, four); ok {
				flows = append(flows, w)
			}
		}
		var own []netip.Addr
		for _, e := range added {
			w, ok := flowOf(e, four)
			if !ok {
				continue
			}
			if own == nil {
				var err error
				if own, err = s.ownAddrs(four); err != nil {
					return err
				}
			}
			for _, a := range own {
				if w.to.IsUnspecified() || w.to == a {
					flows = append(flows, flow{to: w.to, port: w.port, answerer: a})
				}
			}
		}
		if err := s.forgetFlows(four, flows); err != nil {
			return err
		}
	}
	return nil
}

// flow is what an element of a map of forwardings makes of a UDP datagram; false for any
// other element.
func flowOf(e nft.Element, four bool) (w flow, ok bool) {
	version := nft.V6
	if four {
		version = nft.V4
	}
	size := version.Words() * 4
	w.to = netip.IPv6Unspecified()
	if four {
		w.to = netip.IPv4Unspecified()
	}
	key, value, v := []byte(e.Key), []byte(e.Value), version.String()
	switch e.Set {
	case setPublished + v:
	case setPublishedAt + v, setForward + v:
		if len(key) > size {
			w.to, _ = netip.AddrFromSlice(key[:size])
			key = key[size:]
		}
	default:
		return w, false
	}
	if len(key) != 8 || key[0] != unix.IPPROTO_UDP || len(value) != size+4 {
		return w, false
	}
	w.port, w.from = binary.BigEndian.Uint16(key[4:]), binary.BigEndian.Uint16(value[size:])
	w.answerer, _ = netip.AddrFromSlice(value[:size])
	return w, true
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
