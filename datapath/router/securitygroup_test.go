//go:build linux

package router

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kuryr/kuryr/datapath/securitygroup"
	"github.com/kuryr/kuryr/internal/nstest"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// filtered is a router with two networks, with ports whose groups the tests change.
type filtered struct {
	*world
	d         Shape
	revisions int64
	groups    map[string]securitygroup.Group
}

func newFiltered(t testing.TB) *filtered {
	t.Helper()
	if s := (&Kernel{}).Supports(); !s.Groups {
		t.Skip("this kernel cannot filter ports")
	}
	f := &filtered{world: newWorld(t), groups: map[string]securitygroup.Group{}}
	f.d = Shape{
		ID:      newID(),
		Bridges: []Bridge{bridge("10.0.0.1/24", "fd00:a::1/64"), bridge("10.0.1.1/24", "fd00:b::1/64")},
		Uplink:  uplink("100.64.0.2", "fd00:6b75::2"),
	}
	f.apply(f.d)
	return f
}

// group makes a group have exactly these rules.
func (f *filtered) group(id string, rules ...securitygroup.Rule) {
	f.t.Helper()
	f.revisions++
	for i := range rules {
		rules[i].ID = fmt.Sprintf("%d-%d", f.revisions, i)
	}
	g := securitygroup.Group{ID: id, Revision: f.revisions, Rules: rules}
	f.groups[id] = g
	must(f.t, define(context.Background(), f.f, f.d.ID, []securitygroup.Group{g}, nil))
}

func (f *filtered) set(id string, prefixes ...string) {
	f.t.Helper()
	f.revisions++
	s := securitygroup.Set{ID: id, Revision: f.revisions}
	for _, p := range prefixes {
		s.Prefixes = append(s.Prefixes, netip.MustParsePrefix(p))
	}
	must(f.t, define(context.Background(), f.f, f.d.ID, nil, []securitygroup.Set{s}))
}

// join gives a port these groups.
func (f *filtered) join(c *container, groups ...string) {
	f.t.Helper()
	now := c.port
	now.Groups = groups
	must(f.t, changePorts(context.Background(), f.f, f.d.ID, []Port{c.port}, []Port{now}))
	c.port = now
}

// both gives a rule for each family.
func bothFamilies(r securitygroup.Rule) []securitygroup.Rule {
	six := r
	six.IPv6 = true
	return []securitygroup.Rule{r, six}
}

// anything lets a port send what it likes, as Neutron's default rules do.
func anything(d securitygroup.Direction) []securitygroup.Rule {
	return bothFamilies(securitygroup.Rule{Direction: d})
}

func ports(d securitygroup.Direction, protocol uint8, first, last uint16) securitygroup.Rule {
	return securitygroup.Rule{Direction: d, Protocol: protocol, First: first, Last: last}
}

// line is a connection that is written to and read from.
type line struct {
	t       testing.TB
	out, in net.Conn
}

// converse opens a TCP connection.
func (f *filtered) converse(from netns.NsHandle, to netns.NsHandle, address string) line {
	f.t.Helper()
	l := line{t: f.t}
	var err error
	listener := nstest.Listen(f.t, to, "tcp", address)
	defer listener.Close()
	nstest.Do(f.t, from, func() { l.out, err = net.DialTimeout("tcp", address, nstest.Limit) })
	must(f.t, err)
	l.in, err = listener.Accept()
	must(f.t, err)
	f.t.Cleanup(func() { _ = l.out.Close(); _ = l.in.Close() })
	return l
}

// says reports whether a byte gets from one end to the other, which is expected or not.
func says(from, to net.Conn, want bool) bool {
	end := time.Now().Add(waitFor(want))
	_ = from.SetDeadline(end)
	_ = to.SetDeadline(end)
	if _, err := from.Write([]byte("!")); err != nil {
		return false
	}
	b := make([]byte, 1)
	n, _ := to.Read(b)
	return n == 1
}

func waitFor(want bool) time.Duration {
	if want {
		return nstest.Limit
	}
	return patience
}

// patience is how long a test waits for what must not come; what must come it waits for
// much longer.
const patience = 150 * time.Millisecond

