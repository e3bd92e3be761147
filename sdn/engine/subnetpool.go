package engine

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"net/netip"
	"slices"

	"github.com/kuryr/kuryr/internal/ipprefix"
	"github.com/kuryr/kuryr/internal/valid"
	"github.com/kuryr/kuryr/sdn"
)

func (e *Engine) showSubnetPool(_ Tx, r *subnetPoolRow) (sdn.SubnetPool, error) {
	e.fillMeta(&r.Meta)
	return r.SubnetPool, nil
}

// EnsureSubnetPool makes, finishes or adopts a subnet pool.
func (e *Engine) EnsureSubnetPool(ctx context.Context, spec sdn.SubnetPoolSpec) (sdn.SubnetPool, error) {
	return only(e.EnsureAllSubnetPools(ctx, []sdn.SubnetPoolSpec{spec}))
}

func (t *tx) ensureSubnetPool(spec sdn.SubnetPoolSpec) (*subnetPoolRow, error) {
	r, err := subnetPools.ensured(t, spec.Base)
	if err != nil {
		return nil, err
	}
	if r == nil {
		return t.makeSubnetPool(spec)
	}
	return r, t.adoptSubnetPool(r, spec)
}

func checkPoolPrefixes(prefixes []netip.Prefix) error {
	for i, p := range prefixes {
		field := fmt.Sprintf("prefixes[%d]", i)
		if err := valid.Prefix("subnet pool", field, p); err != nil {
			return err
		}
		if family(p.Addr()) != family(prefixes[0].Addr()) {
			return sdn.Invalid("subnet pool", field, "%v is not of the family of %v", p, prefixes[0])
		}
		for _, other := range prefixes[:i] {
			if p.Overlaps(other) {
				return sdn.Invalid("subnet pool", field, "%v overlaps %v", p, other)
			}
		}
	}
	return nil
}

func (t *tx) makeSubnetPool(spec sdn.SubnetPoolSpec) (*subnetPoolRow, error) {
	if len(spec.Prefixes) == 0 {
		return nil, sdn.Invalid("subnet pool", "prefixes", "needs at least one")
	}
	r := &subnetPoolRow{sdn.SubnetPool{
		Meta: newMeta(spec.Base), Prefixes: spec.Prefixes, DefaultLen: spec.DefaultLen, MinLen: spec.MinLen, MaxLen: spec.MaxLen, Shared: spec.Shared,
		Default: spec.Default, DefaultQuota: spec.DefaultQuota, Scope: spec.Scope,
	}}
	if err := errors.Join(t.checkPoolDefaults(r), t.checkScope(r)); err != nil {
		return nil, err
	}
	shortest, longest := r.Prefixes[0].Bits(), 0
	for _, p := range r.Prefixes {
		shortest, longest = min(shortest, p.Bits()), max(longest, p.Bits())
	}
	if r.MinLen == 0 {
		r.MinLen = shortest
	}
	if r.MaxLen == 0 {
		r.MaxLen = family(r.Prefixes[0].Addr())
	}
	if r.DefaultLen == 0 {
		r.DefaultLen = longest
	}
	if err := checkPoolLengths(r); err != nil {
		return nil, err
	}
	free, err := makeIntervals(t.Tx, prefixIndexes, r.ID)
	if err != nil {
		return nil, err
	}
	for _, p := range r.Prefixes {
		if err := free.join(p.Addr(), ipprefix.Last(p)); err != nil {
			return nil, err
		}
	}
	return r, subnetPools.put(t, r)
}

// checkPoolDefaults refuses a second default pool of a family and a quota that is none.
func (t *tx) checkPoolDefaults(r *subnetPoolRow) error {
	if r.DefaultQuota < 0 {
		return sdn.Invalid("subnet pool", "default_quota", "must be 0 or more, not %d", r.DefaultQuota)
	}
	if !r.Default {
		return nil
	}
	return subnetPools.Each(t.Tx, func(other *subnetPoolRow) error {
		if other.Default && other.ID != r.ID && family(other.Prefixes[0].Addr()) == family(r.Prefixes[0].Addr()) {
			return sdn.Invalid("subnet pool", "default", "another pool of this family is the default one")
		}
		return nil
	})
}

