package raven

import (
	"testing"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
)

// A pod of a node without a daemon is given one port, whatever else has its pool looked at before the cache shows that it has it.
func TestOnePortForAPodBehindACache(t *testing.T) {
	t.Parallel()
	c := newCluster(t, func(cfg *Config) { cfg.Pool.Minimum = 8 })
	c.addNode("n1", nil)
	n := c.node("n1")
	n.Labels = map[string]string{v1.LabelClaimant: v1.ClaimantRaven}
	c.must(c.api.Update(t.Context(), n))
	c.pod("default", "a", "n1", nil)
	c.settle()
	pod := c.pod("default", "b", "n1", nil)
	c.tellAll()
	for range 4 {
		_, _ = (pools{c.raven}).Reconcile(t.Context(), request("", c.networkPool("default"))) // that its status is behind is no matter
	}
	var has []string
	for _, p := range c.ports() {
		if p.Status.Pod != nil && p.Status.Pod.UID == pod.UID {
			has = append(has, p.Name)
		}
	}
	if len(has) != 1 {
		t.Errorf("it has the ports %v", has)
	}
	c.settle()
	c.whole()
}
