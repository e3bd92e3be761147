package raven

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/sdn"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// newServing is a cluster whose Services are the SDN's.
func newServing(t testing.TB, change func(*Config)) *cluster {
	t.Helper()
	return newCluster(t, func(c *Config) {
		c.Services = true
		if change != nil {
			change(c)
		}
	})
}

// service makes a Service as the API server has it: with its ClusterIPs.
func (c *cluster) service(name string, change func(*corev1.Service), clusterIPs ...string) *corev1.Service {
	c.t.Helper()
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: c.uid(), CreationTimestamp: metav1.NewTime(c.now)},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, ClusterIP: clusterIPs[0], ClusterIPs: clusterIPs, Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}}},
	}
	if change != nil {
		change(s)
	}
	c.must(c.api.Create(c.t.Context(), s))
	return s
}

func exposedService(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeLoadBalancer }

// change changes a Service, and takes from its status what the API server does.
func (c *cluster) change(name string, change func(*corev1.Service)) {
	c.t.Helper()
	s := c.serviceNow(name)
	change(s)
	c.must(c.api.Update(c.t.Context(), s))
	if s.Spec.Type != corev1.ServiceTypeLoadBalancer && len(s.Status.LoadBalancer.Ingress) > 0 {
		s.Status.LoadBalancer = corev1.LoadBalancerStatus{}
		c.must(c.api.Status().Update(c.t.Context(), s))
	}
}

func (c *cluster) serviceNow(name string) *corev1.Service {
	c.t.Helper()
	var s corev1.Service
	c.must(c.api.Get(c.t.Context(), request("default", name).NamespacedName, &s))
	return &s
}

// slice makes or changes an EndpointSlice with ready endpoints for the unnamed port.
func (c *cluster) slice(name, service string, port int32, addresses ...string) {
	c.t.Helper()
	tcp := corev1.ProtocolTCP
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: &port, Protocol: &tcp}},
	}
	for _, a := range addresses {
		if strings.Contains(a, ":") {
			s.AddressType = discoveryv1.AddressTypeIPv6
		}
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}})
	}
	var is discoveryv1.EndpointSlice
	if err := c.api.Get(c.t.Context(), client.ObjectKeyFromObject(s), &is); err == nil {
		s.ResourceVersion = is.ResourceVersion
		c.must(c.api.Update(c.t.Context(), s))
		return
	}
	c.must(c.api.Create(c.t.Context(), s))
}

func (c *cluster) klb(name string) *v1.KuryrLoadBalancer {
	c.t.Helper()
	var lb v1.KuryrLoadBalancer
	if err := c.api.Get(c.t.Context(), request("default", name).NamespacedName, &lb); err != nil {
		return nil
	}
	return &lb
}

// balancers are the SDN's load balancers, as "10.96.0.10: 6:80>10.128.0.5:8080,…", in order.
func (c *cluster) balancers() (all []string) {
	c.t.Helper()
	for lb, err := range c.sdn.FindLoadBalancers(c.t.Context(), sdn.LoadBalancerQuery{Match: sdn.Match{Owner: c.sdn.Installation()}}) {
		c.must(err)
		var ports []string
		for _, l := range lb.Listeners {
			var members []string
			for _, m := range l.Pool.Members {
				members = append(members, m.Addr.String())
			}
			slices.Sort(members)
			ports = append(ports, fmt.Sprintf("%d:%d>%s", l.Protocol, l.Port, strings.Join(members, ",")))
		}
		slices.Sort(ports)
		all = append(all, fmt.Sprintf("%s: %s", lb.VIPs[0].Addr, strings.Join(ports, " ")))
	}
	slices.Sort(all)
	return all
}

func (c *cluster) wantBalancers(want ...string) {
	c.t.Helper()
	if got := c.balancers(); !slices.Equal(got, want) {
		c.t.Errorf("the SDN has the load balancers %q, want %q", got, want)
	}
}

// floats are the SDN's floating IPs by what they lead to: a VIP or "".
func (c *cluster) floats() map[string]string {
	c.t.Helper()
	all := map[string]string{}
	for f, err := range c.sdn.FindFloatingIPs(c.t.Context(), sdn.FloatingIPQuery{}) {
		c.must(err)
		all[f.Address.String()] = ""
		if f.Target.Port != "" {
			all[f.Address.String()] = f.Target.Addr.String()
		}
	}
	return all
}

