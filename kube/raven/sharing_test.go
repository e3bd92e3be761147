package raven

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/raven/core"
	"github.com/kuryr/kuryr/sdn"
	corev1 "k8s.io/api/core/v1"
)

// sharing has a Service ask for a load balancer, by a port.
func sharing(id sdn.ID, port int32) func(*corev1.Service) {
	return func(s *corev1.Service) {
		exposedService(s)
		s.Annotations = map[string]string{annotationShared: string(id)}
		s.Spec.Ports[0].Port = port
	}
}

// newOwner is a cluster whose Service web has a VIP of its own and a floating IP, and that VIP's load balancer.
func newOwner(t testing.TB) (c *cluster, web *sdn.LoadBalancer) {
	t.Helper()
	c = newPlacing(t, nil)
	c.addNode("n1", nil)
	c.pod("default", "web", "n1", nil)
	c.settle()
	s := c.service("web", exposedService, "10.96.0.10")
	c.slice("web", "web", 80, "10.128.0.5")
	c.settle()
	if web = c.ownVIP(s); web == nil {
		t.Fatal("web has no VIP of its own")
	}
	return c, web
}

// outside are the load balancers that are not of ClusterIPs, as "80>10.128.0.5:80 81>…", in order.
func (c *cluster) outside() (all []string) {
	c.t.Helper()
	for lb, err := range c.sdn.FindLoadBalancers(c.t.Context(), sdn.LoadBalancerQuery{}) {
		c.must(err)
		if netip.MustParsePrefix("10.96.0.0/16").Contains(lb.VIPs[0].Addr) {
			continue
		}
		var ports []string
		for _, l := range lb.Listeners {
			var members []string
			for _, m := range l.Pool.Members {
				members = append(members, m.Addr.String())
			}
			ports = append(ports, fmt.Sprintf("%d>%s", l.Port, strings.Join(members, ",")))
		}
		all = append(all, strings.Join(ports, " "))
	}
	slices.Sort(all)
	return all
}

func (c *cluster) wantOutside(want ...string) {
	c.t.Helper()
	if got := c.outside(); !slices.Equal(got, want) {
		c.t.Errorf("outside there are the load balancers %q, want %q", got, want)
	}
}

