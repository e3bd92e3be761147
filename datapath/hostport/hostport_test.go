//go:build linux

package hostport

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
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

// world is a host with pods behind it, which answer with their names, and a client elsewhere.
type world struct {
	t            testing.TB
	host, client netns.NsHandle
	table        *Table
}

const (
	hostAddr  = "192.0.2.1"
	otherAddr = "192.0.2.3"
	hostAddr6 = "2001:db8::1"
)

func newWorld(t testing.TB) *world {
	nstest.Require(t)
	w := &world{t: t, host: nstest.New(t), client: nstest.New(t), table: &Table{}}
	nstest.Do(t, w.host, func() {
		for _, name := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
			must(t, os.WriteFile("/proc/sys/net/"+name, []byte("1"), 0))
		}
	})
	t.Cleanup(func() { w.table.Close() })
	w.cable(
		w.client, "out", []string{hostAddr + "/24", otherAddr + "/24", hostAddr6 + "/64"},
		[]string{"192.0.2.2/24", "2001:db8::2/64"},
	)
	w.pod("a", 1)
	w.pod("b", 2)
	for _, far := range []struct {
		from netns.NsHandle
		addr string
	}{{w.host, podA6}, {w.host, podB6}, {w.client, podA6}, {w.client, podB6}} {
		w.usable(far.from, far.addr)
	}
	return w
}

// usable waits until a new link passes what goes by it, which with IPv6 is a moment
// after it is up.
func (w *world) usable(from netns.NsHandle, addr string) {
	w.t.Helper()
	nstest.Eventually(w.t, addr+" itself answers", func() bool {
		return w.asks(from, "tcp", addr, 2*time.Second) != ""
	})
}

// cable joins the host and another, whose way out it is.
func (w *world) cable(to netns.NsHandle, name string, near, far []string) {
	w.t.Helper()
	address := func(link string, list []string) {
		l, err := netlink.LinkByName(link)
		must(w.t, err)
		for _, text := range list {
			a, err := netlink.ParseAddr(text)
			must(w.t, err)
			a.Flags = 2 // IFA_F_NODAD
			must(w.t, netlink.AddrAdd(l, a))
		}
		must(w.t, netlink.LinkSetUp(l))
	}
	nstest.Do(w.t, w.host, func() {
		pair := netlink.NewVeth(netlink.NewLinkAttrs())
		pair.Name, pair.PeerName, pair.PeerNamespace = name, "eth0", netlink.NsFd(to)
		must(w.t, netlink.LinkAdd(pair))
	})
	nstest.Do(w.t, to, func() { address("eth0", far) })
	nstest.Do(w.t, w.host, func() {
		address(name, near)
		_ = os.WriteFile("/proc/sys/net/ipv4/conf/"+name+"/route_localnet", []byte("1"), 0)
	})
	nstest.Do(w.t, to, func() {
		for _, text := range near[:1] {
			gw, _, _ := net.ParseCIDR(text)
			must(w.t, netlink.RouteAdd(&netlink.Route{Gw: gw}))
		}
		gw, _, _ := net.ParseCIDR(near[len(near)-1])
		must(w.t, netlink.RouteAdd(&netlink.Route{Gw: gw}))
	})
}

func (w *world) pod(name string, n int) {
	w.t.Helper()
	ns := nstest.New(w.t)
	w.cable(
		ns, "pod"+name, []string{fmt.Sprintf("10.0.%d.1/24", n), fmt.Sprintf("fd00:%d::1/64", n)},
		[]string{fmt.Sprintf("10.0.%d.2/24", n), fmt.Sprintf("fd00:%d::2/64", n)},
	)
	for _, family := range []string{"4", "6"} {
		var l net.Listener
		var u net.PacketConn
		nstest.Do(w.t, ns, func() {
			var err error
			l, err = net.Listen("tcp"+family, ":80")
			must(w.t, err)
			u, err = net.ListenPacket("udp"+family, ":80")
			must(w.t, err)
		})
		w.t.Cleanup(func() { l.Close(); u.Close() })
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
		go nstest.Serve(u, func(net.Addr, int) string { return name })
	}
}

