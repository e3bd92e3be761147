//go:build linux

package router

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kuryr/kuryr/datapath/securitygroup"
	"github.com/kuryr/kuryr/internal/nstest"
	"golang.org/x/sys/unix"
)

// TestFilterLive changes rules below connections: one that no rule allows any more is cut
// in both directions, whoever sends; one that others still allow is not disturbed, nor is
// any by what is added.
func TestFilterLive(t *testing.T) {
	t.Parallel()
	f := newFiltered(t)
	ctx := context.Background()
	server := f.plug(f.d.ID, f.d.Bridges[0], "10.0.0.5", "fd00:a::5")
	near := f.plug(f.d.ID, f.d.Bridges[0], "10.0.0.6", "fd00:a::6")
	far := f.plug(f.d.ID, f.d.Bridges[1], "10.0.1.7", "fd00:b::7")
	// Egress is allowed to all, so what a server sends would pass if it were not known for an answer.
	web := bothFamilies(ports(securitygroup.Ingress, unix.IPPROTO_TCP, 80, 80))
	other := bothFamilies(ports(securitygroup.Ingress, unix.IPPROTO_TCP, 81, 81))
	f.group("server", slices.Concat(anything(securitygroup.Egress), web, other)...)
	f.group("extra", web...)
	f.group("client", anything(securitygroup.Egress)...)
	f.join(&server, "server")
	f.join(&near, "client")
	f.join(&far, "client")
	for _, client := range []container{near, far} {
		for _, host := range []string{"10.0.0.5", "fd00:a::5"} {
			f.group("server", slices.Concat(anything(securitygroup.Egress), web, other)...)
			cut, kept := f.converse(client.ns, server.ns, net.JoinHostPort(host, "80")),
				f.converse(client.ns, server.ns, net.JoinHostPort(host, "81"))
			alive := func(what string, c line, want bool) {
				t.Helper()
				// the server first: it never sends what begins a connection
				if got := says(c.in, c.out, want); got != want {
					t.Errorf("%s, %s: server to client: %v, want %v", host, what, got, want)
				}
				if got := says(c.out, c.in, want); got != want {
					t.Errorf("%s, %s: client to server: %v, want %v", host, what, got, want)
				}
			}
			alive("at first", cut, true)
			alive("at first", kept, true)
			f.group(
				"server",
				slices.Concat(
					anything(securitygroup.Egress), web, other,
					bothFamilies(ports(securitygroup.Ingress, unix.IPPROTO_UDP, 5, 5)),
				)...,
			)
			alive("a rule more", cut, true)
			f.join(&server, "server", "extra")
			alive("a group more that allows it too", cut, true)
			f.group("server", slices.Concat(anything(securitygroup.Egress), other)...)
			alive("allowed by the other group", cut, true)
			alive("another port", kept, true)
			f.join(&server, "server")
			alive("no rule left", cut, false)
			alive("another port", kept, true)
			// what is remembered of packets runs out; what is remembered of flows does not
			f.forgetPackets()
			alive("packets forgotten", kept, true)
			alive("packets forgotten, no rule left", cut, false)
			f.group("server", slices.Concat(anything(securitygroup.Egress), web, other)...)
			alive("allowed again", f.converse(client.ns, server.ns, net.JoinHostPort(host, "80")), true)
			// the client's own rules count as well
			f.group("client", slices.Concat(bothFamilies(ports(securitygroup.Egress, unix.IPPROTO_TCP, 80, 80)))...)
			alive("forbidden to the client", kept, false)
			f.group("client", anything(securitygroup.Egress)...)
			alive("allowed to the client again", kept, true)
			// one side is done, the other goes on
			must(t, kept.out.(*net.TCPConn).CloseWrite())
			for range 2 {
				f.forgetPackets()
				if !says(kept.in, kept.out, true) {
					t.Errorf("%s: the server cannot send after the client has ended", host)
				}
			}
		}
	}
	// A port that is unfiltered, and filtered again.
	c := f.converse(near.ns, server.ns, "10.0.0.5:80")
	bare := server.port
	bare.Guard, bare.Groups = false, nil
	must(t, changePorts(ctx, f.f, f.d.ID, []Port{server.port}, []Port{bare}))
	if !says(c.in, c.out, true) || !says(c.out, c.in, true) {
		t.Error("a connection is disturbed by port security that is switched off")
	}
	f.serve(server.ns, 99)
	f.expect("without port security", near.ns, "tcp", "10.0.0.5:99", true)
	must(t, changePorts(ctx, f.f, f.d.ID, []Port{bare}, []Port{server.port}))
	f.expect("with port security", near.ns, "tcp", "10.0.0.5:99", false)
	// What ended is forgotten soon, what begins anew under the same addresses and ports passes.
	for range 3 {
		f.redial(near, server, "10.0.0.5:80")
	}
}

