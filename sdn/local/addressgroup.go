package local

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
	"github.com/kuryr/kuryr/sdn/engine"
)

func (p *Provider) showAddressGroup(b engine.Tx, r *addressGroupRow) (sdn.AddressGroup, error) {
	p.fillMeta(&r.Meta)
	out := r.AddressGroup
	out.Shared = granted(b, r.ID, false, sdn.Everyone)
	return out, nil
}

// ApplyAddressGroup makes an address group be this value.
func (p *Provider) ApplyAddressGroup(ctx context.Context, spec sdn.AddressGroupSpec) (out sdn.AddressGroup, err error) {
	if err := errors.Join(p.withGroups(errNoAddressGroups), valid.Base("address group", spec.Base)); err != nil {
		return out, err
	}
	prefixes, err := prefixSet(spec.Prefixes)
	if err != nil {
		return out, err
	}
	err = p.update(ctx, func(t *tx) error {
		r, err := addressGroups.applied(t, spec.ID, spec.Base)
		if err != nil {
			return err
		}
		changed := r == nil
		if r == nil {
			r = &addressGroupRow{AddressGroup: sdn.AddressGroup{Meta: newMeta(spec.Base)}}
		} else if changed, err = addressGroups.rebase(t, &r.Meta, spec.Base, spec.ID, spec.IfRevision); err != nil {
			return err
		}
		if other := r.Defined == 0 || !slices.Equal(prefixes, r.Prefixes); other || changed {
			err = t.putAddressGroup(r, prefixes, other)
		}
		if err != nil {
			return err
		}
		out, err = p.showAddressGroup(t.Tx, r)
		p.disown(ctx, &out.Meta)
		return err
	})
	return out, err
}

func (t *tx) putAddressGroup(r *addressGroupRow, prefixes []netip.Prefix, other bool) error {
	if other {
		r.Prefixes, r.Defined = prefixes, r.Revision+1
	}
	return addressGroups.put(t, r)
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
func (p *Provider) AddressGroup(ctx context.Context, id sdn.ID) (out sdn.AddressGroup, err error) {
	if err := p.withGroups(errNoAddressGroups); err != nil {
		return out, err
	}
	return get(ctx, p, addressGroups, id, p.showAddressGroup)
}

// FindAddressGroups streams address groups.
func (p *Provider) FindAddressGroups(ctx context.Context, q sdn.AddressGroupQuery) iter.Seq2[sdn.AddressGroup, error] {
	if err := p.withGroups(errNoAddressGroups); err != nil {
		return broken[sdn.AddressGroup](err)
	}
	scans, err := p.scansOf(ctx, addressGroups.noun, q.Match, byProject(q.Match))
	if err != nil {
		return broken[sdn.AddressGroup](err)
	}
	return search(ctx, p, addressGroups, scans, p.showAddressGroup, func(g sdn.AddressGroup) bool { return q.Matches(g.Meta) })
}

// DeleteAddressGroup deletes an address group that no rules name.
func (p *Provider) DeleteAddressGroup(ctx context.Context, id sdn.ID) error {
	if err := p.withGroups(errNoAddressGroups); err != nil {
		return err
	}
	return p.release(ctx, func(t *tx) error { return t.deleteAddressGroup(id) })
}

func (t *tx) deleteAddressGroup(id sdn.ID) error {
	if !addressGroups.has(t.Tx, id) {
		return nil
	}
	if securityGroups.any(t.Tx, "set", string(id)) {
		return inUse("address group", id, "rules name it")
	}
	if err := t.dropAccess(id); err != nil {
		return err
	}
	return addressGroups.del(t, id)
}
