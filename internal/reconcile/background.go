package reconcile

import (
	"context"
	"fmt"
	"time"
)

// setBackground is Kind.Set of a background kind. It interrupts an attempt.
func (k *kind) setBackground(ctx context.Context, want *row, zero any) (any, error) {
	s, name := k.store, ref(k.name, want.Key)
	if len(want.Claims)+len(want.Owners) > 0 {
		return nil, fmt.Errorf("row %s: a background kind has no claims and no owners", name)
	}
	s.interrupt(name)
	unlock, err := s.locks.Lock(ctx, name)
	if err != nil {
		return nil, err
	}
	defer unlock()
	old := s.row(name)
	if old != nil && old.Phase == Wanted && old.Done && !old.changed.IsZero() && same(old, want) {
		s.renew(name, old)
		return old.Last, nil
	}
	gen := s.nextGen()
	r := want.with(func(r *row) {
		r.Gen, r.Incarnation, r.Phase, r.Boot, r.Last = gen, gen, Wanted, s.boot, zero
		r.Redo, r.changed = true, time.Now()
		if old != nil {
			r.Incarnation, r.Last, r.Unconfirmed = old.Incarnation, old.Last, old.Unconfirmed
			r.Acked = old.Phase == Wanted
		}
	})
	if err := k.add(ctx, old == nil, map[string]*row{name: r}); err != nil {
		return nil, err
	}
	k.queue.add(name, 0)
	return r.Last, nil
}

// removeBackground is Kind.Remove of a background kind. It interrupts an attempt.
func (k *kind) removeBackground(ctx context.Context, name string) error {
	s := k.store
	s.interrupt(name)
	unlock, err := s.locks.Lock(ctx, name)
	if err != nil {
		return err
	}
	defer unlock()
	r := s.row(name)
	if r == nil {
		return nil
	}
	if r.Phase != Deleting {
		if err := s.commit(ctx, map[string]*row{name: r.deleting(s.nextGen())}); err != nil {
			return err
		}
	}
	k.queue.add(name, 0)
	return nil
}
