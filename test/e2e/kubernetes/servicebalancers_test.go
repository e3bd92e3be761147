//go:build e2e

package kubernetes_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	kuryrv1 "github.com/kuryr/kuryr/kube/api/v1"
)

// nobodyAnswers are talk's words for that, whatever the way.
var nobodyAnswers = []string{"timeout", "refused", "unreachable"}

// inIPv4 leaves a Service that family alone.
func inIPv4(spec *corev1.ServiceSpec) {
	spec.IPFamilyPolicy, spec.IPFamilies = new(corev1.IPFamilyPolicySingleStack), []corev1.IPFamily{corev1.IPv4Protocol}
}

// exposedIPv4 is one of type LoadBalancer besides.
func exposedIPv4(spec *corev1.ServiceSpec) {
	inIPv4(spec)
	spec.Type = corev1.ServiceTypeLoadBalancer
}

// remove deletes a Service.
func (b *balanced) remove(name string) {
	b.Helper()
	b.must(b.Client.CoreV1().Services("default").Delete(b.ctx, name, metav1.DeleteOptions{}))
}

// klb is what Raven knows of a Service.
func (b *balanced) klb(ctx context.Context, name string) (lb kuryrv1.KuryrLoadBalancer, err error) {
	err = b.whole.api.Get(ctx, types.NamespacedName{Namespace: "default", Name: name}, &lb)
	return lb, err
}

// lacks waits until a condition of a Service's load balancer and an Event tell with these words what it has not.
func (b *balanced) lacks(name, condition, reason, words string) {
	b.Helper()
	b.until(func(ctx context.Context) error {
		lb, err := b.klb(ctx, name)
		if err != nil {
			return err
		}
		c := meta.FindStatusCondition(lb.Status.Conditions, condition)
		if c == nil || c.Status != metav1.ConditionFalse || c.Reason != reason || !strings.Contains(c.Message, words) {
			return fmt.Errorf("%s of %s is %+v, want %s and %q", condition, name, c, reason, words)
		}
		return nil
	})
	b.warned(name, words)
}

// floatingIP waits until the SDN's floating IP of an address leads somewhere, or nowhere, and gives its id.
func (b *balanced) floatingIP(address string, leads bool) (id string) {
	b.Helper()
	b.until(func(ctx context.Context) error {
		all, err := b.floatingIPs(ctx, address)
		if err == nil && (len(all) != 1 || (all[0].Port != "") != leads) {
			err = fmt.Errorf("the floating IPs of %s are %+v, want one that leads somewhere: %v", address, all, leads)
		}
		if err == nil {
			id = all[0].ID
		}
		return err
	})
	return id
}

type floatingIP struct {
	ID   string
	Port string `json:"port_id"`
}

func (b *balanced) floatingIPs(ctx context.Context, address string) ([]floatingIP, error) {
	var there struct{ FloatingIPs []floatingIP }
	err := b.whole.node.sdn(ctx, http.MethodGet, "floatingips?floating_ip_address="+address, nil, &there)
	return there.FloatingIPs, err
}

// exposedAt waits until a Service's status has one address, and gives that with port 80,
// when another host has a way there.
func (b *balanced) exposedAt(name string) (address netip.Addr, to string) {
	b.Helper()
	b.ingress(name, func(all []corev1.LoadBalancerIngress) (is bool) {
		if len(all) == 1 {
			a, err := netip.ParseAddr(all[0].IP)
			address, is = a, err == nil
		}
		return is
	})
	b.routed(netip.PrefixFrom(address, address.BitLen()).String())
	return address, netip.AddrPortFrom(address, 80).String()
}

// A Service that names Kuryr's class has what one without a class has.
func (b *balanced) ownClass() {
	b.service("of-class", func(spec *corev1.ServiceSpec) {
		exposedIPv4(spec)
		spec.LoadBalancerClass = new(kuryrv1.LoadBalancerClass)
	})
	_, to := b.exposedAt("of-class")
	b.answers(b.away, "tcp", to, "a", "b")
}

// A Service becomes a load balancer and a ClusterIP again, twice: outside it has an
// address and a NodePort as long as it is one, inside it answers throughout, and of what
// it was there is nothing left.
func (b *balanced) typeTurns() {
	of := b.service("turns", inIPv4)
	inside := at(of, 80)[0]
	b.answers(b.pod, "tcp", inside, "a", "b")
	before := b.rules()
	end := b.watches(b.pod, inside)
	for range 2 {
		now := b.change("turns", func(service *corev1.Service) { service.Spec.Type = corev1.ServiceTypeLoadBalancer })
		address, to := b.exposedAt("turns")
		place := b.places(now.Spec.Ports[0].NodePort)[0]
		for _, to := range []string{to, place} {
			b.answers(b.away, "tcp", to, "a", "b")
		}
		b.floatingIP(address.String(), true)

		b.change("turns", func(service *corev1.Service) { service.Spec.Type = corev1.ServiceTypeClusterIP })
		b.ingress("turns", func(all []corev1.LoadBalancerIngress) bool { return len(all) == 0 })
		b.silence(b.away, "tcp", to, nobodyAnswers...)
		b.silence(b.away, "tcp", place, "refused")
		b.until(func(ctx context.Context) error {
			left, err := b.floatingIPs(ctx, address.String())
			if err == nil && len(left) > 0 {
				err = fmt.Errorf("the floating IP %s is left: %+v", address, left)
			}
			return err
		})
		b.nothingLeft(before)
	}
	if err := end(); err != nil {
		b.Error(err)
	}
}

