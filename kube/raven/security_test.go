package raven

import (
	"context"
	"fmt"
	"iter"
	"math/rand/v2"
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
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// What tenants may write is not believed beyond what their namespaces are granted. In these tests
// a tenant owns the namespace "evil" and may write every kind in it.

// serviceIn makes a Service of a namespace, as c.service does in the namespace default.
func (c *cluster) serviceIn(namespace, name string, change func(*corev1.Service), clusterIP string) *corev1.Service {
	c.t.Helper()
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, UID: c.uid(), CreationTimestamp: metav1.NewTime(c.now),
		},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: clusterIP, ClusterIPs: []string{clusterIP},
			Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}},
		},
	}
	if change != nil {
		change(s)
	}
	c.must(c.api.Create(c.t.Context(), s))
	return s
}

// sliceIn makes an EndpointSlice of a namespace by hand. A pod that it names has each address.
func (c *cluster) sliceIn(namespace, service, pod string, port int32, addresses ...string) {
	c.t.Helper()
	tcp, ready := corev1.ProtocolTCP, true
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: service + "-1", Labels: map[string]string{
				discoveryv1.LabelServiceName: service, discoveryv1.LabelManagedBy: "endpointslice-controller.k8s.io",
			},
		},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: &port, Protocol: &tcp}},
	}
	for _, a := range addresses {
		e := discoveryv1.Endpoint{Addresses: []string{a}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}
		if pod != "" {
			e.TargetRef = &corev1.ObjectReference{Kind: "Pod", Namespace: namespace, Name: pod}
		}
		s.Endpoints = append(s.Endpoints, e)
	}
	c.must(c.api.Create(c.t.Context(), s))
}

// order has what happens come in another order for each of a test's clusters.
func (c *cluster) order(i int) { c.rand = rand.New(rand.NewPCG(c.seed, uint64(i))) }

func (c *cluster) klbIn(namespace, name string) *v1.KuryrLoadBalancer {
	c.t.Helper()
	var lb v1.KuryrLoadBalancer
	if err := c.api.Get(c.t.Context(), core.Request(namespace, name).NamespacedName, &lb); err != nil {
		return nil
	}
	return &lb
}

// asking has a Service of type LoadBalancer ask for an address and carry annotations, by what
// follows balancerPrefix.
func asking(address string, annotations map[string]string) func(*corev1.Service) {
	return func(s *corev1.Service) {
		exposedService(s)
		s.Spec.LoadBalancerIP = address
		s.Annotations = map[string]string{}
		for name, value := range annotations {
			s.Annotations[balancerPrefix+name] = value
		}
	}
}

// theirs makes a load balancer of a user in a project.
func (c *cluster) theirs(project, cidr string) sdn.LoadBalancer {
	c.t.Helper()
	ctx, base := c.t.Context(), sdn.Base{Name: "theirs", Project: project}
	n, err := c.sdn.EnsureNetwork(ctx, sdn.NetworkSpec{Base: base})
	c.must(err)
	s, err := c.sdn.EnsureSubnet(ctx, sdn.SubnetSpec{
		Base: sdn.Base{Project: project}, Network: n.ID, CIDR: netip.MustParsePrefix(cidr),
	})
	c.must(err)
	lb, err := c.sdn.ApplyLoadBalancer(ctx, sdn.LoadBalancerSpec{Base: base, VIPs: []sdn.VIP{{Subnet: s.ID}}})
	c.must(err)
	return lb
}

// usersAddress makes a floating IP of a user in a project, which leads nowhere.
func (c *cluster) usersAddress(project string) string {
	c.t.Helper()
	f, err := c.sdn.EnsureFloatingIP(c.t.Context(), sdn.FloatingIPSpec{
		Base: sdn.Base{Name: "a user's", Project: project}, Network: c.raven.ground.Public,
	})
	c.must(err)
	return f.Address.String()
}

