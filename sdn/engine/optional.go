package engine

import (
	"context"

	"github.com/kuryr/kuryr/internal/valid"
	"github.com/kuryr/kuryr/sdn"
)

// What the embedded SDN can beyond the contract that front ends ask for.
var (
	_ sdn.AtomicPorts       = (*Engine)(nil)
	_ sdn.AtomicNetworks    = (*Engine)(nil)
	_ sdn.AtomicTrunks      = (*Engine)(nil)
	_ sdn.PortLegs          = (*Engine)(nil)
	_ sdn.ConditionalDelete = (*Engine)(nil)
	_ sdn.PrefixRemoval     = (*Engine)(nil)
	_ sdn.QuotaReset        = (*Engine)(nil)
	_ sdn.ForwardUpdate     = (*Engine)(nil)
	_ sdn.MetaPatch         = (*Engine)(nil)
	_ sdn.AccessPolicies    = (*Engine)(nil)
	_ sdn.AddressScopes     = (*Engine)(nil)
)

// DeleteIf deletes an object of any noun but forwardings, if it is still at the revision; 0 is any.
func (e *Engine) DeleteIf(ctx context.Context, noun sdn.Noun, id sdn.ID, revision int64) error {
	var err error
	switch noun {
	case sdn.NounTrunk:
		err = e.withTrunks()
	case sdn.NounSecurityGroup:
		err = e.withGroups(errNoSecurityGroups)
	case sdn.NounAddressGroup:
		err = e.withGroups(errNoAddressGroups)
	case sdn.NounQoSPolicy:
		err = e.withLimits()
	}
	if err != nil {
		return err
	}
	return e.release(ctx, func(t *tx) error {
		switch noun {
		case sdn.NounNetwork:
			return deleteIf(t, Networks, id, revision, t.deleteNetwork)
		case sdn.NounSubnet:
			return deleteIf(t, Subnets, id, revision, t.deleteSubnet)
		case sdn.NounSubnetPool:
			return deleteIf(t, subnetPools, id, revision, t.deleteSubnetPool)
		case sdn.NounPort:
			return t.deletePort(id, revision)
		case sdn.NounTrunk:
			return deleteIf(t, Trunks, id, revision, t.deleteTrunk)
		case sdn.NounRouter:
			return deleteIf(t, Routers, id, revision, t.deleteRouter)
		case sdn.NounFloatingIP:
			return deleteIf(t, FloatingIPs, id, revision, t.deleteFloatingIP)
		case sdn.NounSecurityGroup:
			return deleteIf(t, SecurityGroups, id, revision, t.deleteSecurityGroup)
		case sdn.NounAddressGroup:
			return deleteIf(t, AddressGroups, id, revision, t.deleteAddressGroup)
		case sdn.NounQoSPolicy:
			return deleteIf(t, QoSPolicies, id, revision, t.deleteQoSPolicy)
		case sdn.NounLoadBalancer:
			return deleteIf(t, LoadBalancers, id, revision, t.deleteLoadBalancer)
		case sdn.NounAddressScope:
			return deleteIf(t, addressScopes, id, revision, t.deleteAddressScope)
		}
		return sdn.Unsupported(string(noun), "this SDN deletes none at a revision")
	})
}

func deleteIf[T any, R row[T]](t *tx, of table[T, R], id sdn.ID, revision int64, delete func(sdn.ID) error) error {
	r, err := of.Get(t.Tx, id)
	if err != nil || r == nil {
		return err
	}
	if m := r.meta(); revision != 0 && revision != m.Revision {
		return stale(of.title, m)
	}
	return delete(id)
}

// ResetQuota forgets a project's own limits.
func (e *Engine) ResetQuota(ctx context.Context, project string, nouns ...sdn.Noun) error {
	return e.update(ctx, func(t *tx) error {
		t.wrote = true
		own, err := ownLimits(t.Tx, project)
		if err != nil {
			return err
		}
		for _, noun := range nouns {
			delete(own, noun)
		}
		if len(own) == 0 || len(nouns) == 0 {
			return t.Delete(quotaTable, quotaKey(project))
		}
		return putLimits(t.Tx, project, own)
	})
}

// PatchMeta changes what every object has of one that is applied as a whole value.
func (e *Engine) PatchMeta(ctx context.Context, noun sdn.Noun, id sdn.ID, change sdn.Patch) error {
	if err := valid.Patch(string(noun), change); err != nil {
		return err
	}
	return e.update(ctx, func(t *tx) error {
		switch noun {
		case sdn.NounSecurityGroup:
			return patchMeta(t, SecurityGroups, id, change)
		case sdn.NounAddressGroup:
			return patchMeta(t, AddressGroups, id, change)
		case sdn.NounQoSPolicy:
			return patchMeta(t, QoSPolicies, id, change)
		case sdn.NounLoadBalancer:
			return patchMeta(t, LoadBalancers, id, change)
		}
		return sdn.Unsupported(string(noun), "it has a change of its own")
	})
}

func patchMeta[T any, R row[T]](t *tx, of table[T, R], id sdn.ID, change sdn.Patch) error {
	r, err := of.Need(t.Tx, id)
	if err != nil {
		return err
	}
	if err := of.patch(t, r.meta(), change); err != nil {
		return err
	}
	return of.put(t, r)
}