// Services of a namespace share the load balancer of one of them: by one address, each with its ports, and it goes with the last.
func TestSharedLoadBalancer(t *testing.T) {
	t.Parallel()
	c, web := newOwner(t)
	c.service("app", sharing(web.ID, 81), "10.96.0.11")
	c.slice("app", "app", 8081, "10.128.0.6")
	c.settle()
	c.wholeServices()
	c.wantOutside("80>10.128.0.5:80 81>10.128.0.6:8081")
	address := c.ingress("web")
	if c.ingress("app") != address || len(c.floats()) != 1 {
		t.Errorf("app says %q, web %q; floating IPs %v", c.ingress("app"), address, c.floats())
	}
	if lb := c.klb("app"); lb.Status.Members != 1 || len(lb.Status.LoadBalancers) != 1 || lb.Status.LoadBalancers[0].VIP != "10.96.0.11" {
		t.Errorf("app has %+v", lb.Status)
	}

	asked := c.faults.asked["ApplyLoadBalancer"]
	c.change("app", func(s *corev1.Service) { s.Labels = map[string]string{"seen": "yes"} })
	c.settle()
	if now := c.faults.asked["ApplyLoadBalancer"]; now != asked {
		t.Errorf("the SDN was asked %d times for what it has", now-asked)
	}
	c.slice("app", "app", 8081, "10.128.0.7")
	c.slice("web", "web", 80, "10.128.0.8")
	c.settle()
	c.wantOutside("80>10.128.0.8:80 81>10.128.0.7:8081")

	// Its owner is deleted: it is kept for app, and another Service web waits for its end.
	c.remove(c.serviceNow("web"))
	c.settle()
	c.wholeServices()
	c.wantOutside("81>10.128.0.7:8081")
	c.wantBalancers(web.VIPs[0].Addr.String()+": 6:81>10.128.0.7:8081", "10.96.0.11: 6:81>10.128.0.7:8081")
	if c.ingress("app") != address || c.floats()[address] != web.VIPs[0].Addr.String() {
		t.Errorf("app says %q, which was %q; floating IPs %v", c.ingress("app"), address, c.floats())
	}
	c.service("web", exposedService, "10.96.0.10")
	c.settle()
	c.now = c.now.Add(heldPause)
	c.settle()
	c.wholeServices()
	c.wantOutside("81>10.128.0.7:8081")
	if !c.events.has("web "+core.EventUnserved, "has not gone yet", "share it: app") {
		t.Errorf("the new web is not told what it waits for: %q", c.events.all)
	}
	c.slice("app", "app", 8081, "10.128.0.9")
	c.settle()
	c.wantOutside("81>10.128.0.9:8081") // app goes on

	// No Service can begin to share it now.
	c.service("late", sharing(web.ID, 82), "10.96.0.12")
	c.settle()
	if lb := c.klb("late"); core.IsReady(lb.Status.Conditions) || !c.events.has("late "+core.EventUnserved, "is being deleted") {
		t.Errorf("late has %+v, Events %q", lb.Status, c.events.all)
	}
	c.remove(c.serviceNow("late"))
	c.settle()

	// It goes with its last user.
	c.change("app", func(s *corev1.Service) { s.Annotations = nil })
	c.settle()
	c.wholeServices()
	c.wantOutside("80>10.128.0.8:80", "81>10.128.0.9:8081") // of their own now
	if _, err := c.sdn.LoadBalancer(t.Context(), web.ID); !sdn.IsNotFound(err) || len(c.floats()) != 2 {
		t.Errorf("nobody shares it any more, and it is there: %v; floating IPs %v", err, c.floats())
	}
	c.remove(c.serviceNow("app"))
	c.remove(c.serviceNow("web"))
	c.settle()
	c.wantOutside()
	if len(c.floats()) != 0 {
		t.Errorf("floating IPs are left: %v", c.floats())
	}
}

// An owner that is a load balancer no more keeps the VIP for those who share it, and no longer.
func TestSharedByWhoStays(t *testing.T) {
	t.Parallel()
	c, web := newOwner(t)
	c.service("app", sharing(web.ID, 81), "10.96.0.11")
	c.settle()
	c.change("web", func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeClusterIP })
	c.settle()
	c.wholeServices()
	c.wantOutside("81>")
	if c.ingress("app") != web.VIPs[0].Addr.String() || !c.events.has("web "+core.EventUnserved, "stays for the Service app") {
		t.Errorf("app says %q, want %s, since the floating IP has gone; Events %q", c.ingress("app"), web.VIPs[0].Addr, c.events.all)
	}
	c.change("web", exposedService)
	c.settle()
	c.wholeServices()
	c.wantOutside("80>10.128.0.5:80 81>")
	c.change("web", func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeClusterIP })
	c.settle()
	c.remove(c.serviceNow("app"))
	c.settle()
	c.wholeServices()
	c.wantOutside()
}

// A user's load balancer is shared, and is the user's afterwards. Its floating IP is the Service's address from when it is seen.
func TestSharedLoadBalancerOfUser(t *testing.T) {
	t.Parallel()
	c := newServing(t, nil)
	network := c.existing("theirs", "10.77.0.0/24")
	subnet, _, err := sdn.First(c.sdn.FindSubnets(t.Context(), sdn.SubnetQuery{Networks: []sdn.ID{network}}))
	c.must(err)
	theirs, err := c.sdn.ApplyLoadBalancer(t.Context(), sdn.LoadBalancerSpec{
		Base: sdn.Base{Name: "theirs"}, VIPs: []sdn.VIP{{Subnet: subnet.ID}}, Listeners: []sdn.Listener{{Protocol: sdn.TCP, Port: 443}},
	})
	c.must(err)
	c.service("app", sharing(theirs.ID, 80), "10.96.0.11")
	c.slice("app", "app", 80, "10.128.0.5")
	c.settle()
	c.service("late", sharing(theirs.ID, 80), "10.96.0.12")
	c.rounds(4)
	c.wantOutside("80>10.128.0.5:80 443>")
	if c.ingress("app") != theirs.VIPs[0].Addr.String() || len(c.floats()) != 0 {
		t.Errorf("app says %q, want %s; floating IPs %v", c.ingress("app"), theirs.VIPs[0].Addr, c.floats())
	}
	if lb := c.klb("late"); core.IsReady(lb.Status.Conditions) || c.ingress("late") != "" || !c.events.has("late "+core.EventFailed, "a listener of another") {
		t.Errorf("two want one port: %+v; Events %q", lb.Status, c.events.all)
	}
	c.remove(c.serviceNow("app"))
	c.rounds(8)
	c.wantOutside("80> 443>")
	if got := c.ingress("late"); got != theirs.VIPs[0].Addr.String() {
		t.Errorf("the port is free, and late says %q", got)
	}
	c.remove(c.serviceNow("late"))
	c.settle()
	c.wantOutside("443>")
	if _, err := c.sdn.LoadBalancer(t.Context(), theirs.ID); err != nil {
		t.Errorf("the user's: %v", err)
	}
}

