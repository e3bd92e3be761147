package neutronapi

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"net/http"
	"net/netip"
	"slices"

	"github.com/kuryr/kuryr/internal/ipprefix"
	"github.com/kuryr/kuryr/sdn"
)

// SubnetPools are served below /v2.0/subnetpools.
var SubnetPools = Resource[SubnetPool]{"subnetpool", "subnetpools"}

// SubnetPool is a subnet pool in Neutron's JSON.
type SubnetPool struct {
	Common
	Prefixes         []string `json:"prefixes"`
	IPVersion        int      `json:"ip_version"`
	DefaultPrefixLen int      `json:"default_prefixlen"`
	MinPrefixLen     int      `json:"min_prefixlen"`
	MaxPrefixLen     int      `json:"max_prefixlen"`
	Shared           bool     `json:"shared"`
	IsDefault        bool     `json:"is_default"`
	DefaultQuota     *int     `json:"default_quota"`
	AddressScopeID   *string  `json:"address_scope_id"`
}

// EncodeSubnetPool translates a subnet pool. Neighbouring prefixes are shown as one.
func EncodeSubnetPool(p sdn.SubnetPool) SubnetPool {
	out := SubnetPool{
		Common: encodeMeta(p.Meta), Prefixes: []string{}, DefaultPrefixLen: p.DefaultLen, MinPrefixLen: p.MinLen, MaxPrefixLen: p.MaxLen,
		Shared: p.Shared, IPVersion: 4,
	}
	for _, prefix := range prefixSet(p.Prefixes).Prefixes() {
		out.Prefixes = append(out.Prefixes, prefix.String())
		out.IPVersion = family(prefix.Addr())
	}
	return out
}

func (s *server) subnetPools() *definition[sdn.SubnetPool, SubnetPool, sdn.SubnetPoolSpec, sdn.SubnetPoolPatch] {
	p := s.p
	n := &definition[sdn.SubnetPool, SubnetPool, sdn.SubnetPoolSpec, sdn.SubnetPoolPatch]{
		Resource: SubnetPools, title: "subnet pool", kind: sdn.NounSubnetPool,
		meta: func(p sdn.SubnetPool) sdn.Meta { return p.Meta },
		get:  p.SubnetPool,
		find: func(ctx context.Context, f *filter) iter.Seq2[sdn.SubnetPool, error] {
			return s.findSubnetPools(ctx, sdn.SubnetPoolQuery{Match: f.match()})
		},
		encode: EncodeSubnetPool,
		shared: func(_ *call, p sdn.SubnetPool) (bool, error) { return p.Shared, nil },
		spec:   subnetPoolSpec, patch: subnetPoolPatch,
		create: p.EnsureSubnetPool, update: p.UpdateSubnetPool, remove: p.DeleteSubnetPool,
		setTags: func(ctx context.Context, id sdn.ID, change sdn.Patch) error {
			_, err := p.UpdateSubnetPool(ctx, id, sdn.SubnetPoolPatch{Patch: change})
			return err
		},
	}
	if atomic, ok := p.(sdn.AtomicNetworks); ok {
		n.createAll = bulkOf(atomic.EnsureAllSubnetPools)
	}
	return n
}

func subnetPoolSpec(_ *call, b *body) sdn.SubnetPoolSpec {
	b.required("name", "prefixes")
	b.privileged("shared")
	b.privileged("is_default")
	spec := sdn.SubnetPoolSpec{Base: b.base(), Prefixes: or(b.poolPrefixes()), DefaultLen: or(b.length("default_prefixlen")),
		MinLen: or(b.length("min_prefixlen")), MaxLen: or(b.length("max_prefixlen")), Shared: or(b.boolean("shared"))}
	b.absentPoolAttributes()
	return spec
}

func subnetPoolPatch(_ *call, b *body, pool sdn.SubnetPool) sdn.SubnetPoolPatch {
	b.privileged("is_default")
	b.readOnly("shared")
	p := sdn.SubnetPoolPatch{Patch: b.changes(pool.Meta), DefaultLen: b.length("default_prefixlen"), MinLen: b.length("min_prefixlen"), MaxLen: b.length("max_prefixlen")}
	if want := b.poolPrefixes(); want != nil {
		grown := growth(pool.Prefixes, *want)
		if len(grown) > maxItems {
			b.invalid("prefixes", "what is added to those there are would be %d prefixes, and at most %d are taken", len(grown), maxItems)
		}
		p.Prefixes = &grown
	}
	b.absentPoolAttributes()
	return p
}

