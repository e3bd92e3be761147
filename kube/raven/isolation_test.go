package raven

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/raven/core"
	"github.com/kuryr/kuryr/sdn"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func isolated(c *Config) {
	c.UnderlayIsolation, c.NodeNetworks = true, []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
}

// apiServer has the API server say where it listens.
func (c *cluster) apiServer(address string, port int32) {
	c.t.Helper()
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes", Labels: map[string]string{discoveryv1.LabelServiceName: "kubernetes"}},
		Endpoints:  []discoveryv1.Endpoint{{Addresses: []string{address}}}, Ports: []discoveryv1.EndpointPort{{Port: &port}},
	}
	_ = c.api.Delete(c.t.Context(), &discoveryv1.EndpointSlice{ObjectMeta: s.ObjectMeta})
	c.must(c.api.Create(c.t.Context(), s))
}

// passes tells whether the groups of a pod's port let pass what it sends.
func (c *cluster) passes(pod, to string, protocol sdn.Protocol, port uint16) bool {
	c.t.Helper()
	addr := netip.MustParseAddr(to)
	for _, p := range c.ports() {
		if p.Status.Pod == nil || p.Status.Pod.Name != pod {
			continue
		}
		if len(p.Spec.SecurityGroups) == 0 {
			return true
		}
		for _, id := range p.Spec.SecurityGroups {
			g, err := c.sdn.SecurityGroup(c.t.Context(), sdn.ID(id))
			c.must(err)
			for _, r := range g.Rules {
				if r.Direction != sdn.Egress || r.IPv6 != addr.Is6() || r.Protocol != 0 && r.Protocol != protocol || r.Ports.First != 0 && (port < r.Ports.First || port > r.Ports.Last) ||
					r.RemotePrefix.IsValid() && !r.RemotePrefix.Contains(addr) {
					continue
				}
				if r.RemoteSet != "" {
					set, err := c.sdn.AddressGroup(c.t.Context(), r.RemoteSet)
					c.must(err)
					if !slices.ContainsFunc(set.Prefixes, func(p netip.Prefix) bool { return p.Contains(addr) }) {
						continue
					}
				}
				return true
			}
		}
		return false
	}
	c.t.Fatalf("pod %s has no port", pod)
	return false
}

