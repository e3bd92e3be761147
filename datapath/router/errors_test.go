//go:build linux

package router

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/kuryr/kuryr/datapath/lb"
	"github.com/kuryr/kuryr/datapath/securitygroup"
	"github.com/kuryr/kuryr/internal/nstest"
	"github.com/kuryr/kuryr/sdn"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// secret is what must not get through: as much as fits into one packet.
var secret = "SECRET-" + strings.Repeat("x", 1200)

// rawTo sends a message of IP's own protocols, such as ICMP's, and reports whether it
// comes to a namespace.
func (f *filtered) rawTo(network string, from, at netns.NsHandle, to string, hops int,
	message []byte, want bool) bool {
	f.t.Helper()
	var in, out *net.IPConn
	var err error
	nstest.Do(f.t, at, func() { in, err = net.ListenIP(network, nil) })
	must(f.t, err)
	defer in.Close()
	nstest.Do(f.t, from, func() { out, err = net.ListenIP(network, nil) })
	must(f.t, err)
	defer out.Close()
	raw, err := out.SyscallConn()
	must(f.t, err)
	must(f.t, raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_TTL, hops)
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, hops)
	}))
	b := make([]byte, 2000)
	return nstest.Repeat(waitFor(want), func() {
		_, _ = out.WriteTo(message, &net.IPAddr{IP: net.ParseIP(to)})
	}, func(until time.Time) bool {
		_ = in.SetReadDeadline(until)
		for {
			n, _, err := in.ReadFrom(b)
			if err != nil {
				return false
			}
			if strings.Contains(string(b[:n]), secret) {
				return true
			}
		}
	})
}

// acceptAnySource has the neighbour take packets from addresses that it has no route to.
func (f *filtered) acceptAnySource() {
	f.t.Helper()
	f.sh(f.neighbour, "sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.eth0.rp_filter=0")
	f.sh(f.neighbour, "ip -6 route add default via "+hostAddr6)
}

func checksum(b []byte) uint16 {
	sum := uint32(0)
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	if len(b)%2 == 1 {
		sum += uint32(b[len(b)-1]) << 8
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}

// unreachable is an ICMP error that quotes a packet, with a secret behind it. The kernel
// writes the checksum of ICMPv6.
func unreachable(from, to netip.AddrPort, protocol byte) []byte {
	ports := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, from.Port()),
		to.Port())
	ports = append(ports, 0, 0, 0, 0)
	if from.Addr().Is6() {
		quoted := append([]byte{0x60, 0, 0, 0, 0, 8, protocol, 64}, from.Addr().AsSlice()...)
		quoted = append(append(quoted, to.Addr().AsSlice()...), ports...)
		return append(append([]byte{1, 0, 0, 0, 0, 0, 0, 0}, quoted...), secret...)
	}
	quoted := append([]byte{0x45, 0, 0, 28, 0, 1, 0, 0, 64, protocol, 0, 0},
		from.Addr().AsSlice()...)
	quoted = append(quoted, to.Addr().AsSlice()...)
	binary.BigEndian.PutUint16(quoted[10:], checksum(quoted))
	message := append(append(append([]byte{3, 1, 0, 0, 0, 0, 0, 0}, quoted...), ports...),
		secret...)
	binary.BigEndian.PutUint16(message[2:], checksum(message))
	return message
}

func raw(a netip.Addr) (network string) {
	if a.Is4() {
		return "ip4:1"
	}
	return "ip6:58"
}

