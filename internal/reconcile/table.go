package reconcile

import (
	"maps"
	"slices"
)

// table has the rows of a kind by their refs, so that no call reads those of other kinds. Store.put
// alone changes it. The store's mutex guards it.
type table struct {
	rows       map[string]*row
	unfinished map[string]*row // those on which Run has work
	indexed    index           // by what Indexed returns
}

// index has rows by a value that several may share, and by their refs.
type index map[string]map[string]*row

func (x index) add(value, name string, r *row) {
	if x[value] == nil {
		x[value] = map[string]*row{}
	}
	x[value][name] = r
}

func (x index) remove(value, name string) {
	if delete(x[value], name); len(x[value]) == 0 {
		delete(x, value)
	}
}

func newTable() table { return table{map[string]*row{}, map[string]*row{}, index{}} }

func unfinished(t *table) map[string]*row { return t.unfinished }

// isUnfinished reports whether Run deletes the row or ensures its spec again.
func (r *row) isUnfinished() bool { return r.Phase == Deleting || r.Redo }

func (t *table) add(name string, r *row) {
	t.rows[name] = r
	if r.isUnfinished() {
		t.unfinished[name] = r
	}
	for _, value := range r.index() {
		t.indexed.add(value, name, r)
	}
}

func (t *table) remove(name string, r *row) {
	delete(t.rows, name)
	delete(t.unfinished, name)
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

// snapshot returns the rows of a map of a kind's table.
func (k *kind) snapshot(of func(*table) map[string]*row) []*row {
	k.store.mu.Lock()
	defer k.store.mu.Unlock()
	return slices.Collect(maps.Values(of(&k.table)))
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
