package reconcile

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// errLooking says that an object whose create was not confirmed was not found yet.
var errLooking = errors.New("unconfirmed object has not appeared")

// removal is how a row is removed.
type removal struct {
	// met decides, under the lock of the row's key, whether a Wanted row is removed; nil: it is.
	met    func(context.Context, *row) (bool, error)
	tree   bool // with the rows that it owns
	later  bool // Run makes the attempt
	forget bool // without a call of the target
}

func (k *kind) remove(ctx context.Context, key string, how removal) error {
	end, err := k.store.begin()
	if err != nil {
		return err
	}
	defer end()
	return k.store.remove(ctx, ref(k.name, key), how)
}

// remove commits a deletion and makes one attempt.
func (s *Store) remove(ctx context.Context, name string, how removal) error {
	if r := s.row(name); how.later && r != nil && r.Phase == Deleting {
		r.kind.queue.add(name, 0)
		return nil // an attempt at this moment goes on
	}
	s.interrupt(name)
	unlock, err := s.locks.Lock(ctx, name)
	if err != nil {
		if r := s.row(name); r != nil && r.Phase == Deleting {
			return &PendingError{name, err}
		}
		return err
	}
	defer unlock()
	r := s.row(name)
	if r == nil {
		return nil
	}
	switch {
	case how.met == nil:
	case r.Phase == Deleting:
		how.tree = false // whether the rows that it owns are in use is not known
	default:
		if met, err := how.met(ctx, r); err != nil || !met {
			return err
		}
	}
	if how.forget {
		if err := s.commit(ctx, map[string]*row{name: nil}); err != nil {
			return err
		}
		s.removed(name, r)
		return nil
	}
	if err := s.commitDeletion(ctx, name, r, how.tree); err != nil {
		return err
	}
	r = s.row(name)
	if how.later {
		r.kind.queue.add(name, 0)
		return nil
	}
	err = r.kind.finish(ctx, name, r)
	if err == nil || isLooking(err) {
		return nil
	}
	s.postpone(name, err)
	return &PendingError{name, err}
}

// commitDeletion stores that a row, whose lock is held, is being deleted.
func (s *Store) commitDeletion(ctx context.Context, name string, r *row, tree bool) error {
	if !tree {
		if r.Phase == Deleting {
			return nil
		}
		return s.commit(ctx, map[string]*row{name: r.deleting(s.nextGen())})
	}
	err := s.deleteTree(ctx, name)
	failed := s.flush(nil)
	if failed != nil || err != nil { // the next attempt completes the tree
		r.kind.queue.add(name, 0)
	}
	if failed != nil {
		return failed
	}
	if err != nil {
		return &PendingError{name, err}
	}
	return nil
}

// deleteTree notes that a row, whose lock is held, and all that it owns are being deleted. The
// owner comes first, so that it gets no other row.
func (s *Store) deleteTree(ctx context.Context, name string) error {
	r := s.row(name)
	if r == nil {
		return nil
	}
	s.noteTree(name, r)
	for _, child := range s.children(name) {
		s.interrupt(child)
		unlock, err := s.locks.Lock(ctx, child)
		if err != nil {
			return err
		}
		err = s.deleteTree(ctx, child)
		unlock()
		if err != nil {
			return err
		}
	}
	return nil
}

// noteTree notes that a row, whose lock is held, is being deleted with all that it owns, and
// returns what it is now.
func (s *Store) noteTree(name string, r *row) *row {
	if r.Phase != Deleting {
		r = r.deleting(s.nextGen())
	}
	if !r.Tree {
		r = r.with(func(r *row) { r.Tree = true })
		s.note(name, r)
	}
	return r
}

// finish attempts the deletion of a row whose lock is held, after that of the rows it owns.
func (k *kind) finish(ctx context.Context, name string, r *row) error {
	s := k.store
	var left []error
	for _, child := range s.children(name) {
		left = append(left, s.finishChild(ctx, child, r.Tree))
	}
	err := errors.Join(left...)
	switch {
	case err == nil:
	case ctx.Err() != nil: // a child that was not reached does not make its owner due
		return err
	default:
		return fmt.Errorf("%w: %w", errChildren, err)
	}
	err = k.delete(ctx, r.Object, r.Spec, r.Last)
	s.metrics.attempt(k, "delete", err)
	if errors.Is(err, ErrAbsent) {
		if r.Unconfirmed && !s.lookedEnough(name, r) {
			return errLooking
		}
		err = nil
	}
	if err != nil {
		if left, ok := errors.AsType[remaining](err); ok {
			s.note(name, r.with(func(r *row) { r.Last = left.last }))
		}
		return err
	}
	if !k.confirm {
		s.note(name, nil)
	} else if err := s.commit(context.WithoutCancel(ctx), map[string]*row{name: nil}); err != nil {
		return err
	}
	s.removed(name, r)
	return nil
}

// removed is called when a row is gone.
func (s *Store) removed(name string, r *row) {
	r.kind.gone(r)
	r.kind.queue.done(name)
	s.wakeOwners(r)
}

// wakeOwners makes the owners of a row that is gone due, if they wait for that.
func (s *Store) wakeOwners(r *row) {
	for _, owner := range r.Owners {
		if o := s.row(owner); o != nil && o.Phase == Deleting {
			o.kind.queue.add(owner, 0)
		}
	}
}

// finishChild deletes a row whose owner is about to be deleted. A wanted one is deleted only with
// its owner's tree, of which deleteTree or a crash may have left it out. Locks are taken from owners to
// the rows they own.
func (s *Store) finishChild(ctx context.Context, name string, tree bool) error {
	unlock, err := s.locks.Lock(ctx, name)
	if err != nil {
		return err
	}
	defer unlock()
	r := s.row(name)
	switch {
	case r == nil:
		return nil
	case tree:
		r = s.noteTree(name, r)
	case r.Phase != Deleting:
		return fmt.Errorf("%s is not being deleted", name)
	}
	if err := r.kind.finish(ctx, name, r); err != nil && !isLooking(err) {
		s.postpone(name, err) // its end makes the owner due
		return err
	}
	return nil // an object that has not appeared cannot be in its owner's way
}

// lookedEnough notes that the object of an unconfirmed create was looked for and is absent, and
// reports whether that was so for OrphanTTL. Only the time between two looks counts, so that
// the target was available all the time.
func (s *Store) lookedEnough(name string, r *row) bool {
	now := time.Now()
	next := r.with(func(r *row) {
		if !r.looked.IsZero() {
			r.Looked += min(now.Sub(r.looked), s.cfg.MaxBackoff)
		}
		r.Looked, r.looked = max(r.Looked, 1), now
	})
	if next.Looked >= s.cfg.OrphanTTL {
		return true
	}
	s.note(name, next)
	r.kind.queue.add(name, s.backoff.After(1+int(next.Looked/s.cfg.MinBackoff)))
	return false
}
