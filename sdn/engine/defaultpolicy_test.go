package engine

import (
	"testing"

	"github.com/kuryr/kuryr/sdn"
)

// New networks of a project have its default policy, of which it has one.
func TestDefaultPolicy(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	p := open(t, Options{})
	base := sdn.Base{Project: "a"}
	policy, err := p.ApplyQoSPolicy(ctx, sdn.QoSPolicySpec{Base: base, Default: true})
	ok(t, err)
	if _, err := p.ApplyQoSPolicy(ctx, sdn.QoSPolicySpec{Base: base, Default: true}); sdn.ReasonOf(err) != sdn.Exists {
		t.Errorf("a second default policy: %v", err)
	}
	for project, want := range map[string]sdn.ID{"a": policy.ID, "b": "", "": ""} {
		n, err := p.EnsureNetwork(ctx, sdn.NetworkSpec{Base: sdn.Base{Project: project}})
		ok(t, err)
		if n.QoSPolicy != want {
			t.Errorf("a new network of %q has the policy %q, want %q", project, n.QoSPolicy, want)
		}
	}
	outside, err := p.EnsureNetwork(ctx, sdn.NetworkSpec{Base: base, External: true, Default: true})
	ok(t, err)
	if outside.QoSPolicy != "" || !outside.Default {
		t.Errorf("an external network is %+v", outside)
	}
	if _, err := p.EnsureNetwork(ctx, sdn.NetworkSpec{External: true, Default: true}); !sdn.IsInvalid(err) {
		t.Errorf("a second default network: %v", err)
	}
	if _, err := p.UpdateNetwork(ctx, outside.ID, sdn.NetworkPatch{QoSPolicy: &policy.ID}); !sdn.IsUnsupported(err) {
		t.Errorf("a policy of an external network: %v", err)
	}
	_, err = p.ApplyQoSPolicy(ctx, sdn.QoSPolicySpec{ID: policy.ID})
	ok(t, err)
	n, err := p.EnsureNetwork(ctx, sdn.NetworkSpec{Base: base})
	ok(t, err)
	if n.QoSPolicy != "" {
		t.Error("a policy that is no longer the default one is taken")
	}
	ok(t, p.view(func(b Tx) error { CheckIndexes(t, b); return nil }))
}