// ingress is where a Service's status says that it is reached.
func (c *cluster) ingress(name string) string {
	c.t.Helper()
	var all []string
	for _, i := range c.serviceNow(name).Status.LoadBalancer.Ingress {
		if i.IP != "" && (i.IPMode == nil || *i.IPMode != corev1.LoadBalancerIPModeVIP) {
			c.t.Errorf("ingress %+v", i)
		}
		all = append(all, i.IP+i.Hostname)
	}
	return strings.Join(all, ",")
}

// wholeServices checks that each KuryrLoadBalancer is a Service's, ready, and that all floating IPs of Raven's are told of.
func (c *cluster) wholeServices() {
	c.t.Helper()
	var lbs v1.KuryrLoadBalancerList
	c.list(&lbs)
	vips := map[string]string{}
	told := map[string]bool{}
	for _, lb := range lbs.Items {
		s := c.serviceNow(lb.Name)
		if s.UID != lb.Spec.ServiceUID || !lb.DeletionTimestamp.IsZero() || !isReady(lb.Status.Conditions) || lb.Status.ObservedGeneration != lb.Generation {
			c.t.Errorf("load balancer %s of Service %s: %+v, deleted %v", lb.Name, s.UID, lb.Status, lb.DeletionTimestamp)
		}
		leads := lb.Spec.VIPs
		if own := ownVIP(&lb, false); lb.Spec.OwnVIPs && own != nil {
			leads = []string{own.VIP}
		} else if lb.Spec.OwnVIPs || own != nil {
			c.t.Errorf("load balancer %s, own VIPs %v: %+v", lb.Name, lb.Spec.OwnVIPs, lb.Status)
		}
		for _, of := range lb.Status.LoadBalancers {
			vips[of.VIP] = of.ID
		}
		if f := lb.Status.FloatingIP; f != nil {
			told[f.Address] = true
			if c.ingress(lb.Name) != f.Address || !slices.Contains(leads, c.floats()[f.Address]) {
				c.t.Errorf("Service %s says %q, its load balancer %+v; the SDN has %v", lb.Name, c.ingress(lb.Name), f, c.floats())
			}
		}
		if s.Spec.Type == corev1.ServiceTypeLoadBalancer && lb.Status.FloatingIP == nil {
			c.t.Errorf("Service %s has no floating IP: %+v", lb.Name, lb.Status)
		}
	}
	for lb, err := range c.sdn.FindLoadBalancers(c.t.Context(), sdn.LoadBalancerQuery{Match: sdn.Match{Owner: c.sdn.Installation()}}) {
		c.must(err)
		if vips[lb.VIPs[0].Addr.String()] != string(lb.ID) {
			c.t.Errorf("the SDN has load balancer %s of %s, which no object tells of: %v", lb.ID, lb.VIPs[0].Addr, vips)
		}
		delete(vips, lb.VIPs[0].Addr.String())
	}
	if len(vips) > 0 {
		c.t.Errorf("told of, and not in the SDN: %v", vips)
	}
	for f, err := range c.sdn.FindFloatingIPs(c.t.Context(), sdn.FloatingIPQuery{Match: sdn.Match{Kind: v1.KeyKindFloatingIP}}) {
		c.must(err)
		if !told[f.Address.String()] {
			c.t.Errorf("the SDN has floating IP %s (%s), which no object tells of", f.Address, f.Key)
		}
	}
}

// A Service's life: its VIP, its endpoints, and its end.
func TestFromTheServiceToTheLoadBalancer(t *testing.T) {
	t.Parallel()
	c := newServing(t, nil)
	c.settle()
	web := c.service("web", nil, "10.96.0.1")
	c.settle()
	c.wantBalancers("10.96.0.1: 6:80>")
	c.slice("web-1", "web", 8080, "10.128.0.5", "10.128.0.6")
	c.slice("web-2", "web", 9090, "10.128.0.6", "192.0.2.1") // another target port, and the host's network
	c.settle()
	c.wantBalancers("10.96.0.1: 6:80>10.128.0.5:8080,10.128.0.6:8080,10.128.0.6:9090,192.0.2.1:9090")
	c.now = c.now.Add(countsPause)
	c.settle()
	if lb := c.klb("web"); lb.Status.Members != 3 || len(lb.Finalizers) != 1 || len(c.serviceNow("web").Finalizers) != 0 {
		t.Errorf("status %+v", lb.Status)
	}
	c.wholeServices()

	torn := c.klb("web")
	torn.Finalizers = nil
	c.must(c.api.Update(t.Context(), torn))
	c.settle()
	if lb := c.klb("web"); len(lb.Finalizers) != 1 {
		t.Error("the finalizer was torn away, and is not back: its end would leave load balancers in the SDN")
	}

	asked := c.faults.asked["ApplyLoadBalancer"]
	c.slice("web-1", "web", 8080, "10.128.0.6", "10.128.0.5") // the same in another order
	c.change("web", func(s *corev1.Service) { s.Labels = map[string]string{"seen": "yes"} })
	c.settle()
	if now := c.faults.asked["ApplyLoadBalancer"]; now != asked {
		t.Errorf("the SDN was asked %d times for what it has", now-asked)
	}
	c.slice("web-1", "web", 8080)
	c.change("web", func(s *corev1.Service) { s.Spec.Ports[0].Port = 81 })
	c.settle()
	c.wantBalancers("10.96.0.1: 6:81>10.128.0.6:9090,192.0.2.1:9090")

	c.remove(web)
	c.settle()
	c.wantBalancers()
	if c.klb("web") != nil {
		t.Error("the KuryrLoadBalancer is there")
	}
}

