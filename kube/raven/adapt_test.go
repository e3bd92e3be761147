package raven

import (
	"slices"
	"testing"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/sdn"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// annotate sets annotations of a namespace; "" takes one away.
func (c *cluster) annotate(namespace string, annotations map[string]string) {
	c.t.Helper()
	var ns corev1.Namespace
	c.must(c.api.Get(c.t.Context(), types.NamespacedName{Name: namespace}, &ns))
	if ns.Annotations == nil {
		ns.Annotations = map[string]string{}
	}
	for name, value := range annotations {
		ns.Annotations[name] = value
		if value == "" {
			delete(ns.Annotations, name)
		}
	}
	c.must(c.api.Update(c.t.Context(), &ns))
}

// group makes a security group that is not Raven's.
func (c *cluster) group(name string) string {
	c.t.Helper()
	g, err := c.sdn.ApplySecurityGroup(c.t.Context(), sdn.SecurityGroupSpec{Base: sdn.Base{Key: sdn.Key{Owner: "test", Kind: "group", Name: name}, Name: name}})
	c.must(err)
	return string(g.ID)
}

// grouped checks that pods' ports have groups, in the SDN and in their objects.
func (c *cluster) grouped(pod string, want ...string) {
	c.t.Helper()
	for _, p := range c.ports() {
		if p.Status.Pod == nil || p.Status.Pod.Name != pod {
			continue
		}
		port, err := c.sdn.Port(c.t.Context(), sdn.ID(p.Spec.ID))
		c.must(err)
		if !slices.Equal(groupsOf(port), want) || !slices.Equal(p.Spec.SecurityGroups, want) {
			c.t.Errorf("pod %s has groups %v in the SDN and %v in Kubernetes, want %v", pod, groupsOf(port), p.Spec.SecurityGroups, want)
		}
		return
	}
	c.t.Errorf("pod %s has no port", pod)
}

// A namespace's groups change: its pods' ports are changed and stay theirs, new pods get ports of another pool, the old one's free ports go; and back again at any moment.
func TestGroupsOfANamespaceChange(t *testing.T) {
	t.Parallel()
	c := newCluster(t, nil)
	c.addNode("n1", nil)
	a, b := c.group("a"), c.group("b")
	c.namespace("blue", map[string]string{v1.AnnotationAllowSecurityGroups: b, v1.AnnotationAllowMAC: "true"})
	c.pod("blue", "web", "n1", nil)
	c.pod("blue", "mac", "n1", map[string]string{v1.AnnotationMAC: "fa:16:3e:00:00:01"})
	c.pod("blue", "own", "n1", map[string]string{v1.AnnotationSecurityGroups: b})
	c.settle()
	before := c.bound()
	c.grouped("web")
	c.grouped("own", b)

	c.annotate("blue", map[string]string{v1.AnnotationSecurityGroups: a})
	c.settle()
	c.check()
	c.grouped("web", a)
	c.grouped("mac", a)
	c.grouped("own", b)
	for _, p := range c.ports() {
		if p.Status.Pod == nil && !slices.Equal(p.Spec.SecurityGroups, []string{a}) {
			t.Errorf("a free port has groups %v", p.Spec.SecurityGroups)
		}
	}
	if c.events.has("Restore") {
		t.Error("what Raven itself changes is told as changed by hand")
	}
	next := c.pod("blue", "next", "n1", nil)
	c.settle()
	c.grouped("next", a)

	// Back, while pods of both pools are there.
	c.annotate("blue", map[string]string{v1.AnnotationSecurityGroups: ""})
	c.settle()
	c.pod("blue", "last", "n1", nil)
	c.settle()
	c.check()
	for _, pod := range []string{"web", "mac", "next", "last"} {
		c.grouped(pod)
	}
	if after := c.bound(); after["web"] != before["web"] || after["mac"] != before["mac"] || after["own"] != before["own"] {
		t.Errorf("addresses %v, before %v", after, before)
	}
	c.remove(next)
	c.settle()
	c.check()
	if pools := c.pools(); len(pools) != 1 || pools[0].Status.Bound != 4 {
		t.Errorf("pools %+v", pools)
	}
}

// The same where Raven is the claimant.
func TestGroupsChangeWithoutDaemon(t *testing.T) {
	t.Parallel()
	c := newCluster(t, nil)
	c.addNode("n1", nil)
	n := c.node("n1")
	n.Labels = map[string]string{v1.LabelClaimant: v1.ClaimantRaven}
	c.must(c.api.Update(t.Context(), n))
	web := c.pod("default", "web", "n1", nil)
	c.settle()
	before := c.bound()["web"]
	a := c.group("a")
	c.annotate("default", map[string]string{v1.AnnotationSecurityGroups: a})
	c.settle()
	c.pod("default", "next", "n1", nil)
	c.settle()
	c.check()
	c.grouped("web", a)
	c.grouped("next", a)
	if c.bound()["web"] != before {
		t.Errorf("the pod that runs has %q now, not %q", c.bound()["web"], before)
	}
	c.remove(web)
	c.settle()
	c.check()
	if len(c.pools()) != 1 || len(c.bound()) != 1 {
		t.Errorf("%d pools, bound %v", len(c.pools()), c.bound())
	}
}
