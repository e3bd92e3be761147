package reconcile

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// relist is the time between two lists of a target's objects.
const relist = time.Hour

// watchOrphans imports what targets have without a row, and judges the rows by their engines'
// lists, until ctx ends.
func (s *Store) watchOrphans(ctx context.Context) {
	missing := map[string]candidate{}
	var listed time.Time
	for {
		if listed.IsZero() || time.Since(listed) >= relist {
			if s.importAll(ctx) {
				listed = time.Now()
			}
		}
		s.judge(ctx, missing)
		select {
		case <-ctx.Done():
			return
		case <-time.After(s.cfg.GracePeriod / 2):
		}
	}
}

// candidate is a row that a complete list of its engine did not have.
type candidate struct {
	gen   uint64    // of the row
	begun time.Time // when that list was asked for
}

// judge compares each kind's rows with a list of its engine. A row that is missing from two
// lists, GracePeriod apart and both begun after its last change, is deleted unless it is in use.
func (s *Store) judge(ctx context.Context, missing map[string]candidate) {
	for _, k := range s.allKinds() {
		if k.engine == nil {
			continue
		}
		rows := s.snapshot(k) // before the list, so that each row's last change is older
		begun := time.Now()
		l, err := k.listEngine(ctx)
		if err != nil {
			s.log.Debug("engine not listed", "kind", k.name, "err", err)
			continue
		}
		for _, r := range rows {
			s.judgeRow(ctx, r, l, begun, missing)
		}
	}
	for name := range missing {
		if s.row(name) == nil {
			delete(missing, name)
		}
	}
	s.metrics.candidates.Set(float64(len(missing)))
}

func (k *kind) listEngine(ctx context.Context) (listing, error) {
	ctx, cancel := context.WithTimeout(ctx, k.timeout)
	defer cancel()
	return k.engine(ctx)
}

func (s *Store) judgeRow(ctx context.Context, r *row, l listing, begun time.Time, missing map[string]candidate) {
	name := r.ref()
	listed := !r.Superseded && l.has(r)
	if r.Phase != Wanted || r.Engine != l.engine || listed {
		delete(missing, name)
		if r.Phase == Wanted && r.Engine == l.engine {
			s.ack(name)
		}
		return
	}
	first, ok := missing[name]
	if !ok || first.gen != r.Gen {
		missing[name] = candidate{r.Gen, begun}
		return
	}
	if begun.Sub(first.begun) < s.cfg.GracePeriod || s.inUse(r) {
		return
	}
	delete(missing, name)
	s.deleteOrphan(ctx, name, r)
}

// deleteOrphan commits the deletion of a row that has not changed since it was judged.
func (s *Store) deleteOrphan(ctx context.Context, name string, judged *row) {
	unlock, err := s.locks.Lock(ctx, name)
	if err != nil {
		return
	}
	defer unlock()
	r := s.row(name)
	if r == nil || r.Gen != judged.Gen || r.Phase != Wanted {
		return
	}
	r = r.deleting(s.nextGen())
	if err := s.commit(ctx, map[string]*row{name: r}); err != nil {
		s.log.WarnContext(ctx, "orphan not deleted", "kind", r.kind.name, "key", r.Key, "err", err)
		return
	}
	s.metrics.orphans.WithLabelValues(r.kind.name).Inc()
	s.log.InfoContext(ctx, "orphan found", "kind", r.kind.name, "key", r.Key, "engine", r.Engine)
	r.kind.queue.add(name, 0)
}

// isStale reports whether a Wanted row in another's way can be deleted.
func (s *Store) isStale(ctx context.Context, r *row) (bool, error) {
	if time.Since(r.changed) < r.kind.staleAfter || s.inUse(r) {
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
	return r.Engine == l.engine && !l.has(r), nil
}

// inUse reports whether something outside the engine uses the object of a row, or of one that it
// owns.
func (s *Store) inUse(r *row) bool {
	return r.kind.inUse(r) || slices.ContainsFunc(s.children(r.ref()), func(child string) bool {
		c := s.row(child)
		return c != nil && s.inUse(c)
	})
}
