//go:build linux

package router

import (
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/kuryr/kuryr/internal/nstest"
	"github.com/vishvananda/netns"
	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"
)

// wire sends and sees whole frames on a link.
type wire struct {
	t     *testing.T
	fd    int
	index int
}

func newWire(t *testing.T, ns netns.NsHandle) *wire {
	t.Helper()
	w := &wire{t: t}
	var err error
	nstest.Do(t, ns, func() {
		var link *net.Interface
		if link, err = net.InterfaceByName("eth0"); err != nil {
			return
		}
		w.index = link.Index
		if w.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, int(htons(unix.ETH_P_ALL))); err != nil {
			return
		}
		err = unix.Bind(w.fd, &unix.SockaddrLinklayer{Protocol: htons(unix.ETH_P_ALL), Ifindex: w.index})
	})
	must(t, err)
	must(t, unix.SetsockoptTimeval(w.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 20000}))
	t.Cleanup(func() { _ = unix.Close(w.fd) })
	return w
}

func htons(v uint16) uint16 { return v<<8 | v>>8 }

func (w *wire) send(frame []byte) {
	w.t.Helper()
	must(w.t, unix.Sendto(w.fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: w.index}))
}

// sends returns what sends frames, one after another.
func (w *wire) sends(frames ...[]byte) func() {
	return func() {
		w.t.Helper()
		for _, frame := range frames {
			w.send(frame)
		}
	}
}

// sees reports whether this very frame arrives before the marker that is sent after it. Both
// are sent again if the marker does not arrive, or without the frame that is wanted.
func (w *wire) sees(frame, marker []byte, want bool, send func()) (seen bool) {
	w.t.Helper()
	b := make([]byte, 2048)
	for { // what an earlier call has not read
		if _, _, err := unix.Recvfrom(w.fd, b, unix.MSG_DONTWAIT); err != nil {
			break
		}
	}
	marked := false
	nstest.Repeat(nstest.Limit, send, func(until time.Time) bool {
		for time.Now().Before(until) {
			n, _, err := unix.Recvfrom(w.fd, b, 0)
			if err != nil {
				continue
			}
			seen = seen || string(b[:n]) == string(frame)
			if string(b[:n]) == string(marker) {
				marked = true
				return seen || !want
			}
		}
		return false
	})
	if !marked {
		w.t.Error("the marker did not arrive")
	}
	return seen
}

var broadcast = net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

func ethernet(src net.HardwareAddr, kind uint16, payload []byte) []byte {
	f := append(append([]byte{}, broadcast...), src...)
	f = binary.BigEndian.AppendUint16(f, kind)
	f = append(f, payload...)
	for len(f) < 60 {
		f = append(f, 0)
	}
	return f
}

// untagged is what a packet socket shows of a frame: the kernel takes a VLAN tag off.
func untagged(frame []byte) []byte {
	if binary.BigEndian.Uint16(frame[12:]) != 0x8100 {
		return frame
	}
	return append(append([]byte{}, frame[:12]...), frame[16:]...)
}

func arpFrame(src, sender net.HardwareAddr, from, to string) []byte {
	p := append([]byte{0, 1, 8, 0, 6, 4, 0, 1}, sender...)
	p = append(p, netip.MustParseAddr(from).AsSlice()...)
	p = append(p, 0, 0, 0, 0, 0, 0)
	return ethernet(src, unix.ETH_P_ARP, append(p, netip.MustParseAddr(to).AsSlice()...))
}

func udp4(src net.HardwareAddr, from string, sport uint16) []byte {
	p := []byte{0x45, 0, 0, 28, 0, 1, 0, 0, 64, 17, 0, 0}
	p = append(append(p, netip.MustParseAddr(from).AsSlice()...), 255, 255, 255, 255)
	sum := uint32(0)
	for i := 0; i < 20; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(p[i:]))
	}
	sum = sum&0xffff + sum>>16
	binary.BigEndian.PutUint16(p[10:], ^uint16(sum+sum>>16))
	p = binary.BigEndian.AppendUint16(p, sport)
	return ethernet(src, unix.ETH_P_IP, append(p, 0x30, 0x39, 0, 8, 0, 0))
}

