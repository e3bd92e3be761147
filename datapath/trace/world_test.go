//go:build linux

package trace

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/kuryr/kuryr/datapath/router"
	kuryrns "github.com/kuryr/kuryr/internal/netns"
	"github.com/kuryr/kuryr/internal/nstest"
	"github.com/vishvananda/netlink"
	vns "github.com/vishvananda/netns"
)

func TestMain(m *testing.M) { os.Exit(nstest.Main(m)) }

// world is a host with a neighbour outside, and routers.
type world struct {
	t               testing.TB
	host, neighbour vns.NsHandle
	store           *kuryrns.Store
	f               *router.Kernel
}

const outside = "198.51.100.2"

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{t: t, host: nstest.New(t), neighbour: nstest.New(t)}
	dir, err := os.MkdirTemp("/run", "netns-")
	must(t, err)
	w.store, err = kuryrns.Open(dir)
	must(t, err)
	t.Cleanup(func() {
		names, _ := w.store.List()
		for _, name := range names {
			_ = w.store.Delete(name)
		}
	})
	w.sh(w.host, "sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 net.ipv6.conf.default.accept_dad=0")
	w.sh(w.neighbour, "sysctl -qw net.ipv6.conf.default.accept_dad=0")
	nstest.Do(t, w.host, func() {
		err = netlink.LinkAdd(&netlink.Veth{
			LinkAttrs: netlink.LinkAttrs{Name: "ext0"}, PeerName: "eth0",
			PeerNamespace: netlink.NsFd(int(w.neighbour)),
		})
	})
	must(t, err)
	w.sh(
		w.host,
		"ip addr add 198.51.100.1/24 dev ext0; ip addr add 2001:db8:51::1/64 dev ext0 nodad; ip link "+
			"set ext0 up; ip route add default via "+outside,
	)
	w.sh(
		w.neighbour,
		"ip addr add "+outside+"/24 dev eth0; ip addr add 2001:db8:51::2/64 dev eth0 nodad; ip link set eth0 up",
	)
	nstest.WaitForAddresses(t, w.host)
	nstest.WaitForAddresses(t, w.neighbour)
	nstest.Do(t, w.host, func() {
		w.f, err = router.New(router.Options{
			Namespaces: w.store, Uplink4: netip.MustParsePrefix("100.64.0.0/16"),
			Uplink6: netip.MustParsePrefix("fd00:6b75::/64"),
		})
	})
	must(t, err)
	t.Cleanup(func() { must(t, w.f.Close()) })
	return w
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (w *world) sh(ns vns.NsHandle, script string) string {
	w.t.Helper()
	var out []byte
	var err error
	nstest.Do(w.t, ns, func() { out, err = exec.Command("sh", "-ec", script).CombinedOutput() })
	if err != nil {
		w.t.Fatalf("%s: %v\n%s", script, err, out)
	}
	return string(out)
}

// testRouter is a domain with one network.
type testRouter struct {
	id     string
	bridge router.Bridge
	ns     vns.NsHandle
}

func (w *world) set(c router.Change) {
	w.t.Helper()
	_, err := w.f.Set(context.Background(), c)
	must(w.t, err)
}

func (w *world) ports(id string, remove, add []router.Port) {
	w.t.Helper()
	w.set(router.Change{Router: id, Ports: router.Parts[router.Port]{Remove: remove, Add: add}})
}

// route makes a router with a network, whose gateways are given with their lengths.
func (w *world) route(uplink []string, gateways ...string) testRouter {
	w.t.Helper()
	r := testRouter{id: uuid.NewString(), bridge: router.Bridge{Network: uuid.NewString(), MTU: 1500}}
	for _, g := range gateways {
		r.bridge.Addrs = append(r.bridge.Addrs, netip.MustParsePrefix(g))
	}
	d := router.Shape{ID: r.id, Bridges: []router.Bridge{r.bridge}}
	if uplink != nil {
		d.Uplink = &router.Uplink{SNAT: true, MTU: 1500}
		for _, a := range uplink {
			d.Uplink.Addrs = append(d.Uplink.Addrs, netip.MustParseAddr(a))
		}
	}
	w.set(router.Change{Router: d.ID, Shape: &d})
	var err error
	r.ns, err = w.store.Handle(r.id)
	must(w.t, err)
	w.t.Cleanup(func() { _ = r.ns.Close() })
	return r
}

// container is a namespace with eth0 on a network.
type container struct {
	ns   vns.NsHandle
	port router.Port
}

func (w *world) plug(r testRouter, addrs ...string) container {
	w.t.Helper()
	c := container{ns: nstest.New(w.t), port: router.Port{ID: uuid.NewString(), Network: r.bridge.Network, Guard: true}}
	c.port.MAC = nstest.MAC()
	w.sh(c.ns, "sysctl -qw net.ipv6.conf.default.accept_dad=0")
	var err error
	tap := router.TapName(c.port.ID)
	nstest.Do(w.t, r.ns, func() {
		err = netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: tap, MTU: 1500, TxQLen: -1}, PeerName: "eth0",
			PeerHardwareAddr: c.port.MAC, PeerMTU: 1500, PeerNamespace: netlink.NsFd(int(c.ns))})
	})
	must(w.t, err)
	w.sh(r.ns, fmt.Sprintf("ip link set %s master %s up", tap, router.BridgeName(r.bridge.Network)))
	w.sh(c.ns, "ip link set eth0 up")
	for _, text := range addrs {
		a := netip.MustParseAddr(text)
		c.port.Addrs = append(c.port.Addrs, a)
		for _, gw := range r.bridge.Addrs {
			if gw.Addr().Is4() == a.Is4() {
				w.sh(c.ns, fmt.Sprintf("ip addr add %s/%d dev eth0; ip route add default via %s", a, gw.Bits(), gw.Addr()))
			}
		}
	}
	nstest.WaitForAddresses(w.t, c.ns)
	w.ports(r.id, nil, []router.Port{c.port})
	return c
}

// sites are the usual ones of a way from c out.
func (w *world) sites(r testRouter, c container) []Site {
	return []Site{
		{Name: "container", NS: c.ns}, {Name: "router", NS: r.ns, Tap: router.TapName(c.port.ID)},
		{Name: "host", NS: w.host},
	}
}

// text shows a result for a test's message.
func text(r Result) string {
	var b strings.Builder
	for i, h := range r.Hops {
		fmt.Fprintf(
			&b, "%2d %-10s %-28s %s [%s] answer=%v stop=%v\n", i+1, h.Where, h.Device, h.What, h.Rule,
			h.Answer, h.Stop,
		)
	}
	return b.String() + string(r.Outcome) + ": " + r.Text
}
