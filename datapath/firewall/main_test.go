//go:build linux

package firewall

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/kuryr/kuryr/internal/nstest"
)

func TestMain(m *testing.M) {
	if op := os.Getenv(childOp); op != "" {
		os.Exit(child(op))
	}
	os.Exit(nstest.Main(m))
}

// The test binary, started with these, does one operation in the network namespace it was
// started in, and may be killed at a failpoint.
const (
	childOp  = "KURYR_HOST_TEST_OP"
	childDir = "KURYR_HOST_TEST_DIR"
)

func child(op string) int {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	h := New(Config{Dir: os.Getenv(childDir)})
	var err error
	switch op {
	case "enable":
		err = h.EnableForwarding(ctx, true, true)
	case "restore":
		_, err = h.RestoreForwarding(ctx)
	case "open":
		_, err = h.OpenDoors(ctx)
	case "close":
		err = h.CloseDoors(ctx)
	default:
		err = fmt.Errorf("unknown operation %q", op)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func quietHost(t *testing.T) *Host {
	t.Helper()
	return New(Config{Dir: t.TempDir(), Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
}

// in runs f in a namespace and ends the test if it fails.
func in(t *testing.T, ns netns.NsHandle, f func() error) {
	t.Helper()
	var err error
	nstest.Do(t, ns, func() { err = f() })
	if err != nil {
		t.Fatal(err)
	}
}

// sh runs a shell script in a namespace and returns what it printed.
func sh(t *testing.T, ns netns.NsHandle, script string) string {
	t.Helper()
	var out []byte
	in(t, ns, func() (err error) {
		out, err = exec.Command("sh", "-ec", script).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%s: %w: %s", script, err, out)
		}
		return nil
	})
	return string(out)
}

// needs skips the test where a program is not installed.
func needs(t *testing.T, programs ...string) {
	t.Helper()
	for _, p := range programs {
		if _, ok := findProgram(p); !ok {
			t.Skipf("needs the program %s", p)
		}
	}
}

// site is a host between an inside (a Kuryr router) and an outside. The host's links are
// kr0 and up0.
type site struct {
	host, inside, outside netns.NsHandle
}

var (
	inside4, outside4 = netip.MustParseAddr("10.9.0.2"), netip.MustParseAddr("192.0.2.2")
	inside6, outside6 = netip.MustParseAddr("fd00:9::2"), netip.MustParseAddr("2001:db8::2")
)

func newSite(t *testing.T) site {
	t.Helper()
	s := site{host: nstest.New(t), inside: nstest.New(t), outside: nstest.New(t)}
	// A new namespace may inherit settings from the machine.
	sh(t, s.host, `
		echo 0 > /proc/sys/net/ipv4/ip_forward
		echo 0 > /proc/sys/net/ipv6/conf/all/forwarding
		echo 1 > /proc/sys/net/ipv4/conf/all/accept_redirects
		echo 1 > /proc/sys/net/ipv6/conf/default/accept_ra
		for f in /proc/sys/net/ipv6/conf/*/accept_dad; do echo 0 > $f; done`)
	s.join(t, "kr0", s.inside, "10.9.0.1/24", "10.9.0.2/24", "fd00:9::1/64", "fd00:9::2/64")
	s.join(t, "up0", s.outside, "192.0.2.1/24", "192.0.2.2/24", "2001:db8::1/64", "2001:db8::2/64")
	return s
}

// join connects the host with a neighbour, whose end is eth0 and whose default routes go
// to the host.
func (s site) join(t *testing.T, name string, peer netns.NsHandle, host4, peer4, host6, peer6 string) {
	t.Helper()
	sh(t, peer, `for f in /proc/sys/net/ipv6/conf/*/accept_dad; do echo 0 > $f; done`)
	in(t, s.host, func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = name
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsFd(peer)})
	})
	configure := func(link, v4, v6 string) error {
		l, err := netlink.LinkByName(link)
		if err != nil {
			return err
		}
		for _, text := range []string{v4, v6} {
			a, err := netlink.ParseAddr(text)
			if err != nil {
				return err
			}
			a.Flags = 0x02 // IFA_F_NODAD
			if err := netlink.AddrAdd(l, a); err != nil {
				return err
			}
		}
		return netlink.LinkSetUp(l)
	}
	in(t, s.host, func() error { return configure(name, host4, host6) })
	in(t, peer, func() error {
		if err := configure("eth0", peer4, peer6); err != nil {
			return err
		}
		l, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		for _, gw := range []string{host4, host6} {
			p := netip.MustParsePrefix(gw)
			if err := netlink.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Gw: p.Addr().AsSlice()}); err != nil {
				return err
			}
		}
		return nil
	})
	nstest.WaitForAddresses(t, s.host)
	nstest.WaitForAddresses(t, peer)
}