// wantRefused checks that a Service is not reached from outside, is served otherwise, and that its
// owner is told why.
func (c *cluster) wantRefused(namespace, name, says string) {
	c.t.Helper()
	lb := c.klbIn(namespace, name)
	var s corev1.Service
	c.must(c.api.Get(c.t.Context(), core.Request(namespace, name).NamespacedName, &s))
	at := s.Status.LoadBalancer.Ingress
	if lb == nil || core.IsReady(lb.Status.Conditions) || len(at) > 0 || !c.events.has(name+" "+core.EventRefused, says) {
		c.t.Errorf("%s/%s is reached at %v, want it refused (%q): %+v, %q", namespace, name, at, says, lb, c.events.all)
		return
	}
	refused := func(is metav1.Condition) bool { return is.Reason == v1.ReasonRefused }
	if !slices.ContainsFunc(lb.Status.Conditions, refused) {
		c.t.Errorf("%s/%s: %+v", namespace, name, lb.Status.Conditions)
	}
}

// A KuryrLoadBalancer that names the Service of another namespace never changes what that has in the
// SDN: not while it is there, and not when it goes.
func TestForgedLoadBalancer(t *testing.T) {
	t.Parallel()
	for _, finalizers := range [][]string{nil, {"evil.example/hold"}, {v1.Finalizer, "evil.example/hold"}} {
		for i := range 20 { // the controllers race
			c := newServing(t, nil)
			c.order(i)
			c.settle()
			dns := c.service("dns", nil, "10.96.0.10")
			c.slice("dns-1", "dns", 53, "10.128.0.5")
			c.settle()
			const want = "10.96.0.10: 6:80>10.128.0.5:53"
			c.wantBalancers(want)
			c.namespace("evil", nil)
			c.sliceIn("evil", "x", "", 666, "10.128.66.66")
			forged := &v1.KuryrLoadBalancer{Spec: v1.KuryrLoadBalancerSpec{
				ServiceUID: dns.UID, Type: "ClusterIP", VIPs: []string{"10.96.0.10"},
				Ports: []v1.LoadBalancerPort{{Protocol: "TCP", Port: 80}},
			}}
			forged.Namespace, forged.Name, forged.Finalizers = "evil", "x", finalizers
			c.must(c.api.Create(t.Context(), forged))
			for did := true; did; {
				did, _ = c.step()
				if got := c.balancers(); !slices.Equal(got, []string{want}) {
					t.Fatalf("finalizers %q: the SDN has %q", finalizers, got)
				}
			}
			c.settle()
			c.wantBalancers(want)
			c.start() // and neither for a Raven that finds it
			c.settle()
			c.wantBalancers(want)
			if lb := c.klbIn("evil", "x"); lb != nil && slices.Contains(lb.Finalizers, v1.Finalizer) {
				t.Errorf("finalizers %q: Raven keeps the forged one: %+v", finalizers, lb.ObjectMeta)
			}
		}
	}
}

// A tenant who writes the KuryrLoadBalancer of its own Service gets no VIP that is not the Service's,
// and no floating IP where the Service, which a ResourceQuota counts, does not ask for one.
func TestForgedSpec(t *testing.T) {
	t.Parallel()
	for i := range 40 {
		c := newServing(t, nil)
		c.order(i)
		c.namespace("evil", nil)
		c.serviceIn("evil", "x", nil, "10.96.0.66")
		c.settle()
		forged := c.klbIn("evil", "x")
		if forged.Spec.Type = "LoadBalancer"; i%2 == 0 {
			forged.Spec.VIPs = []string{"10.96.0.77"}
		} else {
			forged.Spec.FloatingIP = &v1.LoadBalancerFloatingIP{}
		}
		c.must(c.api.Update(t.Context(), forged))
		for did := true; did; {
			did, _ = c.step()
			for _, b := range c.balancers() {
				if strings.HasPrefix(b, "10.96.0.77") {
					t.Fatalf("the SDN has %q", b)
				}
			}
			if len(c.floats()) > 0 {
				t.Fatalf("the SDN has floating IPs %v", c.floats())
			}
		}
		c.settle()
		c.wantBalancers("10.96.0.66: 6:80>")
	}
}

// forging is how a status is forged, and what is wrong afterwards.
type forging = func(c *cluster) (forge func(*v1.KuryrLoadBalancerStatus), stays func() error)

