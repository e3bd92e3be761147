package neutron

import (
	"cmp"
	"context"
	"encoding/json"
	"iter"
	"net/netip"
	"slices"
	"strconv"

	"github.com/kuryr/kuryr/internal/sortslice"
	"github.com/kuryr/kuryr/internal/valid"
	"github.com/kuryr/kuryr/sdn"
)

// subnetPoolWire is a subnet pool as Neutron says it. The lengths are texts in some releases and
// numbers in others. gophercloud's SubnetPool reads both but has none of meta.
type subnetPoolWire struct {
	meta
	Prefixes   []string    `json:"prefixes"`
	IPVersion  int         `json:"ip_version"`
	DefaultLen json.Number `json:"default_prefixlen"`
	MinLen     json.Number `json:"min_prefixlen"`
	MaxLen     json.Number `json:"max_prefixlen"`
	Shared     bool        `json:"shared"`
	Default    bool        `json:"is_default"`
	Quota      int64       `json:"default_quota"`    // a null is 0
	Scope      string      `json:"address_scope_id"` // likewise ""
}

var subnetPools = collection[*subnetPoolWire]{title: "subnet pool", item: "subnetpool", items: "subnetpools", path: "/subnetpools"}

func (w *subnetPoolWire) decode(o *owner) sdn.SubnetPool {
	s := sdn.SubnetPool{
		Meta: w.meta.decode(o), DefaultLen: number(w.DefaultLen), MinLen: number(w.MinLen),
		MaxLen: number(w.MaxLen), Shared: w.Shared, Default: w.Default, DefaultQuota: w.Quota,
		Scope: sdn.ID(w.Scope),
	}
	for _, text := range w.Prefixes {
		if prefix, err := netip.ParsePrefix(text); err == nil {
			s.Prefixes = append(s.Prefixes, prefix)
		}
	}
	sortslice.Func(s.Prefixes, netip.Prefix.Compare)
	return s
}

func number(n json.Number) int {
	i, _ := strconv.Atoi(n.String())
	return i
}

// SubnetPool returns what was read or written less than cacheAge ago, or asks; see
// cacheFresh.
func (p *Provider) SubnetPool(ctx context.Context, id sdn.ID) (sdn.SubnetPool, error) {
	w, err := cached(ctx, p, p.cache.pools, subnetPools, id)
	return decoded(p.owner, w, err)
}

// FindSubnetPools asks Neutron, unless the pools of the given Keys or ids are all in the
// cache. Neutron has no filter by overlaps: for them it reads all pools.
func (p *Provider) FindSubnetPools(ctx context.Context, q sdn.SubnetPoolQuery) iter.Seq2[sdn.SubnetPool, error] {
	return matchingCached(
		ctx, p, p.cache.pools, subnetPools, p.query(q.Match), q.Match, q.Matches,
	)
}

func checkPool(prefixes []netip.Prefix, lens ...poolLen) error {
	if len(prefixes) == 0 {
		return sdn.Invalid("subnet pool", "prefixes", "are missing")
	}
	bits := prefixes[0].Addr().BitLen()
	for i, prefix := range prefixes {
		if err := valid.Prefix("subnet pool", "prefixes["+strconv.Itoa(i)+"]", prefix); err != nil {
			return err
		}
		for _, other := range prefixes[:i] {
			if prefix.Addr().BitLen() != other.Addr().BitLen() {
				return sdn.Invalid("subnet pool", "prefixes["+strconv.Itoa(i)+"]", "%v is of another family than %v", prefix, other)
			}
			if prefix.Overlaps(other) {
				return sdn.Invalid("subnet pool", "prefixes["+strconv.Itoa(i)+"]", "%v overlaps %v", prefix, other)
			}
		}
	}
	for _, l := range lens {
		if l.value < 0 || l.value > bits {
			return sdn.Invalid("subnet pool", l.field, "must be from 0 to %d, not %d", bits, l.value)
		}
	}
	return nil
}

type poolLen struct {
	field string
	value int
}

// createSubnetPool tells Neutron a name, which it requires, and the lengths: its own least length is 8
// or 64, which would refuse a larger subnet with a given range.
func (p *Provider) createSubnetPool(
	ctx context.Context, spec sdn.SubnetPoolSpec,
) (*subnetPoolWire, error) {
	spec.Name = cmp.Or(spec.Name, spec.Key.Name, "kuryr")
	c := sdn.SubnetPoolPatch{
		Prefixes: &spec.Prefixes, MaxLen: nonZero(spec.MaxLen),
		Default: nonZero(spec.Default), DefaultQuota: nonZero(spec.DefaultQuota),
		Scope: nonZero(spec.Scope),
	}
	length := cmp.Or(spec.DefaultLen, longest(spec.Prefixes))
	least := min(shortest(spec.Prefixes), length, leastLen(spec.Prefixes[0]))
	least = cmp.Or(spec.MinLen, least)
	c.DefaultLen, c.MinLen = &length, &least
	body := setPool(p.body(spec.Base), c)
	set(body, "shared", nonZero(spec.Shared))
	return subnetPools.create(ctx, p, body)
}