// connects reports whether a TCP connection from one namespace to an address in another
// comes about. One that is wanted is tried for long.
func connects(t *testing.T, from, to netns.NsHandle, addr netip.Addr, want bool) bool {
	t.Helper()
	return connectsVia(t, from, to, addr, addr, want)
}

// hasty is how long a test waits for a connection that must not come about.
const hasty = 400 * time.Millisecond

// connectsVia is connects where the address that is dialled is translated on the way to
// the one listened on.
func connectsVia(t *testing.T, from, to netns.NsHandle, addr, dialled netip.Addr, want bool) bool {
	t.Helper()
	var l net.Listener
	in(t, to, func() (err error) {
		l, err = net.Listen("tcp", netip.AddrPortFrom(addr, 0).String())
		return err
	})
	defer l.Close()
	target := netip.AddrPortFrom(dialled, l.Addr().(*net.TCPAddr).AddrPort().Port()).String()
	dial := func(limit time.Duration) (ok bool) {
		nstest.Do(t, from, func() {
			c, err := net.DialTimeout("tcp", target, limit)
			if ok = err == nil; ok {
				_ = c.Close()
			}
		})
		return ok
	}
	if !want {
		return dial(hasty)
	}
	return nstest.Repeat(nstest.Limit, func() {}, func(time.Time) bool { return dial(nstest.Limit) })
}

// wantPaths checks all four paths through the host.
func (s site) wantPaths(t *testing.T, when string, open bool) {
	t.Helper()
	type path struct {
		name     string
		from, to netns.NsHandle
		addr     netip.Addr
	}
	for _, p := range []path{
		{"IPv4 out", s.inside, s.outside, outside4}, {"IPv4 in", s.outside, s.inside, inside4},
		{"IPv6 out", s.inside, s.outside, outside6}, {"IPv6 in", s.outside, s.inside, inside6},
	} {
		if got := connects(t, p.from, p.to, p.addr, open); got != open {
			t.Fatalf("%s: %s: passes=%v, want %v", when, p.name, got, open)
		}
	}
}

var volatile = regexp.MustCompile(`(?m)^#.*\n|\[\d+:\d+\]`)

// saved is both families' rules without counters and dates.
func saved(t *testing.T, ns netns.NsHandle) string {
	t.Helper()
	return volatile.ReplaceAllString(sh(t, ns, "iptables-save; ip6tables-save"), "")
}

// open calls OpenDoors in a namespace and returns the doors as one text.
func (h *Host) openIn(t *testing.T, ns netns.NsHandle) string {
	t.Helper()
	var text []string
	in(t, ns, func() error {
		doors, err := h.OpenDoors(t.Context())
		for _, d := range doors {
			text = append(text, strings.TrimSpace(fmt.Sprintf("%s %s %s %s", d.Owner, d.Where, d.State, d.Family)))
		}
		return err
	})
	return strings.Join(text, "\n")
}

// findings calls Check in a namespace and returns what is wrong.
func (h *Host) findingsIn(t *testing.T, ns netns.NsHandle) []string {
	t.Helper()
	var text []string
	in(t, ns, func() error {
		found, err := h.Check(t.Context(), true, true)
		for _, f := range found {
			if f.What == "" || f.Mend == "" {
				return errors.New("a finding without words")
			}
			text = append(text, f.What)
		}
		return err
	})
	return text
}

// watchIn runs Watch in a namespace until the test ends.
func (h *Host) watchIn(t *testing.T, ns netns.NsHandle) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go nstest.Do(t, ns, func() { ended <- h.Watch(ctx) })
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Watch: %v", err)
		}
	})
}

// eventually waits for a condition, for a generous time: firewalld takes many seconds to start.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; {
		if ok() {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