// A Service of type LoadBalancer has a floating IP and says so; with the type it goes.
func TestFloatingIPsOfServices(t *testing.T) {
	t.Parallel()
	c := newServing(t, nil)
	c.service("web", exposedService, "10.96.0.10")
	c.settle()
	address := c.ingress("web")
	if c.floats()[address] != "10.96.0.10" {
		t.Fatalf("ingress %q, floating IPs %v", address, c.floats())
	}
	c.wholeServices()
	c.change("web", func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeNodePort })
	c.settle()
	if c.ingress("web") != "" || len(c.floats()) != 0 {
		t.Errorf("afterwards: %q, %v", c.ingress("web"), c.floats())
	}
	c.change("web", exposedService)
	c.settle()
	c.wholeServices()
	c.change("web", func(s *corev1.Service) { s.Annotations = map[string]string{annotationInternal: "true"} })
	c.settle()
	if c.ingress("web") != "10.96.0.10" || len(c.floats()) != 0 {
		t.Errorf("internal: %q, %v", c.ingress("web"), c.floats())
	}
	c.change("web", func(s *corev1.Service) {
		s.Annotations = map[string]string{balancerPrefix + "hostname": "web.example.org", balancerPrefix + "keep-floatingip": "true"}
	})
	c.settle()
	kept := c.klb("web").Status.FloatingIP.Address
	if c.ingress("web") != "web.example.org" {
		t.Errorf("hostname: %q", c.ingress("web"))
	}
	c.remove(c.serviceNow("web"))
	c.settle()
	if to, there := c.floats()[kept]; !there || to != "" {
		t.Errorf("a floating IP that is to be kept: %v", c.floats())
	}
	c.service("again", func(s *corev1.Service) { exposedService(s); s.Spec.LoadBalancerIP = kept }, "10.96.0.11")
	c.settle()
	if c.ingress("again") != kept || c.klb("again").Status.FloatingIP.Owner != v1.FloatingIPOfUser {
		t.Errorf("what was kept, asked for: %q, %+v", c.ingress("again"), c.klb("again").Status)
	}
}

// Whether a floating IP stays is as the Service says at its end, and a load balancer that is taken away takes the address out of the status.
func TestFloatingIPIsNotKeptAnyMore(t *testing.T) {
	t.Parallel()
	c := newServing(t, nil)
	keep := func(value string) func(*corev1.Service) {
		return func(s *corev1.Service) {
			exposedService(s)
			s.Annotations = map[string]string{balancerPrefix + "keep-floatingip": value}
		}
	}
	c.service("web", keep("true"), "10.96.0.10")
	c.settle()
	c.change("web", keep("false"))
	c.settle()
	c.change("web", func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeClusterIP })
	c.settle()
	if len(c.floats()) != 0 {
		t.Errorf("the floating IPs %v", c.floats())
	}
	c.change("web", keep("false"))
	c.settle()
	c.faults.away = true
	c.must(c.api.Delete(t.Context(), c.klb("web")))
	for range 3 {
		c.round()
	}
	if got := c.ingress("web"); got != "" || c.klb("web") == nil {
		t.Errorf("while its load balancer goes the Service is reached at %q", got)
	}
	c.faults.away = false
	c.now = c.now.Add(time.Minute)
	c.settle()
	c.wholeServices()
}