// servePrefixes adds the paths that change a pool's prefixes one by one: {"prefixes": […]}.
func (s *server) servePrefixes() {
	remover, ok := s.p.(sdn.PrefixRemoval)
	if !ok {
		return
	}
	grow := func(c *call, pool sdn.SubnetPool, asked []netip.Prefix, revision int64) (sdn.SubnetPool, error) {
		prefixes := growth(pool.Prefixes, append(slices.Clone(pool.Prefixes), asked...))
		if len(prefixes) > maxItems {
			return pool, badRequest(fmt.Sprintf("%d prefixes are too many, at most %d fit", len(prefixes), maxItems))
		}
		patch := sdn.SubnetPoolPatch{Patch: sdn.Patch{IfRevision: revision}, Prefixes: &prefixes}
		return s.p.UpdateSubnetPool(c.ctx(), pool.ID, patch)
	}
	remove := func(c *call, pool sdn.SubnetPool, asked []netip.Prefix, revision int64) (sdn.SubnetPool, error) {
		// A pool that an older Kuryr let grow beyond the limit can still shrink.
		limit := max(maxItems, len(pool.Prefixes))
		left := 0
		for _, have := range pool.Prefixes {
			if left += len(ipprefix.Without(have, asked)); left > limit {
				return pool, badRequest(fmt.Sprintf("More than %d prefixes would be left, which are too many", limit))
			}
		}
		return remover.RemovePrefixes(c.ctx(), pool.ID, asked, revision)
	}
	type change func(*call, sdn.SubnetPool, []netip.Prefix, int64) (sdn.SubnetPool, error)
	for action, by := range map[string]change{"add_prefixes": grow, "remove_prefixes": remove} {
		put := func(w http.ResponseWriter, c *call) error { return s.putPrefixes(w, c, by) }
		s.handle("/v2.0/subnetpools/{id}/"+action, map[string]handler{http.MethodPut: put})
	}
}

// putPrefixes changes a pool's prefixes by those of the body.
func (s *server) putPrefixes(
	w http.ResponseWriter, c *call, by func(*call, sdn.SubnetPool, []netip.Prefix, int64) (sdn.SubnetPool, error),
) error {
	document, err := c.document()
	if err != nil {
		return err
	}
	n := s.subnetPools()
	pool, err := n.own(c, c.target())
	if err != nil {
		return err
	}
	b := &body{call: c, noun: n.Member, values: document}
	asked := or(b.prefixes("prefixes"))
	if err := b.done(); err != nil {
		return err
	}
	revision, err := c.condition(n.title, pool.Meta)
	if err != nil {
		return err
	}
	if len(asked) > 0 {
		// At this revision: the prefixes to be are made of those that were seen.
		if pool, err = by(c, pool, asked, cmp.Or(revision, pool.Revision)); err != nil {
			return err
		}
	}
	writeJSON(w, http.StatusOK, map[string]any{"prefixes": EncodeSubnetPool(pool).Prefixes})
	return nil
}

// absentPoolAttributes reads what the SDN has not, which clients may send as it is anyway.
func (b *body) absentPoolAttributes() {
	b.readOnly("ip_version")
	b.only("is_default", false, "no subnet pool is the default one")
	for name, why := range map[string]string{"default_quota": "subnet pools have no quotas of their own", "address_scope_id": "this SDN has no address scopes"} {
		if !b.null(name) && b.has(name) {
			b.take(name)
			b.unsupported(name, why)
		}
	}
}

// length takes the length of a prefix; null is the SDN's.
func (b *body) length(name string) *int {
	if b.post && b.null(name) {
		return nil
	}
	return b.integer(name, 0, 128)
}

// poolPrefixes takes the prefixes of a subnet pool, neighbours as one.
func (b *body) poolPrefixes() *[]netip.Prefix {
	prefixes := b.prefixes("prefixes")
	if prefixes == nil || b.err != nil {
		return prefixes
	}
	if len(*prefixes) == 0 {
		b.fail(refuse(http.StatusBadRequest, "EmptySubnetPoolPrefixList", "Empty subnet pool prefix list."))
		return nil
	}
	for _, p := range *prefixes {
		if family(p.Addr()) != family((*prefixes)[0].Addr()) {
			b.fail(refuse(http.StatusBadRequest, "PrefixVersionMismatch", "Cannot mix IPv4 and IPv6 prefixes in a subnet pool."))
			return nil
		}
	}
	out := prefixSet(*prefixes).Prefixes()
	return &out
}

// growth returns the list that holds what is wanted: the prefixes that exist, and the parts that
// are new. A prefix that is no longer wanted is not in it.
func growth(have, want []netip.Prefix) []netip.Prefix {
	out, wanted := []netip.Prefix{}, prefixSet(want)
	for _, p := range have {
		if wanted.ContainsPrefix(p) {
			out = append(out, p)
		}
	}
	for _, p := range want {
		out = append(out, ipprefix.Without(p, have)...)
	}
	return out
}
