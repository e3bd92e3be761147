package local

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/engine"
)

// A change must be on the disk before it is answered, and the disk's confirmation takes far longer than the change and no longer for many. So what comes
// while the disk is waited for waits too, and is then written together, in the order in which it came. What is refused is
// refused for what is stored, not for what would have been written along with it.

// mostTogether bounds what is written together, and so for how long the first of it waits for the last.
const mostTogether = 128

// proposal is a change that is to be written.
type proposal struct {
	ctx    context.Context //nolint:containedctx // it tells for whom the change is
	change func(*tx) error // may be run more than once
	done   chan struct{}   // closed when claims and err are there
	claims []*claim
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
// caller waits for in the data path. With an error and claims the change is made, but may not outlive a
// power cut.
func (p *Provider) commit(ctx context.Context, change func(*tx) error) ([]*claim, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	w := &proposal{ctx: ctx, change: change, done: make(chan struct{})}
	p.proposals.add(w)
	ended := ctx.Done()
	for {
		select {
		case <-w.done:
			return w.claims, w.err
		case p.proposals.turn <- struct{}{}:
			// The first of those that wait may be others', more than are written together.
			p.writeSome(p.proposals.take())
		case <-ended:
			if p.proposals.withdraw(w) {
				return nil, ctx.Err()
			}
			ended = nil
		}
	}
}

// writeSome writes proposals and passes the turn on.
func (p *Provider) writeSome(list []*proposal) {
	defer func() {
		for _, w := range list { // there are some only if one has panicked
			w.finish(nil, sdn.Unavailable(nil, "store", "the change was not made"))
		}
		<-p.proposals.turn
	}()
	for len(list) > 0 {
		list = list[p.write(list):]
	}
}

// write writes the first of the list in one transaction, as many as are not refused, or refuses the first. It tells how many it has answered: none
// if another process was faster, so that all are to be tried again.
func (p *Provider) write(list []*proposal) (answered int) {
	// The change is made for all of them, so the end of one context does not end it.
	b, err := p.store.Begin(context.WithoutCancel(list[0].ctx))
	if err != nil {
		for _, w := range list {
			w.finish(nil, err)
		}
		return len(list)
	}
	defer b.Rollback()
	wrote := false
	changes := make([]map[rowID]*rowChange, len(list))
	claims := make([][]*claim, 0, len(list))
	defer func() { p.sync.drop(slices.Concat(claims...)) }() // those that have not joined
	for i, w := range list {
		t := &tx{Tx: b, ctx: w.ctx, p: p, now: time.Now().UTC().Round(0), changes: map[rowID]*rowChange{}}
		err := w.change(t)
		var own []*claim
		if err == nil {
			own, err = p.expect(t)
		}
		if err != nil {
			b.Rollback()
			p.sync.drop(slices.Concat(claims...))
			claims = nil
			if i > 0 {
				return p.write(list[:i])
			}
			w.finish(nil, full(err))
			return 1
		}
		changes[i] = t.changes
		claims = append(claims, own)
		wrote = wrote || t.wrote
	}
	if wrote {
		failpoint.Here("local.commit.before")
		if err = b.Commit(); err == nil {
			failpoint.Here("local.commit.after")
		}
		if err != nil && !errors.Is(err, engine.ErrNotDurable) { // else every reader sees the change, and so does the kernel
			if errors.Is(err, engine.ErrConflict) {
				return 0
			}
			p.sync.drop(slices.Concat(claims...))
			claims, changes = make([][]*claim, len(list)), make([]map[rowID]*rowChange, len(list))
		}
	}
	for i, w := range list {
		own := claims[i]
		p.sync.redefined(changes[i])
		p.sync.join(own)
		claims[i] = nil
		w.finish(own, err) // also of a caller that changed nothing: what it saw may not last
	}
	if wrote && p.datapath == nil {
		p.sync.changed()
	}
	return len(list)
}

// expect returns what the caller of a transaction waits for in the data path.
func (p *Provider) expect(t *tx) ([]*claim, error) {
	if p.datapath == nil {
		return nil, nil
	}
	keys, err := p.sync.keysOf(t.Tx, t.changes)
	if err != nil {
		return nil, err
	}
	p.sync.assume(p.view, keys) // not what the transaction has
	return p.sync.expect(t.Tx, keys)
}

// finish answers, where that is not done.
func (w *proposal) finish(claims []*claim, err error) {
	select {
	case <-w.done:
	default:
		w.claims, w.err = claims, err
		close(w.done)
	}
}