// Who would have to be understood by the load balancer first does not go to endpoints straight: nodes leave the address to it.
func TestIPModeOfServices(t *testing.T) {
	t.Parallel()
	lb := &v1.KuryrLoadBalancer{Status: v1.KuryrLoadBalancerStatus{FloatingIP: &v1.LoadBalancerFloatingIPStatus{ID: "f", Address: "192.0.2.7"}}}
	for want, all := range map[corev1.LoadBalancerIPMode][]v1.LoadBalancerOptions{
		corev1.LoadBalancerIPModeVIP:   {{}, {ConnectionLimit: 7}},
		corev1.LoadBalancerIPModeProxy: {{ProxyProtocol: 1}, {ProxyProtocol: 2}, {ForwardedFor: true}, {Certificate: "c"}},
	} {
		for _, options := range all {
			lb.Spec.Options = options
			if got := ingressOf(aService(exposedService), lb).Ingress; len(got) != 1 || got[0].IP != "192.0.2.7" || *got[0].IPMode != want {
				t.Errorf("%+v: %+v, want %s", options, got, want)
			}
		}
	}
}

// An address that is the user's is led to the VIP and let go; one that leads elsewhere or is outside is refused, and all else of the Service works.
func TestRequestedAddresses(t *testing.T) {
	t.Parallel()
	c := newServing(t, nil)
	c.settle()
	float := func(port sdn.ID) string {
		f, err := c.sdn.EnsureFloatingIP(t.Context(), sdn.FloatingIPSpec{Network: c.raven.ground.public, Target: sdn.Target{Port: port}})
		c.must(err)
		return f.Address.String()
	}
	users, c2 := float(""), 0
	c.service("web", func(s *corev1.Service) { exposedService(s); s.Spec.LoadBalancerIP = users }, "10.96.0.10")
	c.settle()
	c.wholeServices()
	if f := c.klb("web").Status.FloatingIP; f.Owner != v1.FloatingIPOfUser || c.floats()[users] != "10.96.0.10" {
		t.Errorf("the user's: %+v, %v", f, c.floats())
	}
	taken := float(sdn.ID(c.klb("web").Status.LoadBalancers[0].Port)[:0])
	other, err := c.sdn.EnsurePorts(t.Context(), []sdn.PortSpec{{Network: sdn.ID(c.network("default").Status.Network)}})
	c.must(err)
	id := sdn.ID("")
	for f, err := range c.sdn.FindFloatingIPs(t.Context(), sdn.FloatingIPQuery{}) {
		c.must(err)
		if f.Address.String() == taken {
			id = f.ID
		}
	}
	_, err = c.sdn.UpdateFloatingIP(t.Context(), id, sdn.FloatingIPPatch{Target: &sdn.Target{Port: other[0].ID}})
	c.must(err)
	for name, address := range map[string]string{"taken": taken, "outside": "203.0.113.7", "six": "fd00::7", "word": "x"} {
		c2++
		c.service(name, func(s *corev1.Service) { exposedService(s); s.Spec.LoadBalancerIP = address }, fmt.Sprintf("10.96.1.%d", c2))
		c.slice(name, name, 80, "10.128.0.5")
	}
	for range 5 {
		c.round()
		c.now = c.now.Add(time.Second)
	}
	for _, name := range []string{"taken", "outside", "six"} {
		lb := c.klb(name)
		ready, programmed := isReady(lb.Status.Conditions), metaTrue(lb, v1.ConditionProgrammed)
		if ready || !programmed || metaTrue(lb, v1.ConditionFloatingIP) || c.ingress(name) != "" || !c.events.has(name, eventFailed, "LoadBalancer") {
			t.Errorf("%s: %+v, ingress %q", name, lb.Status, c.ingress(name))
		}
	}
	if lb := c.klb("word"); lb.Spec.FloatingIP != nil || !isReady(lb.Status.Conditions) || !c.events.has("word", eventUnserved, `"x" is no address`) {
		t.Errorf("what is no address, and which no KuryrLoadBalancer could have: %+v", lb)
	}
	if got := c.balancers(); len(got) < 4 || !strings.HasSuffix(got[1], "10.128.0.5:80") {
		t.Errorf("the rest of the Services: %q", got)
	}
	c.change("web", func(s *corev1.Service) { s.Spec.LoadBalancerIP = "" })
	for range 5 {
		c.round()
		c.now = c.now.Add(time.Second)
	}
	if to, there := c.floats()[users]; !there || to != "" || c.ingress("web") == users || c.ingress("web") == "" {
		t.Errorf("the user's, not asked for any more: %v, ingress %q", c.floats(), c.ingress("web"))
	}
}

func metaTrue(lb *v1.KuryrLoadBalancer, kind string) bool {
	return slices.ContainsFunc(lb.Status.Conditions, func(c metav1.Condition) bool { return c.Type == kind && c.Status == metav1.ConditionTrue })
}

func (c *cluster) network(namespace string) *v1.KuryrNetwork {
	c.t.Helper()
	n, err := c.raven.networkOf(c.t.Context(), namespace)
	c.must(err)
	return n
}

