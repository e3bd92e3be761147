package raven

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/sdn"
	corev1 "k8s.io/api/core/v1"
)

// ready has a node be ready, or not, and have other conditions.
func (c *cluster) ready(node string, is corev1.ConditionStatus, more ...corev1.NodeCondition) {
	c.t.Helper()
	n := c.node(node)
	n.Status.Conditions = append(more, corev1.NodeCondition{Type: corev1.NodeReady, Status: is})
	c.must(c.api.Status().Update(c.t.Context(), n))
}

// routes are the router's, in order.
func (c *cluster) routes() (all []string) {
	c.t.Helper()
	r, err := c.sdn.Router(c.t.Context(), c.raven.ground.router)
	c.must(err)
	for _, route := range r.Routes {
		all = append(all, fmt.Sprint(route.Destination, " ", route.NextHop))
	}
	slices.Sort(all)
	return all
}

// Where nodes balance ClusterIPs the router leads there by those that are ready, their ports take what is for them, and there is no VIP network. Others' routes stay.
func TestRoutesToNodesThatBalance(t *testing.T) {
	t.Parallel()
	c := farCluster(t, nil)
	c.addNode("n1", nil)
	c.addNode("n2", nil)
	c.settle()
	found, err := sdn.All(c.sdn.FindNetworks(t.Context(), sdn.NetworkQuery{Match: sdn.Match{Names: []string{"kuryr-services"}}}))
	c.must(err)
	foreign, err := c.sdn.EnsureSubnet(t.Context(), sdn.SubnetSpec{Network: found[0].ID, CIDR: netip.MustParsePrefix("172.30.0.0/24")})
	c.must(err)
	theirs := sdn.HostRoute{Destination: netip.MustParsePrefix("172.20.0.0/24"), NextHop: netip.MustParseAddr("10.128.0.9")}
	_, err = c.sdn.UpdateRouter(t.Context(), c.raven.ground.router, sdn.RouterPatch{Routes: &[]sdn.HostRoute{theirs}})
	c.must(err)

	c.cfg.NodeBalanced = true
	c.start()
	c.ready("n1", corev1.ConditionTrue)
	c.settle()
	address := func(node string) string { return c.own(node).Spec.Network.Subnets[0].IPs[0] }
	want := func(more ...string) {
		t.Helper()
		all := append(more, "172.20.0.0/24 10.128.0.9")
		slices.Sort(all)
		if got := c.routes(); !slices.Equal(got, all) {
			t.Errorf("routes %q, want %q", got, all)
		}
	}
	want("10.96.0.0/12 " + address("n1"))
	c.ready("n2", corev1.ConditionTrue)
	c.settle()
	want("10.96.0.0/12 "+address("n1"), "10.96.0.0/12 "+address("n2"))
	// What a node's kernel has is there while the daemon ends and comes again, but not after a boot.
	for _, row := range []struct {
		status   corev1.ConditionStatus
		reason   string
		balances bool
	}{
		{corev1.ConditionTrue, "KuryrStopped", true}, {corev1.ConditionTrue, "KuryrRestarting", true}, {corev1.ConditionTrue, v1.ReasonNodeStarting, false}, {corev1.ConditionFalse, "KuryrReady", true},
	} {
		c.ready("n1", corev1.ConditionTrue, corev1.NodeCondition{Type: corev1.NodeNetworkUnavailable, Status: row.status, Reason: row.reason})
		c.settle()
		if row.balances {
			want("10.96.0.0/12 "+address("n1"), "10.96.0.0/12 "+address("n2"))
		} else {
			want("10.96.0.0/12 " + address("n2"))
		}
	}
	for _, node := range []string{"n1", "n2"} {
		p, err := c.sdn.Port(t.Context(), sdn.ID(c.own(node).Spec.ID))
		c.must(err)
		if len(p.AllowedPairs) != 1 || p.AllowedPairs[0].Prefix != netip.MustParsePrefix("10.96.0.0/12") {
			t.Errorf("the port of %s takes %+v", node, p.AllowedPairs)
		}
		if routes := fmt.Sprint(c.own(node).Spec.Network.Subnets[0].Routes); !slices.ContainsFunc(c.own(node).Spec.Network.Subnets[0].Routes, func(r v1.PortRoute) bool { return r.Destination == "10.96.0.0/12" }) {
			t.Errorf("node %s has the routes %s", node, routes)
		}
	}
	for s, err := range c.sdn.FindSubnets(t.Context(), sdn.SubnetQuery{}) {
		c.must(err)
		if s.CIDR.Overlaps(netip.MustParsePrefix("10.96.0.0/12")) {
			t.Errorf("the VIP network has %s", s.CIDR)
		}
	}
	if _, err := c.sdn.Subnet(t.Context(), foreign.ID); err != nil {
		t.Errorf("somebody's subnet of the VIP network: %v", err)
	}
	c.ready("n1", corev1.ConditionFalse)
	c.settle()
	want("10.96.0.0/12 " + address("n2"))
	c.remove(c.node("n2"))
	c.settle()
	want()
	c.ready("n1", corev1.ConditionTrue)
	c.settle()
	want("10.96.0.0/12 " + address("n1"))

	c.cfg.NodeBalanced = false
	c.start()
	c.settle()
	want()
	if p, err := c.sdn.Port(context.Background(), sdn.ID(c.own("n1").Spec.ID)); err != nil || len(p.AllowedPairs) != 0 {
		t.Errorf("switched off the port takes %+v, %v", p.AllowedPairs, err)
	}
	asked := c.faults.asked["FindPorts"]
	c.ready("n1", corev1.ConditionFalse)
	c.settle()
	if n := c.faults.asked["FindPorts"] - asked; n != 0 {
		t.Errorf("switched off a node that comes or goes has the SDN be asked %d times", n)
	}
}
