//go:build linux

package router

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/kuryr/kuryr/datapath/lb"
	"github.com/kuryr/kuryr/internal/nstest"
	"github.com/kuryr/kuryr/sdn"
	"github.com/vishvananda/netns"
)

// balanced is a router with two networks of containers and one of VIPs, as Raven makes
// them, and two endpoints.
type balanced struct {
	*world
	d            Shape
	near, far    container // on the first network and on the second; both answer at port 8080
	client       container // on the first
	vip4, vip6   netip.Addr
	floating     netip.Addr
	service      uint16
	frontends    []lb.Frontend
	vips         []VIP
	allFrontends func() ([]lb.Frontend, error)
}

func newBalanced(t *testing.T) *balanced {
	b := &balanced{
		world: newWorld(t), vip4: netip.MustParseAddr("10.96.0.10"),
		vip6: netip.MustParseAddr("fd00:96::10"), floating: netip.MustParseAddr("198.51.100.30"),
		service: 80,
	}
	b.d = Shape{ID: newID(), Bridges: []Bridge{
		bridge("10.0.0.1/24", "fd00:a::1/64"), bridge("10.0.1.1/24", "fd00:b::1/64"),
		bridge("10.96.255.1/16", "fd00:96::1/64"),
	},
		Uplink: uplink("100.64.0.2", "fd00:6b75::2")}
	b.d.Uplink.Reach = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00:96::/64")}
	b.d.Uplink.Floating = []Floating{{External: b.floating}}
	b.apply(b.d)
	b.near = b.plug(b.d.ID, b.d.Bridges[0], "10.0.0.5", "fd00:a::5")
	b.far = b.plug(b.d.ID, b.d.Bridges[1], "10.0.1.6", "fd00:b::6")
	b.client = b.plug(b.d.ID, b.d.Bridges[0], "10.0.0.7", "fd00:a::7")
	for _, c := range []container{b.near, b.far} {
		b.serve(c.ns, 8080)
	}
	b.vips = []VIP{{b.vip4, b.d.Bridges[2].Network}, {b.vip6, b.d.Bridges[2].Network}, {Addr: b.floating}}
	b.frontends = b.to(b.near, b.far)
	b.allFrontends = func() ([]lb.Frontend, error) { return b.frontends, nil }
	return b
}

// to is the service on all its addresses with endpoints in these containers.
func (b *balanced) to(endpoints ...container) []lb.Frontend { return b.at(8080, endpoints...) }

func (b *balanced) at(port uint16, endpoints ...container) []lb.Frontend {
	var list []lb.Frontend
	for _, at := range []netip.Addr{b.vip4, b.vip6, b.floating} {
		for _, p := range []sdn.Protocol{sdn.TCP, sdn.UDP} {
			f := lb.Frontend{Key: lb.Key{Addr: at, Protocol: p, Port: b.service}}
			for _, c := range endpoints {
				for _, a := range c.port.Addrs {
					if a.Is4() == at.Is4() {
						f.Endpoints = append(f.Endpoints, netip.AddrPortFrom(a, port))
					}
				}
			}
			list = append(list, f)
		}
	}
	return list
}

func (b *balanced) tell() {
	b.t.Helper()
	must(b.t, changeVIPs(context.Background(), b.f, b.d.ID, nil, b.vips))
	must(b.t, changeFrontends(context.Background(), b.f, b.d.ID, nil, b.frontends, b.allFrontends))
}

func (b *balanced) whole() State {
	ports := []Port{b.near.port, b.far.port, b.client.port}
	return State{
		Shapes: []Shape{b.d}, Ports: map[string][]Port{b.d.ID: ports},
		VIPs: map[string][]VIP{b.d.ID: b.vips}, Frontends: map[string][]lb.Frontend{b.d.ID: b.frontends},
	}
}

// sees has a client connect and tells whom the endpoint saw.
func (b *balanced) sees(from netns.NsHandle, network string, at netip.Addr, want string) {
	b.t.Helper()
	addr := netip.AddrPortFrom(at, b.service).String()
	for range 4 { // each endpoint may be the one
		if seen := b.call(from, network, addr); seen != want {
			b.t.Errorf("%s %s: the endpoint sees %q, want %q", network, addr, seen, want)
			return
		}
	}
}

