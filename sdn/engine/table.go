package engine

import (
	"bytes"
	"encoding/json"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/kuryr/kuryr/sdn"
)

// row is a record of a table: a pointer to what is stored.
type row[T any] interface {
	*T
	meta() *sdn.Meta
	// counted tells whether the row counts against its project's quota.
	counted() bool
}

// table is a noun's table, id → JSON, with those of its indexes, which put and del keep.
type table[T any, R row[T]] struct {
	Noun    sdn.Noun
	title   string // the noun in errors
	indexes []index[T]
}

// counts is the noun of the quota that the rows count against.
func (t table[T, R]) counts() sdn.Noun {
	if t.Noun == forwardTable {
		return sdn.NounForward
	}
	return t.Noun
}

// index finds rows by something other than their id. A unique index is key → id; another is key, 0, id → nothing.
type index[T any] struct {
	name   string
	unique bool
	keys   func(*T) []string
}

// key joins the parts of an index key. Ids, names of devices and the like hold no zero byte
// (validated), so parts cannot run together; only the last part may be binary.
func key(parts ...string) string { return strings.Join(parts, "\x00") }

// indexTable is the name of the table of an index.
func (t table[T, R]) indexTable(index string) string { return string(t.Noun) + "." + index }

// tableNames lists the table of the rows and those of the indexes.
func (t table[T, R]) tableNames() []string {
	names := []string{string(t.Noun)}
	for _, ix := range t.indexes {
		names = append(names, t.indexTable(ix.name))
	}
	return names
}

// index makes indexes anew that an older store does not have.
func (t table[T, R]) index(b Tx, names ...string) error {
	fresh := t
	fresh.indexes = slices.DeleteFunc(slices.Clone(t.indexes), func(ix index[T]) bool { return !slices.Contains(names, ix.name) })
	return t.Each(b, func(r R) error { return fresh.reindex(b, r.meta().ID, nil, r) })
}

func (t table[T, R]) decode(id, value []byte) (R, error) {
	r := R(new(T))
	if err := json.Unmarshal(value, r); err != nil {
		return nil, damaged(t.title, string(id), err)
	}
	if r.meta().ID != sdn.ID(id) {
		return nil, damaged(t.title, string(id), fmt.Errorf("it says it is %q", r.meta().ID))
	}
	return r, nil
}

func damaged(title, id string, cause error) error {
	return &sdn.Error{Kind: sdn.KindUnavailable, Noun: title, ID: id, Detail: "its record in the store is damaged", Err: cause}
}

// Get finds a row by id; nil if absent.
func (t table[T, R]) Get(tx Tx, id sdn.ID) (R, error) {
	if id == "" {
		return nil, nil
	}
	v := tx.Get(string(t.Noun), []byte(id))
	if v == nil {
		return nil, nil
	}
	return t.decode([]byte(id), v)
}

// has tells whether there is a row of this id.
func (t table[T, R]) has(tx Tx, id sdn.ID) bool {
	return id != "" && tx.Get(string(t.Noun), []byte(id)) != nil
}

// Need finds a row by id; IsNotFound if absent.
func (t table[T, R]) Need(tx Tx, id sdn.ID) (R, error) {
	r, err := t.Get(tx, id)
	if err == nil && r == nil {
		return nil, sdn.NotFound(t.title, id)
	}
	return r, err
}

// ID looks a key up in a unique index; "" if absent.
func (t table[T, R]) ID(tx Tx, index, k string) sdn.ID {
	return sdn.ID(tx.Get(t.indexTable(index), []byte(k)))
}

// By finds a row in a unique index; nil if absent.
func (t table[T, R]) By(tx Tx, index, k string) (R, error) {
	return t.Get(tx, t.ID(tx, index, k))
}

// byKey finds a project's row by its Key; nil for the zero Key and if absent.
func (t table[T, R]) byKey(tx Tx, project string, k sdn.Key) (R, error) {
	if k.IsZero() {
		return nil, nil
	}
	return t.By(tx, "key", identKey(project, k))
}

// ensured finds the row that a spec is of; nil where it must be made. The spec's project
// is the caller's from then on.
func (t table[T, R]) ensured(tx *tx, b sdn.Base) (R, error) {
	tx.e.projects.note(tx.ctx, b.Project)
	r, err := t.byKey(tx.Tx, b.Project, b.Key)
	if err == nil && r != nil {
		t.touch(tx, r)
	}
	return r, err
}

// touch records that the caller asks for a row that may be so already.
func (t table[T, R]) touch(tx *tx, r R) {
	id := RowID{t.Noun, r.meta().ID}
	if tx.changes[id] == nil {
		tx.changes[id] = &RowChange{before: r, after: r}
	}
	tx.changes[id].Touched = true
}

// any tells whether an index that is not unique has an entry for k.
func (t table[T, R]) any(tx Tx, index, k string) bool {
	return anyWith(tx, t.indexTable(index), k+"\x00")
}

