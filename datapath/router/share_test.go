//go:build linux

package router

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kuryr/kuryr/datapath/securitygroup"
	"github.com/kuryr/kuryr/internal/nstest"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// flood sends one datagram each to many ports of an address, from as many sources as it
// takes, and reports how many left.
func (f *filtered) flood(from netns.NsHandle, to string, many int) (sent int) {
	f.t.Helper()
	nstest.Do(f.t, from, func() {
		var fd int
		address := netip.MustParseAddr(to)
		for i := range many {
			port := 1 + i%60000
			if i%60000 == 0 {
				var err error
				fd, err = unix.Socket(map[bool]int{true: unix.AF_INET,
					false: unix.AF_INET6}[address.Is4()], unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
				must(f.t, err)
				defer unix.Close(fd)
			}
			var at unix.Sockaddr = &unix.SockaddrInet6{Port: port, Addr: address.As16()}
			if address.Is4() {
				at = &unix.SockaddrInet4{Port: port, Addr: address.As4()}
			}
			if unix.Sendto(fd, []byte("?"), 0, at) == nil {
				sent++
			}
		}
	})
	return sent
}

// TestShareOfFlows has a container begin more flows than a set of them holds. Others, on
// its network and on another one of the router, begin theirs; it cannot.
func TestShareOfFlows(t *testing.T) {
	t.Parallel()
	f := newFiltered(t)
	evil := f.plug(f.d.ID, f.d.Bridges[0], "10.0.0.6", "fd00:a::6")
	near := f.plug(f.d.ID, f.d.Bridges[0], "10.0.0.7", "fd00:a::7")
	server, far := f.plug(f.d.ID, f.d.Bridges[1], "10.0.1.5", "fd00:b::5"), f.plug(f.d.ID,
		f.d.Bridges[1], "10.0.1.7", "fd00:b::7")
	f.group("any", anything(securitygroup.Egress)...)
	f.group("server", append(append(anything(securitygroup.Egress),
		bothFamilies(ports(securitygroup.Ingress, unix.IPPROTO_TCP, 80,
			80))...), bothFamilies(ports(securitygroup.Ingress, unix.IPPROTO_UDP, 80, 80))...)...)
	for _, c := range []*container{&evil, &near, &far} {
		f.join(c, "any")
	}
	f.join(&server, "server")
	f.serve(server.ns, 80)
	f.serve(server.ns, 81)
	check := func(what string) {
		t.Helper()
		for _, c := range []container{near, far} {
			for _, addr := range []string{"10.0.1.5:80", "[fd00:b::5]:80"} {
				f.expect(what, c.ns, "tcp", addr, true)
				f.expect(what, c.ns, "udp", addr, true)
			}
		}
	}
	check("before")
	out := newWire(t, evil.ns)
	frame := udp4(evil.port.MAC, "10.0.0.6", 1)
	copy(frame[14+16:], []byte{10, 0, 0, 200})
	binary.BigEndian.PutUint16(frame[24:], 0)
	binary.BigEndian.PutUint16(frame[24:], checksum(frame[14:34]))
	const many = 300_000 // a set holds 262,144
	for i := range many {
		binary.BigEndian.PutUint16(frame[34:], uint16(1024+i/60000))
		binary.BigEndian.PutUint16(frame[36:], uint16(1+i%60000))
		_ = unix.Sendto(out.fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: out.index})
	}
	check("after a flood")
	ns := f.router(f.d.ID)
	n, err := strconv.Atoi(strings.TrimSpace(f.sh(ns,
		"nft list set bridge kuryr_policy flows_out4 | grep -o expires | wc -l")))
	must(t, err)
	if n < 10_000 || n > 240_000 {
		t.Errorf("%d flows are remembered, want the share of one port", n)
	}
	if !strings.Contains(f.sh(ns, "nft list chain bridge kuryr_policy fresh_out4"), "drop") {
		t.Error("no new flow was refused")
	}
}