// forgetPackets does what time does with what is remembered of packets.
func (f *filtered) forgetPackets() {
	f.t.Helper()
	var b strings.Builder
	for _, set := range []string{"out4", "out6", "in4", "in6"} {
		b.WriteString("nft flush set bridge kuryr_policy live_" + set + "\n")
	}
	f.sh(f.router(f.d.ID), b.String())
}

// redial makes a connection from a fixed port, and ends it with a reset so that the port
// is free again.
func (f *filtered) redial(from, to container, address string) {
	f.t.Helper()
	listener := nstest.Listen(f.t, to.ns, "tcp", address)
	defer listener.Close()
	var c net.Conn
	nstest.Eventually(f.t, "the port of the earlier connection is free", func() bool {
		var err error
		nstest.Do(f.t, from.ns, func() {
			d := net.Dialer{Timeout: nstest.Limit, LocalAddr: &net.TCPAddr{IP: net.ParseIP("10.0.0.6"), Port: 7777}}
			c, err = d.Dial("tcp", address)
		})
		if err != nil && !errors.Is(err, unix.EADDRINUSE) && !errors.Is(err, unix.EADDRNOTAVAIL) {
			f.t.Fatal(err)
		}
		return err == nil
	})
	in, err := listener.Accept()
	must(f.t, err)
	if !says(in, c, true) || !says(c, in, true) {
		f.t.Error("nothing passes on a connection with the addresses and ports of an earlier one")
	}
	_ = c.(*net.TCPConn).SetLinger(0)
	_ = c.Close()
	_ = in.Close()
}