// TestFilterErrors has a port, which may reach one address and is reached by none, send
// ICMP errors about its connection there, and get such errors from others. An error
// passes between the ends of the connection that it is about, and not as a way to any other
// else.
func TestFilterErrors(t *testing.T) {
	t.Parallel()
	f := newFiltered(t)
	friend := f.plug(f.d.ID, f.d.Bridges[0], "10.0.0.5", "fd00:a::5")
	jailed := f.plug(f.d.ID, f.d.Bridges[0], "10.0.0.6", "fd00:a::6")
	near := f.plug(f.d.ID, f.d.Bridges[0], "10.0.0.8", "fd00:a::8")
	far := f.plug(f.d.ID, f.d.Bridges[1], "10.0.1.7", "fd00:b::7")
	to := func(prefix string, six bool) securitygroup.Rule {
		r := ports(securitygroup.Egress, unix.IPPROTO_TCP, 80, 80)
		r.Remote, r.IPv6 = netip.MustParsePrefix(prefix), six
		return r
	}
	f.group("jail", to("10.0.0.5/32", false), to("fd00:a::5/128", true))
	f.join(&jailed, "jail")
	f.acceptAnySource()
	for i, hosts := range [][2]string{{"10.0.0.6", "10.0.0.5"}, {"fd00:a::6", "fd00:a::5"}} {
		out := [2]string{neighbourAddr4, neighbourAddr6}[i]
		third := [2]string{"10.0.1.7", "fd00:b::7"}[i]
		beside := [2]string{"10.0.0.8", "fd00:a::8"}[i]
		there := netip.MustParseAddrPort(net.JoinHostPort(hosts[1], "80"))
		c := f.converse(jailed.ns, friend.ns, there.String())
		here := c.out.LocalAddr().(*net.TCPAddr).AddrPort()
		here = netip.AddrPortFrom(netip.MustParseAddr(hosts[0]), here.Port())
		other := netip.AddrPortFrom(here.Addr(), here.Port()+1)
		network := raw(there.Addr())
		for _, addr := range []string{third, out, beside} {
			f.expect("the port is kept from it", jailed.ns, "ping", addr, false)
		}
		for _, v := range []struct {
			what     string
			from, at netns.NsHandle
			to       string
			quoted   []byte
			want     bool
		}{
			{"to the other end", jailed.ns, friend.ns, hosts[1], unreachable(there, here, 6), true},
			{"from the other end", friend.ns, jailed.ns, hosts[0], unreachable(here, there, 6),
				true},
			{"to a neighbour", jailed.ns, near.ns, beside, unreachable(there, here, 6), false},
			{"to another network of the router", jailed.ns, far.ns, third,
				unreachable(there, here, 6), false},
			{"to the world", jailed.ns, f.neighbour, out, unreachable(there, here, 6), false},
			{"to the world, which it quotes", jailed.ns, f.neighbour, out,
				unreachable(netip.AddrPortFrom(netip.MustParseAddr(out), 80), here, 6), false},
			{"about no connection", jailed.ns, friend.ns, hosts[1], unreachable(there, other, 6),
				false},
			{"about another protocol", jailed.ns, friend.ns, hosts[1], unreachable(there, here, 17),
				false},
			{"about a packet of its own", jailed.ns, friend.ns, hosts[1],
				unreachable(here, there, 6), false},
			{"from a neighbour", near.ns, jailed.ns, hosts[0], unreachable(here, there, 6), false},
			{"from another network of the router", far.ns, jailed.ns, hosts[0],
				unreachable(here, there, 6), false},
			{"from the other end, about no connection", friend.ns, jailed.ns, hosts[0],
				unreachable(other, there, 6), false},
		} {
			if got := f.rawTo(network, v.from, v.at, v.to, 64, v.quoted, v.want); got != v.want {
				t.Errorf("%s: an error %s passes: %v, want %v", hosts[0], v.what, got, v.want)
			}
		}
		// A connection that no rule allows any more is no way for errors either.
		f.group("jail")
		for _, v := range []struct {
			from, at netns.NsHandle
			to       string
			quoted   []byte
		}{{jailed.ns, friend.ns, hosts[1], unreachable(there, here, 6)}, {friend.ns, jailed.ns,
			hosts[0], unreachable(here, there, 6)}} {
			if f.rawTo(network, v.from, v.at, v.to, 64, v.quoted, false) {
				t.Errorf("%s: an error about a connection that was cut passes", hosts[0])
			}
		}
		f.group("jail", to("10.0.0.5/32", false), to("fd00:a::5/128", true))
	}
}

// ask sends datagrams and returns what the kernel says instead of an answer.
func (f *filtered) ask(from netns.NsHandle, addr string) (err error) {
	f.t.Helper()
	nstest.Do(f.t, from, func() {
		var c net.Conn
		if c, err = net.Dial("udp", addr); err != nil {
			return
		}
		defer c.Close()
		_, err = nstest.Ask(c, 0, nstest.Limit)
	})
	return err
}

