//go:build linux

package router

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kuryr/kuryr/internal/nstest"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// name answers every call on a port with the container's name and the caller's address.
func (w *world) name(ns netns.NsHandle, name string, port int) {
	w.t.Helper()
	for _, family := range []string{"4", "6"} {
		var l net.Listener
		var u net.PacketConn
		var err, uerr error
		nstest.Do(w.t, ns, func() {
			l, err = net.Listen("tcp"+family, fmt.Sprintf(":%d", port))
			u, uerr = net.ListenPacket("udp"+family, fmt.Sprintf(":%d", port))
		})
		must(w.t, err)
		must(w.t, uerr)
		w.t.Cleanup(func() { _ = l.Close(); _ = u.Close() })
		say := func(a net.Addr, _ int) string {
			host, _, _ := net.SplitHostPort(a.String())
			return name + " " + host
		}
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = c.Write([]byte(say(c.RemoteAddr(), 0)))
				_ = c.Close()
			}
		}()
		go nstest.Serve(u, say)
	}
}

func at(address string, proto uint8, port uint16, to string, via uint16) Forward {
	return Forward{netip.MustParseAddr(address), proto, port, netip.MustParseAddrPort(to), via}
}

var bothProtocols = map[string]uint8{"tcp": unix.IPPROTO_TCP, "udp": unix.IPPROTO_UDP}

// TestPublishedOnOneAddress has one port published on several addresses of the host, to
// containers of one router and of two.
func TestPublishedOnOneAddress(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := twoRouters()
	w.apply(a)
	w.apply(b)
	w.sh(
		w.host,
		"ip addr add 198.51.100.3/24 dev ext0; ip addr add 2001:db8:51::3/64 dev ext0 nodad; ip "+
			"addr add 198.51.100.4/24 dev ext0",
	)
	w.sh(w.neighbour, "ip -6 route add default via "+hostAddr6)
	one, two := w.plug(a.ID, a.Bridges[0], "10.0.0.5", "fd00:a::5"), w.plug(a.ID, a.Bridges[0], "10.0.0.6", "fd00:a::6")
	three := w.plug(b.ID, b.Bridges[0], "10.0.0.5", "fd00:a::5")
	for name, c := range map[string]container{"one": one, "two": two, "three": three} {
		w.name(c.ns, name, 80)
	}
	var inA, inB []Forward
	for _, p := range bothProtocols {
		inA = append(inA,
			at(hostAddr4, p, 8080, "10.0.0.5:80", 8080), at(hostAddr6, p, 8080, "[fd00:a::5]:80", 8080),
			at("127.0.0.1", p, 8080, "10.0.0.6:80", 40000), at("::1", p, 8080, "[fd00:a::6]:80", 40000))
		inB = append(inB, at("198.51.100.3", p, 8080, "10.0.0.5:80", 8080), at(
			"2001:db8:51::3", p, 8080, "[fd00:a::5]:80", 8080,
		),
			at("0.0.0.0", p, 8081, "10.0.0.5:80", 9), at("::", p, 8081, "[fd00:a::5]:80", 9))
	}
	ctx := context.Background()
	for range 2 {
		must(t, changeForwards(ctx, w.f, a.ID, nil, inA))
		must(t, changeForwards(ctx, w.f, b.ID, nil, inB))
	}
	state := State{
		Shapes: []Shape{a, b}, Ports: map[string][]Port{a.ID: {one.port, two.port}, b.ID: {three.port}},
		Forwards: map[string][]Forward{a.ID: inA, b.ID: inB},
	}
	w.mustMatch(state)
	check := func(when string) {
		t.Helper()
		for network := range bothProtocols {
			for _, c := range []struct {
				from netns.NsHandle
				to   string
				want string
			}{
				{w.neighbour, hostAddr4 + ":8080", "one " + neighbourAddr4},
				{w.neighbour, "[" + hostAddr6 + "]:8080", "one " + neighbourAddr6},
				{w.neighbour, "198.51.100.3:8080", "three " + neighbourAddr4},
				{w.neighbour, "[2001:db8:51::3]:8080", "three " + neighbourAddr6},
				{w.neighbour, "198.51.100.4:8080", ""},
				{w.neighbour, "198.51.100.4:8081", "three " + neighbourAddr4},
				{w.neighbour, "[" + hostAddr6 + "]:8081", "three " + neighbourAddr6},
				{w.host, hostAddr4 + ":8080", "one " + hostAddr4},
				{w.host, "127.0.0.1:8080", "two 100.64.0.1"},
				{w.host, "[::1]:8080", "two fd00:6b75::1"},
				{w.host, "[" + hostAddr6 + "]:8080", "one " + hostAddr6},
				{w.host, "127.0.0.1:8081", "three 100.64.0.1"},
				{w.host, "[::1]:8081", "three fd00:6b75::1"},
				{w.host, "198.51.100.4:8080", ""},
				{one.ns, hostAddr4 + ":8080", "one 100.64.0.1"},
				{two.ns, "[" + hostAddr6 + "]:8080", "one fd00:6b75::1"},
				{one.ns, "198.51.100.3:8080", "three 100.64.0.1"},
				{three.ns, hostAddr4 + ":8081", "three 100.64.0.1"},
			} {
				limit := nstest.Limit
				if c.want == "" {
					limit = 2 * time.Second
				}
				if got := w.answer(c.from, network, c.to, limit); got != c.want {
					t.Errorf("%s: %s %s: %q, want %q", when, network, c.to, got, c.want)
				}
			}
		}
	}
	check("published")
	a.Uplink.Addrs = []netip.Addr{netip.MustParseAddr("100.64.0.9"), netip.MustParseAddr("fd00:6b75::9")}
	w.apply(a)
	check("with other uplink addresses")
	state.Shapes[0] = a
	w.mustMatch(state)
	w.sh(w.host, "nft delete table inet kuryr; ip -6 route flush table local proto 75")
	if _, err := w.f.Reconcile(ctx, state); err != nil {
		t.Fatal(err)
	}
	check("after a reconcile")
	// A second uplink's end takes no other's way back.
	must(t, w.f.Delete(ctx, b.ID))
	if got := w.answer(w.host, "tcp", "[::1]:8080", nstest.Limit); got != "two fd00:6b75::1" {
		t.Errorf("::1 after another router went: %q", got)
	}
	if out := w.sh(
		w.host, "nft list table inet kuryr; ip -6 route show table local",
	); strings.Contains(out, "198.51.100.3") || strings.Contains(out, "8081") ||
		strings.Contains(out, UplinkName(b.ID)) {
		t.Errorf("the deleted router left in the host\n%s", out)
	}
	for range 2 {
		must(t, changeForwards(ctx, w.f, a.ID, inA, nil))
	}
	if out := w.sh(w.host, "nft list table inet kuryr"); strings.Contains(out, "8080") {
		t.Errorf("left in the host\n%s", out)
	}
	state = State{Shapes: []Shape{a}, Ports: map[string][]Port{a.ID: {one.port, two.port}}}
	w.mustMatch(state)
}

