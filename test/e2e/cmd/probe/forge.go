//go:build linux

package main

import (
	"encoding/binary"
	"flag"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// forge sends one frame whose every address is the caller's choice, by a packet socket (which needs CAP_NET_RAW).
func forge(kind string, args []string) error {
	fs := flag.NewFlagSet("forge", flag.ContinueOnError)
	dev := fs.String("dev", "eth0", "interface")
	srcMAC := fs.String("src-mac", "", "Ethernet source; the interface's own where empty")
	dstMAC := fs.String("dst-mac", "ff:ff:ff:ff:ff:ff", "Ethernet destination")
	src := fs.String("src", "", "source address (udp, ra, redirect), claimed address (arp, na)")
	dst := fs.String("dst", "", "destination address; of the one told (arp, na)")
	port := fs.Int("port", 7, "destination port (udp)")
	srcPort := fs.Int("src-port", 40000, "source port (udp)")
	vlan := fs.Int("vlan", 0, "802.1Q tag; none where 0")
	hidden := fs.Bool("hop-by-hop", false, "a hop-by-hop header before what follows the IPv6 header")
	text := fs.String("text", "forged", "content (udp)")
	if err := fs.Parse(args); err != nil {
		return err
	}
	link, err := net.InterfaceByName(*dev)
	if err != nil {
		return err
	}
	from := link.HardwareAddr
	if *srcMAC != "" {
		if from, err = net.ParseMAC(*srcMAC); err != nil {
			return err
		}
	}
	to, err := net.ParseMAC(*dstMAC)
	if err != nil {
		return err
	}
	s, err := netip.ParseAddr(*src)
	if err != nil {
		return err
	}
	d, err := netip.ParseAddr(*dst)
	if err != nil {
		return err
	}
	var etherType uint16
	var payload []byte
	switch kind {
	case "udp":
		etherType, payload = datagram(
			netip.AddrPortFrom(s, uint16(*srcPort)), netip.AddrPortFrom(d, uint16(*port)),
			[]byte(*text),
		)
	case "arp":
		etherType, payload = unix.ETH_P_ARP, arpReply(from, to, s, d)
	case "na":
		etherType, payload = unix.ETH_P_IPV6, advertisement(from, s, d)
	case "ra":
		etherType, payload = unix.ETH_P_IPV6, routerAdvertisement(from, s, d)
	case "redirect":
		etherType, payload = unix.ETH_P_IPV6, redirect(from, s, d)
	case "other":
		etherType, payload = 0x88b5, []byte(*text) // of a protocol for experiments (IEEE 802)
	default:
		return fmt.Errorf("unknown kind of frame %q", kind)
	}
	if *hidden {
		payload = behind(payload)
	}
	frame := append(append([]byte{}, to...), from...)
	if *vlan != 0 {
		frame = append(frame, 0x81, 0, byte(*vlan>>8), byte(*vlan))
	}
	frame = append(frame, byte(etherType>>8), byte(etherType))
	frame = append(frame, payload...)
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0)
	if err != nil {
		return fmt.Errorf("packet socket: %w", err)
	}
	defer unix.Close(fd)
	return unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: link.Index, Halen: 6})
}

func datagram(from, to netip.AddrPort, text []byte) (uint16, []byte) {
	src, dst := from.Addr(), to.Addr()
	udp := make([]byte, 8, 8+len(text))
	binary.BigEndian.PutUint16(udp[0:], from.Port())
	binary.BigEndian.PutUint16(udp[2:], to.Port())
	binary.BigEndian.PutUint16(udp[4:], uint16(8+len(text)))
	udp = append(udp, text...)
	binary.BigEndian.PutUint16(udp[6:], transportSum(src, dst, unix.IPPROTO_UDP, udp))
	if src.Is6() {
		return unix.ETH_P_IPV6, append(header6(src, dst, unix.IPPROTO_UDP, 64, len(udp)), udp...)
	}
	ip := make([]byte, 20)
	ip[0], ip[8], ip[9] = 0x45, 64, unix.IPPROTO_UDP
	binary.BigEndian.PutUint16(ip[2:], uint16(20+len(udp)))
	copy(ip[12:], src.AsSlice())
	copy(ip[16:], dst.AsSlice())
	binary.BigEndian.PutUint16(ip[10:], ^fold(sum(ip)))
	return unix.ETH_P_IP, append(ip, udp...)
}

// arpReply claims that src is at from (RFC 826).
func arpReply(from, to net.HardwareAddr, src, dst netip.Addr) []byte {
	p := []byte{0, 1, 8, 0, 6, 4, 0, 2}
	p = append(append(p, from...), src.AsSlice()...)
	return append(append(p, to...), dst.AsSlice()...)
}

// advertisement claims, with the override flag, that target is at from (RFC 4861 section 4.4).
func advertisement(from net.HardwareAddr, target, dst netip.Addr) []byte {
	p := []byte{136, 0, 0, 0, 0x20, 0, 0, 0}
	p = append(p, target.AsSlice()...)
	p = append(append(p, 2, 1), from...)
	binary.BigEndian.PutUint16(p[2:], transportSum(target, dst, unix.IPPROTO_ICMPV6, p))
	return append(header6(target, dst, unix.IPPROTO_ICMPV6, 255, len(p)), p...)
}

func header6(src, dst netip.Addr, next, hops byte, length int) []byte {
	h := make([]byte, 8, 40)
	h[0], h[6], h[7] = 0x60, next, hops
	binary.BigEndian.PutUint16(h[4:], uint16(length))
	return append(append(h, src.AsSlice()...), dst.AsSlice()...)
}

// transportSum is the checksum over the pseudo header and segment, whose own checksum field must be zero.
func transportSum(src, dst netip.Addr, proto byte, segment []byte) uint16 {
	total := sum(src.AsSlice()) + sum(dst.AsSlice()) + uint32(proto) + uint32(len(segment)) + sum(segment)
	if v := ^fold(total); v != 0 {
		return v
	}
	return 0xffff
}

func sum(b []byte) (total uint32) {
	for i := 0; i+1 < len(b); i += 2 {
		total += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	if len(b)%2 == 1 {
		total += uint32(b[len(b)-1]) << 8
	}
	return total
}

func fold(total uint32) uint16 {
	for total > 0xffff {
		total = total>>16 + total&0xffff
	}
	return uint16(total)
}
