//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

// start measures what a start of Kuryr costs: until the plugin's socket answers, with many
// endpoints, and for each port that is plugged, against plugging one.
func start(ctx context.Context, b *bench) error {
	if err := sockets(ctx, b); err != nil {
		return err
	}
	h, err := privatehost.New(ctx, privatehost.Options{Kuryr: b.kuryr})
	if err != nil {
		return err
	}
	defer h.Close()
	empty, err := reconciled(ctx, b, h)
	if err != nil {
		return err
	}
	if err := thousandPorts(ctx, h); err != nil {
		return err
	}
	calls, err := spent(ctx, h)
	if err != nil {
		return err
	}
	join := calls["NetworkDriver.Join"]
	plug := join.took / time.Duration(join.calls)
	full, err := reconciled(ctx, b, h)
	if err != nil {
		return err
	}
	each := (full - empty) / time.Duration(join.calls)
	b.rows = append(b.rows, row{name: "reconcile at start, for each of 1,000 ports", ours: each.String(), reference: "Join " + plug.Round(time.Microsecond).String(),
		ratio: float64(each) / float64(plug)})
	return nil
}

// reconciled kills and starts Kuryr and gives the median of what its first reconcile took.
func reconciled(ctx context.Context, b *bench, h *privatehost.Host) (time.Duration, error) {
	var took []time.Duration
	for range b.rounds {
		if err := h.KillKuryr(syscall.SIGKILL); err != nil {
			return 0, err
		}
		if err := h.StartKuryr(ctx, nil, nil); err != nil {
			return 0, err
		}
		r := h.Kuryr(ctx, "status", "-o", "json")
		var status struct {
			Reconcile struct {
				Milliseconds float64 `json:"milliseconds"`
				Error        string  `json:"error"`
			} `json:"reconcile"`
		}
		if err := json.Unmarshal([]byte(r.Stdout), &status); err != nil {
			return 0, fmt.Errorf("%s: %w", r, err)
		}
		if status.Reconcile.Error != "" {
			return 0, fmt.Errorf("reconcile: %s", status.Reconcile.Error)
		}
		took = append(took, time.Duration(status.Reconcile.Milliseconds*float64(time.Millisecond)))
	}
	return median(took), nil
}

// startNetworks is the number of networks that have 10,000 endpoints.
const startNetworks = 10000 / networkSize

// fillNetwork creates a network and its endpoints, none of which is plugged.
func fillNetwork(ctx context.Context, h *privatehost.Host, number int) error {
	n, err := newNetwork(ctx, h, number)
	for i := 0; err == nil && i < networkSize; i++ {
		err = n.createEndpoint(ctx, i)
	}
	return err
}

// sockets measures the time from the start of Kuryr until its plugin socket answers, with
// 10,000 endpoints, against the two seconds that it may take and against a start with none.
func sockets(ctx context.Context, b *bench) error {
	h, err := privatehost.New(ctx, privatehost.Options{Kuryr: b.kuryr})
	if err != nil {
		return err
	}
	defer h.Close()
	empty, err := answered(ctx, b, h)
	if err != nil {
		return err
	}
	// Networks are filled concurrently, so that calls share the commits of the stores.
	failed := make(chan error, startNetworks)
	for number := range startNetworks {
		go func() { failed <- fillNetwork(ctx, h, number) }()
	}
	for range startNetworks {
		err = errors.Join(err, <-failed)
	}
	if err != nil {
		return err
	}
	full, err := answered(ctx, b, h)
	if err != nil {
		return err
	}
	const most = 2 * time.Second
	b.rows = append(b.rows, row{name: "sockets answer after a start, 10,000 endpoints", ours: full.Round(time.Millisecond).String(),
		reference: most.String(), ratio: float64(full) / float64(most), goal: 1})
	b.add("the same, against a start with none", []time.Duration{full}, []time.Duration{empty}, 0)
	return nil
}

// answered kills and starts Kuryr and returns the median of the time until its socket answers.
func answered(ctx context.Context, b *bench, h *privatehost.Host) (time.Duration, error) {
	var took []time.Duration
	for range b.rounds {
		if err := h.KillKuryr(syscall.SIGKILL); err != nil {
			return 0, err
		}
		begin := time.Now()
		if err := h.StartKuryr(ctx, nil, nil); err != nil {
			return 0, err
		}
		took = append(took, time.Since(begin))
	}
	return median(took), nil
}