// TestFilterErrorsTranslated checks that the errors of a closed port come to the client
// that asked for it by another address: a VIP, whose endpoint is a container or the host,
// or a floating address, from outside and from a container of the same router.
func TestFilterErrorsTranslated(t *testing.T) {
	t.Parallel()
	f := newFiltered(t)
	client := f.plug(f.d.ID, f.d.Bridges[0], "10.0.0.5", "fd00:a::5")
	near := f.plug(f.d.ID, f.d.Bridges[0], "10.0.0.6", "fd00:a::6")
	far := f.plug(f.d.ID, f.d.Bridges[1], "10.0.1.7", "fd00:b::7")
	f.group("client", anything(securitygroup.Egress)...)
	f.group("server", bothFamilies(ports(securitygroup.Ingress, unix.IPPROTO_UDP, 9, 9))...)
	f.join(&client, "client")
	f.join(&near, "server")
	f.join(&far, "server")
	f.d.Uplink.Floating = []Floating{{netip.MustParseAddr("198.51.100.50"),
		netip.MustParseAddr("10.0.1.7")}}
	f.apply(f.d)
	f.sh(f.neighbour, "ip route add 198.51.100.50 via "+hostAddr4)
	var vips []VIP
	var fronts []lb.Frontend
	asked := map[string]netns.NsHandle{"198.51.100.50:9": client.ns}
	for vip, endpoint := range map[string]string{
		"10.96.0.10": "10.0.0.6:9", "10.96.0.11": "10.0.1.7:9", "10.96.0.12": hostAddr4 + ":9",
		"fd00:96::10": "[fd00:a::6]:9", "fd00:96::11": "[fd00:b::7]:9",
		"fd00:96::12": "[" + hostAddr6 + "]:9",
	} {
		addr := netip.MustParseAddr(vip)
		vips = append(vips, VIP{Addr: addr})
		fronts = append(fronts, lb.Frontend{
			Key:       lb.Key{Addr: addr, Protocol: sdn.UDP, Port: 9},
			Endpoints: []netip.AddrPort{netip.MustParseAddrPort(endpoint)}})
		asked[net.JoinHostPort(vip, "9")] = client.ns
	}
	must(t, changeVIPs(t.Context(), f.f, f.d.ID, nil, vips))
	must(t, changeFrontends(t.Context(), f.f, f.d.ID, nil, fronts,
		func() ([]lb.Frontend, error) { return fronts, nil }))
	for addr, from := range asked {
		if err := f.ask(from, addr); err == nil || !strings.Contains(err.Error(), "refused") {
			t.Errorf("UDP to %s: %v, want that no process listens", addr, err)
		}
	}
	err := f.ask(f.neighbour, "198.51.100.50:9")
	if err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("from outside: %v, want that no process listens", err)
	}
}

// TestFilterErrorsOfOthers checks the errors that do not come from the other end of what
// they are about: from the router, from a router in a container, and from beyond the
// host; and those about what is not TCP.
func TestFilterErrorsOfOthers(t *testing.T) {
	t.Parallel()
	f := newFiltered(t)
	client := f.plug(f.d.ID, f.d.Bridges[0], "10.0.0.5", "fd00:a::5")
	middle := f.plug(f.d.ID, f.d.Bridges[0], "10.0.0.9", "fd00:a::9")
	f.plug(f.d.ID, f.d.Bridges[1], "10.0.1.7", "fd00:b::7")
	// Nothing comes in that was not asked for.
	f.group("client", anything(securitygroup.Egress)...)
	f.join(&client, "client")
	for _, hops := range []string{"-t 1 " + neighbourAddr4, "-t 1 " + neighbourAddr6,
		"-t 1 10.0.1.7", "-t 1 fd00:b::7"} {
		if out, _ := f.try(client.ns, "ping -n -c 1 -w 20 "+hops); !strings.Contains(out,
			"Time to live exceeded") && !strings.Contains(out, "Hop limit") {
			t.Errorf("ping %s: no word of the router: %s", hops, out)
		}
	}
	// A port that is closed: in another container, and outside.
	for _, addr := range []string{"10.0.1.7:9", "[fd00:b::7]:9", neighbourAddr4 + ":9",
		"[" + neighbourAddr6 + "]:9"} {
		err := f.ask(client.ns, addr)
		if err == nil || !strings.Contains(err.Error(), "refused") {
			t.Errorf("UDP to %s: %v, want that no process listens", addr, err)
		}
	}
	// A container that routes, and may send for what it routes to.
	now := middle.port
	now.Allowed = []AllowedAddress{{Prefix: netip.MustParsePrefix("203.0.113.0/24")},
		{Prefix: netip.MustParsePrefix("2001:db8:77::/64")}}
	must(t, changePorts(context.Background(), f.f, f.d.ID, []Port{middle.port}, []Port{now}))
	middle.port = now
	f.sh(middle.ns, "sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1")
	f.sh(middle.ns, "ip route add prohibit 203.0.113.0/24; ip route add prohibit 2001:db8:77::/64")
	f.sh(client.ns,
		"ip route add 203.0.113.0/24 via 10.0.0.9; ip route add 2001:db8:77::/64 via fd00:a::9")
	for _, addr := range []string{"203.0.113.1:9", "[2001:db8:77::1]:9"} {
		err := f.ask(client.ns, addr)
		if err == nil || !strings.Contains(err.Error(), "denied") && !strings.Contains(err.Error(),
			"no route") {
			t.Errorf("UDP to %s: %v, want what the container that routes says", addr, err)
		}
	}
}