// frame is a UDP datagram in an Ethernet frame.
func frame(src, dst net.HardwareAddr, from, to netip.Addr, port uint16) []byte {
	text := []byte("?")
	udp := binary.BigEndian.AppendUint16(nil, 40000)
	udp = binary.BigEndian.AppendUint16(udp, port)
	udp = binary.BigEndian.AppendUint16(udp, uint16(8+len(text)))
	udp = append(append(udp, 0, 0), text...)
	sum := func(parts ...[]byte) uint16 {
		var total uint32
		for _, b := range parts {
			for i := 0; i < len(b); i += 2 {
				total += uint32(b[i]) << 8
				if i+1 < len(b) {
					total += uint32(b[i+1])
				}
			}
		}
		for total > 0xffff {
			total = total>>16 + total&0xffff
		}
		return ^uint16(total)
	}
	binary.BigEndian.PutUint16(udp[6:], sum(
		from.AsSlice(), to.AsSlice(), []byte{0, unix.IPPROTO_UDP, 0, byte(len(udp))}, udp,
	))
	head := slices.Concat(dst, src)
	if to.Is4() {
		ip := []byte{0x45, 0, 0, byte(20 + len(udp)), 0, 0, 0, 0, 64, unix.IPPROTO_UDP, 0, 0}
		ip = slices.Concat(ip, from.AsSlice(), to.AsSlice())
		binary.BigEndian.PutUint16(ip[10:], sum(ip))
		return slices.Concat(head, []byte{8, 0}, ip, udp)
	}
	ip := []byte{0x60, 0, 0, 0, 0, byte(len(udp)), unix.IPPROTO_UDP, 64}
	return slices.Concat(head, []byte{0x86, 0xdd}, ip, from.AsSlice(), to.AsSlice(), udp)
}

