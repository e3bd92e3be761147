package engine

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/kuryr/kuryr/sdn"
)

// A change must be on the disk before it is answered, and the disk's confirmation takes far longer
// than the change and no longer for many. So what comes while the disk is waited for waits too, and
// is then written together, in the order in which it came. What is refused is refused for what is
// stored, not for what would have been written along with it.

// mostTogether bounds what is written together, and so for how long the first of it waits for the last.
const mostTogether = 128

// proposal is a change that is to be written.
type proposal struct {
	ctx    context.Context //nolint:containedctx // it tells for whom the change is
	change func(*tx) error // may be run more than once
	done   chan struct{}   // closed when await and err are there
	await  Expectation     // nil: the caller waits for nothing
	err    error
}

// proposals are those that wait, in their order. The caller that has the turn writes them.
type proposals struct {
	mu      sync.Mutex
	waiting []*proposal
	turn    chan struct{} // has room for the one whose turn it is
}

func newProposals() *proposals { return &proposals{turn: make(chan struct{}, 1)} }

func (q *proposals) add(w *proposal) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting = append(q.waiting, w)
}

// withdraw takes a proposal off the list, and reports whether it was there. Else it is being written.
func (q *proposals) withdraw(w *proposal) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	at := slices.Index(q.waiting, w)
	if at >= 0 {
		q.waiting = slices.Delete(q.waiting, at, at+1)
	}
	return at >= 0
}

func (q *proposals) take() []*proposal {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := min(len(q.waiting), mostTogether)
	list := slices.Clone(q.waiting[:n])
	q.waiting = slices.Delete(q.waiting, 0, n)
	return list
}

// commit runs change in a transaction, with what else waits, and returns what its
// caller waits for; nil for nothing. With an error and an expectation the change is made, but may not
// outlive a power cut.
func (e *Engine) commit(ctx context.Context, change func(*tx) error) (Expectation, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	w := &proposal{ctx: ctx, change: change, done: make(chan struct{})}
	e.proposals.add(w)
	ended := ctx.Done()
	for {
		select {
		case <-w.done:
			return w.await, w.err
		case e.proposals.turn <- struct{}{}:
			// The first of those that wait may be others', more than are written together.
			e.writeSome(e.proposals.take())
		case <-ended:
			if e.proposals.withdraw(w) {
				return nil, ctx.Err()
			}
			ended = nil
		}
	}
}

// writeSome writes proposals and passes the turn on.
func (e *Engine) writeSome(list []*proposal) {
	defer func() {
		for _, w := range list { // there are some only if one has panicked
			w.finish(nil, sdn.Unavailable(nil, "store", "the change was not made"))
		}
		<-e.proposals.turn
	}()
	for len(list) > 0 {
		list = list[e.write(list):]
	}
}

// write writes the first of the list in one transaction, as many as are not refused, or refuses the
// first. It tells how many it has answered: none if another process was faster, so that all are to
// be tried again.
func (e *Engine) write(list []*proposal) (answered int) {
	// The change is made for all of them, so the end of one context does not end it.
	b, err := e.store.Begin(context.WithoutCancel(list[0].ctx))
	if err != nil {
		for _, w := range list {
			w.finish(nil, err)
		}
		return len(list)
	}
	defer b.Rollback()
	wrote := false
	var awaits []Expectation
	defer func() { drop(awaits) }() // those that have not joined
	for i, w := range list {
		t := &tx{Tx: b, ctx: w.ctx, e: e, now: time.Now().UTC().Round(0), changes: map[RowID]*RowChange{}}
		err := w.change(t)
		var await Expectation
		if err == nil {
			await, err = e.realm.Expect(t.Tx, t.changes)
		}
		if err != nil {
			b.Rollback()
			drop(awaits)
			awaits = nil
			if i > 0 {
				return e.write(list[:i])
			}
			w.finish(nil, err)
			return 1
		}
		awaits = append(awaits, await)
		wrote = wrote || t.wrote
	}
	if wrote {
		failpoint.Here("engine.commit.before")
		if err = b.Commit(); err == nil {
			failpoint.Here("engine.commit.after")
		}
		if err != nil && !errors.Is(err, ErrNotDurable) { // else every reader sees the change, and so does the kernel
			if errors.Is(err, ErrConflict) {
				return 0
			}
			drop(awaits)
			awaits = make([]Expectation, len(list))
		}
	}
	for i, w := range list {
		await := awaits[i]
		if await != nil {
			await.Join()
		}
		awaits[i] = nil
		w.finish(await, err) // also of a caller that changed nothing: what it saw may not last
	}
	return len(list)
}

// drop drops expectations of changes that were not made.
func drop(awaits []Expectation) {
	for _, await := range awaits {
		if await != nil {
			await.Drop()
		}
	}
}

// finish answers, where that is not done.
func (w *proposal) finish(await Expectation, err error) {
	select {
	case <-w.done:
	default:
		w.await, w.err = await, err
		close(w.done)
	}
}
