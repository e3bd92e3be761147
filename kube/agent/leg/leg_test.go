//go:build linux

package leg

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/kuryr/kuryr/bind"
	"github.com/kuryr/kuryr/internal/nstest"
	"github.com/kuryr/kuryr/internal/reconcile"
	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/sdn"
)

func TestMain(m *testing.M) { os.Exit(nstest.Main(m)) }

// api has its lists by list: the fake knows no streamed ones.
type api struct {
	client.WithWatch
	watches atomic.Int32 // begun
}

func (*api) IsWatchListSemanticsUnSupported() bool { return true }

func (a *api) Watch(ctx context.Context, l client.ObjectList, o ...client.ListOption) (watch.Interface, error) {
	w, err := a.WithWatch.Watch(ctx, l, o...)
	a.watches.Add(1)
	return w, err
}

func newAPI(t *testing.T) *api {
	t.Helper()
	scheme := runtime.NewScheme()
	must(t, v1.AddToScheme(scheme))
	return &api{WithWatch: fake.NewClientBuilder().WithScheme(scheme).Build()}
}

// machine is a node, which is the throw-away host that the test runs in, with a router of the SDN's beside it, whose bridge has the gateway's address and the pods' range behind it.
type machine struct {
	t      *testing.T
	router netns.NsHandle
	api    *api
	binder *bind.Binder
	unbind func()
	dir    string       // of the table
	old    string       // folder of an earlier version's record
	faults atomic.Int32 // Plugs that are to fail
	plugs  atomic.Int32
}

func (m *machine) Plug(ctx context.Context, i bind.Interface) (bind.Result, error) {
	m.plugs.Add(1)
	if m.faults.Add(-1) >= 0 {
		return bind.Result{}, errors.New("made up")
	}
	return m.binder.Plug(ctx, i)
}

func (m *machine) Unplug(ctx context.Context, p sdn.Port) error { return m.binder.Unplug(ctx, p) }

func newMachine(t *testing.T) *machine {
	t.Helper()
	m := &machine{t: t, router: nstest.New(t), dir: t.TempDir(), api: newAPI(t)}
	nstest.Do(t, m.router, func() {
		br := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0", HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 1}}}
		must(t, netlink.LinkAdd(br))
		must(t, netlink.LinkSetUp(br))
		must(t, netlink.AddrAdd(br, &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(10, 112, 0, 1), Mask: net.CIDRMask(16, 32)}}))
		pod, err := netlink.LinkByName("lo")
		must(t, err)
		must(t, netlink.AddrAdd(pod, &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(10, 128, 0, 5), Mask: net.CIDRMask(32, 32)}}))
	})
	m.bind()
	t.Cleanup(func() {
		_, err := m.remove()
		must(t, errors.Join(err, m.binder.Collect(context.Background(), m.path())))
		m.unbind()
	})
	return m
}

// store opens the machine's table.
func (m *machine) store() *reconcile.Store {
	m.t.Helper()
	s, err := reconcile.Open(reconcile.Config{
		Path: filepath.Join(m.dir, "agent.db"), Volatile: true, MinBackoff: 10 * time.Millisecond, Logger: slog.New(slog.DiscardHandler),
	})
	must(m.t, err)
	return s
}

// remove takes the port off the machine.
func (m *machine) remove() (bool, error) {
	m.t.Helper()
	s := m.store()
	removed, err := Remove(context.Background(), Config{Binder: m.binder, Store: s, Old: m.old})
	return removed, errors.Join(err, s.Close())
}

// bind gives the machine what a process begins with, which has not seen its namespaces yet.
func (m *machine) bind() {
	m.t.Helper()
	b, err := bind.New(bind.Config{Logger: slog.New(slog.DiscardHandler)})
	must(m.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	collected := make(chan error, 1)
	go func() { collected <- b.Run(ctx) }()
	m.binder, m.unbind = b, func() {
		cancel()
		must(m.t, errors.Join(<-collected, b.Close()))
	}
}

func (m *machine) path() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), int(m.router)) }

