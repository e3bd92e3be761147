package engine

import (
	"context"
	"testing"

	"github.com/kuryr/kuryr/sdn"
)

// Each noun has a default quota, which limits a tenant alone: not the front ends in this
// process, not an administrator, not the project without a name.
func TestDefaultQuotas(t *testing.T) {
	t.Parallel()
	for _, noun := range countedNouns {
		if DefaultQuotas()[noun] < 1 {
			t.Errorf("%s has no default quota", noun)
		}
	}
	p := open(t, Options{Quotas: map[sdn.Noun]int64{sdn.NounNetwork: 2, sdn.NounPort: 1}})
	ctx := t.Context()
	tenant, admin := sdn.WithClient(ctx, sdn.Client{}), sdn.WithClient(ctx, sdn.Client{Admin: true})
	demo := sdn.NetworkSpec{Base: sdn.Base{Project: "demo"}}
	n, err := p.EnsureNetwork(tenant, demo)
	ok(t, err)
	_, err = p.EnsureNetwork(tenant, demo)
	ok(t, err)
	if _, err := p.EnsureNetwork(tenant, demo); sdn.ReasonOf(err) != sdn.NoQuota {
		t.Errorf("the third network: %v", err)
	}
	port := sdn.PortSpec{Base: demo.Base, Network: n.ID, WithoutGroups: true}
	if _, err := p.EnsureAllPorts(tenant, []sdn.PortSpec{port, port}); sdn.ReasonOf(err) != sdn.NoQuota {
		t.Errorf("two ports in one call: %v", err)
	}
	_, err = p.EnsureAllPorts(tenant, []sdn.PortSpec{port})
	ok(t, err)
	for range 3 {
		_, err = p.EnsureNetwork(admin, demo)
		ok(t, err)
		_, err = p.EnsureNetwork(ctx, demo)
		ok(t, err)
		_, err = p.EnsureNetwork(tenant, sdn.NetworkSpec{})
		ok(t, err)
	}
	if u, err := p.Usage(ctx, "demo"); err != nil || u[sdn.NounNetwork] != (sdn.Usage{Used: 8, Limit: 2, Default: true}) || u[sdn.NounRouter].Limit != -1 {
		t.Errorf("the usage is %+v, %v", u, err)
	}
	if u, err := p.Usage(ctx, ""); err != nil || u[sdn.NounNetwork].Limit != -1 {
		t.Errorf("the usage of no project is %+v, %v", u, err)
	}
	// A limit that is set holds for every caller, and -1 is none.
	ok(t, p.SetQuota(ctx, "demo", map[sdn.Noun]int64{sdn.NounNetwork: 8}))
	for what, who := range map[string]context.Context{"tenant": tenant, "administrator": admin, "front end": ctx} {
		if _, err := p.EnsureNetwork(who, demo); sdn.ReasonOf(err) != sdn.NoQuota {
			t.Errorf("%s beyond a limit that was set: %v", what, err)
		}
	}
	ok(t, p.SetQuota(ctx, "demo", map[sdn.Noun]int64{sdn.NounNetwork: -1}))
	_, err = p.EnsureNetwork(tenant, demo)
	ok(t, err)
}
