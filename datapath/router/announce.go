//go:build linux

package router

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// mostAnnounced bounds the frames of one call, since each goes to everyone on the
// network. More addresses at once are a pool of ports, which will get their containers
// later.
const mostAnnounced = 64

// announce makes the networks of ports forget at what MACs their addresses were before:
// an address that is given anew, to a container that was restarted for one, would else be
// unreachable until its neighbours doubt what they knew, half a minute or so. Few engines
// make a container announce itself (Docker does from 28 on). The router forgets what it
// knew; the others on the network are told, by frames as the container itself would send,
// which change no one's mind who does not know the address.
//
// It comes before the port's link, as a rule, which is early enough: who asks then has no
// answer, and asks again.
func (s *space) announce(ports []Port) error {
	frames := map[int][][]byte{} // by bridge
	bridges := map[string]int{}
	for _, p := range ports {
		index, known := bridges[p.Network]
		if !known {
			link, err := s.link(BridgeName(p.Network))
			if err != nil {
				return err
			}
			if link != nil {
				index = link.Attrs().Index
			}
			bridges[p.Network] = index
		}
		if index == 0 || len(p.MAC) != 6 {
			continue // a network that is yet to be made knows no one
		}
		for _, a := range p.Addrs {
			a = a.Unmap().WithZone("")
			family := unix.AF_INET
			if a.Is6() {
				family = unix.AF_INET6
			}
			if err := s.rt.NeighDel(&netlink.Neigh{
				LinkIndex: index, Family: family, IP: a.AsSlice(),
			}); ignore(err, unix.ENOENT) != nil {
				return fmt.Errorf("forget neighbour %s: %w", a, err)
			}
			frames[index] = append(frames[index], announcement(p.MAC, a))
		}
	}
	total := 0
	for _, list := range frames {
		total += len(list)
	}
	if total == 0 || total > mostAnnounced {
		return nil
	}
	return s.do(func() error {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("packet socket: %w", err)
		}
		// The kernel closes such a socket only once no processor can be using it, some
		// milliseconds later.
		defer func() { go func() { _ = unix.Close(fd) }() }()
		for index, list := range frames {
			for _, frame := range list {
				to := &unix.SockaddrLinklayer{Ifindex: index, Halen: 6}
				copy(to.Addr[:], frame[:6])
				if err := ignore(unix.Sendto(fd, frame, 0, to), unix.ENETDOWN, unix.ENXIO, unix.ENODEV); err != nil {
					return fmt.Errorf("announce: %w", err)
				}
			}
		}
		return nil
	})
}

// moved are the ports with those of their addresses that had another MAC before, or no port.
func moved(remove, add []Port) (list []Port) {
	for _, p := range add {
		p.Addrs = slices.DeleteFunc(slices.Clone(p.Addrs), func(a netip.Addr) bool {
			return slices.ContainsFunc(remove, func(old Port) bool {
				return old.Network == p.Network && bytes.Equal(old.MAC, p.MAC) && slices.Contains(old.Addrs, a)
			})
		})
		if len(p.Addrs) > 0 {
			list = append(list, p)
		}
	}
	return list
}

// announcement is an ARP announcement (RFC 5227 section 2.3) or an unsolicited neighbour
// advertisement (RFC 4861 section 7.2.6).
func announcement(mac []byte, a netip.Addr) []byte {
	if a.Is4() {
		frame := slices.Concat(bytes.Repeat([]byte{0xff}, 6), mac, []byte{0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 1})
		return slices.Concat(frame, mac, a.AsSlice(), make([]byte, 6), a.AsSlice())
	}
	const icmp6, override = 58, 0x20
	all := netip.MustParseAddr("ff02::1").AsSlice()
	message := slices.Concat([]byte{136, 0, 0, 0, override, 0, 0, 0}, a.AsSlice(), []byte{2, 1}, mac)
	pseudo := slices.Concat(a.AsSlice(), all, []byte{0, 0, 0, byte(len(message)), 0, 0, 0, icmp6}, message)
	var sum uint32
	for i := 0; i < len(pseudo); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(pseudo[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(message[2:], ^uint16(sum))
	header := []byte{0x33, 0x33, 0, 0, 0, 1}
	header = slices.Concat(header, mac, []byte{0x86, 0xdd, 0x60, 0, 0, 0, 0, byte(len(message)), icmp6, 255})
	return slices.Concat(header, a.AsSlice(), all, message)
}
