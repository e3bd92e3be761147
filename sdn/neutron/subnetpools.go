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
}

var subnetPools = collection[*subnetPoolWire]{title: "subnet pool", item: "subnetpool", items: "subnetpools", path: "/subnetpools"}

func (w *subnetPoolWire) decode(o *owner) sdn.SubnetPool {
	s := sdn.SubnetPool{
		Meta: w.meta.decode(o), DefaultLen: number(w.DefaultLen), MinLen: number(w.MinLen),
		MaxLen: number(w.MaxLen), Shared: w.Shared,
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

func (p *Provider) subnetPoolBody(spec sdn.SubnetPoolSpec) map[string]any {
	body := p.body(spec.Base)
	if spec.Name == "" {
		body["name"] = cmp.Or(spec.Key.Name, "kuryr") // Neutron wants one
	}
	body["prefixes"] = texts(spec.Prefixes)
	length := spec.DefaultLen
	if length == 0 {
		length = longest(spec.Prefixes)
	}
	body["default_prefixlen"] = length
	// Neutron's own least length is 8 or 64, which a larger subnet asked for by its range would break.
	least := spec.MinLen
	if least == 0 {
		least = min(shortest(spec.Prefixes), length, leastLen(spec.Prefixes[0]))
	}
	body["min_prefixlen"] = least
	if spec.MaxLen != 0 {
		body["max_prefixlen"] = spec.MaxLen
	}
	if spec.Shared {
		body["shared"] = true
	}
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

// EnsureSubnetPool takes three requests for a new pool: a look, the pool, and a look for a twin. One that is New takes one. What tags there are to be
// written comes on top.
func (p *Provider) EnsureSubnetPool(ctx context.Context, spec sdn.SubnetPoolSpec) (sdn.SubnetPool, error) {
	p.owner.note(spec.Project)
	if err := valid.Base("subnet pool", spec.Base); err != nil {
		return sdn.SubnetPool{}, err
	}
	if err := checkPool(spec.Prefixes, poolLen{"default_len", spec.DefaultLen}, poolLen{"min_len", spec.MinLen}, poolLen{"max_len", spec.MaxLen}); err != nil {
		return sdn.SubnetPool{}, err
	}
	create := func(ctx context.Context) (*subnetPoolWire, error) {
		return subnetPools.create(ctx, p.client, p.subnetPoolBody(spec))
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
		w, err = subnetPools.read(ctx, p.client, sdn.ID(w.ID)) // for its revision
	}
	if err == nil {
		p.cache.pools.put(w)
	}
	return decoded(p.owner, w, err)
}

// finishSubnetPool makes of a pool that is there what the spec asks for.
func (p *Provider) finishSubnetPool(ctx context.Context, w *subnetPoolWire, spec sdn.SubnetPoolSpec) (*subnetPoolWire, error) {
	now := w.decode(p.owner)
	if spec.Shared && !now.Shared {
		return nil, immutable("subnet pool", w.ID, "shared", now.Shared, spec.Shared)
	}
	body := map[string]any{}
	if err := adopt("subnet pool", &w.meta, spec.Base, body); err != nil {
		return nil, err
	}
	want := sortslice.Sorted(spec.Prefixes, netip.Prefix.Compare)
	if !slices.Equal(want, now.Prefixes) && !covers(want, now.Prefixes) {
		return nil, immutable("subnet pool", w.ID, "prefixes", now.Prefixes, want)
	} else if !covers(now.Prefixes, want) {
		body["prefixes"] = texts(want)
	}
	for _, l := range []struct {
		name       string
		have, want int
	}{{"default_prefixlen", now.DefaultLen, spec.DefaultLen}, {"min_prefixlen", now.MinLen, spec.MinLen}, {"max_prefixlen", now.MaxLen, spec.MaxLen}} {
		if l.want != 0 && l.want != l.have {
			body[l.name] = l.want
		}
	}
	if len(body) == 0 {
		return w, nil
	}
	return p.cache.pools.changing(now.ID, func() (*subnetPoolWire, error) { return subnetPools.update(ctx, p.client, now.ID, 0, body) })
}

// covers tells whether every one of parts lies in one of the prefixes. Neutron joins prefixes that make up a larger one.
func covers(prefixes, parts []netip.Prefix) bool {
	for _, part := range parts {
		if !slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Bits() <= part.Bits() && p.Contains(part.Addr()) }) {
			return false
		}
	}
	return true
}

// SubnetPool gives what was read or written less than cacheAge ago, else asks; see cacheFresh.
func (p *Provider) SubnetPool(ctx context.Context, id sdn.ID) (sdn.SubnetPool, error) {
	w, err := cached(ctx, p, p.cache.pools, subnetPools, id)
	return decoded(p.owner, w, err)
}

// FindSubnetPools asks Neutron, except for pools of given Keys or ids that are all in the cache. Neutron cannot be asked for overlaps: all pools are
// read for them.
func (p *Provider) FindSubnetPools(ctx context.Context, q sdn.SubnetPoolQuery) iter.Seq2[sdn.SubnetPool, error] {
	return matchingCached(
		ctx, p, p.cache.pools, subnetPools, p.query(q.Match), q.Match, q.Matches,
	)
}

// UpdateSubnetPool sends one request, two where the Key, the description or the tags are to be changed.
func (p *Provider) UpdateSubnetPool(ctx context.Context, id sdn.ID, change sdn.SubnetPoolPatch) (sdn.SubnetPool, error) {
	body := map[string]any{}
	if change.Prefixes != nil {
		if err := checkPool(*change.Prefixes); err != nil {
			return sdn.SubnetPool{}, err
		}
		body["prefixes"] = texts(*change.Prefixes)
	}
	for _, l := range []struct {
		name  string
		value *int
	}{{"default_prefixlen", change.DefaultLen}, {"min_prefixlen", change.MinLen}, {"max_prefixlen", change.MaxLen}} {
		if l.value != nil {
			body[l.name] = *l.value
		}
	}
	write := func() (*subnetPoolWire, error) {
		return patch(ctx, p, subnetPools, id, change.Patch, body)
	}
	w, err := patchCached(ctx, p, p.cache.pools, subnetPools, id, change.Patch, len(body) == 0, write)
	return decoded(p.owner, w, err)
}

// DeleteSubnetPool is one request.
func (p *Provider) DeleteSubnetPool(ctx context.Context, id sdn.ID) error {
	p.cache.pools.drop(id)
	err := subnetPools.erase(ctx, p.client, id, 0)
	p.cache.pools.drop(id)
	return err
}
