package raven

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/raven/core"
	"github.com/kuryr/kuryr/kube/raven/node"
	"github.com/kuryr/kuryr/sdn"
)

// afar is an SDN whose ports the machine does not reach by itself, and that filters what has no groups, as Neutron is.
type afar struct{ sdn.Provider }

func (p afar) Capabilities() sdn.Capabilities {
	can := p.Provider.Capabilities()
	can.HostReached, can.GrouplessOpen, can.SecurityGroups = false, false, true
	return can
}

var nodeRange = netip.MustParsePrefix("10.112.0.0/16")

// farCluster is a cluster on an SDN that the nodes do not reach by themselves.
func farCluster(t *testing.T, change func(*Config)) *cluster {
	t.Helper()
	c := newCluster(t, func(cfg *Config) {
		if cfg.NodeRanges = []netip.Prefix{nodeRange}; change != nil {
			change(cfg)
		}
	})
	c.sdn = afar{c.sdn}
	c.start()
	return c
}

// own is the one port of the node's own.
func (c *cluster) own(node string) *v1.KuryrPort {
	c.t.Helper()
	var own []v1.KuryrPort
	for _, p := range c.ports() {
		if p.Spec.ForNode && p.Spec.Node == node {
			own = append(own, p)
		}
	}
	if len(own) != 1 {
		c.t.Fatalf("node %s has %d ports of its own", node, len(own))
	}
	return &own[0]
}

func TestNodesHavePortsOfTheirOwn(t *testing.T) {
	t.Parallel()
	c := farCluster(t, nil)
	c.addNode("n1", nil)
	c.addNode("n2", nil)
	pod := c.pod("default", "a", "n1", nil)
	c.settle()
	c.check()
	p := c.own("n1")
	subnet := p.Spec.Network.Subnets[0]
	gateway := nodeRange.Addr().Next().String()
	if !nodeRange.Contains(netip.MustParseAddr(subnet.IPs[0])) || subnet.Gateway != "" {
		t.Errorf("subnet %+v: want an address in %s and no gateway, which would be the node's way to everywhere", subnet, nodeRange)
	}
	if want := []v1.PortRoute{{Destination: "10.128.0.0/9", NextHop: gateway}}; !slices.Equal(subnet.Routes, want) {
		t.Errorf("routes %v, want %v", subnet.Routes, want)
	}
	if p.Labels[v1.LabelForNode] != "true" || p.Labels[v1.LabelNode] != "n1" {
		t.Errorf("labels %v: its daemon would not find it", p.Labels)
	}
	if subnet.IPs[0] == c.own("n2").Spec.Network.Subnets[0].IPs[0] {
		t.Error("two nodes have one address")
	}
	if has := c.bound()["a"]; has == "" || nodeRange.Contains(netip.MustParseAddr(has)) {
		t.Errorf("the pod has %q", has)
	}
	// Whoever restarts changes nothing; a port that is given up is replaced.
	c.start()
	c.settle()
	if again := c.own("n1"); again.Name != p.Name {
		t.Errorf("another port after a restart: %s, %s", p.Name, again.Name)
	}
	c.remove(p)
	c.settle()
	c.check()
	if again := c.own("n1"); again.Name == p.Name {
		t.Error("the port that was given up is still there")
	}
	c.remove(pod)
	c.remove(c.node("n1"))
	c.settle()
	c.check()
	if slices.ContainsFunc(c.ports(), func(p v1.KuryrPort) bool { return p.Spec.Node == "n1" }) {
		t.Errorf("the node is gone and has ports: %s", c.picture())
	}
	c.own("n2")
}

func TestNodePoolDeletedByHand(t *testing.T) {
	t.Parallel()
	c := farCluster(t, nil)
	c.addNode("n1", nil)
	c.settle()
	was := c.own("n1").Name
	c.remove(&c.pools()[0])
	c.settle()
	if c.own("n1").Name == was {
		t.Error("its port is still there")
	}
	c.whole()
}

