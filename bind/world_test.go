//go:build linux

package bind

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
	"github.com/kuryr/kuryr/internal/nstest"
	"github.com/kuryr/kuryr/sdn"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { os.Exit(nstest.Main(m)) }

const testMTU = 1400

// world is a router's namespace with one bridge, and a binder whose own namespace is a
// host of its own.
type world struct {
	t      testing.TB
	host   netns.NsHandle
	router netns.NsHandle
	path   string // of the router's namespace
	b      *Binder
	subs   []sdn.Subnet
	last   atomic.Int32 // host number given to a port
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{t: t, host: nstest.New(t), router: nstest.New(t)}
	w.path = path(w.router)
	w.subs = []sdn.Subnet{
		{Meta: sdn.Meta{ID: "v4"}, CIDR: netip.MustParsePrefix("10.1.0.0/16"), Gateway: netip.MustParseAddr("10.1.0.1"),
			HostRoutes: []sdn.HostRoute{{
				Destination: netip.MustParsePrefix("192.0.2.0/24"),
				NextHop:     netip.MustParseAddr("10.1.0.9"),
			}}},
		{Meta: sdn.Meta{ID: "v6"}, CIDR: netip.MustParsePrefix("fd00:1::/64"), Gateway: netip.MustParseAddr("fd00:1::1"),
			HostRoutes: []sdn.HostRoute{{
				Destination: netip.MustParsePrefix("2001:db8::/32"),
				NextHop:     netip.MustParseAddr("fd00:1::9"),
			}}},
		{Meta: sdn.Meta{ID: "other"}, CIDR: netip.MustParsePrefix("10.9.0.0/16"), Gateway: netip.MustParseAddr("10.9.0.1"),
			HostRoutes: []sdn.HostRoute{{
				Destination: netip.MustParsePrefix("198.51.100.0/24"),
				NextHop:     netip.MustParseAddr("10.9.0.9"),
			}}},
	}
	nstest.Do(t, w.router, func() {
		br := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{
			Name: "br0", MTU: testMTU, HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 1},
		}}
		must(t, netlink.LinkAdd(br))
		must(t, netlink.LinkSetUp(br))
		for _, s := range []string{"10.1.0.1/16", "fd00:1::1/64"} {
			a, err := netlink.ParseAddr(s)
			must(t, err)
			a.Flags = unix.IFA_F_NODAD
			must(t, netlink.AddrAdd(br, a))
		}
	})
	w.use(Config{Logger: slog.New(slog.DiscardHandler)})
	t.Cleanup(func() { _ = w.b.Close() })
	return w
}

// use closes the binder that w has, and gives it one with this configuration.
func (w *world) use(c Config) {
	w.t.Helper()
	if w.b != nil {
		must(w.t, w.b.Close())
	}
	nstest.Do(w.t, w.host, func() {
		b, err := New(c)
		must(w.t, err)
		w.b = b
	})
}

// run runs the collector; it returns what stops it and waits.
func (w *world) run() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.b.Run(ctx) }()
	return func() { cancel(); must(w.t, <-done) }
}

func path(ns netns.NsHandle) string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), int(ns)) }

func (w *world) port() sdn.Port {
	n := w.last.Add(1) + 9
	id := uuid.New()
	return sdn.Port{
		Meta: sdn.Meta{ID: sdn.ID(id.String())},
		MAC:  net.HardwareAddr{0xfa, 0x16, 0x3e, id[0], id[1], id[2]},
		Addresses: []sdn.Address{
			{Subnet: "v4", Addr: netip.AddrFrom4([4]byte{10, 1, byte(n >> 8), byte(n)})},
			{Subnet: "v6", Addr: netip.AddrFrom16([16]byte{0xfd, 0, 0, 1, 14: byte(n >> 8), 15: byte(n)})},
		},
		VIF: sdn.VIF{Type: sdn.VIFBridge, Details: map[string]string{sdn.DetailBridge: "br0", sdn.DetailNamespace: w.path}},
	}
}

// in asks for p's interface eth0 in ns.
func (w *world) in(p sdn.Port, ns netns.NsHandle) Interface {
	return Interface{Port: p, MTU: testMTU, Subnets: w.subs, Namespace: path(ns), Name: "eth0"}
}

func (w *world) plug(i Interface) Result {
	w.t.Helper()
	r, err := w.b.Plug(context.Background(), i)
	must(w.t, err)
	return r
}

func (w *world) unplug(p sdn.Port) {
	w.t.Helper()
	must(w.t, w.b.Unplug(context.Background(), p))
}

func (w *world) wantConnected(when string, p sdn.Port, want bool) {
	w.t.Helper()
	got, err := w.b.Connected(context.Background(), p)
	if must(w.t, err); got != want {
		w.t.Errorf("%s: connected is %v, want %v", when, got, want)
	}
}

