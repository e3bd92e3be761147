//go:build linux

package router

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	kuryrns "github.com/kuryr/kuryr/internal/netns"
	"github.com/kuryr/kuryr/internal/nstest"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

func TestMain(m *testing.M) { os.Exit(nstest.Main(m)) }

// world is a host of its own, with a neighbour on its outside link.
type world struct {
	t         testing.TB
	host      netns.NsHandle
	neighbour netns.NsHandle
	f         *Kernel
	store     *kuryrns.Store
}

const (
	hostAddr4      = "198.51.100.1"
	hostAddr6      = "2001:db8:51::1"
	neighbourAddr4 = "198.51.100.2"
	neighbourAddr6 = "2001:db8:51::2"
)

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{t: t, host: nstest.New(t)}
	w.neighbour = nstest.New(t)
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
		"ip addr add "+hostAddr4+"/24 dev ext0; ip addr add "+hostAddr6+
			"/64 dev ext0 nodad; ip link set ext0 up; ip route add default via "+neighbourAddr4,
	)
	w.sh(
		w.neighbour,
		"ip addr add "+neighbourAddr4+"/24 dev eth0; ip addr add "+neighbourAddr6+
			"/64 dev eth0 nodad; ip link set eth0 up",
	)
	w.settle()
	nstest.Do(t, w.host, func() {
		w.f, err = New(Options{
			Namespaces: w.store, Uplink4: netip.MustParsePrefix("100.64.0.0/16"),
			Uplink6: netip.MustParsePrefix("fd00:6b75::/64"),
		})
	})
	must(t, err)
	t.Cleanup(func() { must(t, w.f.Close()) })
	return w
}

// settle waits until the link to the neighbour has what the kernel gives it a little
// later: its carrier, and the link-local address and routes that come with it. A test
// that compares the host with what it was would see them come.
func (w *world) settle() {
	w.t.Helper()
	nstest.Eventually(w.t, "the link to the neighbour comes up", func() bool {
		seen := w.sh(w.host, "ip -o link show ext0; ip -6 addr show ext0; ip -4 route; ip -6 route")
		return strings.Contains(seen, "state UP") && strings.Contains(seen, "fe80::") &&
			!strings.Contains(seen, "linkdown") && !strings.Contains(seen, "tentative")
	})
	nstest.WaitForAddresses(w.t, w.host)
	nstest.WaitForAddresses(w.t, w.neighbour)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (w *world) try(ns netns.NsHandle, script string) (string, error) {
	w.t.Helper()
	var out bytes.Buffer
	var err error
	nstest.Do(w.t, ns, func() {
		cmd := exec.Command("sh", "-ec", script)
		cmd.Stdout, cmd.Stderr = &out, &out
		err = cmd.Run()
	})
	return out.String(), err
}

func (w *world) sh(ns netns.NsHandle, script string) string {
	w.t.Helper()
	out, err := w.try(ns, script)
	if err != nil {
		w.t.Fatalf("%s: %v\n%s", script, err, out)
	}
	return out
}

func (w *world) router(id string) netns.NsHandle {
	w.t.Helper()
	ns, err := w.store.Handle(id)
	must(w.t, err)
	w.t.Cleanup(func() { _ = ns.Close() })
	return ns
}

func (w *world) apply(d Shape) Result {
	w.t.Helper()
	result, err := applyShape(context.Background(), w.f, d)
	must(w.t, err)
	return result
}

func newID() string { return uuid.NewString() }

// container is a namespace with eth0 plugged into a network.
type container struct {
	ns   netns.NsHandle
	port Port
}

// plug makes what package bind makes, and guards the port.
func (w *world) plug(router string, network Bridge, hosts ...string) container {
	w.t.Helper()
	c := container{ns: nstest.New(w.t), port: Port{ID: newID(), Network: network.Network, Guard: true}}
	c.port.MAC = nstest.MAC()
	for _, a := range hosts {
		c.port.Addrs = append(c.port.Addrs, netip.MustParseAddr(a))
	}
	c.port.OnLink = network.Addrs
	w.sh(c.ns, "sysctl -qw net.ipv6.conf.default.accept_dad=0")
	var err error
	nstest.Do(w.t, w.router(router), func() {
		err = netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{
			Name: TapName(c.port.ID), MTU: network.MTU, TxQLen: -1,
		}, PeerName: "eth0",
			PeerHardwareAddr: c.port.MAC, PeerMTU: uint32(network.MTU), PeerNamespace: netlink.NsFd(int(c.ns))})
	})
	must(w.t, err)
	w.sh(w.router(router), fmt.Sprintf("ip link set %s master %s up", TapName(c.port.ID), BridgeName(network.Network)))
	w.sh(c.ns, "ip link set eth0 up")
	for _, a := range c.port.Addrs {
		for _, gw := range network.Addrs {
			if gw.Addr().Is4() == a.Is4() {
				w.sh(c.ns, fmt.Sprintf("ip addr add %s/%d dev eth0; ip route add default via %s", a, gw.Bits(), gw.Addr()))
			}
		}
	}
	nstest.WaitForAddresses(w.t, c.ns)
	must(w.t, changePorts(context.Background(), w.f, router, nil, []Port{c.port}))
	return c
}