// forgedStatus is what a tenant may write into the status of its own KuryrLoadBalancer, and what of
// others stays all the same.
var forgedStatus = map[string]forging{
	"a load balancer of another project, as inherited": func(c *cluster) (forge func(*v1.KuryrLoadBalancerStatus), stays func() error) {
		lb := c.theirs("alpha", "192.168.7.0/24")
		return func(s *v1.KuryrLoadBalancerStatus) {
			s.Shares = []v1.LoadBalancerShare{{ID: string(lb.ID), Inherited: "whatever"}}
		}, func() error { _, err := c.sdn.LoadBalancer(c.t.Context(), lb.ID); return err }
	},
	"a load balancer of another namespace, as inherited": func(c *cluster) (forge func(*v1.KuryrLoadBalancerStatus), stays func() error) {
		web := c.service("web", exposedService, "10.96.0.10")
		c.settle()
		id := c.ownVIP(web).ID
		return func(s *v1.KuryrLoadBalancerStatus) {
			s.Shares = []v1.LoadBalancerShare{{ID: string(id), Inherited: web.UID}}
		}, func() error { _, err := c.sdn.LoadBalancer(c.t.Context(), id); return err }
	},
	"listeners of another namespace, as a guest's": func(c *cluster) (forge func(*v1.KuryrLoadBalancerStatus), stays func() error) {
		lb := c.theirs("", "192.168.7.0/24")
		web := c.service("web", sharing(lb.ID, 80), "10.96.0.10")
		c.settle()
		return func(s *v1.KuryrLoadBalancerStatus) {
				s.Guests = []v1.LoadBalancerGuest{{LoadBalancer: string(lb.ID), ServiceUID: web.UID, Name: "nobody"}}
			}, func() error {
				now, err := c.sdn.LoadBalancer(c.t.Context(), lb.ID)
				if err == nil && len(now.Listeners) != 1 {
					err = fmt.Errorf("listeners %+v", now.Listeners)
				}
				return err
			}
	},
	"a floating IP of another namespace, as a user's": func(c *cluster) (forge func(*v1.KuryrLoadBalancerStatus), stays func() error) {
		c.service("web", exposedService, "10.96.0.10")
		c.settle()
		of := c.klb("web").Status
		before := c.floats()[of.FloatingIP.Address]
		return func(s *v1.KuryrLoadBalancerStatus) {
				f := *of.FloatingIP
				f.Owner = v1.FloatingIPOfUser
				s.FloatingIP = &f
				s.LoadBalancers = append(s.LoadBalancers, of.LoadBalancers...)
			}, func() error {
				if now := c.floats()[of.FloatingIP.Address]; now != before {
					return fmt.Errorf("%s leads to %q, before to %q", of.FloatingIP.Address, now, before)
				}
				return nil
			}
	},
	"another's port, as that of the VIP": func(c *cluster) (forge func(*v1.KuryrLoadBalancerStatus), stays func() error) {
		ports, err := c.sdn.EnsurePorts(c.t.Context(), []sdn.PortSpec{{Network: sdn.ID(c.network("default").Status.Network)}})
		c.must(err)
		return func(s *v1.KuryrLoadBalancerStatus) {
				for i := range s.LoadBalancers {
					s.LoadBalancers[i].Port = string(ports[0].ID)
				}
			}, func() error {
				query := sdn.FloatingIPQuery{Ports: []sdn.ID{ports[0].ID}}
				f, led, err := sdn.First(c.sdn.FindFloatingIPs(c.t.Context(), query))
				if led {
					err = fmt.Errorf("%s leads to it", f.Address)
				}
				return err
			}
	},
}

// What stands in a status is acted on only as far as the SDN confirms it, while the Service is there
// and when it goes, by the Raven that has written the status before and by the next one.
func TestForgedStatus(t *testing.T) {
	t.Parallel()
	for name, row := range forgedStatus {
		for _, again := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, another Raven %t", name, again), func(t *testing.T) {
				t.Parallel()
				c := newPlacing(t, nil)
				c.addNode("n1", nil)
				c.pod("default", "p", "n1", nil)
				c.namespace("evil", nil)
				c.pod("evil", "p", "n1", nil)
				c.settle()
				evil := c.serviceIn("evil", "x", exposedService, "10.96.0.66")
				c.settle()
				forge, stays := row(c)
				for _, then := range []func(){
					func() {},
					func() { c.now = c.now.Add(2 * time.Hour) },
					func() {
						c.must(c.api.Get(t.Context(), core.Request("evil", "x").NamespacedName, evil))
						evil.Spec.Ports[0].Port++
						c.must(c.api.Update(t.Context(), evil))
					},
					func() { c.remove(evil) },
				} {
					if lb := c.klbIn("evil", "x"); lb != nil {
						forge(&lb.Status)
						c.must(c.api.Status().Update(t.Context(), lb))
					}
					if again {
						c.start()
					}
					then()
					c.settle()
					if err := stays(); err != nil {
						t.Fatal(err)
					}
				}
			})
		}
	}
}