func checkPoolLengths(r *subnetPoolRow) error {
	whole := family(r.Prefixes[0].Addr())
	switch {
	case r.MinLen < 1 || r.MinLen > whole:
		return sdn.Invalid("subnet pool", "min_len", "must be from 1 to %d, not %d", whole, r.MinLen)
	case r.MaxLen < r.MinLen || r.MaxLen > whole:
		return sdn.Invalid("subnet pool", "max_len", "must be from %d to %d, not %d", r.MinLen, whole, r.MaxLen)
	case r.DefaultLen < r.MinLen || r.DefaultLen > r.MaxLen:
		return sdn.Invalid("subnet pool", "default_len", "must be from %d to %d, not %d", r.MinLen, r.MaxLen, r.DefaultLen)
	}
	return nil
}

func (t *tx) adoptSubnetPool(r *subnetPoolRow, spec sdn.SubnetPoolSpec) error {
	if spec.Shared && !r.Shared {
		return immutable("subnet pool", r.ID, "shared", r.Shared, spec.Shared)
	}
	changed, err := adopt("subnet pool", &r.Meta, spec.Base)
	if err != nil {
		return err
	}
	if spec.Prefixes != nil {
		grown, err := t.growSubnetPool(r, spec.Prefixes)
		if err != nil {
			return err
		}
		changed = grown || changed
	}
	changed = set(&r.Default, spec.Default) || changed
	changed = set(&r.DefaultQuota, spec.DefaultQuota) || changed
	if spec.Scope != "" && spec.Scope != r.Scope {
		return immutable("subnet pool", r.ID, "scope", r.Scope, spec.Scope)
	}
	if err := errors.Join(t.checkPoolDefaults(r), t.checkScope(r)); err != nil {
		return err
	}
	for _, l := range []struct {
		field *int
		want  int
	}{{&r.DefaultLen, spec.DefaultLen}, {&r.MinLen, spec.MinLen}, {&r.MaxLen, spec.MaxLen}} {
		changed = set(l.field, l.want) || changed
	}
	if err := checkPoolLengths(r); err != nil {
		return err
	}
	if !changed {
		return nil
	}
	return subnetPools.put(t, r)
}

// growSubnetPool gives the pool the prefixes it does not have yet; those it has must stay.
func (t *tx) growSubnetPool(r *subnetPoolRow, want []netip.Prefix) (grown bool, err error) {
	for _, p := range r.Prefixes {
		if !slices.Contains(want, p) {
			return false, &sdn.Error{
				Kind: sdn.KindConflict, Reason: sdn.Immutable, Noun: "subnet pool", ID: string(r.ID), Field: "prefixes",
				Detail: fmt.Sprintf("can only grow, and %v is missing", p),
			}
		}
	}
	if len(want) == len(r.Prefixes) {
		return false, nil
	}
	if family(want[0].Addr()) != family(r.Prefixes[0].Addr()) {
		return false, sdn.Invalid("subnet pool", "prefixes", "must stay of the family of %v", r.Prefixes[0])
	}
	free, err := openIntervals(t.Tx, prefixIndexes, r.ID)
	if err != nil {
		return false, err
	}
	for _, p := range want {
		if slices.Contains(r.Prefixes, p) {
			continue
		}
		if err := free.join(p.Addr(), ipprefix.Last(p)); err != nil {
			return false, err
		}
	}
	r.Prefixes = want
	return true, nil
}

// RemovePrefixes removes prefixes from a subnet pool, if no subnet was cut from them.
func (e *Engine) RemovePrefixes(
	ctx context.Context, pool sdn.ID, prefixes []netip.Prefix, ifRevision int64,
) (out sdn.SubnetPool, err error) {
	err = e.update(ctx, func(t *tx) error {
		r, err := subnetPools.Need(t.Tx, pool)
		if err != nil {
			return err
		}
		if err := subnetPools.patch(t, &r.Meta, sdn.Patch{IfRevision: ifRevision}); err != nil {
			return err
		}
		left, err := t.removePrefixes(r, prefixes)
		if err != nil {
			return err
		}
		if !slices.Equal(left, r.Prefixes) {
			r.Prefixes = left
			if err := subnetPools.put(t, r); err != nil {
				return err
			}
		}
		out, err = e.showSubnetPool(t.Tx, r)
		e.disown(ctx, &out.Meta)
		return err
	})
	return out, err
}