func (w *world) set(owner string, list ...Mapping) (err error) {
	nstest.Do(w.t, w.host, func() { err = w.table.Set(owner, list) })
	return err
}

// asks is who answers a call from a namespace; "" is no server.
func (w *world) asks(from netns.NsHandle, network, addr string, limit time.Duration) (name string) {
	w.t.Helper()
	nstest.Do(w.t, from, func() {
		c, err := net.DialTimeout(network, addr, limit)
		if err != nil {
			return
		}
		defer c.Close()
		name = say(c, limit)
	})
	return name
}

// say asks over a connection.
func say(c net.Conn, limit time.Duration) string {
	if c.RemoteAddr().Network() == "udp" {
		name, _ := nstest.Ask(c, 0, limit)
		return name
	}
	_ = c.SetDeadline(time.Now().Add(limit))
	b := make([]byte, 8)
	n, _ := c.Read(b)
	return string(b[:n])
}

func (w *world) answers(from netns.NsHandle, network, addr, want string) {
	w.t.Helper()
	limit := nstest.Limit
	if want == "" {
		limit = 2 * time.Second
	}
	if got := w.asks(from, network, addr, limit); got != want {
		w.t.Errorf("%s %s answers %q, want %q", network, addr, got, want)
	}
}

func to(host string, protocol sdn.Protocol, port uint16, pod string) Mapping {
	addr, _ := netip.ParseAddr(host)
	return Mapping{Host: addr, Protocol: protocol, Port: port, To: netip.MustParseAddrPort(pod)}
}

const (
	podA, podB   = "10.0.1.2:80", "10.0.2.2:80"
	podA6, podB6 = "[fd00:1::2]:80", "[fd00:2::2]:80"
)

// A led port is reached from elsewhere, from the host by its addresses and by its
// loopback, and a removed one is not.
func TestLeads(t *testing.T) {
	w := newWorld(t)
	must(t, w.set(
		"a", to("", sdn.TCP, 8080, podA), to("", sdn.TCP, 8080, podA6), to("", sdn.UDP, 8080, podA),
		to("", sdn.UDP, 8080, podA6),
	))
	must(t, w.set("b", to(otherAddr, sdn.TCP, 8081, podB), to(hostAddr6, sdn.TCP, 8081, podB6)))
	for _, network := range []string{"tcp", "udp"} {
		w.answers(w.client, network, hostAddr+":8080", "a")
		w.answers(w.client, network, "["+hostAddr6+"]:8080", "a")
		w.answers(w.host, network, hostAddr+":8080", "a")
		w.answers(w.host, network, "127.0.0.1:8080", "a")
	}
	w.answers(w.client, "tcp", otherAddr+":8081", "b")
	w.answers(w.client, "tcp", "["+hostAddr6+"]:8081", "b")
	w.answers(w.client, "tcp", hostAddr+":8081", "")
	must(t, w.set("a"))
	w.answers(w.client, "tcp", hostAddr+":8080", "")
	w.answers(w.client, "tcp", otherAddr+":8081", "b")
	must(t, w.set("b"))
	if left := w.tables(); left != "" {
		t.Errorf("left: %s", left)
	}
}

func (w *world) tables() string {
	var names []string
	nstest.Do(w.t, w.host, func() {
		c, err := nftables.New()
		must(w.t, err)
		all, err := c.ListTables()
		must(w.t, err)
		for _, table := range all {
			names = append(names, table.Name)
		}
	})
	return strings.Join(names, " ")
}

// A client that never pauses follows a UDP port to whom it leads now.
func TestFollows(t *testing.T) {
	w := newWorld(t)
	must(t, w.set("a", to("", sdn.UDP, 5353, podA)))
	var c net.Conn
	nstest.Do(t, w.client, func() {
		var err error
		c, err = net.Dial("udp", hostAddr+":5353")
		must(t, err)
	})
	defer c.Close()
	if got := say(c, nstest.Limit); got != "a" {
		t.Fatalf("%q answers first", got)
	}
	must(t, w.set("a"))
	must(t, w.set("b", to("", sdn.UDP, 5353, podB)))
	if got := say(c, nstest.Limit); got != "b" {
		t.Errorf("%q answers then", got)
	}
}

