package local

import (
	"context"
	"encoding/binary"
	"errors"
	"time"

	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/engine"
)

// tx is a transaction that changes the store, and records the rows that it changes.
type tx struct {
	engine.Tx
	ctx      context.Context //nolint:containedctx // it tells for whom the change is, and ends nothing
	p        *Provider
	now      time.Time
	wrote    bool
	changes  map[rowID]*rowChange
	beyond   bool // quotas do not hold
	hostLink bool // addresses are for a link of the host's own, see hostLinks
}

// rowID names a row of the store.
type rowID struct {
	noun sdn.Noun
	id   sdn.ID
}

// rowChange is a row that a transaction has written, or was asked for. before and after are of the type of the row; nil
// says that there was no row, or is none.
type rowChange struct {
	before, after any
	written       bool
	// touched says that the caller asked for the row to be as it is. Its answer waits until the data path
	// has the row.
	touched bool
}

// rows returns the row of a change before and after it; nil if there was none, or is none.
func rows[R any](c *rowChange) (before, after R) {
	before, _ = c.before.(R)
	after, _ = c.after.(R)
	return before, after
}

// record notes that a row was written. What it was before the first change counts.
func (t *tx) record(id rowID, before, after any) {
	c := t.changes[id]
	if c == nil {
		c = &rowChange{}
		t.changes[id] = c
	}
	if !c.written {
		c.before, c.written = before, true
	}
	c.after = after
}

// update runs f in a transaction and then brings the kernel after it. Where f fails nothing has changed. Where the kernel
// fails the store has changed: the error IsUnavailable, and Run and any later change of the domain try again.
func (p *Provider) update(ctx context.Context, f func(*tx) error) error {
	claims, err := p.commit(ctx, f)
	if err != nil && len(claims) == 0 {
		return err
	}
	if settled := p.settle(ctx, claims); settled != nil {
		return errors.Join(err, settled)
	}
	return err
}

// release is update for deletions: once the store has forgotten something, the kernel's failure to do so is no concern of
// the caller's. Run and Reconcile finish it.
func (p *Provider) release(ctx context.Context, f func(*tx) error) error {
	claims, err := p.commit(ctx, f)
	if err := p.settle(ctx, claims); err != nil {
		p.log.WarnContext(ctx, "data path cleanup failed", "err", err)
	}
	return err
}

// tally moves the counter of all rows of a table.
func (t *tx) tally(noun sdn.Noun, by int64) error {
	k := tallyKey(noun)
	return t.Put(usageTable, k, binary.BigEndian.AppendUint64(nil, uint64(counter(t.Tx, k)+by)))
}

// tallyKey cannot be a project's: those have no zero byte.
func tallyKey(noun sdn.Noun) []byte { return []byte(key("", "", string(noun))) }

func counter(b engine.Tx, k []byte) int64 {
	v := b.Get(usageTable, k)
	if len(v) != 8 {
		return 0
	}
	return int64(binary.BigEndian.Uint64(v))
}

// settle waits until the data path has the parts of the claims.
func (p *Provider) settle(ctx context.Context, claims []*claim) error {
	if err := p.sync.wait(ctx, claims); err != nil {
		if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
			return sdn.Unavailable(err, "data path", "the change is stored, the kernel is to follow")
		}
		return sdn.Unavailable(sdn.OfHost(err), "data path", "the change is stored, the kernel could not follow yet")
	}
	return nil
}
