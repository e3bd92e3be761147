package engine

import (
	"testing"

	"github.com/kuryr/kuryr/sdn"
)

// A Shared object shows an access of Everyone under one id, and accesses outlive a restart. That one is
// given to another target takes it from all others, which may not use the object then.
func TestAccessIsKept(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	store := newStore(t)
	p := openOn(t, store, Options{})
	n, err := p.EnsureNetwork(ctx, sdn.NetworkSpec{Base: sdn.Base{Project: "a"}, Shared: true})
	ok(t, err)
	query := sdn.AccessQuery{Objects: []sdn.ID{n.ID}}
	all, err := sdn.All(p.FindAccesses(ctx, query))
	ok(t, err)
	if len(all) != 1 || all[0].Target != sdn.Everyone || all[0].External || all[0].Project != "a" {
		t.Fatalf("a shared network has the accesses %+v", all)
	}
	made, err := p.EnsurePorts(ctx, []sdn.PortSpec{{Base: sdn.Base{Project: "b"}, Network: n.ID, WithoutAddresses: true}})
	ok(t, err)
	for _, target := range []string{"c", sdn.Everyone} {
		_, err := p.UpdateAccess(ctx, all[0].ID, target, 0)
		if target != sdn.Everyone && !sdn.IsConflict(err) {
			t.Errorf("b uses the network that only %s would see: %v", target, err)
		}
	}
	one, err := p.UpdateAccess(ctx, all[0].ID, "b", all[0].Revision)
	ok(t, err)
	if n, err := p.Network(ctx, n.ID); err != nil || n.Shared || one.Target != "b" {
		t.Errorf("given to b alone: %+v, %v, %+v", n, err, one)
	}
	for _, spec := range []sdn.AccessSpec{
		{Noun: sdn.NounNetwork, Object: n.ID}, {Noun: sdn.NounPort, Object: made[0].ID, Target: "b"},
		{Noun: sdn.NounSubnetPool, Object: n.ID, External: true, Target: "b"},
	} {
		if _, err := p.CreateAccess(ctx, spec); !sdn.IsInvalid(err) {
			t.Errorf("%+v: got %v, want invalid", spec, err)
		}
	}
	_, err = p.CreateAccess(ctx, sdn.AccessSpec{Noun: sdn.NounNetwork, Object: p.external, External: true,
		Target: sdn.Everyone})
	if !sdn.IsConflict(err) {
		t.Errorf("the built-in network is external for all already: %v", err)
	}
	ok(t, p.view(func(b Tx) error { CheckIndexes(t, b); return nil }))

	p = openOn(t, store, Options{})
	if kept, err := p.Access(ctx, one.ID); err != nil || kept.Target != "b" || kept.Object != n.ID {
		t.Errorf("after a restart the access is %+v, %v", kept, err)
	}
	if err := p.DeleteAccess(ctx, one.ID, 0); sdn.ReasonOf(err) != sdn.InUse {
		t.Errorf("the access of b, whose port is there, is deleted: %v", err)
	}
	ok(t, p.DeletePorts(ctx, []sdn.ID{made[0].ID}))
	ok(t, p.DeleteAccess(ctx, one.ID, 0))
	ok(t, p.DeleteAccess(ctx, one.ID, 0))
	if left, err := sdn.All(p.FindAccesses(ctx, query)); err != nil || len(left) != 0 {
		t.Errorf("%+v are left, %v", left, err)
	}
	ok(t, p.view(func(b Tx) error { CheckIndexes(t, b); return nil }))
}
