package docker

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/kuryr/kuryr/docker/engine"
	"github.com/kuryr/kuryr/sdn"
)

// The wait before Run tries again what it does at the start, while the SDN is unavailable.
const minBackoff, maxBackoff = time.Second, time.Minute

// Run does what Docker does not wait for, until ctx ends: the database's pending rows, comparisons
// with Docker, and once what a start has to do. Its error is always nil.
func (d *Driver) Run(ctx context.Context) error {
	ctx = sdn.Unawaited(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { d.database.Run(ctx) })
	d.untilAvailable(ctx, d.resume)
	<-ctx.Done()
	return nil
}

// untilAvailable calls do until its error is not that the SDN is unavailable. The first call of
// Docker that the SDN has served ends a wait.
func (d *Driver) untilAvailable(ctx context.Context, do func(context.Context) error) {
	for wait := minBackoff; ; wait = min(2*wait, maxBackoff) {
		err := do(ctx)
		switch {
		case err == nil || ctx.Err() != nil:
			return
		case !away(err):
			d.log.WarnContext(ctx, "not all of the earlier state is recovered", "err", err)
			return
		}
		if !d.rest(ctx, wait/2+rand.N(wait/2)) {
			return
		}
	}
}

// resume brings the rows, the SDN and the host together after a start: it imports what earlier
// versions left, finishes what a killed process did not, and compares with Docker. What fails does
// not keep the rest from being done.
func (d *Driver) resume(ctx context.Context) error {
	err := errors.Join(d.endpoints.RestoreHostPorts(ctx), d.earlier.finish(ctx))
	listed, failed := d.listEngine(ctx)
	if failed != nil { // networks of kuryr-libnetwork are imported by the calls that name them
		d.log.DebugContext(ctx, "Docker's networks are unknown at the start", "err", failed)
	}
	err = errors.Join(err, d.earlier.objects(ctx, listed), d.endpoints.DropGone(ctx))
	d.networks.Finish(ctx)
	d.Compare()
	return err
}

// listEngine returns the networks that Docker has; none if it is not asked.
func (d *Driver) listEngine(ctx context.Context) ([]engine.Network, error) {
	if d.engine == nil {
		return nil, nil
	}
	list, err := d.engine.List(ctx)
	if err != nil {
		return nil, fmt.Errorf("list Docker's networks: %w", err)
	}
	return list.Networks, nil
}

// rest waits some time, or until the SDN has served a call. It reports whether ctx goes on.
func (d *Driver) rest(ctx context.Context, wait time.Duration) bool {
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-d.answered:
	case <-t.C:
	}
	return true
}

// away reports whether the SDN could not be asked, or not in time.
func away(err error) bool {
	if several, ok := err.(interface{ Unwrap() []error }); ok {
		return slices.ContainsFunc(several.Unwrap(), away)
	}
	if e, ok := errors.AsType[*sdn.Error](err); ok {
		return e.Kind == sdn.KindUnavailable
	}
	return errors.Is(err, context.DeadlineExceeded)
}