// An address that the status shows is published once Raven has seen it in the SDN: another one there
// is corrected.
func TestForgedAddressIsCorrected(t *testing.T) {
	t.Parallel()
	c := newServing(t, nil)
	c.service("web", exposedService, "10.96.0.10")
	c.settle()
	address := c.ingress("web")
	lb := c.klb("web")
	lb.Status.FloatingIP.Address = "10.96.0.1"
	c.must(c.api.Status().Update(t.Context(), lb))
	c.change("web", func(s *corev1.Service) { s.Spec.Ports[0].Port = 81 }) // has it looked at
	c.settle()
	c.wholeServices()
	if c.ingress("web") != address {
		t.Errorf("the Service says %q, want %q", c.ingress("web"), address)
	}
}

// A KuryrPort that names a port which Raven has not made takes nothing from the SDN when it goes.
func TestForgedPort(t *testing.T) {
	t.Parallel()
	c := newCluster(t, nil)
	c.addNode("n1", nil)
	c.pod("default", "web", "n1", nil)
	c.settle()
	machines, err := c.sdn.EnsurePorts(t.Context(), []sdn.PortSpec{{Network: sdn.ID(c.network("default").Status.Network)}})
	c.must(err)
	forged := c.ports()[0].DeepCopy()
	forged.ObjectMeta = metav1.ObjectMeta{
		Name: string(machines[0].ID), Finalizers: []string{v1.Finalizer}, Labels: forged.Labels,
	}
	forged.Spec.ID, forged.Status = string(machines[0].ID), v1.KuryrPortStatus{}
	forged.Labels[v1.LabelPortStatus] = string(v1.PortDeleting)
	c.must(c.api.Create(t.Context(), forged))
	c.settle()
	if _, err := c.sdn.Port(t.Context(), machines[0].ID); err != nil {
		t.Errorf("the port of a machine: %v", err)
	}
	if slices.ContainsFunc(c.ports(), func(p v1.KuryrPort) bool { return p.Name == forged.Name }) {
		t.Error("the forged object is kept")
	}
	c.check()
}

