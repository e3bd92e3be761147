package raven

import (
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/raven/core"
	"github.com/kuryr/kuryr/sdn"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// torn has a Service go with its load balancer's object, which nobody may hold on to, while no Raven runs.
func (c *cluster) torn(name string) {
	c.t.Helper()
	lb := c.klb(name)
	lb.Finalizers = nil
	c.must(c.api.Update(c.t.Context(), lb))
	c.must(client.IgnoreNotFound(c.api.Delete(c.t.Context(), lb)))
	c.must(c.api.Delete(c.t.Context(), c.serviceNow(name)))
}

// A load balancer of this installation's that no object stands for any more goes with its floating IP; others stay, and the SDN is asked once at a start and once for an audit.
func TestStrayLoadBalancersGo(t *testing.T) {
	t.Parallel()
	c := newServing(t, func(cfg *Config) { cfg.Audit = time.Hour })
	c.settle()
	c.service("stays", exposedService, "10.96.0.10")
	c.service("torn", exposedService, "10.96.0.11")
	c.settle()
	ours, err := c.sdn.LoadBalancer(t.Context(), sdn.ID(c.klb("stays").Status.LoadBalancers[0].ID))
	c.must(err)
	theirs := sdn.LoadBalancerSpec{
		Base:      sdn.Base{Key: sdn.Key{Owner: "another", Kind: "kube-loadbalancer", Name: "u.v4"}, Name: "theirs"},
		VIPs:      []sdn.VIP{{Subnet: ours.VIPs[0].Subnet}},
		Listeners: []sdn.Listener{{Protocol: sdn.TCP, Port: 80}},
	}
	other, err := c.sdn.ApplyLoadBalancer(t.Context(), theirs)
	c.must(err)
	before := c.floats()
	c.torn("torn")
	asked := func() int { return c.faults.asked["FindLoadBalancers"] }
	c.start()
	was := asked()
	c.settle()
	c.wantBalancers("10.96.0.10: 6:80>")
	if after := c.floats(); len(before) != 2 || len(after) != 1 {
		t.Errorf("of the floating IPs %v are left %v", before, after)
	}
	if _, err := c.sdn.LoadBalancer(t.Context(), other.ID); err != nil {
		t.Errorf("another's load balancer: %v", err)
	}
	if n := asked() - was; n != 1 {
		t.Errorf("the SDN was asked for its load balancers %d times", n)
	}
	c.namespace("later", nil)
	c.settle()
	if n := asked() - was; n != 1 {
		t.Errorf("it was asked %d times, with another namespace", n)
	}

	c.service("torn", nil, "10.96.0.11")
	c.settle()
	c.torn("torn")
	c.settle()
	c.now = c.now.Add(2 * time.Hour)
	c.settle()
	c.wantBalancers("10.96.0.10: 6:80>")
	c.wholeServices()
}

// Wherever Raven is killed, what nobody stands for has gone in the end, and all else is there.
func TestKilledWhileStraysGo(t *testing.T) {
	t.Parallel()
	for _, lost := range []bool{false, true} {
		eachKill(t, lost, func() (*cluster, func()) {
			c := newServing(t, nil)
			c.service("stays", exposedService, "10.96.0.10")
			c.service("torn", exposedService, "10.96.0.11")
			c.service("too", exposedService, "10.96.0.12")
			c.settle()
			c.torn("torn")
			c.torn("too")
			c.start()
			return c, func() {
				c.wantBalancers("10.96.0.10: 6:80>")
				c.wholeServices()
			}
		})
	}
}

// Where floating IPs cannot be looked for, load balancers that nobody stands for go nevertheless.
func TestStraysGoWithoutFloatingIPs(t *testing.T) {
	t.Parallel()
	c := newServing(t, nil)
	c.service("torn", nil, "10.96.0.11")
	c.settle()
	c.torn("torn")
	looked := 0
	c.faults.problem = func(method string) error {
		if method == "FindFloatingIPs" {
			if looked++; looked == 1 { // that of all; the one of the load balancer's own comes after
				return &sdn.Error{Kind: sdn.KindDenied, Noun: "floating IPs", Detail: "not yours"}
			}
		}
		return nil
	}
	c.start()
	c.round()
	c.wantBalancers()
	if looked == 0 {
		t.Error("they were not looked for")
	}
}

// One whose Service is there has its object back, and is not made anew.
func TestServicesTornObjectComesBack(t *testing.T) {
	t.Parallel()
	c := newServing(t, nil)
	c.settle()
	c.service("web", func(s *corev1.Service) { exposedService(s) }, "10.96.0.10")
	c.settle()
	id := c.klb("web").Status.LoadBalancers[0].ID
	lb := c.klb("web")
	lb.Finalizers = nil
	c.must(c.api.Update(t.Context(), lb))
	c.must(client.IgnoreNotFound(c.api.Delete(t.Context(), lb)))
	c.start()
	c.settle()
	c.wholeServices()
	if now := c.klb("web").Status.LoadBalancers[0].ID; now != id {
		t.Errorf("the load balancer was %s and is %s", id, now)
	}
}

// lose has a load balancer's object be lost, with its status, and come back as a backup has it, or Raven makes it.
func (c *cluster) lose(name string, backup *v1.KuryrLoadBalancer) {
	c.t.Helper()
	lb := c.klb(name)
	lb.Finalizers = nil
	c.must(c.api.Update(c.t.Context(), lb))
	c.must(client.IgnoreNotFound(c.api.Delete(c.t.Context(), lb)))
	if backup == nil {
		return
	}
	back := &v1.KuryrLoadBalancer{Spec: backup.Spec}
	back.Namespace, back.Name, back.Finalizers, back.OwnerReferences = backup.Namespace, backup.Name, backup.Finalizers, backup.OwnerReferences
	c.must(c.api.Create(c.t.Context(), back))
}

// A load balancer's object that is lost, or is restored from a backup without its status, finds what the SDN has of it again: nothing is made twice; and what its Service does not want any
// more goes, which neither its generation nor its status tells of.
func TestRestoredLoadBalancers(t *testing.T) {
	t.Parallel()
	plain := func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeClusterIP }
	single := func(s *corev1.Service) {
		s.Spec.ClusterIPs = s.Spec.ClusterIPs[:1]
		s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol}
	}
	for name, row := range map[string]struct {
		lost    func(c *cluster, before, exposed *v1.KuryrLoadBalancer)
		service func(*corev1.Service) // while no Raven runs; nil leaves it
		stays   bool                  // Raven runs all the while
		left    int                   // load balancers
		floats  int
	}{
		"status alone": {lost: func(c *cluster, _, _ *v1.KuryrLoadBalancer) {
			lb := c.klb("web")
			lb.Status = v1.KuryrLoadBalancerStatus{}
			c.must(c.api.Status().Update(c.t.Context(), lb))
		}, stays: true, left: 4, floats: 1},
		"restored":                       {lost: func(c *cluster, _, now *v1.KuryrLoadBalancer) { c.lose("web", now) }, left: 4, floats: 1},
		"restored while Raven runs":      {lost: func(c *cluster, _, now *v1.KuryrLoadBalancer) { c.lose("web", now) }, stays: true, left: 4, floats: 1},
		"restored from before":           {lost: func(c *cluster, old, _ *v1.KuryrLoadBalancer) { c.lose("web", old) }, left: 4, floats: 1},
		"lost":                           {lost: func(c *cluster, _, _ *v1.KuryrLoadBalancer) { c.lose("web", nil) }, left: 4, floats: 1},
		"lost, and plain":                {lost: func(c *cluster, _, _ *v1.KuryrLoadBalancer) { c.lose("web", nil) }, service: plain, left: 2},
		"lost, and of one family":        {lost: func(c *cluster, _, _ *v1.KuryrLoadBalancer) { c.lose("web", nil) }, service: single, left: 2, floats: 1},
		"restored, and plain":            {lost: func(c *cluster, _, now *v1.KuryrLoadBalancer) { c.lose("web", now) }, service: plain, left: 2},
		"from before, and plain":         {lost: func(c *cluster, old, _ *v1.KuryrLoadBalancer) { c.lose("web", old) }, service: plain, left: 2},
		"from before, plain, Raven runs": {lost: func(c *cluster, old, _ *v1.KuryrLoadBalancer) { c.lose("web", old) }, service: plain, stays: true, left: 2},
		"lost, and another's": {lost: func(c *cluster, _, _ *v1.KuryrLoadBalancer) { c.lose("web", nil) }, service: func(s *corev1.Service) {
			s.Labels = map[string]string{labelProxyName: "another"}
		}, left: 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newPlacing(t, func(cfg *Config) {
				cfg.Audit = time.Hour
				cfg.Ranges = append(cfg.Ranges, Range{netip.MustParsePrefix("fd00:128::/48"), 64})
				cfg.ServiceRanges = append(cfg.ServiceRanges, netip.MustParsePrefix("fd00:96::/112"))
			})
			c.addNode("n1", nil)
			c.pod("default", "web", "n1", nil)
			c.service("web", nil, "10.96.0.10", "fd00:96::10")
			c.settle()
			before := c.klb("web")
			c.change("web", exposedService)
			c.settle()
			c.wholeServices()
			had, floats := c.balancerIDs(), c.floats()
			if len(had) != 4 || len(floats) != 1 {
				t.Fatalf("the SDN has %v, and floating IPs %v", had, floats)
			}
			row.lost(c, before, c.klb("web"))
			if row.service != nil {
				c.change("web", row.service)
			}
			if !row.stays {
				c.start()
			}
			c.settle()
			c.now = c.now.Add(2 * time.Hour)
			c.settle()
			c.wholeServices()
			now := c.balancerIDs()
			if len(now) != row.left || slices.ContainsFunc(now, func(id sdn.ID) bool { return !slices.Contains(had, id) }) {
				t.Errorf("the SDN had %v and has %v, want %d of them", had, now, row.left)
			}
			if got := c.floats(); row.left == 4 && !maps.Equal(got, floats) || len(got) != row.floats {
				t.Errorf("the floating IPs were %v and are %v", floats, got)
			}
		})
	}
}

