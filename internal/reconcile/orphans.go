package reconcile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"golang.org/x/time/rate"
)

// relist is the time between two lists of a target's objects.
const relist = time.Hour

// UnknownEngine stands for the engine of rows that no engine has listed.
const UnknownEngine = "unknown"

// Orphan is a row that the last list of its engine did not have. A kept one can be of an engine that
// was not asked: it is deleted only by DeleteOrphans, with the name of that engine.
type Orphan struct {
	Kind, Key string
	Engine    string    // "" if no engine has listed it
	Since     time.Time // of the first list without it; the zero Time if it is kept
	Due       time.Time // of its deletion; the zero Time if it is in use, or if GracePeriod is never
	Why       string    // for people
	Kept      bool
}

// Compare makes Run list the engines, as when they have changed.
func (s *Store) Compare() { notify(s.compare) }

// watchOrphans imports what targets have without a row, and judges the rows by their engines'
// lists, until ctx ends. It waits for Compare, or until the next list of the targets, unless there
// are candidates or a list has failed.
func (s *Store) watchOrphans(ctx context.Context) {
	rounds := rate.NewLimiter(rate.Every(s.cfg.MinBackoff), 1)
	missing := map[string]candidate{}
	var listed time.Time
	for rounds.Wait(ctx) == nil {
		complete := true
		if listed.IsZero() || time.Since(listed) >= relist {
			if complete = s.importAll(ctx); complete {
				listed = time.Now()
			}
		}
		begun := time.Now()
		_, engines, err := s.judge(ctx, missing, s.cfg.GracePeriod)
		s.mu.Lock()
		s.candidates, s.compared = maps.Clone(missing), comparison{begun, engines}
		s.mu.Unlock()
		s.metrics.candidates.Set(float64(len(missing)))
		wait := relist - time.Since(listed)
		switch again := s.cfg.GracePeriod / 2; {
		case again > 0 && (len(missing) > 0 || !complete || err != nil):
			wait = again
		case !complete || err != nil:
			wait = defaultGrace / 2
		}
		select {
		case <-ctx.Done():
		case <-s.compare:
		case <-time.After(wait):
		}
	}
}

// candidate is a row that a complete list of its engine did not have.
type candidate struct {
	gen   uint64    // of the row
	begun time.Time // when that list was asked for
}

// comparison is a round of lists.
type comparison struct {
	begun   time.Time
	engines map[string]bool // those that answered
}

// judge compares the rows with the lists of their engines, each of which is listed once. A row that
// is missing from two lists, which are a time apart and were both begun after its last change, is
// deleted unless it is in use. Less than no time is never. It also returns the engines that answered.
func (s *Store) judge(
	ctx context.Context, missing map[string]candidate, apart time.Duration,
) (deleted []Orphan, answered map[string]bool, err error) {
	rows := s.all() // before the lists, so that each row's last change is older
	begun := time.Now()
	lists := map[Engine]List{}
	answered = map[string]bool{}
	failed := map[Engine]error{}
	for _, k := range s.allKinds() {
		if _, ok := lists[k.engine]; ok || k.engine == nil || failed[k.engine] != nil {
			continue
		}
		if l, err := k.listEngine(ctx); err != nil {
			s.log.DebugContext(ctx, "engine not listed", "kind", k.name, "err", err)
			failed[k.engine] = err
		} else {
			lists[k.engine], answered[l.Engine] = l, true
		}
	}
	engines := map[string]bool{}
	for _, r := range rows {
		engines[r.Engine] = true
	}
	delete(engines, "")
	for name, r := range rows {
		l, ok := lists[r.kind.engine]
		if !ok {
			continue
		}
		sole := len(engines) == 1 && engines[l.Engine]
		if !s.isMissing(name, r, l, sole) {
			delete(missing, name)
			continue
		}
		first, ok := missing[name]
		if !ok || first.gen != r.Gen {
			missing[name] = candidate{r.Gen, begun}
			continue
		}
		if apart < 0 || begun.Sub(first.begun) < apart || s.inUse(r) {
			continue
		}
		delete(missing, name)
		if s.deleteOrphan(ctx, name, r) {
			deleted = append(deleted, s.orphan(r, first))
		}
	}
	maps.DeleteFunc(missing, func(name string, _ candidate) bool { return rows[name] == nil })
	return deleted, answered, errors.Join(slices.Collect(maps.Values(failed))...)
}

func (k *kind) listEngine(ctx context.Context) (List, error) {
	ctx, cancel := context.WithTimeout(ctx, k.timeout)
	defer cancel()
	return k.engine.List(ctx)
}

// isMissing reports whether a row is missing from the list of its engine. A row that is listed gets
// the engine. What no engine has listed can be of an engine that is not known, unless all other rows
// are of this engine and no later call had to do with the row.
func (s *Store) isMissing(name string, r *row, l List, sole bool) bool {
	engine := s.engineOf(r)
	switch {
	case r.Phase != Wanted, engine != "" && engine != l.Engine:
		return false
	case !r.Superseded && r.kind.listed(r, l.Content):
		s.ack(name, l.Engine)
		return false
	}
	return engine != "" || sole && !r.Acked && len(s.children(name)) == 0
}

// engineOf returns the engine of a row, or of its first owner that has one.
func (s *Store) engineOf(r *row) string {
	engine := r.Engine
	for _, owner := range r.Owners {
		if o := s.row(owner); o != nil && engine == "" {
			engine = s.engineOf(o)
		}
	}
	return engine
}

