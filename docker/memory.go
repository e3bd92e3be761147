package docker

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/sdn"
)

// fresh is how long what was changed last is left alone by who wants everything removed at once: the engine may be about to use it.
const fresh = 10 * time.Second

// Memory removes what an engine has forgotten: what it was found not to have twice, the second time when a grace time was over. It
// keeps nothing but the findings: a restart begins anew.
type Memory struct {
	driver *Driver
	engine Engine
	grace  time.Duration
	now    func() time.Time
	log    *slog.Logger

	mu       sync.Mutex // of all below, and of comparing
	suspects map[string]*suspect
}

// suspect is something that was found missing.
type suspect struct {
	first time.Time
	times int
	tried int // to remove it, in vain
}

// Suspect is something forgotten, for people.
type Suspect struct {
	Forgotten
	Since time.Time // found first; zero: just now
	Due   time.Time // when it will be removed; zero: never by itself
}

// NewMemory makes a Memory that removes what was missing for the grace time; 0 removes nothing.
func NewMemory(d *Driver, e Engine, grace time.Duration) *Memory {
	return &Memory{driver: d, engine: e, grace: grace, now: time.Now, log: d.log, suspects: map[string]*suspect{}}
}

// Compare compares once and removes what is due. It tells when to look again, zero for never. An error of the engine leaves
// all as it was.
func (m *Memory) Compare(ctx context.Context) (next time.Time, err error) {
	ctx = sdn.Unawaited(ctx) // who counts the calls of Docker's would count these
	m.mu.Lock()
	defer m.mu.Unlock()
	c, err := m.driver.Forgotten(ctx, m.engine)
	if err != nil {
		return time.Time{}, err
	}
	errs := []error{m.driver.rememberAll(ctx, c)}
	found := map[string]*suspect{}
	now, left := m.now(), 0
	for _, f := range c.Forgotten {
		s := m.suspects[f.key()]
		if s == nil {
			s = &suspect{first: now}
			m.log.InfoContext(ctx, "Docker does not have what Kuryr keeps for it", "noun", f.Noun, "name", f.Name, "why", f.Why, "kept", f.Kept, "grace", m.grace)
		}
		s.times++
		due, may := m.due(f, s)
		if may && s.times > 1 && !now.Before(due) {
			if err = m.remove(ctx, f, now.Sub(s.first)); err == nil {
				continue
			}
			if !errors.As(err, &stayed{}) {
				s.tried++
				due = now.Add(m.grace << min(s.tried, 5))
				s.first = due.Add(-m.grace)
				errs = append(errs, err)
			} else {
				s.first, s.times = now, 1
				due = now.Add(m.grace)
			}
		}
		left++
		found[f.key()] = s
		if may && (next.IsZero() || due.Before(next)) {
			next = due
		}
	}
	m.suspects = found
	m.driver.metrics.suspected(left)
	if look := m.driver.settleBegun(c, now); !look.IsZero() && (next.IsZero() || look.Before(next)) {
		next = look
	}
	return next, errors.Join(errs...)
}

// due is when a suspect may be removed, if ever.
func (m *Memory) due(f Forgotten, s *suspect) (time.Time, bool) {
	if m.grace <= 0 || f.Kept != "" {
		return time.Time{}, false
	}
	due := s.first.Add(m.grace)
	if due.Before(f.NotBefore) {
		due = f.NotBefore
	}
	return due, true
}

func (m *Memory) remove(ctx context.Context, f Forgotten, age time.Duration) error {
	if err := m.driver.Forget(ctx, f); err != nil {
		m.log.WarnContext(ctx, "what Docker has forgotten is not removed", "noun", f.Noun, "name", f.Name, "error", err)
		return err
	}
	m.driver.metrics.removed(f.Noun)
	m.log.WarnContext(ctx, "removed what Docker has forgotten", "noun", f.Noun, "name", f.Name, "id", f.ID, "why", f.Why, "missing_for", age.Round(time.Second))
	return nil
}

// Report compares and tells, without counting it as a sighting.
func (m *Memory) Report(ctx context.Context) (Comparison, []Suspect, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c, err := m.driver.Forgotten(ctx, m.engine)
	if err != nil {
		return c, nil, err
	}
	var all []Suspect
	for _, f := range c.Forgotten {
		r := Suspect{Forgotten: f}
		if s := m.suspects[f.key()]; s != nil {
			r.Since = s.first
			r.Due, _ = m.due(f, s)
		}
		all = append(all, r)
	}
	return c, all, nil
}

// Removed is what came of removing one thing.
type Removed struct {
	Forgotten
	Err error // it stays
}

// ForgetNow removes what is due, and if all is asked for what is not due yet too. engine names an engine that is gone for good:
// what it had is removed as well; "unknown" is what none was seen to have, "swarm" what other nodes of the swarm may have. It compares twice, and what was changed lately stays.
func (m *Memory) ForgetNow(ctx context.Context, all bool, engine string) ([]Removed, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	before, err := m.driver.Forgotten(ctx, m.engine)
	if err != nil {
		return nil, err
	}
	now, err := m.driver.Forgotten(ctx, m.engine)
	if err != nil {
		return nil, err
	}
	if engine = identity.EngineName(engine); engine == now.Engine {
		return nil, errors.New("that is the engine that answers")
	}
	var done []Removed
	for _, f := range now.Forgotten {
		if !slices.ContainsFunc(before.Forgotten, func(b Forgotten) bool { return b.key() == f.key() }) || !m.wanted(f, all, engine) {
			continue
		}
		r := Removed{Forgotten: f}
		if r.Err = m.remove(ctx, f, m.now().Sub(f.Updated)); r.Err == nil {
			delete(m.suspects, f.key())
		}
		done = append(done, r)
	}
	m.driver.metrics.suspected(max(0, len(now.Forgotten)-len(done)))
	return done, nil
}

// wanted tells whether somebody who asks has a finding removed.
func (m *Memory) wanted(f Forgotten, all bool, engine string) bool {
	if f.Connected || m.now().Before(f.NotBefore) {
		return false
	}
	if f.Kept != "" {
		had := f.Engine
		if had == "" {
			had = unknownEngine
		}
		return engine != "" && had == engine && m.now().Sub(f.Updated) > fresh
	}
	if all {
		return m.now().Sub(f.Updated) > fresh
	}
	s := m.suspects[f.key()]
	if s == nil {
		return false
	}
	due, may := m.due(f, s)
	return may && !m.now().Before(due)
}

// Who asks for what is gone for good names these where there is no engine to name: of what none was seen to have, and of what
// other nodes of a swarm may have.
const (
	unknownEngine = "unknown"
	swarmEngine   = "swarm"
)

// rememberAll notes on networks and pools that the engine has them.
func (d *Driver) rememberAll(ctx context.Context, c Comparison) error {
	var errs []error
	for _, n := range c.seen {
		errs = append(errs, d.remember(ctx, c.Engine, n))
	}
	for _, p := range c.used {
		errs = append(errs, ignoreAbsent(d.changePool(ctx, p, func(tags []string) ([]string, bool) { return withEngine(tags, c.Engine) })))
	}
	return errors.Join(errs...)
}
