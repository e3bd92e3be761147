package reconcile

import (
	"iter"
	"maps"
)

// table has the rows of a kind by their refs, so that no call reads those of other kinds. Store.put
// alone changes it. The store's mutex guards it.
type table struct {
	rows       map[string]*row
	unfinished map[string]*row // those on which Run has work
	unacked    map[string]*row
	indexed    index // by what Indexed returns
}

// index has rows by a value that several may share.
type index map[string]members

// members are rows by their refs. Most values have one row, which needs no map.
type members struct {
	name string
	row  *row
	more map[string]*row // nil: there is the one row
}

func (x index) add(value, name string, r *row) {
	m, ok := x[value]
	switch {
	case m.more != nil:
		m.more[name] = r
	case !ok || m.name == name:
		x[value] = members{name: name, row: r}
	default:
		x[value] = members{more: map[string]*row{m.name: m.row, name: r}}
	}
}

func (x index) remove(value, name string) {
	m := x[value]
	delete(m.more, name)
	if m.more == nil && m.name == name || m.more != nil && len(m.more) == 0 {
		delete(x, value)
	}
}

// of yields the rows that have a value, by their refs.
func (x index) of(value string) iter.Seq2[string, *row] {
	m, ok := x[value]
	if !ok || m.more != nil {
		return maps.All(m.more)
	}
	return func(yield func(string, *row) bool) { yield(m.name, m.row) }
}

func newTable() table { return table{map[string]*row{}, map[string]*row{}, map[string]*row{}, index{}} }

func unfinished(t *table) iter.Seq2[string, *row] { return maps.All(t.unfinished) }

// isUnfinished reports whether Run deletes the row or ensures its spec again.
func (r *row) isUnfinished() bool { return r.Phase == Deleting || r.Redo }

func (t *table) add(name string, r *row) {
	t.rows[name] = r
	if r.isUnfinished() {
		t.unfinished[name] = r
	}
	if !r.Acked {
		t.unacked[name] = r
	}
	for _, value := range r.index() {
		t.indexed.add(value, name, r)
	}
}

func (t *table) remove(name string, r *row) {
	delete(t.rows, name)
	delete(t.unfinished, name)
	delete(t.unacked, name)
	for _, value := range r.index() {
		t.indexed.remove(value, name)
	}
}

func (r *row) index() []string {
	if spec, ok := r.Spec.(Indexed); ok {
		return spec.Index()
	}
	return nil
}

// snapshot returns rows of a kind's table.
func (k *kind) snapshot(of func(*table) iter.Seq2[string, *row]) (rows []*row) {
	k.store.mu.Lock()
	defer k.store.mu.Unlock()
	for _, r := range of(&k.table) {
		rows = append(rows, r)
	}
	return rows
}

// counts are those of a kind's rows.
type counts struct{ wanted, deleting, unconfirmed int }

func (k *kind) countRows() (c counts) {
	k.store.mu.Lock()
	defer k.store.mu.Unlock()
	for _, r := range k.table.unfinished {
		if r.Phase == Deleting {
			c.deleting++
		}
		if r.Unconfirmed {
			c.unconfirmed++
		}
	}
	c.wanted = len(k.table.rows) - c.deleting
	return c
}