// A Service takes an address only if the namespace is granted it, and none of another project's or
// that another namespace keeps, whatever is granted.
func TestAddressesAreGranted(t *testing.T) {
	t.Parallel()
	c := newServing(t, nil)
	c.settle()
	c.namespace("victim", nil)
	c.namespace("evil", nil)
	c.namespace("greedy", map[string]string{v1.AnnotationAllowFloatingIPs: core.Any})
	web := c.serviceIn("victim", "web", asking("", map[string]string{"keep-floatingip": "true"}), "10.96.0.10")
	c.settle()
	kept := c.klbIn("victim", "web").Status.FloatingIP.Address
	c.remove(web)
	c.settle()
	if to, there := c.floats()[kept]; !there || to != "" {
		t.Fatalf("%s is not kept: %v", kept, c.floats())
	}
	alphas, users := c.usersAddress("alpha"), c.usersAddress("")
	fresh := netip.MustParseAddr(users).Next().Next().String()
	for i, row := range []struct{ namespace, address, says string }{
		{"evil", kept, "not one that the namespace has kept"},
		{"greedy", kept, "not one that the namespace has kept"},
		{"evil", alphas, "another project"},
		{"greedy", alphas, "another project"},
		{"evil", users, v1.AnnotationAllowFloatingIPs},
		{"evil", fresh, v1.AnnotationAllowFloatingIPs},
	} {
		name := fmt.Sprint("s", i)
		c.serviceIn(row.namespace, name, asking(row.address, nil), fmt.Sprintf("10.96.1.%d", i+1))
		c.settle()
		c.wantRefused(row.namespace, name, row.says)
		if to := c.floats()[row.address]; to != "" {
			t.Errorf("%s leads to %s", row.address, to)
		}
	}
	if _, there := c.floats()[fresh]; there {
		t.Errorf("a floating IP was made: %v", c.floats())
	}

	// Those who may not have it are not in the way of who may, though they came first.
	c.now = c.now.Add(time.Minute)
	c.serviceIn("victim", "again", asking(kept, nil), "10.96.0.11")
	c.serviceIn("greedy", "users", asking(users, nil), "10.96.0.12")
	c.serviceIn("greedy", "fresh", asking(fresh, nil), "10.96.0.13")
	c.settle()
	want := map[string]string{kept: "10.96.0.11", users: "10.96.0.12", fresh: "10.96.0.13", alphas: ""}
	for address, to := range want {
		if got := c.floats()[address]; got != to {
			t.Errorf("%s leads to %q, want %q: %q", address, got, to, c.events.all)
		}
	}

	// A grant counts when it is given, and what a Service has stays when it is taken back.
	c.now = c.now.Add(time.Minute)
	c.annotate("evil", map[string]string{v1.AnnotationAllowFloatingIPs: netip.MustParseAddr(fresh).Next().String()})
	c.serviceIn("evil", "given", asking(netip.MustParseAddr(fresh).Next().String(), nil), "10.96.0.14")
	c.annotate("greedy", map[string]string{v1.AnnotationAllowFloatingIPs: ""})
	c.start()
	c.settle()
	want[netip.MustParseAddr(fresh).Next().String()] = "10.96.0.14"
	for address, to := range want {
		if got := c.floats()[address]; got != to {
			t.Errorf("after other grants %s leads to %q, want %q: %q", address, got, to, c.events.all)
		}
	}
	if !c.events.has("users "+core.EventRefused, "it stays") {
		t.Errorf("nobody tells that an address is not granted any more: %q", c.events.all)
	}
}

// A namespace that is put into a project may use what that project has.
func TestAddressOfTheNamespacesProject(t *testing.T) {
	t.Parallel()
	c := newServing(t, nil)
	c.settle()
	c.namespace("blue", map[string]string{v1.AnnotationProject: "blue", v1.AnnotationAllowFloatingIPs: core.Any})
	address := c.usersAddress("blue")
	c.serviceIn("blue", "web", asking(address, nil), "10.96.0.10")
	c.settle()
	if to := c.floats()[address]; to != "10.96.0.10" {
		t.Errorf("%s leads to %q: %q", address, to, c.events.all)
	}
}

// Services that come, have their addresses kept and go leave as many as the namespace may keep,
// one after another or concurrently.
func TestKeptAddressesAreBounded(t *testing.T) {
	t.Parallel()
	keep := asking("", map[string]string{"keep-floatingip": "true"})
	for _, row := range []struct {
		grant  string
		atOnce bool
		want   int
	}{
		{"", false, v1.DefaultKeptFloatingIPs}, {"", true, v1.DefaultKeptFloatingIPs},
		{"2", false, 2}, {"0", true, 0}, {"many", false, 0},
	} {
		c := newServing(t, nil)
		c.namespace("evil", nil)
		if row.grant != "" {
			c.annotate("evil", map[string]string{v1.AnnotationAllowKeptFloatingIPs: row.grant})
		}
		c.settle()
		var all []*corev1.Service
		for i := range 8 {
			all = append(all, c.serviceIn("evil", fmt.Sprint("k", i), keep, fmt.Sprintf("10.96.1.%d", i+1)))
			if !row.atOnce {
				c.settle()
				c.remove(all[i])
				c.settle()
			}
		}
		c.settle()
		for _, s := range all {
			c.remove(s)
		}
		c.settle()
		if n := len(c.floats()); n != row.want {
			t.Errorf("grant %q, at once %t: %d floating IPs are kept, want %d", row.grant, row.atOnce, n, row.want)
		}
		if !c.events.has(core.EventRefused, "keep-floatingip has no effect") {
			t.Errorf("grant %q: nobody is told: %q", row.grant, c.events.all)
		}
		// Another namespace has its own.
		c.namespace("other", nil)
		s := c.serviceIn("other", "k", keep, "10.96.2.1")
		c.settle()
		c.remove(s)
		c.settle()
		if n := len(c.floats()); n != row.want+1 {
			t.Errorf("grant %q: another namespace keeps %d", row.grant, n-row.want)
		}
	}
}

