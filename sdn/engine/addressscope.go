package engine

import (
	"context"
	"iter"
	"net/netip"

	"github.com/kuryr/kuryr/internal/valid"
	"github.com/kuryr/kuryr/sdn"
)

type addressScopeRow struct{ sdn.AddressScope }

func (r *addressScopeRow) meta() *sdn.Meta { return &r.Meta }
func (r *addressScopeRow) counted() bool   { return true }

var addressScopes = table[addressScopeRow, *addressScopeRow]{sdn.NounAddressScope, "address scope",
	[]index[addressScopeRow]{
		{"key", true, func(r *addressScopeRow) []string { return ident(r.Meta) }},
		{"project", false, func(r *addressScopeRow) []string { return some(sdn.ID(r.Project)) }},
		{"shared", false, func(r *addressScopeRow) []string { return someIf(r.Shared) }},
	}}

func (e *Engine) showAddressScope(_ Tx, r *addressScopeRow) (sdn.AddressScope, error) {
	e.fillMeta(&r.Meta)
	return r.AddressScope, nil
}

// EnsureAddressScope makes, finishes or adopts an address scope.
func (e *Engine) EnsureAddressScope(ctx context.Context, spec sdn.AddressScopeSpec) (out sdn.AddressScope,
	err error) {
	if err := valid.Base("address scope", spec.Base); err != nil {
		return out, err
	}
	err = e.update(ctx, func(t *tx) error {
		r, err := addressScopes.ensured(t, spec.Base)
		if err != nil {
			return err
		}
		changed := r == nil
		if r == nil {
			r = &addressScopeRow{sdn.AddressScope{Meta: newMeta(spec.Base), IPv6: spec.IPv6, Shared: spec.Shared}}
		} else {
			if spec.IPv6 != r.IPv6 {
				return immutable("address scope", r.ID, "ip_version", r.IPv6, spec.IPv6)
			}
			if changed, err = adopt("address scope", &r.Meta, spec.Base); err != nil {
				return err
			}
			changed = set(&r.Shared, spec.Shared) || changed
		}
		if changed {
			if err := addressScopes.put(t, r); err != nil {
				return err
			}
		}
		out, err = e.showAddressScope(t.Tx, r)
		e.disown(ctx, &out.Meta)
		return err
	})
	return out, err
}

// AddressScope gets an address scope.
func (e *Engine) AddressScope(ctx context.Context, id sdn.ID) (sdn.AddressScope, error) {
	return get(ctx, e, addressScopes, id, e.showAddressScope)
}

// FindAddressScopes streams address scopes.
func (e *Engine) FindAddressScopes(ctx context.Context, q sdn.AddressScopeQuery) iter.Seq2[sdn.AddressScope, error] {
	scans, err := e.scansOf(ctx, addressScopes.Noun, q.Match, byProject(q.Match), sharedOnly(q.Shared))
	if err != nil {
		return broken[sdn.AddressScope](err)
	}
	return search(ctx, e, addressScopes, scans, e.showAddressScope, q.Matches)
}

// UpdateAddressScope changes an address scope.
func (e *Engine) UpdateAddressScope(
	ctx context.Context, id sdn.ID, change sdn.AddressScopePatch,
) (out sdn.AddressScope, err error) {
	if err := valid.Patch("address scope", change.Patch); err != nil {
		return out, err
	}
	err = e.update(ctx, func(t *tx) error {
		r, err := addressScopes.Need(t.Tx, id)
		if err != nil {
			return err
		}
		if err := addressScopes.patch(t, &r.Meta, change.Patch); err != nil {
			return err
		}
		if change.Shared != nil {
			if r.Shared && !*change.Shared {
				return immutable("address scope", id, "shared", true, false)
			}
			r.Shared = *change.Shared
		}
		if err := addressScopes.put(t, r); err != nil {
			return err
		}
		out, err = e.showAddressScope(t.Tx, r)
		e.disown(ctx, &out.Meta)
		return err
	})
	return out, err
}

// DeleteAddressScope deletes an address scope without subnet pools.
func (e *Engine) DeleteAddressScope(ctx context.Context, id sdn.ID) error {
	return e.release(ctx, func(t *tx) error { return t.deleteAddressScope(id) })
}

func (t *tx) deleteAddressScope(id sdn.ID) error {
	if !addressScopes.has(t.Tx, id) {
		return nil
	}
	if subnetPools.any(t.Tx, "scope", string(id)) {
		return inUse("address scope", id, "subnet pools are in it")
	}
	if err := t.dropAccess(id); err != nil {
		return err
	}
	return addressScopes.del(t, id)
}