func ip6(src net.HardwareAddr, next byte, from string, payload []byte) []byte {
	p := []byte{0x60, 0, 0, 0, 0, byte(len(payload)), next, 255}
	p = append(append(p, netip.MustParseAddr(from).AsSlice()...), netip.MustParseAddr("ff02::1").AsSlice()...)
	return ethernet(src, unix.ETH_P_IPV6, append(p, payload...))
}

func nd(src net.HardwareAddr, kind ipv6.ICMPType, from, target string, option net.HardwareAddr) []byte {
	body := append([]byte{0, 0, 0, 0}, netip.MustParseAddr(target).AsSlice()...)
	if option != nil {
		body = append(append(body, 2, 1), option...)
	}
	m := icmp.Message{Type: kind, Body: &icmp.RawBody{Data: body}}
	b, err := m.Marshal(icmp.IPv6PseudoHeader(netip.MustParseAddr(from).AsSlice(), net.ParseIP("ff02::1")))
	if err != nil {
		panic(err)
	}
	return ip6(src, unix.IPPROTO_ICMPV6, from, b)
}

// padding is a header of destination or hop-by-hop options that says nothing.
func padding(next byte) []byte { return []byte{next, 0, 1, 4, 0, 0, 0, 0} }

func fragment(src net.HardwareAddr, next byte, from string, offset uint16, more bool,
	payload []byte) []byte {
	if more {
		offset |= 1
	}
	return ip6(src, unix.IPPROTO_FRAGMENT, from,
		append([]byte{next, 0, byte(offset >> 8), byte(offset), 0, 0, 0, 77}, payload...))
}

// quoting is an ICMPv6 error about a packet from one address to another.
func quoting(from, to string) []byte {
	m := append([]byte{1, 4, 0, 0, 0, 0, 0, 0, 0x60, 0, 0, 0, 0, 8, 17, 64},
		netip.MustParseAddr(from).AsSlice()...)
	m = append(m, netip.MustParseAddr(to).AsSlice()...)
	return append(m, 0, 1, 0, 2, 0, 8, 0, 0)
}

// icmp4 is a message that quotes a packet to an address, as errors do.
func icmp4(src net.HardwareAddr, from string, kind byte, to string) []byte {
	quoted := append([]byte{0x45, 0, 0, 28, 0, 1, 0, 0, 64, 17, 0, 0, 10, 0, 0, 9},
		netip.MustParseAddr(to).AsSlice()...)
	m := append(append([]byte{kind, 0, 0, 0, 0, 0, 0, 0}, quoted...), 0, 1, 0, 2, 0, 8, 0, 0)
	binary.BigEndian.PutUint16(m[2:], checksum(m))
	p := append([]byte{0x45, 0, 0, byte(20 + len(m)), 0, 1, 0, 0, 64, 1, 0, 0},
		netip.MustParseAddr(from).AsSlice()...)
	p = append(p, 255, 255, 255, 255)
	binary.BigEndian.PutUint16(p[10:], checksum(p))
	return ethernet(src, unix.ETH_P_IP, append(p, m...))
}

