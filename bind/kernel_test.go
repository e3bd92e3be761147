//go:build linux

package bind

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kuryr/kuryr/internal/nstest"
	"github.com/kuryr/kuryr/sdn"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

func TestPlugIntoNamespace(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := nstest.New(t), nstest.New(t)
	nstest.Do(t, a, func() {
		lo, err := netlink.LinkByName("lo")
		must(t, err)
		must(t, netlink.LinkSetDown(lo))
	})
	pa, pb := w.port(), w.port()
	r := w.plug(w.in(pa, a))
	// Immediately, and each only once: what Plug returns must carry the first packet.
	ping(t, a, "10.1.0.1")
	ping(t, a, "fd00:1::1")
	w.plug(w.in(pb, b))
	ping(t, a, pb.Addresses[0].Addr.String())
	ping(t, b, pa.Addresses[1].Addr.String())
	ping(t, a, "127.0.0.1")

	if r.HostName != "tap"+string(pa.ID[:11]) || r.Name != "eth0" ||
		r.MAC.String() != pa.MAC.String() || r.MTU != testMTU || r.Namespace != path(a) {
		t.Errorf("result is %+v", r)
	}
	wantNames(t, w.host)
	nstest.Do(t, w.router, func() {
		l, err := netlink.LinkByName(r.HostName)
		must(t, err)
		if at := l.Attrs(); at.Alias != "kuryr:port:"+string(pa.ID) || at.MTU != testMTU ||
			at.Group != groupPort || at.HardwareAddr[0] != 0xfe || at.OperState != netlink.OperUp ||
			at.RawFlags&unix.IFF_NOARP == 0 {
			t.Errorf("host end is %+v", at)
		}
		if addrs, err := netlink.AddrList(l, netlink.FAMILY_ALL); err != nil || len(addrs) > 0 {
			t.Errorf("host end has addresses %v, %v", addrs, err)
		}
	})
	nstest.Do(t, a, func() {
		l, err := netlink.LinkByName("eth0")
		must(t, err)
		if at := l.Attrs(); at.MTU != testMTU || at.HardwareAddr.String() != pa.MAC.String() {
			t.Errorf("container end is %+v", at)
		}
		var have []string
		addrs, err := netlink.AddrList(l, netlink.FAMILY_ALL)
		must(t, err)
		for _, x := range addrs {
			if x.Flags&unix.IFA_F_TENTATIVE != 0 || x.Flags&unix.IFA_F_PERMANENT == 0 {
				t.Errorf("address %s has flags %x", x.IPNet, x.Flags)
			}
			have = append(have, x.IPNet.String())
		}
		want := fmt.Sprintf("%s/16 %s/64 %s/64", pa.Addresses[0].Addr, pa.Addresses[1].Addr, linkLocal(pa.MAC))
		if got := strings.Join(have, " "); len(have) != 3 || !sameWords(got, want) {
			t.Errorf("addresses are %s, want %s", got, want)
		}
		var routes []string
		for _, f := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
			list, err := netlink.RouteList(l, f)
			must(t, err)
			for _, r := range list {
				if r.Gw != nil {
					routes = append(routes, fmt.Sprintf("%s>%s", r.Dst, r.Gw))
				}
			}
		}
		if got, want := strings.Join(routes, " "), "0.0.0.0/0>10.1.0.1 192.0.2.0/24>10.1.0.9 "+
			"::/0>fd00:1::1 2001:db8::/32>fd00:1::9"; !sameWords(got, want) {
			t.Errorf("routes are %s, want %s", got, want)
		}
		if ra, err := os.ReadFile("/proc/sys/net/ipv6/conf/eth0/accept_ra"); err != nil || string(ra) != "0\n" {
			t.Errorf("accept_ra is %q, %v", ra, err)
		}
	})

	w.unplug(pa)
	w.collect()
	wantNames(t, a)
	wantNames(t, w.router, HostName(pb.ID))
}