// balancerIDs are the ids of the SDN's load balancers.
func (c *cluster) balancerIDs() (all []sdn.ID) {
	c.t.Helper()
	for lb, err := range c.sdn.FindLoadBalancers(c.t.Context(), sdn.LoadBalancerQuery{}) {
		c.must(err)
		all = append(all, lb.ID)
	}
	return all
}

// keyed are the Keys' names of all the SDN's load balancers, and of subnets of load balancers, in order.
func (c *cluster) keyed() (all []string) {
	c.t.Helper()
	for lb, err := range c.sdn.FindLoadBalancers(c.t.Context(), sdn.LoadBalancerQuery{}) {
		c.must(err)
		all = append(all, lb.Key.Name)
	}
	for s, err := range c.sdn.FindSubnets(c.t.Context(), sdn.SubnetQuery{Match: sdn.Match{Owner: c.sdn.Installation(), Kind: v1.KeyKindSubnet}}) {
		c.must(err)
		if strings.Contains(s.Key.Name, ".lb-") {
			all = append(all, s.Key.Name)
		}
	}
	slices.Sort(all)
	return all
}

// forgotten takes from Raven's caches what there is by this name, as one has it that began with an API server that was behind.
func (c *cluster) forgotten(name string) {
	for _, o := range []client.Object{c.serviceNow(name), c.klb(name)} {
		c.must(c.caches[reflect.TypeOf(o)].Delete(o))
	}
}

