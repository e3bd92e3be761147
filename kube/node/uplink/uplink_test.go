//go:build linux

package uplink

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/kuryr/kuryr/bind"
	"github.com/kuryr/kuryr/internal/nstest"
	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/sdn"
)

func TestMain(m *testing.M) { os.Exit(nstest.Main(m)) }

// api has its lists by list: the fake knows no streamed ones.
type api struct{ client.WithWatch }

func (api) IsWatchListSemanticsUnSupported() bool { return true }

// rig is a host with a switch, whose node's own port the API tells of.
type rig struct {
	t    *testing.T
	host netns.NsHandle
	path string
	api  api
	dir  string
	bind *bind.Binder
}

func newRig(t *testing.T) *rig {
	scheme := runtime.NewScheme()
	must(t, v1.AddToScheme(scheme))
	r := &rig{t: t, host: nstest.New(t), dir: t.TempDir(), api: api{fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&v1.KuryrNetwork{}).Build()}}
	r.path = fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), int(r.host))
	nstest.Do(t, r.host, func() {
		br := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0"}}
		must(t, netlink.LinkAdd(br))
		must(t, netlink.LinkSetUp(br))
		var err error
		r.bind, err = bind.New(bind.Config{Logger: slog.New(slog.DiscardHandler)})
		must(t, err)
	})
	ctx, cancel := context.WithCancel(context.Background())
	collected := make(chan error, 1)
	go func() { collected <- r.bind.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		must(t, errors.Join(<-collected, r.bind.Close()))
	})
	return r
}

// run is a daemon's life; it returns what ends it.
func (r *rig) run() (stop func()) {
	r.t.Helper()
	u, err := Open(Config{Client: r.api, Node: "n1", Binder: r.bind, Dir: r.dir, Namespace: r.path, Log: slog.New(slog.DiscardHandler)})
	must(r.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); u.Run(ctx) }()
	return func() { cancel(); <-done }
}

func (r *rig) port(id, mac, node, address string) *v1.KuryrPort {
	r.t.Helper()
	p := &v1.KuryrPort{
		ObjectMeta: metav1.ObjectMeta{Name: id, Labels: map[string]string{v1.LabelNode: node, v1.LabelUplink: "true", v1.LabelPortStatus: string(v1.PortAvailable)}},
		Spec: v1.KuryrPortSpec{
			ID: id, Address: mac, Node: node, Dedicated: "a-nodes-uid", VIF: v1.PortVIF{Type: sdn.VIFBridge, Details: map[string]string{sdn.DetailBridge: "br0"}},
			Network: v1.PortNetwork{ID: "nodes", MTU: 1442, Subnets: []v1.PortSubnet{{
				ID: "s", CIDR: "10.129.0.0/16", Gateway: "10.129.0.1", IPs: []string{address}, Routes: []v1.PortRoute{{Destination: "198.51.100.0/24", NextHop: "10.129.0.9"}},
			}}},
		},
	}
	must(r.t, r.api.Create(context.Background(), p))
	return p
}

func (r *rig) network(name, id, router, cidr string) *v1.KuryrNetwork {
	r.t.Helper()
	n := &v1.KuryrNetwork{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.KuryrNetworkSpec{Namespace: name, UID: "u"}}
	must(r.t, r.api.Create(context.Background(), n))
	n.Status = v1.KuryrNetworkStatus{Network: id, Router: router, Subnets: []v1.NetworkSubnet{{ID: id + "4", CIDR: cidr}}}
	must(r.t, r.api.Status().Update(context.Background(), n))
	return n
}

// is what the link has: its MAC, address and routes; nothing where there is no link.
func (r *rig) is() (all []string) {
	r.t.Helper()
	nstest.Do(r.t, r.host, func() {
		link, err := netlink.LinkByName(Name)
		if err != nil {
			return
		}
		addresses, err := netlink.AddrList(link, unix.AF_INET)
		must(r.t, err)
		all = append(all, link.Attrs().HardwareAddr.String(), fmt.Sprint(link.Attrs().MTU))
		for _, a := range addresses {
			all = append(all, a.IPNet.String())
		}
		routes, err := netlink.RouteList(link, unix.AF_INET)
		must(r.t, err)
		var lines []string
		for _, route := range routes {
			if route.Protocol != unix.RTPROT_KERNEL {
				lines = append(lines, fmt.Sprintf("%s via %s", route.Dst, route.Gw))
			}
		}
		slices.Sort(lines)
		all = append(all, lines...)
	})
	return all
}

func (r *rig) wait(when string, want ...string) {
	r.t.Helper()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if is := r.is(); slices.Equal(is, want) {
			return
		} else if time.Now().After(end) {
			r.t.Fatalf("%s: %q, want %q", when, is, want)
		}
	}
}

// The node's own port is plugged, with a route to each subnet of its router and no other; it follows what the API says, over lives of the daemon.
func TestUplink(t *testing.T) {
	r := newRig(t)
	ctx := context.Background()
	const first, second = "fa:16:3e:00:00:01", "fa:16:3e:00:00:02"
	r.network("kuryr-system", "nodes", "r1", "10.129.0.0/16")
	blue := r.network("blue", "b", "r1", "10.130.0.0/16")
	r.network("foreign", "f", "r2", "10.131.0.0/16")
	r.port("99999999-0000-4000-8000-000000000009", "fa:16:3e:00:00:09", "n2", "10.129.0.99")
	own := r.port("11111111-0000-4000-8000-000000000001", first, "n1", "10.129.0.5")
	stop := r.run()
	r.wait("plugged", first, "1442", "10.129.0.5/16", "10.130.0.0/16 via 10.129.0.1")
	r.network("green", "g", "r1", "10.132.0.0/16")
	r.wait("a network more", first, "1442", "10.129.0.5/16", "10.130.0.0/16 via 10.129.0.1", "10.132.0.0/16 via 10.129.0.1")
	must(t, r.api.Delete(ctx, blue))
	r.wait("a network less", first, "1442", "10.129.0.5/16", "10.132.0.0/16 via 10.129.0.1")

	// What is plugged outlives the daemon; what was changed meanwhile is right when it is back.
	stop()
	r.wait("without the daemon", first, "1442", "10.129.0.5/16", "10.132.0.0/16 via 10.129.0.1")
	nstest.Do(t, r.host, func() {
		link, err := netlink.LinkByName(Name)
		must(t, err)
		_, to, err := net.ParseCIDR("203.0.113.0/24")
		must(t, err)
		must(t, netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: to, Gw: net.ParseIP("10.129.0.77")}))
	})
	stop = r.run()
	r.wait("again", first, "1442", "10.129.0.5/16", "10.132.0.0/16 via 10.129.0.1")
	stop()
	must(t, r.api.Delete(ctx, own))
	other := r.port("22222222-0000-4000-8000-000000000002", second, "n1", "10.129.0.6")
	stop = r.run()
	defer func() { stop() }()
	r.wait("another port", second, "1442", "10.129.0.6/16", "10.132.0.0/16 via 10.129.0.1")
	other.Labels[v1.LabelPortStatus] = string(v1.PortDeleting)
	must(t, r.api.Update(ctx, other))
	r.wait("a port on its way out")
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
