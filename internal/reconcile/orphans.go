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

	"github.com/kuryr/kuryr/internal/sortslice"
)

// relist is the time between two lists of a target's objects.
const relist = time.Hour

// UnknownEngine stands for the engine of rows that no engine has listed.
const UnknownEngine = "unknown"

// unlistedAge is the age from which a row that no engine has listed can be an orphan: its engine may
// be creating what needs it.
const unlistedAge = time.Minute

// Orphan is a row that the list of its engine does not have. A kept one can be of an engine that
// was not asked: it is deleted only by DeleteOrphans, with the name of that engine.
type Orphan struct {
	Kind, Key string
	Engine    string    // "" if no engine has listed it
	Since     time.Time // of Run's first list without it; the zero Time if there is none
	Due       time.Time // of its deletion; the zero Time if it is not planned
	Changed   time.Time // of the last Set by this process
	Kept      bool
	InUse     bool
	Err       error // of DeleteOrphans: the deletion is stored, and will be repeated
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
		_, _, err := s.judge(ctx, missing, s.cfg.GracePeriod)
		s.mu.Lock()
		s.candidates = maps.Clone(missing)
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
	s.ackListed(ctx, rows, lists)
	sole := s.soleEngine(rows, lists)
	for name, r := range rows {
		l, ok := lists[r.kind.engine]
		if !ok {
			continue
		}
		if !s.isMissing(r, l, l.Engine == sole) {
			delete(missing, name)
			continue
		}
		first, ok := missing[name]
		if !ok || first.gen != r.Gen {
			missing[name] = candidate{r.Gen, begun}
			continue
		}
		if apart < 0 || begun.Sub(first.begun) < apart || s.inUse(r) || s.isYoung(r) {
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

// ackListed commits that the engines have listed rows: rows that they had they may lose.
func (s *Store) ackListed(ctx context.Context, rows map[string]*row, lists map[Engine]List) {
	acked := false
	for name, r := range rows {
		l, ok := lists[r.kind.engine]
		if ok && r.Phase == Wanted && s.isListed(r, l) && s.ack(name, l.Engine) {
			acked = true
		}
	}
	if !acked {
		return
	}
	if err := s.flush(nil); err != nil {
		s.log.WarnContext(ctx, "engine of rows not stored", "err", err)
	}
}

// soleEngine returns the engine that has listed rows, if no row speaks of another: one of another
// engine, or one that is used and that the lists do not have. Otherwise it returns "".
func (s *Store) soleEngine(rows map[string]*row, lists map[Engine]List) (sole string) {
	for _, r := range rows {
		engine := r.Engine
		if l, ok := lists[r.kind.engine]; ok && r.Phase == Wanted {
			switch {
			case s.isListed(r, l):
				engine = l.Engine
			case s.engineOf(r) == "" && r.kind.used(r) && !s.isUnanswered(r):
				return ""
			}
		}
		if engine != "" && sole != "" && engine != sole {
			return ""
		}
		sole = cmp.Or(sole, engine)
	}
	return sole
}

func (s *Store) isListed(r *row, l List) bool { return !r.Superseded && r.kind.listed(r, l.Content) }

// isMissing reports whether a row is missing from the list of its engine. What no engine has listed
// can be of an engine that is not known, unless no engine was answered, or it was never used and
// nothing speaks of another engine. The same holds of what it owns.
func (s *Store) isMissing(r *row, l List, sole bool) bool {
	engine := s.engineOf(r)
	switch {
	case r.Phase != Wanted, s.isListed(r, l), engine != "" && engine != l.Engine:
		return false
	case engine != "":
		return true
	}
	needed := func(c *row) bool {
		return c.Phase == Wanted && (c.kind.engine != r.kind.engine || !s.isMissing(c, l, sole))
	}
	return (s.isUnanswered(r) || sole && !r.kind.used(r)) && !s.anyChild(r, needed)
}

// anyChild reports whether something is so of a row that another owns.
func (s *Store) anyChild(owner *row, is func(*row) bool) bool {
	return slices.ContainsFunc(s.children(owner.ref()), func(child string) bool {
		c := s.row(child)
		return c != nil && is(c)
	})
}

// isUnanswered reports whether no engine can have a row, as none got an answer.
func (s *Store) isUnanswered(r *row) bool { return !r.Done && !r.Redo || s.isUnheard(r) }

// isUnheard reports whether no engine heard of a row, or of one of its owners.
func (s *Store) isUnheard(r *row) bool {
	return r.Unheard || slices.ContainsFunc(r.Owners, func(owner string) bool {
		o := s.row(owner)
		return o != nil && s.isUnheard(o)
	})
}

// isYoung reports whether the engine that has asked for a row, or for one that it owns, may be about
// to list it.
func (s *Store) isYoung(r *row) bool {
	return s.engineOf(r) == "" && time.Since(r.changed) < unlistedAge || s.anyChild(r, s.isYoung)
}

// engineOf returns the engine of a row: that of its first owner that has one, which a list has moved
// to the engine's new identity; otherwise its own.
func (s *Store) engineOf(r *row) string {
	for _, owner := range r.Owners {
		if o := s.row(owner); o != nil {
			if engine := s.engineOf(o); engine != "" {
				return engine
			}
		}
	}
	return r.Engine
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

// Orphans lists the engines, and returns the rows that the lists do not have and those that are
// kept. Run begins their grace period.
func (s *Store) Orphans(ctx context.Context) (list []Orphan, err error) {
	end, err := s.begin()
	if err != nil {
		return nil, err
	}
	defer end()
	begun := time.Now()
	missing := map[string]candidate{}
	_, engines, err := s.judge(ctx, missing, -1)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	candidates := s.candidates
	s.mu.Unlock()
	for name, r := range s.all() {
		c, ok := missing[name]
		switch {
		case ok && c.gen != r.Gen:
		case ok:
			if c = candidates[name]; c.gen != r.Gen {
				c = candidate{}
				s.Compare()
			}
			list = append(list, s.orphan(r, c))
		case r.Phase == Wanted && r.kind.engine != nil && !r.changed.After(begun) && !engines[s.engineOf(r)]:
			o := s.orphan(r, candidate{})
			o.Kept = true
			list = append(list, o)
		}
	}
	sortslice.Func(list, func(a, b Orphan) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Key, b.Key))
	})
	return list, nil
}

func (s *Store) orphan(r *row, c candidate) Orphan {
	o := Orphan{
		Kind: r.kind.name, Key: r.Key, Engine: s.engineOf(r), Since: c.begun, Changed: r.changed,
		InUse: s.inUse(r),
	}
	if s.cfg.GracePeriod > 0 && !o.InUse && !c.begun.IsZero() {
		o.Due = c.begun.Add(s.cfg.GracePeriod)
		if young := r.changed.Add(unlistedAge); o.Engine == "" && o.Due.Before(young) {
			o.Due = young
		}
	}
	return o
}

// DeleteOrphans deletes the rows that two lists of their engine do not have that are made now. If
// gone is not "", it deletes instead the rows of this engine, which will never answer again, or
// those that no engine has listed. Rows that are in use or too young stay, and those that have
// changed within StaleAfter. One attempt is made within ctx.
func (s *Store) DeleteOrphans(ctx context.Context, gone string) ([]Orphan, error) {
	end, err := s.begin()
	if err != nil {
		return nil, err
	}
	defer end()
	var deleted []Orphan
	if gone != "" {
		deleted, err = s.deleteRowsOf(ctx, gone)
	} else {
		deleted, err = s.deleteMissing(ctx)
	}
	wanted := func(context.Context, *row) (bool, error) { return false, nil } // a later incarnation
	for i, o := range deleted {
		deleted[i].Err = s.remove(ctx, ref(o.Kind, o.Key), removal{met: wanted})
	}
	return deleted, err
}

func (s *Store) deleteMissing(ctx context.Context) ([]Orphan, error) {
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
		if r.Phase != Wanted || s.engineOf(r) != engine || s.isRecent(r) || s.inUse(r) || s.isYoung(r) ||
			engine == "" && r.kind.engine == nil {
			continue
		}
		if s.deleteOrphan(ctx, name, r) {
			deleted = append(deleted, s.orphan(r, candidate{r.Gen, time.Now()}))
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
	return k.store.isMissing(r, l, false), nil
}

// inUse reports whether something outside the engine uses the object of a row, or of one that it
// owns.
func (s *Store) inUse(r *row) bool { return r.kind.inUse(r) || s.anyChild(r, s.inUse) }
