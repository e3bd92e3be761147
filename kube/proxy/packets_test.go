//go:build linux

package proxy

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kuryr/kuryr/datapath/firewall"
	"github.com/kuryr/kuryr/datapath/lb"
	"github.com/kuryr/kuryr/internal/nstest"
)

func TestMain(m *testing.M) { os.Exit(nstest.Main(m)) }

// world is a node with a client outside (192.0.2.2), and behind a router of the SDN the pods a (10.128.0.5) and b (10.128.0.6), on one network. Whoever listens answers with
// his name and whom he sees. The node itself listens too, at port 8080.
type world struct {
	t                          testing.TB
	node, client, router, a, b netns.NsHandle
	table                      *lb.Table
}

const (
	nodeAddr, nodeAddr6 = "192.0.2.1", "2001:db8::1"
	vip                 = "203.0.113.7"
)

// newWorld makes it. With leg the node has a port of its own in the SDN, and the router has another way out than by the node.
func newWorld(t testing.TB, leg bool) *world {
	nstest.Require(t)
	w := &world{t: t, node: nstest.New(t), client: nstest.New(t), router: nstest.New(t), a: nstest.New(t), b: nstest.New(t)}
	for _, ns := range []netns.NsHandle{w.node, w.router} {
		nstest.Do(t, ns, func() {
			for _, name := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding", "ipv4/conf/all/rp_filter", "ipv4/conf/default/rp_filter"} {
				must(t, os.WriteFile("/proc/sys/net/"+name, []byte("1"), 0))
			}
		})
	}
	w.cable(w.node, "out", w.client, "eth0", []string{nodeAddr + "/24", nodeAddr6 + "/64"}, []string{"192.0.2.2/24", "2001:db8::2/64"})
	w.route(w.client, "203.0.113.0/24", nodeAddr)
	w.route(w.node, "203.0.113.0/24", "192.0.2.2") // as it has one to everywhere
	w.route(w.client, "10.96.0.0/12", nodeAddr)
	nstest.Do(t, w.router, func() {
		must(t, netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0"}}))
		assign(t, "br0", "10.128.0.1/16", "fd00::1/64")
	})
	for i, ns := range []netns.NsHandle{w.a, w.b} {
		tap := fmt.Sprint("tap", i)
		w.cable(w.router, tap, ns, "eth0", nil, []string{fmt.Sprintf("10.128.0.%d/16", 5+i), fmt.Sprintf("fd00::%d/64", 5+i)})
		nstest.Do(t, w.router, func() {
			l, err := netlink.LinkByName(tap)
			must(t, err)
			br, err := netlink.LinkByName("br0")
			must(t, err)
			must(t, netlink.LinkSetMaster(l, br))
		})
		w.route(ns, "0.0.0.0/0", "10.128.0.1")
		w.route(ns, "::/0", "fd00::1")
	}
	if leg {
		// The machine's port on a network of the router's; who is elsewhere is reached by another router, which nobody is behind here.
		w.cable(w.node, "kuryr-node0", w.router, "br1", []string{"10.112.0.7/16"}, []string{"10.112.0.1/16"})
		for _, to := range []string{"10.128.0.0/16", "10.96.0.0/12"} { // as Raven gives the port its routes
			w.route(w.node, to, "10.112.0.1")
		}
		w.route(w.router, "10.96.0.0/12", "10.112.0.7") // as the SDN's router has it where nodes balance ClusterIPs
		w.route(w.router, "192.0.2.0/24", "10.112.0.7") // as whoever may make routes could
		nstest.Do(t, w.node, func() { must(t, firewall.GuardLink("kuryr-node0")) })
	} else {
		w.cable(w.node, "kr0", w.router, "up0", []string{"100.64.0.1/30", "fd64::1/64"}, []string{"100.64.0.2/30", "fd64::2/64"})
		w.route(w.node, "10.128.0.0/16", "100.64.0.2")
		w.route(w.node, "fd00::/64", "fd64::2")
		w.route(w.router, "0.0.0.0/0", "100.64.0.1")
		w.route(w.router, "::/0", "fd64::1")
		masquerade(t, w.router, "", "up0")
		masquerade(t, w.node, "kr0", "kr0") // as package router's table in the host has it
	}
	w.listen(w.a, "a")
	w.listen(w.b, "b")
	w.listen(w.node, "node")
	settled := []string{"10.128.0.5", "10.128.0.6"}
	if !leg {
		settled = append(settled, "fd00::5", "fd00::6")
	}
	for _, addr := range settled {
		w.settled(net.JoinHostPort(addr, "8080"))
	}
	w.open()
	t.Cleanup(func() { must(t, w.table.Close()) })
	return w
}

