//go:build linux

package lb

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kuryr/kuryr/internal/nstest"
	"github.com/kuryr/kuryr/sdn"

	"github.com/kuryr/kuryr/datapath/nft"
)

// fromPort is ask by TCP from a source port. The connection ends by a reset, so that the
// port is free immediately.
func (w *world) fromPort(from string, port int, addr string) string {
	w.t.Helper()
	var c net.Conn
	var err error
	nstest.Do(w.t, w.ns[from], func() {
		d := net.Dialer{Timeout: w.wait, LocalAddr: &net.TCPAddr{Port: port}}
		c, err = d.Dial("tcp", addr)
	})
	if err != nil {
		return "!" + err.Error()
	}
	defer c.Close()
	must(w.t, c.(*net.TCPConn).SetLinger(0))
	return w.say(c, 1)
}

// own has the router take an address for its own, as package router does with a VIP: who
// finds no frontend there is refused.
func (w *world) own(addr string) {
	w.t.Helper()
	ip, bits := net.ParseIP(addr), 128
	route := &netlink.Route{LinkIndex: 1, Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL}
	if v := ip.To4(); v != nil {
		ip, bits, route.Scope = v, 32, netlink.SCOPE_HOST
	}
	route.Dst = &net.IPNet{IP: ip, Mask: net.CIDRMask(bits, bits)}
	must(w.t, w.inside(func() error { return netlink.RouteAdd(route) }))
}

// mute has the router itself answer no client from a port, and returns what ends that.
func (w *world) mute(port byte) (end func()) {
	w.t.Helper()
	table := &nftables.Table{Name: "mute", Family: nftables.TableFamilyINet}
	do := func(f func(*nftables.Conn)) {
		must(w.t, w.inside(func() error {
			c, err := nftables.New()
			if err != nil {
				return err
			}
			f(c)
			return c.Flush()
		}))
	}
	do(func(c *nftables.Conn) {
		c.AddTable(table)
		out := c.AddChain(&nftables.Chain{
			Name: "output", Table: table, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookOutput,
			Priority: nftables.ChainPriorityRaw,
		})
		c.AddRule(&nftables.Rule{Table: table, Chain: out, Exprs: nft.Join(
			nft.Protocol(unix.IPPROTO_TCP), nft.Field(nft.TransportHeader, 0, 0, port), nft.Drop,
		)})
	})
	return func() { do(func(c *nftables.Conn) { c.DelTable(table) }) }
}

// A client that called before there was a frontend is led when there is one: the next
// connection from the same port, whether the first was lost or refused, and while there
// was no endpoint.
func TestCalledBefore(t *testing.T) {
	w := newWorld(t)
	w.serve("a", 8080)
	w.serve("c", 8080)
	w.restore()
	const lost, refused = "i/o timeout", "refused"
	port, other := 20000, 30000 // the latter calls while there is no endpoint, too
	for _, c := range []struct {
		name, vip, reached, first string
		before                    func() (after func())
	}{
		{"a VIP that nobody has", vip4, vip4, lost, nil},
		{"a VIP that nobody has", vip6, vip6, lost, nil},
		{"a VIP that the router has", "10.96.0.11", "10.96.0.11", refused, func() func() {
			w.own("10.96.0.11")
			return func() {}
		}},
		{"a VIP that the router has", "fd96::11", "fd96::11", refused, func() func() { w.own("fd96::11"); return func() {} }},
		{"a VIP that comes before its frontend", "10.96.0.12", "10.96.0.12", lost, func() func() {
			return func() { w.own("10.96.0.12") }
		}},
		{"a VIP that comes before its frontend", "fd96::12", "fd96::12", lost, func() func() {
			return func() { w.own("fd96::12") }
		}},
		{"a node's port", "0.0.0.0", node4, refused, nil},
		{"a node's port", "::", node6, refused, nil},
		{"a node's silent port", "0.0.0.0", node4, lost, func() func() { return w.mute(80) }},
		{"a node's silent port", "::", node6, lost, func() func() { return w.mute(80) }},
	} {
		port, other = port+1, other+1
		k, addr := key(c.vip, sdn.TCP), at(c.reached, 80)
		w.wait = 200 * time.Millisecond
		after := func() {}
		if c.before != nil {
			after = c.before()
		}
		if c.first == refused {
			w.wait = nstest.Limit
		}
		for _, from := range []int{port, other} {
			if got := w.fromPort("out", from, addr); !strings.HasSuffix(got, c.first) {
				t.Errorf("%s, %s: before there is a frontend %q, want %q", c.name, addr, got, c.first)
			}
		}
		after()
		w.wait = nstest.Limit
		w.set(to(k))
		w.table.called.ended.Wait() // looking is done behind the change
		for range 2 {
			if got := w.fromPort("out", other, addr); !strings.HasSuffix(got, refused) {
				t.Errorf("%s, %s: without endpoints %q, want %q", c.name, addr, got, refused)
			}
		}
		w.set(to(k, "a", "c"))
		for _, from := range []int{port, other, port, other} {
			if got := w.fromPort("out", from, addr); got[:1] != "a" && got[:1] != "c" {
				t.Errorf("%s, %s: %q", c.name, addr, got)
			}
		}
		w.remove(k)
	}
	w.whole()
}

