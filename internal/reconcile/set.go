package reconcile

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// setting is how a row is set.
type setting struct {
	later    bool // Run calls the target
	existing bool // the key must have a row that is not being deleted
}

// set is Kind.Set, or SetLater. A row in the way is deleted without the lock of the key, because
// its own Set may wait for this one.
func (k *kind) set(ctx context.Context, want *row, zero any, how setting) (any, error) {
	end, err := k.store.begin()
	if err != nil {
		return nil, err
	}
	defer end()
	want.kind = k
	for {
		last, obstacle, err := k.trySet(ctx, want, zero, how)
		if obstacle == "" {
			return last, err
		}
		if err := k.store.remove(ctx, obstacle, removal{met: k.store.isStale, tree: true}); err != nil {
			return nil, err
		}
	}
}

// trySet is one attempt of set. It names a row that must be deleted first.
func (k *kind) trySet(
	ctx context.Context, want *row, zero any, how setting,
) (last any, obstacle string, err error) {
	s, name := k.store, ref(k.name, want.Key)
	s.interrupt(name)
	unlock, err := s.locks.Lock(ctx, name)
	if err != nil {
		return nil, "", err
	}
	defer unlock()
	changes := map[string]*row{}
	old := s.row(name)
	isWanted := old != nil && old.Phase == Wanted
	switch {
	case isWanted:
	case how.existing:
		return nil, "", ErrAbsent
	case old != nil && !how.later:
		if err := k.finish(ctx, name, old); err != nil && !isLooking(err) {
			s.postpone(name, err)
			return nil, "", &PendingError{name, err}
		}
		// An object that may still appear is looked for under another name.
		if old = s.row(name); old != nil {
			moved := old.superseded()
			changes[moved.ref()] = moved
		}
		old = nil
	}
	if isWanted && want.Engine == "" {
		want.Engine = old.Engine
	}
	// What an earlier process was answered may be of a file that was restored from a backup.
	if isWanted && old.Done && !old.Redo && !old.changed.IsZero() && same(old, want) {
		s.renew(name, old)
		return old.Last, "", nil
	}
	if obstacle, err := s.claim(ctx, name, want, how.later); obstacle != "" || err != nil {
		return nil, obstacle, err
	}
	gen := s.nextGen()
	r := want.with(func(r *row) {
		r.Gen, r.Incarnation, r.Phase, r.Boot, r.Last = gen, gen, Wanted, s.boot, zero
		r.changed, r.Earlier = time.Now(), len(changes) > 0 || s.hasEarlier(name)
		if old != nil {
			r.Object, r.Last, r.Acked = old.Object, old.Last, isWanted
		}
		switch {
		case how.later:
			r.Redo, r.Unconfirmed, r.Unheard = true, old != nil && old.Unconfirmed, isWanted && old.Unheard
		case old != nil:
			r.Prev = old
			r.Claims = union(old.Claims, want.Claims) // until it is known which it keeps
		}
	})
	changes[name] = r
	if err := k.add(ctx, old == nil, changes); err != nil {
		s.unclaim(name, want)
		return nil, "", err
	}
	for other := range changes {
		if other != name {
			k.queue.add(other, s.cfg.MinBackoff)
		}
	}
	if how.later {
		k.queue.add(name, 0)
		return r.Last, "", nil
	}
	last, err = k.fulfil(ctx, name, old, r, want.Claims)
	return last, "", err
}

// fulfil calls the target for a row that was just stored, and stores the answer. It returns that,
// or an error after which the table is what it was before.
func (k *kind) fulfil(ctx context.Context, name string, old, r *row, claims []string) (any, error) {
	s := k.store
	answer, err := k.ensure(ctx, r.Object, r.Spec, r.Last)
	s.metrics.attempt(k, "ensure", err)
	if err == nil {
		done := r.with(func(r *row) {
			r.Last, r.Done, r.Claims, r.changed, r.Prev = answer, true, claims, time.Now(), nil
		})
		if k.confirm || old != nil { // a crash brings the previous intent back until it is written
			err = s.commit(context.WithoutCancel(ctx), map[string]*row{name: done})
		} else {
			err = s.later(name, done)
		}
		if err == nil {
			return answer, nil
		}
	}
	if answer != nil {
		r = r.with(func(r *row) { r.Last = answer })
	}
	return nil, k.undo(ctx, name, old, r, err)
}

func union(a, b []string) []string {
	all := append(slices.Clone(a), b...)
	slices.Sort(all)
	return slices.Compact(all)
}