// TestFilterErrorsAtTheEnd has one side of a connection end, and the other go on. Errors
// still reach the side that goes on, or it would not learn of a smaller MTU.
func TestFilterErrorsAtTheEnd(t *testing.T) {
	t.Parallel()
	f := newFiltered(t)
	client := f.plug(f.d.ID, f.d.Bridges[0], "10.0.0.5", "fd00:a::5")
	server := f.plug(f.d.ID, f.d.Bridges[0], "10.0.0.6", "fd00:a::6")
	f.group("server", bothFamilies(ports(securitygroup.Ingress, unix.IPPROTO_TCP, 80, 80))...)
	f.join(&server, "server")
	for _, hosts := range [][2]string{{"10.0.0.5", "10.0.0.6"}, {"fd00:a::5", "fd00:a::6"}} {
		there := netip.MustParseAddrPort(net.JoinHostPort(hosts[1], "80"))
		c := f.converse(client.ns, server.ns, there.String())
		here := c.out.LocalAddr().(*net.TCPAddr).AddrPort()
		must(t, c.out.(*net.TCPConn).CloseWrite())
		if n, err := c.in.Read(make([]byte, 1)); n != 0 || err == nil {
			t.Fatalf("%s: the end does not come: %v", hosts[0], err)
		}
		f.forgetPackets() // as after 30 seconds
		if !says(c.in, c.out, true) {
			t.Fatalf("%s: the other side cannot go on", hosts[0])
		}
		quoted := unreachable(there, here, 6)
		if !f.rawTo(raw(there.Addr()), client.ns, server.ns, hosts[1], 64, quoted, true) {
			t.Errorf("%s: an error about the side that goes on is dropped", hosts[0])
		}
	}
}