// Where the first packet was lost the next of the same attempt is led, by a frontend that
// comes with few others, with many, and with a restart of who was killed before it looked
// for such.
func TestRetransmission(t *testing.T) {
	w := newWorld(t)
	w.serve("a", 8080)
	w.restore()
	var waiting sync.WaitGroup
	call := func(addr string) {
		waiting.Go(func() {
			if got := w.ask("out", "tcp", at(addr, 80)); got[:1] != "a" {
				t.Errorf("%s: %q", addr, got)
			}
		})
	}
	v := []string{"10.96.1.0", "fd96:1::", "10.96.2.0", "fd96:2::", "10.96.3.0", "fd96:3::"}
	for _, addr := range v {
		call(addr)
	}
	w.lost(v...)
	var many []Frontend
	for _, text := range v[2:4] {
		addr := netip.MustParseAddr(text)
		for range asksAtMost + 1 {
			many = append(many, to(key(addr.String(), sdn.TCP), "a"))
			addr = addr.Next()
		}
	}
	w.set(to(key(v[0], sdn.TCP), "a"), to(key(v[1], sdn.TCP), "a"))
	w.set(many...)
	last := []Frontend{to(key(v[4], sdn.TCP), "a"), to(key(v[5], sdn.TCP), "a")}
	want, err := byKey(w.config(), last)
	must(t, err)
	p := w.table.plan(want, nil)
	must(t, w.table.kernel.commit(t.Context(), &p.change)) // all but the last step of an Apply
	must(t, w.table.Close())
	w.table = New(w.config())
	w.restore(append(append(many, to(key(v[0], sdn.TCP), "a"), to(key(v[1], sdn.TCP), "a")), last...)...)
	waiting.Wait()
	w.whole()
}

// lost waits until the first packet to each of these has come to the router.
func (w *world) lost(addrs ...string) {
	w.t.Helper()
	for _, addr := range addrs {
		to, came := netip.AddrPortFrom(netip.MustParseAddr(addr), 80), false
		for began := time.Now(); !came; time.Sleep(time.Millisecond) {
			must(w.t, w.table.kernel.flows.each(ask{nft.VersionOf(to.Addr()), sdn.TCP, to}, func(f flow) {
				came = came || f.to == to
			}))
			if time.Since(began) > w.wait {
				w.t.Fatalf("nothing came for %s", addr)
			}
		}
	}
}

// An existing connection goes on: one with the namespace itself at a port that
// becomes a frontend's, and one that passes through to such a port; neither is asked for.
func TestConnectionsAtAPortGoOn(t *testing.T) {
	w := newWorld(t)
	w.serve("a", 80)
	w.serve("c", 8080)
	w.ns["router"] = w.router
	w.serve("router", 80)
	w.restore()
	for i, any := range []string{"0.0.0.0", "::"} {
		var list []net.Conn
		for _, addr := range []string{[]string{node4, node6}[i], addrs["a"][i]} {
			c, err := w.dial("out", "tcp", at(addr, 80))
			must(t, err)
			defer c.Close()
			w.say(c, 1)
			list = append(list, c)
		}
		w.set(to(key(any, sdn.TCP), "c"))
		w.table.called.ended.Wait()
		for j, want := range []string{"router", "a"} {
			if got := w.say(list[j], 1); !strings.HasPrefix(got, want) {
				t.Errorf("%s: the connection to %s says %q", any, want, got)
			}
		}
		must(t, w.table.kernel.flows.each(ask{Version: nft.Versions[i], protocol: sdn.TCP}, func(f flow) {
			t.Errorf("a flow is asked for that is a connection: %+v", f)
		}))
		if got := w.ask("out", "tcp", at([]string{node4, node6}[i], 80)); got[:1] != "c" {
			t.Errorf("%s: a new connection is led to %q", any, got)
		}
	}
}

