package reconcile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// listTimeout is for a list of all objects, which can be many calls of the SDN.
const listTimeout = 5 * time.Minute

// importAll makes a row of each object that has none. It reports whether every list was complete
// and every object has a row.
func (s *Store) importAll(ctx context.Context) bool {
	complete := true
	for _, k := range s.allKinds() {
		if k.list == nil {
			continue
		}
		if err := k.importObjects(ctx); err != nil {
			s.log.WarnContext(ctx, "objects not imported", "kind", k.name, "err", err)
			complete = false
		} else if !k.imported.Swap(true) {
			k.retry() // what waited for it
		}
	}
	return complete
}

// importObjects goes on after an object that cannot be imported, and then returns an error.
func (k *kind) importObjects(ctx context.Context) error {
	s := k.store
	s.watchChanges(true)
	defer s.watchChanges(false)
	found, err := k.listObjects(ctx)
	if err != nil {
		return err
	}
	has := map[Object]bool{}
	for _, r := range found {
		has[Object{Key: r.Key, Incarnation: r.Incarnation}] = true
	}
	// The newest incarnation of a key gets its row.
	slices.SortFunc(found, func(a, b *row) int { return cmp.Compare(b.Incarnation, a.Incarnation) })
	var errs []error
	for _, r := range found {
		if err := k.importObject(ctx, r, has); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(append(errs, s.flush(nil))...)
}

func (k *kind) listObjects(ctx context.Context) (found []*row, err error) {
	ctx, cancel := context.WithTimeout(ctx, max(k.timeout, listTimeout))
	defer cancel()
	for r, err := range k.list(ctx) {
		if err != nil {
			return nil, err
		}
		found = append(found, r)
	}
	return found, nil
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

// importObject makes a row of an object that has none. Where the key has a row of another
// incarnation whose object is gone, that row takes the object over, as after the database was
// restored from a backup. Otherwise the object is of an earlier incarnation. The row of a Set that
// was not answered gets what the list says of its object.
func (k *kind) importObject(ctx context.Context, r *row, has map[Object]bool) error {
	s, name := k.store, ref(k.name, r.Key)
	unlock, err := s.locks.Lock(ctx, name)
	if err != nil {
		return err
	}
	defer unlock()
	r.kind = k
	s.mu.Lock()
	s.gen = max(s.gen, r.Incarnation)
	old, touched := s.rows[name], s.touched[name]
	touched = touched || slices.ContainsFunc(r.held(), func(c string) bool { return s.touched[touchedClaim+c] })
	s.mu.Unlock()
	r.Gen, r.Boot, r.Done = s.nextGen(), s.boot, true
	switch {
	case s.row(r.superseded().ref()) != nil:
		return nil
	case old != nil && old.Incarnation == r.Incarnation:
		if old.Phase == Wanted && !old.Done && !touched {
			// The answer was lost. A Redo is still due.
			s.note(name, old.with(func(row *row) { row.Last = r.Last }))
		}
		return nil
	case touched:
		return fmt.Errorf("%s has changed since the list", name)
	case old == nil:
		r.Acked = true // an engine that is not asked may use it
	case old.Phase == Deleting && r.Incarnation > old.Incarnation:
		s.note(old.superseded().ref(), old.superseded())
		k.queue.add(old.superseded().ref(), 0)
	case old.Phase == Wanted && !has[Object{Key: old.Key, Incarnation: old.Incarnation}]:
		r.Acked, r.Engine = old.Acked, old.Engine
	default:
		r = r.superseded()
	}
	r = s.claimImported(ctx, r)
	s.log.InfoContext(ctx, "object imported", "kind", k.name, "key", r.Key)
	s.note(r.ref(), r)
	if r.Phase == Deleting {
		k.queue.add(r.ref(), 0)
	}
	return nil
}

// importRows is Kind.Import and Kind.ImportFound. It commits what find returns for the keys that
// have no row, and returns how many rows that are.
func (s *Store) importRows(
	ctx context.Context, names []string, find func(name string) (*row, error),
) (imported int, err error) {
	has := func(name string) bool { return s.row(name) != nil }
	names = slices.DeleteFunc(names, has) // a target that imports its own row holds the lock
	unlock, err := s.locks.LockAll(ctx, names...)
	if err != nil {
		return 0, err
	}
	defer unlock()
	rows := map[string]*row{}
	for _, name := range slices.DeleteFunc(names, has) {
		r, err := find(name)
		if err != nil {
			return 0, err
		}
		if r != nil {
			rows[name] = r
		}
	}
	for name, r := range rows {
		rows[name] = s.claimImported(ctx, r)
	}
	if err := s.commit(ctx, rows); err != nil {
		for name, r := range rows {
			s.unclaim(name, r)
		}
		return 0, err
	}
	for name, r := range rows {
		if r.Phase == Deleting {
			r.kind.queue.add(name, s.cfg.MinBackoff) // a caller may attempt it itself
		}
	}
	return len(rows), nil
}

// claimImported reserves the claims of a row that is imported, or returns it without claims if
// another row has one. Its owners may have no row yet.
func (s *Store) claimImported(ctx context.Context, r *row) *row {
	s.mu.Lock()
	held, holder := s.tryClaim(r.ref(), r)
	s.mu.Unlock()
	if held == "" {
		return r
	}
	s.log.WarnContext(ctx, "imported row has a resource of another", "kind", r.kind.name,
		"key", r.Key, "resource", held, "holder", holder)
	return r.with(func(r *row) { r.Claims = nil })
}
