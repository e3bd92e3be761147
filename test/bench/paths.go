//go:build linux

package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

const (
	trafficPort = "5001"
	megabytes   = "600" // of one sample
	roundTrips  = "3000"
)

// path is a way from one container to a server.
type path struct {
	from   string // container
	server string // address
}

// trafficPaths compares the ways between containers and to the outside with those on Docker's own bridge.
func trafficPaths(ctx context.Context, b *bench) error {
	h, err := dockerHost(ctx, b, "")
	if err != nil {
		return err
	}
	defer h.Close()
	for _, args := range [][]string{
		{"network", "create", "-d", "bridge", "reference"},
		{"network", "create", "-d", "kuryr", "--ipam-driver", "kuryr", "--subnet", "10.90.0.0/24", "-o", "kuryr.router=bench", "one"},
		{"network", "create", "-d", "kuryr", "--ipam-driver", "kuryr", "--subnet", "10.91.0.0/24", "-o", "kuryr.router=bench", "two"},
	} {
		if r := h.Docker(ctx, args...); !r.OK() {
			return fmt.Errorf("%s", r)
		}
	}
	address := map[string]string{}
	for name, network := range map[string]string{"ref-a": "reference", "ref-b": "reference", "a": "one", "b": "one", "c": "two"} {
		name = "bench-" + name
		if r := h.Docker(ctx, "run", "-d", "--name", name, "--network", network, "bench", "traffic", "serve", trafficPort); !r.OK() {
			return fmt.Errorf("%s", r)
		}
		r := h.Docker(ctx, "inspect", "-f", "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}", name)
		if !r.OK() {
			return fmt.Errorf("%s", r)
		}
		address[name] = r.Out()
	}
	stop, err := h.StartOutside(ctx, b.traffic, "serve", trafficPort)
	if err != nil {
		return err
	}
	defer stop()
	outside := privatehost.NeighbourIPv4.Addr().String()
	bridge := path{"bench-ref-a", address["bench-ref-b"]}
	for _, c := range []struct {
		name            string
		ours, reference path
	}{
		{"one network", path{"bench-a", address["bench-b"]}, bridge},
		{"two networks of a router", path{"bench-a", address["bench-c"]}, bridge},
		{"outside", path{"bench-a", outside}, path{"bench-ref-a", outside}},
	} {
		if err := b.comparePaths(ctx, h, c.name, [2]path{c.ours, c.reference}); err != nil {
			return err
		}
	}
	return nil
}

// comparePaths samples both sides in turn, so that the machine's moods hit both.
func (b *bench) comparePaths(ctx context.Context, h *privatehost.Host, name string, sides [2]path) error {
	var rate [2][]float64
	var rtt [2][]time.Duration
	for range b.rounds {
		for side, p := range sides {
			v, err := sample(ctx, h, p, "stream", megabytes)
			if err != nil {
				return err
			}
			rate[side] = append(rate[side], v)
			if v, err = sample(ctx, h, p, "rtt", roundTrips); err != nil {
				return err
			}
			rtt[side] = append(rtt[side], time.Duration(v))
		}
	}
	ours, reference := median(rate[0]), median(rate[1])
	b.rows = append(b.rows, row{name: "throughput, " + name, ours: gigabits(ours), reference: gigabits(reference),
		ratio: ours / reference, goal: 0.95, atLeast: true})
	o, r := median(rtt[0]), median(rtt[1])
	b.rows = append(b.rows, row{name: "round trips a second, " + name, ours: o.String(), reference: r.String(),
		ratio: float64(r) / float64(o), goal: 0.95, atLeast: true})
	return nil
}

func sample(ctx context.Context, h *privatehost.Host, p path, what, amount string) (float64, error) {
	r := h.Docker(ctx, "exec", p.from, "traffic", what, p.server+":"+trafficPort, amount)
	if !r.OK() {
		return 0, fmt.Errorf("%s", r)
	}
	return strconv.ParseFloat(strings.TrimSpace(r.Stdout), 64)
}

func gigabits(bytesPerSecond float64) string { return fmt.Sprintf("%.1f Gbit/s", bytesPerSecond*8/1e9) }
