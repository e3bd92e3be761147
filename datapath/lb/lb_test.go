//go:build linux

package lb

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kuryr/kuryr/internal/nstest"
	"github.com/kuryr/kuryr/sdn"
)

var networks = map[string]sdn.Protocol{"tcp": sdn.TCP, "udp": sdn.UDP}

// Every client is led, and every endpoint sees the client's own address: from its own
// bridge, from another one, from outside, and from the router itself. Only one that
// reaches itself is masqueraded.
func TestBalances(t *testing.T) {
	w := newWorld(t)
	for _, p := range []string{"a", "b", "c"} {
		w.serve(p, 8080)
	}
	w.restore()
	for network, p := range networks {
		for i, vip := range []string{vip4, vip6} {
			for _, pod := range []string{"a", "b", "c"} {
				w.set(to(key(vip, p), pod))
				for _, from := range []string{"a", "b", "c", "out"} {
					sees := addrs[from][i]
					if from == pod {
						sees = map[string][2]string{
							"a": {"10.0.1.1", "fd00:1::1"}, "b": {"10.0.1.1", "fd00:1::1"},
							"c": {"10.0.2.1", "fd00:2::1"},
						}[pod][i]
					}
					w.answers(from, network, at(vip, 80), pod+" "+sees)
				}
			}
			w.set(to(key(vip, p), "a", "b", "c"))
			had := map[string]int{}
			for range 60 {
				had[w.ask("out", network, at(vip, 80))[:1]]++
			}
			for _, pod := range []string{"a", "b", "c"} {
				if had[pod] < 6 { // of 20: once in ten thousand
					t.Errorf("%s %s: of 60 connections each got %v", network, vip, had)
				}
			}
		}
	}
	w.whole()
}

// nft of Debian 12 gives up on some forms of what the kernel holds.
func TestListed(t *testing.T) {
	w := newWorld(t)
	w.restore()
	for _, p := range networks {
		for _, vip := range []string{vip4, vip6, "0.0.0.0", "::"} {
			f := to(key(vip, p), "a", "b", "c")
			for _, change := range []func(){
				func() {},
				func() { f.Affinity = 10 * time.Second },
				func() { f.Masquerade = true },
				func() { f.Sources = prefixes("10.0.0.0/8", "fd00::/16", f.Addr) },
				func() { f.Affinity = 0 },
				func() { f.Endpoints = nil },
				func() { f.Empty = Drop },
			} {
				change()
				f.Port++
				w.set(f)
			}
		}
	}
	w.whole()
	listed := w.list()
	if testing.Verbose() {
		t.Log(listed)
	}
}

func prefixes(four, six string, of netip.Addr) []netip.Prefix {
	if of.Is4() {
		return []netip.Prefix{netip.MustParsePrefix(four)}
	}
	return []netip.Prefix{netip.MustParsePrefix(six)}
}

// A client is led to the endpoint it had, until it pauses for longer than it is
// remembered or the endpoint goes.
func TestAffinity(t *testing.T) {
	w := newWorld(t)
	for _, p := range []string{"a", "b", "c"} {
		w.serve(p, 8080)
	}
	w.restore()
	for network, p := range networks {
		for _, vip := range []string{vip4, vip6} {
			f := to(key(vip, p), "a", "b", "c")
			f.Affinity = time.Hour
			w.set(f)
			for _, from := range []string{"out", ""} {
				first := w.ask(from, network, at(vip, 80))
				for range 10 {
					w.answers(from, network, at(vip, 80), first)
				}
				rest := to(
					key(vip, p),
					slices.DeleteFunc([]string{"a", "b", "c"}, func(s string) bool { return s == first[:1] })...,
				)
				rest.Affinity = f.Affinity
				w.set(rest)
				next := w.ask(from, network, at(vip, 80))
				if next[:1] == first[:1] || strings.HasPrefix(next, "!") {
					t.Errorf("%s %s: %q answers when %q is gone", network, vip, next, first)
				}
				w.set(f)
				for range 10 {
					w.answers(from, network, at(vip, 80), next)
				}
			}
		}
	}
	w.whole()
}