func TestGuard(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := Shape{ID: newID(), Bridges: []Bridge{bridge("10.0.0.1/24", "fd00:a::1/64")}}
	w.apply(d)
	sender := w.plug(d.ID, d.Bridges[0], "10.0.0.5", "fd00:a::5")
	receiver := w.plug(d.ID, d.Bridges[0], "10.0.0.6", "fd00:a::6")
	mac := sender.port.MAC
	vip := net.HardwareAddr{0, 0, 0x5e, 0, 1, 7}
	must(t, changePorts(context.Background(), w.f, d.ID, []Port{sender.port}, nil))
	sender.port.Allowed = []AllowedAddress{
		{Prefix: netip.MustParsePrefix("10.0.0.64/28")}, {Prefix: netip.MustParsePrefix("10.0.0.65/32")},
		{Prefix: netip.MustParsePrefix("10.0.0.99/32"), MAC: vip}, {Prefix: netip.MustParsePrefix("fd00:a::100/120")}}
	must(t, changePorts(context.Background(), w.f, d.ID, nil, []Port{sender.port}))
	w.reaches(sender.ns, "10.0.0.6", true)
	w.reaches(sender.ns, "fd00:a::6", true)

	evil := net.HardwareAddr{0x02, 0xba, 0xd0, 0, 0, 1}
	own := linkLocal(mac).String()
	out, in := newWire(t, sender.ns), newWire(t, receiver.ns)
	marker := udp4(mac, "10.0.0.5", 9)
	advertisement := nd(mac, ipv6.ICMPTypeRouterAdvertisement, own, "::", nil)[14+40:]
	frames := []struct {
		name  string
		frame []byte
		pass  bool
	}{
		{"own IPv4", udp4(mac, "10.0.0.5", 1000), true},
		{"allowed range", udp4(mac, "10.0.0.70", 1000), true},
		{"beyond the range", udp4(mac, "10.0.0.80", 1000), false},
		{"allowed MAC", udp4(vip, "10.0.0.99", 1000), true},
		{"allowed MAC, own address", udp4(vip, "10.0.0.5", 1000), false},
		{"spoofed MAC", udp4(evil, "10.0.0.5", 1000), false},
		{"spoofed address", udp4(mac, "10.0.0.6", 1000), false},
		{"DHCP server", udp4(mac, "10.0.0.5", 67), false},
		{"own ARP", arpFrame(mac, mac, "10.0.0.5", "10.0.0.200"), true},
		{"ARP probe for own", arpFrame(mac, mac, "0.0.0.0", "10.0.0.5"), true},
		{"ARP probe for another's", arpFrame(mac, mac, "0.0.0.0", "10.0.0.6"), false},
		{"ARP of allowed range", arpFrame(mac, mac, "10.0.0.70", "10.0.0.200"), true},
		{"ARP of another's address", arpFrame(mac, mac, "10.0.0.1", "10.0.0.200"), false},
		{"ARP with another's MAC inside", arpFrame(mac, evil, "10.0.0.5", "10.0.0.200"), false},
		{"ARP from another's MAC", arpFrame(evil, mac, "10.0.0.5", "10.0.0.200"), false},
		{"own IPv6", ip6(mac, 59, "fd00:a::5", nil), true},
		{"own link-local", ip6(mac, 59, own, nil), true},
		{"allowed IPv6 range", ip6(mac, 59, "fd00:a::1aa", nil), true},
		{"spoofed IPv6", ip6(mac, 59, "fd00:a::6", nil), false},
		{"spoofed MAC, IPv6", ip6(evil, 59, "fd00:a::5", nil), false},
		{"no source, no reason", ip6(mac, 59, "::", nil), false},
		{"DHCPv6 server", ip6(mac, 17, own, []byte{2, 35, 2, 34, 0, 8, 0, 1}), false},
		{"DHCPv6 client", ip6(mac, 17, own, []byte{2, 34, 2, 35, 0, 8, 0, 1}), true},
		{"own NA", nd(mac, ipv6.ICMPTypeNeighborAdvertisement, "fd00:a::5", "fd00:a::5", mac), true},
		{"own NA from link-local", nd(mac, ipv6.ICMPTypeNeighborAdvertisement, own, "fd00:a::5", mac), true},
		{"own NA without option", nd(mac, ipv6.ICMPTypeNeighborAdvertisement, "fd00:a::5", "fd00:a::5", nil), true},
		{"NA of allowed range", nd(mac, ipv6.ICMPTypeNeighborAdvertisement, "fd00:a::5", "fd00:a::1aa", mac), true},
		{"NA for another's", nd(mac, ipv6.ICMPTypeNeighborAdvertisement, "fd00:a::5", "fd00:a::6", mac), false},
		{
			"NA without option for another's",
			nd(mac, ipv6.ICMPTypeNeighborAdvertisement, "fd00:a::5", "fd00:a::6", nil), false,
		},
		{"NA with another's MAC", nd(mac, ipv6.ICMPTypeNeighborAdvertisement, "fd00:a::5", "fd00:a::5", evil), false},
		{"NA from another's address", nd(mac, ipv6.ICMPTypeNeighborAdvertisement, "fd00:a::6", "fd00:a::5", mac), false},
		{"DAD for own", nd(mac, ipv6.ICMPTypeNeighborSolicitation, "::", "fd00:a::5", nil), true},
		{"DAD for another's", nd(mac, ipv6.ICMPTypeNeighborSolicitation, "::", "fd00:a::6", nil), false},
		{"MLD report", nd(mac, ipv6.ICMPTypeVersion2MulticastListenerReport, "::", "::", nil), true},
		{"MLD report, spoofed MAC", nd(evil, ipv6.ICMPTypeVersion2MulticastListenerReport, "::", "::", nil), false},
		{"RA", nd(mac, ipv6.ICMPTypeRouterAdvertisement, own, "::", nil), false},
		{"redirect", nd(mac, ipv6.ICMPTypeRedirect, own, "::", nil), false},
		{"RA behind destination options", ip6(mac, 60, own, append(padding(58), advertisement...)),
			false},
		{"RA in an atomic fragment", fragment(mac, 58, own, 0, false, advertisement), false},
		{"RA's first fragment", fragment(mac, 58, own, 0, true, advertisement[:8]), false},
		{"first fragment with destination options alone",
			fragment(mac, 60, own, 0, true, padding(58)), false},
		{"the same behind hop-by-hop options",
			ip6(mac, 0, own, append(padding(44),
				fragment(mac, 60, own, 0, true, padding(58))[14+40:]...)), false},
		{"redirect's first fragment", fragment(mac, 58, own, 0, true,
			append([]byte{137, 0, 0, 0}, make([]byte, 36)...)), false},
		{"own NA in an atomic fragment", fragment(mac, 58, own, 0, false,
			nd(mac, ipv6.ICMPTypeNeighborAdvertisement, own, "fd00:a::5", mac)[14+40:]), false},
		{"own NA's first fragment", fragment(mac, 58, own, 0, true,
			nd(mac, ipv6.ICMPTypeNeighborAdvertisement, own, "fd00:a::5", mac)[14+40:]), false},
		{"own NS in fragments", fragment(mac, 58, own, 0, true,
			nd(mac, ipv6.ICMPTypeNeighborSolicitation, own, "fd00:a::6", mac)[14+40:]), false},
		{"DHCPv6 server behind destination options",
			ip6(mac, 60, own, append(padding(17), 2, 35, 2, 34, 0, 8, 0, 1)), false},
		{"DHCPv6 server's first fragment", fragment(mac, 17, own, 0, true,
			[]byte{2, 35, 2, 34, 0, 16, 0, 1}), false},
		{"first fragment whose datagram's header is behind the packet",
			append(fragment(mac, 17, own, 0, true, nil), 2, 34, 2, 35, 0, 16, 0, 1), false},
		{"the same behind destination options", append(fragment(mac, 60, own, 0, true, padding(17)),
			2, 34, 2, 35, 0, 16, 0, 1), false},
		{"a datagram's first fragment", fragment(mac, 17, own, 0, true,
			[]byte{2, 34, 2, 35, 0, 16, 0, 1}), true},
		{"a datagram's last fragment", fragment(mac, 17, own, 8, false, make([]byte, 8)), true},
		{"a datagram's last fragment, spoofed",
			fragment(mac, 17, "fd00:a::6", 8, false, make([]byte, 8)), false},
		{"an echo's first fragment", fragment(mac, 58, own, 0, true,
			[]byte{128, 0, 0, 0, 0, 1, 0, 1}), true},
		{"error that quotes an own address", ip6(mac, 58, own, quoting(own, "fd00:a::5")), true},
		{"error that quotes an allowed address", ip6(mac, 58, own, quoting(own, "fd00:a::1aa")),
			true},
		{"error that quotes another's address", ip6(mac, 58, own, quoting(own, "fd00:a::6")),
			false},
		{"error that quotes nothing", ip6(mac, 58, own, quoting(own, "fd00:a::5")[:8]), false},
		{"error's first fragment", fragment(mac, 58, own, 0, true, quoting(own, "fd00:a::5")[:8]),
			false},
		{"IPv4 error that quotes an own address", icmp4(mac, "10.0.0.5", 3, "10.0.0.5"), true},
		{"IPv4 error that quotes an allowed address", icmp4(mac, "10.0.0.5", 11, "10.0.0.70"),
			true},
		{"IPv4 error that quotes another's address", icmp4(mac, "10.0.0.5", 3, "10.0.0.6"), false},
		{"IPv4 redirect of another's packet", icmp4(mac, "10.0.0.5", 5, "10.0.0.6"), false},
		{"IPv4 echo", icmp4(mac, "10.0.0.5", 8, "10.0.0.6"), true},
		{"other ethertype", ethernet(mac, 0x88cc, make([]byte, 46)), false},
		{"VLAN tag", ethernet(mac, 0x8100, append([]byte{0, 1, 8, 0}, udp4(mac, "10.0.0.5", 1000)[14:]...)), false},
	}
	for _, f := range frames {
		if got := in.sees(untagged(f.frame), marker, f.pass, out.sends(f.frame, marker)); got != f.pass {
			t.Errorf("%s: passed %v, want %v", f.name, got, f.pass)
		}
	}
	listing := w.sh(w.router(d.ID), "timeout 10 nft list ruleset")
	if !strings.Contains(listing, TapName(sender.port.ID)) {
		t.Errorf("nft does not name the port:\n%s", listing)
	}
	if testing.Verbose() {
		t.Log(listing)
	}

	// without guard, the same frames pass, so each was dropped by the guard alone
	for range 2 {
		must(
			t,
			changePorts(context.Background(), w.f, d.ID, []Port{sender.port}, []Port{{
				ID: sender.port.ID, Network: sender.port.Network, MAC: mac,
			}}),
		)
	}
	for _, f := range frames {
		if !f.pass {
			if !in.sees(untagged(f.frame), marker, true, out.sends(f.frame, marker)) {
				t.Errorf("%s: dropped though the port has no guard", f.name)
			}
		}
	}
	for range 2 {
		must(
			t,
			changePorts(
				context.Background(), w.f, d.ID, []Port{{ID: sender.port.ID, MAC: mac}, sender.port, receiver.port},
				nil,
			),
		)
	}
	if listing := w.sh(w.router(d.ID), "nft list ruleset"); strings.Contains(listing, "elements") {
		t.Errorf("elements left:\n%s", listing)
	}
}