// meets pings until an answer comes, so that neighbours and bridges know both.
func (w *world) meets(from netns.NsHandle, to string) {
	w.t.Helper()
	w.reaches(from, to, true)
}

// reaches checks whether a ping is answered. The kernel adds IPv6 addresses and their routes
// some time after it was asked, so an answer is waited for.
func (w *world) reaches(from netns.NsHandle, to string, want bool) {
	w.t.Helper()
	limit := 2 * time.Second // the first may be lost to neighbour resolution
	if want {
		limit = nstest.Limit
	}
	if got := nstest.Ping(w.t, from, to, limit); got != want {
		w.t.Errorf("ping %s: %v, want %v", to, got, want)
	}
}

// serve answers every TCP connection and every UDP datagram on the port with the client's address.
func (w *world) serve(ns netns.NsHandle, port int) {
	w.t.Helper()
	var l net.Listener
	var u net.PacketConn
	var err, uerr error
	nstest.Do(w.t, ns, func() {
		l, err = net.Listen("tcp", fmt.Sprintf(":%d", port))
		u, uerr = net.ListenPacket("udp", fmt.Sprintf(":%d", port))
	})
	must(w.t, err)
	must(w.t, uerr)
	w.t.Cleanup(func() { _ = l.Close(); _ = u.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			fmt.Fprint(c, c.RemoteAddr().String())
			_ = c.Close()
		}
	}()
	go nstest.Serve(u, func(client net.Addr, _ int) string { return client.String() })
}

// call asks a server of serve whom it saw; "" if it did not answer.
func (w *world) call(ns netns.NsHandle, network, addr string) string {
	w.t.Helper()
	seen, _, _ := net.SplitHostPort(w.answer(ns, network, addr, nstest.Limit))
	return strings.TrimPrefix(seen, "::ffff:")
}

// answer is what a server says; "" if it did not answer.
func (w *world) answer(ns netns.NsHandle, network, addr string, limit time.Duration) (text string) {
	w.t.Helper()
	nstest.Do(w.t, ns, func() {
		c, err := net.DialTimeout(network, addr, limit)
		if err != nil {
			return
		}
		defer c.Close()
		if network != "tcp" {
			text, _ = nstest.Ask(c, 0, limit)
			return
		}
		_ = c.SetDeadline(time.Now().Add(limit))
		b := make([]byte, 64)
		n, _ := c.Read(b)
		text = string(b[:n])
	})
	return text
}

// silent checks that no server answers.
func (w *world) silent(ns netns.NsHandle, network, addr string) {
	w.t.Helper()
	if text := w.answer(ns, network, addr, 2*time.Second); text != "" {
		w.t.Errorf("%s %s answers %q", network, addr, text)
	}
}

// image is everything we could have changed in a namespace, as the tools tell it. A
// link's carrier is not ours, nor that an address is tentative: the kernel is a little later.
func (w *world) image(ns netns.NsHandle) string {
	w.t.Helper()
	links := "ip -d -o link | sed 's/ gc_timer.*bridge_id/ bridge_id/; " +
		"s/promiscuity.*addrgenmode/addrgenmode/; s/NO-CARRIER,//; s/,LOWER_UP//; " +
		"s/ state [A-Z]*//'"
	addrs := "ip -o addr | sed 's/valid_lft.*//; s/ tentative//'"
	routes := "{ ip route; ip -6 route; ip -6 route show table local proto 75; } | " +
		"sed 's/ linkdown//'"
	return withoutNoted(w.sh(ns, "timeout 10 nft list ruleset")) +
		w.sh(ns, strings.Join([]string{links, addrs, routes, "ip neigh show proxy"}, "; "))
}

// withoutNoted leaves out what rules have put into sets.
func withoutNoted(listing string) string {
	var kept []string
	dynamic, elements := false, false
	for line := range strings.Lines(listing) {
		text := strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(text, "set "), strings.HasPrefix(text, "map "),
			strings.HasPrefix(text, "chain "):
			dynamic, elements = false, false
		case strings.HasPrefix(text, "flags "):
			dynamic = strings.Contains(text, "dynamic")
		case strings.HasPrefix(text, "elements = "):
			elements = true
		}
		if !dynamic || !elements || text == "}" || text == "" {
			kept = append(kept, line)
		}
	}
	return strings.Join(kept, "")
}

func bridge(addrs ...string) Bridge {
	b := Bridge{Network: newID(), MTU: 1500}
	for _, a := range addrs {
		b.Addrs = append(b.Addrs, netip.MustParsePrefix(a))
	}
	return b
}

func uplink(addrs ...string) *Uplink {
	u := &Uplink{SNAT: true, MTU: 1500}
	for _, a := range addrs {
		u.Addrs = append(u.Addrs, netip.MustParseAddr(a))
	}
	return u
}