// TestShareOfInbound has a container without a filter flood a server's port: others still
// reach the server.
func TestShareOfInbound(t *testing.T) {
	t.Parallel()
	f := newFiltered(t)
	evil, near := f.plug(f.d.ID, f.d.Bridges[0], "10.0.0.6", "fd00:a::6"), f.plug(f.d.ID,
		f.d.Bridges[0], "10.0.0.7", "fd00:a::7")
	server := f.plug(f.d.ID, f.d.Bridges[0], "10.0.0.5", "fd00:a::5")
	f.group("server", append(bothFamilies(ports(securitygroup.Ingress, unix.IPPROTO_TCP, 80, 80)),
		bothFamilies(ports(securitygroup.Ingress, unix.IPPROTO_UDP, 1, 65535))...)...)
	f.join(&server, "server")
	f.serve(server.ns, 80)
	for _, addr := range []string{"10.0.0.5", "fd00:a::5"} {
		f.flood(evil.ns, addr, 120_000)
		f.expect("after a flood", near.ns, "tcp", net.JoinHostPort(addr, "80"), true)
		f.expect("after a flood", near.ns, "udp", net.JoinHostPort(addr, "80"), true)
	}
	if !strings.Contains(f.sh(f.router(f.d.ID), "nft list chain bridge kuryr_policy fresh_in4"),
		"drop") {
		t.Error("no new flow was refused")
	}
}

// TestShareOfSeats looks at the seats of connections: one is taken when both sides have
// sent, and free when the connection ends. A connection that finds none works, and is
// remembered for 40 seconds of silence.
func TestShareOfSeats(t *testing.T) {
	t.Parallel()
	f := newFiltered(t)
	server, client := f.plug(f.d.ID, f.d.Bridges[0], "10.0.0.5", "fd00:a::5"), f.plug(f.d.ID,
		f.d.Bridges[0], "10.0.0.6", "fd00:a::6")
	f.group("server", append(bothFamilies(ports(securitygroup.Ingress, unix.IPPROTO_TCP, 80, 90)),
		ports(securitygroup.Ingress, unix.IPPROTO_UDP, 90, 90))...)
	f.group("client", anything(securitygroup.Egress)...)
	f.join(&server, "server")
	f.join(&client, "client")
	ns := f.router(f.d.ID)
	seats := func(want int) {
		t.Helper()
		have := map[string]int{}
		for end := time.Now().Add(nstest.Limit); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			for _, set := range []string{"map bridge kuryr_policy flows_seats4",
				"map bridge kuryr_policy flows_seats6", "set bridge kuryr_policy flows_taken"} {
				have[set] = strings.Count(f.sh(ns, "nft list "+set), "expires")
			}
			found := have["map bridge kuryr_policy flows_seats4"] + have["map bridge kuryr_policy flows_seats6"]
			if have["set bridge kuryr_policy flows_taken"] == want && found == want {
				return
			}
		}
		t.Errorf("seats: %v, want %d", have, want)
	}
	var open []line
	for i, host := range []string{"10.0.0.5", "fd00:a::5"} {
		for port := range 3 {
			c := f.converse(client.ns, server.ns, net.JoinHostPort(host, strconv.Itoa(80+port)))
			if !says(c.out, c.in, true) || !says(c.in, c.out, true) {
				t.Fatalf("%s: no connection", host)
			}
			open = append(open, c)
		}
		seats(2 * 3 * (i + 1)) // one of the client's and one of the server's
	}
	// Datagrams take a seat when they go on for some seconds.
	there, here := netip.MustParseAddrPort("10.0.0.5:90"), netip.MustParseAddrPort("10.0.0.6:91")
	in, out := f.datagrams(server, there), f.datagrams(client, here)
	for range 2 {
		if !sends(out, in, there, true) || !sends(in, out, here, true) {
			t.Fatal("datagrams do not pass")
		}
	}
	seats(2 * len(open))
	time.Sleep(6 * time.Second)
	if !sends(in, out, here, true) || !sends(out, in, there, true) {
		t.Fatal("datagrams do not pass")
	}
	seats(2 * (len(open) + 1))
	for _, set := range []string{"map bridge kuryr_policy flows_seats4",
		"map bridge kuryr_policy flows_seats6", "set bridge kuryr_policy flows_taken"} {
		f.sh(ns, "nft flush "+set)
	}
	f.forgetPackets()
	for _, c := range open {
		if !says(c.out, c.in, true) || !says(c.in, c.out, true) {
			t.Fatal("a connection does not go on")
		}
	}
	seats(2 * len(open))
	for i, c := range open {
		if i%2 == 0 {
			_ = c.out.(*net.TCPConn).SetLinger(0)
		}
		_, _ = c.out.Close(), c.in.Close()
	}
	seats(0)
	// All of the client's seats are taken.
	var b strings.Builder
	for i := range 1 << 14 {
		if i%1000 == 0 {
			b.WriteString("add element bridge kuryr_policy flows_taken { ")
		}
		fmt.Fprintf(&b, "%q . %d", TapName(client.port.ID), i)
		b.WriteString(map[bool]string{true: " }\n", false: ", "}[i%1000 == 999 || i == 1<<14-1])
	}
	file := filepath.Join(t.TempDir(), "taken")
	must(t, os.WriteFile(file, []byte(b.String()), 0o600))
	f.sh(ns, "nft -f "+file)
	c := f.converse(client.ns, server.ns, "10.0.0.5:80")
	for range 2 {
		if !says(c.out, c.in, true) || !says(c.in, c.out, true) {
			t.Fatal("a connection without a seat does not go on")
		}
		f.forgetPackets()
	}
	if n := strings.Count(f.sh(ns, "nft list map bridge kuryr_policy flows_seats4"),
		"expires"); n != 1 {
		t.Errorf("%d seats, want the server's alone", n)
	}
	if listing := f.sh(ns,
		"nft list set bridge kuryr_policy flows_out4"); !strings.Contains(listing, ". 80 timeout 40s") {
		t.Errorf("the flow of a connection without a seat is remembered for long: %s", listing)
	}
}

