package docker

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/kuryr/kuryr/sdn"
)

// How long Run waits before it asks an SDN that is away again: twice as long each time, and not at the same time as other hosts.
const firstWait, longestWait = time.Second, time.Minute

// Run does what the engine does not wait for, until ctx ends: the database's pending rows; what
// Reconcile does, as soon as the SDN answers; and the clean-ups that are owed since the SDN was
// unavailable. For those it waits for a new one, for the first call that the SDN served again, or
// for a timer: while the SDN is unavailable, and for ports that may yet be made. Its error is
// always nil.
func (d *Driver) Run(ctx context.Context) error {
	ctx = sdn.Unawaited(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { d.database.Run(ctx) })
	reconciled, wait := false, firstWait
	for {
		err := d.settleAll(ctx)
		if !reconciled { // also where a call stays owed that the SDN fails at each time
			failed := d.Reconcile(ctx)
			if reconciled = !away(failed); !reconciled && err == nil {
				err = failed
			} else if reconciled && failed != nil && ctx.Err() == nil {
				d.log.WarnContext(ctx, "what Docker has deleted while kuryr was away is not all gone yet", "error", failed)
			}
		}
		if err != nil {
			if ctx.Err() == nil {
				d.log.DebugContext(ctx, "the SDN is still away", "owed", d.owed.count(), "err", err)
			}
			if !d.rest(ctx, wait/2+rand.N(wait/2)) {
				return nil
			}
			wait = min(2*wait, longestWait)
			continue
		}
		wait = firstWait
		if !d.idle(ctx) {
			return nil
		}
	}
}

// idle waits until there is something to do. It tells whether ctx goes on.
func (d *Driver) idle(ctx context.Context) bool {
	var look <-chan time.Time
	if at, waits := d.owed.nextLook(); waits {
		t := time.NewTimer(time.Until(at))
		defer t.Stop()
		look = t.C
	}
	select {
	case <-ctx.Done():
		return false
	case <-d.owed.more:
	case <-look:
	}
	return true
}

// rest waits while the SDN is away, for its first answer or some time. It tells whether ctx goes on.
func (d *Driver) rest(ctx context.Context, wait time.Duration) bool {
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-d.owed.back:
	case <-t.C:
	}
	return true
}
