//go:build linux

package trace

import (
	"encoding/hex"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/kuryr/kuryr/datapath/router"
	"github.com/kuryr/kuryr/datapath/securitygroup"
	"github.com/kuryr/kuryr/internal/nstest"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// silence is what a test takes that expects it. A host gives up after three seconds to look for
// a neighbour, and says so.
const silence = 2 * time.Second

func flow(protocol uint8, src, dst string, port uint16) Flow {
	return Flow{Protocol: protocol, Src: netip.MustParseAddr(src), Dst: netip.MustParseAddr(dst), Port: port}
}

func follow(t *testing.T, f Flow, sites []Site, to int) Result {
	t.Helper()
	return followFor(t, nstest.Limit, f, sites, to)
}

func followFor(t *testing.T, wait time.Duration, f Flow, sites []Site, to int) Result {
	t.Helper()
	r, err := Run(t.Context(), f, Options{Sites: sites, To: to, Wait: wait})
	if err != nil {
		t.Fatalf("%s: %v", f, err)
	}
	return r
}

// wants checks the end of a run, and that words are in the verdict.
func wants(t *testing.T, r Result, o Outcome, got bool, words ...string) {
	t.Helper()
	if r.Outcome != o || r.Got != got {
		t.Errorf("outcome %s, got there %v; want %s, %v\n%s", r.Outcome, r.Got, o, got, text(r))
	}
	for _, w := range words {
		if !strings.Contains(r.Text, w) {
			t.Errorf("the verdict does not hold %q\n%s", w, text(r))
		}
	}
}

// passes checks that the hops have these devices in this order, each once more than the last.
func passes(t *testing.T, r Result, devices ...string) {
	t.Helper()
	at := 0
	for _, h := range r.Hops {
		if at < len(devices) && strings.HasPrefix(h.Where+" "+h.Device, devices[at]) {
			at++
		}
	}
	if at < len(devices) {
		t.Errorf("no hop %q in its place\n%s", devices[at], text(r))
	}
}

func mentions(t *testing.T, r Result, where, what string) {
	t.Helper()
	for _, h := range r.Hops {
		if h.Where == where && strings.Contains(h.What, what) {
			return
		}
	}
	t.Errorf("no hop in %s says %q\n%s", where, what, text(r))
}

// clean checks that no table of a run is left. A process that another test starts may
// hold a socket for a moment longer.
func (w *world) clean(sites []Site) {
	w.t.Helper()
	for _, s := range sites {
		nstest.Eventually(w.t, "no tables are left in "+s.Name, func() bool {
			return !strings.Contains(w.sh(s.NS, "nft list tables"), tablePrefix)
		})
	}
}

func TestWayOut(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.route([]string{"100.64.0.2", "fd00:6b75::2"}, "10.1.0.1/24", "fd01::1/64")
	c := w.plug(r, "10.1.0.2", "fd01::2")
	sites := w.sites(r, c)
	for _, f := range []Flow{
		flow(unix.IPPROTO_ICMP, "10.1.0.2", outside, 0), flow(unix.IPPROTO_TCP, "10.1.0.2", outside, 81),
		flow(unix.IPPROTO_UDP, "10.1.0.2", outside, 81),
		flow(unix.IPPROTO_ICMP, "fd01::2", "2001:db8:51::2", 0),
		flow(unix.IPPROTO_TCP, "fd01::2", "2001:db8:51::2", 81),
		flow(unix.IPPROTO_UDP, "fd01::2", "2001:db8:51::2", 81),
	} {
		got := follow(t, f, sites, -1)
		want, says := Answered, "echo reply"
		switch f.Protocol {
		case unix.IPPROTO_TCP:
			says = "RST from"
		case unix.IPPROTO_UDP:
			want, says = Refused, "nothing listens there"
		}
		wants(t, got, want, true, says)
		tap, bridge, uplink := sites[1].Tap, router.BridgeName(r.bridge.Network), router.UplinkName(r.id)
		passes(t, got, "container eth0 out", "router "+tap+" in", "router "+bridge+" in",
			"router up0 out", "host "+uplink+" in", "host ext0 out",
			"host ext0 in", "host "+uplink+" out", "router up0 in", "router "+bridge+" out",
			"router "+tap+" out", "container eth0 in")
		mentions(t, got, "router", `translated by "leaves by the uplink address"`)
		mentions(t, got, "host", `translated by "router to the outside"`)
		mentions(t, got, "host", "SNAT")
	}
	w.clean(sites)
}

func TestPublished(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.route([]string{"100.64.0.2"}, "10.1.0.1/24")
	r2 := w.route([]string{"100.64.0.3"}, "10.1.0.1/24") // the same range
	c, d := w.plug(r, "10.1.0.2"), w.plug(r2, "10.1.0.3")
	w.set(router.Change{Router: r2.id, Forwards: router.Parts[router.Forward]{Add: []router.Forward{{
		Address: netip.IPv4Unspecified(), Protocol: 6, Port: 8080,
		To: netip.MustParseAddrPort("10.1.0.3:80"),
	}}}})
	sites := append(w.sites(r, c), Site{Name: "router 2", NS: r2.ns}, Site{Name: "called", NS: d.ns})
	f := flow(unix.IPPROTO_TCP, "10.1.0.2", "198.51.100.1", 8080)
	got := follow(t, f, sites, 4)
	wants(t, got, Answered, true, "RST from 198.51.100.1:8080")
	mentions(t, got, "host", "DNAT 198.51.100.1:8080 → 100.64.0.3:8080")
	mentions(t, got, "router 2", "DNAT 100.64.0.3:8080 → 10.1.0.3:80")
	passes(
		t, got, "router up0 out", "host "+router.UplinkName(r.id)+" in",
		"host "+router.UplinkName(r2.id)+" out", "router 2 up0 in", "called eth0 in", "called eth0 out",
		"container eth0 in",
	)

	way := Way{
		Flow: f, From: w.port(c), Container: sites[0], Router: sites[1], Host: sites[2],
		Uplink: router.UplinkName(r.id), To: w.port(d), CalledRouter: sites[3], Called: "called",
	}
	plan, err := Plan(way)
	must(t, err)
	if n := len(plan); n == 0 || plan[n-1].Stop || plan[n-1].Device != way.To.Tap {
		t.Errorf("plan: %+v", plan)
	}
	way.Port = 8081
	if plan, err = Plan(way); err != nil || !strings.Contains(plan[len(plan)-1].What, "host's own address") {
		t.Errorf("plan of a port that is not published: %v, %+v", err, plan)
	}
	// A container that does not answer: the packet got there.
	w.sh(d.ns, "nft add table ip x; nft 'add chain ip x in {type filter hook input priority 0; policy drop;}'")
	got = follow(t, f, sites, 4)
	wants(t, got, Dropped, false, "ip x in (its policy")
	w.sh(d.ns, "nft delete table ip x; ip route del default")
	wants(t, followFor(t, silence, f, sites, 4), Reached, true, "reached called")
	w.clean(sites)
}

func (w *world) port(c container) Port {
	return Port{
		Tap: router.TapName(c.port.ID), Bridge: router.BridgeName(c.port.Network), MAC: c.port.MAC,
		Addrs: c.port.Addrs,
	}
}

// The rule that drops is named, whatever made it.
func TestDrops(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r, r2 := w.route([]string{"100.64.0.2"}, "10.1.0.1/24"), w.route([]string{"100.64.0.3"}, "10.2.0.1/24")
	c, d := w.plug(r, "10.1.0.2"), w.plug(r2, "10.2.0.2")
	e := w.plug(r, "10.1.0.3")
	sites := append(w.sites(r, c), Site{Name: "called", NS: e.ns})
	udp := flow(unix.IPPROTO_UDP, "10.1.0.2", outside, 9)

	w.sh(w.host, `nft add table ip strange; nft 'add chain ip strange foreign {type filter hook forward priority 0;}'
		nft add chain ip strange sub
		nft add rule ip strange foreign jump sub
		nft add rule ip strange sub ip daddr `+outside+` udp dport 9 counter drop comment '"no way"'`)
	got := follow(t, udp, sites, -1)
	wants(t, got, Dropped, false, `by "no way", ip strange sub, handle`, "in host")
	if h := got.Hops[got.At-1]; !h.Stop || !strings.Contains(h.Rule, "udp dport 9") {
		t.Errorf("the rule's text is missing\n%s", text(got))
	}
	// An answer that is dropped: it got there.
	w.sh(w.host, `nft flush chain ip strange sub; nft add rule ip strange sub ip saddr `+outside+` drop`)
	wants(
		t, follow(t, flow(unix.IPPROTO_ICMP, "10.1.0.2", outside, 0), sites, -1), Dropped, true,
		"it got there, but its answer was dropped", "ip strange sub",
	)
	// A rejection is no answer.
	w.sh(
		w.host,
		`nft flush chain ip strange sub; nft add rule ip strange sub ip protocol tcp reject with tcp `+
			`reset; nft add rule ip strange sub ip daddr `+outside+` reject with icmp type admin-prohibited`,
	)
	wants(t, follow(t, flow(unix.IPPROTO_TCP, "10.1.0.2", outside, 9), sites, -1), Refused, false, "ip strange sub")
	wants(t, follow(t, udp, sites, -1), Refused, false, "forbidden by an administrator", "ip strange sub")
	w.sh(w.host, "nft delete table ip strange")

	// Our own: into another router by the host.
	w.sh(w.host, "ip route add 10.2.0.0/24 via 100.64.0.3 dev "+router.UplinkName(r2.id)+" onlink")
	cross := flow(unix.IPPROTO_ICMP, "10.1.0.2", "10.2.0.2", 0)
	wants(
		t, follow(t, cross, append(w.sites(r, c), Site{Name: "called", NS: d.ns}), 3), Dropped, false,
		`"nothing else into a router"`, "inet kuryr forward",
	)
	way := Way{
		Flow: cross, From: w.port(c), Container: sites[0], Router: sites[1], Host: sites[2],
		Uplink: router.UplinkName(r.id),
	}
	if plan, err := Plan(way); err != nil || !plan[len(plan)-1].Stop ||
		!strings.Contains(plan[len(plan)-1].What, "nothing else into a router") {
		t.Errorf("plan: %v, %+v", err, plan)
	}

	// Security groups: the called port's, then the caller's own.
	w.set(router.Change{Router: r.id, Groups: []securitygroup.Group{{ID: "nobody", Rules: []securitygroup.Rule{{
		ID: "mail", Protocol: unix.IPPROTO_TCP, First: 25, Last: 25,
	}}}}})
	for _, one := range []struct {
		c     container
		chain string
	}{{e, "bridge kuryr_policy ingress_of_"}, {c, "bridge kuryr_policy egress_of_"}} {
		filtered := one.c.port
		filtered.Groups = []string{"nobody"}
		w.ports(r.id, []router.Port{one.c.port}, []router.Port{filtered})
		near := flow(unix.IPPROTO_TCP, "10.1.0.2", "10.1.0.3", 80)
		wants(t, follow(t, near, sites, 3), Dropped, false, `"no rule lets it pass"`, one.chain, "in router")
		w.ports(r.id, []router.Port{filtered}, []router.Port{one.c.port})
	}

	// An address group has its single addresses and its prefixes in a set each.
	friends := securitygroup.Group{ID: "friends", Revision: 1,
		Rules: []securitygroup.Rule{{ID: "friends", RemoteSet: "friends"}}}
	of := e.port
	of.Groups = []string{friends.ID}
	for i, prefix := range []string{"10.1.0.2/32", "10.1.0.0/28", "10.1.0.9/32"} {
		set := securitygroup.Set{ID: "friends", Revision: int64(i),
			Prefixes: []netip.Prefix{netip.MustParsePrefix(prefix)}}
		w.set(router.Change{Router: r.id, Groups: []securitygroup.Group{friends}, Sets: []securitygroup.Set{set}})
		if i == 0 {
			w.ports(r.id, []router.Port{e.port}, []router.Port{of})
		}
		got := follow(t, flow(unix.IPPROTO_ICMP, "10.1.0.2", "10.1.0.3", 0), sites, 3)
		if set.Prefixes[0].Contains(netip.MustParseAddr("10.1.0.2")) {
			wants(t, got, Answered, true)
		} else {
			wants(t, got, Dropped, false, `"no rule lets it pass"`, "ingress_of_")
		}
	}
	w.ports(r.id, []router.Port{of}, []router.Port{e.port})

	// The guard: an address that is not the port's, then elements that are gone.
	w.sh(c.ns, "ip addr add 10.1.0.77/24 dev eth0")
	spoof := flow(unix.IPPROTO_ICMP, "10.1.0.77", "10.1.0.3", 0)
	// the neighbour is known now
	wants(t, follow(t, flow(unix.IPPROTO_ICMP, "10.1.0.2", "10.1.0.3", 0), sites, 3), Answered, true)
	wants(t, follow(t, spoof, sites, 3), Dropped, false, "bridge kuryr ip4_source", "in router")
	way.Flow = spoof
	if plan, err := Plan(way); err != nil || !plan[len(plan)-1].Stop ||
		!strings.Contains(plan[len(plan)-1].Mend, "does not have that address") {
		t.Errorf("plan: %v, %+v", err, plan)
	}
	off := c.port
	off.Down = true
	w.ports(r.id, []router.Port{c.port}, []router.Port{off})
	way.Flow = flow(unix.IPPROTO_ICMP, "10.1.0.2", "10.1.0.3", 0)
	wants(t, follow(t, way.Flow, sites, 3), Dropped, false, "bridge kuryr_down from")
	if plan, err := Plan(way); err != nil || !plan[len(plan)-1].Stop || plan[len(plan)-1].Mend != mendUp {
		t.Errorf("plan: %v, %+v", err, plan)
	}
	w.ports(r.id, []router.Port{off}, []router.Port{c.port})
	w.ports(r.id, []router.Port{c.port}, nil)
	way.Flow = flow(unix.IPPROTO_ICMP, "10.1.0.2", outside, 0)
	if plan, err := Plan(way); err != nil || !plan[len(plan)-1].Stop || plan[len(plan)-1].Mend != mendReconcile {
		t.Errorf("plan: %v, %+v", err, plan)
	}
	// Neither knows the other's MAC, so that the router does not ask either, from which the
	// container would learn it.
	w.sh(r.ns, "ip neigh flush all")
	w.sh(c.ns, "ip neigh flush all")
	got = followFor(t, silence, way.Flow, sites, -1)
	wants(t, got, Dropped, false, "bridge kuryr arp_source")
	mentions(t, got, "router", "ARP of the container dropped by")
	w.clean(sites)
}

// Where a packet is lost without a rule: the last that is known of it is told.
func TestLost(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.route([]string{"100.64.0.2"}, "10.1.0.1/24")
	c := w.plug(r, "10.1.0.2")
	sites := w.sites(r, c)
	wants(
		t, followFor(t, silence, flow(unix.IPPROTO_UDP, "10.1.0.2", "198.51.100.77", 9), sites, -1), Silent, false,
		"it was to leave by ext0 in host",
	)
	f := flow(unix.IPPROTO_UDP, "10.1.0.2", "203.0.113.9", 9)
	wants(t, followFor(t, silence, f, sites, -1), Silent, false, "it left this machine", "by ext0")
	way := Way{
		Flow: f, From: w.port(c), Container: sites[0], Router: sites[1], Host: sites[2],
		Uplink: router.UplinkName(r.id),
	}
	w.sh(w.host, "sysctl -qw net.ipv4.ip_forward=0")
	plan, err := Plan(way)
	if must(t, err); !plan[len(plan)-1].Stop || plan[len(plan)-1].What != "the host does not forward" {
		t.Errorf("plan: %+v", plan)
	}
	w.sh(r.ns, "sysctl -qw net.ipv4.ip_forward=0")
	plan, err = Plan(way)
	if must(t, err); !plan[len(plan)-1].Stop || plan[len(plan)-1].What != "the router does not forward" {
		t.Errorf("plan: %+v", plan)
	}
}

// A container on two networks sends by the one that is asked for.
func TestDevice(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r, r2 := w.route([]string{"100.64.0.2"}, "10.1.0.1/24"), w.route([]string{"100.64.0.3"}, "10.2.0.1/24")
	c := w.plug(r, "10.1.0.2")
	second := router.Port{
		ID: uuid.NewString(), Network: r2.bridge.Network, MAC: net.HardwareAddr{2, 0, 0, 0, 0, 9},
		Addrs: []netip.Addr{netip.MustParseAddr("10.2.0.2")}, Guard: true,
	}
	tap := router.TapName(second.ID)
	var err error
	nstest.Do(t, r2.ns, func() {
		err = netlink.LinkAdd(&netlink.Veth{
			LinkAttrs: netlink.LinkAttrs{Name: tap, TxQLen: -1}, PeerName: "eth1",
			PeerHardwareAddr: second.MAC, PeerNamespace: netlink.NsFd(int(c.ns)),
		})
	})
	must(t, err)
	w.sh(r2.ns, "ip link set "+tap+" master "+router.BridgeName(r2.bridge.Network)+" up")
	w.sh(
		c.ns,
		"ip link set eth1 up; ip addr add 10.2.0.2/24 dev eth1; ip route add default via 10.2.0.1 "+
			"dev eth1 metric 9",
	)
	w.ports(r2.id, nil, []router.Port{second})
	if device := Holder(Site{NS: c.ns}, second.Addrs[0]); device != "eth1" {
		t.Errorf("10.2.0.2 is on %q", device)
	}
	for _, protocol := range []uint8{unix.IPPROTO_ICMP, unix.IPPROTO_TCP} {
		f := flow(protocol, "10.2.0.2", outside, 0)
		if protocol == unix.IPPROTO_TCP {
			f.Port = 9
		}
		f.Device = "eth1"
		sites := []Site{{Name: "container", NS: c.ns}, {Name: "router", NS: r2.ns, Tap: tap}, {Name: "host", NS: w.host}}
		got := follow(t, f, sites, -1)
		wants(t, got, Answered, true)
		passes(t, got, "container eth1 out", "router "+tap+" in", "host ext0 out", "container eth1 in")
		plan, err := Plan(Way{
			Flow: f,
			From: Port{
				Tap: tap, Bridge: router.BridgeName(r2.bridge.Network), MAC: second.MAC, Addrs: second.Addrs,
			},
			Container: sites[0], Router: sites[1], Host: sites[2], Uplink: router.UplinkName(r2.id),
		})
		if must(t, err); plan[0].Device != "eth1" || plan[len(plan)-1].Device != "ext0" {
			t.Errorf("plan: %+v", plan)
		}
	}
}

func TestNoWay(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.route(nil, "10.1.0.1/24")
	c := w.plug(r, "10.1.0.2")
	sites := w.sites(r, c)
	way := Way{
		Flow: flow(unix.IPPROTO_ICMP, "10.1.0.2", outside, 0), From: w.port(c), Container: sites[0],
		Router: sites[1], Host: sites[2],
	}
	// The router has no way out.
	plan, err := Plan(way)
	if must(t, err); !plan[len(plan)-1].Stop || plan[len(plan)-1].Where != "router" {
		t.Errorf("plan: %+v", plan)
	}
	wants(t, follow(t, way.Flow, sites, -1), Refused, false, "10.1.0.1 says network unreachable")
	// Nor has the container.
	w.sh(c.ns, "ip route del default")
	if plan, err = Plan(way); err != nil || len(plan) != 1 || !plan[0].Stop {
		t.Errorf("plan: %v, %+v", err, plan)
	}
	wants(t, follow(t, way.Flow, sites, -1), Unsent, false, "no route")
	// No host has the address.
	way.Dst = netip.MustParseAddr("10.1.0.9")
	if plan, err = Plan(way); err != nil ||
		!strings.Contains(plan[len(plan)-1].What, "no port of the network has 10.1.0.9") {
		t.Errorf("plan: %v, %+v", err, plan)
	}
	way.Dst = netip.MustParseAddr("10.1.0.1")
	if plan, err = Plan(way); err != nil || !strings.Contains(plan[len(plan)-1].What, "the router's own address") {
		t.Errorf("plan: %v, %+v", err, plan)
	}
	own := way.Flow
	own.Dst = way.Dst
	wants(t, follow(t, own, sites, 1), Answered, true)
	// Its device is gone from the bridge.
	w.sh(r.ns, "ip link set "+sites[1].Tap+" nomaster")
	way.Dst = netip.MustParseAddr("10.1.0.9")
	if plan, err = Plan(way); err != nil || !strings.Contains(plan[len(plan)-1].What, "not on its bridge") {
		t.Errorf("plan: %v, %+v", err, plan)
	}
	wants(t, followFor(t, silence, way.Flow, sites, -1), Unsent, false, "next hop")
}

// Rules that the iptables program writes have their comments elsewhere.
func TestCommentOfIPTables(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("iptables-nft"); err != nil {
		t.Skip("iptables is not installed")
	}
	w := newWorld(t)
	r := w.route([]string{"100.64.0.2"}, "10.1.0.1/24")
	c := w.plug(r, "10.1.0.2")
	w.sh(w.host, "iptables-nft -A FORWARD -d "+outside+" -m comment --comment 'not there' -j DROP")
	got := follow(t, flow(unix.IPPROTO_UDP, "10.1.0.2", outside, 9), w.sites(r, c), -1)
	wants(t, got, Dropped, false, `by "not there", ip filter FORWARD`)
	// Its policy drops without a rule.
	w.sh(w.host, "iptables-nft -F FORWARD; iptables-nft -P FORWARD DROP")
	wants(
		t, follow(t, flow(unix.IPPROTO_UDP, "10.1.0.2", outside, 9), w.sites(r, c), -1), Dropped, false,
		"ip filter FORWARD (its policy",
	)
}

// The namespace of a container is found by its device alone.
func TestPeer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.route(nil, "10.1.0.1/24")
	c := w.plug(r, "10.1.0.2")
	if _, err := Peer(r.ns, "nothing"); err == nil {
		t.Error("found what is behind no device")
	}
	w.sh(c.ns, "sleep 60 >/dev/null 2>&1 &")
	ns, err := Peer(r.ns, router.TapName(c.port.ID))
	if must(t, err); !ns.Equal(c.ns) {
		t.Error("another namespace")
	}
	_ = ns.Close()
}