// gateways lists the main table's routes by way of a gateway, with their interface.
func gateways(t *testing.T, ns netns.NsHandle) string {
	t.Helper()
	var have []string
	nstest.Do(t, ns, func() {
		list, err := netlink.RouteList(nil, netlink.FAMILY_ALL)
		must(t, err)
		for _, r := range list {
			if r.Gw == nil {
				continue
			}
			l, err := netlink.LinkByIndex(r.LinkIndex)
			must(t, err)
			have = append(have, fmt.Sprintf("%s>%s>%s", r.Dst, r.Gw, l.Attrs().Name))
		}
	})
	return strings.Join(have, " ")
}

// TestSecondNetwork attaches a second network. The routes of the first stay, in both
// families, and stay when the second leaves. The second has the routes that the first has
// not.
func TestSecondNetwork(t *testing.T) {
	t.Parallel()
	const first = "0.0.0.0/0>10.1.0.1>eth0 192.0.2.0/24>10.1.0.9>eth0 " +
		"2001:db8::/32>fd00:1::9>eth0 ::/0>fd00:1::1>eth0"
	addr, cidr := netip.MustParseAddr, netip.MustParsePrefix
	w := newWorld(t)
	a := nstest.New(t)
	green := []sdn.Subnet{
		{Meta: sdn.Meta{ID: "v4"}, CIDR: cidr("10.2.0.0/16"), Gateway: addr("10.2.0.1"), HostRoutes: []sdn.HostRoute{
			{Destination: cidr("192.0.2.0/24"), NextHop: addr("10.2.0.9")},
			{Destination: cidr("203.0.113.0/24"), NextHop: addr("10.2.0.9")},
		}},
		{Meta: sdn.Meta{ID: "v6"}, CIDR: cidr("fd00:2::/64"), Gateway: addr("fd00:2::1")},
	}
	second := func() Interface {
		i := w.in(w.port(), a)
		i.Port.Addresses = []sdn.Address{
			{Subnet: "v4", Addr: addr("10.2.0.7")}, {Subnet: "v6", Addr: addr("fd00:2::7")},
		}
		i.Name, i.Subnets = "net1", green
		return i
	}
	eth0, net1 := w.in(w.port(), a), second()
	if r := w.plug(eth0); len(r.KeptRoutes) != 0 {
		t.Errorf("the first network keeps routes %v of another", r.KeptRoutes)
	}
	for range 2 { // an ADD may be repeated
		if r := w.plug(net1); fmt.Sprint(r.KeptRoutes) != "[0.0.0.0/0 ::/0 192.0.2.0/24]" {
			t.Errorf("routes kept: %v", r.KeptRoutes)
		}
		if got := gateways(t, a); !sameWords(got, first+" 203.0.113.0/24>10.2.0.9>net1") {
			t.Errorf("with two networks the routes are %s", got)
		}
	}
	ping(t, a, "10.1.0.1")
	w.plug(eth0)
	w.unplug(net1.Port)
	w.collect()
	if got := gateways(t, a); !sameWords(got, first) {
		t.Errorf("without the second network the routes are %s", got)
	}

	// A route with another metric is first too.
	w.unplug(eth0.Port)
	w.collect()
	nstest.Do(t, a, func() {
		must(t, netlink.LinkAdd(&netlink.Ifb{LinkAttrs: netlink.LinkAttrs{Name: "eth1"}}))
		l, err := netlink.LinkByName("eth1")
		must(t, err)
		must(t, netlink.LinkSetUp(l))
		third, err := netlink.ParseAddr("10.3.0.2/24")
		must(t, err)
		must(t, netlink.AddrAdd(l, third))
		route := netlink.Route{LinkIndex: l.Attrs().Index, Gw: net.IPv4(10, 3, 0, 1), Priority: 100}
		must(t, netlink.RouteAdd(&route))
	})
	if r := w.plug(net1); fmt.Sprint(r.KeptRoutes) != "[0.0.0.0/0]" {
		t.Errorf("beside a route of another metric routes are kept: %v", r.KeptRoutes)
	}
}

