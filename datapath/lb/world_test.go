//go:build linux

package lb

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/kuryr/kuryr/internal/nstest"
	"github.com/kuryr/kuryr/sdn"
)

func TestMain(m *testing.M) { os.Exit(nstest.Main(m)) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// world is a router with two bridges and a way out, as package router makes one: pods a
// and b on the first, c on the second, and a client outside.
type world struct {
	t      testing.TB
	router netns.NsHandle
	ns     map[string]netns.NsHandle
	table  *Table
	wait   time.Duration // for an answer
	port   int           // of the last client, of UDP
}

// The addresses of all; outside is reached by a link of its own.
var addrs = map[string][2]string{
	"a": {"10.0.1.2", "fd00:1::2"}, "b": {"10.0.1.3", "fd00:1::3"}, "c": {"10.0.2.2", "fd00:2::2"},
	"out": {"192.0.2.2", "2001:db8::2"},
}

const (
	vip4, vip6   = "10.96.0.10", "fd96::10"
	node4, node6 = "192.0.2.1", "2001:db8::1"
)

func newWorld(t testing.TB) *world {
	nstest.Require(t)
	w := &world{t: t, router: nstest.New(t), ns: map[string]netns.NsHandle{}, wait: nstest.Limit}
	nstest.Do(t, w.router, func() {
		for name, value := range map[string]string{
			"ipv4/ip_forward": "1", "ipv6/conf/all/forwarding": "1", "ipv6/conf/default/accept_dad": "0",
			"bridge/bridge-nf-call-iptables": "0", "bridge/bridge-nf-call-ip6tables": "0",
		} {
			if err := os.WriteFile(
				"/proc/sys/net/"+name, []byte(value), 0,
			); !errors.Is(err, os.ErrNotExist) || !strings.HasPrefix(name, "bridge/") {
				// not with every kernel
				must(t, err)
			}
		}
		for n := 1; n <= 2; n++ {
			must(t, netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{
				Name: fmt.Sprintf("br-%d", n), HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, byte(n)},
			}}))
			address(t, fmt.Sprintf("br-%d", n), fmt.Sprintf("10.0.%d.1/24", n), fmt.Sprintf("fd00:%d::1/64", n))
			l, err := netlink.LinkByName(fmt.Sprintf("br-%d", n))
			must(t, err)
			h, err := netlink.NewHandle()
			must(t, err)
			must(t, LeadUp(h, l))
			must(t, LeadUp(h, l))
			h.Close()
		}
	})
	w.cable("a", "br-1")
	w.cable("b", "br-1")
	w.cable("c", "br-2")
	w.cable("out", "")
	nstest.Do(t, w.router, func() {
		for _, gw := range addrs["out"] {
			must(t, netlink.RouteAdd(&netlink.Route{Gw: net.ParseIP(gw)}))
		}
	})
	for _, ns := range w.ns {
		nstest.WaitForAddresses(t, ns)
	}
	nstest.WaitForAddresses(t, w.router)
	w.table = New(w.config())
	t.Cleanup(func() { _ = w.table.Close() })
	return w
}

func (w *world) config() Config {
	return Config{Bridges: "br-", Run: w.inside, NodeAddrs: []netip.Prefix{
		netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("2001:db8::/32"),
	}}
}

func (w *world) inside(f func() error) (err error) {
	nstest.Do(w.t, w.router, func() { err = f() })
	return err
}

func address(t testing.TB, link string, list ...string) {
	t.Helper()
	l, err := netlink.LinkByName(link)
	must(t, err)
	for _, text := range list {
		a, err := netlink.ParseAddr(text)
		must(t, err)
		a.Flags = 2 // IFA_F_NODAD
		must(t, netlink.AddrAdd(l, a))
	}
	must(t, netlink.LinkSetUp(l))
}

// cable joins another namespace to a bridge, or by a link of its own, with the router as
// its way out.
func (w *world) cable(name, bridge string) {
	w.t.Helper()
	ns := nstest.New(w.t)
	w.ns[name] = ns
	nstest.Do(w.t, w.router, func() {
		pair := netlink.NewVeth(netlink.NewLinkAttrs())
		pair.Name, pair.PeerName, pair.PeerNamespace = "tap-"+name, "eth0", netlink.NsFd(ns)
		must(w.t, netlink.LinkAdd(pair))
		if bridge == "" {
			address(w.t, "tap-"+name, node4+"/24", node6+"/64")
			return
		}
		b, err := netlink.LinkByName(bridge)
		must(w.t, err)
		must(w.t, netlink.LinkSetMaster(pair, b))
		must(w.t, netlink.LinkSetUp(pair))
	})
	nstest.Do(w.t, ns, func() {
		must(w.t, os.WriteFile("/proc/sys/net/ipv6/conf/eth0/accept_dad", []byte("0"), 0))
		for _, a := range addrs[name] {
			length := "/24"
			if strings.Contains(a, ":") {
				length = "/64"
			}
			address(w.t, "eth0", a+length)
		}
		gw4, gw6 := net.ParseIP(node4), net.ParseIP(node6)
		if bridge != "" {
			gw4, gw6 = net.ParseIP("10.0."+bridge[3:]+".1"), net.ParseIP("fd00:"+bridge[3:]+"::1")
		}
		must(w.t, netlink.RouteAdd(&netlink.Route{Gw: gw4}))
		must(w.t, netlink.RouteAdd(&netlink.Route{Gw: gw6}))
	})
}