// TestFilterNeighbours sends what is about neighbours, groups and fragments to where no
// rule lets the port send: it passes on the link, and nowhere else.
func TestFilterNeighbours(t *testing.T) {
	t.Parallel()
	f := newFiltered(t)
	jailed := f.plug(f.d.ID, f.d.Bridges[0], "10.0.0.6", "fd00:a::6")
	near := f.plug(f.d.ID, f.d.Bridges[0], "10.0.0.8", "fd00:a::8")
	far := f.plug(f.d.ID, f.d.Bridges[1], "10.0.1.7", "fd00:b::7")
	free := f.plug(f.d.ID, f.d.Bridges[0], "10.0.0.9", "fd00:a::9") // has no filter
	f.group("jail")
	f.join(&jailed, "jail")
	f.sh(f.neighbour, "ip -6 route add default via "+hostAddr6)
	local := linkLocal(near.port.MAC).String()
	f.sh(near.ns, "ip addr add "+local+"/64 dev eth0 nodad || true")
	for _, addr := range []string{"fd00:a::8", local} {
		f.sh(jailed.ns, fmt.Sprintf("ip -6 neigh replace %s lladdr %s dev eth0", addr, near.port.MAC))
	}
	about := func(kind byte) []byte {
		m := append([]byte{kind, 0, 0, 0, 0, 0, 0, 0},
			netip.MustParseAddr("fd00:a::6").AsSlice()...)
		if kind == 136 {
			m = append(append(m, 2, 1), jailed.port.MAC...)
		}
		return append(m, secret...)
	}
	for _, kind := range []byte{133, 135, 136} {
		for _, v := range []struct {
			what string
			from netns.NsHandle
			at   netns.NsHandle
			to   string
			hops int
			want bool
		}{
			{"to an address of the link", jailed.ns, near.ns, "fd00:a::8", 255, true},
			{"to an address of the link, as if passed on", jailed.ns, near.ns, "fd00:a::8", 64,
				false},
			{"to another network of the router", jailed.ns, far.ns, "fd00:b::7", 255, false},
			{"to the world", jailed.ns, f.neighbour, neighbourAddr6, 255, false},
			{"to another network, of a port without filter", free.ns, far.ns, "fd00:b::7", 255,
				false},
			{"to the world, of a port without filter", free.ns, f.neighbour, neighbourAddr6, 255,
				false},
		} {
			if v.from == free.ns && kind == 136 {
				continue // the guard knows it for another's
			}
			if got := f.rawTo("ip6:58", v.from, v.at, v.to, v.hops, about(kind),
				v.want); got != v.want {
				t.Errorf("type %d %s: passes: %v, want %v", kind, v.what, got, v.want)
			}
		}
	}
	for _, v := range []struct {
		what, network, to string
		at                netns.NsHandle
		message           []byte
	}{
		{"a listener report to another network", "ip6:58", "fd00:b::7", far.ns,
			append([]byte{131, 0, 0, 0, 0, 0, 0, 0}, secret...)},
		{"a listener report to the world", "ip6:58", neighbourAddr6, f.neighbour,
			append([]byte{143, 0, 0, 0, 0, 0, 0, 0}, secret...)},
		{"a listener report to another network", "ip4:2", "10.0.1.7", far.ns,
			append([]byte{0x16, 0, 0, 0, 0, 0, 0, 0}, secret...)},
		{"a listener report to the world", "ip4:2", neighbourAddr4, f.neighbour,
			append([]byte{0x16, 0, 0, 0, 0, 0, 0, 0}, secret...)},
		{"an echo to the world", "ip6:58", neighbourAddr6, f.neighbour,
			append([]byte{128, 0, 0, 0, 0, 0, 0, 0}, secret...)},
	} {
		if f.rawTo(v.network, jailed.ns, v.at, v.to, 255, v.message, false) {
			t.Errorf("%s passes", v.what)
		}
	}
}