// deleteOrphan commits the deletion of a row that has not changed since it was judged.
func (s *Store) deleteOrphan(ctx context.Context, name string, judged *row) bool {
	unlock, err := s.locks.Lock(ctx, name)
	if err != nil {
		return false
	}
	defer unlock()
	r := s.row(name)
	if r == nil || r.Gen != judged.Gen || r.Phase != Wanted {
		return false
	}
	r = r.deleting(s.nextGen())
	if err := s.commit(ctx, map[string]*row{name: r}); err != nil {
		s.log.WarnContext(ctx, "orphan not deleted", "kind", r.kind.name, "key", r.Key, "err", err)
		return false
	}
	s.metrics.orphans.WithLabelValues(r.kind.name).Inc()
	s.log.InfoContext(ctx, "orphan found", "kind", r.kind.name, "key", r.Key, "engine", r.Engine)
	r.kind.queue.add(name, 0)
	return true
}

// Orphans returns the rows that the last lists of their engines did not have, and those that are
// kept.
func (s *Store) Orphans() (list []Orphan) {
	s.mu.Lock()
	missing, compared := s.candidates, s.compared
	s.mu.Unlock()
	for name, r := range s.all() {
		if _, candidate := missing[name]; !candidate && s.isKept(r, compared) {
			list = append(list, s.keptOrphan(r))
		}
	}
	for name, c := range missing {
		if r := s.row(name); r != nil && r.Gen == c.gen {
			list = append(list, s.orphan(r, c))
		}
	}
	slices.SortFunc(list, func(a, b Orphan) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Key, b.Key))
	})
	return list
}

// isKept reports whether a row is of none of the engines that answered.
func (s *Store) isKept(r *row, c comparison) bool {
	return r.Phase == Wanted && r.kind.engine != nil && !r.changed.After(c.begun) &&
		len(c.engines) > 0 && !c.engines[s.engineOf(r)]
}

func (s *Store) keptOrphan(r *row) Orphan {
	o := Orphan{Kind: r.kind.name, Key: r.Key, Engine: s.engineOf(r), Kept: true}
	if o.Why = "another engine has listed it"; o.Engine == "" {
		o.Why = "no engine has listed it"
	}
	if s.inUse(r) {
		o.Why += ", and it is in use"
	}
	return o
}

func (s *Store) orphan(r *row, c candidate) Orphan {
	o := Orphan{
		Kind: r.kind.name, Key: r.Key, Engine: s.engineOf(r), Since: c.begun,
		Why: "its engine does not list it",
	}
	if o.Engine == "" {
		o.Why = "no engine has listed it"
	}
	if s.inUse(r) {
		o.Why += ", and it is in use"
	} else if s.cfg.GracePeriod > 0 {
		o.Due = c.begun.Add(s.cfg.GracePeriod)
	}
	return o
}

// DeleteOrphans deletes the rows that two lists of their engine do not have that are made now. If
// gone is not "", it deletes instead the rows of this engine, which will never answer again, or
// those that no engine has listed. Rows that are in use stay, and those that have changed within
// StaleAfter. Run calls the targets.
func (s *Store) DeleteOrphans(ctx context.Context, gone string) ([]Orphan, error) {
	end, err := s.begin()
	if err != nil {
		return nil, err
	}
	defer end()
	if gone != "" {
		return s.deleteRowsOf(ctx, gone)
	}
	missing := map[string]candidate{}
	if _, _, err := s.judge(ctx, missing, -1); err != nil {
		return nil, err
	}
	maps.DeleteFunc(missing, func(name string, _ candidate) bool { return s.isRecent(s.row(name)) })
	deleted, _, err := s.judge(ctx, missing, 0)
	return deleted, err
}

func (s *Store) isRecent(r *row) bool {
	return r == nil || time.Since(r.changed) < r.kind.staleAfter
}

// deleteRowsOf deletes the rows of an engine, which must not be one that answers.
func (s *Store) deleteRowsOf(ctx context.Context, engine string) (deleted []Orphan, err error) {
	// A list gives its rows their engine.
	_, answered, err := s.judge(ctx, map[string]candidate{}, -1)
	switch {
	case answered[engine]:
		return nil, fmt.Errorf("engine %s is running", engine)
	case engine == UnknownEngine && err != nil:
		return nil, err
	case engine == UnknownEngine:
		engine = ""
	}
	for name, r := range s.all() {
		if r.Phase != Wanted || s.engineOf(r) != engine || s.isRecent(r) || s.inUse(r) ||
			engine == "" && r.kind.engine == nil {
			continue
		}
		o := s.orphan(r, candidate{r.Gen, time.Now()})
		if engine != "" {
			o.Why = "its engine is gone"
		}
		if s.deleteOrphan(ctx, name, r) {
			deleted = append(deleted, o)
		}
	}
	return deleted, nil
}

// isStale reports whether a Wanted row in another's way can be deleted.
func (s *Store) isStale(ctx context.Context, r *row) (bool, error) {
	if s.isRecent(r) || s.inUse(r) {
		return false, nil
	}
	return r.kind.stale(ctx, r)
}

// isUnlisted reports whether the engine does not list a row.
func (k *kind) isUnlisted(ctx context.Context, r *row) (bool, error) {
	if k.engine == nil {
		return false, nil
	}
	l, err := k.listEngine(ctx)
	if err != nil {
		return false, fmt.Errorf("list the engine: %w", err)
	}
	return k.store.isMissing(r.ref(), r, l, false), nil
}

// inUse reports whether something outside the engine uses the object of a row, or of one that it
// owns.
func (s *Store) inUse(r *row) bool {
	return r.kind.inUse(r) || slices.ContainsFunc(s.children(r.ref()), func(child string) bool {
		c := s.row(child)
		return c != nil && s.inUse(c)
	})
}