func TestRefuses(t *testing.T) {
	w := newWorld(t)
	var taken net.Listener
	nstest.Do(t, w.host, func() {
		var err error
		taken, err = net.Listen("tcp4", ":10250")
		must(t, err)
	})
	defer taken.Close()
	must(t, w.set("a", to("", sdn.TCP, 8080, podA)))
	for name, row := range map[string]struct {
		m    Mapping
		is   func(error) bool
		says string
	}{
		"a program's":   {to("", sdn.TCP, 10250, podB), sdn.IsConflict, "10250"},
		"another's":     {to("", sdn.TCP, 8080, podB), sdn.IsConflict, "tcp 0.0.0.0:8080"},
		"its one":       {to(hostAddr, sdn.TCP, 8080, podB), sdn.IsConflict, "8080"},
		"two families":  {to(hostAddr6, sdn.TCP, 8082, podB), sdn.IsInvalid, "hostIP"},
		"no port":       {to("", sdn.TCP, 0, podB), sdn.IsInvalid, "port"},
		"not a port's":  {to("", 1, 80, podB), sdn.IsInvalid, "protocol"},
		"nobody's here": {to("192.0.2.77", sdn.TCP, 80, podB), func(err error) bool { return err != nil }, "192.0.2.77"},
	} {
		t.Run(name, func(t *testing.T) {
			// All or nothing: the first, which could be, is not either.
			err := w.set("b", to("", sdn.TCP, 9090, podB), row.m)
			if !row.is(err) || !strings.Contains(err.Error(), row.says) {
				t.Errorf("error %v", err)
			}
			w.answers(w.client, "tcp", hostAddr+":9090", "")
		})
	}
	w.answers(w.client, "tcp", hostAddr+":8080", "a")
}

// The next process leads what it is told and no more, whatever it finds, and what
// another program removes is there again with the next change.
func TestRestored(t *testing.T) {
	w := newWorld(t)
	must(t, w.set("a", to("", sdn.TCP, 8080, podA)))
	must(t, w.set("b", to("", sdn.TCP, 9090, podB)))
	w.table.Close()
	w.answers(w.client, "tcp", hostAddr+":8080", "a") // between the two
	w.table = &Table{}
	nstest.Do(t, w.host, func() { must(t, w.table.Restore(map[string][]Mapping{"b": {to("", sdn.TCP, 9090, podB)}})) })
	w.answers(w.client, "tcp", hostAddr+":8080", "")
	w.answers(w.client, "tcp", hostAddr+":9090", "b")
	if err := w.set("a", to("", sdn.TCP, 9090, podA)); !sdn.IsConflict(err) {
		t.Errorf("a port that was restored for another: %v", err)
	}
	nstest.Do(t, w.host, func() {
		c, err := nftables.New()
		must(t, err)
		c.DelTable(table.Ref())
		must(t, c.Flush())
	})
	must(t, w.set("a", to("", sdn.TCP, 8080, podA)))
	w.answers(w.client, "tcp", hostAddr+":8080", "a")
	w.answers(w.client, "tcp", hostAddr+":9090", "b")
}

// TestRuleset compares the table with a dump of it.
func TestRuleset(t *testing.T) {
	ns := nstest.New(t)
	nstest.Do(t, ns, func() {
		err := replace([]Mapping{
			{Protocol: sdn.TCP, Port: 80, To: netip.MustParseAddrPort("10.0.0.2:8080")},
			{Protocol: sdn.UDP, Port: 53, To: netip.MustParseAddrPort("[fd00::2]:53"),
				Host: netip.MustParseAddr("2001:db8::1")},
		})
		if err != nil {
			t.Fatal(err)
		}
	})
	nstest.WantRuleset(t, ns, "testdata/hostport.ruleset")
}