// Tables of a process that is dead go, those of one that lives stay.
func TestSweep(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.sh(
		w.host,
		"nft add table inet kuryr-trace-1; nft add table inet kuryr-trace-4194305; nft add table "+
			"bridge kuryr-trace-4194305.2; nft add table inet kuryr-trace-x",
	)
	gone, err := Sweep(w.host)
	must(t, err)
	tables := w.sh(w.host, "nft list tables")
	if len(gone) != 2 || strings.Contains(tables, "4194305") ||
		!strings.Contains(tables, "kuryr-trace-1\n") || !strings.Contains(tables, "kuryr-trace-x") {
		t.Errorf("removed %v, left\n%s", gone, tables)
	}
}

// The kernel deletes the tables when the socket is closed, also when the process is killed.
func TestTablesGoWithTheirSocket(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	m, err := setMarks(w.host, probe{Flow: flow(unix.IPPROTO_UDP, "10.1.0.2", outside, 9)}, "tap0")
	must(t, err)
	if tables := w.sh(w.host, "nft list tables"); strings.Count(tables, tablePrefix) != 2 {
		t.Fatalf("not two tables:\n%s", tables)
	}
	if len(m.own) > 0 {
		t.Skip("this kernel does not know tables with owners")
	}
	must(t, m.conn.Close()) // and nothing else, as at a kill
	w.clean([]Site{{Name: "host", NS: w.host}})
}

// TestRecord writes what nftables says of a packet that is dropped, and of one that is
// translated, as fixtures for TestParseStep.
func TestRecord(t *testing.T) {
	to := os.Getenv("KURYR_TRACE_RECORD")
	if to == "" {
		t.Skip("KURYR_TRACE_RECORD names no file to write")
	}
	w := newWorld(t)
	r := w.route([]string{"100.64.0.2"}, "10.1.0.1/24")
	c := w.plug(r, "10.1.0.2")
	l, err := openListener(r.ns)
	must(t, err)
	w.sh(c.ns, "ip addr add 10.1.0.77/24 dev eth0")
	go func() {
		_ = follow(t, flow(unix.IPPROTO_UDP, "10.1.0.2", outside, 9), w.sites(r, c), -1)
		_ = follow(t, flow(unix.IPPROTO_UDP, "10.1.0.77", outside, 9), w.sites(r, c), -1)
		_ = l.close()
	}()
	var out strings.Builder
	for {
		messages, err := l.conn.Receive()
		if err != nil {
			break
		}
		for _, m := range messages {
			out.WriteString(hex.EncodeToString(m.Data) + "\n")
		}
	}
	must(t, os.WriteFile(to, []byte(out.String()), 0o600))
}