// settled waits until new links pass what goes by them, which is a moment after they are up.
func (w *world) settled(addr string) {
	w.t.Helper()
	for end := time.Now().Add(testTimeout); strings.Count(w.askFor(w.node, "tcp", addr, short), " ") == 0; {
		if time.Now().After(end) {
			w.t.Fatalf("nobody answers at %s itself", addr)
		}
	}
}

// open is what a process begins with.
func (w *world) open() {
	w.table = lb.New(lb.Config{Logger: slog.New(slog.DiscardHandler), Inside: []string{"kr", "kuryr-node0"}, Run: func(f func() error) (err error) {
		nstest.Do(w.t, w.node, func() { err = f() })
		return err
	}})
}

func assign(t testing.TB, link string, list ...string) {
	t.Helper()
	l, err := netlink.LinkByName(link)
	must(t, err)
	must(t, netlink.LinkSetUp(l))
	for _, text := range list {
		a, err := netlink.ParseAddr(text)
		must(t, err)
		a.Flags = 2 // IFA_F_NODAD
		must(t, netlink.AddrAdd(l, a))
	}
}

// cable joins two namespaces.
func (w *world) cable(one netns.NsHandle, name string, other netns.NsHandle, peer string, near, far []string) {
	w.t.Helper()
	nstest.Do(w.t, one, func() {
		pair := netlink.NewVeth(netlink.NewLinkAttrs())
		pair.Name, pair.PeerName, pair.PeerNamespace = name, peer, netlink.NsFd(other)
		must(w.t, netlink.LinkAdd(pair))
	})
	nstest.Do(w.t, other, func() { assign(w.t, peer, far...) })
	nstest.Do(w.t, one, func() { assign(w.t, name, near...) })
}

func (w *world) route(in netns.NsHandle, to, via string) {
	w.t.Helper()
	nstest.Do(w.t, in, func() {
		_, dst, err := net.ParseCIDR(to)
		must(w.t, err)
		must(w.t, netlink.RouteAdd(&netlink.Route{Dst: dst, Gw: net.ParseIP(via)}))
	})
}

// masquerade has what comes in by a link, if any is named, and leaves by another do so by that one's address.
func masquerade(t testing.TB, in netns.NsHandle, from, to string) {
	t.Helper()
	nstest.Do(t, in, func() {
		c, err := nftables.New()
		must(t, err)
		table := c.AddTable(&nftables.Table{Name: "out", Family: nftables.TableFamilyINet})
		chain := c.AddChain(&nftables.Chain{Name: "post", Table: table, Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource})
		var rule []expr.Any
		for key, name := range map[expr.MetaKey]string{expr.MetaKeyIIFNAME: from, expr.MetaKeyOIFNAME: to} {
			if name != "" {
				rule = append(rule, &expr.Meta{Key: key, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: append([]byte(name), 0)})
			}
		}
		c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: append(rule, &expr.Masq{})})
		must(t, c.Flush())
	})
}

