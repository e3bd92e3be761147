package engine

import (
	"context"
	"encoding/binary"
	"errors"
	"time"

	"github.com/kuryr/kuryr/sdn"
)

// tx is a transaction that changes the store, and records the rows that it changes.
type tx struct {
	Tx
	ctx      context.Context //nolint:containedctx // it tells for whom the change is, and ends nothing
	e        *Engine
	now      time.Time
	wrote    bool
	changes  map[RowID]*RowChange
	beyond   bool // quotas do not hold
	hostLink bool // addresses are for a link of the host's own, see hostLinks
}

// RowID names a row of the store.
type RowID struct {
	Noun sdn.Noun
	ID   sdn.ID
}

// RowChange is a row that a transaction has written, or was asked for. before and after are of the type of the row; nil
// says that there was no row, or is none.
type RowChange struct {
	before, after any
	Written       bool
	// Touched says that the caller asked for the row to be as it is. Its answer waits until the data path
	// has the row.
	Touched bool
}

// Rows returns the row of a change before and after it; nil if there was none, or is none.
func Rows[R any](c *RowChange) (before, after R) {
	before, _ = c.before.(R)
	after, _ = c.after.(R)
	return before, after
}

// record notes that a row was written. What it was before the first change counts.
func (t *tx) record(id RowID, before, after any) {
	c := t.changes[id]
	if c == nil {
		c = &RowChange{}
		t.changes[id] = c
	}
	if !c.Written {
		c.before, c.Written = before, true
	}
	c.after = after
}

// update runs f in a transaction and then waits until the realm has it. Where f fails nothing has
// changed. Where the realm fails the store has changed: the error IsUnavailable, and the realm
// tries again.
func (e *Engine) update(ctx context.Context, f func(*tx) error) error {
	await, err := e.commit(ctx, f)
	if await == nil {
		return err
	}
	if behind := await.Wait(ctx); behind != nil {
		return errors.Join(err, behind)
	}
	return err
}

// release is update for deletions: once the store has forgotten something, the realm's failure to
// do so is no concern of the caller's. The realm finishes it.
func (e *Engine) release(ctx context.Context, f func(*tx) error) error {
	await, err := e.commit(ctx, f)
	if await == nil {
		return err
	}
	if err := await.Wait(ctx); err != nil {
		e.log.WarnContext(ctx, "data path cleanup failed", "err", err)
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

func counter(b Tx, k []byte) int64 {
	v := b.Get(usageTable, k)
	if len(v) != 8 {
		return 0
	}
	return int64(binary.BigEndian.Uint64(v))
}