// A node reaches pods by each family that it has a range of.
func TestNodesReachBothFamilies(t *testing.T) {
	t.Parallel()
	six := netip.MustParsePrefix("fd00:112::/64")
	c := farCluster(t, func(cfg *Config) {
		cfg.Ranges = append(cfg.Ranges, Range{netip.MustParsePrefix("fd00:10::/48"), 64})
		cfg.NodeRanges = append(cfg.NodeRanges, six)
	})
	c.addNode("n1", nil)
	c.pod("default", "web", "n1", nil)
	c.settle()
	c.check()
	routes := map[string]v1.PortRoute{}
	for _, s := range c.own("n1").Spec.Network.Subnets {
		if len(s.IPs) != 1 || len(s.Routes) != 1 || !netip.MustParsePrefix(s.CIDR).Contains(netip.MustParseAddr(s.IPs[0])) {
			t.Fatalf("subnet %+v: want an address and a route", s)
		}
		routes[s.CIDR] = s.Routes[0]
	}
	for _, p := range []struct {
		nodes netip.Prefix
		pods  string
	}{{nodeRange, "10.128.0.0/9"}, {six, "fd00:10::/48"}} {
		if want := (v1.PortRoute{Destination: p.pods, NextHop: p.nodes.Addr().Next().String()}); routes[p.nodes.String()] != want {
			t.Errorf("by %s the route is %v, want %v", p.nodes, routes[p.nodes.String()], want)
		}
	}
}

func TestNodesWithoutPortsOfTheirOwn(t *testing.T) {
	t.Parallel()
	none := func(t *testing.T, c *cluster) {
		t.Helper()
		c.settle()
		if slices.ContainsFunc(c.pools(), func(p v1.KuryrPortPool) bool { return p.Spec.ForNode }) {
			t.Errorf("a pool for the node: %s", c.picture())
		}
	}
	t.Run("the machine reaches ports", func(t *testing.T) {
		c := newCluster(t, func(cfg *Config) { cfg.NodeRanges = []netip.Prefix{nodeRange} })
		c.addNode("n1", nil)
		none(t, c)
	})
	t.Run("no range", func(t *testing.T) {
		c := farCluster(t, func(cfg *Config) { cfg.NodeRanges = nil })
		c.addNode("n1", nil)
		none(t, c)
	})
	t.Run("no daemon", func(t *testing.T) {
		c := farCluster(t, nil)
		c.addNode("n1", nil)
		c.settle()
		c.own("n1")
		n := c.node("n1")
		n.Labels = map[string]string{v1.LabelClaimant: v1.ClaimantRaven}
		c.must(c.api.Update(t.Context(), n))
		none(t, c)
		c.check()
	})
}

func TestNodePortsSurviveKills(t *testing.T) {
	t.Parallel()
	for _, lost := range []bool{false, true} {
		for at := 1; ; at++ {
			c := farCluster(t, nil)
			c.addNode("n1", nil)
			c.faults.writes, c.faults.kill, c.faults.lost = 0, at, lost
			c.settle()
			killed := c.faults.dead
			c.start()
			c.settle()
			c.check()
			c.own("n1")
			if t.Failed() {
				t.Fatalf("killed at write %d, lost %v", at, lost)
			}
			if !killed {
				if at < 4 {
					t.Fatalf("only %d writes", at)
				}
				break
			}
		}
	}
}

// groupNames are the names of a port's groups, by commas.
func (c *cluster) groupNames(p v1.KuryrPort) string {
	c.t.Helper()
	var names []string
	for _, id := range p.Spec.SecurityGroups {
		g, err := c.sdn.SecurityGroup(c.t.Context(), sdn.ID(id))
		c.must(err)
		names = append(names, g.Name)
	}
	slices.Sort(names)
	return strings.Join(names, ",")
}