// TestNetworkAfterAnother plugs a network right after the first has left, whose interface
// is not yet deleted: its routes do not count.
func TestNetworkAfterAnother(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := nstest.New(t)
	old := w.in(w.port(), a)
	w.plug(old)
	w.unplug(old.Port)
	next := w.in(w.port(), a)
	next.Name = "eth1"
	if r := w.plug(next); len(r.KeptRoutes) != 0 {
		t.Errorf("routes kept of an unplugged interface: %v", r.KeptRoutes)
	}
	w.collect()
	ping(t, a, "10.1.0.1")
	got := gateways(t, a)
	for _, want := range []string{"0.0.0.0/0>10.1.0.1>eth1", "::/0>fd00:1::1>eth1"} {
		if !strings.Contains(got, want) {
			t.Errorf("routes are %s, without %s", got, want)
		}
	}
}

// TestRemove removes a port's interface by its name, with the host end, and leaves
// another one of that name.
func TestRemove(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := nstest.New(t)
	w.plug(w.in(w.port(), a))
	for range 2 {
		must(t, w.b.Remove(t.Context(), path(a), "eth0"))
		wantNames(t, a)
		wantNames(t, w.router)
	}
	must(t, w.b.Remove(t.Context(), "/run/netns/absent", "eth0"))
	nstest.Do(t, a, func() {
		must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: "eth1"}))
	})
	must(t, w.b.Remove(t.Context(), path(a), "eth0"))
	if got := names(t, a); len(got) != 2 {
		t.Errorf("links are %v, want eth0 and eth1", got)
	}
}

func TestPlugWhereIPv6IsOff(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := nstest.New(t)
	nstest.Do(t, a, func() { must(t, writeSysctl("ipv6", "default", "disable_ipv6", "1")) })
	w.plug(w.in(w.port(), a))
	ping(t, a, "fd00:1::1")
}

// TestPlugForEngine does what Docker does with the interface that Join names.
func TestPlugForEngine(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	box := nstest.New(t)
	p := w.port()
	w.wantConnected("before the plug", p, false)
	i := Interface{Port: p, MTU: testMTU}
	r := w.plug(i)
	if r.Name != "t_c"+string(p.ID[:11]) {
		t.Errorf("container end is %s", r.Name)
	}
	again := w.plug(i)
	if fmt.Sprint(again) != fmt.Sprint(r) {
		t.Errorf("again: %+v, want %+v", again, r)
	}
	w.wantConnected("waiting for the engine", p, false)
	nstest.Do(t, w.host, func() {
		l, err := netlink.LinkByName(r.Name)
		must(t, err)
		at := l.Attrs()
		if addrs, err := netlink.AddrList(l, netlink.FAMILY_ALL); err != nil || len(addrs) > 0 ||
			at.Flags&net.FlagUp != 0 || at.MTU != testMTU || at.HardwareAddr.String() != p.MAC.String() {
			t.Errorf("waiting: %v %v %+v", addrs, err, at)
		}
		must(t, netlink.LinkSetNsFd(l, int(box)))
	})
	nstest.Do(t, box, func() {
		l, err := netlink.LinkByName(r.Name)
		must(t, err)
		must(t, netlink.LinkSetName(l, "eth0"))
		must(t, netlink.AddrAdd(l, &netlink.Addr{IPNet: &net.IPNet{
			IP: p.Addresses[0].Addr.AsSlice(), Mask: net.CIDRMask(16, 32),
		}}))
		must(t, netlink.LinkSetUp(l))
	})
	ping(t, box, "10.1.0.1")
	w.wantConnected("in the container", p, true)

	// An engine that asks again has lost what it moved: it gets a new one.
	w.plug(i)
	wantNames(t, w.host, r.Name)
	w.wantConnected("waiting anew", p, false)
	w.collect()
	wantNames(t, box)
	w.unplug(p)
	w.wantConnected("unplugged", p, false)
	w.collect()
	wantNames(t, w.host)
	wantNames(t, w.router)
}

func TestPlugTwiceLeavesAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := nstest.New(t)
	p := w.port()
	first := w.plug(w.in(p, a))
	before := indexOf(t, w.router, first.HostName)

	// Nothing may go down or lose an address: the kernel would tell.
	updates := make(chan netlink.LinkUpdate, 64)
	gone := make(chan netlink.AddrUpdate, 64)
	done := make(chan struct{})
	defer close(done)
	must(t, netlink.LinkSubscribeWithOptions(updates, done, netlink.LinkSubscribeOptions{Namespace: &a}))
	must(t, netlink.AddrSubscribeWithOptions(gone, done, netlink.AddrSubscribeOptions{Namespace: &a}))
	if again := w.plug(w.in(p, a)); fmt.Sprint(again) != fmt.Sprint(first) {
		t.Errorf("again: %+v, want %+v", again, first)
	}
	if after := indexOf(t, w.router, first.HostName); after != before {
		t.Errorf("host end was made anew: index %d, then %d", before, after)
	}
	nstest.Do(t, a, func() { // the last of the events
		l, err := netlink.LinkByName("lo")
		must(t, err)
		must(t, netlink.LinkSetMTU(l, 4242))
	})
	for u := range updates {
		if u.Attrs().Name == "lo" && u.Attrs().MTU == 4242 {
			break
		}
		if u.Attrs().Name == "eth0" && (u.Header.Type != unix.RTM_NEWLINK || u.Attrs().OperState != netlink.OperUp) {
			t.Errorf("link update %d %v", u.Header.Type, u.Attrs())
		}
	}
	select {
	case u := <-gone:
		if !u.NewAddr {
			t.Errorf("address gone: %v", u.LinkAddress)
		}
	default:
	}
	ping(t, a, "10.1.0.1")

	// A changed MTU reaches both ends.
	i := w.in(p, a)
	i.MTU = 1300
	w.plug(i)
	for ns, name := range map[netns.NsHandle]string{a: "eth0", w.router: first.HostName} {
		nstest.Do(t, ns, func() {
			if l, err := netlink.LinkByName(name); err != nil || l.Attrs().MTU != 1300 {
				t.Errorf("%s: MTU %v, %v", name, l.Attrs().MTU, err)
			}
		})
	}
}

func TestPlugElsewhereMoves(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := nstest.New(t), nstest.New(t)
	p := w.port()
	w.plug(w.in(p, a))
	w.plug(w.in(p, b))
	ping(t, b, "10.1.0.1")
	w.collect()
	wantNames(t, a)
	i := w.in(p, b)
	i.Name = "net1"
	w.plug(i)
	ping(t, b, "fd00:1::1")
	w.collect()
	wantNames(t, b, "net1")
	wantNames(t, w.router, HostName(p.ID))
}

// TestReplug: a freed port is usable immediately, whatever waits to be collected.
func TestReplug(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := nstest.New(t), nstest.New(t)
	p := w.port()
	w.plug(w.in(p, a))
	w.unplug(p)
	w.unplug(p)
	w.plug(w.in(p, b))
	if n := len(names(t, w.router)); n != 2 {
		t.Errorf("%d links in the router, want the port and its retired link", n)
	}
	w.unplug(p)
	w.plug(w.in(p, b)) // the container's name is the retired link's still
	ping(t, b, "10.1.0.1")
	w.collect()
	wantNames(t, w.router, HostName(p.ID))

	// The same name in the same container, but the retired link is in another router.
	other := newWorld(t)
	w.unplug(p)
	q := w.port()
	q.VIF.Details[sdn.DetailNamespace] = other.path
	w.plug(w.in(q, b))
	ping(t, b, "10.1.0.1")
	wantNames(t, b, "eth0")
}