// Of two Services that ask for one address the older has it; when it goes, the other.
func TestTwoServicesAskForOneAddress(t *testing.T) {
	t.Parallel()
	c := newServing(t, nil)
	c.settle()
	wants := func(s *corev1.Service) { exposedService(s); s.Spec.LoadBalancerIP = "100.64.0.77" }
	for f, err := range c.sdn.FindSubnets(t.Context(), sdn.SubnetQuery{Networks: []sdn.ID{c.raven.ground.public}}) {
		c.must(err)
		if f.CIDR.Addr().Is4() {
			a := f.CIDR.Addr().Next().Next().Next()
			wants = func(s *corev1.Service) { exposedService(s); s.Spec.LoadBalancerIP = a.String() }
		}
	}
	older := c.service("older", wants, "10.96.0.10")
	c.now = c.now.Add(time.Second)
	c.service("younger", wants, "10.96.0.11")
	c.round()
	c.now = c.now.Add(time.Second)
	c.round()
	if c.ingress("older") == "" || c.ingress("younger") != "" || !c.events.has("younger", "default/older") {
		t.Errorf("older %q, younger %q: %q", c.ingress("older"), c.ingress("younger"), c.events.all)
	}
	if lb := c.klb("younger"); metaTrue(lb, v1.ConditionFloatingIP) || !metaTrue(lb, v1.ConditionProgrammed) || lb.Status.Conditions[1].Reason != v1.ReasonTaken {
		t.Errorf("younger: %+v", lb.Status)
	}
	c.remove(older)
	c.settle()
	c.wholeServices()
	if c.ingress("younger") == "" {
		t.Error("the younger has no address")
	}
}

// An address that the SDN has chosen for a Service is not another's for the asking while it leads nowhere, as when the load balancer behind it is made anew.
func TestAddressOfAnotherService(t *testing.T) {
	t.Parallel()
	c := newServing(t, nil)
	c.service("web", exposedService, "10.96.0.10")
	c.settle()
	address := c.ingress("web")
	_, err := c.sdn.UpdateFloatingIP(t.Context(), sdn.ID(c.klb("web").Status.FloatingIP.ID), sdn.FloatingIPPatch{Target: &sdn.Target{}})
	c.must(err)
	c.service("thief", func(s *corev1.Service) { exposedService(s); s.Spec.LoadBalancerIP = address }, "10.96.0.11")
	for range 3 {
		c.round()
		c.now = c.now.Add(time.Second)
	}
	if lb := c.klb("thief"); c.ingress("thief") != "" || c.floats()[address] != "" || !c.events.has("thief", "another Service's") {
		t.Errorf("reached at %q, the SDN has %v: %+v", c.ingress("thief"), c.floats(), lb.Status)
	}
	c.remove(c.serviceNow("web"))
	c.settle()
	c.wholeServices()
}

// A Service made again under its name at once has a load balancer of its own, and so has one with another ClusterIP under the same UID.
func TestServiceMadeAgain(t *testing.T) {
	t.Parallel()
	c := newServing(t, nil)
	web := c.service("web", exposedService, "10.96.0.10")
	c.slice("web", "web", 80, "10.128.0.5")
	c.settle()
	before := c.klb("web").UID
	c.remove(web)
	c.service("web", exposedService, "10.96.0.10")
	c.settle()
	c.wholeServices()
	c.wantBalancers("10.96.0.10: 6:80>10.128.0.5:80")
	if c.klb("web").UID == before {
		t.Error("the KuryrLoadBalancer is the old one")
	}
	c.change("web", func(s *corev1.Service) {
		s.Spec.Type, s.Spec.ClusterIP, s.Spec.ClusterIPs = corev1.ServiceTypeExternalName, "", nil
	})
	c.change("web", func(s *corev1.Service) {
		exposedService(s)
		s.Spec.ClusterIP, s.Spec.ClusterIPs = "10.96.0.20", []string{"10.96.0.20"}
	})
	c.settle()
	c.wholeServices()
	c.wantBalancers("10.96.0.20: 6:80>10.128.0.5:80")
}

// An endpoint made by hand that is the Service's own ClusterIP is none, and the others answer.
func TestServiceThatIsItsOwnEndpoint(t *testing.T) {
	t.Parallel()
	c := newServing(t, nil)
	c.service("web", nil, "10.96.0.10")
	c.slice("web-1", "web", 80, "10.96.0.10", "10.128.0.5", "10.96.0.11")
	c.settle()
	c.wholeServices()
	c.wantBalancers("10.96.0.10: 6:80>10.128.0.5:80,10.96.0.11:80")
	if !c.events.has("web "+eventUnserved, "a VIP of the Service itself") {
		t.Errorf("Events %q", c.events.all)
	}
}