// expect checks TCP and UDP to a server's port, and "ping" and raw protocols by number to a host.
func (f *filtered) expect(what string, from netns.NsHandle, network, addr string, want bool) {
	f.t.Helper()
	wait, got := waitFor(want), false
	switch network {
	case "ping":
		got = nstest.Ping(f.t, from, addr, wait)
	case "253", "254":
		if strings.Contains(addr, ":") {
			network = "ip6:" + network
		} else {
			network = "ip4:" + network
		}
		got = f.answer(from, network, addr, wait) != ""
	default:
		got = f.answer(from, network, addr, wait) != ""
	}
	if got != want {
		f.t.Errorf("%s: %s to %s: %v, want %v", what, network, addr, got, want)
	}
}

// The protocols for experiments (RFC 3692), one for what an experiment's port begins and
// one for what is begun towards it: without ports, and so for all that is between two
// hosts one flow, which either began.
var rawProtocol = map[securitygroup.Direction]uint8{securitygroup.Egress: 253, securitygroup.Ingress: 254}

// echoRaw answers every packet of these.
func (f *filtered) echoRaw(ns netns.NsHandle) {
	f.t.Helper()
	for _, network := range []string{"ip4:253", "ip6:253", "ip4:254", "ip6:254"} {
		var c net.PacketConn
		var err error
		nstest.Do(f.t, ns, func() { c, err = net.ListenPacket(network, "") })
		must(f.t, err)
		f.t.Cleanup(func() { _ = c.Close() })
		go nstest.Serve(c, func(net.Addr, int) string { return "!" })
	}
}

func TestFilter(t *testing.T) {
	t.Parallel()
	f := newFiltered(t)
	web := bothFamilies(ports(securitygroup.Ingress, unix.IPPROTO_TCP, 80, 81))
	f.group("web", append(anything(securitygroup.Egress), web...)...)
	f.group("client", anything(securitygroup.Egress)...)
	server, client, far := f.plug(f.d.ID, f.d.Bridges[0], "10.0.0.5", "fd00:a::5"),
		f.plug(f.d.ID, f.d.Bridges[0], "10.0.0.6", "fd00:a::6"),
		f.plug(f.d.ID, f.d.Bridges[1], "10.0.1.6", "fd00:b::6")
	free := f.plug(f.d.ID, f.d.Bridges[0], "10.0.0.7", "fd00:a::7")
	for _, port := range []int{80, 82} {
		f.serve(server.ns, port)
		f.serve(client.ns, port)
		f.serve(free.ns, port)
		f.serve(f.neighbour, port)
	}
	f.join(&server, "web")
	f.join(&client, "client")
	f.join(&far, "client")
	if testing.Verbose() {
		t.Log(f.sh(f.router(f.d.ID), "nft list table bridge kuryr_policy"))
	}
	for _, from := range []container{client, far, free} {
		for _, to := range []string{"10.0.0.5", "[fd00:a::5]"} {
			f.expect("allowed port", from.ns, "tcp", to+":80", true)
			f.expect("another port", from.ns, "tcp", to+":82", false)
			f.expect("another protocol", from.ns, "udp", to+":80", false)
		}
		f.expect("ICMP", from.ns, "ping", "10.0.0.5", false)
	}
	for _, to := range []string{"10.0.0.6", "[fd00:a::6]"} {
		f.expect("no ingress rule", server.ns, "tcp", to+":80", false)
		f.expect("no ingress rule", free.ns, "udp", to+":80", false)
	}
	for _, to := range []string{"10.0.0.7", "[fd00:a::7]", neighbourAddr4, "[" + neighbourAddr6 + "]"} {
		for _, port := range []string{":80", ":82"} {
			f.expect("port without filter", server.ns, "tcp", to+port, true)
			f.expect("port without filter", client.ns, "udp", to+port, true)
		}
		f.reaches(client.ns, strings.Trim(to, "[]"), true)
	}
	f.reaches(client.ns, "10.0.0.1", true)
	f.reaches(client.ns, "fd00:a::1", true)
}

// target is one end of a packet in a family: with a port where the protocol has them.
func target(network, host string, port int) string {
	if port == 0 {
		return host
	}
	return net.JoinHostPort(host, fmt.Sprint(port))
}