// IDs lists what an index that is not unique has for k, which is a key or its first parts.
func (t table[T, R]) IDs(tx Tx, index, k string) []sdn.ID {
	var ids []sdn.ID
	for found := range with(tx, t.indexTable(index), k+"\x00") {
		ids = append(ids, sdn.ID(found[bytes.LastIndexByte(found, 0)+1:]))
	}
	return ids
}

// All lists the rows of ids.
func (t table[T, R]) All(tx Tx, index, k string) ([]R, error) {
	var rows []R
	for _, id := range t.IDs(tx, index, k) {
		r, err := t.Need(tx, id)
		if err != nil {
			return nil, err
		}
		rows = append(rows, r)
	}
	return rows, nil
}

// Each calls f with every row.
func (t table[T, R]) Each(tx Tx, f func(R) error) error {
	for k, v := range tx.Seek(string(t.Noun), nil) {
		r, err := t.decode(k, v)
		if err != nil {
			return err
		}
		if err := f(r); err != nil {
			return err
		}
	}
	return nil
}

// put writes a row at its next revision, and its index entries. What must be unique was checked by the caller.
func (t table[T, R]) put(tx *tx, r R) error {
	m := r.meta()
	m.Updated = tx.now
	m.Revision++
	if m.Created.IsZero() {
		m.Created = tx.now
	}
	return t.write(tx, r)
}

// write is put for a change that users do not see: the revision stays.
func (t table[T, R]) write(tx *tx, r R) error {
	tx.wrote = true
	m := r.meta()
	old, err := t.Get(tx.Tx, m.ID)
	if err != nil {
		return err
	}
	if old == nil {
		if err := tx.tally(t.Noun, 1); err != nil {
			return err
		}
		if r.counted() {
			if err := tx.count(t.counts(), m.Project, 1); err != nil {
				return err
			}
		}
	}
	if old == nil {
		tx.record(RowID{t.Noun, m.ID}, nil, r)
	} else {
		tx.record(RowID{t.Noun, m.ID}, old, r)
	}
	return t.replace(tx.Tx, old, r)
}

// replace writes a row and its index entries in place of old (nil: there was none), and nothing else.
func (t table[T, R]) replace(tx Tx, old, r R) error {
	id := r.meta().ID
	if err := t.reindex(tx, id, old, r); err != nil {
		return err
	}
	v, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode %s %s: %w", t.title, id, err)
	}
	return tx.Put(string(t.Noun), []byte(id), v)
}

// del removes a row and its index entries.
func (t table[T, R]) del(tx *tx, id sdn.ID) error {
	tx.wrote = true
	old, err := t.Need(tx.Tx, id)
	if err != nil {
		return err
	}
	if err := tx.tally(t.Noun, -1); err != nil {
		return err
	}
	if old.counted() {
		if err := tx.count(t.counts(), old.meta().Project, -1); err != nil {
			return err
		}
	}
	if err := t.reindex(tx.Tx, id, old, nil); err != nil {
		return err
	}
	tx.record(RowID{t.Noun, id}, old, nil)
	return tx.Delete(string(t.Noun), []byte(id))
}

func (t table[T, R]) reindex(tx Tx, id sdn.ID, old, new R) error {
	for _, ix := range t.indexes {
		name := t.indexTable(ix.name)
		gone, made := map[string]bool{}, map[string]bool{}
		if old != nil {
			for _, k := range ix.keys(old) {
				gone[k] = true
			}
		}
		if new != nil {
			for _, k := range ix.keys(new) {
				made[k] = true
			}
		}
		for k := range gone {
			if made[k] {
				continue
			}
			if !ix.unique {
				k = key(k, string(id))
			}
			if err := tx.Delete(name, []byte(k)); err != nil {
				return err
			}
		}
		for k := range made {
			if gone[k] {
				continue
			}
			if !ix.unique {
				if err := tx.Put(name, []byte(key(k, string(id))), nil); err != nil {
					return err
				}
				continue
			}
			if holder := tx.Get(name, []byte(k)); holder != nil && sdn.ID(holder) != id {
				return fmt.Errorf("index %s of %s: %q is %s's", ix.name, t.title, k, holder)
			}
			if err := tx.Put(name, []byte(k), []byte(id)); err != nil {
				return err
			}
		}
	}
	return nil
}

// with returns what a table has under keys that start with prefix, in their order.
func with(tx Tx, table, prefix string) iter.Seq2[[]byte, []byte] {
	return func(yield func(k, v []byte) bool) {
		start := []byte(prefix)
		for k, v := range tx.Seek(table, start) {
			if !bytes.HasPrefix(k, start) || !yield(k, v) {
				return
			}
		}
	}
}

// anyWith reports whether a table has a key that starts with prefix.
func anyWith(tx Tx, table, prefix string) bool {
	for range with(tx, table, prefix) {
		return true
	}
	return false
}
