//go:build linux

package router

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kuryr/kuryr/internal/nstest"
	"golang.org/x/sys/unix"
)

// twoRouters have the same ranges behind them.
func twoRouters() (a, b Shape) {
	return Shape{
			ID:      newID(),
			Bridges: []Bridge{bridge("10.0.0.1/24", "fd00:a::1/64"), bridge("10.0.1.1/24", "fd00:b::1/64")},
			Uplink:  uplink("100.64.0.2", "fd00:6b75::2"),
		},
		Shape{
			ID: newID(), Bridges: []Bridge{bridge("10.0.0.1/24", "fd00:a::1/64")},
			Uplink: uplink("100.64.0.3", "fd00:6b75::3"),
		}
}

func TestApplyTwiceIsOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, _ := twoRouters()
	a.Routes = []Route{{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParseAddr("10.0.0.7")}}
	a.Uplink.Reach = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24"), netip.MustParsePrefix("198.51.0.0/16")}
	a.Uplink.Floating = []Floating{{netip.MustParseAddr("198.51.100.20"), netip.MustParseAddr("10.0.0.5")}}
	result := w.apply(a)
	if len(result.Unreached) != 1 || result.Unreached[0].Prefix != a.Uplink.Reach[1] ||
		!strings.Contains(result.Unreached[0].Reason, "ext0") {
		t.Errorf("unreached: %v", result.Unreached)
	}
	host, inside := w.image(w.host), w.image(w.router(a.ID))
	for _, want := range []string{
		BridgeName(a.Bridges[0].Network), "10.0.0.1/24", "fd00:a::1/64", "192.0.2.0/24 via 10.0.0.7",
		"default via 100.64.0.1 dev up0", "default via fe80::1 dev up0",
	} {
		if !strings.Contains(inside, want) {
			t.Errorf("router has no %q", want)
		}
	}
	for _, want := range []string{
		UplinkName(a.ID), "kuryr:router:" + a.ID, "100.64.0.2 dev", "198.51.100.20 via 100.64.0.2",
		"10.0.0.0/24 via 100.64.0.2", "198.51.100.20 dev ext0",
	} {
		if !strings.Contains(host, want) {
			t.Errorf("host has no %q", want)
		}
	}
	w.apply(a)
	if again := w.image(w.host); again != host {
		t.Errorf("host changed by the second application:\n%s\nwas\n%s", again, host)
	}
	if again := w.image(w.router(a.ID)); again != inside {
		t.Errorf("router changed by the second application:\n%s\nwas\n%s", again, inside)
	}
	if t.Failed() {
		t.Log(host, inside)
	}
	diffs, err := w.f.Diff(context.Background(), State{Shapes: []Shape{a}})
	must(t, err)
	if len(diffs) != 0 {
		t.Errorf("differences: %v", diffs)
	}
}

func TestTrafficAndDrops(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := twoRouters()
	a.Uplink.Reach = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24"), netip.MustParsePrefix("fd00:a::/64")}
	w.apply(a)
	w.apply(b)
	a1 := w.plug(a.ID, a.Bridges[0], "10.0.0.5", "fd00:a::5")
	a2 := w.plug(a.ID, a.Bridges[1], "10.0.1.6", "fd00:b::6")
	b1 := w.plug(b.ID, b.Bridges[0], "10.0.0.5", "fd00:a::5")
	for _, c := range []container{a1, a2, b1} {
		w.reaches(c.ns, neighbourAddr4, true)
		w.reaches(c.ns, hostAddr4, true)
	}
	w.sh(w.neighbour, "ip -6 route add default via "+hostAddr6)
	w.sh(w.host, "ip -6 route add default via "+neighbourAddr6)
	for _, c := range []container{a1, b1} {
		w.reaches(c.ns, neighbourAddr6, true)
	}
	// within the router
	w.reaches(a1.ns, "10.0.1.6", true)
	w.reaches(a1.ns, "fd00:b::6", true)
	// the host itself
	w.reaches(w.host, "10.0.0.5", true)
	w.reaches(w.host, "fd00:a::5", true)
	// from the outside, and from router to router, with routes as an attacker would set them
	w.sh(w.neighbour, "ip route add 10.0.0.0/24 via "+hostAddr4+"; ip route add 100.64.0.0/16 via "+hostAddr4)
	var tries sync.WaitGroup
	for _, to := range []string{"10.0.0.5", "fd00:a::5", "100.64.0.2"} {
		tries.Go(func() { w.reaches(w.neighbour, to, false) })
	}
	for _, to := range []string{"100.64.0.2", "10.0.1.6"} {
		tries.Go(func() { w.reaches(b1.ns, to, false) })
	}
	tries.Wait()
	w.sh(w.router(b.ID), "ip route add 10.0.1.0/24 via 100.64.0.1 dev up0 onlink")
	w.sh(w.host, "ip route add 10.0.1.0/24 via 100.64.0.2 dev "+UplinkName(a.ID)+" onlink")
	w.reaches(w.host, "10.0.1.6", true) // the way is there
	w.reaches(b1.ns, "10.0.1.6", false)
}