// TestHalfMade brings a port into each state that a killed call leaves, then plugs, or
// unplugs, again.
func TestHalfMade(t *testing.T) {
	t.Parallel()
	addressed := func(p *pair) error {
		if err := p.configureHost(); err != nil {
			return err
		}
		_, err := configureContainer(p.f, "eth0", p.Port.MAC, 0, p.conf, nil)
		return err
	}
	states := map[string]func(p *pair) error{
		"made":      func(*pair) error { return nil },
		"hosted":    (*pair).configureHost,
		"addressed": addressed,
		"dying": func(p *pair) error { // killed before it lost its name
			if err := addressed(p); err != nil {
				return err
			}
			var b batch
			b.add("down", unix.RTM_SETLINK, 0, ifInfo(0, 0, 0, unix.IFF_UP))
			b.text(unix.IFLA_IFNAME, HostName(p.Port.ID))
			b.u32(unix.IFLA_GROUP, groupDying)
			b.text(unix.IFLA_IFALIAS, retiredAlias+string(p.Port.ID))
			return p.n.do(&b)
		},
	}
	for name, bring := range states {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			a := nstest.New(t)
			for _, again := range []string{"plug", "unplug"} {
				port := w.port()
				i := w.in(port, a)
				conf, err := newSetup(port, w.subs)
				must(t, err)
				must(t, visit(func() error {
					p := &pair{
						Interface: i, conf: conf, near: namespace{fd: int(w.router), path: w.path},
						far: namespace{fd: int(a), path: path(a)}, fresh: true,
					}
					if p.n, err = p.near.socket(); err != nil {
						return err
					}
					defer p.n.close()
					if p.f, err = p.far.socket(); err != nil {
						return err
					}
					defer p.f.close()
					if p.place, err = (bridgeSeat{}).find(context.Background(), p.n, p.near, i, false); err != nil {
						return err
					}
					if err := p.create(); err != nil {
						return err
					}
					return bring(p)
				}))
				if again == "plug" {
					w.plug(i)
					ping(t, a, "10.1.0.1")
					ping(t, a, "fd00:1::1")
					w.collect()
					wantNames(t, w.router, HostName(port.ID))
				}
				w.unplug(port)
				w.collect()
				wantNames(t, w.router)
				wantNames(t, a)
			}
		})
	}
}

