package raven

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/raven/core"
	"github.com/kuryr/kuryr/kube/raven/node"
	"github.com/kuryr/kuryr/sdn"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
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
	r, err := c.sdn.Router(c.t.Context(), c.raven.ground.Router)
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
	_, err = c.sdn.UpdateRouter(t.Context(), c.raven.ground.Router, sdn.RouterPatch{Routes: &[]sdn.HostRoute{theirs}})
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

// balancingNodes is a cluster whose nodes balance, with so many that are ready.
func balancingNodes(t *testing.T, nodes int, change func(*Config)) *cluster {
	t.Helper()
	c := farCluster(t, func(cfg *Config) {
		if cfg.NodeBalanced = true; change != nil {
			change(cfg)
		}
	})
	for i := range nodes {
		c.joins(fmt.Sprint("n", i+1))
	}
	c.settle()
	return c
}

// joins has a node come and be ready.
func (c *cluster) joins(node string) {
	c.t.Helper()
	c.addNode(node, nil)
	c.ready(node, corev1.ConditionTrue)
}

// wholeRoutes checks that the router leads to the range of ClusterIPs by each node that is ready and no other, and that nodes' ports take what is for it.
func (c *cluster) wholeRoutes() {
	c.t.Helper()
	var want []string
	for _, p := range c.ports() {
		if !p.Spec.ForNode || !p.DeletionTimestamp.IsZero() {
			continue
		}
		if n := c.node(p.Spec.Node); n != nil && node.IsReady(n) {
			want = append(want, "10.96.0.0/12 "+p.Spec.Network.Subnets[0].IPs[0])
		}
		of, err := c.sdn.Port(c.t.Context(), sdn.ID(p.Spec.ID))
		c.must(err)
		if len(of.AllowedPairs) != 1 || of.AllowedPairs[0].Prefix != netip.MustParsePrefix("10.96.0.0/12") {
			c.t.Errorf("the port of %s takes %+v", p.Spec.Node, of.AllowedPairs)
		}
	}
	slices.Sort(want)
	if got := c.routes(); !slices.Equal(got, want) {
		c.t.Errorf("routes %q, want %q", got, want)
	}
}

// A change of one node of many has that one looked at in the cache, and in the SDN what of it has changed.
func TestOneNodeOfMany(t *testing.T) {
	t.Parallel()
	c := balancingNodes(t, 20, nil)
	c.wholeRoutes()
	read := 0
	c.raven.Client = interceptor.NewClient(c.raven.Client.(client.WithWatch), interceptor.Funcs{
		Get: func(ctx context.Context, w client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			read++
			return w.Get(ctx, key, o, opts...)
		},
		List: func(ctx context.Context, w client.WithWatch, l client.ObjectList, opts ...client.ListOption) error {
			err := w.List(ctx, l, opts...)
			read += meta.LenList(l)
			return err
		},
	})
	look := func(what string, most int, want map[string]int) {
		t.Helper()
		c.tellAll()
		read, c.faults.asked = 0, map[string]int{}
		_, err := c.reconcile("noderoutes", core.Request("", clusterName))
		c.must(err)
		if read > most || !maps.Equal(c.faults.asked, want) {
			t.Errorf("%s: %d objects were read, want at most %d; the SDN was asked for %v, want %v", what, read, most, c.faults.asked, want)
		}
	}
	look("nothing", 0, map[string]int{})
	c.ready("n7", corev1.ConditionFalse)
	look("one is ready no more", 2, map[string]int{"Router": 1, "UpdateRouter": 1})
	c.ready("n7", corev1.ConditionTrue)
	look("it is ready again", 2, map[string]int{"Router": 1, "UpdateRouter": 1})
	c.ready("n7", corev1.ConditionFalse)
	c.ready("n7", corev1.ConditionTrue)
	look("it was so for a moment", 2, map[string]int{})
	c.addNode("late", nil)
	c.settle()
	c.wholeRoutes()
}

// What somebody changes in the SDN of what leads to nodes is put back by the audit.
func TestRoutesTakenAwayBehindRavensBack(t *testing.T) {
	t.Parallel()
	c := balancingNodes(t, 2, func(cfg *Config) { cfg.Audit = time.Hour })
	c.wholeRoutes()
	_, err := c.sdn.UpdateRouter(t.Context(), c.raven.ground.Router, sdn.RouterPatch{Routes: &[]sdn.HostRoute{}})
	c.must(err)
	_, err = c.sdn.UpdatePort(t.Context(), sdn.ID(c.own("n1").Spec.ID), sdn.PortPatch{AllowedPairs: &[]sdn.AllowedPair{}})
	c.must(err)
	c.now = c.now.Add(2 * time.Hour)
	c.settle()
	c.wholeRoutes()
	before := c.faults.asked["Router"]
	c.now = c.now.Add(2 * time.Hour)
	c.settle()
	if n := c.faults.asked["Router"] - before; n != 1 {
		t.Errorf("where nothing is wrong the router was asked for %d times", n)
	}
}