// Families come and go, each with its endpoints; what the other has goes on.
func TestFamiliesOfServices(t *testing.T) {
	t.Parallel()
	c := newServing(t, func(c *Config) {
		c.ServiceRanges = append(c.ServiceRanges, netip.MustParsePrefix("fd00:96::/112"))
	})
	c.service("web", exposedService, "10.96.0.10")
	c.slice("web-4", "web", 80, "10.128.0.5")
	c.slice("web-6", "web", 80, "fd00:1::5")
	c.settle()
	c.wantBalancers("10.96.0.10: 6:80>10.128.0.5:80")
	was := c.klb("web").Status.LoadBalancers[0].ID
	c.change("web", func(s *corev1.Service) { s.Spec.ClusterIPs = append(s.Spec.ClusterIPs, "fd00:96::a") })
	c.settle()
	c.wholeServices()
	c.wantBalancers("10.96.0.10: 6:80>10.128.0.5:80", "fd00:96::a: 6:80>[fd00:1::5]:80")
	if c.klb("web").Status.LoadBalancers[0].ID != was {
		t.Error("the first family's load balancer is another")
	}
	c.change("web", func(s *corev1.Service) { s.Spec.ClusterIPs = s.Spec.ClusterIPs[:1] })
	c.settle()
	c.wholeServices()
	c.wantBalancers("10.96.0.10: 6:80>10.128.0.5:80")
}

// A range of ClusterIPs that comes later gets its subnet with the first Service of it.
func TestServiceRangeComesLater(t *testing.T) {
	t.Parallel()
	c := newServing(t, nil)
	c.cidrs("kubernetes", "10.96.0.0/16")
	c.start()
	c.service("web", nil, "10.97.0.10")
	c.settle()
	if lb := c.klb("web"); isReady(lb.Status.Conditions) || lb.Status.Conditions[0].Reason != v1.ReasonPending {
		t.Fatalf("a ClusterIP of no range: %+v", lb.Status)
	}
	c.cidrs("more", "10.100.0.0/24", "10.97.0.0/24")
	c.service("far", nil, "10.100.0.10")
	c.settle()
	c.wholeServices()
	c.wantBalancers("10.100.0.10: 6:80>", "10.97.0.10: 6:80>")
	for s, err := range c.sdn.FindSubnets(t.Context(), sdn.SubnetQuery{}) {
		c.must(err)
		for _, p := range prefixesOf("10.96.0.0/16", "10.100.0.0/24", "10.97.0.0/24") {
			if s.CIDR.Overlaps(p) && s.Key.Kind == v1.KeyKindSubnet && overlap(s.Ranges, []netip.Prefix{p}) {
				t.Errorf("subnet %s gives away %v, of %s", s.CIDR, s.Ranges, p)
			}
		}
	}
}

// Who has ours no more: by label, by type, by the class, by the setting.
func TestServicesOfOthers(t *testing.T) {
	t.Parallel()
	c := newServing(t, nil)
	other := "example.org/theirs"
	for i, change := range []func(*corev1.Service){
		func(s *corev1.Service) { s.Labels = map[string]string{labelProxyName: "x"} },
		func(s *corev1.Service) { s.Labels = map[string]string{corev1.IsHeadlessService: ""} },
		func(s *corev1.Service) {
			s.Spec.ClusterIP, s.Spec.ClusterIPs = corev1.ClusterIPNone, []string{corev1.ClusterIPNone}
		},
		func(s *corev1.Service) {
			s.Spec.Type, s.Spec.ClusterIP, s.Spec.ClusterIPs = corev1.ServiceTypeExternalName, "", nil
		},
		func(s *corev1.Service) { exposedService(s); s.Spec.LoadBalancerClass = &other },
	} {
		c.service(fmt.Sprint("s", i), change, fmt.Sprintf("10.96.0.%d", 10+i))
	}
	c.service("web", exposedService, "10.96.0.20")
	c.settle()
	c.wantBalancers("10.96.0.14: 6:80>", "10.96.0.20: 6:80>")
	if len(c.floats()) != 1 || c.ingress("s4") != "" {
		t.Errorf("floating IPs %v", c.floats())
	}
	c.cfg.Services = false // back to kube-proxy
	c.start()
	c.settle()
	c.wantBalancers()
	if len(c.floats()) != 0 || c.ingress("web") != "" || c.klb("web") != nil {
		t.Errorf("left: %v, ingress %q", c.floats(), c.ingress("web"))
	}
}