// run has a daemon run, until the function that it gives is called. It watches by then: the fake tells a watch nothing of what came between it and the list before.
func (m *machine) run() (stop func()) {
	m.t.Helper()
	s := m.store()
	l, err := Open(Config{Client: m.api, Node: "n1", Binder: m, Store: s, Old: m.old})
	must(m.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	must(m.t, s.Start(ctx))
	before := m.api.watches.Load()
	var running sync.WaitGroup
	running.Go(func() { s.Run(ctx) })
	running.Go(func() { l.Run(ctx) })
	stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
		must(m.t, s.Close())
	})
	m.t.Cleanup(stop)
	m.until("the daemon watches", func() bool { return m.api.watches.Load() > before })
	return stop
}

// port makes a KuryrPort of the node's own.
func (m *machine) port(id, node, addr string, routes ...string) *v1.KuryrPort {
	m.t.Helper()
	p := &v1.KuryrPort{
		ObjectMeta: metav1.ObjectMeta{Name: id, Labels: map[string]string{v1.LabelNode: node, v1.LabelForNode: "true"}},
		Spec: v1.KuryrPortSpec{
			ID: id, Address: "fa:16:3e:00:00:" + id[:2], Node: node, ForNode: true,
			VIF:     v1.PortVIF{Type: sdn.VIFBridge, Details: map[string]string{sdn.DetailBridge: "br0", sdn.DetailNamespace: m.path()}},
			Network: v1.PortNetwork{ID: "nodes", MTU: 1442, Subnets: []v1.PortSubnet{{ID: "s", CIDR: "10.112.0.0/16", IPs: []string{addr}}}},
		},
	}
	for _, r := range routes {
		p.Spec.Network.Subnets[0].Routes = append(p.Spec.Network.Subnets[0].Routes, v1.PortRoute{Destination: r, NextHop: "10.112.0.1"})
	}
	must(m.t, m.api.Create(context.Background(), p))
	return p
}

// picture is the interface as the kernel shows it: addresses, MTU, routes; "" for none.
func picture() string {
	link, err := netlink.LinkByName(Interface)
	if err != nil {
		return ""
	}
	var all []string
	addrs, _ := netlink.AddrList(link, unix.AF_INET)
	for _, a := range addrs {
		all = append(all, a.IPNet.String())
	}
	all = append(all, fmt.Sprintf("mtu %d", link.Attrs().MTU))
	routes, _ := netlink.RouteList(link, unix.AF_INET)
	var vias []string
	for _, r := range routes {
		if r.Gw != nil {
			vias = append(vias, fmt.Sprintf("%s via %s", r.Dst, r.Gw))
		}
	}
	slices.Sort(vias)
	return strings.Join(append(all, vias...), ", ")
}

// becomes waits until the interface is as wanted.
func (m *machine) becomes(when, want string) {
	m.t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(time.Minute); picture() != want; <-tick.C {
		if time.Now().After(end) {
			m.t.Fatalf("%s: %q, want %q", when, picture(), want)
		}
	}
}

// reaches checks that the node's packets to a pod have its own port's address, and are answered.
func (m *machine) reaches(pod, as string) {
	m.t.Helper()
	var server *net.UDPConn
	nstest.Do(m.t, m.router, func() {
		var err error
		server, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(pod), 7)))
		must(m.t, err)
	})
	defer server.Close()
	c, err := net.Dial("udp4", net.JoinHostPort(pod, "7"))
	must(m.t, err)
	defer c.Close()
	once := func() error {
		soon := time.Now().Add(200 * time.Millisecond)
		must(m.t, errors.Join(server.SetDeadline(soon), c.SetDeadline(soon)))
		buf := make([]byte, 16)
		if _, err := c.Write([]byte("probe")); err != nil {
			return err
		}
		n, from, err := server.ReadFromUDPAddrPort(buf)
		if err != nil {
			return err
		}
		if from.Addr().String() != as || string(buf[:n]) != "probe" {
			m.t.Fatalf("%q came from %s, want it from %s", buf[:n], from, as)
		}
		if _, err := server.WriteToUDPAddrPort([]byte("alive"), from); err != nil {
			return err
		}
		n, err = c.Read(buf)
		if err == nil && string(buf[:n]) != "alive" {
			err = fmt.Errorf("the answer is %q", buf[:n])
		}
		return err
	}
	// The kernel drops what is sent by a link before it has noticed the carrier.
	m.until("a pod is reached", func() bool { err = once(); return err == nil })
}