// routeKills are what happens to nodes while Raven is killed.
var routeKills = map[string]func(c *cluster){
	"nodes come": func(c *cluster) {
		c.joins("n3")
		c.joins("n4")
	},
	"one goes, and one comes": func(c *cluster) {
		c.remove(c.node("n1"))
		c.joins("n3")
	},
	"one is ready no more, and one comes": func(c *cluster) {
		c.ready("n1", corev1.ConditionFalse)
		c.joins("n3")
	},
}

// Wherever Raven is killed, and whatever befalls its requests, the router leads to the nodes that are ready in the end.
func TestKilledWhileRouting(t *testing.T) {
	t.Parallel()
	for name, act := range routeKills {
		for _, lost := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, lost %v", name, lost), func(t *testing.T) {
				t.Parallel()
				eachKill(t, lost, func() (*cluster, func()) {
					c := balancingNodes(t, 2, nil)
					act(c)
					return c, c.wholeRoutes
				})
			})
		}
		for trouble, of := range troubles {
			t.Run(name+", "+trouble, func(t *testing.T) {
				t.Parallel()
				for at := 0; ; {
					c := balancingNodes(t, 2, nil)
					if at += *strideFlag; at == *strideFlag {
						at = 1 + c.rand.IntN(*strideFlag)
					}
					act(c)
					c.faults.trouble = of
					c.faults.trouble.from = at
					c.settle()
					c.wholeRoutes()
					if t.Failed() {
						t.Fatalf("at request %d", at)
					}
					if c.faults.trouble.seen < at {
						return
					}
				}
			})
		}
	}
}

// fewRoutes is an SDN whose routers may have so many routes.
type fewRoutes struct {
	sdn.Provider
	most int
}

func (p fewRoutes) UpdateRouter(ctx context.Context, id sdn.ID, patch sdn.RouterPatch) (sdn.Router, error) {
	if patch.Routes != nil && len(*patch.Routes) > p.most {
		return sdn.Router{}, sdn.Invalid("router", "routes", "The number of routes exceeds the maximum %d", p.most)
	}
	return p.Provider.UpdateRouter(ctx, id, patch)
}

// Of more nodes than a router can have routes some are its next hops. They stay so while they are ready, and others take the place of those that are not.
func TestMoreNodesThanRoutes(t *testing.T) {
	t.Parallel()
	c := farCluster(t, nil)
	c.sdn = fewRoutes{c.sdn, 30}
	theirs := sdn.HostRoute{Destination: netip.MustParsePrefix("172.20.0.0/24"), NextHop: netip.MustParseAddr("10.128.0.9")}
	c.settle()
	_, err := c.sdn.UpdateRouter(t.Context(), c.raven.ground.Router, sdn.RouterPatch{Routes: &[]sdn.HostRoute{theirs}})
	c.must(err)
	c.cfg.NodeBalanced = true
	c.start()
	for i := range 40 {
		name := fmt.Sprint("n", i)
		c.addNode(name, nil)
		c.ready(name, corev1.ConditionTrue)
	}
	c.settle()
	nodeOf := func(route string) string {
		for _, p := range c.ports() {
			if p.Spec.ForNode && strings.HasSuffix(route, " "+p.Spec.Network.Subnets[0].IPs[0]) {
				return p.Spec.Node
			}
		}
		return ""
	}
	was := c.routes()
	ours := slices.DeleteFunc(slices.Clone(was), func(route string) bool { return nodeOf(route) == "" })
	if len(was) != 30 || len(ours) != 29 {
		t.Fatalf("%d routes, by nodes %d: %q", len(was), len(ours), was)
	}
	gone := ours[3]
	c.ready(nodeOf(gone), corev1.ConditionFalse)
	c.settle()
	is := c.routes()
	if slices.Contains(is, gone) || len(is) != 30 {
		t.Errorf("the node of %q is ready no more: %d routes %q", gone, len(is), is)
	}
	for _, route := range was {
		if route != gone && !slices.Contains(is, route) {
			t.Errorf("the route %q has gone, of a node that is ready", route)
		}
	}
	c.ready(nodeOf(gone), corev1.ConditionTrue)
	c.start()
	c.settle()
	if now := c.routes(); !slices.Equal(now, is) {
		t.Errorf("a node came back, and the routes are %q, were %q", now, is)
	}
}