func TestPlugRefuses(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := nstest.New(t)
	taken := w.port()
	nstest.Do(t, w.router, func() {
		must(t, netlink.LinkAdd(&netlink.Ifb{LinkAttrs: netlink.LinkAttrs{Name: HostName(taken.ID)}}))
	})
	used := nstest.New(t)
	nstest.Do(t, used, func() { must(t, netlink.LinkAdd(&netlink.Ifb{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}})) })
	file := filepath.Join(t.TempDir(), "half")
	must(t, os.WriteFile(file, nil, 0o600))

	cases := map[string]struct {
		change func(*Interface)
		is     func(error) bool
		names  string
	}{
		"long name":     {func(i *Interface) { i.Name = "abcdefghijklmnop" }, sdn.IsInvalid, "abcdefghijklmnop"},
		"template":      {func(i *Interface) { i.Name = "eth%d" }, sdn.IsInvalid, "eth%d"},
		"no name":       {func(i *Interface) { i.Name = "" }, sdn.IsInvalid, "name"},
		"no MAC":        {func(i *Interface) { i.Port.MAC = nil }, sdn.IsInvalid, "mac"},
		"multicast MAC": {func(i *Interface) { i.Port.MAC = net.HardwareAddr{1, 0, 0, 0, 0, 1} }, sdn.IsInvalid, "mac"},
		"bad id":        {func(i *Interface) { i.Port.ID = "a/b" }, sdn.IsInvalid, "a/b"},
		"no id":         {func(i *Interface) { i.Port.ID = "" }, sdn.IsInvalid, "id"},
		"MTU":           {func(i *Interface) { i.MTU = -1 }, sdn.IsInvalid, "mtu"},
		"no subnet":     {func(i *Interface) { i.Subnets = nil }, sdn.IsInvalid, "v4"},
		"unbound":       {func(i *Interface) { i.Port.VIF.Type = sdn.VIFUnbound }, sdn.IsInvalid, "bound"},
		"unknown VIF type": {
			func(i *Interface) { i.Port.VIF.Type = "carrier-pigeon" }, sdn.IsUnsupported, "carrier-pigeon",
		},
		"no bridge":           {func(i *Interface) { i.Port.VIF.Details[sdn.DetailBridge] = "br7" }, sdn.IsNotFound, "br7"},
		"no namespace":        {func(i *Interface) { i.Namespace = "/run/gone" }, sdn.IsNotFound, "/run/gone"},
		"half-made namespace": {func(i *Interface) { i.Namespace = file }, sdn.IsNotFound, file},
		"no router": {
			func(i *Interface) { i.Port.VIF.Details[sdn.DetailNamespace] = "/run/lost" }, sdn.IsNotFound,
			"/run/lost",
		},
		"container name used": {func(i *Interface) { i.Namespace = path(used) }, sdn.IsConflict, "eth0"},
		"host name used":      {func(i *Interface) { i.Port.ID = taken.ID }, sdn.IsConflict, HostName(taken.ID)},
		"unusable address": {func(i *Interface) {
			i.Port.Addresses[0].Addr = netip.MustParseAddr("127.0.0.1")
			i.Subnets[0].Gateway = netip.MustParseAddr("224.0.0.1")
		}, func(err error) bool { return errors.Is(err, unix.EINVAL) }, "224.0.0.1"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			i := w.in(w.port(), a)
			i.Subnets = append([]sdn.Subnet(nil), i.Subnets...)
			c.change(&i)
			_, err := w.b.Plug(context.Background(), i)
			if err == nil || !c.is(err) || !strings.Contains(err.Error(), c.names) {
				t.Errorf("error is %v", err)
			}
			w.collect()
			wantNames(t, a)
			wantNames(t, w.router, HostName(taken.ID))
		})
	}
	// A link with the name of a port that is not its host end is left alone.
	w.unplug(taken)
	w.collect()
	wantNames(t, w.router, HostName(taken.ID))
	lost := w.port()
	lost.VIF.Details[sdn.DetailNamespace] = "/run/lost"
	w.unplug(lost)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := w.b.Plug(ctx, w.in(w.port(), a)); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func TestFullBridge(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	box := nstest.New(t)
	nstest.Do(t, w.router, func() {
		br, err := netlink.LinkByName("br0")
		must(t, err)
		for n := range 1022 {
			must(t, netlink.LinkAdd(&netlink.Ifb{LinkAttrs: netlink.LinkAttrs{
				Name: "f" + strconv.Itoa(n), MasterIndex: br.Attrs().Index,
			}}))
			if l, err := netlink.LinkByName("f" + strconv.Itoa(n)); err != nil || netlink.LinkSetMaster(l, br) != nil {
				t.Fatalf("fill %d: %v", n, err)
			}
		}
	})
	last, more := w.port(), w.port()
	w.plug(w.in(last, box))
	i := w.in(more, box)
	i.Name = "eth1"
	_, err := w.b.Plug(context.Background(), i)
	if !sdn.IsExhausted(err) || sdn.ReasonOf(err) != sdn.NoPorts || !strings.Contains(err.Error(), "br0") {
		t.Errorf("error is %v", err)
	}
	wantNames(t, box, "eth0")
	if n := len(names(t, w.router)); n != 1023 {
		t.Errorf("%d ports on the bridge, want 1023", n)
	}
	// A port unplugged gives its place to the next, though its retired link has it still.
	w.unplug(last)
	w.plug(i)
	ping(t, box, "10.1.0.1")
}

// TestRaces plugs, plugs at the same time again, unplugs and plugs again from forty
// goroutines, while the collector runs.
func TestRaces(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	stop := w.run()
	box := nstest.New(t)
	type result struct{ err error }
	ports := make([]sdn.Port, 20)
	for n := range ports {
		ports[n] = w.port()
	}
	results := make(chan result)
	for g := range 40 {
		go func() {
			p := ports[g/2] // two at each port
			i := w.in(p, box)
			i.Name = "eth" + strconv.Itoa(g/2)
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			for range 5 {
				if _, err := w.b.Plug(ctx, i); err != nil {
					results <- result{err}
					return
				}
				if err := w.b.Unplug(ctx, p); err != nil {
					results <- result{err}
					return
				}
			}
			_, err := w.b.Plug(ctx, i)
			results <- result{err}
		}()
	}
	for range 40 {
		if r := <-results; r.err != nil {
			t.Error(r.err)
		}
	}
	for _, p := range ports { // the slower of two may have unplugged last
		i := w.in(p, box)
		for n := range ports {
			if ports[n].ID == p.ID {
				i.Name = "eth" + strconv.Itoa(n)
			}
		}
		w.plug(i)
	}
	stop()
	w.collect()
	if got := names(t, w.router); len(got) != len(ports) {
		t.Errorf("links in the router: %v", got)
	}
	if got := names(t, box); len(got) != len(ports) {
		t.Errorf("links in the container: %v", got)
	}
	if n := w.b.locks.Held(); n != 0 {
		t.Errorf("%d ports are still locked", n)
	}
}

