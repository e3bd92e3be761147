package engine

import (
	"slices"

	"github.com/kuryr/kuryr/internal/valid"
	"github.com/kuryr/kuryr/sdn"
)

// What is applied as a whole value is named by its id or else by its Key.

// applied finds what is to be made into a value; nil if that is to be made first.
func (t table[T, R]) applied(tx *tx, id sdn.ID, b sdn.Base) (R, error) {
	if id != "" {
		r, err := t.Need(tx.Tx, id)
		if err == nil {
			t.touch(tx, r)
		}
		return r, err
	}
	return t.ensured(tx, b)
}

// rebase changes what a value's Base says of an object, and tells whether anything changed. Of one
// that was named by its id the Base's Key and description count too.
func (t table[T, R]) rebase(tx *tx, m *sdn.Meta, b sdn.Base, id sdn.ID, ifRevision int64) (changed bool, err error) {
	p := sdn.Patch{IfRevision: ifRevision}
	if b.Project != "" && b.Project != m.Project {
		return false, immutable(t.title, m.ID, "project", m.Project, b.Project)
	}
	if b.Name != "" && b.Name != m.Name {
		p.Name, changed = &b.Name, true
	}
	if b.Tags != nil {
		if tags := valid.TagSet(b.Tags); !slices.Equal(tags, m.Tags) {
			p.Tags, changed = &tags, true
		}
	}
	if id != "" && !b.Key.IsZero() && b.Key != m.Key {
		p.Key, changed = &b.Key, true
	}
	if id != "" && b.Description != "" && b.Description != m.Description {
		p.Description, changed = &b.Description, true
	}
	return changed, t.patch(tx, m, p)
}
