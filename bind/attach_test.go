//go:build linux

package bind

import (
	"context"
	"testing"

	"github.com/kuryr/kuryr/internal/nstest"
	"github.com/kuryr/kuryr/sdn"
	"github.com/vishvananda/netlink"
)

// A host end that was taken off its bridge, or put down, is seen and put back; one that
// is not there is not made.
func TestAttach(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx := context.Background()
	a := nstest.New(t)
	p := w.port()
	want := func(when string, want State) {
		t.Helper()
		if got, err := w.b.State(ctx, p); err != nil || got != want {
			t.Errorf("%s: %s, %v; want %s", when, got, err, want)
		}
	}
	want("before the plug", Absent)
	if err := w.b.Attach(ctx, p); !sdn.IsNotFound(err) {
		t.Errorf("attached what is not there: %v", err)
	}
	w.plug(w.in(p, a))
	want("plugged", Whole)
	must(t, w.b.Attach(ctx, p))
	ping(t, a, "10.1.0.1")
	for name, loosen := range map[string]func(netlink.Link) error{
		"off its bridge": netlink.LinkSetNoMaster, "down": netlink.LinkSetDown,
	} {
		nstest.Do(t, w.router, func() {
			l, err := netlink.LinkByName(HostName(p.ID))
			must(t, err)
			must(t, loosen(l))
		})
		want(name, Loose)
		must(t, w.b.Attach(ctx, p))
		want("back after being "+name, Whole)
		ping(t, a, "10.1.0.1")
	}
	w.unplug(p)
	want("unplugged", Absent)
	if err := w.b.Attach(ctx, p); !sdn.IsNotFound(err) {
		t.Errorf("attached what was unplugged: %v", err)
	}
	p.VIF.Details = map[string]string{sdn.DetailBridge: "none", sdn.DetailNamespace: "/run/no/such"}
	want("without a namespace", Absent)
	p.VIF.Type = sdn.VIFUnbound
	want("unbound", Absent)
}