// A load balancer of both families has one address outside, of its first family; it
// answers there, and in both families at ClusterIPs and NodePorts.
func (b *balanced) bothFamilies() {
	for name, families := range map[string][]corev1.IPFamily{
		"both":          {corev1.IPv4Protocol, corev1.IPv6Protocol},
		"both-reversed": {corev1.IPv6Protocol, corev1.IPv4Protocol},
	} {
		of := b.service(name, func(spec *corev1.ServiceSpec) {
			spec.Type, spec.IPFamilies, spec.IPFamilyPolicy = corev1.ServiceTypeLoadBalancer,
				families, new(corev1.IPFamilyPolicyRequireDualStack)
		})
		address, to := b.exposedAt(name)
		if address.Is6() != (families[0] == corev1.IPv6Protocol) {
			b.Errorf("a Service of %v has the address %s", families, address)
		}
		for _, from := range []speaker{b.away, b.here, b.pod} {
			b.answers(from, "tcp", to, "a", "b")
		}
		for i, to := range at(of, 80) {
			b.answers(b.pod, "tcp", to, "a", "b")
			b.answers(b.away, "tcp", b.places(of.Spec.Ports[0].NodePort)[i], "a", "b")
		}
	}
}

// A Service that keeps its address leaves the floating IP behind, which leads nowhere;
// another one that asks for the address has it, and leaves it too, as it is not its own.
func (b *balanced) keptAddress() {
	b.annotated("keeps", map[string]string{"loadbalancer.openstack.org/keep-floatingip": "true"}, exposedIPv4)
	address, to := b.exposedAt("keeps")
	b.answers(b.away, "tcp", to, "a", "b")
	b.remove("keeps")
	b.floatingIP(address.String(), false)
	b.silence(b.away, "tcp", to, nobodyAnswers...)

	b.balancer("takes", address.String())
	b.answers(b.away, "tcp", to, "a", "b")
	b.remove("takes")
	b.whole.erase("floatingips/" + b.floatingIP(address.String(), false))
}

// The status of a Service that has a name for outside tells that in place of its address,
// where it answers all the same.
func (b *balanced) hostname() {
	const annotation = "loadbalancer.openstack.org/hostname"
	b.annotated("named-outside", map[string]string{annotation: "web.example.org"}, exposedIPv4)
	b.ingress("named-outside", func(all []corev1.LoadBalancerIngress) bool {
		return len(all) == 1 && all[0].Hostname == "web.example.org" && all[0].IP == ""
	})
	lb, err := b.klb(b.ctx, "named-outside")
	if b.must(err); lb.Status.FloatingIP == nil {
		b.Fatalf("it has no floating IP: %+v", lb.Status)
	}
	address := lb.Status.FloatingIP.Address
	b.routed(address + "/32")
	for _, from := range []speaker{b.away, b.pod} {
		b.answers(from, "tcp", net.JoinHostPort(address, "80"), "a", "b")
	}
	b.change("named-outside", func(service *corev1.Service) { delete(service.Annotations, annotation) })
	b.ingress("named-outside", func(all []corev1.LoadBalancerIngress) bool {
		return len(all) == 1 && all[0].IP == address
	})
}

// A Service that names another external network has an address of it.
func (b *balanced) otherNetwork() {
	const theirs = "198.51.100.128/25"
	network, err := b.whole.node.create(b.ctx, "network", map[string]any{"name": "another", "router:external": true})
	b.must(err)
	_, err = b.whole.node.create(b.ctx, "subnet", map[string]any{"network_id": network, "ip_version": 4, "cidr": theirs})
	b.must(err)
	b.annotated("elsewhere", map[string]string{"loadbalancer.openstack.org/floating-network-id": network}, exposedIPv4)
	address, to := b.exposedAt("elsewhere")
	if !netip.MustParsePrefix(theirs).Contains(address) {
		b.Errorf("its address is %s, of another network than %s", address, theirs)
	}
	for _, from := range []speaker{b.away, b.here, b.pod} {
		b.answers(from, "tcp", to, "a", "b")
	}
	b.remove("elsewhere")
	b.until(func(ctx context.Context) error { // a network is not deleted under a floating IP
		left, err := b.floatingIPs(ctx, address.String())
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("the floating IP is left: %+v", left)
		}
		return err
	})
	b.whole.erase("networks/" + network)
}

// A Service that asks for an address outside of the public network, of a family that it
// has not, or for what is no address, is told so and has its ClusterIP; and an address
// when it asks for any.
func (b *balanced) wrongAddresses() {
	const beyond, six, word = "192.0.2.200", "2001:db8::77", "mine"
	of := b.service("wrong", func(spec *corev1.ServiceSpec) {
		exposedIPv4(spec)
		spec.LoadBalancerIP = beyond
	})
	wants := func(address string) {
		b.Helper()
		b.change("wrong", func(service *corev1.Service) { service.Spec.LoadBalancerIP = address })
	}
	b.lacks("wrong", kuryrv1.ConditionFloatingIP, kuryrv1.ReasonInvalid, beyond)
	wants(six)
	b.lacks("wrong", kuryrv1.ConditionFloatingIP, kuryrv1.ReasonInvalid, six)
	wants(word)
	b.warned("wrong", word)
	b.ingress("wrong", func(all []corev1.LoadBalancerIngress) bool { return len(all) == 0 })
	b.answers(b.pod, "tcp", at(of, 80)[0], "a", "b")
	wants("")
	_, to := b.exposedAt("wrong")
	b.answers(b.away, "tcp", to, "a", "b")
}