func TestGroupsLetNodesIn(t *testing.T) {
	t.Parallel()
	c := farCluster(t, nil)
	var chosen string
	made, err := c.sdn.ApplySecurityGroup(t.Context(), sdn.SecurityGroupSpec{Base: sdn.Base{Name: "web", Key: sdn.Key{Owner: c.sdn.Installation(), Kind: "test", Name: "web"}}})
	c.must(err)
	chosen = string(made.ID)
	c.namespace("green", map[string]string{v1.AnnotationSecurityGroups: chosen})
	c.namespace("blue", map[string]string{v1.AnnotationAllowSecurityGroups: "any"})
	c.addNode("n1", nil)
	c.pod("default", "plain", "n1", nil)
	c.pod("green", "grouped", "n1", nil)
	c.pod("blue", "wishful", "n1", map[string]string{v1.AnnotationSecurityGroups: chosen})
	c.settle()
	c.check()
	groups := map[string]string{} // by pod
	for _, p := range c.ports() {
		name := "node"
		if p.Status.Pod != nil {
			name = p.Status.Pod.Name
		} else if !p.Spec.ForNode {
			continue
		}
		groups[name] = c.groupNames(p)
	}
	for name, want := range map[string]string{"node": "kuryr-nodes", "plain": "kuryr-pods", "grouped": "kuryr-from-nodes,web", "wishful": "kuryr-from-nodes,web"} {
		if got := groups[name]; got != want {
			t.Errorf("%s has the groups %q, want %q", name, got, want)
		}
	}
	for g, err := range c.sdn.FindSecurityGroups(t.Context(), sdn.SecurityGroupQuery{Match: sdn.Match{Names: []string{"kuryr-from-nodes"}}}) {
		c.must(err)
		if len(g.Rules) != 1 || g.Rules[0].RemotePrefix != nodeRange || g.Rules[0].Direction != sdn.Ingress {
			t.Errorf("rules %+v: want nodes alone let in", g.Rules)
		}
	}
}

// Whatever groups a pod's port is given while the pod runs, they let nodes in, and the port is changed once for each change.
func TestGroupsThatChangeLetNodesIn(t *testing.T) {
	t.Parallel()
	c := farCluster(t, nil)
	c.cfg.Audit = 0
	c.apiServer("192.0.2.254", 6443)
	c.addNode("n1", nil)
	c.pod("default", "web", "n1", nil)
	c.settle()
	address := c.bound()["web"]
	changes := 0
	change := func(want string, do func()) {
		t.Helper()
		do()
		c.settle()
		c.check()
		changes++
		for range 3 {
			c.now = c.now.Add(core.CountsInterval)
			if errs := c.round(); len(errs) > 0 {
				t.Error(errs)
			}
		}
		if n := c.faults.asked["UpdatePort"]; n != changes {
			t.Errorf("%s: the port was changed %d times, want %d", want, n, changes)
		}
		for _, p := range c.ports() {
			if got := c.groupNames(p); p.Status.Pod != nil && got != want {
				t.Errorf("the pod's port has the groups %q, want %q", got, want)
			}
		}
		if own := c.groupNames(*c.own("n1")); own != "kuryr-nodes" {
			t.Errorf("the node's own port has the groups %q", own)
		}
	}
	isolate := func(on bool) func() {
		return func() {
			c.cfg.UnderlayIsolation, c.cfg.NodeNetworks = on, []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
			c.start()
		}
	}
	web := c.group("web")
	change("kuryr-from-nodes,web", func() { c.annotate("default", map[string]string{v1.AnnotationSecurityGroups: web}) })
	change("kuryr-pods", func() { c.annotate("default", map[string]string{v1.AnnotationSecurityGroups: ""}) })
	change("kuryr-pods-isolated", isolate(true))
	if own := c.own("n1").Spec.Network.Subnets[0].IPs[0]; c.passes("web", own, sdn.TCP, 10250) || !c.passes("web", own, sdn.UDP, node.PortDNS) {
		t.Errorf("an isolated pod reaches the node's own port, %s, or no name server there", own)
	}
	change("kuryr-from-nodes,web", func() { c.annotate("default", map[string]string{v1.AnnotationSecurityGroups: web}) })
	if c.events.has("Isolation", "kuryr-from-nodes") || !c.events.has("Isolation", web) {
		t.Errorf("events %v: want one of the groups that were chosen", c.events.all)
	}
	change("kuryr-pods-isolated", func() { c.annotate("default", map[string]string{v1.AnnotationSecurityGroups: ""}) })
	change("kuryr-pods", isolate(false))
	if again := c.bound()["web"]; again != address {
		t.Errorf("the pod has %s, had %s", again, address)
	}
}

