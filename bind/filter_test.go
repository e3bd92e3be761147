//go:build linux

package bind

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/kuryr/kuryr/internal/nstest"
	"github.com/kuryr/kuryr/sdn"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// TestAgentFilters: the rules by which Neutron's agents filter a port, on its host end in
// a Linux bridge, see all that the container sends and is sent, with the Linux bridge
// agent and with Open vSwitch's hybrid plug, and also after the port was plugged again:
// they are by its name.
func TestAgentFilters(t *testing.T) {
	t.Parallel()
	for name, kind := range map[string]func(*world) sdn.Port{
		"bridge": func(w *world) sdn.Port {
			p := w.port()
			p.Network, p.VIF = "1d2e3f4a-5b6c-4d7e-8f90-a1b2c3d4e5f6", sdn.VIF{
				Type: sdn.VIFBridge, Details: map[string]string{"port_filter": "true"},
			}
			return p
		},
		"hybrid": (*world).hybridPort,
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			f := newFilter(t, w.host)
			if name == "hybrid" {
				w.binder(newSwitch(w, true).db)
			}
			a, b := nstest.New(t), nstest.New(t)
			pa, pb := kind(w), kind(w)
			w.plug(w.in(pa, a))
			w.plug(w.in(pb, b))
			to, back := pb.Addresses[0].Addr, pa.Addresses[0].Addr
			pings(t, a, to)
			// blocked checks that of the echo requests of the one and the other just those pass.
			blocked := func(when string, fromA, fromB bool) {
				t.Helper()
				for ns, want := range map[netns.NsHandle]bool{a: fromA, b: fromB} {
					addr := to
					if ns == b {
						addr = back
					}
					if !want {
						pings(t, ns, addr)
						continue
					}
					nstest.Do(t, ns, func() {
						for range 3 {
							if echoWithin(addr, 200_000) == nil {
								t.Errorf("%s: a ping to %s passed", when, addr)
							}
						}
					})
				}
			}
			blocked("no rules", false, false)
			for _, way := range []struct {
				match        string
				fromA, fromB bool
			}{{"--physdev-in", true, false}, {"--physdev-out", false, true}} {
				rule := []string{
					"FORWARD", "-m", "physdev", way.match, HostName(pa.ID), "--physdev-is-bridged", "-p", "icmp",
					"--icmp-type", "echo-request", "-j", "DROP",
				}
				f.iptables(append([]string{"-A"}, rule...)...)
				blocked(way.match, way.fromA, way.fromB)
				w.unplug(pa)
				w.plug(w.in(pa, a))
				pings(t, a, pb.Addresses[1].Addr) // the rule is for the other family
				blocked(way.match+", plugged anew", way.fromA, way.fromB)
				f.iptables(append([]string{"-D"}, rule...)...)
				blocked(way.match+" gone", false, false)
			}
			w.unplug(pa)
			w.unplug(pb)
		})
	}
}

// filter is the kernel's of a namespace, of what crosses its bridges.
type filter struct {
	t  *testing.T
	ns netns.NsHandle
}

func newFilter(t *testing.T, ns netns.NsHandle) filter {
	t.Helper()
	if _, err := exec.LookPath("iptables"); err != nil {
		t.Skip("needs iptables")
	}
	nstest.Do(t, ns, func() {
		// What an agent sees to.
		err := os.WriteFile("/proc/sys/net/bridge/bridge-nf-call-iptables", []byte("1"), 0)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.EROFS) {
			t.Skipf("bridges are not filtered here: %v", err)
		}
		must(t, err)
	})
	return filter{t, ns}
}

func (f filter) iptables(args ...string) {
	f.t.Helper()
	nstest.Do(f.t, f.ns, func() {
		if out, err := exec.Command("iptables", args...).CombinedOutput(); err != nil {
			f.t.Fatalf("iptables %s: %v: %s", strings.Join(args, " "), err, out)
		}
	})
}