// What cannot be shared is told, and all else of the Service works.
func TestNotShared(t *testing.T) {
	t.Parallel()
	c, web := newOwner(t)
	all := c.klb("web").Status.LoadBalancers
	cluster := sdn.ID(all[slices.IndexFunc(all, func(of v1.LoadBalancerOfVIP) bool { return !of.Own })].ID)
	for i, one := range []struct {
		name  string
		made  func(*corev1.Service)
		event string
	}{
		{"clusterip", sharing(cluster, 81), "the ClusterIP of the Service web"},
		{"absent", sharing("0b1d4c7e-6f0a-4a3b-9c58-111111111111", 81), "0b1d4c7e-6f0a-4a3b-9c58-111111111111"},
		{"taken", sharing(web.ID, 80), "a listener of another"},
		{"internal", func(s *corev1.Service) {
			sharing(web.ID, 81)(s)
			s.Annotations[annotationInternal] = "true"
		}, "an internal load balancer is not shared"},
		{"long", sharing(sdn.ID(strings.Repeat("x", 65)), 81), "too long"},
		{"address", func(s *corev1.Service) {
			sharing(web.ID, 83)(s)
			s.Spec.LoadBalancerIP = "203.0.113.77"
		}, "spec.loadBalancerIP has no effect"},
	} {
		c.service(one.name, one.made, fmt.Sprint("10.96.0.", 20+i))
		c.rounds(4)
		if !c.events.has(one.name, one.event) {
			t.Errorf("%s: no Event tells %q: %q", one.name, one.event, c.events.all)
		}
		if lb := c.klb(one.name); !slices.ContainsFunc(lb.Status.LoadBalancers, func(of v1.LoadBalancerOfVIP) bool { return of.VIP == lb.Spec.VIPs[0] }) {
			t.Errorf("%s: its ClusterIP is not served: %+v", one.name, lb.Status)
		}
	}
	c.change("web", func(s *corev1.Service) { s.Annotations = map[string]string{annotationShared: string(web.ID)} })
	c.rounds(4)
	if !c.events.has("web", "names the Service's own") || c.ingress("web") == "" || c.klb("web").Spec.SharedID != "" {
		t.Errorf("its own: %q, Events %q", c.ingress("web"), c.events.all)
	}
	c.namespace("green", nil)
	other := c.serviceNow("web")
	other.ObjectMeta.Namespace, other.ResourceVersion, other.UID, other.Name = "green", "", c.uid(), "far"
	sharing(web.ID, 85)(other)
	other.Spec.ClusterIP, other.Spec.ClusterIPs = "10.96.0.40", []string{"10.96.0.40"}
	other.Status = corev1.ServiceStatus{}
	c.must(c.api.Create(t.Context(), other))
	c.rounds(4)
	if !c.events.has("far", "shared only there") {
		t.Errorf("of another namespace: Events %q", c.events.all)
	}
	c.wantOutside("80>10.128.0.5:80 83>", "81>", "81>") // two have VIPs of their own
}