// listen answers each connection, and each datagram, at port 8080 with a name and with whom it sees.
func (w *world) listen(in netns.NsHandle, name string) {
	w.t.Helper()
	var l net.Listener
	var u net.PacketConn
	nstest.Do(w.t, in, func() {
		var err error
		l, err = net.Listen("tcp", ":8080")
		must(w.t, err)
		u, err = net.ListenPacket("udp", ":8080")
		must(w.t, err)
	})
	w.t.Cleanup(func() { l.Close(); u.Close() })
	says := func(a net.Addr) []byte {
		return []byte(name + " " + netip.MustParseAddrPort(a.String()).Addr().Unmap().String())
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				for b := make([]byte, 8); ; { // an answer to each word
					if _, err := c.Read(b); err != nil {
						return
					}
					_, _ = c.Write(says(c.RemoteAddr()))
				}
			}()
		}
	}()
	go func() {
		for b := make([]byte, 8); ; {
			_, from, err := u.ReadFrom(b)
			if err != nil {
				return
			}
			_, _ = u.WriteTo(says(from), from)
		}
	}()
}

// dial connects from a namespace.
func (w *world) dial(from netns.NsHandle, network, addr string, patience time.Duration) (c net.Conn, err error) {
	w.t.Helper()
	nstest.Do(w.t, from, func() { c, err = net.DialTimeout(network, addr, patience) })
	return c, err
}

// ask is who answers, and whom he sees; or "refused", or "silence".
func (w *world) ask(from netns.NsHandle, network, addr string) string {
	w.t.Helper()
	return w.askFor(from, network, addr, long)
}

// What is to answer has long to do so, on a loaded machine; that nobody does is soon believed.
const long, short = 30 * time.Second, 150 * time.Millisecond

func (w *world) askFor(from netns.NsHandle, network, addr string, patience time.Duration) string {
	w.t.Helper()
	c, err := w.dial(from, network, addr, patience)
	if err == nil {
		defer c.Close()
		return say(c, patience)
	}
	return failure(err)
}

// say asks over a connection.
func say(c net.Conn, patience time.Duration) string {
	_ = c.SetDeadline(time.Now().Add(patience))
	_, _ = c.Write([]byte("?"))
	b := make([]byte, 64)
	n, err := c.Read(b)
	if err != nil {
		return failure(err)
	}
	return string(b[:n])
}

func failure(err error) string {
	if strings.Contains(err.Error(), "refused") {
		return "refused"
	}
	return "silence"
}

// have brings Services into the node's kernel.
func (w *world) have(r Rules, n Node, s *corev1.Service, list ...*discoveryv1.EndpointSlice) {
	w.t.Helper()
	x := newIndex(r, n)
	x.setService(s)
	for _, o := range list {
		x.setSlice(o)
	}
	must(w.t, w.table.Restore(w.t.Context(), slices.Collect(x.plan().frontends())))
}