// renew notes that a row was asked for again: the engine has not noted this answer yet either.
func (s *Store) renew(name string, r *row) {
	gen := s.nextGen()
	s.note(name, r.with(func(r *row) {
		r.Gen, r.Acked, r.Unheard, r.changed = gen, true, false, time.Now()
	}))
}

// add commits new rows of a kind, for which there must be room beside what deletions need.
func (k *kind) add(ctx context.Context, isNew bool, changes map[string]*row) error {
	s := k.store
	s.mu.Lock()
	full := isNew && k.maxRows > 0 && len(k.table.rows) >= k.maxRows
	s.mu.Unlock()
	if full {
		return fmt.Errorf("%w: limit of %d rows of kind %s", ErrFull, k.maxRows, k.name)
	}
	if err := s.cfg.Room(); err != nil {
		return fmt.Errorf("%w: %w", ErrFull, err)
	}
	return s.commit(ctx, changes)
}

// claim reserves the claims of a row that is about to be stored. It names a row that is in the
// way and must be deleted first, which later does not wait for.
func (s *Store) claim(ctx context.Context, name string, want *row, later bool) (obstacle string, err error) {
	held, holder, err := s.reserve(name, want)
	if held == "" || err != nil {
		return "", err
	}
	conflict := &ConflictError{Resource: held, Holder: holder}
	r := s.row(holder)
	switch {
	case r == nil, later: // a Set that has not ended, or what SetLater does not wait for
		return "", conflict
	case r.Phase == Deleting:
		return holder, nil
	}
	stale, err := s.isStale(ctx, r)
	if stale {
		return holder, nil
	}
	if err != nil {
		return "", errors.Join(conflict, err)
	}
	return "", conflict
}

// reserve reserves what a Set needs, its claims and its owners, or nothing. It names a claim that
// another row has.
func (s *Store) reserve(name string, want *row) (held, holder string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var has []string
	if r := s.rows[name]; r != nil && r.Phase == Wanted {
		has = r.Owners
	}
	for _, o := range want.Owners {
		r := s.rows[o]
		if r == nil && !slices.Contains(has, o) || r != nil && r.Phase == Deleting {
			return "", "", &OwnerError{o}
		}
	}
	held, holder = s.tryClaim(name, want)
	return held, holder, nil
}

// tryClaim reserves all claims of a row, or none and names one that another row has. From here on
// the deletion of its owners waits for the row. The store's mutex is held.
func (s *Store) tryClaim(name string, want *row) (held, holder string) {
	for _, c := range want.Claims {
		if holder := s.claims[c]; holder != "" && holder != name {
			return c, holder
		}
	}
	for _, c := range want.Claims {
		s.claims[c] = name
	}
	for _, o := range want.Owners {
		s.owned.add(o, name, want)
	}
	return "", ""
}

// unclaim lets go of the claims that the row in the table does not have.
func (s *Store) unclaim(name string, want *row) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range want.Claims {
		if s.claims[c] == name {
			delete(s.claims, c)
		}
	}
	for _, o := range want.Owners {
		s.owned.remove(o, name)
	}
	s.put(name, s.rows[name])
}

// undo brings the table back to what it was before a Set that failed. It does not end with the
// caller's context. It returns the error for the caller.
func (k *kind) undo(ctx context.Context, name string, old, r *row, cause error) error {
	s := k.store
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), k.timeout)
	defer cancel()
	gen := s.nextGen()
	var next *row
	switch {
	case old != nil:
		next = old.with(func(row *row) {
			row.Gen, row.Acked, row.Redo = gen, true, row.Redo || !isRefused(cause)
			row.Unconfirmed = row.Unconfirmed || isUnconfirmed(cause)
			row.Err = cause.Error()
		})
	default:
		next = r.with(func(row *row) {
			row.Gen, row.Phase, row.Unconfirmed, row.Prev = gen, Deleting, isUnconfirmed(cause), nil
			row.Err = cause.Error()
		})
		if isRefused(cause) {
			s.note(name, next) // no row gets it for its owner from here on
			if len(s.children(name)) == 0 {
				next = nil
			}
		}
	}
	if err := s.commit(ctx, map[string]*row{name: next}); err != nil {
		// The row stays Wanted and not Done. The next commit stores what it should be.
		s.note(name, next)
		cause = errors.Join(cause, err)
	}
	switch {
	case next == nil:
		s.wakeOwners(r)
		return cause
	case old != nil:
		k.queue.add(name, 0)
		return cause
	}
	if err := k.finish(ctx, name, next); err != nil && !errors.Is(err, ErrWaiting) {
		s.postpone(name, err)
		return errors.Join(cause, &PendingError{name, err})
	}
	return cause
}
