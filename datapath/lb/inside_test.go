//go:build linux

package lb

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/kuryr/kuryr/sdn"
)

// insideWorld has clients inside: the namespace itself, and c by its bridge.
func insideWorld(t *testing.T) *world {
	w := newWorld(t)
	for _, p := range []string{"a", "b", "c"} {
		w.serve(p, 8080)
	}
	w.table = New(w.withInside())
	t.Cleanup(func() { _ = w.table.Close() })
	w.restore()
	return w
}

func (w *world) withInside() Config {
	c := w.config()
	c.Inside = []string{"br-2"}
	return c
}

// apart is a frontend with other endpoints for clients inside.
func apart(k Key, outside, inside []string) Frontend {
	f := to(k, outside...)
	f.Inside = &Inside{Endpoints: to(k, inside...).Endpoints}
	return f
}

// led checks whom clients get: a and out are outside, c and the namespace itself inside.
func (w *world) led(network, addr, outside, inside string) {
	w.t.Helper()
	for from, want := range map[string]string{"a": outside, "out": outside, "c": inside, "": inside} {
		if got := w.ask(from, network, addr); got[:1] != want {
			w.t.Errorf("%s of %q at %s: %q, want %s", network, from, addr, got, want)
		}
	}
}

// Clients inside get endpoints of their own, at a VIP and at the namespace's addresses,
// and all others what they got before.
func TestInside(t *testing.T) {
	w := insideWorld(t)
	for network, p := range networks {
		for i, vip := range []string{vip4, vip6, "0.0.0.0", "::"} {
			addr := at([]string{vip4, vip6, node4, node6}[i], 80)
			k := key(vip, p)
			w.set(to(k, "a"))
			w.led(network, addr, "a", "a")
			w.set(apart(k, []string{"a"}, []string{"b"}))
			w.led(network, addr, "a", "b")
			w.whole()

			f := apart(k, []string{"b"}, []string{"a"})
			f.Affinity = time.Minute
			w.set(f)
			w.led(network, addr, "b", "a")
			f = apart(k, []string{"b"}, []string{"a", "c"}) // who was led to a stays there
			f.Affinity = time.Minute
			w.set(f)
			for range 5 {
				w.led(network, addr, "b", "a")
			}
			w.whole()

			f = apart(k, nil, []string{"b"})
			f.Empty, f.Inside.Masquerade = Drop, true
			w.set(f)
			w.silent("out", network, addr)
			for _, from := range []string{"c", ""} {
				w.answers(from, network, addr, "b "+[]string{"10.0.1.1", "fd00:1::1"}[i%2])
			}
			if got := w.ask("c", network, addr); got[:1] != "b" {
				t.Error(got)
			}
			f = apart(k, []string{"a"}, nil)
			w.set(f)
			w.answers("out", network, addr, "a "+addrs["out"][i%2])
			if got := w.ask("c", network, addr); !strings.Contains(got, "refused") {
				t.Errorf("%s %s, where nobody answers clients inside: %s", network, addr, got)
			}

			f = apart(k, []string{"a"}, []string{"b"})
			f.Sources = prefixes("192.0.2.0/24", "2001:db8::/32", netip.MustParseAddr(
				map[bool]string{true: vip6, false: vip4}[i%2 == 1],
			))
			w.set(f)
			w.answers("out", network, addr, "a "+addrs["out"][i%2])
			w.silent("c", network, addr)
			w.set(to(k, "a"))
			w.led(network, addr, "a", "a")
			w.whole()
			w.remove(k)
			w.whole()
		}
	}
}

// An address of its own goes before the namespace's, from inside too.
func TestInsideAddressFirst(t *testing.T) {
	w := insideWorld(t)
	w.set(apart(key("0.0.0.0", sdn.TCP), []string{"a"}, []string{"b"}), to(key(node4, sdn.TCP), "c"))
	w.led("tcp", at(node4, 80), "c", "c")
	w.remove(key(node4, sdn.TCP))
	w.led("tcp", at(node4, 80), "a", "b")
}

// A flow of UDP goes on with the next endpoint, and the next process finds all as it was left.
func TestInsideGoesOn(t *testing.T) {
	w := insideWorld(t)
	k := key(vip4, sdn.UDP)
	w.set(apart(k, []string{"a"}, []string{"b"}))
	c, err := w.dial("c", "udp", at(vip4, 80))
	must(t, err)
	defer c.Close()
	out, err := w.dial("out", "udp", at(vip4, 80))
	must(t, err)
	defer out.Close()
	says := func(inside, outside string) {
		t.Helper()
		if got := w.say(c, 1); got[:1] != inside {
			t.Errorf("the client inside hears %q, want %s", got, inside)
		}
		if got := w.say(out, 1); got[:1] != outside {
			t.Errorf("the client outside hears %q, want %s", got, outside)
		}
	}
	says("b", "a")
	w.set(apart(k, []string{"a"}, []string{"c"}))
	says("c", "a")
	var told int
	must(t, w.table.Close())
	config := w.withInside()
	config.Observe = func(tr Transaction) { told += tr.Elements }
	w.table = New(config)
	w.restore(apart(k, []string{"a"}, []string{"c"}))
	if told != 0 {
		t.Errorf("the next process changed %d elements, where nothing differs", told)
	}
	says("c", "a")
	w.restore(apart(k, []string{"a"}, []string{"b"}))
	says("b", "a")
	w.whole()
}

// A table with maps that this version does not know, as a newer one leaves it, is
// replaced in one transaction: what they lead to cannot go before them.
func TestOlderVersion(t *testing.T) {
	w := insideWorld(t)
	k := key(vip4, sdn.TCP)
	w.set(apart(k, []string{"a"}, []string{"b"}))
	w.led("tcp", at(vip4, 80), "a", "b")
	must(t, w.table.Close())
	w.table = New(w.config())
	w.restore(to(k, "a"))
	w.led("tcp", at(vip4, 80), "a", "a")
	w.whole()
	if left := w.list(); strings.Contains(left, "inside") {
		t.Errorf("what it does not know is left:\n%s", left)
	}
}

// Where the table knows no client inside, it is not asked for what it cannot do.
func TestNobodyInside(t *testing.T) {
	err := New(Config{}).Restore(context.Background(), []Frontend{apart(key(vip4, sdn.TCP), []string{"a"}, []string{"b"})})
	if !sdn.IsInvalid(err) || !strings.Contains(err.Error(), "inside") {
		t.Error(err)
	}
}