// Where routers may have more routes than Neutron's without a word, each node has its own, whatever others have there; where they may not, a range keeps one as long as there is room for that.
func TestAsManyRoutesAsTheSDNTakes(t *testing.T) {
	t.Parallel()
	for name, of := range map[string]struct{ most, others, nodes int }{
		"its operator said so": {100, 3, 40},
		"others have more":     {100, 35, 40},
		"room for one":         {36, 35, 1},
	} {
		c := farCluster(t, nil)
		c.sdn = fewRoutes{c.sdn, of.most}
		c.settle()
		var theirs []sdn.HostRoute
		for i := range of.others {
			theirs = append(theirs, sdn.HostRoute{Destination: netip.PrefixFrom(netip.AddrFrom4([4]byte{172, 20, byte(i), 0}), 24), NextHop: netip.MustParseAddr("10.128.0.9")})
		}
		_, err := c.sdn.UpdateRouter(t.Context(), c.raven.ground.Router, sdn.RouterPatch{Routes: &theirs})
		c.must(err)
		c.cfg.NodeBalanced = true
		c.start()
		for i := range 40 {
			node := fmt.Sprint("n", i)
			c.addNode(node, nil)
			c.ready(node, corev1.ConditionTrue)
		}
		c.settle()
		if n := len(c.routes()); n != of.others+of.nodes {
			t.Errorf("%s: %d routes, want %d of others and %d of nodes", name, n, of.others, of.nodes)
		}
	}
}

// Where nodes balance, the owner of a Service of type LoadBalancer is told that it gets no address, and of one with a policy what becomes of that.
func TestNodesGiveNoAddresses(t *testing.T) {
	t.Parallel()
	c := farCluster(t, func(cfg *Config) { cfg.NodeBalanced = true })
	other := "example.org/theirs"
	c.service("web", func(s *corev1.Service) { exposedService(s); s.Spec.Ports[0].NodePort = 30080 }, "10.96.0.10")
	c.service("plain", nil, "10.96.0.11")
	c.service("theirs", func(s *corev1.Service) { exposedService(s); s.Spec.LoadBalancerClass = &other }, "10.96.0.12")
	c.service("proxys", func(s *corev1.Service) { exposedService(s); s.Labels = map[string]string{labelProxyName: "x"} }, "10.96.0.13")
	c.settle()
	told := func() (n int) {
		for _, line := range c.events.all {
			if strings.Contains(line, core.EventUnserved) {
				n++
			}
		}
		return n
	}
	if !c.events.has("web "+core.EventUnserved, "controller.load_balancers: node", "NodePorts") || told() != 1 {
		t.Errorf("Events %q", c.events.all)
	}
	c.change("web", func(s *corev1.Service) { s.Spec.Ports[0].Port = 81 })
	c.settle()
	if told() != 1 {
		t.Errorf("the same is told again: %q", c.events.all)
	}
	c.change("plain", exposedService)
	c.settle()
	if !c.events.has("plain "+core.EventUnserved) || c.events.has("plain "+core.EventUnserved, "NodePorts") || told() != 2 {
		t.Errorf("another that became one: %q", c.events.all)
	}
	c.remove(c.serviceNow("web"))
	c.settle()
	if c.klb("web") != nil || len(c.raven.applied.told) != 1 {
		t.Errorf("what is known of %d Services that wait, want of 1", len(c.raven.applied.told))
	}
	given := c.serviceNow("plain")
	given.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.9"}}
	c.must(c.api.Status().Update(t.Context(), given))
	c.settle()
	c.start()
	c.settle()
	if told() != 0 || len(c.raven.applied.told) != 0 {
		t.Errorf("another gives it an address: %q", c.events.all)
	}
	local := corev1.ServiceInternalTrafficPolicyLocal
	c.service("near", func(s *corev1.Service) { s.Spec.InternalTrafficPolicy = &local }, "10.96.0.14")
	c.settle()
	if !c.events.has("near "+core.EventUnserved, "spec.internalTrafficPolicy: Local: pods' connections come to any node") || told() != 1 {
		t.Errorf("of a policy: %q", c.events.all)
	}
}
