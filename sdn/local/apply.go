package local

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/kuryr/kuryr/datapath/lb"
	"github.com/kuryr/kuryr/datapath/router"
	"github.com/kuryr/kuryr/internal/backoff"
	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/engine"
)

// errHeldBack stands for a domain whose shape waits for another's, so that what moves between them is not lost.
var errHeldBack = errors.New("held back until the other domain is as it should be")

// settle does a ticket's work, or waits for it where several share it. What cannot be done is kept as dirty.
func (p *Provider) settle(ctx context.Context, tk *ticket) error {
	if tk.shared != nil {
		return tk.shared.settle(ctx, func(ctx context.Context) error { return p.settleAlone(ctx, tk) })
	}
	return p.settleAlone(ctx, tk)
}

func (p *Provider) settleAlone(ctx context.Context, tk *ticket) error {
	if err := tk.turn(ctx); err != nil {
		// The turn must not be skipped for the others, but neither may it come late: an own goroutine waits for it and notes the work.
		go func() {
			_ = tk.turn(context.WithoutCancel(ctx))
			failed := map[string]*change{}
			for _, c := range p.queue.takeAll(tk) {
				failed[c.domain] = c
			}
			tk.finish(failed)
		}()
		return following(err)
	}
	// A cancelled caller must not interrupt a change of the kernel: what the kernel has would
	// differ from what was told.
	ctx = context.WithoutCancel(ctx)
	failed := map[string]*change{}
	var errs []error
	var freed []netip.Prefix
	for _, c := range p.queue.takeAll(tk) {
		err := errHeldBack
		if !c.reshapes() || p.queue.mayReshape(c, failed) {
			err = p.apply(ctx, c)
		}
		if err != nil {
			failed[c.domain] = c
			errs = append(errs, err)
		} else {
			freed = append(freed, c.freed...)
		}
	}
	tk.finish(failed)
	p.extend(ctx, freed)
	if len(errs) > 0 {
		return sdn.Unavailable(sdn.OfHost(errors.Join(errs...)), "data path", "the change is stored, the kernel could not follow yet")
	}
	return nil
}

// following is the error of who does not wait until the kernel has a change.
func following(err error) error {
	return sdn.Unavailable(err, "data path", "the change is stored, the kernel is to follow")
}

// apply brings one change to the kernel.
func (p *Provider) apply(ctx context.Context, c *change) error {
	if c.gone {
		if err := p.datapath.DeleteRouter(ctx, c.domain); err != nil {
			return err
		}
		p.told.forget(c.domain)
		failpoint.Here("local.apply.gone")
		p.noteUnreached(ctx, c.domain, nil)
		return nil
	}
	if c.shape != nil {
		result, err := p.datapath.ApplyShape(ctx, *c.shape)
		if err != nil {
			return err
		}
		failpoint.Here("local.apply.shape")
		p.noteUnreached(ctx, c.domain, result.Unreached)
	}
	if len(c.left) > 0 {
		if err := p.datapath.UpdatePorts(ctx, c.domain, c.left, nil); err != nil {
			return err
		}
	}
	thought, err := p.tell(ctx, c)
	if err != nil {
		return err
	}
	if remove, add := lists(c.forwards); len(remove)+len(add) > 0 {
		if err := p.datapath.UpdateForwards(ctx, c.domain, remove, add); err != nil {
			return err
		}
		failpoint.Here("local.apply.forwards")
	}
	if remove, add := lists(c.ports); len(remove)+len(add) > 0 {
		if err := p.updatePorts(ctx, c, thought, remove, add); err != nil {
			return err
		}
		failpoint.Here("local.apply.ports")
	}
	return p.applyBalance(ctx, c)
}

// applyBalance brings what a change says of load balancers to the kernel: frontends before their VIPs, so that nobody is refused at an address that has just come.
func (p *Provider) applyBalance(ctx context.Context, c *change) error {
	if err := p.applyFrontends(ctx, c); err != nil {
		return err
	}
	remove, add := lists(c.vips)
	if len(remove)+len(add) == 0 {
		return nil
	}
	err := p.datapath.UpdateVIPs(ctx, c.domain, remove, add)
	if err == nil {
		failpoint.Here("local.apply.vips")
	}
	return err
}