// TestLoopbackStaysLoopback has a neighbour send what only the host itself may: packets
// for 127.0.0.1 and ::1, and from them; and packets for an address that nothing is
// published on.
func TestLoopbackStaysLoopback(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, _ := twoRouters()
	w.apply(a)
	w.sh(w.host, "ip addr add 198.51.100.3/24 dev ext0; ip addr add 2001:db8:51::3/64 dev ext0 nodad")
	// As another's setup may have it: the kernel itself then takes such packets from the wire.
	w.sh(
		w.host,
		"sysctl -qw net.ipv4.conf.ext0.route_localnet=1 net.ipv4.conf.all.rp_filter=0 "+
			"net.ipv4.conf.ext0.rp_filter=0",
	)
	c := w.plug(a.ID, a.Bridges[0], "10.0.0.5", "fd00:a::5")
	must(t, changeForwards(context.Background(), w.f, a.ID, nil, []Forward{
		at("127.0.0.1", unix.IPPROTO_UDP, 53, "10.0.0.5:80", 53), at("::1", unix.IPPROTO_UDP, 53, "[fd00:a::5]:80", 53),
		at(hostAddr4, unix.IPPROTO_UDP, 54, "10.0.0.5:80", 54), at(hostAddr6, unix.IPPROTO_UDP, 54, "[fd00:a::5]:80", 54),
		at("0.0.0.0", unix.IPPROTO_UDP, 55, "10.0.0.5:80", 55), at("::", unix.IPPROTO_UDP, 55, "[fd00:a::5]:80", 55),
	}))
	got := make(chan string, 64)
	var u net.PacketConn
	var err error
	nstest.Do(t, c.ns, func() { u, err = net.ListenPacket("udp", ":80") })
	must(t, err)
	defer u.Close()
	go func() {
		b := make([]byte, 64)
		for {
			_, from, err := u.ReadFrom(b)
			if err != nil {
				return
			}
			got <- from.String()
		}
	}()
	var host, own netlink.Link
	nstest.Do(t, w.host, func() { host, err = netlink.LinkByName("ext0") })
	must(t, err)
	send := func(from, to string, port uint16) {
		t.Helper()
		nstest.Do(t, w.neighbour, func() {
			if own, err = netlink.LinkByName("eth0"); err != nil {
				return
			}
			var fd int
			if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0); err != nil {
				return
			}
			defer unix.Close(fd)
			f := frame(
				own.Attrs().HardwareAddr, host.Attrs().HardwareAddr, netip.MustParseAddr(from),
				netip.MustParseAddr(to), port,
			)
			err = unix.Sendto(fd, f, 0, &unix.SockaddrLinklayer{Ifindex: own.Attrs().Index, Halen: 6})
		})
		must(t, err)
	}
	// The control comes last and by the same way, so that what passed before it has arrived before
	// it. It is sent again if it does not come, so the first family's may come more than once.
	earlier := ""
	for _, family := range []struct{ loopback, host, other, neighbour, control string }{
		{"127.0.0.1", hostAddr4, "198.51.100.3", neighbourAddr4, "198.51.100.9"},
		{"::1", hostAddr6, "2001:db8:51::3", neighbourAddr6, "2001:db8:51::9"},
	} {
		for _, port := range []uint16{53, 55} {
			send(family.neighbour, family.loopback, port)
			send(family.loopback, family.host, port)
			send(family.loopback, family.loopback, port)
		}
		send(family.loopback, family.host, 54)
		send(family.neighbour, family.other, 54)
		send(family.neighbour, family.host, 53)
		send(family.neighbour, family.loopback, 54)
		control := netip.AddrPortFrom(netip.MustParseAddr(family.control), 40000).String()
		if !nstest.Repeat(nstest.Limit, func() { send(family.control, family.host, 54) }, func(until time.Time) bool {
			for {
				select {
				case from := <-got:
					if from == control {
						return true
					}
					if from != earlier {
						t.Errorf("a packet from %s reached the container", from)
					}
				case <-time.After(time.Until(until)):
					return false
				}
			}
		}) {
			t.Errorf("the control to %s did not arrive", family.host)
		}
		earlier = control
	}
}

