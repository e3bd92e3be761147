//go:build linux

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/vishvananda/netns"
)

// Latencies are taken in turns, of which each way has one p99, and a turn in blocks: one that the machine disturbs is as short as most disturbances, and its neighbours are the other ways'.
const (
	latencyTurns   = 100
	latencyBlocks  = 20
	blockConnects  = 25
	blockDiscarded = 1 // first connections of a block, which find what another way has left in the processor's caches
)

// way is how connections are led, and where what is measured of them goes to.
type way struct {
	host *balancerHost
	to   *balanced
	pick func() netip.AddrPort
}

// sideBySide measures connections by several ways in turns, so that each is to be compared with the others' of the same turn.
func sideBySide(ctx context.Context, ways []way) error {
	if err := latencies(ctx, ways); err != nil {
		return err
	}
	for _, part := range []struct {
		turns int
		take  func(way, context.Context) error
	}{{rateTurns, way.rate}, {streamTurns, way.stream}} {
		for range part.turns {
			for _, i := range rand.Perm(len(ways)) {
				if err := part.take(ways[i], ctx); err != nil {
					return fmt.Errorf("%s: %w", ways[i].host.name, err)
				}
			}
		}
	}
	return nil
}

// latencies are of one connection after another, on one thread that goes from one way's client to the next one's.
func latencies(ctx context.Context, ways []way) error {
	return inNamespace(ways[0].host.client, func() error {
		taps := map[*balancerHost]*tap{}
		for _, w := range ways {
			if taps[w.host] != nil {
				continue
			}
			if err := netns.Set(w.host.client); err != nil {
				return err
			}
			t, err := newTap()
			if err != nil {
				return err
			}
			defer t.close()
			taps[w.host] = t
		}
		for range latencyTurns {
			for _, w := range ways {
				w.to.connects, w.to.exchanges = append(w.to.connects, nil), append(w.to.exchanges, nil)
			}
			for range latencyBlocks {
				if err := ctx.Err(); err != nil {
					return err
				}
				for _, i := range rand.Perm(len(ways)) {
					if err := ways[i].block(taps[ways[i].host]); err != nil {
						return fmt.Errorf("%s: %w", ways[i].host.name, err)
					}
				}
			}
		}
		return nil
	})
}

// block adds some connections to the last turn.
func (w way) block(t *tap) error {
	if err := netns.Set(w.host.client); err != nil {
		return err
	}
	connects, exchanges := &w.to.connects[len(w.to.connects)-1], &w.to.exchanges[len(w.to.exchanges)-1]
	for i := range blockDiscarded + blockConnects {
		to := w.pick()
		connect, err := connectTo(to, patience)
		if err != nil {
			return fmt.Errorf("connect to %s: %w", to, err)
		}
		exchange, err := t.exchange()
		if err != nil {
			return err
		}
		if i >= blockDiscarded {
			*connects, *exchanges = append(*connects, connect), append(*exchanges, exchange)
		}
	}
	return nil
}

func (w way) rate(ctx context.Context) error {
	rate, err := connectRate(ctx, w.host.client, serviceClients, rateLasting, w.pick)
	if err != nil {
		return fmt.Errorf("connections: %w", err)
	}
	w.to.rates = append(w.to.rates, rate)
	return nil
}

func (w way) stream(context.Context) error {
	rate, err := stream(w.host.client, w.pick(), streamSize)
	if err != nil {
		return fmt.Errorf("throughput: %w", err)
	}
	w.to.streams = append(w.to.streams, rate)
	return nil
}

// ratio is the median of the turns' own: what disturbs one turn disturbs both of its sides, and is one of many.
func ratio[T time.Duration | float64](ours, reference []T) float64 {
	each := make([]float64, len(ours))
	for i := range each {
		each[i] = float64(ours[i]) / float64(reference[i])
	}
	return median(each)
}

// of is what a statistic says of each turn.
func of(turns [][]time.Duration, statistic func([]time.Duration) time.Duration) (each []time.Duration) {
	for _, t := range turns {
		each = append(each, statistic(t))
	}
	return each
}