func TestMTU(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := Shape{ID: newID(), Bridges: []Bridge{bridge("10.0.0.1/24")}, Uplink: uplink("100.64.0.2")}
	d.Bridges[0].MTU, d.Uplink.MTU = 1400, 1400
	w.sh(w.host, "ip link set ext0 mtu 1400")
	if mtu, err := w.f.UplinkMTU(context.Background()); err != nil || mtu != 1400 {
		t.Errorf("uplink MTU %d, %v", mtu, err)
	}
	w.apply(d)
	c := w.plug(d.ID, d.Bridges[0], "10.0.0.5")
	w.reaches(c.ns, neighbourAddr4, true)
	if _, err := w.try(c.ns, "ping -M do -c1 -w20 -s 1372 "+neighbourAddr4); err != nil {
		t.Error("a packet of the MTU does not pass")
	}
	d.Bridges[0].MTU, d.Uplink.MTU = 1300, 1300
	w.apply(d)
	if out := w.sh(w.router(d.ID), "ip link"); strings.Count(out, "mtu 1300") != 2 {
		t.Errorf("MTU not changed:\n%s", out)
	}
}

// TestWithoutIPv6 has uplinks where the host has no IPv6: too small an MTU, switched off
// for new links, not in the kernel.
func TestWithoutIPv6(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := Shape{ID: newID(), Bridges: []Bridge{bridge("10.0.0.1/24")}, Uplink: uplink("100.64.0.2")}
	d.Uplink.MTU = 1200
	w.apply(d)
	first := w.plug(d.ID, d.Bridges[0], "10.0.0.5")
	w.reaches(first.ns, neighbourAddr4, true)

	w.sh(w.host, "sysctl -qw net.ipv6.conf.default.disable_ipv6=1")
	off := Shape{
		ID: newID(), Bridges: []Bridge{bridge("10.0.0.1/24", "fd00:a::1/64")},
		Uplink: uplink("100.64.0.3", "fd00:6b75::3"),
	}
	w.apply(off)
	c := w.plug(off.ID, off.Bridges[0], "10.0.0.5", "fd00:a::5")
	w.reaches(c.ns, hostAddr4, true)
	w.reaches(c.ns, hostEnd(netip.MustParsePrefix("fd00:6b75::/64")).String(), true)

	must(t, w.f.Delete(context.Background(), off.ID))
	w.f.ipv4Only = true // as with ipv6.disable=1
	w.sh(w.host, "sysctl -qw net.ipv6.conf.all.disable_ipv6=1")
	lacking, _ := twoRouters()
	lacking.Uplink.Addrs[0] = netip.MustParseAddr("100.64.0.4")
	lacking.Uplink.Reach = []netip.Prefix{netip.MustParsePrefix("fd00:a::/64")}
	lacking.Uplink.Floating = []Floating{{External: netip.MustParseAddr("2001:db8:51::50")}}
	lacking.Routes = []Route{{netip.MustParsePrefix("2001:db8::/32"), netip.MustParseAddr("fd00:a::9")}}
	w.apply(lacking)
	forwards := []Forward{
		{netip.IPv4Unspecified(), unix.IPPROTO_TCP, 8080, netip.MustParseAddrPort("10.0.0.5:80"), 0},
		{netip.IPv6Unspecified(), unix.IPPROTO_TCP, 8080, netip.MustParseAddrPort("[fd00:a::5]:80"), 0},
	}
	must(t, changeForwards(context.Background(), w.f, lacking.ID, nil, forwards))
	four := w.plug(lacking.ID, lacking.Bridges[0], "10.0.0.5")
	w.serve(four.ns, 80)
	if w.call(w.neighbour, "tcp", hostAddr4+":8080") == "" {
		t.Error("published IPv4 does not answer")
	}
	w.mustMatch(State{Shapes: []Shape{d, lacking}, Forwards: map[string][]Forward{lacking.ID: forwards},
		Ports: map[string][]Port{d.ID: {first.port}, lacking.ID: {four.port}}})
	if out := w.sh(
		w.host,
		"ip -6 route show proto 75 dev "+UplinkName(
			lacking.ID,
		)+"; ip -6 addr show dev "+UplinkName(lacking.ID),
	); out != "" {
		t.Errorf("the host has IPv6 all the same:\n%s", out)
	}

	// A kernel without a family answers for all others: so does this one for a family that nobody has.
	s, err := w.f.openHost()
	must(t, err)
	defer s.close()
	if routes, err := s.routesOf(unix.AF_APPLETALK, unix.RT_TABLE_MAIN, 0); err != nil || len(routes) != 0 {
		t.Errorf("routes of a family that the kernel lacks: %v, %v", routes, err)
	}
}

