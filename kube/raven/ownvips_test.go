package raven

import (
	"context"
	"net/netip"
	"slices"
	"testing"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/raven/core"
	"github.com/kuryr/kuryr/sdn"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// newPlacing is a cluster whose Services of type LoadBalancer have VIPs in their namespaces.
func newPlacing(t testing.TB, change func(*Config)) *cluster {
	t.Helper()
	return newServing(t, func(c *Config) {
		c.NamespaceVIPs = true
		if change != nil {
			change(c)
		}
	})
}

// own is the SDN's load balancer of a Service's own VIP of IPv4, nil for none.
func (c *cluster) ownVIP(s *corev1.Service) *sdn.LoadBalancer {
	c.t.Helper()
	for lb, err := range c.sdn.FindLoadBalancers(c.t.Context(), sdn.LoadBalancerQuery{Match: sdn.Match{Owner: c.sdn.Installation()}}) {
		c.must(err)
		if lb.Key.Name == v1.OwnLoadBalancerKey(s.UID, false) {
			return &lb
		}
	}
	return nil
}

// A Service of type LoadBalancer has a VIP on its namespace's subnet of load balancers, where its floating IP leads and its sources count, until its type is another; pods get no address
// there, and the subnet goes with the namespace's network.
func TestVIPsInNamespaces(t *testing.T) {
	t.Parallel()
	c := newPlacing(t, nil)
	c.addNode("n1", nil)
	c.pod("default", "web", "n1", nil)
	c.settle()
	plain := c.service("plain", nil, "10.96.0.9")
	web := c.service("web", exposedService, "10.96.0.10")
	c.change("web", func(s *corev1.Service) { s.Spec.LoadBalancerSourceRanges = []string{"198.51.100.0/24"} })
	c.slice("web-1", "web", 8080, "10.128.0.5")
	c.settle()
	if c.ownVIP(plain) != nil {
		t.Error("a Service of type ClusterIP has a VIP of its own")
	}
	own := c.ownVIP(web)
	if own == nil {
		t.Fatalf("no VIP in the namespace; the SDN has %v", c.balancers())
	}
	n := c.networkOf("default")
	subnet, err := c.sdn.Subnet(t.Context(), own.VIPs[0].Subnet)
	c.must(err)
	pods := netip.MustParsePrefix(n.Status.Subnets[0].CIDR)
	if string(subnet.Network) != n.Status.Network || subnet.CIDR.Overlaps(pods) || subnet.CIDR.Bits() != lbSubnetLen || !subnet.CIDR.Contains(own.VIPs[0].Addr) {
		t.Errorf("VIP %s is on %+v", own.VIPs[0].Addr, subnet)
	}
	if _, led, err := sdn.First(c.sdn.FindRouters(t.Context(), sdn.RouterQuery{Subnets: []sdn.ID{subnet.ID}})); err != nil || !led {
		t.Errorf("no router leads to the VIP: %v", err)
	}
	if got := c.floats()[c.ingress("web")]; got != own.VIPs[0].Addr.String() {
		t.Errorf("the floating IP leads to %q, want %s", got, own.VIPs[0].Addr)
	}
	sources := func(lb *sdn.LoadBalancer) []netip.Prefix { return lb.Listeners[0].Sources }
	if got := sources(own); !slices.Equal(got, []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}) {
		t.Errorf("%v may connect", got)
	}
	cluster, _, err := sdn.First(c.sdn.FindLoadBalancers(t.Context(), sdn.LoadBalancerQuery{Match: sdn.Match{Keys: []sdn.Key{c.raven.Key(v1.KeyKindLoadBalancer, v1.LoadBalancerKey(web.UID, false))}}}))
	if c.must(err); len(sources(&cluster)) != 0 || cluster.VIPs[0].Addr.String() != "10.96.0.10" {
		t.Errorf("the ClusterIP's is %+v", cluster)
	}

	// What the SDN has is asked for no more than before.
	asked := c.faults.asked["ApplyLoadBalancer"]
	c.change("web", func(s *corev1.Service) { s.Labels = map[string]string{"seen": "yes"} })
	c.settle()
	if now := c.faults.asked["ApplyLoadBalancer"]; now != asked {
		t.Errorf("the SDN was asked %d times for what it has", now-asked)
	}

	// The network is looked at anew, as after an upgrade: pods are where they were.
	now := c.networkOf("default")
	now.Status.Conditions = nil
	c.must(c.api.Status().Update(t.Context(), now))
	c.settle()
	if got := c.networkOf("default").Status.Subnets; !slices.Equal(got, n.Status.Subnets) {
		t.Errorf("pods get addresses on %v", got)
	}

	c.change("web", func(s *corev1.Service) {
		s.Annotations = map[string]string{annotationInternal: "true"}
		s.Spec.LoadBalancerSourceRanges = nil
	})
	c.settle()
	if got := c.ingress("web"); got != own.VIPs[0].Addr.String() || len(c.floats()) != 0 {
		t.Errorf("an internal one says %q, want %s; floating IPs: %v", got, own.VIPs[0].Addr, c.floats())
	}
	c.change("web", func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeClusterIP })
	c.settle()
	if c.ownVIP(web) != nil || len(c.klb("web").Status.LoadBalancers) != 1 {
		t.Errorf("with its type its own VIP has not gone: %+v", c.klb("web").Status)
	}
	c.change("web", exposedService)
	c.settle()
	c.remove(c.serviceNow("web"))
	c.remove(plain)
	c.settle()
	c.wantBalancers()
}