func TestBalancing(t *testing.T) {
	t.Parallel()
	b := newBalanced(t)
	b.tell()
	for _, network := range []string{"tcp", "udp"} {
		b.sees(b.client.ns, network, b.vip4, "10.0.0.7") // its address is kept, on its own bridge too
		b.sees(b.client.ns, network, b.vip6, "fd00:a::7")
		b.sees(b.host, network, b.vip4, "100.64.0.1")
		b.sees(b.host, network, b.vip6, "fd00:6b75::1")
		b.sees(b.neighbour, network, b.floating, neighbourAddr4)
		b.sees(b.client.ns, network, b.floating, "10.0.0.7")
	}
	// An endpoint that reaches itself, by way of the VIP.
	for range 8 {
		if seen := b.call(b.near.ns, "tcp", netip.AddrPortFrom(b.vip4, b.service).String()); seen == "" {
			t.Error("an endpoint does not reach the VIP")
		}
	}
	diffs, err := b.f.Diff(context.Background(), b.whole())
	must(t, err)
	if len(diffs) > 0 {
		t.Errorf("differences: %v", diffs)
	}
}

// refused wants a connection to be refused. Where no host answers ARP there is no route to it.
func (b *balanced) refused(from netns.NsHandle, addr string) {
	b.t.Helper()
	var err error
	nstest.Do(b.t, from, func() { _, err = net.DialTimeout("tcp", addr, nstest.Limit) })
	if err == nil || !strings.Contains(err.Error(), "refused") {
		b.t.Errorf("%s: %v, want it to be refused", addr, err)
	}
}

func TestVIPWithoutFrontendRefuses(t *testing.T) {
	t.Parallel()
	b := newBalanced(t)
	b.tell()
	onLink := b.plug(b.d.ID, b.d.Bridges[2], "10.96.200.7", "fd00:96::7")
	must(t, changeForwards(context.Background(), b.f, b.d.ID, nil, []Forward{
		{Address: netip.IPv4Unspecified(), Protocol: 6, Port: 81, To: netip.MustParseAddrPort("10.0.0.5:8080")},
		{Address: netip.IPv6Unspecified(), Protocol: 6, Port: 81, To: netip.MustParseAddrPort("[fd00:a::5]:8080")},
	}))
	for _, from := range []netns.NsHandle{b.client.ns, onLink.ns, b.host} {
		b.refused(from, netip.AddrPortFrom(b.vip4, 81).String()) // though the host publishes that port
		b.refused(from, netip.AddrPortFrom(b.vip6, 81).String())
	}
	b.refused(b.neighbour, netip.AddrPortFrom(b.floating, 82).String())
	b.sees(onLink.ns, "tcp", b.vip4, "10.96.200.7")
	b.sees(onLink.ns, "tcp", b.vip6, "fd00:96::7")
	// Where all links heed proxy neighbours the kernel looks for one at each packet that it forwards.
	for link, want := range map[string]string{
		"all": "0", "default": "0", BridgeName(b.d.Bridges[0].Network): "0",
		BridgeName(b.d.Bridges[2].Network): "1",
	} {
		if got := strings.TrimSpace(b.sh(b.router(b.d.ID), "cat /proc/sys/net/ipv6/conf/"+link+"/proxy_ndp")); got != want {
			t.Errorf("proxy_ndp of %s is %s, want %s", link, got, want)
		}
	}
	if seen := b.call(b.neighbour, "tcp", hostAddr4+":81"); seen == "" {
		t.Error("the host's published port does not answer")
	}
	must(t, changeVIPs(context.Background(), b.f, b.d.ID, b.vips, nil))
	if out := b.sh(
		b.router(b.d.ID),
		"ip route show table local proto 75; ip -6 route show table local proto 75; ip neigh show proxy",
	); out != "" {
		t.Errorf("left after the VIPs went: %s", out)
	}
}

// An API server answers at an address of the host's, or of another machine.
func TestBalancingToTheOutside(t *testing.T) {
	t.Parallel()
	b := newBalanced(t)
	b.serve(b.host, 6443)
	b.serve(b.neighbour, 6443)
	for _, snat := range []bool{true, false} {
		b.d.Uplink.SNAT = snat
		b.apply(b.d)
		for _, to := range []string{hostAddr4, neighbourAddr4} {
			b.frontends = []lb.Frontend{{
				Key:       lb.Key{Addr: b.vip4, Protocol: sdn.TCP, Port: b.service},
				Endpoints: []netip.AddrPort{netip.MustParseAddrPort(to + ":6443")},
			}}
			b.tell()
			for name, from := range map[string]netns.NsHandle{"a container": b.client.ns, "the host": b.host} {
				if !snat && from == b.client.ns {
					continue // the outside has no route to it
				}
				if seen := b.call(from, "tcp", netip.AddrPortFrom(b.vip4, b.service).String()); seen == "" {
					t.Errorf("%s does not reach a member at %s (SNAT %v)", name, to, snat)
				}
			}
		}
	}
}

