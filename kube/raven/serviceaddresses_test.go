package raven

import (
	"fmt"
	"strings"
	"testing"
	"time"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/raven/core"
	"github.com/kuryr/kuryr/sdn"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

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
	lb := &v1.KuryrLoadBalancer{Status: v1.KuryrLoadBalancerStatus{
		FloatingIP: &v1.LoadBalancerFloatingIPStatus{ID: "f", Address: "192.0.2.7"}, Conditions: []metav1.Condition{{Type: v1.ConditionFloatingIP}},
	}}
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
		f, err := c.sdn.EnsureFloatingIP(t.Context(), sdn.FloatingIPSpec{Network: c.raven.ground.Public, Target: sdn.Target{Port: port}})
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
		ready, programmed := core.IsReady(lb.Status.Conditions), metaTrue(lb, v1.ConditionProgrammed)
		if ready || !programmed || metaTrue(lb, v1.ConditionFloatingIP) || c.ingress(name) != "" || !c.events.has(name, core.EventFailed, "LoadBalancer") {
			t.Errorf("%s: %+v, ingress %q", name, lb.Status, c.ingress(name))
		}
	}
	if lb := c.klb("word"); lb.Spec.FloatingIP != nil || !core.IsReady(lb.Status.Conditions) || !c.events.has("word", core.EventUnserved, `"x" is no address`) {
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

// Of two Services that ask for one address the older has it; when it goes, the other.
func TestTwoServicesAskForOneAddress(t *testing.T) {
	t.Parallel()
	c := newServing(t, nil)
	c.settle()
	wants := func(s *corev1.Service) { exposedService(s); s.Spec.LoadBalancerIP = "100.64.0.77" }
	for f, err := range c.sdn.FindSubnets(t.Context(), sdn.SubnetQuery{Networks: []sdn.ID{c.raven.ground.Public}}) {
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

// An address that is of what a Service said before, as where it was internal since, is not said anew until it is known to be of what it says now; what it says already stays.
func TestAddressOfBefore(t *testing.T) {
	t.Parallel()
	for name, of := range map[string]struct {
		seen  int64 // the generation that the condition is of
		shows []corev1.LoadBalancerIngress
		want  int
	}{
		"of now":                          {2, nil, 1},
		"of before":                       {1, nil, 0},
		"of before, and another is shown": {1, []corev1.LoadBalancerIngress{{IP: "10.96.0.10"}}, 0},
		"of before, and shown":            {1, []corev1.LoadBalancerIngress{{IP: "192.0.2.7"}}, 1},
		"of before, and named":            {1, []corev1.LoadBalancerIngress{{Hostname: "web.example.org"}}, 1},
	} {
		lb := &v1.KuryrLoadBalancer{ObjectMeta: metav1.ObjectMeta{Generation: 2}, Status: v1.KuryrLoadBalancerStatus{
			FloatingIP: &v1.LoadBalancerFloatingIPStatus{ID: "f", Address: "192.0.2.7"}, Conditions: []metav1.Condition{{Type: v1.ConditionFloatingIP, ObservedGeneration: of.seen}},
		}}
		s := aService(exposedService)
		s.Status.LoadBalancer.Ingress = of.shows
		if got := ingressOf(s, lb).Ingress; len(got) != of.want {
			t.Errorf("%s: %+v", name, got)
		}
	}
}
