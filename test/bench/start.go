//go:build linux

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"syscall"
	"time"

	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

// start measures what a start of Kuryr costs for each port that is plugged, against plugging one.
func start(ctx context.Context, b *bench) error {
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
