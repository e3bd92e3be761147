package local

import (
	"context"

	"github.com/kuryr/kuryr/sdn"
)

// What the embedded SDN can beyond the contract that front ends ask for.
var (
	_ sdn.AtomicPorts       = (*Provider)(nil)
	_ sdn.PortLegs          = (*Provider)(nil)
	_ sdn.ConditionalDelete = (*Provider)(nil)
	_ sdn.QuotaReset        = (*Provider)(nil)
	_ sdn.ForwardUpdate     = (*Provider)(nil)
)

// DeleteIf deletes an object of any noun but forwardings, if it is still at the revision; 0 is any.
func (p *Provider) DeleteIf(ctx context.Context, noun sdn.Noun, id sdn.ID, revision int64) error {
	var err error
	switch noun {
	case sdn.NounSecurityGroup:
		err = p.withGroups(errNoSecurityGroups)
	case sdn.NounAddressGroup:
		err = p.withGroups(errNoAddressGroups)
	case sdn.NounQoSPolicy:
		err = p.withLimits()
	}
	if err != nil {
		return err
	}
	return p.release(ctx, func(t *tx) error {
		switch noun {
		case sdn.NounNetwork:
			return deleteIf(t, networks, id, revision, t.deleteNetwork)
		case sdn.NounSubnet:
			return deleteIf(t, subnets, id, revision, t.deleteSubnet)
		case sdn.NounSubnetPool:
			return deleteIf(t, subnetPools, id, revision, t.deleteSubnetPool)
		case sdn.NounPort:
			return t.deletePort(id, revision)
		case sdn.NounRouter:
			return deleteIf(t, routers, id, revision, t.deleteRouter)
		case sdn.NounFloatingIP:
			return deleteIf(t, floatingIPs, id, revision, t.deleteFloatingIP)
		case sdn.NounSecurityGroup:
			return deleteIf(t, securityGroups, id, revision, t.deleteSecurityGroup)
		case sdn.NounAddressGroup:
			return deleteIf(t, addressGroups, id, revision, t.deleteAddressGroup)
		case sdn.NounQoSPolicy:
			return deleteIf(t, qosPolicies, id, revision, t.deleteQoSPolicy)
		}
		return sdn.Unsupported(string(noun), "this SDN deletes none at a revision")
	})
}

func deleteIf[T any, R row[T]](t *tx, of table[T, R], id sdn.ID, revision int64, delete func(sdn.ID) error) error {
	r, err := of.get(t.Tx, id)
	if err != nil || r == nil {
		return err
	}
	if m := r.meta(); revision != 0 && revision != m.Revision {
		return stale(of.title, m)
	}
	return delete(id)
}

// ResetQuota forgets a project's own limits.
func (p *Provider) ResetQuota(ctx context.Context, project string) error {
	return p.update(ctx, func(t *tx) error {
		t.wrote = true
		return t.Bucket(quotaBucket).Delete(quotaKey(project))
	})
}