func TestForwards(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := twoRouters()
	fip := netip.MustParseAddr("198.51.100.30")
	a.Uplink.Floating = []Floating{{External: fip}}
	w.apply(a)
	w.apply(b)
	c := w.plug(a.ID, a.Bridges[0], "10.0.0.5", "fd00:a::5")
	same := w.plug(a.ID, a.Bridges[0], "10.0.0.6", "fd00:a::6")
	other := w.plug(a.ID, a.Bridges[1], "10.0.1.6", "fd00:b::6")
	elsewhere := w.plug(b.ID, b.Bridges[0], "10.0.0.5", "fd00:a::5")
	w.serve(c.ns, 80)
	var list []Forward
	for _, p := range []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
		list = append(list,
			Forward{netip.IPv4Unspecified(), p, 8080, netip.MustParseAddrPort("10.0.0.5:80"), 0},
			Forward{netip.IPv6Unspecified(), p, 8080, netip.MustParseAddrPort("[fd00:a::5]:80"), 0},
			Forward{fip, p, 443, netip.MustParseAddrPort("10.0.0.5:80"), 0})
	}
	ctx := context.Background()
	for range 2 {
		must(t, changeForwards(ctx, w.f, a.ID, nil, list))
	}
	w.sh(w.neighbour, "ip -6 route add default via "+hostAddr6)
	for _, network := range []string{"tcp", "udp"} {
		for name, test := range map[string]struct {
			from container
			addr string
			want string // "" any
		}{
			"neighbour":     {container{ns: w.neighbour}, hostAddr4 + ":8080", neighbourAddr4},
			"neighbour v6":  {container{ns: w.neighbour}, "[" + hostAddr6 + "]:8080", neighbourAddr6},
			"floating":      {container{ns: w.neighbour}, "198.51.100.30:443", neighbourAddr4},
			"host":          {container{ns: w.host}, hostAddr4 + ":8080", ""},
			"host v6":       {container{ns: w.host}, "[" + hostAddr6 + "]:8080", ""},
			"host floating": {container{ns: w.host}, "198.51.100.30:443", ""},
			"loopback":      {container{ns: w.host}, "127.0.0.1:8080", "100.64.0.1"},
			"hairpin self":  {c, hostAddr4 + ":8080", ""},
			"hairpin":       {same, hostAddr4 + ":8080", ""},
			"hairpin v6":    {same, "[" + hostAddr6 + "]:8080", ""},
			"hairpin fip":   {same, "198.51.100.30:443", ""},
			"other bridge":  {other, hostAddr4 + ":8080", ""},
			"other router":  {elsewhere, hostAddr4 + ":8080", ""},
			"router to fip": {elsewhere, "198.51.100.30:443", ""},
		} {
			if got := w.call(test.from.ns, network, test.addr); got == "" || test.want != "" && got != test.want {
				t.Errorf("%s %s: the container saw %q, want %q", network, name, got, test.want)
			}
		}
	}
	w.silent(w.neighbour, "tcp", hostAddr4+":8081")
	w.silent(w.neighbour, "tcp", "198.51.100.30:80")
	// another router may not take the port, and removing what is another's takes nothing
	if err := changeForwards(ctx, w.f, b.ID, nil, list[:1]); !errors.Is(err, ErrPublished) {
		t.Errorf("two routers publish one port: %v", err)
	}
	// a new uplink address takes the published ports along
	a.Uplink.Addrs[0] = netip.MustParseAddr("100.64.0.9")
	w.apply(a)
	if w.call(w.neighbour, "tcp", hostAddr4+":8080") == "" {
		t.Error("not published any more after the uplink address changed")
	}
	for range 2 {
		must(t, changeForwards(ctx, w.f, a.ID, list[:1], nil))
	}
	w.silent(w.neighbour, "tcp", hostAddr4+":8080")
	must(t, w.f.Delete(ctx, a.ID))
	must(t, w.f.Delete(ctx, a.ID))
	if out := w.sh(
		w.host,
		"nft list map inet kuryr published4; nft list map inet kuryr published6; nft list set inet "+
			"kuryr floating4; ip route",
	); strings.Contains(out, "elements") && strings.Contains(out, "8080") ||
		strings.Contains(out, "100.64.0.9") || strings.Contains(out, "198.51.100.30") {
		t.Errorf("left in the host:\n%s", out)
	}
	w.apply(a) // at once, under the same name
	want := State{Shapes: []Shape{a, b}, Ports: map[string][]Port{b.ID: {elsewhere.port}}}
	if diffs, err := w.f.Diff(ctx, want); err != nil || len(diffs) != 0 {
		t.Errorf("differences after re-creation: %v, %v", diffs, err)
	}
}