func TestNodesReachExistingNetworks(t *testing.T) {
	t.Parallel()
	c := farCluster(t, nil)
	subnet := func(name, cidr string) sdn.SubnetSpec {
		return sdn.SubnetSpec{Base: sdn.Base{Name: name, Key: sdn.Key{Owner: c.sdn.Installation(), Kind: "test", Name: name}}, CIDR: netip.MustParsePrefix(cidr)}
	}
	existing := func(name, cidr string) string {
		n, err := c.sdn.EnsureNetwork(t.Context(), sdn.NetworkSpec{Base: subnet(name, cidr).Base, Subnets: []sdn.SubnetSpec{subnet(name+"-v4", cidr)}})
		c.must(err)
		return string(n.ID)
	}
	c.addNode("n1", nil)
	c.settle()
	before := c.own("n1")
	c.namespace("green", map[string]string{v1.AnnotationNetwork: existing("old", "172.20.0.0/24")})
	c.namespace("lan", map[string]string{v1.AnnotationNetwork: existing("nodes-lan", "192.0.2.0/24")}) // where the node itself is
	c.pod("green", "a", "n1", nil)
	c.pod("lan", "b", "n1", nil)
	c.settle()
	after := c.own("n1")
	var to []string
	for _, r := range after.Spec.Network.Subnets[0].Routes {
		to = append(to, r.Destination)
	}
	if got := strings.Join(to, " "); got != "10.128.0.0/9 172.20.0.0/24" || after.Name != before.Name {
		t.Errorf("routes to %q of port %s, which was %s", got, after.Name, before.Name)
	}
	if !c.events.has("n1", "192.0.2.0/24", "cut it off") {
		t.Errorf("events %v", c.events.all)
	}
}

func TestNodeRangesCollide(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*Config){
		"pods":     func(cfg *Config) { cfg.NodeRanges = []netip.Prefix{netip.MustParsePrefix("10.129.0.0/16")} },
		"services": func(cfg *Config) { cfg.NodeRanges = []netip.Prefix{netip.MustParsePrefix("10.97.0.0/16")} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, change)
			c.addNode("n1", nil)
			c.sdn = afar{c.sdn}
			if err := c.begin(); err == nil || !strings.Contains(err.Error(), "the nodes' range") {
				t.Errorf("it starts: %v", err)
			}
			c.sdn = c.sdn.(afar).Provider
			if err := c.begin(); err != nil {
				t.Errorf("where nodes need no range it does not matter: %v", err)
			}
		})
	}
	if _, err := New(Config{Provider: afar{}, NodeRanges: []netip.Prefix{nodeRange, netip.MustParsePrefix("10.113.0.0/16")}}, nil, nil); err == nil {
		t.Error("two ranges of one family are taken")
	}
}

// Where the configuration comes to name another range, as an upgrade's default may, nodes keep their ports: their network's range stays, and all else goes by it. Who wants another has
// Raven make none for a while, and takes the network away.
func TestNodesKeepTheirRange(t *testing.T) {
	t.Parallel()
	c := farCluster(t, nil)
	c.addNode("n1", nil)
	c.settle()
	was := c.own("n1").Name
	other := netip.MustParsePrefix("10.95.0.0/16")
	c.cfg.NodeRanges = []netip.Prefix{other}
	c.start()
	c.settle()
	c.check()
	if is := c.own("n1"); is.Name != was {
		t.Errorf("the node's port was %s, is %s", was, is.Name)
	}
	if all := c.raven.clusterRanges(); !slices.Contains(all, nodeRange) || slices.Contains(all, other) {
		t.Errorf("the cluster's ranges are %v", all)
	}
	c.cfg.Services = true // whose VIP network would overlap it
	if err := c.begin(); err == nil || !strings.Contains(err.Error(), nodeRange.String()) {
		t.Errorf("a VIP network over the nodes' range: %v", err)
	}
	c.cfg.Services, c.cfg.NodeRanges = false, nil
	c.start()
	c.settle()
	if slices.ContainsFunc(c.ports(), func(p v1.KuryrPort) bool { return p.Spec.ForNode }) {
		t.Errorf("without node ranges a node has a port: %s", c.picture())
	}
	for s, err := range c.sdn.FindSubnets(t.Context(), sdn.SubnetQuery{CIDRs: []netip.Prefix{nodeRange}}) {
		c.must(err)
		c.must(c.sdn.DetachSubnet(t.Context(), c.raven.ground.Router, s.ID))
		c.must(c.sdn.DeleteNetwork(t.Context(), s.Network))
	}
	c.cfg.Services, c.cfg.NodeRanges = true, []netip.Prefix{other}
	c.start()
	c.settle()
	if ip := netip.MustParseAddr(c.own("n1").Spec.Network.Subnets[0].IPs[0]); !other.Contains(ip) {
		t.Errorf("the node has %s", ip)
	}
}
