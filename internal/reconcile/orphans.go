package reconcile

import (
	"cmp"
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
				s.imported.Store(true)
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
	for _, k := range s.kinds {
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
	if begun.Sub(first.begun) < s.cfg.GracePeriod || r.kind.inUse != nil && r.kind.inUse(r) {
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
	s.queue.add(name, 0)
}

// settleTime is how long an engine may take to note an answer: until then it is not asked for a
// row.
const settleTime = 10 * time.Second

// isStale reports whether a Wanted row in another's way can be deleted: its engine does not list
// it, and nothing uses it.
func (s *Store) isStale(ctx context.Context, r *row) (bool, error) {
	k := r.kind
	if k.engine == nil || k.inUse == nil || k.inUse(r) || time.Since(r.changed) < settleTime {
		return false, nil
	}
	l, err := k.listEngine(ctx)
	if err != nil {
		return false, fmt.Errorf("list the engine: %w", err)
	}
	return r.Engine == l.engine && !l.has(r), nil
}

// importAll makes a row of each object that has none. It reports whether every list was complete
// and every object has a row.
func (s *Store) importAll(ctx context.Context) bool {
	complete := true
	for _, k := range s.kinds {
		if k.list == nil {
			continue
		}
		if err := s.importKind(ctx, k); err != nil {
			s.log.WarnContext(ctx, "objects not listed", "kind", k.name, "err", err)
			complete = false
		}
	}
	return complete
}

func (s *Store) importKind(ctx context.Context, k *kind) error {
	ctx, cancel := context.WithTimeout(ctx, k.timeout)
	defer cancel()
	s.watchChanges(true)
	defer s.watchChanges(false)
	var found []*row
	has := map[Object]bool{}
	for r, err := range k.list(ctx) {
		if err != nil {
			return err
		}
		found = append(found, r)
		has[r.Object] = true
	}
	// The newest incarnation of a key gets its row.
	slices.SortFunc(found, func(a, b *row) int { return cmp.Compare(b.Incarnation, a.Incarnation) })
	for _, r := range found {
		if err := s.importRow(ctx, k, r, has); err != nil {
			return err
		}
	}
	return nil
}

// watchChanges notes which rows change, because a list does not tell what it was before or after.
func (s *Store) watchChanges(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.touched = nil
	if on {
		s.touched = map[string]bool{}
	}
}

// importRow makes a row of an object that has none. Where the key has a row of another
// incarnation whose object is gone, that row takes the object over, as after the database was
// restored from a backup. Otherwise the object is of an earlier incarnation.
func (s *Store) importRow(ctx context.Context, k *kind, r *row, has map[Object]bool) error {
	name := ref(k.name, r.Key)
	unlock, err := s.locks.Lock(ctx, name)
	if err != nil {
		return err
	}
	defer unlock()
	s.mu.Lock()
	old, touched := s.rows[name], s.touched[name]
	s.mu.Unlock()
	gen := s.nextGen()
	r.kind, r.Gen, r.Boot, r.Done = k, gen, s.boot, true
	changes := map[string]*row{}
	switch {
	case s.row(r.superseded().ref()) != nil:
		return nil
	case touched && (old == nil || old.Object != r.Object):
		return fmt.Errorf("%s: it has changed since", name)
	case old == nil:
	case old.Object == r.Object:
		return nil
	case old.Phase == Deleting && r.Incarnation > old.Incarnation:
		changes[old.superseded().ref()] = old.superseded()
	case old.Phase == Wanted && !has[old.Object]:
		next := old.with(func(o *row) { o.Gen, o.Incarnation = gen, r.Incarnation })
		return s.commit(ctx, map[string]*row{name: next})
	default:
		r = r.superseded()
	}
	if held, holder := s.tryClaim(name, r); held != "" {
		s.log.WarnContext(ctx, "imported object has a resource of another", "kind", k.name,
			"key", r.Key, "resource", held, "holder", holder)
		r.Claims = nil
	}
	s.log.InfoContext(ctx, "object imported", "kind", k.name, "key", r.Key)
	s.mu.Lock()
	s.gen = max(s.gen, r.Incarnation)
	s.mu.Unlock()
	changes[r.ref()] = r
	if err := s.commit(ctx, changes); err != nil {
		return err
	}
	for ref, r := range changes {
		if r.Phase == Deleting {
			s.queue.add(ref, 0)
		}
	}
	return nil
}