// Every row, with packets.
func TestPackets(t *testing.T) {
	onLeg := here
	onLeg.Leg = true
	type probe struct {
		from          string // client, node, a, b
		network, addr string
		want          []string // any of them
	}
	type row struct {
		name    string
		rules   Rules
		service *corev1.Service
		slices  []*discoveryv1.EndpointSlice
		probes  []probe
	}
	const nodePort, nodePort6 = nodeAddr + ":30080", "[" + nodeAddr6 + "]:30080"
	ab := sliceOf("s", "10.128.0.5 n1", "10.128.0.6 n1")
	onlyA := sliceOf("s", "10.128.0.5 n1")
	udp := func(s *corev1.Service) {
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: "http", Protocol: corev1.ProtocolUDP, Port: 80, NodePort: 30080})
	}
	withUDP := func(s *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
		s = s.DeepCopy()
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: new("http"), Protocol: new(corev1.ProtocolUDP), Port: new(int32(8080))})
		return s
	}
	for _, behind := range []struct {
		name string
		node Node
		rows []row
	}{
		{"a router's uplink", here, []row{
			{"NodePort", Rules{}, of(udp), []*discoveryv1.EndpointSlice{withUDP(ab)}, []probe{
				{"client", "tcp", nodePort, []string{"a 192.0.2.2", "b 192.0.2.2"}},
				{"client", "udp", nodePort, []string{"a 192.0.2.2", "b 192.0.2.2"}},
				{"node", "tcp", nodePort, []string{"a 192.0.2.1", "b 192.0.2.1"}},
				{"b", "tcp", nodePort, []string{"a 100.64.0.1", "b 100.64.0.1"}}, // by its router, which it is back at
				{"client", "tcp", nodeAddr + ":30081", []string{"refused"}},
			}},
			{"NodePort of IPv6", Rules{}, of(func(s *corev1.Service) { s.Spec.ClusterIP, s.Spec.ClusterIPs = "fd00:96::10", []string{"fd00:96::10"} }),
				[]*discoveryv1.EndpointSlice{sliceOf("s", "fd00::5 n1")}, []probe{{"client", "tcp", nodePort6, []string{"a 2001:db8::2"}}, {"node", "tcp", nodePort6, []string{"a 2001:db8::1"}}}},
			{"nobody answers", Rules{}, of(udp), nil, []probe{{"client", "tcp", nodePort, []string{"refused"}}, {"client", "udp", nodePort, []string{"refused"}}, {"node", "tcp", nodePort, []string{"refused"}}}},
			{"local", Rules{}, of(outerLocal), []*discoveryv1.EndpointSlice{sliceOf("s", "10.128.0.5 n1", "10.128.0.6 n2")}, []probe{{"client", "tcp", nodePort, []string{"a 192.0.2.2"}}}},
			{"local, elsewhere", Rules{}, of(outerLocal, external(true, vip)), []*discoveryv1.EndpointSlice{sliceOf("s", "10.128.0.6 n2")}, []probe{
				{"client", "tcp", nodePort, []string{"silence"}}, {"client", "tcp", vip + ":80", []string{"silence"}},
				{"node", "tcp", nodePort, []string{"b 100.64.0.1"}}, {"node", "tcp", vip + ":80", []string{"b 100.64.0.1"}}, // masqueraded, as its answers would not come back
				{"a", "tcp", nodePort, []string{"b 100.64.0.1"}}, {"a", "tcp", vip + ":80", []string{"b 100.64.0.1"}},
			}},
			{"local, and nowhere", Rules{}, of(outerLocal), nil, []probe{{"client", "tcp", nodePort, []string{"refused"}}, {"node", "tcp", nodePort, []string{"refused"}}, {"a", "tcp", nodePort, []string{"refused"}}}},
			{"on the host's network", Rules{}, of(), []*discoveryv1.EndpointSlice{sliceOf("s", nodeAddr+" n1")}, []probe{{"client", "tcp", nodePort, []string{"node 192.0.2.2"}}, {"node", "tcp", nodePort, []string{"node 192.0.2.1"}}}},
			{"load balancer", Rules{}, of(external(false, vip)), []*discoveryv1.EndpointSlice{onlyA}, []probe{{"client", "tcp", vip + ":80", []string{"a 192.0.2.2"}}}},
			{"load balancer for others", Rules{}, of(external(false, vip), func(s *corev1.Service) { s.Spec.LoadBalancerSourceRanges = []string{"198.51.100.0/24"} }),
				[]*discoveryv1.EndpointSlice{onlyA}, []probe{{"client", "tcp", vip + ":80", []string{"silence"}}, {"client", "tcp", nodePort, []string{"a 192.0.2.2"}}}},
			{"external address", Rules{ExternalIPs: []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}}, of(func(s *corev1.Service) { s.Spec.ExternalIPs = []string{vip} }),
				[]*discoveryv1.EndpointSlice{onlyA}, []probe{{"client", "tcp", vip + ":80", []string{"a 192.0.2.2"}}}},
		}},
		{"the node's own port", onLeg, []row{
			{"NodePort", Rules{}, of(udp), []*discoveryv1.EndpointSlice{withUDP(ab)}, []probe{
				{"client", "tcp", nodePort, []string{"a 10.112.0.7", "b 10.112.0.7"}}, {"client", "udp", nodePort, []string{"a 10.112.0.7", "b 10.112.0.7"}},
				{"node", "tcp", nodePort, []string{"a 10.112.0.7", "b 10.112.0.7"}},
			}},
			{"ClusterIP", Rules{ClusterIPs: true}, of(udp), []*discoveryv1.EndpointSlice{withUDP(onlyA)}, []probe{
				{"client", "tcp", "10.96.0.10:80", []string{"a 10.112.0.7"}},
				{"node", "tcp", "10.96.0.10:80", []string{"a 10.112.0.7"}},
				{"b", "tcp", "10.96.0.10:80", []string{"a 10.112.0.7"}},
				{"b", "udp", "10.96.0.10:80", []string{"a 10.112.0.7"}},
				{"a", "tcp", "10.96.0.10:80", []string{"a 10.112.0.7"}}, // itself
				{"b", "tcp", "10.96.0.10:81", []string{"refused"}},      // a port that is none
				{"b", "udp", "10.96.0.99:80", []string{"refused"}},      // an address that is nobody's
				{"b", "tcp", "192.0.2.2:22", []string{"refused"}},       // the node is no way to others
			}},
			{"ClusterIP without endpoints", Rules{ClusterIPs: true}, of(), nil, []probe{{"b", "tcp", "10.96.0.10:80", []string{"refused"}}, {"node", "tcp", "10.96.0.10:80", []string{"refused"}}}},
			{"local, elsewhere", Rules{}, of(outerLocal, external(true, vip)), []*discoveryv1.EndpointSlice{sliceOf("s", "10.128.0.6 n2")}, []probe{
				{"client", "tcp", nodePort, []string{"silence"}}, {"client", "tcp", vip + ":80", []string{"silence"}},
				{"node", "tcp", nodePort, []string{"b 10.112.0.7"}}, {"node", "tcp", vip + ":80", []string{"b 10.112.0.7"}},
				{"a", "tcp", "10.112.0.7:30080", []string{"b 10.112.0.7"}}, // the node's own port is the way of pods
			}},
			{"local, on the host's network", Rules{}, of(outerLocal), []*discoveryv1.EndpointSlice{sliceOf("s", nodeAddr+" n1")}, []probe{{"client", "tcp", nodePort, []string{"node 192.0.2.2"}}}},
		}},
	} {
		t.Run(behind.name, func(t *testing.T) {
			w := newWorld(t, behind.node.Leg)
			from := map[string]netns.NsHandle{"client": w.client, "node": w.node, "a": w.a, "b": w.b}
			for _, row := range behind.rows {
				w.have(row.rules, behind.node, row.service, row.slices...)
				for _, p := range row.probes {
					patience := long
					if slices.Contains(p.want, "silence") {
						patience = short
					}
					if got := w.askFor(from[p.from], p.network, p.addr, patience); !slices.Contains(p.want, got) {
						t.Errorf("%s: from the %s, %s %s: %q, want one of %q", row.name, p.from, p.network, p.addr, got, p.want)
					}
				}
			}
		})
	}
}