const (
	one   = "10.112.0.7/16, mtu 1442, 10.128.0.0/9 via 10.112.0.1"
	two   = "10.112.0.7/16, mtu 1442, 10.128.0.0/9 via 10.112.0.1, 172.20.0.0/24 via 10.112.0.1"
	other = "10.112.0.9/16, mtu 1442, 10.128.0.0/9 via 10.112.0.1"
)

// TestReplacesRoutes plugs the node's port beside a route to the pods by another interface,
// such as one that another network plugin has left.
func TestReplacesRoutes(t *testing.T) {
	nstest.Require(t)
	m := newMachine(t)
	left := &netlink.Ifb{LinkAttrs: netlink.LinkAttrs{Name: "left0"}}
	must(t, netlink.LinkAdd(left))
	t.Cleanup(func() { must(t, netlink.LinkDel(left)) })
	must(t, netlink.LinkSetUp(left))
	pods := &net.IPNet{IP: net.IPv4(10, 128, 0, 0), Mask: net.CIDRMask(9, 32)}
	must(t, netlink.RouteAdd(&netlink.Route{LinkIndex: left.Attrs().Index, Dst: pods, Scope: netlink.SCOPE_LINK}))
	m.run()
	m.port("11aaaaaa-0000-4000-8000-000000000001", "n1", "10.112.0.7", "10.128.0.0/9")
	m.becomes("beside another route", one)
	m.reaches("10.128.0.5", "10.112.0.7")
}

func TestTheNodeReachesPods(t *testing.T) {
	nstest.Require(t)
	m := newMachine(t)
	stop := m.run()
	m.port("22aaaaaa-0000-4000-8000-000000000002", "n2", "10.112.0.8", "10.128.0.0/9") // another node's
	p := m.port("11aaaaaa-0000-4000-8000-000000000001", "n1", "10.112.0.7", "10.128.0.0/9")
	m.becomes("at first", one)
	m.reaches("10.128.0.5", "10.112.0.7")
	index := func() int {
		link, err := netlink.LinkByName(Interface)
		must(t, err)
		return link.Attrs().Index
	}
	before := index()

	// The daemon's end changes nothing, nor does its return.
	stop()
	m.becomes("without a daemon", one)
	plugs := m.plugs.Load()
	stop = m.run()
	m.until("the next daemon looks", func() bool { return m.plugs.Load() > plugs })
	m.becomes("with the next daemon", one)

	// A route more is added, and one less is taken away.
	p.Spec.Network.Subnets[0].Routes = append(p.Spec.Network.Subnets[0].Routes, v1.PortRoute{Destination: "172.20.0.0/24", NextHop: "10.112.0.1"})
	must(t, m.api.Update(t.Context(), p))
	m.becomes("with a second route", two)
	if index() != before {
		t.Error("the interface was made anew, which interrupts traffic")
	}
	p.Spec.Network.Subnets[0].Routes = p.Spec.Network.Subnets[0].Routes[:1]
	must(t, m.api.Update(t.Context(), p))
	m.becomes("with the first route alone", one)
	m.reaches("10.128.0.5", "10.112.0.7")

	// What replaces it is plugged in its place; what is gone while no daemon runs is taken away by the next.
	m.port("33aaaaaa-0000-4000-8000-000000000003", "n1", "10.112.0.9", "10.128.0.0/9")
	must(t, m.api.Delete(t.Context(), p))
	m.becomes("with the port that replaces it", other)
	m.reaches("10.128.0.5", "10.112.0.9")
	stop()
	must(t, m.api.Delete(t.Context(), &v1.KuryrPort{ObjectMeta: metav1.ObjectMeta{Name: "33aaaaaa-0000-4000-8000-000000000003"}}))
	m.becomes("without a daemon", other)
	m.run()
	m.becomes("when its port is gone", "")
}