// bye has a namespace say its name at a port, in both families, and end each connection itself.
func (w *world) bye(name string, port int) {
	w.t.Helper()
	var l net.Listener
	nstest.Do(w.t, w.ns[name], func() {
		var err error
		l, err = net.Listen("tcp", fmt.Sprintf(":%d", port))
		must(w.t, err)
	})
	w.t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte(name))
			c.Close()
		}
	}()
}

// hear is fromPort where the endpoint ends the connection, so that the port is free too,
// and connection tracking knows the flow as one that waits.
func (w *world) hear(from string, port int, addr string) string {
	w.t.Helper()
	var said []byte
	var err error
	nstest.Do(w.t, w.ns[from], func() {
		var c net.Conn
		d := net.Dialer{Timeout: w.wait, LocalAddr: &net.TCPAddr{Port: port}}
		if c, err = d.Dial("tcp", addr); err != nil {
			return
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(w.wait))
		said, err = io.ReadAll(c)
	})
	if err != nil {
		return "!" + err.Error()
	}
	return string(said)
}

// Source ports that are used again immediately, after resets and after ends, find their way
// to any endpoint by any of several frontends.
func TestPortsUsedAgain(t *testing.T) {
	w := newWorld(t)
	for _, name := range []string{"a", "b", "c"} {
		w.serve(name, 8080)
		w.bye(name, 8081)
	}
	var list []Frontend
	vips := []string{vip4, vip6, "10.96.0.11", "fd96::11"}
	for _, vip := range vips {
		resets := to(key(vip, sdn.TCP), "a", "b", "c")
		ends := to(key(vip, sdn.TCP), "a", "b", "c")
		ends.Port = 81
		for i, e := range ends.Endpoints {
			ends.Endpoints[i] = netip.AddrPortFrom(e.Addr(), 8081)
		}
		list = append(list, resets, ends)
		w.own(vip)
	}
	w.restore(list...)
	const ports = 13
	reached := map[byte]int{}
	for n := range 600 {
		vip, port := vips[n/2%len(vips)], 1024+n%ports
		got := ""
		if n%2 == 0 {
			got = w.fromPort("out", port, at(vip, 80))
		} else {
			// By one VIP of a family alone, as an endpoint that remembers a connection may have a
			// client by another VIP try twice: it sees the same port with other numbers.
			vip = vips[n/2%2]
			got = w.hear("out", port, at(vip, 81))
		}
		if got == "" || got[0] == '!' {
			t.Fatalf("connection %d, from port %d to %s: %q", n, port, vip, got)
		}
		reached[got[0]]++
	}
	if len(reached) != 3 {
		t.Errorf("endpoints reached: %v, want all three", reached)
	}
}

// An association of SCTP whose first packet was lost or refused begins by the frontend
// that came then.
func TestAssociationCalledBefore(t *testing.T) {
	if _, err := os.Stat("/proc/sys/net/netfilter/nf_conntrack_sctp_timeout_closed"); err != nil {
		t.Skip("this kernel does not track SCTP:", err)
	}
	w := newWorld(t)
	w.restore()
	const initiate, abort = 1, 6
	for i, network := range []string{"ip4:132", "ip6:132"} {
		endpoint, out := w.packets("b", network), w.packets("out", network)
		for j, refuse := range []bool{false, true} {
			vip, client := []string{vip4, vip6}[i], uint16(5000+j)
			if refuse {
				vip = addrs["c"][i] // one that there is, to send the refusal
			}
			other := w.packets("c", network)
			_, err := out.WriteToIP(sctp(client, 80, 0, initiate), &net.IPAddr{IP: net.ParseIP(vip)})
			must(t, err)
			if refuse {
				passes(t, other, out, sctp(80, client, 0x01020304, abort), addrs["out"][i])
			}
			w.set(to(key(vip, sdn.SCTP), "b"))
			w.table.called.ended.Wait()
			if got, _ := passes(t, out, endpoint, sctp(client, 80, 0, initiate), vip); len(got) > 4 && got[3] != 8080&0xff {
				t.Errorf("%s, refused %v: it came to another port", vip, refuse)
			}
		}
	}
}