// Another external network needs a grant. A floating IP that a Service has there stays without.
func TestExternalNetworksAreGranted(t *testing.T) {
	t.Parallel()
	c := newServing(t, nil)
	c.settle()
	n, err := c.sdn.EnsureNetwork(t.Context(), sdn.NetworkSpec{Base: sdn.Base{Name: "dmz"}, External: true})
	c.must(err)
	_, err = c.sdn.EnsureSubnet(t.Context(), sdn.SubnetSpec{Network: n.ID, CIDR: netip.MustParsePrefix("203.0.113.0/24")})
	c.must(err)
	there := asking("", map[string]string{"floating-network-id": string(n.ID)})
	c.namespace("evil", nil)
	c.serviceIn("evil", "web", there, "10.96.0.66")
	c.settle()
	c.wantRefused("evil", "web", v1.AnnotationAllowNetworks)
	if len(c.floats()) > 0 {
		t.Errorf("floating IPs %v", c.floats())
	}
	own := map[string]string{"floating-network-id": string(c.raven.ground.Public)}
	c.serviceIn("evil", "own", asking("", own), "10.96.0.67")
	c.settle()
	if lb := c.klbIn("evil", "own"); !core.IsReady(lb.Status.Conditions) {
		t.Errorf("the cluster's own network: %+v", lb.Status)
	}
}

// A user's load balancer is shared where it is granted, and none of another project. Listeners that a
// Service has at one stay without a grant.
func TestSharedLoadBalancersAreGranted(t *testing.T) {
	t.Parallel()
	c := newServing(t, nil)
	c.settle()
	c.namespace("evil", nil)
	alphas, users := c.theirs("alpha", "192.168.7.0/24"), c.theirs("", "192.168.8.0/24")
	for i, row := range []struct {
		id          sdn.ID
		grant, says string
	}{
		{alphas.ID, "", "another project"}, {alphas.ID, core.Any, "another project"},
		{users.ID, "", v1.AnnotationAllowLoadBalancers}, {users.ID, string(alphas.ID), v1.AnnotationAllowLoadBalancers},
	} {
		c.annotate("evil", map[string]string{v1.AnnotationAllowLoadBalancers: row.grant})
		name := fmt.Sprint("s", i)
		s := c.serviceIn("evil", name, sharing(row.id, 80), fmt.Sprintf("10.96.1.%d", i+1))
		c.settle()
		c.wantRefused("evil", name, row.says)
		now, err := c.sdn.LoadBalancer(t.Context(), row.id)
		c.must(err)
		if len(now.Listeners) > 0 {
			t.Errorf("%s: listeners %+v", row.says, now.Listeners)
		}
		c.remove(s)
	}
	c.annotate("evil", map[string]string{v1.AnnotationAllowLoadBalancers: string(users.ID)})
	c.serviceIn("evil", "granted", sharing(users.ID, 80), "10.96.0.66")
	c.settle()
	c.annotate("evil", map[string]string{v1.AnnotationAllowLoadBalancers: ""})
	c.start()
	c.settle()
	now, err := c.sdn.LoadBalancer(t.Context(), users.ID)
	c.must(err)
	if len(now.Listeners) != 1 || !c.events.has("granted "+core.EventRefused, "stay") {
		t.Errorf("granted before: listeners %+v, %q", now.Listeners, c.events.all)
	}
}

// withTLS has load balancers that end TLS: it keeps their certificates, which the embedded SDN cannot.
type withTLS struct {
	sdn.Provider
	has map[sdn.Key]string
}

func (p withTLS) Capabilities() sdn.Capabilities {
	can := p.Provider.Capabilities()
	can.LoadBalancer.HTTP = true
	return can
}

func (p withTLS) ApplyLoadBalancer(ctx context.Context, spec sdn.LoadBalancerSpec) (sdn.LoadBalancer, error) {
	spec.Listeners = slices.Clone(spec.Listeners)
	delete(p.has, spec.Key)
	for i := range spec.Listeners {
		if ref := spec.Listeners[i].Certificate; ref != "" {
			p.has[spec.Key], spec.Listeners[i].Certificate = ref, ""
		}
	}
	return p.Provider.ApplyLoadBalancer(ctx, spec)
}