// until waits for something.
func (m *machine) until(what string, done func() bool) {
	m.t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(time.Minute); !done(); <-tick.C {
		if time.Now().After(end) {
			m.t.Fatalf("not in time: %s", what)
		}
	}
}

func TestWhatIsTakenAwayByHandComesBack(t *testing.T) {
	nstest.Require(t)
	m := newMachine(t)
	m.run()
	m.port("44aaaaaa-0000-4000-8000-000000000004", "n1", "10.112.0.7", "10.128.0.0/9")
	m.becomes("at first", one)
	for name, harm := range map[string]func(netlink.Link) error{
		"interface": netlink.LinkDel,
		"address": func(l netlink.Link) error {
			all, err := netlink.AddrList(l, unix.AF_INET)
			return errors.Join(err, netlink.AddrDel(l, &all[0]))
		},
		"route": func(l netlink.Link) error {
			return netlink.RouteDel(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: &net.IPNet{IP: net.IPv4(10, 128, 0, 0), Mask: net.CIDRMask(9, 32)}})
		},
		"down": netlink.LinkSetDown,
		"name": func(l netlink.Link) (err error) {
			m.until("renamed", func() bool { // the daemon may set it up before
				err = errors.Join(netlink.LinkSetDown(l), netlink.LinkSetName(l, "stray0"))
				return !errors.Is(err, unix.EBUSY)
			})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			link, err := netlink.LinkByName(Interface)
			must(t, err)
			must(t, harm(link))
			m.becomes(name, one)
			m.reaches("10.128.0.5", "10.112.0.7")
		})
	}
	if n := m.plugs.Load(); n > 60 {
		t.Errorf("%d looks: what sets things right wakes itself", n)
	}
}

func TestFailuresAreTriedAgain(t *testing.T) {
	nstest.Require(t)
	m := newMachine(t)
	m.faults.Store(2)
	m.run()
	m.port("55aaaaaa-0000-4000-8000-000000000005", "n1", "10.112.0.7", "10.128.0.0/9")
	m.becomes("after two failures", one)
}

func TestRemove(t *testing.T) {
	nstest.Require(t)
	m := newMachine(t)
	stop := m.run()
	m.port("66aaaaaa-0000-4000-8000-000000000006", "n1", "10.112.0.7", "10.128.0.0/9")
	m.becomes("at first", one)
	stop()
	for i, want := range []bool{true, false} {
		removed, err := m.remove()
		if err != nil || removed != want {
			t.Errorf("call %d: removed %v, %v", i, removed, err)
		}
	}
	m.becomes("after all", "")
	m.dir = t.TempDir()
	if removed, err := m.remove(); removed || err != nil {
		t.Errorf("where nothing was ever: %v, %v", removed, err)
	}
}

// What an earlier version has plugged is taken over, or taken away.
func TestUpgrade(t *testing.T) {
	nstest.Require(t)
	for name, kept := range map[string]bool{"kept": true, "gone": false} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			stop := m.run()
			p := m.port("88aaaaaa-0000-4000-8000-000000000008", "n1", "10.112.0.7", "10.128.0.0/9")
			m.becomes("at first", one)
			stop()
			m.dir, m.old = t.TempDir(), filepath.Join(t.TempDir(), "leg")
			text, err := json.Marshal(p.Spec)
			must(t, err)
			must(t, os.Mkdir(m.old, 0o700))
			must(t, os.WriteFile(filepath.Join(m.old, "port.json"), text, 0o600))
			before, err := netlink.LinkByName(Interface)
			must(t, err)
			if !kept {
				must(t, m.api.Delete(t.Context(), p))
			}
			m.run()
			if !kept {
				m.becomes("without its port", "")
				return
			}
			m.becomes("afterwards", one)
			if now, err := netlink.LinkByName(Interface); err != nil || now.Attrs().Index != before.Attrs().Index {
				t.Errorf("the interface was made again, which interrupts traffic (%v)", err)
			}
			m.until("the record is gone", func() bool { _, err := os.Stat(m.old); return os.IsNotExist(err) })
		})
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