func TestBalancingChanges(t *testing.T) {
	t.Parallel()
	b := newBalanced(t)
	ctx := context.Background()
	b.tell()
	asked := func() ([]lb.Frontend, error) { return nil, errors.New("asked for all") }
	b.frontends = b.to(b.far)
	must(t, changeFrontends(ctx, b.f, b.d.ID, nil, b.frontends, asked))
	b.sees(b.far.ns, "tcp", b.vip4, "10.0.1.1") // itself, so it is masqueraded: the other is gone
	b.frontends = b.to()
	must(t, changeFrontends(ctx, b.f, b.d.ID, nil, b.frontends, asked))
	b.refused(b.client.ns, netip.AddrPortFrom(b.vip4, b.service).String())
	b.frontends = b.to(b.near)
	must(t, changeFrontends(ctx, b.f, b.d.ID, nil, b.frontends, asked))
	b.sees(b.client.ns, "udp", b.vip4, "10.0.0.7")
	// A network that comes later has clients and endpoints on its bridge too.
	late := bridge("10.0.9.1/24")
	b.d.Bridges = append(b.d.Bridges, late)
	b.apply(b.d)
	one, two := b.plug(b.d.ID, late, "10.0.9.5"), b.plug(b.d.ID, late, "10.0.9.6")
	b.serve(one.ns, 8080)
	b.frontends = b.to(one)
	must(t, changeFrontends(ctx, b.f, b.d.ID, nil, b.frontends, asked))
	b.sees(two.ns, "tcp", b.vip4, "10.0.9.6")
	var keys []lb.Key
	for _, f := range b.frontends {
		keys = append(keys, f.Key)
	}
	must(t, changeFrontends(ctx, b.f, b.d.ID, keys, nil, asked))
	b.refused(b.client.ns, netip.AddrPortFrom(b.vip4, b.service).String())
	if err := changeFrontends(ctx, b.f, newID(), nil, b.frontends, asked); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("of an absent router: %v", err)
	}
	must(t, changeFrontends(ctx, b.f, newID(), keys, nil, asked))
}

// Another process takes over: what works goes on all the while, and connections live on.
func TestBalancingTakenOver(t *testing.T) {
	t.Parallel()
	b := newBalanced(t)
	ctx := context.Background()
	b.tell()
	image := b.image(b.router(b.d.ID))
	stop, failed := make(chan struct{}), make(chan int)
	go func() {
		bad := 0
		for {
			select {
			case <-stop:
				failed <- bad
				return
			default:
			}
			if b.call(b.client.ns, "tcp", netip.AddrPortFrom(b.vip4, b.service).String()) == "" {
				bad++
			}
		}
	}()
	for range 3 {
		next := b.another()
		report, err := next.Reconcile(ctx, b.whole())
		must(t, err)
		if len(report.Changed) > 0 {
			t.Errorf("changed: %v", report.Changed)
		}
		b.frontends = b.to(b.far, b.near) // the same
		must(t, changeFrontends(ctx, next, b.d.ID, nil, b.frontends, nil))
		diffs, err := next.Diff(ctx, b.whole())
		must(t, err)
		if len(diffs) > 0 {
			t.Errorf("differences: %v", diffs)
		}
		must(t, next.Close())
	}
	close(stop)
	if n := <-failed; n > 0 {
		t.Errorf("%d connections failed", n)
	}
	if again := b.image(b.router(b.d.ID)); again != image {
		t.Errorf("the router changed:\n%s\nwas\n%s", again, image)
	}
	long := b.talk()
	next := b.another()
	_, err := next.Reconcile(ctx, b.whole())
	must(t, err)
	must(t, next.Close())
	long("after a restart")
	b.frontends = b.to(b.near)
	must(t, changeFrontends(ctx, b.f, b.d.ID, nil, b.frontends, nil))
	long("after its endpoint went")
	must(t, changeFrontends(ctx, b.f, b.d.ID, nil, b.to(b.far, b.near), nil))
	b.frontends = b.to(b.far, b.near)
}

// talk begins a connection to the far endpoint by the VIP; the function it returns wants
// it to be alive.
func (b *balanced) talk() (alive func(when string)) {
	b.t.Helper()
	must(b.t, changeFrontends(context.Background(), b.f, b.d.ID, nil, b.at(8081, b.far), nil))
	var l net.Listener
	var err error
	nstest.Do(b.t, b.far.ns, func() { l, err = net.Listen("tcp", ":8081") })
	must(b.t, err)
	go func() {
		if c, err := l.Accept(); err == nil {
			_, _ = io.Copy(c, c)
		}
	}()
	var c net.Conn
	nstest.Do(b.t, b.client.ns, func() {
		c, err = net.DialTimeout("tcp", netip.AddrPortFrom(b.vip4, b.service).String(), nstest.Limit)
	})
	must(b.t, err)
	b.t.Cleanup(func() { _, _ = c.Close(), l.Close() })
	must(b.t, changeFrontends(context.Background(), b.f, b.d.ID, nil, b.frontends, nil))
	return func(when string) {
		b.t.Helper()
		_ = c.SetDeadline(time.Now().Add(nstest.Limit))
		_, err := c.Write([]byte("?"))
		if err == nil {
			_, err = c.Read(make([]byte, 1))
		}
		if err != nil {
			b.t.Errorf("a connection is dead %s: %v", when, err)
		}
	}
}