// With VIPs in namespaces both of a Service's load balancers stay where anybody stands for them: the object alone, which holds on to them; the Service alone, whose object is being made;
// both, of which the cache does not know yet; or another installation. Both go where nobody does, with the floating IP, and the namespace's subnet stays until its network goes.
func TestStraysAndVIPsInNamespaces(t *testing.T) {
	t.Parallel()
	c := newPlacing(t, func(cfg *Config) { cfg.Audit = time.Hour })
	c.addNode("n1", nil)
	pod := c.pod("default", "web", "n1", nil)
	var uids []types.UID
	for i, name := range []string{"whole", "making", "behind", "ending", "torn"} {
		uids = append(uids, c.service(name, exposedService, fmt.Sprint("10.96.0.1", i)).UID)
	}
	c.settle()
	c.wholeServices()
	theirs := sdn.LoadBalancerSpec{
		Base:      sdn.Base{Key: sdn.Key{Owner: "another", Kind: v1.KeyKindLoadBalancer, Name: "theirs.v4.own"}, Name: "theirs"},
		VIPs:      []sdn.VIP{{Subnet: c.ownVIP(c.serviceNow("whole")).VIPs[0].Subnet}},
		Listeners: []sdn.Listener{{Protocol: sdn.TCP, Port: 80}},
	}
	other, err := c.sdn.ApplyLoadBalancer(t.Context(), theirs)
	c.must(err)
	before, floats := c.keyed(), c.floats()
	if len(before) != 2*len(uids)+2 || len(floats) != len(uids) {
		t.Fatalf("the SDN has %q, and floating IPs %v", before, floats)
	}

	torn := c.klb("making")
	torn.Finalizers = nil
	c.must(c.api.Update(t.Context(), torn))
	c.must(client.IgnoreNotFound(c.api.Delete(t.Context(), torn)))
	c.must(c.api.Delete(t.Context(), c.serviceNow("ending")))
	c.torn("torn")
	c.start()
	c.forgotten("behind")
	_, err = strays{c.raven}.Reconcile(t.Context(), core.Request("", straysName))
	c.must(err)
	want := slices.DeleteFunc(before, func(name string) bool { return strings.HasPrefix(name, string(uids[4])) })
	if got := c.keyed(); !slices.Equal(got, want) || len(want) != 2*len(uids) {
		t.Errorf("the SDN has %q, want %q", got, want)
	}
	if got := c.floats(); len(got) != len(uids)-1 {
		t.Errorf("of the floating IPs %v are left %v", floats, got)
	}

	c.start()
	c.settle()
	c.wholeServices() // the one that was ending has ended
	c.torn("whole")
	c.settle()
	c.now = c.now.Add(2 * time.Hour)
	c.settle()
	c.wholeServices()
	for _, name := range []string{"making", "behind"} {
		c.remove(c.serviceNow(name))
	}
	c.must(c.sdn.DeleteLoadBalancer(t.Context(), other.ID))
	c.remove(pod)
	c.remove(c.networkOf("default"))
	c.settle()
	if got := c.keyed(); len(got) != 0 {
		t.Errorf("at the end the SDN has %q", got)
	}
	if known := c.raven.lbSubnets.known; len(known) != 0 {
		t.Errorf("at the end these subnets are known: %v", known)
	}
}
