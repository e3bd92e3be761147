package raven

import (
	"testing"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/raven/core"
	"github.com/kuryr/kuryr/sdn"
)

func (c *cluster) networkOf(namespace string) *v1.KuryrNetwork {
	c.t.Helper()
	var all v1.KuryrNetworkList
	c.list(&all)
	for i := range all.Items {
		if all.Items[i].Spec.Namespace == namespace {
			return &all.Items[i]
		}
	}
	c.t.Fatalf("namespace %s has no network", namespace)
	return nil
}

// A pod that wishes a group which is not there is alone without a port: its namespace's network stays ready, and others keep theirs.
func TestWishedGroupIsNotThere(t *testing.T) {
	t.Parallel()
	c := newCluster(t, nil)
	c.addNode("n1", nil)
	c.namespace("blue", map[string]string{v1.AnnotationAllowMAC: "true", v1.AnnotationAllowSecurityGroups: "any"})
	c.pod("blue", "good", "n1", map[string]string{v1.AnnotationMAC: "fa:16:3e:00:00:01"})
	c.settle()
	was := c.bound()["good"]
	c.pod("blue", "bad", "n1", map[string]string{v1.AnnotationSecurityGroups: "5f1c4e9e-0000-4000-8000-000000000000"})
	pool := c.networkPool("blue")
	for range 3 {
		c.tellAll()
		if _, err := (pools{c.raven}).Reconcile(t.Context(), core.Request("", pool)); err == nil {
			t.Error("a port that is not made is not tried again")
		}
		if n := c.networkOf("blue"); !core.IsReady(n.Status.Conditions) {
			t.Fatalf("the namespace's network is not ready: %+v", n.Status.Conditions)
		}
	}
	c.rounds(3)
	for _, p := range c.ports() {
		if !p.DeletionTimestamp.IsZero() {
			t.Errorf("port %s is given up", p.Name)
		}
	}
	if is := c.bound(); was == "" || is["good"] != was || is["bad"] != "" {
		t.Errorf("good had %s; now %v", was, is)
	}
	if !c.events.has("bad", core.EventFailed, "security group") {
		t.Errorf("nobody tells the pod's owner: %q", c.events.all)
	}
}

// A network that the SDN has no more is looked for; meanwhile pods keep what is theirs.
func TestNetworkLost(t *testing.T) {
	t.Parallel()
	c := newCluster(t, nil)
	c.addNode("n1", nil)
	c.namespace("blue", map[string]string{v1.AnnotationAllowMAC: "true"})
	c.pod("blue", "good", "n1", map[string]string{v1.AnnotationMAC: "fa:16:3e:00:00:01"})
	c.settle()
	was := c.bound()["good"]
	for _, noun := range []string{"network", "subnet"} {
		c.faults.problem = func(method string) error {
			if method == "EnsurePorts" {
				return sdn.NotFound(noun, "x")
			}
			return nil
		}
		more := c.pod("blue", "more-"+noun, "n1", map[string]string{v1.AnnotationMAC: "fa:16:3e:00:00:02"})
		pool := c.networkPool("blue")
		for range 3 { // the network is not looked at before the pool is again
			c.tellAll()
			if _, err := (pools{c.raven}).Reconcile(t.Context(), core.Request("", pool)); err != nil && !sdn.IsNotFound(err) {
				t.Fatal(err)
			}
		}
		if core.IsReady(c.networkOf("blue").Status.Conditions) {
			t.Errorf("nobody looks for the %s", noun)
		}
		for _, p := range c.ports() {
			if !p.DeletionTimestamp.IsZero() && p.Status.Pod != nil {
				t.Errorf("%s: the port of %s is given up", noun, p.Status.Pod.Name)
			}
		}
		c.faults.problem = nil
		c.settle()
		c.check()
		if is := c.bound(); is["good"] != was || is[more.Name] == "" {
			t.Errorf("good had %s; now %v", was, is)
		}
		c.remove(more)
		c.settle()
	}
}

// networkPool is the name of the one pool of a namespace's network.
func (c *cluster) networkPool(namespace string) string {
	c.t.Helper()
	for _, p := range c.pools() {
		if p.Spec.Network == c.networkOf(namespace).Status.Network {
			return p.Name
		}
	}
	c.t.Fatalf("no pool on the network of %s", namespace)
	return ""
}