// another is a Kernel as of the next process.
func (b *balanced) another() *Kernel {
	b.t.Helper()
	var f *Kernel
	var err error
	nstest.Do(b.t, b.host, func() { f, err = New(b.f.options) })
	must(b.t, err)
	return f
}

func TestBalancingDamageIsFoundAndMended(t *testing.T) {
	t.Parallel()
	b := newBalanced(t)
	ctx := context.Background()
	b.tell()
	for what, damage := range map[string]string{
		"VIP":                 "ip route del local 10.96.0.10 table local",
		"proxy neighbour":     "ip neigh del proxy fd00:96::10 dev " + BridgeName(b.d.Bridges[2].Network),
		"VIP 10.96.7.7":       "ip route add local 10.96.7.7 dev lo table local proto 75",
		"nft":                 "nft flush map inet kuryr_lb endpoint4",
		"the table's absence": "nft delete table inet kuryr_lb",
		"proxy_ndp":           "echo 0 >/proc/sys/net/ipv6/conf/" + BridgeName(b.d.Bridges[2].Network) + "/proxy_ndp",
		"the VIPs' bridge":    "ip link del " + BridgeName(b.d.Bridges[2].Network),
	} {
		b.sh(b.router(b.d.ID), damage)
		diffs, err := b.f.Diff(ctx, b.whole())
		must(t, err)
		if len(diffs) == 0 {
			t.Errorf("%s: no difference is found", what)
		}
		_, err = b.f.Reconcile(ctx, b.whole())
		must(t, err)
		if diffs, err = b.f.Diff(ctx, b.whole()); err != nil || len(diffs) > 0 {
			t.Errorf("%s: differences after mending: %v, %v", what, diffs, err)
		}
		b.sees(b.client.ns, "tcp", b.vip4, "10.0.0.7")
	}
	// What the kernel is not told of load balancers hinders no forwarding.
	wrong := b.whole()
	wrong.Frontends = map[string][]lb.Frontend{b.d.ID: append(b.to(b.near), b.to(b.near)...)}
	wrong.Forwards = map[string][]Forward{b.d.ID: {{
		Address: netip.IPv4Unspecified(), Protocol: 6, Port: 81,
		To: netip.MustParseAddrPort("10.0.0.5:8080"),
	}}}
	if _, err := b.f.Reconcile(ctx, wrong); !sdn.IsInvalid(err) {
		t.Errorf("two frontends of one key: %v", err)
	}
	if seen := b.call(b.neighbour, "tcp", hostAddr4+":81"); seen == "" {
		t.Error("the host's published port does not answer")
	}
	// What no load balancer has any more.
	b.vips, b.frontends = nil, nil
	next := b.another()
	_, err := next.Reconcile(ctx, b.whole())
	must(t, err)
	must(t, next.Close())
	if out := b.sh(
		b.router(b.d.ID), "nft list tables; ip route show table local proto 75; ip neigh show proxy",
	); strings.Contains(out, "kuryr_lb") || strings.Contains(out, "local") {
		t.Errorf("left:\n%s", out)
	}
}

// TestSharesOfBalancersStay has the next process look at a router without an uplink that
// has load balancers: nothing differs.
func TestSharesOfBalancersStay(t *testing.T) {
	t.Parallel()
	b := newBalanced(t)
	ctx := context.Background()
	b.d.Uplink = nil
	b.vips = b.vips[:2]
	b.frontends = b.frontends[:len(b.vips)]
	_, err := b.f.Reconcile(ctx, b.whole())
	must(t, err)
	if tables := b.sh(b.router(b.d.ID), "nft list tables"); !strings.Contains(tables, "kuryr_share") {
		t.Fatalf("no share table: %s", tables)
	}
	next := b.another()
	report, err := next.Reconcile(ctx, b.whole())
	must(t, err)
	if len(report.Changed) > 0 {
		t.Errorf("the next process changes %v", report.Changed)
	}
	b.frontends, b.vips = nil, nil
	for range 2 { // the table goes with the load balancers, and then the shares
		_, err = b.another().Reconcile(ctx, b.whole())
		must(t, err)
	}
	if tables := b.sh(b.router(b.d.ID), "nft list tables"); strings.Contains(tables, "kuryr_share") {
		t.Errorf("left: %s", tables)
	}
}
