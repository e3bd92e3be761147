package docker

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/kuryr/kuryr/sdn"
)

// How long Run waits before it asks an SDN that is away again: twice as long each time, and not at the same time as other hosts.
const firstWait, longestWait = time.Second, time.Minute

// Run does what is left to do behind the engine's back, until ctx ends: at first what Reconcile does, as soon as the SDN answers, and ever after the
// clean-ups that are owed since the SDN was away and the tags that the engine does not wait for. It is woken by what is owed anew, by the first call that
// the SDN served again, and by a timer: while it is away, for ports that may yet be made, and for tags that it fails at. Its error is always nil.
func (d *Driver) Run(ctx context.Context) error {
	ctx = sdn.Unawaited(ctx)
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
		if failed := d.settleMarks(ctx); err == nil {
			err = failed
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
	var looks [2]<-chan time.Time
	for i, next := range []func() (time.Time, bool){d.owed.nextLook, d.marks.nextLook} {
		if at, waits := next(); waits {
			t := time.NewTimer(time.Until(at))
			defer t.Stop()
			looks[i] = t.C
		}
	}
	select {
	case <-ctx.Done():
		return false
	case <-d.owed.more:
	case <-d.marks.more:
	case <-looks[0]:
	case <-looks[1]:
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
	case <-d.marks.more: // it has just served the call that this came of
	case <-t.C:
	}
	return true
}
