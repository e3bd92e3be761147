package local

import (
	"testing"

	"github.com/kuryr/kuryr/sdn"
)

// A network's policy limits its ports that have none of their own, and follows changes of the policy and of the
// network.
func TestPolicyOfNetwork(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	fake := newFake()
	p := open(t, Options{Datapath: fake})
	policy := func(kbps int64) sdn.ID {
		q, err := p.ApplyQoSPolicy(ctx, sdn.QoSPolicySpec{Limits: sdn.Limits{EgressKbps: kbps}})
		ok(t, err)
		return q.ID
	}
	first, second, own := policy(1000), policy(2000), policy(3000)
	n, err := p.EnsureNetwork(ctx, sdn.NetworkSpec{QoSPolicy: first})
	ok(t, err)
	made, err := p.EnsurePorts(ctx, []sdn.PortSpec{
		{Network: n.ID, Host: testHost, WithoutAddresses: true},
		{Network: n.ID, Host: testHost, WithoutAddresses: true, QoSPolicy: own},
	})
	ok(t, err)
	limits := func(what string, want ...int64) {
		t.Helper()
		fake.mu.Lock()
		defer fake.mu.Unlock()
		for i, port := range made {
			if got := fake.state[string(n.ID)].ports[string(port.ID)].Limits.EgressKbps; got != want[i] {
				t.Errorf("%s: port %d is limited to %d, want %d", what, i, got, want[i])
			}
		}
	}
	change := func(id sdn.ID) {
		t.Helper()
		_, err := p.UpdateNetwork(ctx, n.ID, sdn.NetworkPatch{QoSPolicy: &id})
		ok(t, err)
	}
	limits("made", 1000, 3000)
	_, err = p.ApplyQoSPolicy(ctx, sdn.QoSPolicySpec{ID: first, Limits: sdn.Limits{EgressKbps: 1500}})
	ok(t, err)
	limits("the policy changed", 1500, 3000)
	change(second)
	limits("another policy", 2000, 3000)
	if err := p.DeleteQoSPolicy(ctx, second); sdn.ReasonOf(err) != sdn.InUse {
		t.Errorf("a policy that a network names is deleted: %v", err)
	}
	none := sdn.ID("")
	_, err = p.UpdatePort(ctx, made[1].ID, sdn.PortPatch{QoSPolicy: &none})
	ok(t, err)
	limits("none of its own", 2000, 2000)
	checkSum(t, p)
	change("")
	limits("no policy", 0, 0)
	ok(t, p.DeleteQoSPolicy(ctx, second))
	missing := sdn.ID("missing")
	if _, err := p.UpdateNetwork(ctx, n.ID, sdn.NetworkPatch{QoSPolicy: &missing}); !sdn.IsNotFound(err) {
		t.Errorf("a policy that is not there: %v", err)
	}
	if _, err := p.UpdateNetwork(ctx, n.ID, sdn.NetworkPatch{Default: new(true)}); !sdn.IsInvalid(err) {
		t.Errorf("an internal network is the default one: %v", err)
	}
}
