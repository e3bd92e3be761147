//go:build linux

package router

import (
	"context"
	"fmt"
	"math/rand"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/kuryr/kuryr/internal/nstest"
)

// scene is two routers, a network without one, ports and forwardings.
func scene(w *world) (State, []container) {
	a, b := twoRouters()
	c := Shape{ID: newID()}
	c.Bridges = []Bridge{{Network: c.ID, Addrs: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/24")}, MTU: 1500}}
	a.Uplink.Floating = []Floating{{netip.MustParseAddr("198.51.100.50"), netip.MustParseAddr("10.0.0.5")}}
	a.Uplink.Reach = []netip.Prefix{netip.MustParsePrefix("10.0.1.0/24")}
	b.Routes = []Route{{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParseAddr("10.0.0.7")}}
	state := State{Shapes: []Shape{a, b, c}, Ports: map[string][]Port{}, Forwards: map[string][]Forward{
		a.ID: {{
			netip.IPv4Unspecified(), unix.IPPROTO_TCP, 8080, netip.MustParseAddrPort("10.0.0.5:80"), 0,
		}, {netip.IPv6Unspecified(), unix.IPPROTO_UDP, 53, netip.MustParseAddrPort("[fd00:a::5]:53"), 0},
			at("127.0.0.1", unix.IPPROTO_TCP, 8081, "10.0.0.5:81", 40001),
			at("::1", unix.IPPROTO_TCP, 8081, "[fd00:a::5]:81", 40001)},
		b.ID: {{netip.IPv4Unspecified(), unix.IPPROTO_TCP, 8081, netip.MustParseAddrPort("10.0.0.5:80"), 0}},
	}}
	var plugged []container
	for _, d := range state.Shapes {
		w.apply(d)
		p := w.plug(d.ID, d.Bridges[0], "10.0.0.5")
		p.port.Allowed = []AllowedAddress{{Prefix: netip.MustParsePrefix("10.0.0.64/28")}}
		must(w.t, changePorts(context.Background(), w.f, d.ID, nil, []Port{p.port}))
		must(w.t, changeForwards(context.Background(), w.f, d.ID, nil, state.Forwards[d.ID]))
		plugged = append(plugged, p)
		state.Ports[d.ID] = []Port{p.port}
	}
	return state, plugged
}

func (w *world) mustMatch(state State) {
	w.t.Helper()
	diffs, err := w.f.Diff(context.Background(), state)
	must(w.t, err)
	for _, d := range diffs {
		w.t.Errorf("differs: %s", d)
	}
}

const foreign = `
ip link add kr-foreign type veth peer name krf2; ip link add br-foreign type bridge
ip link set br-foreign up; ip link set krf2 up
ip addr add 203.0.113.1/24 dev br-foreign; ip route add 203.0.113.128/25 dev br-foreign
ip route add 192.0.2.0/24 dev br-foreign proto 77
ip neigh add proxy 203.0.113.9 dev br-foreign
nft add table inet other; nft add chain inet other input '{ type filter hook input priority 0; }'
nft add table bridge kuryr`

func foreignImage(w *world) string {
	return w.sh(
		w.host,
		"ip -o link show br-foreign | sed 's/state.*//'; ip -o link show kr-foreign | sed "+
			"'s/state.*//'; ip addr show dev br-foreign | grep 203; ip route show dev br-foreign; ip "+
			"neigh show proxy dev br-foreign; nft list table inet other; nft list table bridge kuryr; "+
			"sysctl net.ipv4.ip_forward net.ipv4.conf.ext0.route_localnet",
	)
}

func TestReconcileAfterDamage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.sh(w.host, foreign)
	state, plugged := scene(w)
	before := foreignImage(w)
	w.mustMatch(state)
	a, b := state.Shapes[0], state.Shapes[1]
	nsA, nsB := w.router(a.ID), w.router(b.ID)
	alone := false
	hit := func(ns netns.NsHandle, script string) {
		t.Helper()
		// after other damage there may be nothing left to be damaged
		if out, err := w.try(ns, script); err != nil && alone {
			t.Fatalf("%s: %v: %s", script, err, out)
		}
	}
	kinds := []struct {
		name string
		do   func()
	}{
		{"host table gone", func() { hit(w.host, "nft delete table inet kuryr") }},
		{"host chain flushed", func() { hit(w.host, "nft flush chain inet kuryr forward") }},
		{"host rule added", func() { hit(w.host, "nft insert rule inet kuryr forward accept") }},
		{"host element gone", func() { hit(w.host, "nft flush map inet kuryr published4") }},
		{"host element more", func() { hit(w.host, "nft add element inet kuryr floating4 '{ 1.2.3.4 }'") }},
		{"router ruleset gone", func() { hit(nsA, "nft flush ruleset") }},
		{"guard set flushed", func() { hit(nsA, "nft flush set bridge kuryr ip4; nft flush set bridge kuryr ip4_range") }},
		{"uplink gone", func() { hit(w.host, "ip link del "+UplinkName(a.ID)) }},
		{"uplink down", func() { hit(nsB, "ip link set up0 down") }},
		{"uplink alias gone", func() { hit(w.host, "ip link set "+UplinkName(b.ID)+" alias ''") }},
		{"uplink address gone", func() { hit(w.host, "ip addr flush dev "+UplinkName(b.ID)) }},
		{"way back of ::1 gone", func() { hit(w.host, "ip -6 route flush table local proto 75") }},
		{"way back of ::1 more", func() {
			hit(w.host, "ip -6 route add local ::1/128 dev ext0 table local metric 2049 proto 75")
		}},
		{"host element of one address gone", func() { hit(w.host, "nft flush map inet kuryr published_at6") }},
		{"router's origins gone", func() { hit(nsA, "nft flush set inet kuryr origin4") }},
		{"host routes gone", func() { hit(w.host, "ip route flush dev "+UplinkName(a.ID)+" proto 75") }},
		{"stale host route", func() { hit(w.host, "ip route add 192.0.2.99/32 dev ext0 proto 75") }},
		{"router routes gone", func() { hit(nsB, "ip route flush proto 75") }},
		{"bridge gone", func() { hit(nsA, "ip link del "+BridgeName(a.Bridges[0].Network)) }},
		{"bridge changed", func() {
			hit(
				nsB,
				"ip link set "+BridgeName(b.Bridges[0].Network)+
					" mtu 1280 address 02:00:00:00:00:09; ip addr add 10.9.9.9/24 dev "+
					BridgeName(b.Bridges[0].Network),
			)
		}},
		{"sysctl changed", func() { hit(nsB, "sysctl -qw net.ipv4.ip_forward=0") }},
		{"proxy neighbour gone", func() { hit(w.host, "ip neigh del proxy 198.51.100.50 dev ext0 || true") }},
		{"stale pin", func() { must(t, os.WriteFile(w.store.Path("0badc0de-stale"), nil, 0o444)) }},
		{"stale router", func() {
			w.apply(Shape{ID: newID(), Bridges: []Bridge{bridge("10.7.0.1/24")}, Uplink: uplink("100.64.0.77")})
		}},
		{"stale tap", func() { hit(nsA, "ip link add tapdeadbeef-00 type veth peer name x") }},
		{"tap released", func() { hit(nsA, "ip link set "+TapName(plugged[0].port.ID)+" nomaster") }},
	}
	seed := time.Now().UnixNano()
	random := rand.New(rand.NewSource(seed))
	rounds := append([][]int{}, []int{})
	for i := range kinds {
		rounds = append(rounds, []int{i})
	}
	for range 5 {
		rounds = append(rounds, random.Perm(len(kinds))[:6])
	}
	for _, round := range rounds {
		var names []string
		for _, i := range round {
			alone = len(round) == 1
			kinds[i].do()
			names = append(names, kinds[i].name)
		}
		diffs, err := w.f.Diff(context.Background(), state)
		must(t, err)
		if len(round) > 0 && len(diffs) == 0 {
			t.Errorf("%v: no difference seen", names)
		}
		if _, err := w.f.Reconcile(context.Background(), state); err != nil {
			t.Fatalf("seed %d: %v: %v", seed, names, err)
		}
		report, err := w.f.Reconcile(context.Background(), state)
		must(t, err)
		for _, d := range report.Changed {
			t.Errorf("seed %d: %v: still differed after a reconcile: %s", seed, names, d)
		}
		for _, p := range plugged[:2] {
			if !nstest.Ping(t, p.ns, neighbourAddr4, nstest.Limit) {
				t.Errorf("seed %d: %v: no way out afterwards", seed, names)
			}
		}
		if t.Failed() {
			t.FailNow()
		}
	}
	if after := foreignImage(w); after != before {
		t.Errorf("foreign things changed:\n%s\nwere\n%s", after, before)
	}

	must(t, w.f.Down(context.Background()))
	must(t, w.f.Down(context.Background()))
	if after := foreignImage(w); after != before {
		t.Errorf("foreign things changed:\n%s\nwere\n%s", after, before)
	}
	if names, _ := w.store.List(); len(names) != 0 {
		t.Errorf("namespaces left: %v", names)
	}
	if left := w.sh(
		w.host,
		"ip link | grep kuryr || true; ip route show proto 75; ip -6 route show proto 75; ip -6 "+
			"route show table local proto 75; nft list tables | grep 'inet kuryr' || true; ip neigh "+
			"show proxy | grep 198 || true",
	); left != "" {
		t.Errorf("left in the host:\n%s", left)
	}
}

// TestRestart checks that a new process's reconcile changes nothing and loses no packet. A busy
// machine may lose one as well, but hardly in each of three rounds.
func TestRestart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	state, plugged := scene(w)
	w.meets(plugged[0].ns, neighbourAddr4)
	var out []byte
	for range 3 {
		var whole bool
		if out, whole = restarted(w, state, plugged[0].ns); whole {
			return
		}
	}
	t.Errorf("traffic was interrupted three times:\n%s", out)
}

