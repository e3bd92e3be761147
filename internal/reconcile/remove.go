package reconcile

import (
	"context"
	"errors"
	"time"
)

// errLooking says that an object whose create was not confirmed was not found yet.
var errLooking = errors.New("unconfirmed object has not appeared")

// remove is Kind.Remove.
func (k *kind) remove(ctx context.Context, name string) error {
	end, err := k.store.begin()
	if err != nil {
		return err
	}
	defer end()
	if k.background {
		return k.removeBackground(ctx, name)
	}
	return k.store.removeNow(ctx, name, nil)
}

// condition decides under the lock of a row's key.
type condition func(context.Context, *row) (bool, error)

// removeNow commits a deletion and makes one attempt. A Wanted row stays if there is a condition
// that it does not meet.
func (s *Store) removeNow(ctx context.Context, name string, condition condition) error {
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
	if r.Phase != Deleting {
		if condition != nil {
			if met, err := condition(ctx, r); err != nil || !met {
				return err
			}
		}
		r = r.deleting(s.nextGen())
		if err := s.commit(ctx, map[string]*row{name: r}); err != nil {
			return err
		}
	}
	err = r.kind.finish(ctx, name, r)
	if err == nil || isLooking(err) {
		return nil
	}
	s.postpone(name, err)
	return &PendingError{name, err}
}

// finish attempts the deletion of a row whose lock is held, after that of the rows it owns.
func (k *kind) finish(ctx context.Context, name string, r *row) error {
	s := k.store
	for _, child := range s.children(name) {
		if err := s.finishChild(ctx, child); err != nil {
			return err
		}
	}
	err := k.delete(ctx, r.Object, r.Spec, r.Last)
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
	k.gone(r)
	k.queue.done(name)
	s.wakeOwners(r)
	return nil
}

// wakeOwners makes the owners of a row that is gone due, if they wait for that.
func (s *Store) wakeOwners(r *row) {
	for _, owner := range r.Owners {
		if o := s.row(owner); o != nil && o.Phase == Deleting {
			o.kind.queue.add(owner, 0)
		}
	}
}

// finishChild deletes a row whose owner is about to be deleted. Locks are taken from owners to
// the rows they own.
func (s *Store) finishChild(ctx context.Context, name string) error {
	unlock, err := s.locks.Lock(ctx, name)
	if err != nil {
		return err
	}
	defer unlock()
	r := s.row(name)
	switch {
	case r == nil:
		return nil
	case r.Phase != Deleting:
		return errChildren
	}
	if err := r.kind.finish(ctx, name, r); err != nil && !isLooking(err) {
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

// forget is Kind.Forget.
func (k *kind) forget(ctx context.Context, name string) error {
	s := k.store
	end, err := s.begin()
	if err != nil {
		return err
	}
	defer end()
	unlock, err := s.locks.Lock(ctx, name)
	if err != nil {
		return err
	}
	defer unlock()
	r := s.row(name)
	if r == nil {
		return nil
	}
	if err := s.commit(ctx, map[string]*row{name: nil}); err != nil {
		return err
	}
	k.gone(r)
	s.wakeOwners(r)
	return nil
}
