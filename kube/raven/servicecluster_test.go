package raven

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/raven/core"
	"github.com/kuryr/kuryr/sdn"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
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
	c.must(c.api.Get(c.t.Context(), core.Request("default", name).NamespacedName, &s))
	return &s
}

// slice makes or changes an EndpointSlice with ready endpoints for the unnamed port; with "~" they terminate and serve.
func (c *cluster) slice(name, service string, port int32, addresses ...string) {
	c.t.Helper()
	tcp := corev1.ProtocolTCP
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: &port, Protocol: &tcp}},
	}
	for _, a := range addresses {
		a, ends := strings.CutPrefix(a, "~")
		if strings.Contains(a, ":") {
			s.AddressType = discoveryv1.AddressTypeIPv6
		}
		ready := !ends
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}, Conditions: discoveryv1.EndpointConditions{Ready: &ready, Terminating: &ends}})
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
	if err := c.api.Get(c.t.Context(), core.Request("default", name).NamespacedName, &lb); err != nil {
		return nil
	}
	return &lb
}

// balancers are the SDN's load balancers, as "10.96.0.10: 6:80>10.128.0.5:8080,…", in order; with "~" a member drains.
func (c *cluster) balancers() (all []string) {
	c.t.Helper()
	for lb, err := range c.sdn.FindLoadBalancers(c.t.Context(), sdn.LoadBalancerQuery{Match: sdn.Match{Owner: c.sdn.Installation()}}) {
		c.must(err)
		var ports []string
		for _, l := range lb.Listeners {
			var members []string
			for _, m := range l.Pool.Members {
				members = append(members, map[bool]string{true: "~"}[m.Drain]+m.Addr.String())
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

// wholeServices checks that each KuryrLoadBalancer is a Service's, ready, or kept for those that share it, and that all floating IPs of Raven's are told of.
func (c *cluster) wholeServices() {
	c.t.Helper()
	var lbs v1.KuryrLoadBalancerList
	c.list(&lbs)
	vips := map[string]string{}
	told := map[string]bool{}
	shared := map[string]bool{}
	for _, lb := range lbs.Items {
		if !lb.DeletionTimestamp.IsZero() {
			c.wholeOwner(&lb)
			for _, of := range lb.Status.LoadBalancers {
				vips[of.VIP] = of.ID
			}
			if f := lb.Status.FloatingIP; f != nil {
				told[f.Address] = true
			}
			continue
		}
		s := c.serviceNow(lb.Name)
		if s.UID != lb.Spec.ServiceUID || !lb.DeletionTimestamp.IsZero() || !core.IsReady(lb.Status.Conditions) || lb.Status.ObservedGeneration != lb.Generation {
			c.t.Errorf("load balancer %s of Service %s: %+v, deleted %v", lb.Name, s.UID, lb.Status, lb.DeletionTimestamp)
		}
		leads := lb.Spec.VIPs
		if own := ownVIP(&lb, false); lb.Spec.OwnVIPs && own != nil {
			leads = []string{own.VIP}
		} else if lb.Spec.OwnVIPs || own != nil && len(lb.Status.Guests) == 0 {
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
		for _, share := range lb.Status.Shares {
			shared[share.ID], told[share.Address] = true, true
			if share.ID != lb.Spec.SharedID || c.ingress(lb.Name) != share.Address {
				c.t.Errorf("Service %s says %q, and shares %+v", lb.Name, c.ingress(lb.Name), share)
			}
		}
		if s.Spec.Type == corev1.ServiceTypeLoadBalancer && lb.Status.FloatingIP == nil && lb.Spec.SharedID == "" {
			c.t.Errorf("Service %s has no floating IP: %+v", lb.Name, lb.Status)
		}
	}
	for lb, err := range c.sdn.FindLoadBalancers(c.t.Context(), sdn.LoadBalancerQuery{Match: sdn.Match{Owner: c.sdn.Installation()}}) {
		c.must(err)
		if _, told := vips[lb.VIPs[0].Addr.String()]; !told && shared[string(lb.ID)] { // its owner was removed by force
			continue
		}
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

// wholeOwner checks that a KuryrLoadBalancer whose deletion waits says so, and names who shares it.
func (c *cluster) wholeOwner(lb *v1.KuryrLoadBalancer) {
	c.t.Helper()
	ready := meta.FindStatusCondition(lb.Status.Conditions, v1.ConditionReady)
	if ready == nil || ready.Reason != v1.ReasonInUse || len(lb.Status.Guests) == 0 {
		c.t.Errorf("load balancer %s stays: %+v", lb.Name, lb.Status)
		return
	}
	for _, g := range lb.Status.Guests {
		if !strings.Contains(ready.Message, g.Name) {
			c.t.Errorf("load balancer %s does not name %s: %s", lb.Name, g.Name, ready.Message)
		}
	}
	for _, of := range lb.Status.LoadBalancers {
		if !of.Own {
			c.t.Errorf("load balancer %s still has the ClusterIP %s", lb.Name, of.VIP)
		}
	}
}

func metaTrue(lb *v1.KuryrLoadBalancer, kind string) bool {
	return slices.ContainsFunc(lb.Status.Conditions, func(c metav1.Condition) bool { return c.Type == kind && c.Status == metav1.ConditionTrue })
}

func (c *cluster) network(namespace string) *v1.KuryrNetwork {
	c.t.Helper()
	n, err := c.raven.NetworkOf(c.t.Context(), namespace)
	c.must(err)
	return n
}