// restarted has processes follow one another while a container pings, and reports whether all
// answers came.
func restarted(w *world, state State, from netns.NsHandle) (out []byte, whole bool) {
	t := w.t
	t.Helper()
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		nstest.Do(t, from, func() {
			out, err = exec.Command("ping", "-n", "-i", "0.01", "-c", "100", "-W", "20", neighbourAddr4).CombinedOutput()
		})
	}()
	for range 10 {
		var f *Kernel
		var nerr error
		nstest.Do(t, w.host, func() { f, nerr = New(w.f.options) })
		must(t, nerr)
		report, rerr := f.Reconcile(context.Background(), state)
		must(t, rerr)
		if len(report.Changed) != 0 {
			t.Errorf("changed: %v", report.Changed)
		}
		must(t, f.Close())
	}
	<-done
	return out, err == nil && strings.Contains(string(out), " 0% packet loss")
}

func TestMigration(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx := context.Background()
	router := Shape{ID: newID(), Uplink: uplink("100.64.0.2")}
	alone := Shape{ID: newID()}
	alone.Bridges = []Bridge{{Network: alone.ID, Addrs: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/24")}, MTU: 1500}}
	w.apply(router)
	w.apply(alone)
	a, b := w.plug(alone.ID, alone.Bridges[0], "10.0.0.5"), w.plug(alone.ID, alone.Bridges[0], "10.0.0.6")
	w.reaches(a.ns, "10.0.0.6", true)
	w.reaches(a.ns, neighbourAddr4, false)

	attached := router
	attached.Bridges = alone.Bridges
	w.apply(attached)
	must(t, w.f.Delete(ctx, alone.ID))
	w.reaches(a.ns, "10.0.0.6", true)
	w.reaches(a.ns, neighbourAddr4, true)
	state := State{Shapes: []Shape{attached}, Ports: map[string][]Port{router.ID: {a.port, b.port}}}
	w.mustMatch(state)

	// back, told to the router first
	w.apply(router)
	w.apply(alone)
	w.reaches(a.ns, "10.0.0.6", true)
	w.reaches(a.ns, neighbourAddr4, false)
	// the router's emptied bridge goes with the migration
	w.mustMatch(State{Shapes: []Shape{router, alone}, Ports: map[string][]Port{alone.ID: {a.port, b.port}}})

	// and by reconcile alone, in a process that knows nothing
	var f *Kernel
	var err error
	nstest.Do(t, w.host, func() { f, err = New(w.f.options) })
	must(t, err)
	if _, err := f.Reconcile(ctx, state); err != nil {
		t.Fatal(err)
	}
	must(t, f.Close())
	w.reaches(a.ns, "10.0.0.6", true)
	w.reaches(a.ns, neighbourAddr4, true)
	w.mustMatch(state)
}

// TestRefusedRoute has a static route that the kernel refuses: it is reported, and
// nothing else suffers.
func TestRefusedRoute(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := Shape{ID: newID(), Bridges: []Bridge{bridge("10.0.0.1/24")}, Uplink: uplink("100.64.0.2")}
	d.Routes = []Route{{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParseAddr("10.9.9.9")}}
	d.Uplink.Floating = []Floating{{netip.MustParseAddr("198.51.100.40"), netip.MustParseAddr("10.0.0.5")}}
	if _, err := applyShape(context.Background(), w.f, d); err == nil || !strings.Contains(err.Error(), "192.0.2.0/24") {
		t.Errorf("error %v, want one that names the route", err)
	}
	c := w.plug(d.ID, d.Bridges[0], "10.0.0.5")
	w.reaches(w.neighbour, "198.51.100.40", true)
	w.sh(w.router(d.ID), "nft flush ruleset")
	w.sh(w.host, "nft flush ruleset")
	other := Shape{ID: newID(), Bridges: []Bridge{bridge("10.1.0.1/24")}}
	report, err := w.f.Reconcile(context.Background(), State{
		Shapes: []Shape{d, other}, Ports: map[string][]Port{d.ID: {c.port}},
	})
	if err == nil || len(report.Changed) == 0 {
		t.Errorf("changed %v, error %v", report.Changed, err)
	}
	if report.Whole[d.ID] || !report.Whole[other.ID] {
		t.Errorf("the whole routers are %v, want %s alone", report.Whole, other.ID)
	}
	w.reaches(w.neighbour, "198.51.100.40", true)
}

func TestForeignLinkIsNotTaken(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := Shape{ID: newID(), Uplink: uplink("100.64.0.2")}
	w.sh(w.host, "ip link add "+UplinkName(d.ID)+" type bridge")
	if _, err := applyShape(context.Background(), w.f, d); err == nil || !strings.Contains(err.Error(), "foreign link") {
		t.Errorf("error %v", err)
	}
	must(t, w.f.Delete(context.Background(), d.ID))
	w.sh(w.host, "ip link show "+UplinkName(d.ID))
}

// TestParallel applies and deletes many routers at once.
func TestParallel(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	done := make(chan error)
	const n = 16
	for i := range n {
		go func() {
			d := Shape{
				ID: newID(), Bridges: []Bridge{bridge("10.0.0.1/24", "fd00::1/64")},
				Uplink: uplink(fmt.Sprintf("100.64.1.%d", i+1)),
			}
			for range 3 {
				if _, err := applyShape(context.Background(), w.f, d); err != nil {
					done <- err
					return
				}
				if err := w.f.Delete(context.Background(), d.ID); err != nil {
					done <- err
					return
				}
			}
			done <- nil
		}()
	}
	for range n {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	must(t, w.f.Down(context.Background()))
	var links []netlink.Link
	var err error
	nstest.Do(t, w.host, func() { links, err = netlink.LinkList() })
	must(t, err)
	for _, l := range links {
		if isUplink(l) {
			t.Errorf("left: %s", l.Attrs().Name)
		}
	}
}