// TestPublishedSCTP sends the first packet of an association, as most kernels have no
// sockets for the rest: it must come to the container, at the port within, from the
// client.
func TestPublishedSCTP(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/proc/sys/net/netfilter/nf_conntrack_sctp_timeout_closed"); err != nil {
		t.Skip("this kernel does not track SCTP:", err)
	}
	w := newWorld(t)
	a, _ := twoRouters()
	w.apply(a)
	w.sh(w.neighbour, "ip -6 route add default via "+hostAddr6)
	c := w.plug(a.ID, a.Bridges[0], "10.0.0.5", "fd00:a::5")
	must(t, changeForwards(context.Background(), w.f, a.ID, nil, []Forward{
		at("0.0.0.0", unix.IPPROTO_SCTP, 9000, "10.0.0.5:90", 9000),
		at("::", unix.IPPROTO_SCTP, 9000, "[fd00:a::5]:90", 9000),
		at(hostAddr4, unix.IPPROTO_SCTP, 9001, "10.0.0.5:91", 40001),
		at(hostAddr6, unix.IPPROTO_SCTP, 9001, "[fd00:a::5]:91", 40001),
	}))
	for _, x := range []struct{ network, to, from string }{
		{"ip4:132", hostAddr4, neighbourAddr4}, {"ip6:132", hostAddr6, neighbourAddr6},
	} {
		var in net.PacketConn
		var out net.Conn
		var err, oerr error
		nstest.Do(t, c.ns, func() { in, err = net.ListenPacket(x.network, "") })
		must(t, err)
		nstest.Do(t, w.neighbour, func() { out, oerr = net.Dial(x.network, x.to) })
		must(t, oerr)
		for port, within := range map[uint16]uint16{9000: 90, 9001: 91} {
			// RFC 9260, sections 3.1 and 3.3.2: common header with verification tag 0, INIT chunk.
			packet := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, 5000), port)
			packet = append(packet, 0, 0, 0, 0, 0, 0, 0, 0)
			packet = append(packet, 1, 0, 0, 20, 1, 2, 3, 4, 0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 7)
			binary.LittleEndian.PutUint32(packet[8:], crc32.Checksum(packet, crc32.MakeTable(crc32.Castagnoli)))
			got := make([]byte, 128)
			var n int
			var from net.Addr
			nstest.Repeat(nstest.Limit, func() { _, _ = out.Write(packet) }, func(until time.Time) bool {
				_ = in.SetReadDeadline(until)
				n, from, err = in.ReadFrom(got)
				return err == nil
			})
			if err != nil {
				t.Errorf("%s port %d: nothing came: %v", x.to, port, err)
				continue
			}
			if to := binary.BigEndian.Uint16(got[2:]); n != len(packet) || to != within || from.String() != x.from {
				t.Errorf(
					"%s port %d: %d bytes came to port %d from %s; want %d, %d, %s", x.to, port, n, to, from,
					len(packet), within, x.from,
				)
			}
			sum := binary.LittleEndian.Uint32(got[8:])
			clear(got[8:12])
			if sum != crc32.Checksum(got[:n], crc32.MakeTable(crc32.Castagnoli)) {
				t.Errorf("%s port %d: the checksum is wrong", x.to, port)
			}
		}
		_, _ = in.Close(), out.Close()
	}
}

// TestOldTablesAreReplaced has the maps of an earlier version, which kept the port on the
// way to the router.
func TestOldTablesAreReplaced(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, _ := twoRouters()
	w.apply(a)
	c := w.plug(a.ID, a.Bridges[0], "10.0.0.5", "fd00:a::5")
	w.name(c.ns, "c", 80)
	forwards := []Forward{
		at("0.0.0.0", unix.IPPROTO_TCP, 8080, "10.0.0.5:80", 8080),
		at("127.0.0.1", unix.IPPROTO_TCP, 8081, "10.0.0.5:80", 8081),
	}
	old := `
delete table inet kuryr
table inet kuryr {
	map published4 { type inet_proto . inet_service : ipv4_addr; elements = { tcp . 8080 : 100.64.0.2 }; }
	map published6 { type inet_proto . inet_service : ipv6_addr; }
	set floating4 { type ipv4_addr; }
	set floating6 { type ipv6_addr; }
	chain prerouting {
		type nat hook prerouting priority dstnat - 5
		fib daddr type local dnat ip to meta l4proto . th dport map @published4
	}
}`
	w.sh(w.host, "nft -f - <<'EOF'"+old+"\nEOF")
	w.sh(
		w.router(a.ID),
		`nft delete set inet kuryr origin4; nft delete set inet kuryr origin6; nft add element inet `+
			`kuryr published4 '{ tcp . 8080 : 10.0.0.5 . 80 }'`,
	)
	if got := w.answer(w.neighbour, "tcp", hostAddr4+":8080", nstest.Limit); got != "c "+neighbourAddr4 {
		t.Fatalf("with the old tables %q", got)
	}
	state := State{
		Shapes: []Shape{a}, Ports: map[string][]Port{a.ID: {c.port}},
		Forwards: map[string][]Forward{a.ID: forwards},
	}
	if _, err := w.f.Reconcile(context.Background(), state); err != nil {
		t.Fatal(err)
	}
	w.mustMatch(state)
	if got := w.answer(w.neighbour, "tcp", hostAddr4+":8080", nstest.Limit); got != "c "+neighbourAddr4 {
		t.Errorf("published: %q", got)
	}
	if got := w.answer(w.host, "tcp", "127.0.0.1:8081", nstest.Limit); got != "c 100.64.0.1" {
		t.Errorf("published on 127.0.0.1: %q", got)
	}
}