// What was deleted in the SDN is made anew: at the start, and by the audit.
func TestLoadBalancerDeletedBehindRavensBack(t *testing.T) {
	t.Parallel()
	c := newServing(t, func(c *Config) { c.Audit = time.Hour })
	c.service("web", exposedService, "10.96.0.10")
	c.slice("web", "web", 80, "10.128.0.5")
	c.settle()
	for _, again := range []func(){c.start, func() { c.now = c.now.Add(time.Hour) }} {
		for lb, err := range c.sdn.FindLoadBalancers(t.Context(), sdn.LoadBalancerQuery{}) {
			c.must(err)
			c.must(c.sdn.DeleteLoadBalancer(t.Context(), lb.ID))
		}
		c.settle()
		c.wantBalancers()
		again()
		c.settle()
		c.wantBalancers("10.96.0.10: 6:80>10.128.0.5:80")
		c.wholeServices()
	}
}

// One that the SDN refuses, or is at work on for minutes, holds up no other.
func TestEachServiceByItself(t *testing.T) {
	t.Parallel()
	c := newServing(t, nil)
	c.settle()
	c.cfg.Provider = nil
	stuck := map[string]error{"10.96.0.10": sdn.Exhausted(sdn.NoQuota, "load balancer", "the project's quota is used up"), "10.96.0.11": nil}
	c.sdn = stuckLBs{c.sdn, stuck}
	c.start()
	for i, name := range []string{"full", "slow", "fine"} {
		c.service(name, nil, fmt.Sprintf("10.96.0.%d", 10+i))
	}
	for range 100 {
		c.round()
		c.now = c.now.Add(time.Second)
	}
	c.wantBalancers("10.96.0.12: 6:80>")
	for name, reason := range map[string]string{"full": v1.ReasonExhausted, "slow": v1.ReasonPending} {
		if lb := c.klb(name); isReady(lb.Status.Conditions) || lb.Status.Conditions[0].Reason != reason {
			t.Errorf("%s: %+v", name, lb.Status)
		}
	}
	if n := c.faults.asked["ApplyLoadBalancer"]; n > 60 {
		t.Errorf("the SDN was asked %d times in 100 seconds", n)
	}
	clear(stuck)
	c.now = c.now.Add(lastRetry)
	c.settle()
	c.wholeServices()
}

// nearby has load balancers that reach pods alone, as those of OVN do.
type nearby struct{ sdn.Provider }

func (p nearby) Capabilities() sdn.Capabilities {
	can := p.Provider.Capabilities()
	can.LoadBalancer.AnyMember = false
	return can
}

// What an SDN's load balancers do not reach is told once, however often endpoints change, in both families.
func TestEndpointsOutOfReachAreToldOnce(t *testing.T) {
	t.Parallel()
	c := newServing(t, func(cfg *Config) { cfg.ServiceRanges = prefixesOf("10.96.0.0/16", "fd00:96::/112") })
	c.sdn = nearby{c.sdn}
	c.start()
	c.service("web", nil, "10.96.0.10", "fd00:96::10")
	c.slice("web-6", "web", 80, "2001:db8::1")
	for i := range 5 {
		c.slice("web-4", "web", 80, "192.0.2.1", fmt.Sprintf("192.0.2.%d", 2+i))
		c.settle()
	}
	told := 0
	for _, e := range c.events.all {
		if strings.Contains(e, "not all endpoints are served") {
			told++
		}
	}
	if told != 1 {
		t.Errorf("told %d times: %q", told, c.events.all)
	}
	c.wantBalancers("10.96.0.10: 6:80>", "fd00:96::10: 6:80>")
}

// serviceKills are scenarios during which Raven is killed at every one of its writes.
var serviceKills = map[string]func(c *cluster){
	"a Service":              func(c *cluster) { c.service("new", nil, "10.96.0.11"); c.slice("new", "new", 80, "10.128.0.5") },
	"one with a floating IP": func(c *cluster) { c.service("new", exposedService, "10.96.0.11") },
	"a Service goes":         func(c *cluster) { c.remove(c.serviceNow("old")) },
	"one goes and comes": func(c *cluster) {
		c.remove(c.serviceNow("old"))
		c.service("old", exposedService, "10.96.0.10")
	},
	"the type changes": func(c *cluster) {
		c.change("old", func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeClusterIP })
	},
	"the ClusterIP changes": func(c *cluster) {
		c.change("old", func(s *corev1.Service) { s.Spec.ClusterIP, s.Spec.ClusterIPs = "10.96.0.20", []string{"10.96.0.20"} })
	},
}

