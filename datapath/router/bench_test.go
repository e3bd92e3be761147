//go:build linux

package router

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"testing"
)

func benchPorts(network string, n int) []Port {
	ports := make([]Port, n)
	for i := range ports {
		ports[i] = Port{ID: newID(), Network: network, MAC: net.HardwareAddr{2, 0, 0, 0, byte(i >> 8), byte(i)}, Guard: true,
			Addrs: []netip.Addr{
				netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}),
				netip.MustParseAddr(fmt.Sprintf("fd00:a::%x", i+1)),
			}}
	}
	return ports
}

// BenchmarkShape makes a router ("new"), applies one that is as wanted ("same"),
// and the latter with a thousand guarded ports. What "new" makes stays until the end: the
// kernel makes no namespace while it cleans another one up.
func BenchmarkShape(b *testing.B) {
	w := newWorld(b)
	w.f.log = slog.New(slog.DiscardHandler)
	ctx := context.Background()
	b.Run("new", func(b *testing.B) {
		for b.Loop() {
			d, _ := twoRouters()
			_, err := applyShape(ctx, w.f, d)
			must(b, err)
		}
	})
	d, _ := twoRouters()
	w.apply(d)
	for _, ports := range []int{0, 1000} {
		must(b, changePorts(ctx, w.f, d.ID, nil, benchPorts(d.Bridges[0].Network, ports)))
		b.Run(fmt.Sprintf("same/ports=%d", ports), func(b *testing.B) {
			for b.Loop() {
				_, err := applyShape(ctx, w.f, d)
				must(b, err)
			}
		})
	}
}

// BenchmarkPorts adds and removes one port beside others.
func BenchmarkPorts(b *testing.B) {
	for _, beside := range []int{1, 1000} {
		b.Run(fmt.Sprintf("beside=%d", beside), func(b *testing.B) {
			w := newWorld(b)
			d := Shape{ID: newID(), Bridges: []Bridge{bridge("10.0.0.1/16")}}
			w.apply(d)
			ctx := context.Background()
			must(b, changePorts(ctx, w.f, d.ID, nil, benchPorts(d.Bridges[0].Network, beside)))
			one := benchPorts(d.Bridges[0].Network, 1)
			for b.Loop() {
				must(b, changePorts(ctx, w.f, d.ID, nil, one))
				must(b, changePorts(ctx, w.f, d.ID, one, nil))
			}
		})
	}
}

// BenchmarkReconcile compares routers with ten guarded ports each, of which nothing differs.
func BenchmarkReconcile(b *testing.B) {
	for _, routers := range []int{1, 50} {
		b.Run(fmt.Sprintf("routers=%d", routers), func(b *testing.B) {
			w := newWorld(b)
			state := State{Ports: map[string][]Port{}}
			for i := range routers {
				d := Shape{
					ID: newID(), Bridges: []Bridge{bridge("10.0.0.1/16", "fd00:a::1/64")},
					Uplink: uplink(fmt.Sprintf("100.64.2.%d", i+1)),
				}
				state.Shapes = append(state.Shapes, d)
				state.Ports[d.ID] = benchPorts(d.Bridges[0].Network, 10)
			}
			ctx := context.Background()
			_, err := w.f.Reconcile(ctx, state)
			must(b, err)
			for b.Loop() {
				report, err := w.f.Reconcile(ctx, state)
				must(b, err)
				if len(report.Changed) != 0 {
					b.Fatalf("changed: %v", report.Changed)
				}
			}
		})
	}
}