// The load balancers that are shared go with their namespace's network, whoever shares them.
func TestSharedWithTheNetwork(t *testing.T) {
	t.Parallel()
	c, web := newOwner(t)
	c.service("app", sharing(web.ID, 81), "10.96.0.11")
	c.settle()
	c.remove(c.serviceNow("web"))
	c.settle()
	c.wantOutside("81>")
	c.remove(c.networkOf("default"))
	c.remove(&corev1.Pod{ObjectMeta: c.pod("default", "gone", "n1", nil).ObjectMeta})
	var pods corev1.PodList
	c.list(&pods)
	for i := range pods.Items {
		c.remove(&pods.Items[i])
	}
	c.settle()
	c.wantOutside()
	c.remove(c.serviceNow("app"))
	c.settle()
	c.wantBalancers()
}

// stuckShared holds what is shared in ERROR, as Octavia may.
type stuckShared struct {
	sdn.Provider
	on *bool
}

func (p stuckShared) ApplyLoadBalancer(ctx context.Context, s sdn.LoadBalancerSpec) (sdn.LoadBalancer, error) {
	if *p.on && s.Shared {
		return sdn.LoadBalancer{}, sdn.Unavailable(nil, "load balancer", "it is held in ERROR")
	}
	return p.Provider.ApplyLoadBalancer(ctx, s)
}

// A shared load balancer that is stuck does not hold up the ClusterIP of who leaves it, which may be another's at once; and one whose owner was removed by force goes all the same.
func TestSharedIsStuck(t *testing.T) {
	t.Parallel()
	c, web := newOwner(t)
	on := false
	c.sdn = stuckShared{c.sdn, &on}
	c.start()
	c.service("app", sharing(web.ID, 81), "10.96.0.11")
	c.settle()
	on = true
	c.remove(c.serviceNow("app"))
	c.rounds(20)
	c.service("new", nil, "10.96.0.11")
	c.rounds(20)
	if lb := c.klb("new"); !core.IsReady(lb.Status.Conditions) {
		t.Errorf("who has the ClusterIP next: %+v", lb.Status)
	}
	on = false
	c.service("app2", sharing(web.ID, 82), "10.96.0.12")
	c.rounds(20)
	c.torn("web")
	c.rounds(20)
	on = true
	c.remove(c.serviceNow("app2"))
	c.rounds(30)
	c.wantOutside()
}

// Where Services are another's from now on, VIPs of their own and what they share go too.
func TestSharingSwitchedOff(t *testing.T) {
	t.Parallel()
	for i := range 12 {
		c, web := newOwner(t)
		c.order(i)
		c.service("app", sharing(web.ID, 81), "10.96.0.11")
		c.settle()
		c.cfg.Services = false
		c.start()
		c.settle()
		var lbs v1.KuryrLoadBalancerList
		c.list(&lbs)
		if len(lbs.Items) != 0 || len(c.outside()) != 0 || len(c.floats()) != 0 {
			t.Errorf("left: %d objects, outside %q, floating IPs %v", len(lbs.Items), c.outside(), c.floats())
		}
	}
}

// A guest that has a port which the host wants too holds up none of the host's other ports.
func TestSharedPortIsTaken(t *testing.T) {
	t.Parallel()
	c, web := newOwner(t)
	c.service("app", sharing(web.ID, 81), "10.96.0.11")
	c.settle()
	c.change("web", func(s *corev1.Service) {
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: "more", Port: 81, Protocol: corev1.ProtocolTCP})
	})
	c.rounds(4)
	c.slice("web", "web", 80, "10.128.0.99")
	c.rounds(6)
	c.wantOutside("80>10.128.0.99:80 81>")
	c.remove(c.serviceNow("app"))
	c.rounds(6)
	c.wantOutside("80>10.128.0.99:80 81>") // web's
	c.wholeServices()
}