func (p *Provider) applyFrontends(ctx context.Context, c *change) error {
	if len(c.balanced) == 0 {
		return nil
	}
	var remove []lb.Key
	var set []lb.Frontend
	for key, e := range c.balanced {
		if e.add != nil {
			set = append(set, *e.add)
		} else {
			remove = append(remove, key)
		}
	}
	err := p.datapath.UpdateFrontends(ctx, c.domain, remove, set, func() ([]lb.Frontend, error) { return p.frontendsOf(sdn.ID(c.domain)) })
	if err == nil {
		failpoint.Here("local.apply.frontends")
	}
	return err
}

// extend has the host reach ranges that had to wait for others, when those no longer take their place.
func (p *Provider) extend(ctx context.Context, freed []netip.Prefix) {
	waiting := p.queue.waitingFor(freed)
	if len(waiting) == 0 {
		return
	}
	err := p.update(context.WithoutCancel(ctx), func(t *tx) error {
		for _, id := range waiting {
			shape, err := p.projectDomain(t.Tx, id)
			if err != nil {
				return err
			}
			if shape != nil {
				t.change(id).shape = shape
			}
		}
		return nil
	})
	if err != nil {
		p.log.WarnContext(ctx, "a range that has become free for the host is not reached yet", "error", err)
	}
}

// noteUnreached remembers what a router's ranges cannot be reached by, and says so when that changes.
func (p *Provider) noteUnreached(ctx context.Context, domain string, list []router.Unreached) {
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

// waitingFor are the domains with a range that the host cannot reach and that overlaps one of freed.
func (q *queue) waitingFor(freed []netip.Prefix) (domains []sdn.ID) {
	if len(freed) == 0 {
		return nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for domain, list := range q.unreached {
		if slices.ContainsFunc(list, func(u router.Unreached) bool { return slices.ContainsFunc(freed, u.Prefix.Overlaps) }) {
			domains = append(domains, sdn.ID(domain))
		}
	}
	return domains
}

func (q *queue) unreachedOf(rt sdn.ID) []sdn.Unreached {
	q.mu.Lock()
	defer q.mu.Unlock()
	var out []sdn.Unreached
	for _, u := range q.unreached[string(rt)] {
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
	wait := backoff.Backoff{Min: firstPause, Max: lastPause}
	for pause := wait.Next(); ; {
		select {
		case <-ctx.Done():
			return nil
		case <-p.queue.failed:
		}
		if backoff.Sleep(ctx, pause) != nil {
			return nil
		}
		err := p.mend(ctx)
		if err == nil {
			wait.Reset()
		}
		if pause = wait.Next(); err != nil {
			p.log.WarnContext(ctx, "the kernel does not follow the store yet", "err", err, "again_in", pause)
		}
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
func (p *Provider) Reconcile(ctx context.Context) (router.Report, error) {
	var report router.Report
	err := p.whole(ctx, func(s router.State) (map[string]*change, error) {
		var err error
		p.told.forgetAll()
		if report, err = p.datapath.Reconcile(ctx, s); err != nil {
			return nil, err
		}
		p.queue.mu.Lock()
		p.queue.dirty = map[string]*change{}
		p.queue.mu.Unlock()
		for _, d := range s.Shapes {
			p.noteUnreached(ctx, d.ID, report.Unreached[d.ID])
		}
		return nil, nil
	})
	return report, err
}

// Check compares the kernel with the store, and changes nothing.
func (p *Provider) Check(ctx context.Context) ([]router.Difference, error) {
	var diff []router.Difference
	err := p.whole(ctx, func(s router.State) (map[string]*change, error) {
		var err error
		diff, err = p.datapath.Diff(ctx, s)
		return nil, err
	})
	return diff, err
}

// whole calls f with the whole state when the kernel is done with everything before, and holds up everything after.
func (p *Provider) whole(ctx context.Context, f func(router.State) (map[string]*change, error)) error {
	if p.datapath == nil {
		return nil
	}
	// No change is committed between the state and the ticket.
	select {
	case p.proposals.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	var state router.State
	var tk *ticket
	err := p.view(func(b engine.Tx) (err error) {
		if state, err = p.projectAll(b); err == nil {
			tk = p.queue.drawAll()
		}
		return err
	})
	<-p.proposals.turn
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