// TestShareOfConnections has a container that is not filtered fill connection tracking,
// of its router and of the host. It is refused at its share. Another container of the
// router, and one of another router, still connect to the outside.
func TestShareOfConnections(t *testing.T) {
	t.Parallel()
	if s := supports(); !s.connections {
		t.Skip("this kernel cannot count connections")
	}
	f := newFiltered(t)
	evil, near := f.plug(f.d.ID, f.d.Bridges[0], "10.0.0.6", "fd00:a::6"), f.plug(f.d.ID,
		f.d.Bridges[0], "10.0.0.7", "fd00:a::7")
	other := Shape{ID: newID(), Bridges: []Bridge{bridge("10.5.0.1/24", "fd00:5::1/64")},
		Uplink: uplink("100.64.0.5", "fd00:6b75::5")}
	f.apply(other)
	far := f.plug(other.ID, other.Bridges[0], "10.5.0.6", "fd00:5::6")
	f.serve(f.neighbour, 80)
	f.sh(f.neighbour,
		"nft 'add table inet t; add chain inet t i { type filter hook input priority 0; }'; "+
			"nft add rule inet t i udp dport != 80 drop")
	most, err := connectionsAtMost()
	must(t, err)
	ns := f.router(f.d.ID)
	tracked := func(ns netns.NsHandle) int {
		n, err := strconv.Atoi(strings.TrimSpace(f.sh(ns,
			"cat /proc/sys/net/netfilter/nf_conntrack_count")))
		must(t, err)
		return n
	}
	for i, addr := range []string{neighbourAddr4, neighbourAddr6} {
		f.flood(evil.ns, addr, most/liveShare*3/2)
		for where, space := range map[string]netns.NsHandle{"the router": ns, "the host": f.host} {
			n := tracked(space)
			if n > most/liveShare*5/4 {
				t.Errorf("%s: %d connections in %s, want about one in %d of %d", addr, n, where,
					liveShare, most)
			}
			if i == 0 && n < most/liveShare/2 {
				t.Errorf("%s: %d connections in %s, so this proves nothing", addr, n, where)
			}
		}
		for _, c := range []container{near, far} {
			f.expect("another container", c.ns, "tcp", net.JoinHostPort(addr, "80"), true)
			f.expect("another container", c.ns, "udp", net.JoinHostPort(addr, "80"), true)
		}
	}
	if listing := f.sh(ns, "nft list table inet kuryr_share"); !strings.Contains(listing,
		"ct count over") || !strings.Contains(listing, "limit rate over") {
		t.Errorf("nft does not show what is counted: %s", listing)
	}
	// A router without uplink tracks nothing, and has no table.
	other.Uplink = nil
	f.apply(other)
	if tables := f.sh(f.router(other.ID), "nft list tables"); strings.Contains(tables,
		"kuryr_share") {
		t.Errorf("without uplink: %s", tables)
	}
}

