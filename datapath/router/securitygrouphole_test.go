//go:build linux

package router

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/kuryr/kuryr/datapath/securitygroup"
	"github.com/kuryr/kuryr/internal/nstest"
	"golang.org/x/sys/unix"
)

// TestFilterControl sends, to a port that lets nothing in, what IP cannot do without:
// about listeners and neighbours it passes, but not as a way to talk with whom one likes.
func TestFilterControl(t *testing.T) {
	t.Parallel()
	f := newFiltered(t)
	server := f.plug(f.d.ID, f.d.Bridges[0], "10.0.0.5", "fd00:a::5")
	near, far := f.plug(f.d.ID, f.d.Bridges[0], "10.0.0.6", "fd00:a::6"),
		f.plug(f.d.ID, f.d.Bridges[1], "10.0.1.7", "fd00:b::7")
	f.group("server", anything(securitygroup.Egress)...)
	f.group("client", anything(securitygroup.Egress)...)
	f.join(&server, "server")
	f.join(&near, "client")
	f.join(&far, "client")
	// A query for all groups, and a solicitation for the server's address, whose checksum
	// the kernel writes.
	query := []byte{0x11, 100, 0xee, 0x9b, 0, 0, 0, 0}
	solicit := append([]byte{135, 0, 0, 0, 0, 0, 0, 0}, netip.MustParseAddr("fd00:a::5").AsSlice()...)
	for _, c := range []struct {
		what    string
		from    container
		network string
		to      string
		hops    int
		message []byte
		source  string
		want    bool
	}{
		{"a query to all", near, "ip4:2", "224.0.0.1", 1, query, "10.0.0.6", true},
		{"a query to the port from its network", near, "ip4:2", "10.0.0.5", 64, query, "10.0.0.6", false},
		{"a query to the port from another network", far, "ip4:2", "10.0.0.5", 64, query, "10.0.1.7", false},
		{"a solicitation from its network", near, "ip6:58", "fd00:a::5", 255, solicit, "fd00:a::6", true},
		{"a solicitation that may have been passed on", near, "ip6:58", "fd00:a::5", 254, solicit, "fd00:a::6", false},
		{"a solicitation from another network", far, "ip6:58", "fd00:a::5", 255, solicit, "fd00:b::7", false},
	} {
		f.meets(c.from.ns, map[bool]string{true: "10.0.0.1", false: "fd00:a::1"}[c.network == "ip4:2"])
		var in, out *net.IPConn
		var err error
		nstest.Do(t, server.ns, func() { in, err = net.ListenIP(c.network, nil) })
		must(t, err)
		nstest.Do(t, c.from.ns, func() { out, err = net.ListenIP(c.network, nil) })
		must(t, err)
		raw, err := out.SyscallConn()
		must(t, err)
		must(t, raw.Control(func(fd uintptr) {
			if c.network == "ip4:2" {
				_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_TTL, c.hops)
				return
			}
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, c.hops)
		}))
		b := make([]byte, 256)
		came := nstest.Repeat(waitFor(c.want), func() {
			_, err := out.WriteTo(c.message, &net.IPAddr{IP: net.ParseIP(c.to)})
			must(t, err)
		}, func(until time.Time) bool {
			_ = in.SetReadDeadline(until)
			for {
				n, from, err := in.ReadFrom(b)
				if err != nil {
					return false
				}
				if from.String() == c.source && n == len(c.message) && slices.Equal(b[4:n], c.message[4:]) {
					return true
				}
			}
		})
		if came != c.want {
			t.Errorf("%s: passes: %v, want %v", c.what, came, c.want)
		}
		_, _ = in.Close(), out.Close()
	}
}

// TestFilterFragments sends many datagrams in fragments, one after another: what is
// remembered of one is not in the way of the others.
func TestFilterFragments(t *testing.T) {
	t.Parallel()
	f := newFiltered(t)
	server, client := f.plug(f.d.ID, f.d.Bridges[0], "10.0.0.5", "fd00:a::5"),
		f.plug(f.d.ID, f.d.Bridges[0], "10.0.0.6", "fd00:a::6")
	f.group("server", bothFamilies(ports(securitygroup.Ingress, unix.IPPROTO_UDP, 500, 500))...)
	f.group("client", anything(securitygroup.Egress)...)
	f.join(&server, "server")
	f.join(&client, "client")
	for _, hosts := range [][2]string{{"10.0.0.5", "10.0.0.6"}, {"fd00:a::5", "fd00:a::6"}} {
		f.meets(client.ns, map[bool]string{true: "10.0.0.1", false: "fd00:a::1"}[hosts[0] == "10.0.0.5"])
		there, here := netip.AddrPortFrom(netip.MustParseAddr(hosts[0]), 500),
			netip.AddrPortFrom(netip.MustParseAddr(hosts[1]), 501)
		in, out := f.datagrams(server, there), f.datagrams(client, here)
		const many = 5000
		sent := 0
		for i := range many {
			b, text := make([]byte, 4000), fmt.Appendf(make([]byte, 2990), "%10d", i)
			if !nstest.Repeat(nstest.Limit, func() {
				sent++
				_, err := out.WriteToUDPAddrPort(text, there)
				must(t, err)
			}, func(until time.Time) bool {
				_ = in.SetReadDeadline(until)
				for n := 0; string(b[:n]) != string(text); {
					var err error
					if n, _, err = in.ReadFromUDPAddrPort(b); err != nil {
						return false
					}
				}
				return true
			}) {
				t.Fatalf("%s: the datagram %d of %d does not come", hosts[0], i+1, many)
			}
		}
		if sent > many+many/500 { // some may be lost to a busy machine
			t.Errorf("%s: %d datagrams were sent until %d came", hosts[0], sent, many)
		}
	}
}