func (p withTLS) FindLoadBalancers(ctx context.Context, q sdn.LoadBalancerQuery) iter.Seq2[sdn.LoadBalancer, error] {
	return func(yield func(sdn.LoadBalancer, error) bool) {
		for lb, err := range p.Provider.FindLoadBalancers(ctx, q) {
			for i := range lb.Listeners {
				lb.Listeners[i].Certificate = p.has[lb.Key]
			}
			if !yield(lb, err) {
				return
			}
		}
	}
}

// A certificate needs a grant before it is given to the SDN. One that a Service has stays without.
func TestCertificatesAreGranted(t *testing.T) {
	t.Parallel()
	c := newServing(t, nil)
	has := map[sdn.Key]string{}
	c.sdn = withTLS{c.sdn, has}
	c.start()
	const mine, other = "https://barbican.example/v1/containers/mine", "https://barbican.example/v1/containers/other"
	c.namespace("evil", map[string]string{v1.AnnotationAllowCertificates: mine})
	c.serviceIn("evil", "web", asking("", map[string]string{"default-tls-container-ref": other}), "10.96.0.66")
	c.settle()
	c.wantRefused("evil", "web", v1.AnnotationAllowCertificates)
	if len(has) > 0 {
		t.Errorf("the SDN has certificates %v", has)
	}
	c.serviceIn("evil", "own", asking("", map[string]string{"default-tls-container-ref": mine}), "10.96.0.67")
	c.settle()
	c.annotate("evil", map[string]string{v1.AnnotationAllowCertificates: ""})
	c.start()
	c.settle()
	lb, told := c.klbIn("evil", "own"), c.events.has("own "+core.EventRefused, "it stays")
	if !core.IsReady(lb.Status.Conditions) || len(has) != 1 || !told {
		t.Errorf("granted before: %v, %+v; %q", has, lb.Status, c.events.all)
	}
}

// Where pods are kept from the nodes' network a Service does not lead there either: not by endpoints
// made by hand, but to pods on their node's network, and to what pods reach or the namespace is granted.
func TestEndpointsOnTheNodesNetwork(t *testing.T) {
	t.Parallel()
	c := newServing(t, isolated)
	c.apiServer("192.0.2.254", 6443)
	c.addNode("n1", nil)
	c.namespace("evil", nil)
	host := c.pod("evil", "host", "n1", nil)
	c.must(c.api.Get(t.Context(), core.Request("evil", "host").NamespacedName, host))
	host.Spec.HostNetwork = true
	c.must(c.api.Update(t.Context(), host))
	c.pod("evil", "web", "n1", nil)
	c.settle()
	for i, row := range []struct {
		address string
		port    int32
		pod     string
		served  bool
	}{
		{"192.0.2.1", 10250, "", false},       // the kubelet
		{"192.0.2.77", 22, "", false},         // another machine of that network
		{"100.64.0.1", 22, "", false},         // the host, where routers find it
		{"192.0.2.1", 10250, "web", false},    // of a pod that is on no node's network
		{"192.0.2.1", 10250, "nobody", false}, // of no pod
		{"192.0.2.77", 22, "host", false},     // of a pod of another node
		{"192.0.2.1", 8080, "host", true},
		{"192.0.2.254", 6443, "", true}, // an API server
		{"192.0.2.77", 53, "", true},    // a name server
		{"198.51.100.7", 22, "", true},  // outside
		{"10.128.0.5", 8080, "", true},  // a pod
	} {
		name := fmt.Sprint("s", i)
		c.serviceIn("evil", name, nil, fmt.Sprintf("10.96.1.%d", i+1))
		c.sliceIn("evil", name, row.pod, row.port, row.address)
		c.settle()
		want := fmt.Sprintf("10.96.1.%d: 6:80>", i+1)
		if row.served {
			want += fmt.Sprintf("%s:%d", row.address, row.port)
		}
		if got := c.balancers(); !slices.Contains(got, want) {
			t.Errorf("endpoint %+v: the SDN has %q, want %q", row, got, want)
		}
		if told := c.events.has(name+" "+core.EventUnserved, "nodes' network"); told == row.served {
			t.Errorf("endpoint %+v: its owner is told: %t; %q", row, told, c.events.all)
		}
	}
	c.annotate("evil", map[string]string{v1.AnnotationAllowEndpoints: "192.0.2.77"})
	c.settle()
	got := c.balancers()
	if !slices.Contains(got, "10.96.1.2: 6:80>192.0.2.77:22") || slices.Contains(got, "10.96.1.1: 6:80>192.0.2.1:10250") {
		t.Errorf("with a grant the SDN has %q", got)
	}
	// A node that comes later is kept from what led to its address before.
	n := c.node("n1")
	another := corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: "198.51.100.7"}
	n.Status.Addresses = append(n.Status.Addresses, another)
	c.must(c.api.Status().Update(t.Context(), n))
	c.settle()
	if got := c.balancers(); !slices.Contains(got, "10.96.1.10: 6:80>") {
		t.Errorf("of a node's other address the SDN has %q", got)
	}
}