func setPool(body map[string]any, c sdn.SubnetPoolPatch) map[string]any {
	if c.Prefixes != nil {
		body["prefixes"] = texts(*c.Prefixes)
	}
	set(body, "default_prefixlen", c.DefaultLen)
	set(body, "min_prefixlen", c.MinLen)
	set(body, "max_prefixlen", c.MaxLen)
	set(body, "is_default", c.Default)
	set(body, "default_quota", c.DefaultQuota)
	setID(body, "address_scope_id", c.Scope)
	return body
}

func leastLen(p netip.Prefix) int {
	if p.Addr().Is4() {
		return 8
	}
	return 64
}

func longest(prefixes []netip.Prefix) (bits int) {
	for _, p := range prefixes {
		bits = max(bits, p.Bits())
	}
	return bits
}

func shortest(prefixes []netip.Prefix) int {
	bits := 128
	for _, p := range prefixes {
		bits = min(bits, p.Bits())
	}
	return bits
}

// EnsureSubnetPool takes three requests for a new pool: a look, the pool, and a look for
// a duplicate. One that is New takes one. Tags are on top.
func (p *Provider) EnsureSubnetPool(ctx context.Context, spec sdn.SubnetPoolSpec) (sdn.SubnetPool, error) {
	p.owner.note(spec.Project)
	if err := valid.Base("subnet pool", spec.Base); err != nil {
		return sdn.SubnetPool{}, err
	}
	if err := checkPool(spec.Prefixes, poolLen{"default_len", spec.DefaultLen}, poolLen{"min_len", spec.MinLen}, poolLen{"max_len", spec.MaxLen}); err != nil {
		return sdn.SubnetPool{}, err
	}
	create := func(ctx context.Context) (*subnetPoolWire, error) {
		return p.createSubnetPool(ctx, spec)
	}
	w, made, err := ensure(ctx, p, subnetPools, spec.Base, ofNew(spec.New), create)
	if err == nil && !made {
		w, err = p.finishSubnetPool(ctx, w, spec)
	}
	if err != nil {
		return sdn.SubnetPool{}, err
	}
	tagged, err := writeTags(ctx, p, p.cache.pools, subnetPools, w, spec.Tags)
	if err == nil && tagged && !spec.New {
		w, err = subnetPools.read(ctx, p, sdn.ID(w.ID)) // for its revision
	}
	if err == nil {
		p.cache.pools.put(w)
	}
	return decoded(p.owner, w, err)
}

// finishSubnetPool changes an existing pool to what the spec says.
func (p *Provider) finishSubnetPool(ctx context.Context, w *subnetPoolWire, spec sdn.SubnetPoolSpec) (*subnetPoolWire, error) {
	now := w.decode(p.owner)
	if spec.Shared && !now.Shared {
		return nil, immutable("subnet pool", w.ID, "shared", now.Shared, spec.Shared)
	}
	c := sdn.SubnetPoolPatch{
		DefaultLen: unless(nonZero(spec.DefaultLen), now.DefaultLen, is),
		MinLen:     unless(nonZero(spec.MinLen), now.MinLen, is),
		MaxLen:     unless(nonZero(spec.MaxLen), now.MaxLen, is),

		Default:      unless(nonZero(spec.Default), now.Default, is),
		DefaultQuota: unless(nonZero(spec.DefaultQuota), now.DefaultQuota, is),
	}
	if spec.Scope != "" && spec.Scope != now.Scope {
		return nil, immutable("subnet pool", w.ID, "scope", now.Scope, spec.Scope)
	}
	want := sortslice.Sorted(spec.Prefixes, netip.Prefix.Compare)
	if !slices.Equal(want, now.Prefixes) && !covers(want, now.Prefixes) {
		return nil, immutable("subnet pool", w.ID, "prefixes", now.Prefixes, want)
	} else if !covers(now.Prefixes, want) {
		c.Prefixes = &want
	}
	body := setPool(map[string]any{}, c)
	if err := adopt("subnet pool", &w.meta, spec.Base, body); err != nil {
		return nil, err
	}
	if len(body) == 0 {
		return w, nil
	}
	return p.cache.pools.changing(now.ID, func() (*subnetPoolWire, error) {
		return subnetPools.update(ctx, p, now.ID, 0, body)
	})
}

// covers reports whether every part lies in one of the prefixes. Neutron joins prefixes
// that make up a larger one.
func covers(prefixes, parts []netip.Prefix) bool {
	for _, part := range parts {
		if !slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Bits() <= part.Bits() && p.Contains(part.Addr()) }) {
			return false
		}
	}
	return true
}

// UpdateSubnetPool sends one request, two for a change of the Key, the description or
// tags.
func (p *Provider) UpdateSubnetPool(ctx context.Context, id sdn.ID, change sdn.SubnetPoolPatch) (sdn.SubnetPool, error) {
	if change.Prefixes != nil {
		if err := checkPool(*change.Prefixes); err != nil {
			return sdn.SubnetPool{}, err
		}
	}
	body := setPool(map[string]any{}, change)
	write := func() (*subnetPoolWire, error) {
		return patch(ctx, p, subnetPools, id, change.Patch, body)
	}
	w, err := patchCached(ctx, p, p.cache.pools, subnetPools, id, change.Patch, len(body) == 0, write)
	return decoded(p.owner, w, err)
}

// DeleteSubnetPool is one request.
func (p *Provider) DeleteSubnetPool(ctx context.Context, id sdn.ID) error {
	p.cache.pools.drop(id)
	err := subnetPools.erase(ctx, p, id, 0)
	p.cache.pools.drop(id)
	return err
}
