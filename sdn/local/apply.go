package local

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/kuryr/kuryr/datapath/fabric"
	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/kuryr/kuryr/sdn"
)

// makeBeforeBreak orders the changes of one transaction so that a network that moves is fetched by the domain it comes to before the one it
// leaves knows it no more: a network's own domain, which is new or gone, comes before routers or after them.
func makeBeforeBreak(a, b *change) int { return rank(a) - rank(b) }

func rank(c *change) int {
	switch {
	case c.gone:
		return 2
	case c.shape != nil && len(c.shape.Bridges) == 1 && c.shape.Bridges[0].Network == c.domain:
		return 0
	}
	return 1
}

// errHeldBack stands for a domain whose shape waits for another's, so that what moves between them is not lost.
var errHeldBack = errors.New("held back until the other domain is as it should be")

// settle does a ticket's work. What cannot be done is kept as dirty.
func (p *Provider) settle(ctx context.Context, tk *ticket) error {
	if err := tk.turn(ctx); err != nil {
		// The turn must not be skipped for the others, but neither may it come late: an own goroutine waits for it and notes the work.
		go func() {
			_ = tk.turn(context.WithoutCancel(ctx))
			failed := map[string]*change{}
			for domain, c := range tk.changes {
				failed[domain] = p.queue.take(c)
			}
			tk.finish(failed)
		}()
		return sdn.Unavailable(err, "data path", "the change is stored, the kernel is to follow")
	}
	failed := map[string]*change{}
	var errs []error
	for _, c := range slices.SortedFunc(maps.Values(tk.changes), makeBeforeBreak) {
		c = p.queue.take(c)
		err := errHeldBack
		if c.shape == nil && !c.gone || len(errs) == 0 {
			err = p.apply(ctx, c)
		}
		if err != nil {
			failed[c.domain] = c
			errs = append(errs, err)
		}
	}
	tk.finish(failed)
	if len(errs) > 0 {
		return sdn.Unavailable(errors.Join(errs...), "data path", "the change is stored, the kernel could not follow yet")
	}
	return nil
}

// apply brings one change to the kernel.
func (p *Provider) apply(ctx context.Context, c *change) error {
	if c.gone {
		if err := p.datapath.DeleteDomain(ctx, c.domain); err != nil {
			return err
		}
		failpoint.Here("local.apply.gone")
		p.noteUnreached(ctx, c.domain, nil)
		return nil
	}
	if c.shape != nil {
		result, err := p.datapath.ApplyDomain(ctx, *c.shape)
		if err != nil {
			return err
		}
		failpoint.Here("local.apply.shape")
		p.noteUnreached(ctx, c.domain, result.Unreached)
	}
	if remove, add := lists(c.forwards); len(remove)+len(add) > 0 {
		if err := p.datapath.UpdateForwards(ctx, c.domain, remove, add); err != nil {
			return err
		}
		failpoint.Here("local.apply.forwards")
	}
	if remove, add := lists(c.ports); len(remove)+len(add) > 0 {
		if err := p.datapath.UpdatePorts(ctx, c.domain, remove, add); err != nil {
			return err
		}
		failpoint.Here("local.apply.ports")
	}
	return nil
}

// noteUnreached remembers what a router's ranges cannot be reached by, and says so when that changes.
func (p *Provider) noteUnreached(ctx context.Context, domain string, list []fabric.Unreached) {
	p.queue.mu.Lock()
	was := p.queue.unreached[domain]
	if len(list) == 0 {
		delete(p.queue.unreached, domain)
	} else {
		p.queue.unreached[domain] = list
	}
	p.queue.mu.Unlock()
	if slices.Equal(was, list) {
		return
	}
	for _, u := range list {
		p.log.WarnContext(ctx, "the host cannot reach a router's range", "router", domain, "prefix", u.Prefix, "reason", u.Reason)
	}
}

func (q *queue) unreachedOf(router sdn.ID) []sdn.Unreached {
	q.mu.Lock()
	defer q.mu.Unlock()
	var out []sdn.Unreached
	for _, u := range q.unreached[string(router)] {
		out = append(out, sdn.Unreached{Prefix: u.Prefix, Reason: u.Reason})
	}
	return out
}

// The pause between attempts of Run to mend the kernel.
const (
	firstPause = time.Second
	lastPause  = time.Minute
)

// Run mends in the background what the kernel refused, until the context ends. It is woken by a failure and then tries again
// with growing pauses.
func (p *Provider) Run(ctx context.Context) error {
	if p.datapath == nil {
		<-ctx.Done()
		return nil
	}
	for pause := firstPause; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-p.queue.failed:
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		}
		if err := p.mend(ctx); err != nil {
			pause = min(2*pause, lastPause)
			p.log.WarnContext(ctx, "the kernel does not follow the store yet", "error", err, "again_in", pause)
			continue
		}
		pause = firstPause
	}
}

// mend tries once more what failed.
func (p *Provider) mend(ctx context.Context) error {
	return p.update(ctx, func(t *tx) error {
		p.queue.mu.Lock()
		defer p.queue.mu.Unlock()
		for domain := range p.queue.dirty {
			t.touch(sdn.ID(domain))
		}
		return nil
	})
}

// Reconcile makes the whole kernel state be what the store says. Changes made meanwhile wait for it.
func (p *Provider) Reconcile(ctx context.Context) (fabric.Report, error) {
	var report fabric.Report
	err := p.whole(ctx, func(s fabric.State) (map[string]*change, error) {
		var err error
		if report, err = p.datapath.Reconcile(ctx, s); err != nil {
			return nil, err
		}
		p.queue.mu.Lock()
		p.queue.dirty = map[string]*change{}
		p.queue.mu.Unlock()
		for _, d := range s.Domains {
			p.noteUnreached(ctx, d.ID, report.Unreached[d.ID])
		}
		return nil, nil
	})
	return report, err
}

// Check compares the kernel with the store, and changes nothing.
func (p *Provider) Check(ctx context.Context) ([]fabric.Difference, error) {
	var diff []fabric.Difference
	err := p.whole(ctx, func(s fabric.State) (map[string]*change, error) {
		var err error
		diff, err = p.datapath.Diff(ctx, s)
		return nil, err
	})
	return diff, err
}

// whole calls f with the whole state when the kernel is done with everything before, and holds up everything after.
func (p *Provider) whole(ctx context.Context, f func(fabric.State) (map[string]*change, error)) error {
	if p.datapath == nil {
		return nil
	}
	// A transaction that changes nothing keeps others from committing between the state and the ticket.
	b, err := p.db.Begin(true)
	if err != nil {
		return closed(err)
	}
	state, err := p.projectAll(b)
	var tk *ticket
	if err == nil {
		tk = p.queue.drawAll()
	}
	_ = b.Rollback()
	if err != nil {
		return err
	}
	if err := tk.turn(ctx); err != nil {
		tk.cancel()
		return err
	}
	failed, err := f(state)
	tk.finish(failed)
	return err
}