// TestGuardLearning sends, with a neighbour's MAC, what no chain of the guard sees.
func TestGuardLearning(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := Shape{ID: newID(), Bridges: []Bridge{bridge("10.0.0.1/24")}}
	w.apply(d)
	evil, victim := w.plug(d.ID, d.Bridges[0], "10.0.0.5"), w.plug(d.ID, d.Bridges[0], "10.0.0.6")
	from, to := newWire(t, evil.ns), newWire(t, victim.ns)
	learned := func() bool {
		frame, marker := ethernet(victim.port.MAC, 0x88cc, nil), udp4(evil.port.MAC, "10.0.0.5", 9)
		copy(frame, []byte{0x01, 0x80, 0xc2, 0, 0, 0x0e}) // LLDP
		if to.sees(frame, marker, false, from.sends(frame, marker)) {
			t.Error("the frame went to another port")
		}
		return strings.Contains(w.sh(w.router(d.ID), "bridge fdb show dev "+TapName(evil.port.ID)), victim.port.MAC.String())
	}
	if learned() {
		t.Error("the bridge leads a port's traffic to another")
	}
	// a bridge of an earlier version is mended
	w.sh(w.router(d.ID), "ip link set "+BridgeName(d.Bridges[0].Network)+" type bridge no_linklocal_learn 0")
	// The neighbour takes its MAC back with whatever it sends in between.
	taught := false
	for range 3 {
		taught = taught || learned()
	}
	if !taught {
		t.Error("the frame teaches the bridge nothing without the switch, so this test proves nothing")
	}
	w.apply(d)
	_, _ = w.try(w.router(d.ID), "bridge fdb del "+victim.port.MAC.String()+" dev "+TapName(evil.port.ID)+" master")
	if learned() {
		t.Error("not mended")
	}
}