// A floating address, and a port of one, lead to the router's own address on a network.
func TestForwardsToTheRouter(t *testing.T) {
	w := newWorld(t)
	d, _ := twoRouters()
	some, whole := netip.MustParseAddr("198.51.100.30"), netip.MustParseAddr("198.51.100.31")
	own := netip.MustParseAddr("10.0.0.1")
	d.Uplink.Floating = []Floating{{External: some}, {External: whole, Internal: own}}
	w.apply(d)
	forwards := []Forward{{some, unix.IPPROTO_TCP, 443, netip.AddrPortFrom(own, 80), 0}}
	must(t, changeForwards(t.Context(), w.f, d.ID, nil, forwards))
	w.serve(w.router(d.ID), 80)
	inside := w.plug(d.ID, d.Bridges[0], "10.0.0.5")
	for _, addr := range []string{"198.51.100.30:443", "198.51.100.31:80"} {
		if got := w.call(w.neighbour, "tcp", addr); got != neighbourAddr4 {
			t.Errorf("%s sees the neighbour as %q", addr, got)
		}
		if got := w.call(inside.ns, "tcp", addr); got != "10.0.0.5" {
			t.Errorf("%s sees the container as %q", addr, got)
		}
	}
	w.reaches(w.neighbour, whole.String(), true)
}

// TestForwardMoves has clients that call from one UDP socket all the time while the port
// is published, and given to another container.
func TestForwardMoves(t *testing.T) {
	t.Parallel()
	for name, published := range map[string]Forward{
		"every address": {Address: netip.IPv4Unspecified(), Protocol: unix.IPPROTO_UDP, Port: 53},
		"one address":   {Address: netip.MustParseAddr(hostAddr4), Protocol: unix.IPPROTO_UDP, Port: 53, Via: 9053},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			forwardMoves(t, published)
		})
	}
}