// removePrefixes takes prefixes out of what the pool has to give, and returns those that are left.
func (t *tx) removePrefixes(r *subnetPoolRow, prefixes []netip.Prefix) (left []netip.Prefix, err error) {
	free, err := openIntervals(t.Tx, prefixIndexes, r.ID)
	if err != nil {
		return nil, err
	}
	for _, have := range r.Prefixes {
		rest := ipprefix.Without(have, prefixes)
		left = append(left, rest...)
		for _, gone := range ipprefix.Without(have, rest) {
			err := free.cut(gone.Addr(), ipprefix.Last(gone))
			if errors.Is(err, errNotFree) {
				return nil, &sdn.Error{
					Kind: sdn.KindConflict, Reason: sdn.InUse, Noun: "subnet pool", ID: string(r.ID), Field: "prefixes",
					Detail: fmt.Sprintf("subnets were cut from %v", gone),
				}
			}
			if err != nil {
				return nil, err
			}
		}
	}
	if len(left) == 0 {
		return nil, sdn.Invalid("subnet pool", "prefixes", "must not all be removed")
	}
	return left, nil
}

// checkPoolQuota refuses a prefix of a length with which a project would have more of a pool than
// its default quota.
func (t *tx) checkPoolQuota(r *subnetPoolRow, project string, length int) error {
	if r.DefaultQuota == 0 {
		return nil
	}
	unit := 64
	if r.Prefixes[0].Addr().Is4() {
		unit = 32
	}
	cut, err := Subnets.All(t.Tx, "pool", string(r.ID))
	if err != nil {
		return err
	}
	used := math.Exp2(float64(unit - length))
	for _, s := range cut {
		if s.Project == project {
			used += math.Exp2(float64(unit - s.CIDR.Bits()))
		}
	}
	if used <= float64(r.DefaultQuota) {
		return nil
	}
	return &sdn.Error{
		Kind: sdn.KindExhausted, Reason: sdn.NoQuota, Noun: "subnet pool", ID: string(r.ID), Field: "default_quota",
		Detail: fmt.Sprintf("one project may have %d units of a /%d of it", r.DefaultQuota, unit),
	}
}

// cutPrefix takes cidr out of a pool for a project, or with a zero cidr any prefix of the given
// length (0: the pool's default).
func (t *tx) cutPrefix(pool sdn.ID, project string, cidr netip.Prefix, length int) (netip.Prefix, error) {
	r, err := subnetPools.Need(t.Tx, pool)
	if err != nil {
		return cidr, err
	}
	field := "prefix_len"
	if cidr.IsValid() {
		field, length = "cidr", cidr.Bits()
	} else if length == 0 {
		length = r.DefaultLen
	}
	if length < r.MinLen || length > r.MaxLen {
		return cidr, sdn.Invalid("subnet", field, "the length is %d, but the pool gives from %d to %d", length, r.MinLen, r.MaxLen)
	}
	if err := t.checkPoolQuota(r, project, length); err != nil {
		return cidr, err
	}
	free, err := openIntervals(t.Tx, prefixIndexes, pool)
	if err != nil {
		return cidr, err
	}
	if !cidr.IsValid() {
		p, ok, err := free.takePrefix(length)
		if err == nil && !ok {
			err = sdn.Exhausted(sdn.NoPrefixes, "subnet pool", "no prefix of length %d is free in it", length)
		}
		return p, err
	}
	inside := func(p netip.Prefix) bool { return p.Bits() <= cidr.Bits() && p.Contains(cidr.Addr()) }
	err = free.cut(cidr.Addr(), ipprefix.Last(cidr))
	if errors.Is(err, errNotFree) {
		if !slices.ContainsFunc(r.Prefixes, inside) {
			return cidr, sdn.Invalid("subnet", "cidr", "%v is not inside the pool", cidr)
		}
		return cidr, sdn.Conflict(sdn.Exists, "subnet", "cidr", "%v overlaps another subnet of the pool", cidr)
	}
	return cidr, err
}