// A node that moves from kube-proxy has both: the first to translate is this one, and then the other alone.
func TestBeforeKubeProxy(t *testing.T) {
	w := newWorld(t, false)
	nstest.Do(t, w.node, func() {
		c, err := nftables.New()
		must(t, err)
		table := c.AddTable(&nftables.Table{Name: "kube-proxy", Family: nftables.TableFamilyIPv4})
		chain := c.AddChain(&nftables.Chain{Name: "nat-prerouting", Table: table, Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityNATDest})
		c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{30080 >> 8, 30080 & 0xff}},
			&expr.Immediate{Register: 1, Data: []byte{10, 128, 0, 6}}, &expr.Immediate{Register: 2, Data: []byte{8080 >> 8, 8080 & 0xff}},
			&expr.NAT{Type: expr.NATTypeDestNAT, Family: 2, RegAddrMin: 1, RegProtoMin: 2},
		}})
		must(t, c.Flush())
	})
	answers := func(when, want string) {
		t.Helper()
		if got := w.ask(w.client, "tcp", nodeAddr+":30080"); got != want {
			t.Errorf("%s: %q, want %q", when, got, want)
		}
	}
	answers("kube-proxy alone", "b 192.0.2.2")
	w.have(Rules{}, here, of(), sliceOf("s", "10.128.0.5 n1"))
	answers("both", "a 192.0.2.2")
	must(t, w.table.Remove(context.Background()))
	answers("kube-proxy again", "b 192.0.2.2")
}

