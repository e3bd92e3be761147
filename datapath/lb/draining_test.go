//go:build linux

package lb

import (
	"context"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/kuryr/kuryr/sdn"
)

// without has pods drain.
func (f Frontend) without(pods ...string) Frontend {
	f.Draining = to(f.Key, pods...).Endpoints
	return f
}

// A flow of UDP stays with an endpoint that drains, on the client's own bridge too, and
// whichever process is told so; new ones go to others, of a client that is remembered
// too. When the endpoint has gone, be it unobserved, the flow goes to another.
func TestDraining(t *testing.T) {
	w := newWorld(t)
	w.serve("a", 8080)
	w.serve("c", 8080)
	w.restore()
	anew := func(all ...Frontend) {
		t.Helper()
		must(t, w.table.Close())
		w.table = New(w.config())
		w.restore(all...)
	}
	for _, vip := range []string{vip4, vip6, "0.0.0.0", "::"} {
		reached := map[string]string{"0.0.0.0": node4, "::": node6}[vip]
		if reached == "" {
			reached = vip
		}
		for _, affinity := range []time.Duration{0, time.Minute} {
			k := key(vip, sdn.UDP)
			sticky := func(f Frontend) Frontend {
				f.Affinity = affinity
				return f
			}
			for _, from := range []string{"b", "out"} {
				w.set(sticky(to(k, "a")))
				flow, err := w.dial(from, "udp", at(reached, 80))
				must(t, err)
				says := func(when, want string) {
					t.Helper()
					if got := w.say(flow, 1); got[:1] != want {
						t.Errorf("%s from %s, %s: %q, want %s", vip, from, when, got, want)
					}
				}
				says("at first", "a")
				w.set(sticky(to(k, "c").without("a")))
				says("its endpoint drains", "a")
				if got := w.ask(from, "udp", at(reached, 80)); got[:1] != "c" {
					t.Errorf("%s from %s: a new flow gets %q", vip, from, got)
				}
				w.set(sticky(to(k, "b", "c").without("a")))
				w.set(sticky(to(k).without("a", "b")))
				says("others come and go", "a")
				w.whole()
				anew(sticky(to(k, "c").without("a")))
				says("another process is told", "a")
				w.set(sticky(to(k, "a", "c")))
				says("it is an endpoint again", "a")
				w.set(sticky(to(k, "c").without("a")))
				if from == "b" {
					w.set(sticky(to(k, "c")))
				} else {
					anew(sticky(to(k, "c")))
				}
				says("it has gone", "c")
				w.whole()
				flow.Close()
				w.remove(k)
			}
		}
	}
}

// An endpoint that clients inside alone have had drains as the others do.
func TestDrainingInside(t *testing.T) {
	w := insideWorld(t)
	k := key(vip4, sdn.UDP)
	w.set(apart(k, []string{"a"}, []string{"b"}))
	flow, err := w.dial("c", "udp", at(vip4, 80))
	must(t, err)
	defer flow.Close()
	for _, step := range []struct {
		is   Frontend
		want string
	}{
		{apart(k, []string{"a"}, []string{"b"}), "b"},
		{apart(k, []string{"a"}, []string{"c"}).without("b"), "b"},
		{to(k, "a").without("b"), "b"},
		{apart(k, []string{"a"}, []string{"c"}), "c"},
	} {
		w.set(step.is)
		if got := w.say(flow, 1); got[:1] != step.want {
			t.Errorf("%q, want %s", got, step.want)
		}
	}
	w.whole()
}

// Where no bridge is balanced on the kernel is told nothing of what drains. Connection
// tracking is looked through only where a flow may lead elsewhere.
func TestDrainingCostsLittle(t *testing.T) {
	w := newWorld(t)
	config := w.config()
	config.Bridges = ""
	var told int
	config.Observe = func(Transaction) { told++ }
	w.table = New(config)
	defer w.table.Close()
	udp, tcp := key(vip4, sdn.UDP), key(vip4, sdn.TCP)
	w.restore(to(udp, "a", "b"), to(tcp, "a", "b"))
	for _, step := range []struct {
		name         string
		is           Frontend
		transactions int
		looks        bool
	}{
		{"one drains", to(udp, "a").without("b"), 1, false},
		{"that it drains is said twice", to(udp, "a").without("b", "a", "b"), 0, false},
		{"one more drains", to(udp, "a").without("b", "c"), 0, false},
		{"one goes", to(udp, "a").without("c"), 0, true},
		{"one is an endpoint again", to(udp, "a", "c"), 1, false},
		{"one goes at once", to(udp, "a"), 1, true},
		{"the last drains", to(udp).without("a"), 1, false},
		{"another comes, of whom nobody had one", to(udp, "b").without("a"), 1, true},
		{"of TCP one drains", to(tcp, "a").without("b"), 1, false},
		{"of TCP one goes", to(tcp, "a"), 0, false},
	} {
		told = 0
		if looks := len(w.table.plan(map[Key]Frontend{step.is.Key: step.is}, nil).flows) > 0; looks != step.looks {
			t.Errorf("%s: flows are looked through: %t", step.name, looks)
		}
		w.set(step.is)
		if told != step.transactions {
			t.Errorf("%s: %d transactions, want %d", step.name, told, step.transactions)
		}
	}
}

// What drains is checked as endpoints are, but for how many there may be, as the kernel
// does not hold them.
func TestDrainingIsChecked(t *testing.T) {
	f := to(key(vip4, sdn.UDP), "a")
	for _, wrong := range []string{"[fd00::1]:80", "10.0.1.2:0", "127.0.0.1:80", "224.0.0.1:80"} {
		f.Draining = []netip.AddrPort{netip.MustParseAddrPort(wrong)}
		if err := New(Config{}).Restore(context.Background(), []Frontend{f}); !sdn.IsInvalid(err) ||
			sdn.FieldOf(err) != "draining" {
			t.Errorf("%s: %v", wrong, err)
		}
	}
	f.Draining = slices.Repeat(f.Endpoints, MaxEndpoints+1)
	if err := f.validate(); err != nil {
		t.Error(err)
	}
}