// serve has a namespace answer at a port, in both families and protocols, with its name
// and who it was asked by.
func (w *world) serve(name string, port int) {
	w.t.Helper()
	for _, family := range []string{"4", "6"} {
		var l net.Listener
		var u net.PacketConn
		nstest.Do(w.t, w.ns[name], func() {
			var err error
			l, err = net.Listen("tcp"+family, fmt.Sprintf(":%d", port))
			must(w.t, err)
			u, err = net.ListenPacket("udp"+family, fmt.Sprintf(":%d", port))
			must(w.t, err)
		})
		w.t.Cleanup(func() { l.Close(); u.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go func() {
					defer c.Close()
					b := make([]byte, 1<<16)
					for {
						n, err := c.Read(b)
						if err != nil {
							return
						}
						if n > 1 { // bytes that are only to arrive
							continue
						}
						fmt.Fprintf(c, "%s %s", name, host(c.RemoteAddr()))
					}
				}()
			}
		}()
		go nstest.Serve(u, func(client net.Addr, length int) string {
			answer := fmt.Sprintf("%s %s", name, host(client))
			if length > large { // as long as it was asked for
				answer += strings.Repeat(".", length-len(answer))
			}
			return answer
		})
	}
}

// large is the length of a question beyond which its answer is as long.
const large = 1000

func host(a net.Addr) string {
	h, _, _ := net.SplitHostPort(a.String())
	return h
}

// dial connects from a namespace; "" is the router's own.
// dial connects to an address. Each client of UDP has a port of its own: a port that the kernel
// chooses can be that of an earlier client, whose flow is still tracked and keeps its endpoint.
func (w *world) dial(from, network, addr string) (c net.Conn, err error) {
	w.t.Helper()
	d := net.Dialer{Timeout: w.wait}
	if network == "udp" {
		w.port++
		d.LocalAddr = &net.UDPAddr{Port: 10_000 + w.port%20_000}
	}
	ns := w.router
	if from != "" {
		ns = w.ns[from]
	}
	nstest.Do(w.t, ns, func() { c, err = d.Dial(network, addr) })
	return c, err
}

// ask is the answer, or an error's text after "!".
func (w *world) ask(from, network, addr string) string {
	w.t.Helper()
	c, err := w.dial(from, network, addr)
	if err != nil {
		return "!" + err.Error()
	}
	defer c.Close()
	return w.say(c, 1)
}

func (w *world) say(c net.Conn, size int) string {
	if c.LocalAddr().Network() == "udp" {
		answer, err := nstest.Ask(c, size, w.wait)
		if err != nil {
			return "!" + err.Error()
		}
		return answer
	}
	_ = c.SetDeadline(time.Now().Add(w.wait))
	if _, err := c.Write(make([]byte, size)); err != nil {
		return "!" + err.Error()
	}
	b := make([]byte, 1<<16)
	n, err := c.Read(b)
	if err != nil && !errors.Is(err, io.EOF) {
		return "!" + err.Error()
	}
	return string(b[:n])
}

func (w *world) answers(from, network, addr, want string) {
	w.t.Helper()
	if got := w.ask(from, network, addr); got != want {
		w.t.Errorf("%s of %s at %s: %q, want %q", network, from, addr, got, want)
	}
}

func (w *world) restore(all ...Frontend) {
	w.t.Helper()
	must(w.t, w.table.Restore(context.Background(), all))
}

func (w *world) set(list ...Frontend) {
	w.t.Helper()
	must(w.t, w.table.Apply(context.Background(), list, nil))
}

func (w *world) remove(list ...Key) {
	w.t.Helper()
	must(w.t, w.table.Apply(context.Background(), nil, list))
}

// silent asks where no endpoint may answer.
func (w *world) silent(from, network, addr string) {
	w.t.Helper()
	w.wait = 200 * time.Millisecond
	if got := w.ask(from, network, addr); got[:1] != "!" || strings.Contains(got, "refused") {
		w.t.Errorf("%s of %s at %s: %q, want nothing", network, from, addr, got)
	}
	w.wait = nstest.Limit
}

// whole checks that the kernel is as told and that nft can list it.
func (w *world) whole() {
	w.t.Helper()
	diffs, err := w.table.Check(context.Background())
	must(w.t, err)
	for _, d := range diffs {
		w.t.Error(d)
	}
	w.list()
}

func (w *world) list() string {
	w.t.Helper()
	if _, err := exec.LookPath("nft"); err != nil {
		return ""
	}
	var out []byte
	var err error
	nstest.Do(w.t, w.router, func() { out, err = exec.Command("nft", "list", "ruleset").CombinedOutput() })
	if err != nil {
		w.t.Fatalf("nft list ruleset: %v\n%s", err, out)
	}
	return string(out)
}

// key is a VIP's, at port 80.
func key(addr string, p sdn.Protocol) Key { return Key{netip.MustParseAddr(addr), p, 80} }

// to is a frontend with pods as endpoints, at port 8080.
func to(k Key, pods ...string) Frontend {
	f := Frontend{Key: k}
	for _, p := range pods {
		a := addrs[p][0]
		if k.Addr.Is6() {
			a = addrs[p][1]
		}
		f.Endpoints = append(f.Endpoints, netip.AddrPortFrom(netip.MustParseAddr(a), 8080))
	}
	return f
}

func at(addr string, port int) string { return net.JoinHostPort(addr, fmt.Sprint(port)) }
