package engine

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"slices"

	"github.com/kuryr/kuryr/internal/sortslice"
	"github.com/kuryr/kuryr/internal/valid"
	"github.com/kuryr/kuryr/sdn"
)

func (e *Engine) showAddressGroup(b Tx, r *AddressGroupRow) (sdn.AddressGroup, error) {
	e.fillMeta(&r.Meta)
	out := r.AddressGroup
	out.Shared = granted(b, r.ID, false, sdn.Everyone)
	return out, nil
}

// ApplyAddressGroup makes an address group be this value.
func (e *Engine) ApplyAddressGroup(ctx context.Context, spec sdn.AddressGroupSpec) (out sdn.AddressGroup, err error) {
	if err := errors.Join(e.withGroups(errNoAddressGroups), valid.Base("address group", spec.Base)); err != nil {
		return out, err
	}
	prefixes, err := prefixSet(spec.Prefixes)
	if err != nil {
		return out, err
	}
	err = e.update(ctx, func(t *tx) error {
		r, err := AddressGroups.applied(t, spec.ID, spec.Base)
		if err != nil {
			return err
		}
		changed := r == nil
		if r == nil {
			r = &AddressGroupRow{AddressGroup: sdn.AddressGroup{Meta: newMeta(spec.Base)}}
		} else if changed, err = AddressGroups.rebase(t, &r.Meta, spec.Base, spec.ID, spec.IfRevision); err != nil {
			return err
		}
		if other := r.Defined == 0 || !slices.Equal(prefixes, r.Prefixes); other || changed {
			err = t.putAddressGroup(r, prefixes, other)
		}
		if err != nil {
			return err
		}
		out, err = e.showAddressGroup(t.Tx, r)
		e.disown(ctx, &out.Meta)
		return err
	})
	return out, err
}

func (t *tx) putAddressGroup(r *AddressGroupRow, prefixes []netip.Prefix, other bool) error {
	if other {
		r.Prefixes, r.Defined = prefixes, r.Revision+1
	}
	return AddressGroups.put(t, r)
}

// prefixSet is prefixes in order, each once and without bits beyond its length.
func prefixSet(prefixes []netip.Prefix) ([]netip.Prefix, error) {
	var set []netip.Prefix
	for i, p := range prefixes {
		field := fmt.Sprintf("prefixes[%d]", i)
		if !p.IsValid() {
			return nil, sdn.Invalid("address group", field, "is no prefix")
		}
		if err := valid.Addr("address group", field, p.Addr()); err != nil {
			return nil, err
		}
		set = append(set, p.Masked())
	}
	sortslice.Func(set, netip.Prefix.Compare)
	return slices.Compact(set), nil
}

// AddressGroup gets an address group.
func (e *Engine) AddressGroup(ctx context.Context, id sdn.ID) (out sdn.AddressGroup, err error) {
	if err := e.withGroups(errNoAddressGroups); err != nil {
		return out, err
	}
	return get(ctx, e, AddressGroups, id, e.showAddressGroup)
}

// FindAddressGroups streams address groups.
func (e *Engine) FindAddressGroups(ctx context.Context, q sdn.AddressGroupQuery) iter.Seq2[sdn.AddressGroup, error] {
	if err := e.withGroups(errNoAddressGroups); err != nil {
		return broken[sdn.AddressGroup](err)
	}
	scans, err := e.scansOf(ctx, AddressGroups.Noun, q.Match, byProject(q.Match))
	if err != nil {
		return broken[sdn.AddressGroup](err)
	}
	return search(ctx, e, AddressGroups, scans, e.showAddressGroup, func(g sdn.AddressGroup) bool { return q.Matches(g.Meta) })
}

// DeleteAddressGroup deletes an address group that no rules name.
func (e *Engine) DeleteAddressGroup(ctx context.Context, id sdn.ID) error {
	if err := e.withGroups(errNoAddressGroups); err != nil {
		return err
	}
	return e.release(ctx, func(t *tx) error { return t.deleteAddressGroup(id) })
}

func (t *tx) deleteAddressGroup(id sdn.ID) error {
	if !AddressGroups.has(t.Tx, id) {
		return nil
	}
	if SecurityGroups.any(t.Tx, "set", string(id)) {
		return inUse("address group", id, "rules name it")
	}
	if err := t.dropAccess(id); err != nil {
		return err
	}
	return AddressGroups.del(t, id)
}