// A client that pauses is forgotten.
func TestAffinityEnds(t *testing.T) {
	w := newWorld(t)
	w.serve("a", 8080)
	w.serve("b", 8080)
	f := to(key(vip4, sdn.UDP), "a")
	f.Affinity = time.Second
	w.restore(f)
	w.answers("out", "udp", at(vip4, 80), "a "+addrs["out"][0])
	g := to(key(vip4, sdn.UDP), "a", "b")
	g.Affinity = time.Second
	w.set(g)
	deadline := time.Now().Add(nstest.Limit)
	for w.ask("out", "udp", at(vip4, 80))[:1] == "a" {
		if time.Now().After(deadline) {
			t.Fatal("it is never forgotten")
		}
		<-time.After(1050 * time.Millisecond)
	}
}

func TestSources(t *testing.T) {
	w := newWorld(t)
	w.serve("b", 8080)
	w.restore()
	for network, p := range networks {
		for _, vip := range []string{vip4, vip6} {
			f := to(key(vip, p), "b")
			// one is in the other
			f.Sources = []netip.Prefix{
				netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("10.0.1.0/24"),
			}
			if f.Addr.Is6() {
				f.Sources = []netip.Prefix{netip.MustParsePrefix("fd00:1::2/128"), netip.MustParsePrefix("fd00:2::/32")}
			}
			w.set(f)
			for _, from := range []string{"a", "c"} {
				if got := w.ask(from, network, at(vip, 80)); got[:1] != "b" {
					t.Errorf("%s %s from %s, who may: %s", network, vip, from, got)
				}
			}
			w.silent("out", network, at(vip, 80))
		}
	}
	w.whole()
}

// Where there is no endpoint a client is refused immediately, or waits.
func TestEmpty(t *testing.T) {
	w := newWorld(t)
	w.serve("b", 8080)
	w.restore()
	for network, p := range networks {
		for _, vip := range []string{vip4, vip6} {
			w.set(to(key(vip, p)))
			for _, from := range []string{"a", "out", ""} {
				// The kernel tells a sender of its own already when it sends.
				if got := w.ask(from, network, at(vip, 80)); !strings.Contains(got, "refused") &&
					(from != "" || !strings.Contains(got, "not permitted")) {
					t.Errorf("%s %s from %q: %s", network, vip, from, got)
				}
			}
			w.set(to(key(vip, p), "b"))
			w.answers("out", network, at(vip, 80), "b "+addrs["out"][map[bool]int{true: 1}[vip == vip6]])
		}
	}
	f := to(key(vip4, sdn.UDP))
	f.Empty = Drop
	w.set(f)
	w.silent("a", "udp", at(vip4, 80))
	w.whole()
}

// The unspecified address is each of the namespace's own that is allowed, and no other.
func TestNodeAddresses(t *testing.T) {
	w := newWorld(t)
	w.serve("a", 8080)
	w.serve("b", 8080)
	w.restore()
	for network, p := range networks {
		for i, any := range []string{"0.0.0.0", "::"} {
			own := []string{node4, node6}[i]
			w.set(to(key(any, p), "a"))
			for _, from := range []string{"b", "c", "out"} {
				w.answers(from, network, at(own, 80), "a "+addrs[from][i])
			}
			if got := w.ask("", network, at(own, 80)); got[:1] != "a" {
				t.Errorf("%s %s from the node itself: %s", network, own, got)
			}
			for _, other := range []string{[]string{"10.0.1.1", "fd00:1::1"}[i], []string{"127.0.0.1", "::1"}[i]} {
				if got := w.ask("", network, at(other, 80)); !strings.Contains(got, "refused") {
					t.Errorf("%s %s, which is not allowed: %s", network, other, got)
				}
			}
			// An address of its own goes before.
			w.set(to(key(own, p), "b"))
			w.answers("out", network, at(own, 80), "b "+addrs["out"][i])
			w.remove(key(own, p))
			w.answers("out", network, at(own, 80), "a "+addrs["out"][i])
			f := to(key(any, p), "a")
			f.Masquerade = true
			w.set(f)
			w.answers("out", network, at(own, 80), "a "+[]string{"10.0.1.1", "fd00:1::1"}[i])
			f.Affinity = 10 * time.Second
			w.set(f)
			w.answers("out", network, at(own, 80), "a "+[]string{"10.0.1.1", "fd00:1::1"}[i])
		}
	}
	w.whole()
}
