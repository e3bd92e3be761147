package local

import (
	"context"
	"slices"
	"time"

	"github.com/kuryr/kuryr/datapath/router"
	"github.com/kuryr/kuryr/internal/backoff"
	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/engine"
)

// The pause between two attempts of Run in a domain.
const (
	firstPause = time.Second
	lastPause  = time.Minute
)

// Run applies in the background what the data path refused, until the context ends. It is woken by a
// failure. Each domain is tried again with growing pauses of its own.
func (p *Provider) Run(ctx context.Context) error {
	for {
		var due <-chan time.Time
		if next := p.sync.nextAttempt(); !next.IsZero() {
			due = time.After(time.Until(next))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-p.sync.failed:
		case now := <-due:
			for _, c := range p.sync.retries(func(t *target) bool { return !t.due.IsZero() && !t.due.After(now) }) {
				if err := p.sync.wait(ctx, []*claim{c}); err != nil {
					p.log.WarnContext(ctx, "data path behind the store", "router", c.target.id, "err", err)
				}
			}
		}
	}
}

// nextAttempt returns when Run is next to try again what has failed; zero if nothing has.
func (s *syncer) nextAttempt() (next time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	pauses := backoff.Backoff{Min: firstPause, Max: lastPause}
	for _, t := range s.domains {
		if len(t.failed) == 0 {
			continue
		}
		if t.due.IsZero() {
			t.attempts++
			t.due = time.Now().Add(pauses.After(t.attempts))
		}
		if next.IsZero() || t.due.Before(next) {
			next = t.due
		}
	}
	return next
}

// retries returns claims in rounds of domains with parts that have failed, of those for which when is true. The
// rounds have started.
func (s *syncer) retries(when func(*target) bool) (claims []*claim) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.domains {
		if len(t.failed) > 0 && when(t) {
			t.due = time.Time{}
			c := &claim{target: t, retry: true}
			c.enqueue()
			s.start(t)
			claims = append(claims, c)
		}
	}
	return claims
}

// Reconcile makes the whole kernel state be what the store says. Later changes wait for it. What it cannot
// repair is tried again by Run.
func (p *Provider) Reconcile(ctx context.Context) (router.Report, error) {
	var report router.Report
	err := p.sync.whole(ctx, func(state router.State) (err error) {
		report, err = p.datapath.Reconcile(ctx, state)
		p.sync.take(ctx, state, report, err)
		return err
	})
	return report, err
}

// Check compares the kernel with the store, and changes nothing. It leaves out what is just being changed.
func (p *Provider) Check(ctx context.Context) ([]router.Difference, error) {
	var diff []router.Difference
	err := p.sync.whole(ctx, func(state router.State) (err error) {
		changing := p.sync.changing()
		diff, err = p.datapath.Diff(ctx, state)
		diff = slices.DeleteFunc(diff, func(d router.Difference) bool {
			return changing[sdn.ID(d.Router)] || d.Router == "" && len(changing) > 0
		})
		return err
	})
	return diff, err
}

// changing returns the domains with parts that the store has and the data path may not have yet.
func (s *syncer) changing() map[sdn.ID]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	domains := map[sdn.ID]bool{}
	for id, t := range s.domains {
		if len(t.busy) > 0 {
			domains[id] = true
		}
	}
	return domains
}

// whole calls f with everything that is in the store while no round is at work. The data path has all
// changes that were complete when whole was called. Later ones are stored, and their rounds wait for f.
func (s *syncer) whole(ctx context.Context, f func(router.State) error) error {
	if s.p.datapath == nil {
		return nil
	}
	if !s.enter() {
		return errClosing
	}
	defer s.work.Done()
	if err := s.drain(ctx); err != nil {
		return err
	}
	if err := s.gate.Acquire(ctx, wholeGate); err != nil {
		return err
	}
	defer s.gate.Release(wholeGate)
	if s.isClosing() {
		return errClosing
	}
	var state router.State
	err := s.p.view(func(b engine.Tx) (err error) {
		state, err = s.p.projectAll(b)
		return err
	})
	if err != nil {
		return err
	}
	return f(state)
}

// errClosing is the error of what may not begin any more.
var errClosing = sdn.Unavailable(nil, "data path", "the provider is closing")

// enter lets quiesce wait until work.Done is called, unless it has begun.
func (s *syncer) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closing {
		s.work.Add(1)
	}
	return !s.closing
}

func (s *syncer) isClosing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closing
}

// drain waits for the rounds that have claims. Their errors are those of their callers.
func (s *syncer) drain(ctx context.Context) error {
	var claims []*claim
	s.mu.Lock()
	for _, t := range s.domains {
		if t.next != nil {
			c := &claim{target: t}
			c.enqueue()
			claims = append(claims, c)
		}
	}
	s.mu.Unlock()
	for _, c := range claims {
		if err := s.await(ctx, c); err != nil && ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return nil
}