func forwardMoves(t *testing.T, published Forward) {
	w := newWorld(t)
	d, _ := twoRouters()
	w.apply(d)
	servers := []container{w.plug(d.ID, d.Bridges[0], "10.0.0.5"), w.plug(d.ID, d.Bridges[1], "10.0.1.5")}
	for i, s := range servers {
		var c net.PacketConn
		var err error
		nstest.Do(t, s.ns, func() { c, err = net.ListenPacket("udp", ":53") })
		must(t, err)
		t.Cleanup(func() { _ = c.Close() })
		go func() {
			b := make([]byte, 8)
			for {
				n, from, err := c.ReadFrom(b)
				if err != nil {
					return
				}
				_, _ = c.WriteTo(append(b[:n:n], byte(i)), from)
			}
		}()
	}
	dial := func() (client net.Conn) {
		var err error
		nstest.Do(t, w.neighbour, func() { client, err = net.Dial("udp", hostAddr4+":53") })
		must(t, err)
		t.Cleanup(func() { _ = client.Close() })
		return client
	}
	early, client := dial(), dial()
	asked := byte(0)
	ask := func(client net.Conn) int {
		b := make([]byte, 8)
		for range 20 {
			asked++ // so that a late answer is not taken for the one to this question
			_, _ = client.Write([]byte{asked})
			_ = client.SetReadDeadline(time.Now().Add(time.Second))
			for {
				n, err := client.Read(b)
				if err != nil {
					break
				}
				if n == 2 && b[0] == asked {
					return int(b[1])
				}
			}
		}
		return -1
	}
	forward := func(i int) []Forward {
		published.To = netip.AddrPortFrom(servers[i].port.Addrs[0], 53)
		return []Forward{published}
	}
	// this flow leads to the host itself, and the next to the router, as between the two
	// halves of the update
	_, _ = early.Write([]byte{0})
	element := "published4 '{ udp . 53 : 100.64.0.2 . 53 }'"
	if published.Via != 0 {
		element = "published_at4 '{ " + hostAddr4 + " . udp . 53 : 100.64.0.2 . 9053 }'"
	}
	w.sh(w.host, "nft add element inet kuryr "+element)
	_, _ = client.Write([]byte{0})
	must(t, changeForwards(context.Background(), w.f, d.ID, nil, forward(0)))
	for _, c := range []net.Conn{early, client} {
		if got := ask(c); got != 0 {
			t.Fatalf("server %d answers, want the first", got)
		}
	}
	must(t, changeForwards(context.Background(), w.f, d.ID, forward(0), forward(1)))
	if got := ask(client); got != 1 {
		t.Errorf("server %d answers, want the second", got)
	}
	// A killed run's change is found by a comparison: back to the first, to nowhere, and
	// from there to the second.
	state := State{
		Shapes: []Shape{d}, Ports: map[string][]Port{d.ID: {servers[0].port, servers[1].port}},
		Forwards: map[string][]Forward{d.ID: forward(0)},
	}
	for _, want := range []int{0, -1, 1} {
		state.Forwards[d.ID] = nil
		if want >= 0 {
			state.Forwards[d.ID] = forward(want)
		}
		if _, err := w.f.Reconcile(context.Background(), state); err != nil {
			t.Fatal(err)
		}
		if want < 0 {
			_, _ = client.Write([]byte{0})
		} else if got := ask(client); got != want {
			t.Errorf("after a reconcile server %d answers, want %d", got, want)
		}
	}
}

func TestFloating(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := twoRouters()
	a.Uplink.Floating = []Floating{{netip.MustParseAddr("198.51.100.40"), netip.MustParseAddr("10.0.0.5")}}
	w.apply(a)
	w.apply(b)
	c := w.plug(a.ID, a.Bridges[0], "10.0.0.5")
	d := w.plug(b.ID, b.Bridges[0], "10.0.0.5")
	w.serve(c.ns, 80)
	w.serve(w.neighbour, 99)
	w.reaches(w.neighbour, "198.51.100.40", true)
	w.reaches(d.ns, "198.51.100.40", true)
	w.reaches(w.host, "198.51.100.40", true)
	if seen := w.call(c.ns, "tcp", neighbourAddr4+":99"); seen != "198.51.100.40" {
		t.Errorf("the neighbour saw %q, want the floating address", seen)
	}
	if seen := w.call(d.ns, "tcp", neighbourAddr4+":99"); seen != hostAddr4 {
		t.Errorf("the neighbour saw %q, want the host's address", seen)
	}
	a.Uplink.Floating[0].External = netip.MustParseAddr("198.51.100.41")
	w.apply(a)
	w.sh(w.neighbour, "ip neigh flush all")
	w.reaches(w.neighbour, "198.51.100.41", true)
	w.reaches(w.neighbour, "198.51.100.40", false)
	// moving it to another router, told to the new one first
	b.Uplink.Floating = []Floating{{netip.MustParseAddr("198.51.100.41"), netip.MustParseAddr("10.0.0.5")}}
	a.Uplink.Floating = nil
	w.apply(b)
	w.apply(a)
	w.serve(d.ns, 81)
	if w.call(w.neighbour, "tcp", "198.51.100.41:81") == "" {
		t.Error("the moved floating address does not answer")
	}
}