// TestFilterUndisturbed changes rules, members and ports' groups while both ends of a
// connection send, which they all allow: the filter drops nothing.
func TestFilterUndisturbed(t *testing.T) {
	t.Parallel()
	f := newFiltered(t)
	server, client := f.plug(f.d.ID, f.d.Bridges[0], "10.0.0.5"), f.plug(f.d.ID, f.d.Bridges[1], "10.0.1.7")
	web := ports(securitygroup.Ingress, unix.IPPROTO_TCP, 80, 80)
	f.group("web", append(anything(securitygroup.Egress), web)...)
	f.group("more", append(anything(securitygroup.Egress), web)...)
	f.join(&server, "web")
	f.join(&client, "more")
	c := f.converse(client.ns, server.ns, "10.0.0.5:80")
	done := make(chan struct{})
	var all sync.WaitGroup
	for _, ends := range [][2]net.Conn{{c.in, c.out}, {c.out, c.in}} {
		_, _ = ends[0].SetDeadline(time.Time{}), ends[1].SetDeadline(time.Time{})
		all.Go(func() {
			// one byte at a time, so that a queue that overflows drops nothing either
			for b := make([]byte, 1); ; {
				select {
				case <-done:
					return
				default:
				}
				if _, err := ends[0].Write(b); err != nil {
					t.Error(err)
					return
				}
				if _, err := io.ReadFull(ends[1], b); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for i := range 30 {
		f.group(
			"web",
			append(
				anything(securitygroup.Egress), web, ports(securitygroup.Ingress, unix.IPPROTO_UDP, uint16(i+1), uint16(i+1)),
			)...,
		)
		f.join(&server, "web", "more")
		f.join(&server, "more")
		f.join(&client, "web")
		f.join(&server, "web")
		f.join(&client, "more")
	}
	close(done)
	all.Wait()
	listing := f.sh(f.router(f.d.ID), "nft list table bridge kuryr_policy")
	if !strings.Contains(listing, "counter packets 0 bytes 0 drop") {
		t.Fatal("no rule that drops is counted")
	}
	for line := range strings.Lines(listing) {
		if strings.Contains(line, "counter packets") && !strings.Contains(line, "packets 0 ") {
			t.Errorf("dropped by %s", strings.TrimSpace(line))
		}
	}
}

// TestFilterDatagrams is TestFilterLive for UDP: a flow in which both sides send, and one
// in which one side does.
func TestFilterDatagrams(t *testing.T) {
	t.Parallel()
	f := newFiltered(t)
	server := f.plug(f.d.ID, f.d.Bridges[0], "10.0.0.5", "fd00:a::5")
	near, far := f.plug(f.d.ID, f.d.Bridges[0], "10.0.0.6", "fd00:a::6"),
		f.plug(f.d.ID, f.d.Bridges[1], "10.0.1.7", "fd00:b::7")
	rule := bothFamilies(ports(securitygroup.Ingress, unix.IPPROTO_UDP, 500, 500))
	f.group("server", slices.Concat(anything(securitygroup.Egress), rule)...)
	f.group("client", anything(securitygroup.Egress)...)
	f.join(&server, "server")
	f.join(&near, "client")
	f.join(&far, "client")
	for i, hosts := range [][2]string{
		{"10.0.0.5", "10.0.1.7"}, {"fd00:a::5", "fd00:b::7"}, {"10.0.0.5", "10.0.0.6"},
		{"fd00:a::5", "fd00:a::6"},
	} {
		client := far
		if i > 1 {
			client = near
		}
		f.group("server", slices.Concat(anything(securitygroup.Egress), rule)...)
		there, here := netip.AddrPortFrom(netip.MustParseAddr(hosts[0]), 500),
			netip.AddrPortFrom(netip.MustParseAddr(hosts[1]), 501)
		in, out := f.datagrams(server, there), f.datagrams(client, here)
		alive := func(what string, want bool) {
			t.Helper()
			for range 2 {
				if got := sends(out, in, there, want); got != want {
					t.Errorf("%s, %s: client to server: %v, want %v", hosts[0], what, got, want)
				}
				if got := sends(in, out, here, want); got != want {
					t.Errorf("%s, %s: server to client: %v, want %v", hosts[0], what, got, want)
				}
			}
		}
		alive("at first", true)
		f.group(
			"server",
			slices.Concat(
				anything(securitygroup.Egress), rule, bothFamilies(ports(securitygroup.Ingress, unix.IPPROTO_TCP, 5, 5)),
			)...,
		)
		alive("a rule more", true)
		f.group(
			"server",
			slices.Concat(
				anything(securitygroup.Egress), bothFamilies(ports(securitygroup.Ingress, unix.IPPROTO_TCP, 5, 5)),
			)...,
		)
		alive("no rule left", false)
		f.group("server", slices.Concat(anything(securitygroup.Egress), rule)...)
		alive("allowed again", true)
		// fragments: the later ones have no ports
		if big := strings.Repeat("?", 5000); !sendsText(out, in, there, big, true) {
			t.Errorf("%s: a datagram of %d bytes does not come", hosts[0], len(big))
		}
		// an error about a datagram to a port that nobody listens on
		deaf := netip.AddrPortFrom(there.Addr(), 502)
		f.group(
			"server",
			slices.Concat(
				anything(securitygroup.Egress), rule, bothFamilies(ports(securitygroup.Ingress, unix.IPPROTO_UDP, 502, 502)),
			)...,
		)
		if err := f.ask(client.ns, deaf.String()); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("%s: %v, want the server's word that nobody listens", deaf, err)
		}
		_ = errors.Join(in.Close(), out.Close())
	}
}

func (f *filtered) datagrams(c container, at netip.AddrPort) *net.UDPConn {
	f.t.Helper()
	var conn *net.UDPConn
	var err error
	nstest.Do(f.t, c.ns, func() { conn, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(at)) })
	must(f.t, err)
	f.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// sends reports whether a datagram gets from one socket to another, which is expected or not.
func sends(from, to *net.UDPConn, addr netip.AddrPort, want bool) bool {
	return sendsText(from, to, addr, time.Now().String(), want)
}

func sendsText(from, to *net.UDPConn, addr netip.AddrPort, text string, want bool) bool {
	b := make([]byte, 9000)
	return nstest.Repeat(waitFor(want), func() {
		_, _ = from.WriteToUDPAddrPort([]byte(text), addr)
	}, func(until time.Time) bool {
		_ = to.SetReadDeadline(until)
		for {
			n, _, err := to.ReadFromUDPAddrPort(b)
			if err != nil {
				return false
			}
			if string(b[:n]) == text {
				return true
			}
		}
	})
}

// TestFilterMembers grows and shrinks a remote group, by ports and by their allowed
// pairs, and an address group.
func TestFilterMembers(t *testing.T) {
	t.Parallel()
	f := newFiltered(t)
	ctx := context.Background()
	server := f.plug(f.d.ID, f.d.Bridges[0], "10.0.0.5", "fd00:a::5")
	one, two := f.plug(f.d.ID, f.d.Bridges[0], "10.0.0.6", "fd00:a::6"),
		f.plug(f.d.ID, f.d.Bridges[1], "10.0.1.7", "fd00:b::7")
	f.serve(server.ns, 80)
	f.set("places")
	f.group(
		"server",
		append(
			bothFamilies(securitygroup.Rule{Direction: securitygroup.Ingress, RemoteGroup: "friends"}),
			bothFamilies(securitygroup.Rule{Direction: securitygroup.Ingress, RemoteSet: "places"})...,
		)...,
	)
	f.group("friends", anything(securitygroup.Egress)...)
	f.group("client", anything(securitygroup.Egress)...)
	f.join(&server, "server")
	f.join(&one, "client")
	f.join(&two, "client")
	check := func(what string, first, second bool) {
		t.Helper()
		for _, host := range []string{"10.0.0.5:80", "[fd00:a::5]:80"} {
			f.expect(what, one.ns, "tcp", host, first)
			f.expect(what, two.ns, "udp", host, second)
		}
	}
	check("no members", false, false)
	f.join(&one, "client", "friends")
	check("one member", true, false)
	f.join(&two, "friends")
	check("two members", true, true)
	c := f.converse(one.ns, server.ns, "10.0.0.5:81")
	d := f.converse(two.ns, server.ns, "10.0.0.5:82")
	f.join(&one, "client")
	check("one left", false, true)
	if says(c.out, c.in, false) || says(c.in, c.out, false) {
		t.Error("the connection of who is no member any more goes on")
	}
	if !says(d.out, d.in, true) || !says(d.in, d.out, true) {
		t.Error("another member's connection is disturbed")
	}
	f.join(&two, "client")
	check("none left", false, false)

	f.set("places", "10.0.0.0/24", "10.0.0.6/32", "fd00:a::/64")
	check("an address group", true, false)
	f.set("places", "10.0.1.0/24", "fd00:b::7/128", "fd00:b::/64")
	check("another value of it", false, true)
	f.set("places")
	check("an empty address group", false, false)

	// Two members with one allowed pair: it is a member's while one of them is.
	vip := netip.MustParseAddr("10.0.0.66")
	pair := func(c *container, groups ...string) {
		t.Helper()
		now := c.port
		now.Groups, now.Allowed = groups, []AllowedAddress{{Prefix: netip.PrefixFrom(vip, 32)}}
		must(t, changePorts(ctx, f.f, f.d.ID, []Port{c.port}, []Port{now}))
		c.port = now
	}
	f.sh(one.ns, "ip addr add 10.0.0.66/24 dev eth0")
	says := func(what string, want bool) {
		t.Helper()
		got := false
		nstest.Do(t, one.ns, func() {
			d := net.Dialer{Timeout: waitFor(want), LocalAddr: &net.TCPAddr{IP: vip.AsSlice()}}
			c, err := d.Dial("tcp", "10.0.0.5:80")
			if got = err == nil; got {
				_ = c.Close()
			}
		})
		if got != want {
			t.Errorf("%s: from the virtual address: %v, want %v", what, got, want)
		}
	}
	pair(&one, "client")
	says("no member has it", false)
	pair(&two, "friends")
	says("a member has it", true)
	pair(&one, "client", "friends")
	pair(&two, "client")
	says("the other member has it", true)
	pair(&one, "client")
	says("none has it any more", false)
	if listing := f.sh(
		f.router(f.d.ID), "nft list table bridge kuryr_policy",
	); !strings.Contains(listing, "kuryr_policy") {
		t.Error(listing)
	}
}

// TestFilterOutside checks floating addresses and published ports of filtered ports, from
// outside and from neighbours.
func TestFilterOutside(t *testing.T) {
	t.Parallel()
	f := newFiltered(t)
	ctx := context.Background()
	f.d.Uplink.Floating = []Floating{{netip.MustParseAddr("198.51.100.50"), netip.MustParseAddr("10.0.0.5")}}
	f.apply(f.d)
	server := f.plug(f.d.ID, f.d.Bridges[0], "10.0.0.5", "fd00:a::5")
	near, far := f.plug(f.d.ID, f.d.Bridges[0], "10.0.0.6"), f.plug(f.d.ID, f.d.Bridges[1], "10.0.1.7")
	f.serve(server.ns, 80)
	f.serve(server.ns, 81)
	must(t, changeForwards(ctx, f.f, f.d.ID, nil, []Forward{
		{
			Address: netip.IPv4Unspecified(), Protocol: unix.IPPROTO_TCP, Port: 8080,
			To: netip.MustParseAddrPort("10.0.0.5:80"),
		},
		{
			Address: netip.IPv4Unspecified(), Protocol: unix.IPPROTO_TCP, Port: 8081,
			To: netip.MustParseAddrPort("10.0.0.5:81"),
		},
		{
			Address: netip.IPv6Unspecified(), Protocol: unix.IPPROTO_TCP, Port: 8080,
			To: netip.MustParseAddrPort("[fd00:a::5]:80"),
		},
		{
			Address: netip.IPv6Unspecified(), Protocol: unix.IPPROTO_TCP, Port: 8081,
			To: netip.MustParseAddrPort("[fd00:a::5]:81"),
		},
	}))
	web := bothFamilies(ports(securitygroup.Ingress, unix.IPPROTO_TCP, 80, 80))
	f.group("server", append(anything(securitygroup.Egress), web...)...)
	f.join(&server, "server")
	f.group("client", anything(securitygroup.Egress)...)
	f.join(&near, "client")
	for host, port := range map[string]string{hostAddr4: "808", "[" + hostAddr6 + "]": "808", "198.51.100.50": "8"} {
		f.expect("from outside", f.neighbour, "tcp", host+":"+port+"0", true)
		f.expect("from outside, another port", f.neighbour, "tcp", host+":"+port+"1", false)
	}
	for _, c := range []container{near, far} {
		f.expect("by the floating address", c.ns, "tcp", "198.51.100.50:80", true)
		f.expect("by the floating address, another port", c.ns, "tcp", "198.51.100.50:81", false)
		f.expect("by the host's address", c.ns, "tcp", hostAddr4+":8080", true)
		f.expect("by the host's address, another port", c.ns, "tcp", hostAddr4+":8081", false)
	}
	// the gateway, and time exceeded from it
	f.expect("the gateway", server.ns, "ping", "10.0.0.1", true)
	f.expect("the gateway", server.ns, "ping", "fd00:a::1", true)
	out, _ := f.try(near.ns, "ping -n -c 1 -w 20 -t 1 "+neighbourAddr4)
	if !strings.Contains(out, "Time to live exceeded") {
		t.Errorf("no word of the router that the time to live was exceeded: %s", out)
	}
}

// TestFilterOtherKinds sends frames that are neither IP nor ARP, which no rule can let
// pass, to a port that is filtered.
func TestFilterOtherKinds(t *testing.T) {
	t.Parallel()
	f := newFiltered(t)
	receiver, sender := f.plug(f.d.ID, f.d.Bridges[0], "10.0.0.5"), f.plug(f.d.ID, f.d.Bridges[0], "10.0.0.6")
	bare := sender.port
	bare.Guard = false
	must(t, changePorts(context.Background(), f.f, f.d.ID, []Port{sender.port}, []Port{bare}))
	f.group("any", slices.Concat(anything(securitygroup.Ingress), anything(securitygroup.Egress))...)
	in, out, mac := newWire(t, receiver.ns), newWire(t, sender.ns), sender.port.MAC
	other, arp, marker := ethernet(mac, 0x88cc, make([]byte, 46)),
		arpFrame(mac, mac, "10.0.0.6", "10.0.0.200"), udp4(mac, "10.0.0.6", 9)
	for _, filtered := range []bool{false, true} {
		if filtered {
			f.join(&receiver, "any")
		}
		for _, frame := range [][]byte{other, arp} {
			want := !filtered || string(frame) == string(arp)
			if in.sees(frame, marker, want, out.sends(frame, marker)) != want {
				t.Errorf("filtered %v: frame of type %x passes: %v, want %v", filtered, frame[12:14], !want, want)
			}
		}
	}
}

// TestFilterReconcile damages the filter in every way and has it mended; what is as
// wanted is not touched.
func TestFilterReconcile(t *testing.T) {
	t.Parallel()
	f := newFiltered(t)
	ctx := context.Background()
	server, client := f.plug(f.d.ID, f.d.Bridges[0], "10.0.0.5", "fd00:a::5"),
		f.plug(f.d.ID, f.d.Bridges[0], "10.0.0.6", "fd00:a::6")
	f.set("places", "10.0.0.0/24", "fd00::/16")
	f.group("server", append(anything(securitygroup.Egress), securitygroup.Rule{
		Direction: securitygroup.Ingress, Protocol: 6, First: 80, Last: 90, RemoteGroup: "client",
	},
		securitygroup.Rule{Direction: securitygroup.Ingress, IPv6: true, RemoteSet: "places"})...)
	f.group("client", anything(securitygroup.Egress)...)
	f.join(&server, "server", "client")
	server.port.Allowed = []AllowedAddress{
		{Prefix: netip.MustParsePrefix("10.0.0.128/25")},
		{Prefix: netip.MustParsePrefix("fd00:a::1:0/112")},
	}
	must(t, changePorts(ctx, f.f, f.d.ID, []Port{server.port}, []Port{server.port}))
	f.join(&client, "client")
	state := State{Shapes: []Shape{f.d}, Ports: map[string][]Port{f.d.ID: {server.port, client.port}},
		Groups: []securitygroup.Group{f.groups["server"], f.groups["client"], {ID: "unused"}},
		Sets: []securitygroup.Set{{ID: "places", Revision: 1, Prefixes: []netip.Prefix{
			netip.MustParsePrefix("10.0.0.0/24"), netip.MustParsePrefix("fd00::/16"),
		}}}}
	ns := f.router(f.d.ID)
	static := func() string {
		t.Helper()
		var kept []string
		skip := false
		for line := range strings.Lines(f.sh(ns, "nft -s list table bridge kuryr_policy")) {
			if text := strings.TrimSpace(line); strings.HasPrefix(text, "set ") || strings.HasPrefix(text, "chain ") {
				skip = strings.Contains(text, "live_") || strings.Contains(text, "flows_") ||
					strings.Contains(text, "closing") || strings.Contains(text, "answered") ||
					strings.Contains(text, "fragments_") || strings.Contains(text, "chain epoch")
			}
			if !skip {
				kept = append(kept, line)
			}
		}
		return strings.Join(kept, "")
	}
	if diff, err := f.f.Diff(ctx, state); err != nil || len(diff) != 0 {
		t.Errorf("what the single calls made: %v, %v", diff, err)
	}
	want := static()
	c := f.converse(client.ns, server.ns, "10.0.0.5:80")
	for _, damage := range []string{
		"true",
		"nft flush ruleset",
		"nft delete table bridge kuryr_policy",
		"nft flush chain bridge kuryr_policy judge_out4",
		"nft flush chain bridge kuryr_policy ingress-server",
		"nft insert rule bridge kuryr_policy ingress-server accept",
		"nft add rule bridge kuryr_policy new_in4 accept",
		"nft flush map bridge kuryr_policy ports",
		"nft flush set bridge kuryr_policy with_ports",
		"nft flush map bridge kuryr_policy ingress",
		"nft flush set bridge kuryr_policy members4-client",
		"nft flush set bridge kuryr_policy ranges6-places",
		"nft flush set bridge kuryr_policy pairs4-client",
		"nft add element bridge kuryr_policy members4-client '{ 1.2.3.4 }'",
		"nft add element bridge kuryr_policy ports '{ \"tapx\" : 7 }'",
		"nft add chain bridge kuryr_policy stray; nft add set bridge kuryr_policy stray '{ type " +
			"mark; }'; nft add rule bridge kuryr_policy stray meta mark @stray accept",
	} {
		f.sh(ns, damage)
		diff, err := f.f.Diff(ctx, state)
		must(t, err)
		if (len(diff) == 0) != (damage == "true") {
			t.Errorf("%s: differences: %v", damage, diff)
		}
		report, err := f.f.Reconcile(ctx, state)
		must(t, err)
		if len(report.Changed) != len(diff) {
			t.Errorf("%s: changed %v, announced %v", damage, report.Changed, diff)
		}
		if have := static(); lines(have) != lines(want) {
			t.Errorf("%s: now\n%s\nwant\n%s", damage, have, want)
		}
		if !says(c.out, c.in, true) || !says(c.in, c.out, true) {
			t.Errorf("%s: a connection did not survive the mending", damage)
		}
	}
	// what groups leave that nobody has any more is no difference, and is collected
	f.group("gone", securitygroup.Rule{Direction: securitygroup.Ingress, RemoteGroup: "gone too"})
	f.join(&client, "client", "gone")
	f.join(&client, "client")
	for _, left := range []bool{true, false} {
		if diff, err := f.f.Diff(ctx, state); err != nil || len(diff) != 0 {
			t.Errorf("left by a group: %v, %v", diff, err)
		}
		if got := strings.Contains(static(), "gone"); got != left {
			t.Errorf("the group that nobody has is there: %v, want %v: %s", got, left, static())
		}
		report, err := f.f.Reconcile(ctx, state)
		must(t, err)
		if len(report.Changed) != 0 {
			t.Errorf("left by a group: changed %v", report.Changed)
		}
	}
	if have := static(); lines(have) != lines(want) {
		t.Errorf("collected: now\n%s\nwant\n%s", have, want)
	}
	// no filtered port, no table
	server.port.Groups, client.port.Groups = nil, nil
	state.Ports[f.d.ID] = []Port{server.port, client.port}
	_, err := f.f.Reconcile(ctx, state)
	must(t, err)
	if out := f.sh(ns, "nft list tables"); strings.Contains(out, "kuryr_policy") {
		t.Errorf("still there: %s", out)
	}
	// ports whose groups are not known are refused
	client.port.Groups = []string{"unheard-of"}
	if err := changePorts(ctx, f.f, f.d.ID, nil, []Port{client.port}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a port with an unknown group: %v", err)
	}
	must(t, changePorts(ctx, f.f, f.d.ID, []Port{client.port}, nil))
}

// lines is a listing without its order: what was mended stands at the end.
func lines(listing string) string {
	list := slices.Collect(strings.Lines(listing))
	slices.Sort(list)
	return strings.Join(list, "")
}

// TestFilterMoved moves a network with filtered ports to another router: they are
// filtered there from the first moment.
func TestFilterMoved(t *testing.T) {
	t.Parallel()
	f := newFiltered(t)
	ctx := context.Background()
	server, client := f.plug(f.d.ID, f.d.Bridges[1], "10.0.1.5"), f.plug(f.d.ID, f.d.Bridges[1], "10.0.1.6")
	f.group("server", append(anything(securitygroup.Egress), ports(securitygroup.Ingress, unix.IPPROTO_TCP, 80, 80))...)
	f.join(&server, "server")
	f.serve(server.ns, 80)
	f.serve(server.ns, 81)
	f.expect("before", client.ns, "tcp", "10.0.1.5:80", true)
	other := Shape{ID: newID(), Bridges: []Bridge{f.d.Bridges[1]}}
	f.d.Bridges = f.d.Bridges[:1]
	f.apply(f.d)
	f.apply(other)
	for _, port := range []int{80, 81} {
		f.expect("moved, the groups not told yet", client.ns, "tcp", fmt.Sprintf("10.0.1.5:%d", port), false)
	}
	must(t, define(ctx, f.f, other.ID, []securitygroup.Group{f.groups["server"]}, nil))
	must(t, changePorts(ctx, f.f, other.ID, nil, []Port{server.port, client.port}))
	f.expect("told", client.ns, "tcp", "10.0.1.5:80", true)
	f.expect("told", client.ns, "tcp", "10.0.1.5:81", false)
}
