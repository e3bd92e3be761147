package reconcile

import (
	"container/heap"
	"context"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	"golang.org/x/time/rate"
)

const (
	workers = 16
	// Attempts that no caller waits for share this budget, so that a target that is available
	// again after a long time is not overrun.
	attemptsPerSecond = 50
	burst             = 100
)

// queue has the rows that are due at some time, at most once each.
type queue struct {
	changed chan struct{}

	mu    sync.Mutex
	items schedule
	index map[string]*item
}

type item struct {
	name string
	due  time.Time
	at   int // in the heap
}

func newQueue() *queue {
	return &queue{changed: make(chan struct{}, 1), index: map[string]*item{}}
}

// add makes a row due after a time, or earlier if it was.
func (q *queue) add(name string, after time.Duration) {
	due := time.Now().Add(after)
	q.mu.Lock()
	defer q.mu.Unlock()
	if it := q.index[name]; it == nil {
		it = &item{name: name, due: due}
		q.index[name] = it
		heap.Push(&q.items, it)
	} else if due.Before(it.due) {
		it.due = due
		heap.Fix(&q.items, it.at)
	}
	notify(q.changed)
}

// done takes a row off the queue.
func (q *queue) done(name string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if it := q.index[name]; it != nil {
		heap.Remove(&q.items, it.at)
		delete(q.index, name)
	}
}

// due returns when a row is due; the zero Time if it is not in the queue.
func (q *queue) due(name string) time.Time {
	q.mu.Lock()
	defer q.mu.Unlock()
	if it := q.index[name]; it != nil {
		return it.due
	}
	return time.Time{}
}

// next takes a row that is due off the queue. Without one it returns the time until there is,
// which is negative if the queue is empty.
func (q *queue) next() (name string, wait time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.items) == 0 {
		return "", -1
	}
	if wait := time.Until(q.items[0].due); wait > 0 {
		return "", wait
	}
	it := heap.Pop(&q.items).(*item)
	delete(q.index, it.name)
	return it.name, 0
}

func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// postpone notes a failed attempt and makes the row due again.
func (s *Store) postpone(name string, cause error) {
	if isLooking(cause) {
		return // it is due already
	}
	tries := 0
	if r := s.row(name); r != nil {
		tries = r.Tries
		s.later(name, r.with(func(r *row) { r.Tries, r.Err = r.Tries+1, cause.Error() }))
	}
	s.queue.add(name, s.backoff.After(tries+1))
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
	s.later(name, r.with(func(r *row) {
		r.Redo, r.Tries, r.Err = true, failures, ""
		if cause != nil {
			r.Err = cause.Error()
		}
	}))
	if failures == 0 {
		s.queue.add(name, 0)
	} else {
		s.queue.add(name, s.backoff.After(failures))
	}
	return nil
}

// retry makes the unfinished rows of a kind due now.
func (s *Store) retry(k *kind) {
	for _, r := range s.snapshot(k) {
		if r.Phase == Deleting || r.Redo {
			s.queue.add(r.ref(), 0)
		}
	}
}

// wake makes the deletion of an object due now, also of an earlier incarnation of its key.
func (s *Store) wake(k *kind, o Object) {
	r := &row{Object: o, kind: k}
	if is := s.row(r.ref()); is == nil || is.Object != o {
		r.Superseded = true
	}
	if is := s.row(r.ref()); is != nil && is.Phase == Deleting {
		s.queue.add(r.ref(), 0)
	}
}

// Run works on what Start and failed calls have left, until ctx ends. It lists targets and
// engines at its start and regularly after that.
func (s *Store) Run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { s.watchOrphans(ctx) })
	slots := semaphore.NewWeighted(workers)
	budget := rate.NewLimiter(attemptsPerSecond, burst)
	for {
		name, wait := s.queue.next()
		if name == "" {
			if !s.sleep(ctx, wait) {
				return
			}
			continue
		}
		if budget.Wait(ctx) != nil || slots.Acquire(ctx, 1) != nil {
			return
		}
		running.Go(func() {
			defer slots.Release(1)
			s.attempt(ctx, name)
		})
	}
}

// sleep waits until the queue has changed or the time is over, and reports false when ctx ends.
func (s *Store) sleep(ctx context.Context, wait time.Duration) bool {
	var timer <-chan time.Time
	if wait >= 0 {
		timer = time.After(wait)
	}
	select {
	case <-ctx.Done():
		return false
	case <-s.queue.changed:
	case <-timer:
	}
	return true
}

// attempt works once on a row that is being deleted or whose spec must be ensured again.
func (s *Store) attempt(ctx context.Context, name string) {
	end, err := s.begin()
	if err != nil {
		return
	}
	defer end()
	unlock, err := s.locks.Lock(ctx, name)
	if err != nil {
		return
	}
	defer unlock()
	r := s.row(name)
	if r == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, r.kind.timeout)
	defer cancel()
	log := s.log.With("kind", r.kind.name, "key", r.Key)
	switch {
	case r.Phase == Deleting:
		if err = r.kind.finish(ctx, name, r); err == nil {
			log.InfoContext(ctx, "cleanup complete", "tries", r.Tries+1)
		}
	case r.Redo && r.changed.IsZero() && r.kind.list != nil && !s.imported.Load():
		// The row may be of a backup, and its key have an object of another incarnation.
		s.queue.add(name, s.backoff.After(1))
	case r.Redo:
		var last any
		last, err = r.kind.ensure(ctx, r.Object, r.Spec, r.Last)
		s.metrics.attempt(r.kind, "ensure", err)
		if err == nil {
			err = s.ensured(ctx, name, r, last)
		}
	}
	if isLooking(err) {
		return
	}
	if err != nil {
		log.WarnContext(ctx, "attempt failed", "phase", r.Phase.String(), "tries", r.Tries+1, "err", err)
		s.postpone(name, err)
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
	s.later(name, r)
	return nil
}

// schedule is a heap of items by the time they are due.
type schedule []*item

func (s schedule) Len() int           { return len(s) }
func (s schedule) Less(i, j int) bool { return s[i].due.Before(s[j].due) }
func (s schedule) Swap(i, j int) {
	s[i], s[j] = s[j], s[i]
	s[i].at, s[j].at = i, j
}

func (s *schedule) Push(x any) {
	it := x.(*item)
	it.at = len(*s)
	*s = append(*s, it)
}

func (s *schedule) Pop() any {
	old := *s
	it := old[len(old)-1]
	old[len(old)-1] = nil
	*s = old[:len(old)-1]
	return it
}