// A user that may write EndpointSlices of the API servers' Service opens no way to the nodes' network
// with one of another name than theirs.
func TestAPIServersAreTheirOwn(t *testing.T) {
	t.Parallel()
	c := newServing(t, isolated)
	c.apiServer("192.0.2.254", 6443)
	c.addNode("n1", nil)
	c.pod("default", "web", "n1", nil)
	c.sliceIn("default", node.APIService, "", 10250, "192.0.2.1")
	c.settle()
	if c.passes("web", "192.0.2.1", sdn.TCP, 10250) || !c.passes("web", "192.0.2.254", sdn.TCP, 6443) {
		t.Error("a slice by hand lets pods to a kubelet, or the API server's does not let them there")
	}
}

// No pool takes what another pool's pending keys may have made.
func TestForgedPending(t *testing.T) {
	t.Parallel()
	c := newCluster(t, nil)
	c.addNode("n1", nil)
	c.addNode("n2", nil)
	c.pod("default", "a", "n1", nil)
	c.pod("default", "b", "n2", nil)
	c.settle()
	var keys []v1.PendingPort
	for p, err := range c.sdn.FindPorts(t.Context(), sdn.PortQuery{Match: sdn.Match{Kind: v1.KeyKindPort}}) {
		c.must(err)
		keys = append(keys, v1.PendingPort{Key: p.Key.Name, Pod: types.UID("gone")})
	}
	forged := c.pools()[0]
	forged.Status.Pending = keys
	c.must(c.api.Status().Update(t.Context(), &forged))
	c.remove(c.node(forged.Spec.Node))
	c.settle()
	other := map[string]string{"n1": "b", "n2": "a"}[forged.Spec.Node]
	for _, p := range c.ports() {
		if p.Status.Pod != nil && p.Status.Pod.Name == other {
			if _, err := c.sdn.Port(t.Context(), sdn.ID(p.Spec.ID)); err != nil {
				t.Errorf("the port of pod %s: %v", other, err)
			}
		}
	}
}

// named notes the projects that the SDN is told of.
type named struct {
	sdn.Provider
	projects map[string]bool
}

func (n named) FindNetworks(ctx context.Context, q sdn.NetworkQuery) iter.Seq2[sdn.Network, error] {
	for _, p := range q.Projects {
		n.projects[p] = true
	}
	return n.Provider.FindNetworks(ctx, q)
}

// The next Raven tells the SDN in which projects there are objects of Raven's, before it looks for any: a
// Key counts only there.
func TestProjectsAreNamed(t *testing.T) {
	t.Parallel()
	c := newCluster(t, nil)
	c.addNode("n1", nil)
	c.namespace("blue", map[string]string{v1.AnnotationProject: "p1"})
	c.pod("blue", "web", "n1", nil)
	c.settle()
	all := map[string]bool{}
	c.sdn = named{c.sdn, all}
	c.start()
	if len(all) != 1 || !all["p1"] {
		t.Errorf("the SDN is told of %v", all)
	}
	c.remove(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "blue", Name: "web"}})
	c.remove(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "blue"}})
	c.settle()
	c.whole()
}