// An owner whose deletion waits, and whose status is lost, as from a backup, waits for its users again.
func TestOwnerIsNotTold(t *testing.T) {
	t.Parallel()
	c, web := newOwner(t)
	c.service("app", sharing(web.ID, 81), "10.96.0.11")
	c.settle()
	address := c.ingress("app")
	c.remove(c.serviceNow("web"))
	c.settle()
	lb := c.klb("web")
	lb.Status = v1.KuryrLoadBalancerStatus{}
	c.must(c.api.Status().Update(t.Context(), lb))
	c.start()
	c.settle()
	c.wholeServices()
	c.wantOutside("81>")
	if c.ingress("app") != address || c.floats()[address] != web.VIPs[0].Addr.String() {
		t.Errorf("app says %q, which was %q; floating IPs %v", c.ingress("app"), address, c.floats())
	}
	c.remove(c.serviceNow("app"))
	c.settle()
	c.wantOutside()
	if len(c.floats()) != 0 {
		t.Errorf("floating IPs are left: %v", c.floats())
	}
}

// What an older release has left, a load balancer that app was to delete as its Service has gone, serves
// on, and goes with the last that shares it.
func TestSharedSinceOlderReleases(t *testing.T) {
	t.Parallel()
	for _, of := range []struct {
		keep    bool
		leaving [][]string // in this order; app is to keep it
	}{
		{false, [][]string{{"api"}, {"app"}}}, {true, [][]string{{"api"}, {"app"}}},
		{false, [][]string{{"app"}, {"api"}}}, {true, [][]string{{"app"}, {"api"}}},
		{false, [][]string{{"app", "api"}}}, {true, [][]string{{"app", "api"}}},
		{true, [][]string{{"api", "app"}}},
	} {
		keep := of.keep
		c, web := newOwner(t)
		c.service("app", sharing(web.ID, 81), "10.96.0.11")
		c.service("api", sharing(web.ID, 82), "10.96.0.12")
		c.settle()
		address := c.ingress("app")
		uid := c.serviceNow("web").UID
		c.torn("web")
		app := c.klb("app")
		app.Status.Shares[0].Inherited, app.Status.Shares[0].Keep = uid, keep
		app.Status.Guests = []v1.LoadBalancerGuest{{LoadBalancer: string(web.ID), ServiceUID: c.serviceNow("api").UID, Name: "api"}}
		c.must(c.api.Status().Update(t.Context(), app))
		c.start()
		c.settle()
		c.wholeServices()
		c.wantOutside("81> 82>")
		if c.ingress("app") != address || c.ingress("api") != address {
			t.Errorf("app says %q, api %q, want %q", c.ingress("app"), c.ingress("api"), address)
		}
		for i, names := range of.leaving {
			if i > 0 {
				c.wholeServices()
				c.wantOutside(map[string]string{"app": "81>", "api": "82>"}[names[0]])
			}
			for _, name := range names {
				c.must(c.delete(t.Context(), c.klb(name)))
				c.remove(c.serviceNow(name))
			}
			c.tellAll()
			for _, name := range names {
				_, _ = balancers{c.raven}.Reconcile(t.Context(), core.Request("default", name))
				c.tellAll()
			}
			c.settle()
		}
		c.wantOutside()
		if leads, kept := c.floats()[address]; kept != keep || leads != "" {
			t.Errorf("of the floating IP %s is left %v; to be kept: %v", address, c.floats(), keep)
		}
	}
}

