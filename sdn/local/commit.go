package local

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/kuryr/kuryr/datapath/router"
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
	done   chan struct{}   // closed when ticket and err are there
	ticket *ticket
	err    error
}

// proposals are those that wait, in their order. Whoever has the turn writes them.
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

// withdraw tells whether nobody has begun to write the proposal, and nobody will.
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

// commit runs change in a transaction, with what else waits, and gives the ticket for what the kernel must learn of it, if anything. With an error and a
// ticket the change is made, but may not outlive a power cut.
func (p *Provider) commit(ctx context.Context, change func(*tx) error) (*ticket, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	w := &proposal{ctx: ctx, change: change, done: make(chan struct{})}
	p.proposals.add(w)
	ended := ctx.Done()
	for {
		select {
		case <-w.done:
			return w.ticket, w.err
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
	txs := make([]*tx, len(list))
	wrote := false
	rewritten := map[sdn.ID]bool{}
	for i, w := range list {
		t := &tx{
			Tx: b, ctx: w.ctx, p: p, now: time.Now().UTC().Round(0),
			before: map[sdn.ID]*router.Shape{}, changes: map[string]*change{}, rewritten: rewritten,
		}
		err := w.change(t)
		if err == nil {
			err = t.shapes()
		}
		if err != nil {
			b.Rollback()
			if i > 0 {
				return p.write(list[:i])
			}
			w.finish(nil, full(err))
			return 1
		}
		txs[i] = t
		wrote = wrote || t.wrote
	}
	tickets := p.drawFor(txs)
	if wrote {
		failpoint.Here("local.commit.before")
		err = b.Commit()
		switch {
		case errors.Is(err, engine.ErrConflict):
			cancelAll(tickets)
			return 0
		case err == nil:
			failpoint.Here("local.commit.after")
		case !errors.Is(err, engine.ErrNotDurable): // else every reader sees the change, and so does the kernel
			cancelAll(tickets)
		}
		if p.datapath == nil {
			p.queue.announce()
		}
	}
	for i, w := range list {
		w.finish(tickets[i], err) // whoever changed nothing too: what it saw may not last
	}
	return len(list)
}

// drawFor draws the tickets of transactions that are about to be committed, while no other change can be: that is what keeps the kernel in the order of
// the store. Those that follow one another in a domain and are of what it balances alone have one ticket together.
func (p *Provider) drawFor(txs []*tx) []*ticket {
	tickets := make([]*ticket, len(txs))
	last := map[string]*ticket{} // of a domain, while others may join it
	for i, t := range txs {
		if p.datapath == nil || len(t.changes) == 0 {
			continue
		}
		t.noteFreed()
		c := t.onlyBalances()
		if c != nil && last[c.domain] != nil {
			tickets[i] = last[c.domain]
			tickets[i].join(c)
			continue
		}
		tickets[i] = p.queue.draw(t.changes)
		for domain := range t.changes {
			delete(last, domain)
		}
		if c != nil {
			last[c.domain] = tickets[i]
		}
	}
	return tickets
}

func cancelAll(tickets []*ticket) {
	cancelled := map[*ticket]bool{}
	for i, tk := range tickets {
		if tk != nil && !cancelled[tk] {
			tk.cancel()
			cancelled[tk] = true
		}
		tickets[i] = nil
	}
}

// finish answers, where that is not done.
func (w *proposal) finish(tk *ticket, err error) {
	select {
	case <-w.done:
	default:
		w.ticket, w.err = tk, err
		close(w.done)
	}
}