// A connection outlives the process that brought its Service into the kernel, and the one that brings it there again.
func TestOutlives(t *testing.T) {
	w := newWorld(t, false)
	w.have(Rules{}, here, of(), sliceOf("s", "10.128.0.5 n1"))
	c, err := w.dial(w.client, "tcp", nodeAddr+":30080", long)
	must(t, err)
	defer c.Close()
	for _, when := range []string{"at first", "without a process", "with the next"} {
		if got := say(c, long); got != "a 192.0.2.2" {
			t.Errorf("%s: %q", when, got)
		}
		switch when {
		case "at first":
			must(t, w.table.Close())
			w.open()
			if got := w.ask(w.client, "tcp", nodeAddr+":30080"); got != "a 192.0.2.2" {
				t.Errorf("another, without a process: %q", got)
			}
		case "without a process":
			w.have(Rules{}, here, of(), sliceOf("s", "10.128.0.5 n1"))
		}
	}
	must(t, w.table.Remove(context.Background()))
	if got := w.ask(w.client, "tcp", nodeAddr+":30080"); got != "refused" {
		t.Errorf("after the table has gone: %q", got)
	}
}

// A flow of UDP stays with its endpoint for as long as that serves, be it ready or not to be chosen any more, and goes on with another when it serves no more. Whoever begins one
// meanwhile gets another at once.
func TestFlowsStayWithWhoServes(t *testing.T) {
	w := newWorld(t, false)
	udp := func(s *corev1.Service) { s.Spec.Ports[0].Protocol = corev1.ProtocolUDP }
	for policy, change := range map[string]func(*corev1.Service){"Cluster": func(*corev1.Service) {}, "Local": outerLocal} {
		for _, end := range []string{"10.128.0.5 n1 unready terminating", "10.128.0.5 n1 unready", ""} {
			has := func(all ...string) {
				t.Helper()
				s := sliceOf("s", slices.DeleteFunc(all, func(e string) bool { return e == "" })...)
				s.Ports[0].Protocol = new(corev1.ProtocolUDP)
				w.have(Rules{}, here, of(udp, change), s)
			}
			has("10.128.0.5 n1")
			flow, err := w.dial(w.client, "udp", nodeAddr+":30080", long)
			must(t, err)
			wants := func(when, goesOn, begins string) {
				t.Helper()
				if got := say(flow, long); got != goesOn+" 192.0.2.2" {
					t.Errorf("%s, %s: the flow goes to %q, want %s", policy, when, got, goesOn)
				}
				if got := w.ask(w.client, "udp", nodeAddr+":30080"); got != begins+" 192.0.2.2" {
					t.Errorf("%s, %s: a new flow goes to %q, want %s", policy, when, got, begins)
				}
			}
			wants("one endpoint", "a", "a")
			has("10.128.0.5 n1 terminating")
			wants("it terminates, and is the only one", "a", "a")
			has("10.128.0.5 n1 terminating", "10.128.0.6 n1")
			wants("it terminates, and another is ready", "a", "b")
			if policy == "Cluster" {
				has("10.128.0.5 n1 zone=z2", "10.128.0.6 n1 zone=z1")
				wants("it is for another zone", "a", "b")
			}
			has(end, "10.128.0.6 n1")
			wants("it serves no more: "+end, "b", "b")
			flow.Close()
		}
	}
}