func TestKilledAtEveryWriteOfServices(t *testing.T) {
	t.Parallel()
	for name, act := range serviceKills {
		for _, lost := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, lost %v", name, lost), func(t *testing.T) {
				t.Parallel()
				for at := 1; ; at++ {
					c := newServing(t, nil)
					c.service("old", exposedService, "10.96.0.10")
					c.slice("old", "old", 80, "10.128.0.5")
					c.settle()
					act(c)
					c.faults.writes, c.faults.kill, c.faults.lost = 0, at, lost
					c.settle()
					killed := c.faults.dead
					c.start()
					c.settle()
					c.wholeServices()
					if t.Failed() {
						t.Fatalf("killed at write %d", at)
					}
					if !killed {
						if at < 3 {
							t.Fatalf("only %d writes", at)
						}
						return
					}
				}
			})
		}
	}
}

// Whatever befalls a request, all is right in the end.
func TestTroubleAtEveryRequestOfServices(t *testing.T) {
	t.Parallel()
	for scenario, act := range serviceKills {
		for name, of := range troubles {
			t.Run(scenario+", "+name, func(t *testing.T) {
				t.Parallel()
				for at := 0; ; {
					c := newServing(t, nil)
					c.service("old", exposedService, "10.96.0.10")
					c.settle()
					if at += 3; at == 3 {
						at = 1 + c.rand.IntN(3)
					}
					c.faults.trouble = of
					c.faults.trouble.from = at
					act(c)
					c.settle()
					c.wholeServices()
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

// A change of one Service of many costs no more than one of few.
func TestOneServiceOfMany(t *testing.T) {
	t.Parallel()
	c := newServing(t, nil)
	for i := range 60 {
		c.service(fmt.Sprint("s", i), exposedService, fmt.Sprintf("10.96.1.%d", i+1))
		c.slice(fmt.Sprint("s", i), fmt.Sprint("s", i), 80, "10.128.0.5")
	}
	c.settle()
	c.faults.asked, c.faults.calls = nil, nil
	c.slice("s7", "s7", 80, "10.128.0.5", "10.128.0.6")
	c.settle()
	total := 0
	for _, n := range c.faults.asked {
		total += n
	}
	if total != 1 || c.faults.asked["ApplyLoadBalancer"] != 1 {
		t.Errorf("one endpoint more asked the SDN for %v", c.faults.asked)
	}
	c.faults.asked, c.faults.calls = nil, nil
	c.service("one", nil, "10.96.2.1")
	c.settle()
	if n := c.faults.asked["ApplyLoadBalancer"]; n != 1 || len(c.faults.asked) != 1 {
		t.Errorf("one Service more asked the SDN for %v", c.faults.asked)
	}
	for what, n := range c.faults.calls {
		if n > 2 {
			t.Errorf("one Service more asked the API server %d times to %s", n, what)
		}
	}
}

// A cluster that had Raven before it served Services gets a VIP network that is large enough, wherever Raven is killed; and switched off it keeps that.
func TestVIPNetworkIsMadeLarger(t *testing.T) {
	t.Parallel()
	for at := 0; ; at++ {
		c := newCluster(t, nil)
		cidrs := func() (all []string) {
			for s, err := range c.sdn.FindSubnets(t.Context(), sdn.SubnetQuery{}) {
				c.must(err)
				if s.CIDR.Overlaps(netip.MustParsePrefix("10.96.0.0/12")) {
					all = append(all, fmt.Sprint(s.CIDR, " ", s.Gateway))
				}
			}
			return all
		}
		if got := cidrs(); !slices.Equal(got, []string{"10.96.0.0/12 10.111.255.254"}) {
			t.Fatalf("without Services %q", got)
		}
		c.cfg.Services = true
		c.faults.writes, c.faults.kill, c.faults.lost = 0, at, at%2 == 0
		_ = c.begin()
		killed := c.faults.dead
		c.start()
		if got := cidrs(); !slices.Equal(got, []string{"10.96.0.0/11 10.127.255.254"}) {
			t.Fatalf("killed at write %d: %q", at, got)
		}
		for r, err := range c.sdn.FindRouters(t.Context(), sdn.RouterQuery{}) {
			c.must(err)
			if len(r.Interfaces) != 1 {
				t.Errorf("killed at write %d: the router has legs %+v", at, r.Interfaces)
			}
		}
		c.cfg.Services = false
		c.start()
		if got := cidrs(); !slices.Equal(got, []string{"10.96.0.0/11 10.127.255.254"}) {
			t.Fatalf("switched off %q", got)
		}
		if at > 0 && !killed {
			if at < 4 {
				t.Fatalf("only %d writes", at)
			}
			return
		}
	}
}
