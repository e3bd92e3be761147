//go:build linux && failpoints

package router

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kuryr/kuryr/datapath/lb"
	"github.com/kuryr/kuryr/datapath/securitygroup"
	kuryrns "github.com/kuryr/kuryr/internal/netns"
	"github.com/kuryr/kuryr/internal/nstest"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// life is what a child lives through: first is made, then it becomes last, by single
// calls; then last is reconciled and all taken down.
type life struct {
	Dir         string
	First, Last State
	Tap         string // made below the network that moves, as of a container that outlives the child
	Container   string // the namespace with its other end, as a path
	Subport     Port   // of the port with that tap, in the first router; last it has another VLAN
	TapDomain   string
}

func init() {
	text := os.Getenv("KURYR_ROUTER_LIFE")
	if text == "" {
		return
	}
	var l life
	err := json.Unmarshal([]byte(text), &l)
	if err == nil {
		err = l.live()
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(0)
}

func kernelIn(dir string) (*Kernel, *kuryrns.Store, error) {
	store, err := kuryrns.Open(dir)
	if err != nil {
		return nil, nil, err
	}
	f, err := New(Options{
		Namespaces: store, Uplink4: netip.MustParsePrefix("100.64.0.0/16"),
		Uplink6: netip.MustParsePrefix("fd00:6b75::/64"), Logger: slog.New(slog.DiscardHandler),
	})
	if err == nil && !supports().VLANs {
		f.legs = standIn
	}
	return f, store, err
}

func (l life) live() error {
	ctx := context.Background()
	f, store, err := kernelIn(l.Dir)
	if err != nil {
		return err
	}
	for _, d := range l.First.Shapes {
		if _, err := applyShape(ctx, f, d); err != nil {
			return err
		}
		if d.ID == l.TapDomain {
			if err := makeTap(store, l); err != nil {
				return err
			}
		}
		if err := l.tellPorts(f, d.ID); err != nil {
			return err
		}
		if err := changeForwards(ctx, f, d.ID, nil, l.First.Forwards[d.ID]); err != nil {
			return err
		}
		if err := l.balance(f, d.ID, State{}, l.First); err != nil {
			return err
		}
	}
	if err := l.changeSubport(f); err != nil {
		return err
	}
	kept := map[string]bool{}
	for _, d := range l.Last.Shapes {
		kept[d.ID] = true
		if _, err := applyShape(ctx, f, d); err != nil {
			return err
		}
	}
	for _, d := range l.First.Shapes {
		if err := changeForwards(ctx, f, d.ID, l.First.Forwards[d.ID], l.Last.Forwards[d.ID]); err != nil {
			return err
		}
		if err := l.balance(f, d.ID, l.First, l.Last); err != nil {
			return err
		}
		if !kept[d.ID] {
			if err := f.Delete(ctx, d.ID); err != nil {
				return err
			}
		}
	}
	if _, err := f.Reconcile(ctx, l.Last); err != nil {
		return err
	}
	if err := f.Down(ctx); err != nil {
		return err
	}
	return f.Close()
}

// balance has a router balance what is in a state in place of what was in another.
func (l life) balance(f *Kernel, router string, was, is State) error {
	if err := changeVIPs(context.Background(), f, router, was.VIPs[router], is.VIPs[router]); err != nil {
		return err
	}
	var gone []lb.Key
	for _, w := range was.Frontends[router] {
		gone = append(gone, w.Key)
	}
	return changeFrontends(
		context.Background(), f, router, gone, is.Frontends[router],
		func() ([]lb.Frontend, error) { return is.Frontends[router], nil },
	)
}

// tellPorts tells of a router's ports and their groups.
func (l life) tellPorts(f *Kernel, router string) error {
	ctx, ports := context.Background(), l.First.Ports[router]
	if len(ports) > 0 {
		if err := define(ctx, f, router, l.First.Groups, nil); err != nil {
			return err
		}
	}
	return changePorts(ctx, f, router, nil, ports)
}

// changeSubport makes a subport's link, changes it, takes it away and makes it again.
func (l life) changeSubport(f *Kernel) error {
	ctx, router, first, last := context.Background(), l.First.Shapes[0].ID, l.Subport, l.Subport
	first.Trunk.VLAN++
	for _, step := range [][2][]Port{{nil, {first}}, {nil, {last}}, {{last}, nil}, {nil, {last}}} {
		if err := changePorts(ctx, f, router, step[0], step[1]); err != nil {
			return err
		}
	}
	return nil
}

func makeTap(store *kuryrns.Store, l life) error {
	ns, err := store.Handle(l.TapDomain)
	if err != nil {
		return err
	}
	defer ns.Close()
	return kuryrns.Do(ns, func() error {
		master, err := netlink.LinkByName(BridgeName(l.TapDomain))
		if err != nil {
			return err
		}
		container, err := netns.GetFromPath(l.Container)
		if err != nil {
			return err
		}
		defer container.Close()
		attrs := netlink.LinkAttrs{Name: l.Tap, TxQLen: -1, MasterIndex: master.Attrs().Index}
		if err := netlink.LinkAdd(&netlink.Veth{
			LinkAttrs: attrs, PeerName: "c" + l.Tap[1:], PeerNamespace: netlink.NsFd(int(container)),
		}); err != nil {
			return err
		}
		tap, err := netlink.LinkByName(l.Tap)
		if err != nil {
			return err
		}
		return netlink.LinkSetUp(tap)
	})
}

// TestKilledAnywhere kills a process at every failpoint of the package, of the filter, of
// the balancing and of the namespaces' store; then one reconcile makes everything right.
func TestKilledAnywhere(t *testing.T) {
	var points []string
	for _, pattern := range []string{"*.go", "../securitygroup/*.go", "../lb/*.go", "../../internal/netns/*.go"} {
		files, err := filepath.Glob(pattern)
		must(t, err)
		for _, file := range files {
			text, err := os.ReadFile(file)
			must(t, err)
			for _, m := range regexp.MustCompile(`failpoint\.Here\("([^"]+)"\)`).FindAllStringSubmatch(string(text), -1) {
				if strings.HasPrefix(m[1], "netns.pin.") {
					// of namespaces that others have made, as Kurma's pods have: kurma/pod kills there
					continue
				}
				points = append(points, m[1])
			}
		}
	}
	if len(points) < 20 {
		t.Fatalf("only %d failpoints found", len(points))
	}
	w := newWorld(t)
	before := w.image(w.host)
	for _, point := range points {
		t.Run(point, func(t *testing.T) {
			w.t = t
			a, b := twoRouters()
			a.Bridges[0].MTU = 1400 // see lone
			c := Shape{ID: newID()}
			c.Bridges = []Bridge{{Network: c.ID, Addrs: []netip.Prefix{netip.MustParsePrefix("10.0.5.1/24")}, MTU: 1500}}
			port := Port{ID: newID(), Network: c.ID, MAC: stableMAC("x"),
				Addrs: []netip.Addr{netip.MustParseAddr("10.0.5.5")}, Guard: true,
				Groups: []string{"one"}, Limits: securitygroup.Limits{EgressKbps: 1000}, Parent: true}
			groups := []securitygroup.Group{{ID: "one", Rules: []securitygroup.Rule{
				{ID: "all", Direction: securitygroup.Egress},
				{ID: "web", Protocol: unix.IPPROTO_TCP, First: 80, Last: 80},
			}}}
			a.Uplink.Floating = []Floating{{netip.MustParseAddr("198.51.100.50"), netip.MustParseAddr("10.0.0.5")}}
			dir, err := os.MkdirTemp("/run", "crash-")
			must(t, err)
			forwards := []Forward{
				{netip.IPv4Unspecified(), unix.IPPROTO_TCP, 8080, netip.MustParseAddrPort("10.0.0.5:80"), 0},
				at("127.0.0.1", unix.IPPROTO_UDP, 8081, "10.0.0.5:81", 40001),
			}
			moved := []Forward{
				{netip.IPv4Unspecified(), unix.IPPROTO_TCP, 8080, netip.MustParseAddrPort("10.0.0.6:80"), 0},
				at("127.0.0.1", unix.IPPROTO_UDP, 8081, "10.0.0.6:81", 40002),
			}
			subport := subportOf(aPort(a.Bridges[0], 9, "10.0.0.9"), port, 7)
			l := life{Dir: dir, Tap: TapName(port.ID),
				Container: fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), int(w.neighbour)), TapDomain: c.ID,
				Subport: subport,
				First: State{Shapes: []Shape{a, b, c}, Groups: groups, Ports: map[string][]Port{c.ID: {port}},
					Forwards: map[string][]Forward{a.ID: forwards}}}
			a2 := a
			up := *a.Uplink
			up.Addrs = []netip.Addr{netip.MustParseAddr("100.64.0.9"), a.Uplink.Addrs[1]}
			up.Floating = []Floating{{External: netip.MustParseAddr("198.51.100.51")}}
			a2.Uplink = &up
			a2.Bridges = append(append([]Bridge{}, a.Bridges...), c.Bridges...)
			l.Last = State{
				Shapes: []Shape{a2}, Groups: groups, Ports: map[string][]Port{a.ID: {port, subport}},
				Forwards: map[string][]Forward{a.ID: moved},
			}
			vip := func(network, v4, v6 string) []VIP {
				return []VIP{{netip.MustParseAddr(v4), network}, {netip.MustParseAddr(v6), network}}
			}
			service := func(v4 string, endpoint string) []lb.Frontend {
				return []lb.Frontend{{
					Key:       lb.Key{Addr: netip.MustParseAddr(v4), Protocol: unix.IPPROTO_UDP, Port: 53},
					Endpoints: []netip.AddrPort{netip.MustParseAddrPort(endpoint)}, Affinity: time.Hour,
				}}
			}
			network := a.Bridges[0].Network
			l.First.VIPs = map[string][]VIP{a.ID: vip(network, "10.0.0.77", "fd00:a::77")}
			l.Last.VIPs = map[string][]VIP{a.ID: vip(network, "10.0.0.78", "fd00:a::78")}
			l.First.Frontends = map[string][]lb.Frontend{a.ID: service("10.0.0.77", "10.0.0.5:53")}
			l.Last.Frontends = map[string][]lb.Frontend{a.ID: service("10.0.0.78", "10.0.0.6:53")}
			text, err := json.Marshal(l)
			must(t, err)
			var out []byte
			nstest.Do(t, w.host, func() {
				cmd := exec.Command("/proc/self/exe")
				cmd.Env = append(os.Environ(), "KURYR_ROUTER_LIFE="+string(text), "KURYR_FAILPOINT="+point)
				out, err = cmd.CombinedOutput()
			})
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
				t.Fatalf("not killed: %v: %s", err, out)
			}
			var f *Kernel
			nstest.Do(t, w.host, func() { f, _, err = kernelIn(dir) })
			must(t, err)
			_, err = f.Reconcile(context.Background(), l.Last)
			must(t, err)
			diffs, err := f.Diff(context.Background(), l.Last)
			must(t, err)
			for _, d := range diffs {
				t.Errorf("after the reconcile: %s", d)
			}
			must(t, f.Down(context.Background()))
			must(t, f.Close())
			if after := w.image(w.host); after != before {
				t.Errorf("left in the host:\n%s\nbefore\n%s", after, before)
			}
		})
	}
	w.t = t
}