// TestFilterOneSided looks for how long connections are remembered: for days only if both
// sides have sent.
func TestFilterOneSided(t *testing.T) {
	t.Parallel()
	f := newFiltered(t)
	server, client := f.plug(f.d.ID, f.d.Bridges[0], "10.0.0.5", "fd00:a::5"),
		f.plug(f.d.ID, f.d.Bridges[0], "10.0.0.6", "fd00:a::6")
	f.group("server", ports(securitygroup.Ingress, unix.IPPROTO_TCP, 80, 80))
	f.group("client", anything(securitygroup.Egress)...)
	f.join(&server, "server")
	f.join(&client, "client")
	expires := func(port uint16) (left time.Duration, there bool) {
		t.Helper()
		s, err := f.f.openRouter(f.d.ID)
		must(t, err)
		defer s.close()
		list, err := s.nft.GetSetElements(&nftables.Set{
			Table: &nftables.Table{Name: "kuryr_policy", Family: nftables.TableFamilyBridge},
			Name:  "flows_out4",
		})
		must(t, err)
		for _, e := range list {
			if binary.BigEndian.Uint16(e.Key[16:]) == port {
				return e.Expires, true
			}
		}
		return 0, false
	}
	// The client has the last word of the beginning, and then both are silent.
	f.converse(client.ns, server.ns, "10.0.0.5:80")
	if d, there := expires(80); !there || d < 24*time.Hour {
		t.Errorf("a connection is remembered: %v, for %v", there, d)
	}
	// The neighbour is known by now, so this passes the filter before what comes after it.
	segment := make([]byte, 20)
	binary.BigEndian.PutUint16(segment, 1000)
	binary.BigEndian.PutUint16(segment[2:], 81)
	segment[12], segment[13] = 5<<4, 0x10 // ACK
	var conn net.Conn
	var err error
	nstest.Do(t, client.ns, func() { conn, err = net.Dial("ip4:6", "10.0.0.5") })
	must(t, err)
	defer conn.Close()
	nstest.Eventually(t, "a flow to port 81 is remembered", func() bool {
		_, err := conn.Write(segment)
		must(t, err)
		f.meets(client.ns, "10.0.0.1")
		_, there := expires(81)
		return there
	})
	if d, _ := expires(81); d > 10*time.Minute {
		t.Errorf("what nobody has answered is remembered for %v", d)
	}
}

// TestFilterLeftovers has ports with groups of their own come and go: what is left of
// them in the kernel is bounded.
func TestFilterLeftovers(t *testing.T) {
	t.Parallel()
	f := newFiltered(t)
	ctx := t.Context()
	server, client := f.plug(f.d.ID, f.d.Bridges[0], "10.0.0.5", "fd00:a::5"),
		f.plug(f.d.ID, f.d.Bridges[0], "10.0.0.6", "fd00:a::6")
	f.group("server", ports(securitygroup.Ingress, unix.IPPROTO_TCP, 80, 80))
	f.group("client", anything(securitygroup.Egress)...)
	f.join(&server, "server")
	f.join(&client, "client")
	f.serve(server.ns, 80)
	chains := func() int { return strings.Count(f.sh(f.router(f.d.ID), "nft list chains bridge"), "chain ") }
	before := chains()
	for i := range collectAfter + 1 {
		id := fmt.Sprint("own", i)
		f.group(id, ports(securitygroup.Ingress, unix.IPPROTO_TCP, 80, 80))
		p := client.port
		p.ID, p.Groups = newID(), []string{id}
		must(t, changePorts(ctx, f.f, f.d.ID, nil, []Port{p}))
		must(t, changePorts(ctx, f.f, f.d.ID, []Port{p}, nil))
	}
	if now := chains(); now > before+8 {
		t.Errorf("%d chains, want %d and those of the last port", now, before)
	}
	f.expect("after the clearing", client.ns, "tcp", "10.0.0.5:80", true)
	f.expect("after the clearing", client.ns, "tcp", "10.0.0.5:81", false)
}

// TestFilterChosenGroups gives two ports sets of groups that were chosen to have one
// number: each is judged by its own.
func TestFilterChosenGroups(t *testing.T) {
	t.Parallel()
	f := newFiltered(t)
	one, other := f.plug(f.d.ID, f.d.Bridges[0], "10.0.0.5", "fd00:a::5"),
		f.plug(f.d.ID, f.d.Bridges[0], "10.0.0.6", "fd00:a::6")
	client := f.plug(f.d.ID, f.d.Bridges[0], "10.0.0.7", "fd00:a::7")
	for _, id := range strings.Split("ehijlnp", "") {
		f.group(id)
	}
	f.group("c", ports(securitygroup.Ingress, unix.IPPROTO_TCP, 80, 80))
	f.group("m", ports(securitygroup.Ingress, unix.IPPROTO_TCP, 81, 81))
	f.join(&one, strings.Split("cehijlnp", "")...)
	f.join(&other, strings.Split("ejmn", "")...)
	for _, server := range []container{one, other} {
		f.serve(server.ns, 80)
		f.serve(server.ns, 81)
	}
	for address, want := range map[string]bool{
		"10.0.0.5:80": true, "10.0.0.5:81": false, "10.0.0.6:80": false, "10.0.0.6:81": true,
	} {
		f.expect("by the rules of its groups", client.ns, "tcp", address, want)
	}
}