// Without vip_placement any more, own VIPs go and floating IPs lead to ClusterIPs.
func TestVIPsInNamespacesNoMore(t *testing.T) {
	t.Parallel()
	c := newPlacing(t, nil)
	c.addNode("n1", nil)
	c.pod("default", "web", "n1", nil)
	web := c.service("web", exposedService, "10.96.0.10")
	c.slice("web-1", "web", 8080, "10.128.0.5")
	c.settle()
	if c.ownVIP(web) == nil {
		t.Fatal("no VIP in the namespace")
	}
	address := c.ingress("web")
	c.raven.cfg.NamespaceVIPs = false
	c.change("web", func(s *corev1.Service) { s.Labels = map[string]string{"seen": "yes"} })
	c.settle()
	if got := c.floats(); c.ownVIP(web) != nil || c.ingress("web") != address || got[address] != "10.96.0.10" {
		t.Errorf("own VIP %v; reached at %s (was %s), floating IPs: %v", c.ownVIP(web), c.ingress("web"), address, got)
	}
	c.wholeServices()
}

// A namespace on somebody's network gets no subnet there, and its owner is told; one without a network yet has its Service wait for it.
func TestVIPsOfNamespacesWithoutASubnet(t *testing.T) {
	t.Parallel()
	c := newPlacing(t, nil)
	c.addNode("n1", nil)
	c.namespace("guest", map[string]string{v1.AnnotationNetwork: string(c.existing("shared", "10.9.0.0/24"))})
	c.pod("guest", "web", "n1", nil)
	c.namespace("empty", nil)
	for name, vip := range map[string]string{"guest": "10.96.0.11", "empty": "10.96.0.12"} {
		s := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: "web", UID: c.uid(), CreationTimestamp: metav1.NewTime(c.now)},
			Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, ClusterIP: vip, ClusterIPs: []string{vip}, Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}}},
		}
		c.must(c.api.Create(t.Context(), s))
	}
	c.settle()
	of := func(namespace string) (lb v1.KuryrLoadBalancer) {
		c.must(c.api.Get(context.Background(), core.Request(namespace, "web").NamespacedName, &lb))
		return lb
	}
	if lb := of("guest"); lb.Spec.OwnVIPs || !core.IsReady(lb.Status.Conditions) {
		t.Errorf("on an existing network: %+v", lb)
	}
	if !c.events.has("web", core.EventUnserved, "existing network") {
		t.Errorf("nobody is told: %q", c.events.all)
	}
	if lb := of("empty"); core.IsReady(lb.Status.Conditions) || len(lb.Status.LoadBalancers) != 1 || lb.Status.FloatingIP != nil {
		t.Errorf("without a network: %+v", lb.Status)
	}
}

// A KuryrNetwork that somebody deletes is not held up by VIPs on it; they are made again on the one that comes in its place.
func TestNetworkOfVIPsDeletedByHand(t *testing.T) {
	t.Parallel()
	c := newPlacing(t, nil)
	c.addNode("n1", nil)
	pod := c.pod("default", "web", "n1", nil)
	web := c.service("web", exposedService, "10.96.0.10")
	c.settle()
	before := c.ownVIP(web)
	if before == nil {
		t.Fatal("no VIP in the namespace")
	}
	c.remove(c.networkOf("default"))
	c.remove(pod)
	c.settle()
	c.pod("default", "next", "n1", nil)
	c.settle()
	if now := c.ownVIP(web); now == nil || now.ID == before.ID || c.networkOf("default") == nil {
		t.Errorf("the VIP was %+v, is %+v; network %+v", before, now, c.networkOf("default"))
	}
	if _, err := c.sdn.Subnet(t.Context(), before.VIPs[0].Subnet); !sdn.IsNotFound(err) {
		t.Errorf("its old subnet: %v", err)
	}
	c.wholeServices()
}

// Wherever Raven is killed, VIPs of Services' own are what they are to be in the end.
func TestKilledWithVIPsInNamespaces(t *testing.T) {
	t.Parallel()
	for name, act := range serviceKills {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for at := 1; ; at++ {
				c := newPlacing(t, nil)
				c.service("old", exposedService, "10.96.0.10")
				c.settle()
				act(c)
				c.faults.writes, c.faults.kill = 0, at
				c.settle()
				killed := c.faults.dead
				c.start()
				c.settle()
				c.wholeServices()
				if t.Failed() {
					t.Fatalf("killed at write %d", at)
				}
				if !killed {
					return
				}
			}
		})
	}
}
