//go:build linux

package bind

import (
	"context"
	"testing"

	"github.com/kuryr/kuryr/internal/nstest"
	"github.com/kuryr/kuryr/sdn"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// bucket is the rate in bytes a second that a link is kept to; 0 for none.
func bucket(t testing.TB, ns netns.NsHandle, name string) (rate uint64) {
	t.Helper()
	nstest.Do(t, ns, func() {
		link, err := netlink.LinkByName(name)
		must(t, err)
		all, err := netlink.QdiscList(link)
		must(t, err)
		for _, q := range all {
			if b, is := q.(*netlink.Tbf); is {
				rate = b.Rate
			}
		}
	})
	return rate
}

// A limit holds at the end that sends, may be plugged again with other
// limits, and the next interface of the port has none of it.
func TestLimits(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p, ns := w.port(), nstest.New(t)
	i := w.in(p, ns)
	i.Limits = sdn.Limits{IngressKbps: 8000, EgressKbps: 4000}
	if _, err := w.b.Plug(context.Background(), i); sdn.IsUnsupported(err) {
		t.Skipf("this kernel has no token buckets: %v", err)
	} else {
		must(t, err)
	}
	check := func(when string, ingress, egress uint64) {
		t.Helper()
		if in, out := bucket(t, w.router, HostName(p.ID)), bucket(t, ns, "eth0"); in != ingress || out != egress {
			t.Errorf("%s: %d and %d bytes a second, want %d and %d", when, in, out, ingress, egress)
		}
	}
	check("plugged", 1000000, 500000)
	i.Limits = sdn.Limits{IngressKbps: 16000}
	w.plug(i)
	check("again with another", 2000000, 500000)
	w.unplug(p)
	w.plug(w.in(p, ns))
	check("the next one", 0, 0)
}

func TestTokens(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		kbps, burst int64
		rate        uint64
		bucket      uint32
	}{
		"none":                    {0, 1000, 0, 0},
		"as asked":                {80_000, 8_000, 10_000_000, 1_000_000},
		"no burst":                {80_000, 0, 10_000_000, 1_000_000},
		"more than a second's":    {80_000, 4_294_968, 10_000_000, 1_000_000},
		"less than a large frame": {80, 1, 10_000, 64 << 10},
		"beyond every link":       {1 << 60, 0, 0, 0},
	} {
		if rate, bucket := tokens(row.kbps, row.burst); rate != row.rate || bucket != row.bucket {
			t.Errorf("%s: %d and %d, want %d and %d", name, rate, bucket, row.rate, row.bucket)
		}
	}
}
