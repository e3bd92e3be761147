package reconcile

import (
	"context"
	"errors"
	"reflect"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	"golang.org/x/time/rate"
)

const (
	workers = 16 // of each kind: a target that hangs must not hold up the others
	// Attempts that no caller waits for share this budget, so that a target that is available
	// again after a long time is not overrun.
	attemptsPerSecond = 50
	burst             = 100
)

// queue has the rows that are due at some time, at most once each.
type queue struct {
	changed chan struct{} // a row has become due

	mu    sync.Mutex
	items map[string]*item
	ready []*item // that have become due, unless they are no longer in items
}

type item struct {
	name  string
	due   time.Time
	timer *time.Timer
}

func newQueue() *queue {
	return &queue{changed: make(chan struct{}, 1), items: map[string]*item{}}
}

// add makes a row due after a time, or earlier if it was.
func (q *queue) add(name string, after time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	due := time.Now().Add(after)
	if it := q.items[name]; it != nil {
		if !due.Before(it.due) {
			return
		}
		it.timer.Stop()
	}
	it := &item{name: name, due: due}
	q.items[name] = it
	it.timer = time.AfterFunc(after, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.ready = append(q.ready, it)
		notify(q.changed)
	})
}

// done takes a row off the queue.
func (q *queue) done(name string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if it := q.items[name]; it != nil {
		it.timer.Stop()
		delete(q.items, name)
	}
}

// due returns when a row is due; the zero Time if it is not in the queue.
func (q *queue) due(name string) time.Time {
	q.mu.Lock()
	defer q.mu.Unlock()
	if it := q.items[name]; it != nil {
		return it.due
	}
	return time.Time{}
}

// next takes a row that is due off the queue, and waits for one until ctx ends.
func (q *queue) next(ctx context.Context) (name string, ok bool) {
	for {
		if name, ok := q.take(); ok {
			return name, true
		}
		select {
		case <-ctx.Done():
			return "", false
		case <-q.changed:
		}
	}
}

func (q *queue) take() (name string, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.ready) > 0 {
		it := q.ready[0]
		q.ready = q.ready[1:]
		if q.items[it.name] == it {
			delete(q.items, it.name)
			return it.name, true
		}
	}
	return "", false
}

func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// postpone notes a failed attempt and makes the row due again. A row that waits for an event, for
// the next look at an unconfirmed object, or for the rows that it owns is due when that comes.
func (s *Store) postpone(name string, cause error) {
	if isLooking(cause) || errors.Is(cause, errChildren) {
		return
	}
	r := s.row(name)
	if r == nil {
		return
	}
	s.note(name, r.with(func(r *row) {
		r.Tries, r.Err, r.looked = r.Tries+1, cause.Error(), time.Time{}
	}))
	r.kind.queue.add(name, s.backoff.After(r.Tries+1))
	s.failed.Store(true)
}

// repeat is Kind.Repeat.
func (s *Store) repeat(ctx context.Context, name string, failures int, cause error) error {
	unlock, err := s.locks.Lock(ctx, name)
	if err != nil {
		return err
	}
	defer unlock()
	r := s.row(name)
	if r == nil || r.Phase != Wanted {
		return nil
	}
	s.note(name, r.with(func(r *row) {
		r.Redo, r.Tries, r.Err = true, failures, ""
		if cause != nil {
			r.Err = cause.Error()
		}
	}))
	wait := time.Duration(0)
	if failures > 0 {
		wait = s.backoff.After(failures)
	}
	r.kind.queue.add(name, wait)
	return nil
}

// retry makes the unfinished rows of a kind due now.
func (k *kind) retry() {
	for _, r := range k.snapshot(unfinished) {
		k.queue.add(r.ref(), 0)
	}
}

// Retry makes the unfinished rows of all kinds due now, as when their targets are available again,
// and what Run could not list.
func (s *Store) Retry() {
	s.retry()
	s.Compare()
}

// RetryFailed makes the unfinished rows of all kinds due now if an attempt has failed since the last
// call, as when a target has just answered. It does so once in MinBackoff: what fails for another
// reason is not attempted after each answer.
func (s *Store) RetryFailed() {
	if s.failed.Load() && s.retries.Allow() && s.failed.Swap(false) {
		s.retry()
	}
}

func (s *Store) retry() {
	for _, k := range s.allKinds() {
		k.retry()
	}
}