// TestFilterRules tries each kind of rule in each direction and family: what must pass, and what is
// next to it.
func TestFilterRules(t *testing.T) {
	t.Parallel()
	f := newFiltered(t)
	// a and b are on one network, c on another network of the router; all have the same ports open.
	a := f.plug(f.d.ID, f.d.Bridges[0], "10.0.0.5", "fd00:a::5")
	b := f.plug(f.d.ID, f.d.Bridges[0], "10.0.0.6", "fd00:a::6")
	c := f.plug(f.d.ID, f.d.Bridges[1], "10.0.1.7", "fd00:b::7")
	for _, ns := range []netns.NsHandle{a.ns, b.ns, c.ns, f.neighbour} {
		for _, port := range []int{1000, 1005, 1010, 1011} {
			f.serve(ns, port)
		}
		f.echoRaw(ns)
	}
	hosts := map[string][2]string{
		"a": {"10.0.0.5", "fd00:a::5"}, "b": {"10.0.0.6", "fd00:a::6"}, "c": {"10.0.1.7", "fd00:b::7"},
		"out": {neighbourAddr4, neighbourAddr6},
	}
	spaces := map[string]netns.NsHandle{"a": a.ns, "b": b.ns, "c": c.ns, "out": f.neighbour}
	echo := [2]uint8{8, 128}
	u8 := func(v uint8) *uint8 { return &v }
	type try struct {
		who, network string
		port         int
		want         bool
	}
	cases := []struct {
		name string
		rule func(d securitygroup.Direction, six int) securitygroup.Rule
		try  []try
	}{
		{"any", func(securitygroup.Direction, int) securitygroup.Rule { return securitygroup.Rule{} },
			[]try{{"b", "tcp", 1000, true}, {"c", "udp", 1010, true}, {"out", "tcp", 1000, true},
				{"b", "ping", 0, true}, {"c", "raw", 0, true}}},
		{"TCP", func(securitygroup.Direction, int) securitygroup.Rule { return securitygroup.Rule{Protocol: 6} },
			[]try{{"b", "tcp", 1000, true}, {"c", "tcp", 1011, true}, {"b", "udp", 1000, false}, {"c", "ping", 0, false}}},
		{"UDP port", func(securitygroup.Direction, int) securitygroup.Rule {
			return securitygroup.Rule{Protocol: 17, First: 1000, Last: 1000}
		},
			[]try{{"b", "udp", 1000, true}, {"c", "udp", 1000, true}, {"b", "udp", 1005, false}, {"c", "tcp", 1000, false}}},
		{"TCP ports", func(securitygroup.Direction, int) securitygroup.Rule {
			return securitygroup.Rule{Protocol: 6, First: 1001, Last: 1010}
		},
			[]try{{"b", "tcp", 1005, true}, {"c", "tcp", 1010, true}, {"b", "tcp", 1000, false}, {"c", "tcp", 1011, false}}},
		{"ICMP", func(_ securitygroup.Direction, six int) securitygroup.Rule {
			return securitygroup.Rule{Protocol: [2]uint8{1, 58}[six]}
		},
			[]try{{"b", "ping", 0, true}, {"c", "ping", 0, true}, {"b", "tcp", 1000, false}}},
		{"ICMP type", func(_ securitygroup.Direction, six int) securitygroup.Rule {
			return securitygroup.Rule{Protocol: 1, ICMPType: u8(echo[six]), ICMPCode: u8(0)}
		},
			[]try{{"b", "ping", 0, true}, {"out", "ping", 0, true}, {"c", "udp", 1000, false}}},
		{"another ICMP code", func(_ securitygroup.Direction, six int) securitygroup.Rule {
			return securitygroup.Rule{Protocol: 1, ICMPType: u8(echo[six]), ICMPCode: u8(1)}
		},
			[]try{{"b", "ping", 0, false}}},
		{"another ICMP type", func(_ securitygroup.Direction, six int) securitygroup.Rule {
			return securitygroup.Rule{Protocol: 1, ICMPType: u8([2]uint8{13, 200}[six])}
		},
			[]try{{"b", "ping", 0, false}}},
		{"a protocol's number", func(d securitygroup.Direction, _ int) securitygroup.Rule {
			return securitygroup.Rule{Protocol: rawProtocol[d]}
		},
			[]try{{"b", "raw", 0, true}, {"c", "raw", 0, true},
				{"b", "tcp", 1000, false}, {"c", "ping", 0, false}}},
		{"another protocol's number", func(securitygroup.Direction, int) securitygroup.Rule {
			return securitygroup.Rule{Protocol: 252}
		},
			[]try{{"b", "raw", 0, false}}},
		{"remote prefix", func(_ securitygroup.Direction, six int) securitygroup.Rule {
			return securitygroup.Rule{Remote: netip.MustParsePrefix([2]string{"10.0.1.0/24", "fd00:b::/64"}[six])}
		}, []try{{"c", "tcp", 1000, true}, {"c", "ping", 0, true}, {"b", "tcp", 1000, false}, {"out", "udp", 1000, false}}},
		{"remote address", func(_ securitygroup.Direction, six int) securitygroup.Rule {
			remote := [2]string{"10.0.0.6/32", "fd00:a::6/128"}[six]
			return securitygroup.Rule{Protocol: 17, Remote: netip.MustParsePrefix(remote)}
		}, []try{{"b", "udp", 1000, true}, {"b", "tcp", 1000, false}, {"c", "udp", 1000, false}}},
		{"any remote", func(_ securitygroup.Direction, six int) securitygroup.Rule {
			return securitygroup.Rule{Remote: netip.MustParsePrefix([2]string{"0.0.0.0/0", "::/0"}[six])}
		}, []try{{"b", "tcp", 1000, true}, {"out", "tcp", 1000, true}}},
		{"remote group", func(securitygroup.Direction, int) securitygroup.Rule {
			return securitygroup.Rule{RemoteGroup: "friends"}
		},
			[]try{{"c", "tcp", 1000, true}, {"c", "ping", 0, true}, {"c", "raw", 0, true},
				{"b", "tcp", 1000, false}, {"out", "udp", 1000, false}}},
		{"remote group, one port", func(securitygroup.Direction, int) securitygroup.Rule {
			return securitygroup.Rule{RemoteGroup: "friends", Protocol: 6, First: 1005, Last: 1005}
		},
			[]try{{"c", "tcp", 1005, true}, {"c", "tcp", 1000, false}, {"b", "tcp", 1005, false}}},
		{"address group", func(securitygroup.Direction, int) securitygroup.Rule {
			return securitygroup.Rule{RemoteSet: "places"}
		},
			[]try{{"c", "tcp", 1000, true}, {"out", "udp", 1000, true}, {"out", "ping", 0, true}, {"b", "tcp", 1000, false}}},
		{"none", func(securitygroup.Direction, int) securitygroup.Rule {
			return securitygroup.Rule{RemoteGroup: "nobody"}
		},
			[]try{{"b", "tcp", 1000, false}, {"c", "udp", 1000, false}, {"out", "tcp", 1000, false},
				{"b", "ping", 0, false}, {"c", "raw", 0, false}}},
	}
	// The outside reaches the ports by their own addresses: it needs routes.
	f.sh(
		f.neighbour,
		"ip route add 10.0.0.0/16 via "+hostAddr4+"; ip route add fd00:a::/64 via "+hostAddr6+
			"; ip route add fd00:b::/64 via "+hostAddr6,
	)
	f.group("friends", append(anything(securitygroup.Egress), anything(securitygroup.Ingress)...)...)
	f.join(&c, "friends")
	f.set("places", "10.0.1.0/25", "10.0.1.7/32", "fd00:b::/64", neighbourAddr4+"/32", "2001:db8:51::/64")
	for _, direction := range []securitygroup.Direction{securitygroup.Egress, securitygroup.Ingress} {
		for six, family := range []string{"IPv4", "IPv6"} {
			for _, one := range cases {
				rule := one.rule(direction, six)
				rule.Direction, rule.IPv6 = direction, six == 1
				f.group("it", rule)
				f.join(&a, "it")
				var tries sync.WaitGroup
				for _, try := range one.try {
					if try.network == "raw" {
						try.network = fmt.Sprint(rawProtocol[direction])
					}
					what := fmt.Sprintf("%s %s %s: %s", family, direction, one.name, try.who)
					from, to := a.ns, try.who
					if direction == securitygroup.Ingress {
						if from, to = spaces[try.who], "a"; try.who == "out" {
							continue // nothing from outside comes to an address that is not published
						}
					}
					address := target(try.network, hosts[to][six], try.port)
					tries.Go(func() { f.expect(what, from, try.network, address, try.want) })
				}
				// what the rule says nothing of: the other family, the other direction
				from, to := b.ns, "a"
				if direction == securitygroup.Ingress {
					from, to = a.ns, "b"
				}
				tries.Go(func() {
					other := what(family, direction, one.name)
					f.expect(other, from, "tcp", target("tcp", hosts[to][six], 1000), false)
				})
				tries.Wait()
			}
		}
	}
}

func what(parts ...any) string { return fmt.Sprint(parts...) + ", the other direction" }
