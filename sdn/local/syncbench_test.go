package local

import (
	"context"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/kuryr/kuryr/datapath/router"
	"github.com/kuryr/kuryr/internal/nstest"
	"github.com/kuryr/kuryr/sdn"
)

// mostPortChangeRatio limits what a change of one port costs in a router of 1,000 ports, as a ratio to
// one of 10.
const mostPortChangeRatio = 1.2

// BenchmarkPortChangeRatio changes one port of a router in the kernel, beside 9 others and beside 999. It
// reports the ratio of the medians, which are taken in turn.
func BenchmarkPortChangeRatio(b *testing.B) {
	host := nstest.New(b)
	nstest.Do(b, host, func() { benchmarkPortChange(b) })
}

func benchmarkPortChange(b *testing.B) {
	var f *router.Kernel
	p := open(b, Options{NewDatapath: inKernel(b, &f), NoSync: true, PortsPerNetwork: -1})
	defer func() {
		ok(b, f.Down(b.Context()))
		ok(b, f.Close())
	}()
	changes := []func() time.Duration{portChange(b, p, 10), portChange(b, p, 1000)}
	var took [2][]time.Duration
	for b.Loop() {
		for range 20 {
			for i, change := range changes {
				took[i] = append(took[i], change())
			}
		}
	}
	var medians [2]float64
	for i, list := range took {
		slices.Sort(list)
		medians[i] = float64(list[len(list)/2])
	}
	ratio := medians[1] / medians[0]
	b.ReportMetric(ratio, "ratio")
	b.ReportMetric(medians[0]/1e3, "µs/change")
	b.ReportMetric(0, "ns/op")
	if len(took[0]) >= 1000 && ratio > mostPortChangeRatio {
		b.Errorf("a change costs %.2f times as much beside 999 ports, want at most %.1f", ratio, mostPortChangeRatio)
	}
}

// portChange returns what changes one of so many ports of a router.
func portChange(b *testing.B, p *Provider, beside int) func() time.Duration {
	ctx := b.Context()
	n, err := p.EnsureNetwork(ctx, sdn.NetworkSpec{Subnets: []sdn.SubnetSpec{{CIDR: prefix("10.0.0.0/16")}}})
	ok(b, err)
	r, err := p.EnsureRouter(ctx, sdn.RouterSpec{})
	ok(b, err)
	ok(b, p.AttachSubnet(ctx, r.ID, n.Subnets[0], netip.Addr{}))
	specs := make([]sdn.PortSpec, beside)
	for i := range specs {
		specs[i] = sdn.PortSpec{Network: n.ID, Host: testHost}
	}
	made, err := p.EnsurePorts(ctx, specs)
	ok(b, err)
	with := false
	return func() time.Duration {
		pairs := []sdn.AllowedPair{}
		if with = !with; with {
			pairs = append(pairs, sdn.AllowedPair{Prefix: prefix("192.0.2.0/28")})
		}
		start := time.Now()
		_, err := p.UpdatePort(ctx, made[0].ID, sdn.PortPatch{AllowedPairs: &pairs})
		ok(b, err)
		return time.Since(start)
	}
}

// BenchmarkEnsurePort makes and deletes a port with an address of each family, on a network that has 500 others.
func BenchmarkEnsurePort(b *testing.B) {
	ctx := context.Background()
	p := open(b, Options{NoSync: true})
	network, _, _ := fill(b, p, 500)
	for b.Loop() {
		made, err := p.EnsurePorts(ctx, []sdn.PortSpec{{Network: network, Host: testHost}})
		if err != nil {
			b.Fatal(err)
		}
		if err := p.DeletePorts(ctx, []sdn.ID{made[0].ID}); err != nil {
			b.Fatal(err)
		}
	}
}
