package engine

import (
	"bytes"
	"context"
	"errors"
	"iter"
	"maps"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/google/btree"
)

// Memory is a Store that keeps its tables in memory and forgets them with the process.
type Memory struct {
	writing sync.Mutex
	// current is what a View sees. Its trees are never changed: a Writer changes copies.
	current atomic.Pointer[map[string]*tree]
}

// tree is a table.
type tree = btree.BTreeG[entry]

type entry struct{ key, value []byte }

// degree is half the number of entries that a node of a tree holds at most.
const degree = 32

var (
	errKey      = errors.New("the key is empty or too large")
	errReadOnly = errors.New("the transaction only reads or has ended")
)

func newTree() *tree {
	return btree.NewG(degree, func(a, b entry) bool { return bytes.Compare(a.key, b.key) < 0 })
}

// NewMemory returns an empty store.
func NewMemory() *Memory {
	m := &Memory{}
	m.current.Store(&map[string]*tree{})
	return m
}

// View implements Store.
func (m *Memory) View(read func(Tx) error) error {
	return read(&memoryTx{tables: *m.current.Load()})
}

// Begin implements Store.
func (m *Memory) Begin(context.Context) (Writer, error) {
	m.writing.Lock()
	return &memoryTx{tables: maps.Clone(*m.current.Load()), owned: map[string]bool{}, store: m}, nil
}

// Location implements Store.
func (m *Memory) Location() string { return "memory" }

// memoryTx is a transaction of a Memory.
type memoryTx struct {
	tables map[string]*tree
	owned  map[string]bool // tables that are copies of this Writer; nil if it only reads
	store  *Memory         // nil if it only reads, or has ended
}

// writable returns a tree that the transaction may change.
func (t *memoryTx) writable(table string) *tree {
	own := t.tables[table]
	switch {
	case own == nil:
		own = newTree()
	case !t.owned[table]:
		own = own.Clone()
	}
	t.tables[table], t.owned[table] = own, true
	return own
}

// Get implements Tx.
func (t *memoryTx) Get(table string, key []byte) []byte {
	own := t.tables[table]
	if own == nil {
		return nil
	}
	found, _ := own.Get(entry{key: key})
	return found.value
}

// Put implements Tx.
func (t *memoryTx) Put(table string, key, value []byte) error {
	if t.store == nil {
		return errReadOnly
	}
	if len(key) == 0 || len(key) > MaxKey {
		return errKey
	}
	if value == nil {
		value = []byte{}
	}
	t.writable(table).ReplaceOrInsert(entry{bytes.Clone(key), value})
	return nil
}

// Delete implements Tx.
func (t *memoryTx) Delete(table string, key []byte) error {
	if t.store == nil {
		return errReadOnly
	}
	if t.tables[table] != nil {
		t.writable(table).Delete(entry{key: key})
	}
	return nil
}

// Seek implements Tx.
func (t *memoryTx) Seek(table string, from []byte) iter.Seq2[[]byte, []byte] {
	return func(yield func(k, v []byte) bool) {
		if own := t.tables[table]; own != nil {
			own.AscendGreaterOrEqual(entry{key: from}, func(e entry) bool { return yield(e.key, e.value) })
		}
	}
}

// Floor implements Tx.
func (t *memoryTx) Floor(table string, key []byte) (k, v []byte) {
	if own := t.tables[table]; own != nil {
		own.DescendLessOrEqual(entry{key: key}, func(e entry) bool {
			k, v = e.key, e.value
			return false
		})
	}
	return k, v
}

// Clear implements Tx.
func (t *memoryTx) Clear(table string) error {
	if t.store == nil {
		return errReadOnly
	}
	maps.DeleteFunc(t.tables, func(name string, _ *tree) bool {
		return name == table || strings.HasPrefix(name, table+"/")
	})
	return nil
}

// Commit implements Writer.
func (t *memoryTx) Commit() error {
	if t.store == nil {
		return errReadOnly
	}
	t.store.current.Store(&t.tables)
	t.Rollback()
	return nil
}

// Rollback implements Writer.
func (t *memoryTx) Rollback() {
	if t.store != nil {
		t.store.writing.Unlock()
		t.store = nil
	}
}
