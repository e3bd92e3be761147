package raven

import (
	"testing"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"k8s.io/apimachinery/pkg/types"
)

// uplinksOf are the nodes' own ports, by the nodes' names.
func (c *cluster) uplinksOf() map[string][]v1.KuryrPort {
	all := map[string][]v1.KuryrPort{}
	for _, p := range c.ports() {
		if p.Labels[v1.LabelUplink] != "" {
			all[p.Spec.Node] = append(all[p.Spec.Node], p)
		}
	}
	return all
}

// Each node with a daemon has one port of its own, with or without pods, for as long as it is there.
func TestUplinks(t *testing.T) {
	t.Parallel()
	const system = "kuryr-system"
	c := newCluster(t, func(cfg *Config) { cfg.UplinkNamespace = system })
	c.namespace(system, nil)
	c.namespace("blue", nil)
	c.addNode("n1", nil)
	c.addNode("n2", nil)
	c.settle()
	c.check()
	has := c.uplinksOf()
	var uid types.UID
	for _, name := range []string{"n1", "n2"} {
		if len(has[name]) != 1 || has[name][0].Spec.Dedicated != c.node(name).UID || has[name][0].Spec.Network.Subnets[0].Gateway == "" {
			t.Fatalf("%s has the ports %+v of its own", name, has[name])
		}
		uid = has[name][0].UID
	}
	for _, p := range c.pools() {
		if p.Status.Available != 0 {
			t.Errorf("pool %s says that %d ports are free, and has a node's own only", p.Name, p.Status.Available)
		}
	}

	// Pods of the namespace have others, and when they have gone the node's own stays.
	pod := c.pod(system, "p", "n2", nil)
	c.settle()
	c.check()
	if c.bound()["p"] == "" || len(c.uplinksOf()["n2"]) != 1 {
		t.Errorf("with a pod: %v, %d ports of the node's own", c.bound(), len(c.uplinksOf()["n2"]))
	}
	c.remove(pod)
	c.settle()
	if has := c.uplinksOf()["n2"]; len(has) != 1 || has[0].UID != uid {
		t.Errorf("the port of n2 is another: %+v", has)
	}

	// Deleted by hand it is made anew.
	c.remove(&c.uplinksOf()["n2"][0])
	c.settle()
	c.check()
	if has := c.uplinksOf()["n2"]; len(has) != 1 || has[0].UID == uid {
		t.Errorf("deleted by hand: %+v", has)
	}

	// A node without a daemon has nobody who would plug it, and one that is gone has none.
	n1 := c.node("n1")
	n1.Labels = map[string]string{v1.LabelClaimant: v1.ClaimantRaven}
	c.must(c.api.Update(t.Context(), n1))
	c.remove(c.node("n2"))
	c.settle()
	c.check()
	if has := c.uplinksOf(); len(has) != 0 {
		t.Errorf("left: %+v", has)
	}
}

// Where the SDN leads the host to its pods, nodes have no ports of their own.
func TestNoUplinks(t *testing.T) {
	t.Parallel()
	c := newCluster(t, nil)
	c.namespace("kuryr-system", nil)
	c.addNode("n1", nil)
	c.settle()
	if ports := c.ports(); len(ports) != 0 {
		t.Errorf("ports: %+v", ports)
	}
}

// Killed at any write while a node comes, and while one goes, Raven ends with one port for each node that is there.
func TestUplinksKilledAtEveryWrite(t *testing.T) {
	t.Parallel()
	for at := 1; ; at++ {
		c := newCluster(t, func(cfg *Config) { cfg.UplinkNamespace = "kuryr-system" })
		c.namespace("kuryr-system", nil)
		c.addNode("old", nil)
		c.settle()
		c.remove(c.node("old"))
		c.addNode("new", nil)
		c.faults.writes, c.faults.kill, c.faults.lost = 0, at, at%2 == 0
		c.settle()
		killed := c.faults.dead
		c.start()
		c.settle()
		c.check()
		if has := c.uplinksOf(); len(has) != 1 || len(has["new"]) != 1 {
			t.Fatalf("killed at write %d: %+v", at, has)
		}
		if t.Failed() {
			t.Fatalf("killed at write %d", at)
		}
		if !killed {
			if at < 4 {
				t.Fatalf("only %d writes", at)
			}
			return
		}
	}
}
