//go:build linux

package router

import (
	"context"
	"strings"
	"testing"

	"github.com/kuryr/kuryr/internal/nstest"
)

// A port that is down sends and gets nothing, with a guard and without, also where its
// network moves to another router; its neighbours are not disturbed. Up again it has what it
// had. Namespaces without such ports have no table for them.
func TestPortDown(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx := context.Background()
	alone := Shape{ID: newID()}
	alone.Bridges = []Bridge{bridge("10.0.0.1/24")}
	w.apply(alone)
	a, b := w.plug(alone.ID, alone.Bridges[0], "10.0.0.5"), w.plug(alone.ID, alone.Bridges[0], "10.0.0.6")
	open := w.plug(alone.ID, alone.Bridges[0], "10.0.0.7")
	bare := open.port
	bare.Guard = false
	must(t, changePorts(ctx, w.f, alone.ID, []Port{open.port}, []Port{bare}))
	tables := func(id string) bool { return strings.Contains(w.sh(w.router(id), "nft list tables"), "kuryr_down") }
	if tables(alone.ID) {
		t.Error("there is a table for ports that are down, and none is")
	}

	off, offToo := a.port, bare
	off.Down, offToo.Down = true, true
	must(t, changePorts(ctx, w.f, alone.ID, []Port{a.port, bare}, []Port{off, offToo}))
	silent := func() {
		t.Helper()
		w.reaches(b.ns, "10.0.0.1", true)
		for _, c := range []struct {
			from container
			to   string
		}{{a, "10.0.0.1"}, {a, "10.0.0.6"}, {open, "10.0.0.6"}, {b, "10.0.0.5"}, {b, "10.0.0.7"}} {
			if out, err := w.try(c.from.ns, "ping -n -c 2 -i 0.1 -W 0.3 "+c.to); err == nil {
				t.Errorf("%s is reached:\n%s", c.to, out)
			}
		}
	}
	silent()

	// The network moves, and comes back by a comparison in a process that knows nothing.
	router := Shape{ID: newID(), Bridges: alone.Bridges, Uplink: uplink("100.64.0.2")}
	w.apply(router)
	silent()
	must(t, w.f.Delete(ctx, alone.ID))
	moved := State{Shapes: []Shape{router}, Ports: map[string][]Port{router.ID: {off, b.port, offToo}}}
	w.mustMatch(moved)
	var f *Kernel
	var err error
	nstest.Do(t, w.host, func() { f, err = New(w.f.options) })
	must(t, err)
	w.sh(w.router(router.ID), "nft delete table bridge kuryr_down")
	w.reaches(b.ns, "10.0.0.5", true)
	if _, err := f.Reconcile(ctx, moved); err != nil {
		t.Fatal(err)
	}
	silent()
	// One is up by now, of which only the comparison knows.
	if _, err := f.Reconcile(ctx, State{Shapes: []Shape{alone}, Ports: map[string][]Port{
		alone.ID: {a.port, b.port, offToo},
	}}); err != nil {
		t.Fatal(err)
	}
	w.reaches(a.ns, "10.0.0.6", true)
	w.reaches(open.ns, "10.0.0.6", false)
	must(t, f.Close())

	must(t, changePorts(ctx, w.f, alone.ID, []Port{offToo}, []Port{bare}))
	w.reaches(a.ns, "10.0.0.6", true)
	w.reaches(open.ns, "10.0.0.5", true)
	w.mustMatch(State{Shapes: []Shape{alone}, Ports: map[string][]Port{alone.ID: {a.port, b.port, bare}}})
	if _, err := w.f.Reconcile(ctx, State{Shapes: []Shape{alone}, Ports: map[string][]Port{
		alone.ID: {a.port, b.port, bare},
	}}); err != nil {
		t.Fatal(err)
	}
	if tables(alone.ID) {
		t.Error("the table stays though no port is down")
	}
}
