//go:build linux

package local

import (
	"log/slog"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/kuryr/kuryr/datapath/router"
	"github.com/kuryr/kuryr/internal/netns"
	"github.com/kuryr/kuryr/internal/nstest"
	"github.com/kuryr/kuryr/sdn"
)

// BenchmarkPublishRatio publishes and withdraws 2,000 UDP ports in the kernel as one value. Its
// reference is one call for each port, measured in the same run.
func BenchmarkPublishRatio(b *testing.B) {
	host := nstest.New(b)
	nstest.Do(b, host, func() { benchmarkPublish(b) })
}

// inKernel returns what makes a data path in the kernel, which is then in f.
func inKernel(b testing.TB, f **router.Kernel) func(uplink4, uplink6 netip.Prefix) (Datapath, error) {
	pins, err := os.MkdirTemp("/run", "bench-")
	ok(b, err)
	spaces, err := netns.Open(pins)
	ok(b, err)
	return func(uplink4, uplink6 netip.Prefix) (_ Datapath, err error) {
		config := router.Options{Namespaces: spaces, Uplink4: uplink4, Uplink6: uplink6, Logger: slog.New(slog.DiscardHandler)}
		*f, err = router.New(config)
		return *f, err
	}
}

func benchmarkPublish(b *testing.B) {
	var f *router.Kernel
	p, port := publishedBox(b, Options{NewDatapath: inKernel(b, &f)})
	defer func() {
		ok(b, f.Down(b.Context()))
		ok(b, f.Close())
	}()
	spec := sdn.PublicationSpec{Key: publishedKey(p)}
	for _, w := range manyUDP(port.ID, 2000) {
		if w.Host.Is4() {
			spec.Ports = append(spec.Ports, w)
		}
	}
	var whole, single time.Duration
	for b.Loop() {
		start := time.Now()
		_, err := p.Publish(b.Context(), spec)
		ok(b, err)
		ok(b, p.Unpublish(b.Context(), spec.Key))
		whole += time.Since(start)

		start = time.Now()
		every := sdn.FloatingIPSpec{Network: p.Capabilities().ExternalNetwork, Address: netip.IPv4Unspecified(), OfHost: true}
		face, err := p.EnsureFloatingIP(b.Context(), every)
		ok(b, err)
		for _, w := range spec.Ports {
			_, err := p.EnsureForwards(b.Context(), face.ID, []sdn.Forward{w.Forward})
			ok(b, err)
		}
		ok(b, p.DeleteFloatingIP(b.Context(), face.ID))
		single += time.Since(start)
	}
	b.ReportMetric(float64(whole.Milliseconds())/float64(b.N), "ms/publication")
	b.ReportMetric(float64(whole)/float64(single), "ratio")
}