// TestFilterRestOfPacket sends the rest of a packet whose first fragment passed, and the
// rest of one to another address.
func TestFilterRestOfPacket(t *testing.T) {
	t.Parallel()
	f := newFiltered(t)
	client := f.plug(f.d.ID, f.d.Bridges[0], "10.0.0.6", "fd00:a::6")
	friend, other := f.plug(f.d.ID, f.d.Bridges[0], "10.0.0.5"), f.plug(f.d.ID, f.d.Bridges[0],
		"10.0.0.8")
	r := ports(securitygroup.Egress, unix.IPPROTO_UDP, 500, 500)
	r.Remote = netip.MustParsePrefix("10.0.0.5/32")
	f.group("client", r)
	f.join(&client, "client")
	f.meets(friend.ns, "10.0.0.8") // the bridge knows both
	out := newWire(t, client.ns)
	packet := func(mac net.HardwareAddr, to string, offset uint16, protocol byte,
		payload []byte) []byte {
		p := []byte{0x45, 0, 0, byte(20 + len(payload)), 0, 77, byte(offset >> 8), byte(offset), 64,
			protocol, 0, 0, 10, 0, 0, 6}
		p = append(p, netip.MustParseAddr(to).AsSlice()...)
		binary.BigEndian.PutUint16(p[10:], checksum(p))
		frame := ethernet(client.port.MAC, unix.ETH_P_IP, append(p, payload...))
		copy(frame, mac)
		return frame
	}
	udp := []byte{1, 0xf5, 1, 0xf4, 0, 24, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8}
	tcp := []byte{1, 0xf5, 1, 0xf4, 0, 0, 0, 0}
	seen := newWire(t, friend.ns)
	marker := func() []byte {
		return arpFrame(client.port.MAC, client.port.MAC, "10.0.0.6",
			"10.0.0.200")
	}
	for _, v := range []struct {
		what  string
		frame []byte
		want  bool
	}{
		{"the rest before the first fragment", packet(friend.port.MAC, "10.0.0.5", 2, 17, udp),
			false},
		{"a first fragment", packet(friend.port.MAC, "10.0.0.5", 0x2000, 17, udp), true},
		{"the rest", packet(friend.port.MAC, "10.0.0.5", 2, 17, udp), true},
		{"the rest of another packet", append(packet(friend.port.MAC, "10.0.0.5", 2, 17,
			udp)[:18:18], append([]byte{0, 78}, packet(friend.port.MAC, "10.0.0.5", 2, 17,
			udp)[20:]...)...), false},
	} {
		if v.what == "the rest of another packet" {
			copy(v.frame[24:], []byte{0, 0})
			binary.BigEndian.PutUint16(v.frame[24:], checksum(v.frame[14:34]))
		}
		m := marker()
		if got := seen.sees(v.frame, m, v.want, out.sends(v.frame, m)); got != v.want {
			t.Errorf("%s: passes: %v, want %v", v.what, got, v.want)
		}
	}
	// The same rest to an address that no rule allows.
	elsewhere, m := newWire(t, other.ns), marker()
	rest := packet(other.port.MAC, "10.0.0.8", 2, 17, udp)
	if elsewhere.sees(rest, m, false, out.sends(rest, m)) {
		t.Error("the rest of a packet passes to another address")
	}
	// Half of TCP's header. What follows the packet in its frame may look like the other half.
	f.group("client", anything(securitygroup.Egress)...)
	fill, header := make([]byte, 64), make([]byte, 24)
	header[12], header[13] = 5<<4, 0x10 // ACK
	for _, v := range []struct {
		what  string
		frame []byte
		want  bool
	}{
		{"with half of TCP's header", packet(friend.port.MAC, "10.0.0.5", 0x2000, 6, tcp), false},
		{"with half of TCP's header and padding",
			append(packet(friend.port.MAC, "10.0.0.5", 0x2000, 6, tcp), fill...), false},
		{"with TCP's header", packet(friend.port.MAC, "10.0.0.5", 0x2000, 6,
			append(header[:24:24], fill...)), true},
		{"with half of TCP's header, IPv6",
			append(fragment(client.port.MAC, 6, "fd00:a::6", 0, true, tcp), fill...), false},
		{"with TCP's header, IPv6", fragment(client.port.MAC, 6, "fd00:a::6", 0, true, header), true},
	} {
		if got := seen.sees(v.frame, m, v.want, out.sends(v.frame, m)); got != v.want {
			t.Errorf("a first fragment %s passes: %v, want %v", v.what, got, v.want)
		}
	}
}

// TestUplinkInvalid sends, from a port without filter, what connection tracking does not
// know: it does not leave with the port's address. Between networks of the router it
// passes, as nothing is translated there.
func TestUplinkInvalid(t *testing.T) {
	t.Parallel()
	f := newFiltered(t)
	free := f.plug(f.d.ID, f.d.Bridges[0], "10.0.0.6", "fd00:a::6")
	far := f.plug(f.d.ID, f.d.Bridges[1], "10.0.1.7", "fd00:b::7")
	f.acceptAnySource()
	f.sh(f.host, "sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.ext0.rp_filter=0")
	for i, host := range []string{"10.0.0.6", "fd00:a::6"} {
		out, third := [2]string{neighbourAddr4, neighbourAddr6}[i], [2]string{"10.0.1.7",
			"fd00:b::7"}[i]
		f.reaches(free.ns, out, true)
		own := netip.AddrPortFrom(netip.MustParseAddr(host), 80)
		message := unreachable(netip.AddrPortFrom(netip.MustParseAddr(out), 1), own,
			6) // about a packet that was not sent
		if f.rawTo(raw(own.Addr()), free.ns, f.neighbour, out, 64, message, false) {
			t.Errorf("%s: an error about no connection leaves by the uplink", host)
		}
		if !f.rawTo(raw(own.Addr()), free.ns, far.ns, third, 64,
			unreachable(netip.AddrPortFrom(netip.MustParseAddr(third), 1), own, 6), true) {
			t.Errorf("%s: an error about no connection does not pass between two networks", host)
		}
	}
}