// sharingKills are what happens to web, whose load balancer app and api share.
var sharingKills = map[string]struct {
	act  func(c *cluster, web sdn.ID)
	want []string
}{
	"one more": {func(c *cluster, web sdn.ID) { c.service("new", sharing(web, 83), "10.96.0.13") }, []string{"80>10.128.0.5:80 81> 82> 83>"}},
	"one goes": {func(c *cluster, _ sdn.ID) { c.remove(c.serviceNow("app")) }, []string{"80>10.128.0.5:80 82>"}},
	"one has its own": {func(c *cluster, _ sdn.ID) {
		c.change("app", func(s *corev1.Service) { s.Annotations = nil })
	}, []string{"80>10.128.0.5:80 82>", "81>"}},
	"the owner goes": {func(c *cluster, _ sdn.ID) { c.remove(c.serviceNow("web")) }, []string{"81> 82>"}},
	"the owner goes and comes": {func(c *cluster, _ sdn.ID) {
		c.remove(c.serviceNow("web"))
		c.service("web", exposedService, "10.96.0.10")
	}, []string{"81> 82>"}},
	"the owner and one go": {func(c *cluster, _ sdn.ID) {
		c.remove(c.serviceNow("web"))
		c.remove(c.serviceNow("app"))
	}, []string{"82>"}},
	"the owner goes, then all": {func(c *cluster, _ sdn.ID) {
		c.remove(c.serviceNow("web"))
		c.settle()
		c.remove(c.serviceNow("app"))
		c.remove(c.serviceNow("api"))
	}, nil},
	"the owner goes, then all, and comes": {func(c *cluster, _ sdn.ID) {
		c.remove(c.serviceNow("web"))
		c.settle()
		c.service("web", exposedService, "10.96.0.10")
		c.remove(c.serviceNow("app"))
		c.remove(c.serviceNow("api"))
	}, []string{"80>10.128.0.5:80"}},
	"all go": {func(c *cluster, _ sdn.ID) {
		for _, name := range []string{"app", "api", "web"} {
			c.remove(c.serviceNow(name))
		}
	}, nil},
	"the owner is of another type": {func(c *cluster, _ sdn.ID) {
		c.change("web", func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeClusterIP })
	}, []string{"81> 82>"}},
}

// whileSharing is a cluster to which something of sharingKills has happened, and what is to be checked in the end.
func whileSharing(t *testing.T, name string) (c *cluster, whole func()) {
	c, web := newOwner(t)
	c.service("app", sharing(web.ID, 81), "10.96.0.11")
	c.service("api", sharing(web.ID, 82), "10.96.0.12")
	c.settle()
	sharingKills[name].act(c, web.ID)
	return c, func() {
		c.t.Helper()
		c.wholeServices()
		c.wantOutside(sharingKills[name].want...)
		var lbs v1.KuryrLoadBalancerList
		c.list(&lbs)
		guests, at := 0, map[string]int{}
		for _, lb := range lbs.Items {
			guests += len(lb.Status.Guests)
			for _, s := range lb.Status.Shares {
				at[s.ID]++
			}
		}
		if guests != at[string(web.ID)] {
			t.Errorf("%d share it, and %d are known of: %+v", at[string(web.ID)], guests, lbs.Items)
		}
	}
}

// Wherever Raven is killed, who shares load balancers does so in the end, and nothing is left that nobody has.
func TestKilledWhileSharing(t *testing.T) {
	t.Parallel()
	for name := range sharingKills {
		for _, lost := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, lost %v", name, lost), func(t *testing.T) {
				t.Parallel()
				eachKill(t, lost, func() (*cluster, func()) { return whileSharing(t, name) })
			})
		}
	}
}

// Whatever befalls a request, all is right in the end.
func TestTroubleWhileSharing(t *testing.T) {
	t.Parallel()
	for scenario := range sharingKills {
		for name, of := range troubles {
			t.Run(scenario+", "+name, func(t *testing.T) {
				t.Parallel()
				stride := 3 * *strideFlag // there are many scenarios
				for at := 0; ; {
					c, whole := whileSharing(t, scenario)
					if at += stride; at == stride {
						at = 1 + c.rand.IntN(stride)
					}
					c.faults.trouble = of
					c.faults.trouble.from = at
					c.settle()
					whole()
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

// A Service that has just come asks to share at any moment: it is reached at the load balancer's address, and has none of its own.
func TestAsksToShareAtAnyMoment(t *testing.T) {
	t.Parallel()
	for steps := range 24 {
		c, web := newOwner(t)
		address := c.ingress("web")
		c.service("guest", func(s *corev1.Service) { exposedService(s); s.Spec.Ports[0].Port = 81 }, "10.96.0.11")
		for range steps {
			if _, err := c.step(); err != nil {
				t.Log(err)
			}
		}
		c.change("guest", func(s *corev1.Service) { s.Annotations = map[string]string{annotationShared: string(web.ID)} })
		c.settle()
		c.wholeServices()
		if got := c.ingress("guest"); got != address || len(c.floats()) != 1 {
			t.Fatalf("after %d steps guest is at %q, web at %q; floating IPs %v", steps, got, address, c.floats())
		}
	}
}