// joinPrefix gives a prefix back to its pool.
func (t *tx) joinPrefix(pool sdn.ID, cidr netip.Prefix) error {
	free, err := openIntervals(t.Tx, prefixIndexes, pool)
	if err != nil {
		return err
	}
	return free.join(cidr.Addr(), ipprefix.Last(cidr))
}

// SubnetPool gets a subnet pool.
func (e *Engine) SubnetPool(ctx context.Context, id sdn.ID) (sdn.SubnetPool, error) {
	return get(ctx, e, subnetPools, id, e.showSubnetPool)
}

// FindSubnetPools streams subnet pools.
func (e *Engine) FindSubnetPools(ctx context.Context, q sdn.SubnetPoolQuery) iter.Seq2[sdn.SubnetPool, error] {
	var overlaps []scan
	for _, prefix := range q.Overlaps {
		overlaps = append(overlaps, overlapping(prefix)...)
	}
	scans, err := e.scansOf(ctx, subnetPools.Noun, q.Match, overlaps, byEach("name", q.Names), byProject(q.Match),
		sharedOnly(q.Shared))
	if err != nil {
		return broken[sdn.SubnetPool](err)
	}
	return search(ctx, e, subnetPools, scans, e.showSubnetPool, q.Matches)
}

// UpdateSubnetPool changes a subnet pool.
func (e *Engine) UpdateSubnetPool(ctx context.Context, id sdn.ID, change sdn.SubnetPoolPatch) (out sdn.SubnetPool, err error) {
	if err := valid.Patch("subnet pool", change.Patch); err != nil {
		return out, err
	}
	if change.Prefixes != nil {
		if err := checkPoolPrefixes(*change.Prefixes); err != nil {
			return out, err
		}
	}
	err = e.update(ctx, func(t *tx) error {
		r, err := subnetPools.Need(t.Tx, id)
		if err != nil {
			return err
		}
		if err := subnetPools.patch(t, &r.Meta, change.Patch); err != nil {
			return err
		}
		if change.Prefixes != nil {
			if _, err := t.growSubnetPool(r, *change.Prefixes); err != nil {
				return err
			}
		}
		for _, l := range []struct{ field, want *int }{{&r.DefaultLen, change.DefaultLen}, {&r.MinLen, change.MinLen}, {&r.MaxLen, change.MaxLen}} {
			if l.want != nil {
				*l.field = *l.want
			}
		}
		if change.Default != nil {
			r.Default = *change.Default
		}
		if change.DefaultQuota != nil {
			r.DefaultQuota = *change.DefaultQuota
		}
		moves := change.Scope != nil && *change.Scope != r.Scope
		if moves {
			r.Scope = *change.Scope
		}
		if err := errors.Join(checkPoolLengths(r), t.checkPoolDefaults(r), t.checkScope(r)); err != nil {
			return err
		}
		if err := subnetPools.put(t, r); err != nil {
			return err
		}
		if moves {
			if err := t.moveScope(r); err != nil {
				return err
			}
		}
		out, err = e.showSubnetPool(t.Tx, r)
		e.disown(ctx, &out.Meta)
		return err
	})
	return out, err
}

// DeleteSubnetPool deletes a subnet pool that no subnet was cut from.
func (e *Engine) DeleteSubnetPool(ctx context.Context, id sdn.ID) error {
	return e.release(ctx, func(t *tx) error { return t.deleteSubnetPool(id) })
}

func (t *tx) deleteSubnetPool(id sdn.ID) error {
	r, err := subnetPools.Get(t.Tx, id)
	if err != nil || r == nil {
		return err
	}
	if Subnets.any(t.Tx, "pool", string(id)) {
		return inUse("subnet pool", id, "subnets were cut from it")
	}
	if err := dropIntervals(t.Tx, prefixIndexes, id); err != nil {
		return err
	}
	if err := t.dropAccess(id); err != nil {
		return err
	}
	return subnetPools.del(t, id)
}