// TestNothingLeft counts the files and goroutines of the whole process, so no other test
// runs beside it.
func TestNothingLeft(t *testing.T) {
	w := newWorld(t)
	box := nstest.New(t)
	stop := w.run()
	cycle := func() {
		for range 20 {
			p := w.port()
			w.plug(w.in(p, box))
			w.unplug(p)
			w.plug(Interface{Port: p, MTU: testMTU})
			w.unplug(p)
		}
	}
	cycle()
	fds, goroutines := countFiles(t), runtime.NumGoroutine()
	for range 3 {
		cycle()
	}
	stop()
	// A goroutine that is done is counted for a moment longer.
	nstest.Eventually(t, fmt.Sprintf("no more than %d open files", fds), func() bool {
		return countFiles(t) <= fds
	})
	nstest.Eventually(t, fmt.Sprintf("less than %d goroutines", goroutines), func() bool {
		return runtime.NumGoroutine() < goroutines // Run has returned
	})
	wantNames(t, w.router)
	wantNames(t, w.host)
	wantNames(t, box)
}

// TestCollector: what is unplugged goes by itself, and what a killed process has left
// goes with the first call in its namespace.
func TestCollector(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := nstest.New(t)
	p := w.port()
	w.plug(w.in(p, a))
	w.unplug(p) // and nothing collects: as if killed

	w.use(Config{Logger: slog.New(slog.DiscardHandler)})
	if got := names(t, w.router); len(got) != 1 || !strings.HasPrefix(got[0], retiredPrefix) {
		t.Fatalf("links %v, want one retired link", got)
	}
	gone := make(chan netlink.LinkUpdate, 64)
	done := make(chan struct{})
	defer close(done)
	must(t, netlink.LinkSubscribeWithOptions(gone, done, netlink.LinkSubscribeOptions{Namespace: &w.router}))
	stop := w.run()
	defer stop()
	for range 2 { // by the first call, then by the event alone
		w.unplug(p)
		for u := range gone {
			if u.Header.Type == unix.RTM_DELLINK && strings.HasPrefix(u.Attrs().Name, retiredPrefix) {
				break
			}
		}
		w.plug(w.in(p, a))
	}
}

func TestVIFInOwnNamespace(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	nstest.Do(t, w.host, func() {
		br := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0"}}
		must(t, netlink.LinkAdd(br))
		must(t, netlink.LinkSetUp(br))
	})
	p := w.port()
	delete(p.VIF.Details, sdn.DetailNamespace)
	w.plug(Interface{Port: p})
	w.plug(Interface{Port: p})
	if got := names(t, w.host); len(got) != 2 {
		t.Errorf("links %v, want both ends", got)
	}
	w.unplug(p)
	must(t, w.b.Collect(context.Background(), ""))
	wantNames(t, w.host)
}

// TestSettleElsewhere: a namespace that cannot be opened is no hindrance to who needs
// another one flushed.
func TestSettleElsewhere(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	loop := t.TempDir() + "/loop"
	must(t, os.Symlink(loop, loop))
	w.b.reaper.add(loop)
	must(t, w.b.reaper.flush(w.path))
	if err := w.b.reaper.flush(loop); !errors.Is(err, unix.ELOOP) {
		t.Errorf("error %v, want the namespace's own", err)
	}
}