func (w *world) collect() {
	w.t.Helper()
	must(w.t, w.b.Collect(context.Background(), w.path))
}

// wantForwardsAtOnce checks that a bridge has no spanning tree protocol and no delay,
// whether or not it snoops on multicast.
func wantForwardsAtOnce(t testing.TB, ns netns.NsHandle, bridge string, snoops byte) {
	t.Helper()
	must(t, visit(func() error {
		s, err := namespace{fd: int(ns)}.socket()
		if err != nil {
			return err
		}
		defer s.close()
		var b batch
		b.add("read bridge", unix.RTM_GETLINK, 0, ifInfo(unix.AF_UNSPEC, 0, 0, 0))
		b.text(unix.IFLA_IFNAME, bridge)
		answer, err := s.ask(&b)
		if err != nil {
			return err
		}
		a := attrs(attrs(attrs(answer[sizeIfInfo:])[unix.IFLA_LINKINFO])[unix.IFLA_INFO_DATA])
		if stp, delay := u32(a[unix.IFLA_BR_STP_STATE]), u32(
			a[unix.IFLA_BR_FORWARD_DELAY],
		); len(a) == 0 || stp != 0 || delay != 0 || a[unix.IFLA_BR_MCAST_SNOOPING][0] != snoops {
			t.Errorf(
				"bridge %s: spanning tree %d, delay %d, snooping %v; want 0, 0, %d", bridge, stp, delay,
				a[unix.IFLA_BR_MCAST_SNOOPING], snoops,
			)
		}
		l, err := parseLink(answer)
		if l.flags&unix.IFF_UP == 0 {
			t.Errorf("bridge %s is down", bridge)
		}
		return err
	}))
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// names lists the links of ns but lo and br0.
func names(t testing.TB, ns netns.NsHandle) []string {
	t.Helper()
	var found []string
	nstest.Do(t, ns, func() {
		links, err := netlink.LinkList()
		if err != nil {
			t.Error(err)
		}
		for _, l := range links {
			if n := l.Attrs().Name; n != "lo" && n != "br0" {
				found = append(found, n)
			}
		}
	})
	return found
}

func wantNames(t testing.TB, ns netns.NsHandle, want ...string) {
	t.Helper()
	if got := names(t, ns); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("links are %v, want %v", got, want)
	}
}

// ping sends one echo request without retry, so that a first packet lost shows.
func ping(t testing.TB, ns netns.NsHandle, addr string) {
	t.Helper()
	nstest.Do(t, ns, func() {
		if err := echo(netip.MustParseAddr(addr)); err != nil {
			t.Errorf("ping %s: %v", addr, err)
		}
	})
}

func echo(to netip.Addr) error { return echoWithin(to, nstest.Limit.Microseconds()) }

// echoWithin waits for the answer so many microseconds.
func echoWithin(to netip.Addr, wait int64) error {
	family, proto, kind := unix.AF_INET, unix.IPPROTO_ICMP, byte(8)
	var sa unix.Sockaddr = &unix.SockaddrInet4{Addr: [4]byte(append(to.AsSlice(), 0, 0, 0, 0)[:4])}
	if to.Is6() {
		family, proto, kind, sa = unix.AF_INET6, unix.IPPROTO_ICMPV6, 128, &unix.SockaddrInet6{Addr: to.As16()}
	}
	fd, err := unix.Socket(family, unix.SOCK_RAW, proto)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{
		Sec: wait / 1_000_000, Usec: wait % 1_000_000,
	}); err != nil {
		return err
	}
	msg := []byte{kind, 0, 0, 0, 0x12, 0x34, 0, 1}
	if to.Is4() {
		sum := ^(uint16(kind)<<8 + 0x1234 + 1)
		msg[2], msg[3] = byte(sum>>8), byte(sum)
	}
	if err := unix.Sendto(fd, msg, 0, sa); err != nil {
		return err
	}
	buf := make([]byte, 1500)
	for {
		n, _, err := unix.Recvfrom(fd, buf, 0)
		if err != nil {
			return err
		}
		icmp := buf[:n]
		if to.Is4() {
			icmp = icmp[int(icmp[0]&15)*4:]
		}
		if len(icmp) >= 8 && (icmp[0] == 0 || icmp[0] == 129) && icmp[4] == 0x12 {
			return nil
		}
	}
}

func sameWords(a, b string) bool {
	count := make(map[string]int)
	for _, f := range strings.Fields(a) {
		count[f]++
	}
	for _, f := range strings.Fields(b) {
		count[f]--
	}
	for _, n := range count {
		if n != 0 {
			return false
		}
	}
	return true
}

func indexOf(t testing.TB, ns netns.NsHandle, name string) (index int) {
	t.Helper()
	nstest.Do(t, ns, func() {
		l, err := netlink.LinkByName(name)
		must(t, err)
		index = l.Attrs().Index
	})
	return index
}

func countFiles(t testing.TB) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	return len(entries)
}