// Isolation keeps pods from the nodes' network but for the API server and name servers, follows where these are, and is taken away without a trace.
func TestUnderlayIsolation(t *testing.T) {
	t.Parallel()
	for _, sets := range []bool{true, false} {
		c := newCluster(t, nil)
		c.cfg.Audit = 0
		if !sets {
			c.sdn = withoutSets{c.sdn}
		}
		c.apiServer("192.0.2.254", 6443)
		c.addNode("n1", nil)
		c.pod("default", "web", "n1", nil)
		c.settle()
		reach := func(when string, want map[string]bool) {
			t.Helper()
			for at, yes := range want {
				ap := netip.MustParseAddrPort(at[strings.Index(at, " ")+1:])
				protocol := map[string]sdn.Protocol{"tcp": sdn.TCP, "udp": sdn.UDP}[at[:3]]
				if got := c.passes("web", ap.Addr().String(), protocol, ap.Port()); got != yes {
					t.Errorf("address groups %v, %s: %s passes: %v", sets, when, at, got)
				}
			}
		}
		reach("before", map[string]bool{"tcp 192.0.2.1:10250": true})

		isolated(&c.cfg)
		c.start()
		c.settle()
		c.check()
		reach("isolated", map[string]bool{
			"tcp 192.0.2.1:10250": false, "tcp 192.0.2.200:80": false, "udp 192.0.2.200:53": true, "tcp 192.0.2.200:53": true, "udp 192.0.2.200:54": false,
			"tcp 192.0.2.254:6443": true, "tcp 192.0.2.253:6443": false, "udp 192.0.2.254:6443": false,
			"tcp 192.0.1.255:80": true, "tcp 192.0.3.0:80": true, "tcp 10.130.0.1:80": true, "tcp 8.8.8.8:443": true, "tcp [2001:db8::1]:80": true,
			"tcp 100.64.0.1:22": false, // the host, where routers find it
		})

		// Another API server and a node with another address, of the other family too.
		c.apiServer("192.0.2.253", 6443)
		c.settle()
		reach("another API server", map[string]bool{"tcp 192.0.2.254:6443": false, "tcp 192.0.2.253:6443": true, "tcp [2001:db8::1]:22": true})
		n := c.node("n1")
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: "2001:db8::1"}, corev1.NodeAddress{Type: corev1.NodeHostName, Address: "n1"})
		c.must(c.api.Status().Update(t.Context(), n))
		c.settle()
		reach("moved", map[string]bool{
			"tcp 192.0.2.254:6443": false, "tcp 192.0.2.253:6443": true, "tcp [2001:db8::1]:22": false, "tcp [2001:db8::2]:22": true, "tcp [2001:db8::1]:53": true,
		})

		// A namespace's own groups take the place of Kuryr's: its owner is told.
		c.annotate("default", map[string]string{v1.AnnotationSecurityGroups: c.group("own")})
		c.settle()
		if !c.events.has("Isolation", core.EventUnserved) {
			t.Error("nobody is told that groups of a namespace are in the place of the isolation")
		}
		c.annotate("default", map[string]string{v1.AnnotationSecurityGroups: ""})

		c.cfg.UnderlayIsolation = false
		c.start()
		c.settle()
		c.check()
		reach("after", map[string]bool{"tcp 192.0.2.1:10250": true})
		left, err := sdn.All(c.sdn.FindSecurityGroups(t.Context(), sdn.SecurityGroupQuery{Match: sdn.Match{Owner: c.sdn.Installation(), Kind: v1.KeyKindSecurityGroup}}))
		if len(left) > 0 || err != nil {
			t.Errorf("left: %v, %v", left, err)
		}
		if sets {
			left, err := sdn.All(c.sdn.FindAddressGroups(t.Context(), sdn.AddressGroupQuery{Match: sdn.Match{Owner: c.sdn.Installation(), Kind: v1.KeyKindSecurityGroup}}))
			if len(left) > 0 || err != nil {
				t.Errorf("left: %v, %v", left, err)
			}
		}
	}
}

// withoutSets is an SDN without address groups.
type withoutSets struct{ sdn.Provider }

func (p withoutSets) Capabilities() sdn.Capabilities {
	can := p.Provider.Capabilities()
	can.AddressGroups = false
	return can
}

// withoutGroups is an SDN without security groups.
type withoutGroups struct{ sdn.Provider }

func (p withoutGroups) Capabilities() sdn.Capabilities {
	can := p.Provider.Capabilities()
	can.SecurityGroups = false
	return can
}

// What an SDN cannot isolate is told at the start, by the name of the setting.
func TestIsolationThatCannotBe(t *testing.T) {
	t.Parallel()
	c := newCluster(t, nil)
	isolated(&c.cfg)
	c.sdn = withoutGroups{c.sdn}
	if err := c.begin(); !sdn.IsUnsupported(err) || !strings.Contains(err.Error(), "controller.underlay_isolation") {
		t.Errorf("an SDN without security groups: %v", err)
	}
	for what, change := range map[string]func(*Config){
		"security groups beside it":   func(c *Config) { c.SecurityGroups = []string{"g"} },
		"nodes in the pods' range":    func(c *Config) { c.NodeNetworks = []netip.Prefix{netip.MustParsePrefix("10.200.0.0/16")} },
		"nodes in the services range": func(c *Config) { c.NodeNetworks = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")} },
	} {
		cfg := c.cfg
		cfg.Provider = c.sdn
		change(&cfg)
		if _, err := New(cfg, c.api, c.events); err == nil {
			t.Errorf("%s: no error", what)
		}
	}
}