// checkScope refuses a pool whose family is not its scope's, or that overlaps another pool there.
func (t *tx) checkScope(r *subnetPoolRow) error {
	if r.Scope == "" {
		return nil
	}
	scope, err := addressScopes.Need(t.Tx, r.Scope)
	if err != nil {
		return err
	}
	if scope.IPv6 != r.Prefixes[0].Addr().Is6() {
		return sdn.Invalid("subnet pool", "scope", "the address scope is of the other family")
	}
	others, err := subnetPools.All(t.Tx, "scope", string(r.Scope))
	if err != nil {
		return err
	}
	for _, other := range others {
		if other.ID == r.ID {
			continue
		}
		for _, p := range r.Prefixes {
			for _, taken := range other.Prefixes {
				if p.Overlaps(taken) {
					return sdn.Conflict(sdn.Exists, "subnet pool", "prefixes", "%v overlaps another pool of the address scope", p)
				}
			}
		}
	}
	return nil
}

// moveScope puts a pool into another scope, if that goes with where its subnets are. The pool is written.
func (t *tx) moveScope(r *subnetPoolRow) error {
	cut, err := Subnets.All(t.Tx, "pool", string(r.ID))
	if err != nil {
		return err
	}
	for _, s := range cut {
		n, err := Networks.Need(t.Tx, s.Network)
		if err != nil {
			return err
		}
		if err := t.checkNetworkScope(n, s.CIDR, r.Scope); err != nil {
			return err
		}
		on, err := Routers.By(t.Tx, "subnet", string(s.ID))
		if err != nil {
			return err
		}
		if on != nil {
			if err := t.checkRouterScopes(on); err != nil {
				return err
			}
		}
	}
	return nil
}

// scopeOf is the address scope of a subnet; "" for none.
func scopeOf(b Tx, s *subnetRow) (sdn.ID, error) {
	if s.Pool == "" || !anyWith(b, subnetPools.indexTable("scope"), "") {
		return "", nil
	}
	pool, err := subnetPools.Get(b, s.Pool)
	if err != nil || pool == nil {
		return "", err
	}
	return pool.Scope, nil
}

// checkNetworkScope refuses a range of a scope on a network that has others of its family.
func (t *tx) checkNetworkScope(n *NetworkRow, cidr netip.Prefix, scope sdn.ID) error {
	if !anyWith(t.Tx, subnetPools.indexTable("scope"), "") {
		return nil
	}
	for _, id := range n.Subnets {
		s, err := Subnets.Need(t.Tx, id)
		if err != nil {
			return err
		}
		if s.CIDR == cidr || s.CIDR.Addr().Is4() != cidr.Addr().Is4() {
			continue
		}
		if other, err := scopeOf(t.Tx, s); err != nil {
			return err
		} else if other != scope {
			return sdn.Conflict(sdn.InUse, "network", "scope", "%v is of another address scope than %v on its network", cidr,
				s.CIDR)
		}
	}
	return nil
}

// checkRouterScopes refuses a router that would lead from one address scope to another without translation: between its
// subnets, or outside.
func (t *tx) checkRouterScopes(r *RouterRow) error {
	if !anyWith(t.Tx, subnetPools.indexTable("scope"), "") {
		return nil
	}
	first := map[bool]*subnetRow{}
	scopes := map[bool]sdn.ID{}
	for _, on := range r.Interfaces {
		s, err := Subnets.Need(t.Tx, on.Subnet)
		if err != nil {
			return err
		}
		scope, err := scopeOf(t.Tx, s)
		if err != nil {
			return err
		}
		four := s.CIDR.Addr().Is4()
		if scope != "" && r.Gateway != nil && !r.Gateway.SNAT {
			return sdn.Conflict(sdn.InUse, "router", "scope",
				"%v is of an address scope, and would be led outside without translation: switch SNAT on", s.CIDR)
		}
		if other := first[four]; other != nil && scopes[four] != scope {
			return sdn.Conflict(sdn.InUse, "router", "scope", "%v and %v are of different address scopes", other.CIDR, s.CIDR)
		}
		first[four], scopes[four] = s, scope
	}
	return nil
}

// networkScopes are the address scopes of a network, by family.
func networkScopes(b Tx, n *NetworkRow) (four, six sdn.ID, err error) {
	if !anyWith(b, subnetPools.indexTable("scope"), "") {
		return "", "", nil
	}
	for _, id := range n.Subnets {
		s, err := Subnets.Need(b, id)
		if err != nil {
			return "", "", err
		}
		scope, err := scopeOf(b, s)
		if err != nil {
			return "", "", err
		}
		if s.CIDR.Addr().Is4() {
			four = scope
		} else {
			six = scope
		}
	}
	return four, six, nil
}