// wake makes the deletion of an object due now, also of an earlier incarnation of its key.
func (s *Store) wake(k *kind, o Object) {
	r := &row{Object: o, kind: k}
	if is := s.row(r.ref()); is == nil || is.Incarnation != o.Incarnation {
		r.Superseded = true
	}
	if is := s.row(r.ref()); is != nil && is.Phase == Deleting {
		k.queue.add(r.ref(), 0)
	}
}

// Run works on what Start and failed calls have left, until ctx ends. It lists targets and
// engines at its start and regularly after that.
func (s *Store) Run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { s.watchOrphans(ctx) })
	budget := rate.NewLimiter(attemptsPerSecond, burst)
	for _, k := range s.allKinds() {
		running.Go(func() { k.run(ctx, budget) })
	}
}

// run makes the attempts of one kind.
func (k *kind) run(ctx context.Context, budget *rate.Limiter) {
	var running sync.WaitGroup
	defer running.Wait()
	slots := semaphore.NewWeighted(workers)
	for {
		name, ok := k.queue.next(ctx)
		if !ok || slots.Acquire(ctx, 1) != nil || budget.Wait(ctx) != nil {
			return
		}
		running.Go(func() {
			defer slots.Release(1)
			k.attempt(ctx, name)
		})
	}
}

// attempt works once on a row that is being deleted or whose spec must be ensured again.
func (k *kind) attempt(ctx context.Context, name string) {
	s := k.store
	end, err := s.begin()
	if err != nil {
		return
	}
	defer end()
	ctx, cancel := context.WithTimeout(ctx, k.timeout)
	defer cancel()
	unlock, err := s.locks.Lock(ctx, name)
	if err != nil {
		k.queue.add(name, s.backoff.After(1))
		return
	}
	defer unlock()
	defer s.interruptible(name, cancel)()
	r := s.row(name)
	switch {
	case r == nil:
		return
	case r.Phase == Deleting:
		err = k.finish(ctx, name, r)
	case r.Redo && (k.list == nil || k.imported.Load() || !r.changed.IsZero()):
		var last any
		last, err = k.ensure(ctx, r.Object, r.Spec, r.Last)
		s.metrics.attempt(k, "ensure", err)
		if err != nil && !r.Done && isZero(r.Last) { // what a first Ensure has done so far
			r = r.with(func(r *row) { r.Last = last })
			s.note(name, r)
		}
		switch {
		case err == nil:
			err = s.ensured(ctx, name, r, last)
		case errors.Is(err, ErrUnwanted):
			s.note(name, r.deleting(s.nextGen()))
			k.queue.add(name, 0)
			return
		case isUnconfirmed(err):
			s.note(name, r.with(func(r *row) { r.Unconfirmed = true }))
		}
	default:
		// A row of a backup may have an object of another incarnation. The import, which finds
		// that, retries the kind.
		return
	}
	log := s.log.With("kind", k.name, "key", r.Key, "tries", r.Tries+1)
	switch {
	case err == nil && r.Phase == Deleting:
		log.InfoContext(ctx, "cleanup complete")
	case errors.Is(ctx.Err(), context.Canceled): // a call attempts it instead, or the store closes
	case err != nil && !isLooking(err) && !errors.Is(err, errChildren):
		log.WarnContext(ctx, "attempt failed", "phase", r.Phase.String(), "err", err)
	}
	if err != nil {
		s.postpone(name, err)
	}
}

// isZero reports whether an answer says nothing.
func isZero(last any) bool { return last == nil || reflect.ValueOf(last).IsZero() }

// interruptible lets interrupt cancel an attempt until end is called.
func (s *Store) interruptible(name string, cancel context.CancelFunc) (end func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running[name] = cancel
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.running, name)
	}
}

// interrupt cancels an attempt that no caller waits for, so that a caller gets the row's lock.
func (s *Store) interrupt(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if cancel := s.running[name]; cancel != nil {
		cancel()
	}
}

// ensured stores the answer of an Ensure.
func (s *Store) ensured(ctx context.Context, name string, r *row, last any) error {
	r = r.with(func(r *row) {
		r.Last, r.Done, r.Redo, r.Unconfirmed = last, true, false, false
		r.Tries, r.Err, r.Boot = 0, "", s.boot
	})
	if r.kind.confirm {
		return s.commit(context.WithoutCancel(ctx), map[string]*row{name: r})
	}
	return s.later(name, r)
}