// TestShareOfNeighbours has a container look for many addresses of another network that
// no container has. The router looks for its share of them; another container's packets find
// theirs.
func TestShareOfNeighbours(t *testing.T) {
	t.Parallel()
	if s := supports(); !s.rates {
		t.Skip("this kernel cannot limit rates")
	}
	w := newWorld(t)
	d := Shape{ID: newID(), Bridges: []Bridge{bridge("10.0.0.1/24", "fd00:a::1/64"),
		bridge("10.1.0.1/16", "fd00:b::1/64")}, Uplink: uplink("100.64.0.2", "fd00:6b75::2")}
	w.apply(d)
	f := &filtered{world: w, d: d}
	evil, near := f.plug(d.ID, d.Bridges[0], "10.0.0.6", "fd00:a::6"), f.plug(d.ID, d.Bridges[0],
		"10.0.0.7", "fd00:a::7")
	far := f.plug(d.ID, d.Bridges[1], "10.1.0.5", "fd00:b::5")
	// most is a share's burst, twice, and what came to it since a time.
	most := func(burst, rate int, since time.Time) int {
		return 2*burst + int(float64(rate)*time.Since(since).Seconds())
	}
	began := time.Now()
	for i, format := range []string{"10.1.%d.%d", "fd00:b::%x:%x"} {
		w.reaches(evil.ns, []string{"10.0.0.1", "fd00:a::1"}[i], true)
		// A little at a time: the port's own queue holds no more.
		nstest.Do(t, evil.ns, func() {
			for n := range 2000 {
				if c, err := net.Dial("udp", net.JoinHostPort(fmt.Sprintf(format, 1+n/250, 1+n%250),
					"9")); err == nil {
					_, _ = c.Write([]byte("?"))
					_ = c.Close()
				}
				if n%50 == 0 {
					time.Sleep(10 * time.Millisecond)
				}
			}
		})
		n, err := strconv.Atoi(strings.TrimSpace(w.sh(w.router(d.ID),
			"ip -"+[]string{"4",
				"6"}[i]+" neigh show dev "+BridgeName(d.Bridges[1].Network)+" nud all | wc -l")))
		must(t, err)
		if i == 0 && n < nearBurst/2 || n > most(nearBurst, nearRate, began) { // both families have one share
			t.Errorf("the router looks for %d addresses, want about %d: %s", n, nearBurst,
				w.sh(w.router(d.ID), "nft list chain inet kuryr_share prerouting"))
		}
		w.reaches(near.ns, far.port.Addrs[i].String(), true)
	}
	// The same by sources: a port may use a range of addresses.
	now := evil.port
	now.Allowed = []AllowedAddress{{Prefix: netip.MustParsePrefix("10.0.0.64/26")},
		{Prefix: netip.MustParsePrefix("fd00:a::1:0/112")}}
	must(t, changePorts(context.Background(), f.f, d.ID, []Port{evil.port}, []Port{now}))
	out, in := newWire(t, evil.ns), newWire(t, near.ns)
	must(t, unix.SetsockoptInt(in.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20))
	passed := 0
	began = time.Now()
	for range 2000 {
		out.send(arpFrame(evil.port.MAC, evil.port.MAC, "10.0.0.70", "10.0.0.200"))
	}
	marker, b := udp4(evil.port.MAC, "10.0.0.6", 9), make([]byte, 2048)
	if !nstest.Repeat(nstest.Limit, out.sends(marker), func(until time.Time) bool {
		for time.Now().Before(until) {
			n, _, err := unix.Recvfrom(in.fd, b, 0)
			switch {
			case err != nil:
			case string(b[:n]) == string(marker):
				return true
			case binary.BigEndian.Uint16(b[12:]) == unix.ETH_P_ARP && n >= 42 && b[28+3] == 70:
				passed++
			}
		}
		return false
	}) {
		t.Error("the marker did not arrive")
	}
	if passed < rangedBurst/2 || passed > most(rangedBurst, rangedRate, began) {
		t.Errorf("%d requests with an address of a range pass, want about %d", passed, rangedBurst)
	}
}
