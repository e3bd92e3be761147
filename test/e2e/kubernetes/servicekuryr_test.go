//go:build e2e

package kubernetes_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	kuryrv1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/test/e2e/kubelab"
)

// The ranges of addresses outside that Services of these tests claim: Kuryr is told that
// they may have those of claimable, of claimable6 too.
const (
	claimable   = "203.0.113.0/25"
	claimed     = "203.0.113.7"
	foreign     = "203.0.113.9" // which another load balancer gives
	unclaimable = "203.0.113.200"
	claimable6  = "2001:db8:113::/65"
	claimed6    = "2001:db8:113::7"
)

// The settings by which Kuryr serves Services.
var (
	ravenRanges = []string{
		"--controller-pod-ranges=" + podRange + "," + podRange6,
		"--controller-service-ranges=" + kubelab.ServiceRange + "," + kubelab.ServiceRange6,
	}
	ravenServices  = append([]string{"--controller-services=true"}, ravenRanges...)
	daemonServices = []string{
		"--node-services=true", "--node-external-ips=" + claimable + "," + claimable6 + "," + upstreamClaimed,
	}
)

// balanced is a cluster without kube-proxy, whose Services are Kuryr's.
type balanced struct {
	*services
	whole *whole
}

// newBalanced creates the pods that several rows ask.
func newBalanced(w *whole) *balanced {
	w.Helper()
	begin := time.Now()
	s := newServices(w.rig)
	w.Logf("the pods are ready after %s", time.Since(begin).Round(10*time.Millisecond))
	return &balanced{s, w}
}

// row is services.row.
func (b *balanced) row(name string, test func(*balanced)) {
	b.services.row(name, func(s *services) {
		w := *b.whole
		w.rig = s.rig
		defer func() { // it may have had them run anew
			b.whole.raven, b.whole.more, b.whole.claim, b.whole.daemonMore = w.raven, w.more, w.claim, w.daemonMore
		}()
		test(&balanced{s, &w})
	})
}

// element is one of a set or map of nftables that begins with an address.
var element = regexp.MustCompile(`^[0-9a-f]+[.:][0-9a-f.:]+ \. `)

// rules are the elements of what balances in the kernel, on the node and where its SDN
// has routers, in an order of its own. What the kernel forgets by itself, as clients with
// an affinity, is not among them.
func (r *rig) rules() []string {
	r.Helper()
	said := r.Nodes[0].Exec(r.ctx, "sh", "-c", `for n in /proc/self/ns/net /run/kuryr/netns/*; do
		nsenter --net=$n nft -s list tables | while read -r _ family name; do case $name in *lb*) nsenter --net=$n nft -s list table $family $name;; esac; done; done`)
	r.must(said.Err())
	var all []string
	for block := range strings.SplitSeq(said.Stdout, "\n\t}") {
		if strings.Contains(block, "timeout") {
			continue
		}
		for part := range strings.SplitSeq(
			strings.NewReplacer("elements = {", "\n", "}", "\n", ",", "\n").Replace(block), "\n",
		) {
			if part = strings.TrimSpace(part); element.MatchString(part) {
				all = append(all, part)
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// Services of a cluster without kube-proxy, by packets: what pods, the node and others
// find where a Service says, as Services and their endpoints change; and what is left
// when they have gone.
func TestServices(t *testing.T) {
	b := newBalanced(shareNode(t))
	b.services.kubernetes()
	b.inside()
	b.outside()
	b.row("ExternalIPs", (*balanced).externalIPs)
	b.row("LoadBalancer", (*balanced).loadBalancer)
	b.row("LoadBalancer6", (*balanced).loadBalancer6)
	b.row("TakenAddress", (*balanced).takenAddress)
	b.row("OtherBalancer", (*balanced).otherBalancer)
	b.row("OwnClass", (*balanced).ownClass)
	b.row("TypeTurns", (*balanced).typeTurns)
	b.row("BothFamilies", (*balanced).bothFamilies)
	b.row("KeptAddress", (*balanced).keptAddress)
	b.row("Hostname", (*balanced).hostname)
	b.row("OtherNetwork", (*balanced).otherNetwork)
	b.row("WrongAddresses", (*balanced).wrongAddresses)
	b.row("VIPsInNamespaces", (*balanced).vipsInNamespaces)
	b.row("ManyEndpoints", (*balanced).manyEndpoints)
	b.row("TableDeleted", (*balanced).tableDeleted)
	b.row("NodePortAddresses", (*balanced).nodePortAddresses)
	b.row("Quota", (*balanced).quota)
	b.row("DeletedInSDN", (*balanced).deletedInSDN)
	b.changing()
}

// The rows of Services that take half a minute or more.
func TestServicesSlow(t *testing.T) {
	b := newBalanced(shareNode(t))
	b.services.row("UDPTerminating", (*services).udpTerminating)
	b.row("Audit", (*balanced).audited)
}

// nothingLeft waits until the kernel has no rules but those that it had before.
func (b *balanced) nothingLeft(before []string) {
	b.Helper()
	b.until(func(context.Context) error {
		var left []string
		for _, line := range b.rules() {
			if _, was := slices.BinarySearch(before, line); !was {
				left = append(left, line)
			}
		}
		if len(left) > 0 {
			return fmt.Errorf("of Services that have gone is left:\n%s", strings.Join(left, "\n"))
		}
		return nil
	})
}

// settled complains of load balancers that are not those of the Services there are.
func (w *whole) settled() error {
	var all kuryrv1.KuryrLoadBalancerList
	var there corev1.ServiceList
	if err := errors.Join(w.api.List(w.ctx, &all), w.api.List(w.ctx, &there)); err != nil {
		return err
	}
	has := map[string]bool{}
	for _, lb := range all.Items {
		has[lb.Namespace+"/"+lb.Name] = true
	}
	for _, s := range there.Items {
		if name := s.Namespace + "/" + s.Name; !has[name] {
			return fmt.Errorf("the Service %s has no load balancer", name)
		}
	}
	if len(all.Items) != len(there.Items) {
		return fmt.Errorf("%d Services have %d load balancers", len(there.Items), len(all.Items))
	}
	return nil
}

// routed has another host send what is for a range to the node.
func (b *balanced) routed(prefix string) {
	b.Helper()
	via := b.node.Address
	if netip.MustParsePrefix(prefix).Addr().Is6() {
		via = b.node.Address6
	}
	b.must(b.Central.Exec(b.ctx, "ip", "route", "replace", prefix, "via", via.String()).Err())
}

// An external address leads to the pods where the administrator allows its range, and
// nowhere else (CVE-2020-8554). Of two Services that claim one the older has it.
func (b *balanced) externalIPs() {
	b.routed("203.0.113.0/24")
	b.routed("2001:db8:113::/64")
	first := b.service("external-ips", func(spec *corev1.ServiceSpec) {
		spec.ExternalIPs = []string{claimed, unclaimable, claimed6}
		spec.Ports = append(spec.Ports, corev1.ServicePort{
			Name: "udp", Protocol: corev1.ProtocolUDP, Port: 80,
			TargetPort: intstr.FromInt32(talkUDP),
		})
	})
	for _, from := range []speaker{b.away, b.here, b.pod} {
		for _, at := range []string{claimed, claimed6} {
			for _, network := range []string{"tcp", "udp"} {
				b.answers(from, network, net.JoinHostPort(at, "80"), "a", "b")
			}
		}
	}
	for _, from := range []speaker{b.away, b.here} {
		if got, err := b.ask(b.ctx, from, 1, "tcp", net.JoinHostPort(unclaimable, "80")); err != nil || got[0].who != "" {
			b.Errorf("%s, at an address that is not to be claimed: %+v, %v", from.name, got, err)
		}
	}

	time.Sleep(time.Until(first.CreationTimestamp.Add(time.Second))) // ages are in seconds
	b.service("claims-too", func(spec *corev1.ServiceSpec) {
		spec.ExternalIPs, spec.Selector = []string{claimed}, map[string]string{"app": "asks"}
		spec.Ports = append(spec.Ports, corev1.ServicePort{Name: "more", Port: 81, TargetPort: intstr.FromInt32(talkTCP)})
	})
	b.answers(b.away, "tcp", net.JoinHostPort(claimed, "81"), "asks") // which nobody else claims
	b.answers(b.away, "tcp", net.JoinHostPort(claimed, "80"), "a", "b")
	b.must(b.Client.CoreV1().Services("default").Delete(b.ctx, "external-ips", metav1.DeleteOptions{}))
	b.answers(b.away, "tcp", net.JoinHostPort(claimed, "80"), "asks")
	b.silence(b.away, "udp", net.JoinHostPort(claimed, "80"), "timeout", "refused", "unreachable")
}

// ingress waits for what the Service's status says of how it is reached.
func (b *balanced) ingress(
	name string, fits func([]corev1.LoadBalancerIngress) bool,
) (all []corev1.LoadBalancerIngress) {
	b.Helper()
	b.until(func(ctx context.Context) error {
		now, err := b.Client.CoreV1().Services("default").Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if all = now.Status.LoadBalancer.Ingress; !fits(all) {
			return fmt.Errorf("the status of %s is %+v", name, all)
		}
		return nil
	})
	return all
}

// balancer makes a Service of the type LoadBalancer in IPv4, and returns the address that it got.
func (b *balanced) balancer(name, wanted string, sources ...string) string {
	b.Helper()
	return b.balancerIn(corev1.IPv4Protocol, name, wanted, sources...)
}

// balancerIn is balancer in a family.
func (b *balanced) balancerIn(family corev1.IPFamily, name, wanted string, sources ...string) string {
	b.Helper()
	b.service(name, func(spec *corev1.ServiceSpec) {
		spec.Type, spec.LoadBalancerIP, spec.LoadBalancerSourceRanges = corev1.ServiceTypeLoadBalancer, wanted, sources
		spec.IPFamilyPolicy, spec.IPFamilies = new(corev1.IPFamilyPolicySingleStack), []corev1.IPFamily{family}
	})
	is := b.ingress(name, func(all []corev1.LoadBalancerIngress) bool { return len(all) == 1 })[0]
	if is.IP == "" || is.IPMode == nil || wanted != "" && is.IP != wanted {
		b.Errorf("the status of %s is %+v, want the address %q", name, is, wanted)
	}
	return is.IP
}

// A load balancer has an address outside, or the one that it asks for, tells it, is
// reached there by those who may, and has none any more when it is no load balancer.
func (b *balanced) loadBalancer() {
	address := b.balancer("balancer", "")
	to := net.JoinHostPort(address, "80")
	b.routed(address + "/32")
	for _, from := range []speaker{b.here, b.pod, b.away} {
		b.answers(from, "tcp", to, "a", "b")
	}
	b.change("balancer", func(service *corev1.Service) {
		service.Spec.LoadBalancerSourceRanges = []string{"198.18.0.0/15"}
	})
	b.silence(b.away, "tcp", to, "timeout", "refused", "unreachable")
	b.change("balancer", func(service *corev1.Service) {
		service.Spec.LoadBalancerSourceRanges = []string{kubelab.Nodes.Addr().String() + "/32"}
	})
	b.answers(b.away, "tcp", to, "a", "b")
	b.change("balancer", func(service *corev1.Service) {
		service.Spec.Type, service.Spec.LoadBalancerSourceRanges = corev1.ServiceTypeClusterIP, nil
	})
	b.ingress("balancer", func(all []corev1.LoadBalancerIngress) bool { return len(all) == 0 })
	b.silence(b.away, "tcp", to, "timeout", "refused", "unreachable")
	b.must(b.Client.CoreV1().Services("default").Delete(b.ctx, "balancer", metav1.DeleteOptions{}))

	b.answers(b.away, "tcp", net.JoinHostPort(b.balancer("asked", address), "80"), "a", "b")
}

// A load balancer of IPv6 alone has an address of IPv6 outside, and those alone are let in who may.
func (b *balanced) loadBalancer6() {
	address := b.balancerIn(corev1.IPv6Protocol, "balancer6", "")
	to := net.JoinHostPort(address, "80")
	b.routed(address + "/128")
	for _, from := range []speaker{b.here, b.pod, b.away} {
		b.answers(from, "tcp", to, "a", "b")
	}
	b.change("balancer6", func(service *corev1.Service) {
		service.Spec.LoadBalancerSourceRanges = []string{"2001:db8:dead::/48"}
	})
	b.silence(b.away, "tcp", to, "timeout", "refused", "unreachable")
	b.answers(b.pod, "tcp", at(b.change("balancer6", func(*corev1.Service) {}), 80)[0], "a", "b")
}

// A load balancer without NodePorts is reached by its address alone. One of another class
// is served at its ClusterIP and at the address that the other says, who says it alone.
func (b *balanced) otherBalancer() {
	bare := b.service("bare", func(spec *corev1.ServiceSpec) {
		spec.Type, spec.AllocateLoadBalancerNodePorts = corev1.ServiceTypeLoadBalancer, new(false)
		spec.IPFamilyPolicy, spec.IPFamilies = new(corev1.IPFamilyPolicySingleStack), []corev1.IPFamily{corev1.IPv4Protocol}
	})
	if port := bare.Spec.Ports[0].NodePort; port != 0 {
		b.Errorf("it has the NodePort %d", port)
	}
	outside := b.ingress("bare", func(all []corev1.LoadBalancerIngress) bool { return len(all) == 1 })[0].IP
	b.routed(outside + "/32")
	b.answers(b.away, "tcp", net.JoinHostPort(outside, "80"), "a", "b")

	b.routed("203.0.113.0/24")
	of := b.service("others-balancer", func(spec *corev1.ServiceSpec) {
		spec.Type, spec.LoadBalancerClass = corev1.ServiceTypeLoadBalancer, new("example.com/other")
		spec.IPFamilyPolicy, spec.IPFamilies = new(corev1.IPFamilyPolicySingleStack), []corev1.IPFamily{corev1.IPv4Protocol}
	})
	b.answers(b.pod, "tcp", at(of, 80)[0], "a", "b")
	b.until(func(ctx context.Context) error { // another may write the Service, too
		is, err := b.Client.CoreV1().Services("default").Get(ctx, of.Name, metav1.GetOptions{})
		if err == nil {
			is.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: foreign}}
			_, err = b.Client.CoreV1().Services("default").UpdateStatus(ctx, is, metav1.UpdateOptions{})
		}
		return err
	})
	for _, from := range []speaker{b.away, b.here, b.pod} {
		b.answers(from, "tcp", net.JoinHostPort(foreign, "80"), "a", "b")
	}
	b.change("others-balancer", func(service *corev1.Service) { service.Spec.Ports[0].Port = 81 })
	b.answers(b.pod, "tcp", at(of, 81)[0], "a", "b") // Raven has seen to it
	if all := b.ingress("others-balancer", func([]corev1.LoadBalancerIngress) bool {
		return true
	}); len(all) != 1 || all[0].IP != foreign {
		b.Errorf("the status of another's load balancer is %+v", all)
	}
}

// Of two that ask for one address the first has it, and the second when that has gone.
func (b *balanced) takenAddress() {
	address := b.balancer("holder", "")
	b.routed(address + "/32")
	b.service("waiter", func(spec *corev1.ServiceSpec) {
		spec.Type, spec.LoadBalancerIP, spec.Selector = corev1.ServiceTypeLoadBalancer, address,
			map[string]string{"app": "asks"}
		spec.IPFamilyPolicy, spec.IPFamilies = new(corev1.IPFamilyPolicySingleStack), []corev1.IPFamily{corev1.IPv4Protocol}
	})
	b.warned("waiter", address)
	b.answers(b.away, "tcp", net.JoinHostPort(address, "80"), "a", "b")
	b.must(b.Client.CoreV1().Services("default").Delete(b.ctx, "holder", metav1.DeleteOptions{}))
	b.ingress("waiter", func(all []corev1.LoadBalancerIngress) bool { return len(all) == 1 && all[0].IP == address })
	b.answers(b.away, "tcp", net.JoinHostPort(address, "80"), "asks")
}

// With VIPs in namespaces an internal load balancer is reached at an address of its
// namespace's network, and who may come in by a load balancer is restricted there alone;
// and others may share it.
func (b *balanced) vipsInNamespaces() {
	b.whole.reset("--controller-vip-placement=namespace")
	defer b.whole.reset()
	outside := net.JoinHostPort(b.balancer("placed", "", kubelab.Nodes.Addr().String()+"/32"), "80")
	now, err := b.Client.CoreV1().Services("default").Get(b.ctx, "placed", metav1.GetOptions{})
	b.must(err)
	b.answers(b.pod, "tcp", at(now, 80)[0], "a", "b")
	b.silence(b.pod, "tcp", outside, "timeout", "refused", "unreachable")

	b.change("placed", func(service *corev1.Service) {
		service.Annotations = map[string]string{"service.beta.kubernetes.io/openstack-internal-load-balancer": "true"}
		service.Spec.LoadBalancerSourceRanges = nil
	})
	pods := netip.MustParsePrefix(podRange)
	is := b.ingress("placed", func(all []corev1.LoadBalancerIngress) bool {
		if len(all) != 1 {
			return false
		}
		a, err := netip.ParseAddr(all[0].IP)
		return err == nil && pods.Contains(a)
	})[0]
	for _, from := range b.everywhere() {
		b.answers(from, "tcp", net.JoinHostPort(is.IP, "80"), "a", "b")
	}
	b.change("placed", func(service *corev1.Service) { service.Annotations = nil })
	outside = b.ingress("placed", func(all []corev1.LoadBalancerIngress) bool {
		return len(all) == 1 && all[0].IP != is.IP
	})[0].IP
	b.routed(outside + "/32")
	b.shared("placed", outside, []string{"a", "b"}, []string{"asks"})
}

// A thousand endpoints in ten slices that come in any order, some of them twice, are all
// there, each once, and are asked; and so are those who are left when slices go.
func (b *balanced) manyEndpoints() {
	of := b.service("many", func(spec *corev1.ServiceSpec) { spec.Selector = nil })
	all := b.Client.DiscoveryV1().EndpointSlices("default")
	slice := func(i int, addresses ...string) *discoveryv1.EndpointSlice {
		s := &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{
				Name:   fmt.Sprintf("many-%d", i),
				Labels: map[string]string{discoveryv1.LabelServiceName: "many"},
			},
			AddressType: discoveryv1.AddressTypeIPv4,
			Ports: []discoveryv1.EndpointPort{
				{Name: new("tcp"), Port: new(int32(talkTCP)), Protocol: new(corev1.ProtocolTCP)},
			},
		}
		for _, a := range addresses {
			s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
				Addresses:  []string{a},
				Conditions: discoveryv1.EndpointConditions{Ready: new(true)},
			})
		}
		return s
	}
	make := func(s *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
		made, err := all.Create(b.ctx, s, metav1.CreateOptions{})
		b.must(err)
		b.Cleanup(func() { _ = all.Delete(context.WithoutCancel(b.ctx), s.Name, metav1.DeleteOptions{}) })
		return made
	}
	want := map[string]bool{}
	var again *discoveryv1.EndpointSlice
	for _, i := range []int{7, 2, 9, 0, 5, 1, 8, 3, 6, 4} {
		var addresses []string
		for j := range 100 {
			addresses = append(addresses, fmt.Sprintf("198.18.%d.%d", i, j+1))
		}
		if i == 3 {
			addresses[50] = "198.18.2.7" // which another slice has as well
		}
		for _, a := range addresses {
			want[net.JoinHostPort(a, strconv.Itoa(talkTCP))] = true
		}
		again = make(slice(i, addresses...))
	}
	again.Labels["told"] = "twice"
	_, err := all.Update(b.ctx, again, metav1.UpdateOptions{})
	b.must(err)
	b.leadsTo(of, want)

	pods := b.running("default", "app=web", 2)
	last := make(slice(10, pods["a"].Status.PodIP, pods["b"].Status.PodIP))
	for name := range pods {
		want[net.JoinHostPort(pods[name].Status.PodIP, strconv.Itoa(talkTCP))] = true
	}
	b.leadsTo(of, want)
	for i := range 10 {
		b.must(all.Delete(b.ctx, slice(i).Name, metav1.DeleteOptions{}))
	}
	b.answers(b.pod, "tcp", at(of, 80)[0], "a", "b")
	b.must(all.Delete(b.ctx, last.Name, metav1.DeleteOptions{}))
	b.silence(b.pod, "tcp", at(of, 80)[0], "refused")
}

// leadsTo waits until the kernel leads from a Service's first address by TCP to exactly
// these endpoints, to each by one slot.
func (b *balanced) leadsTo(of *corev1.Service, want map[string]bool) {
	b.Helper()
	b.until(func(context.Context) error {
		found, slots := map[string]bool{}, 0
		for _, line := range b.rules() {
			// VIP . tcp . PORT . SLOT : ADDRESS . PORT
			rest, is := strings.CutPrefix(line, of.Spec.ClusterIP+" . tcp . 80 . ")
			_, to, leads := strings.Cut(rest, " : ")
			if !is || !leads {
				continue
			}
			slots++
			found[strings.Replace(to, " . ", ":", 1)] = true
		}
		if slots != len(want) || !maps.Equal(found, want) {
			return fmt.Errorf("the kernel has %d slots for %d endpoints, want %d", slots, len(found), len(want))
		}
		return nil
	})
}

// Somebody who takes away what balances gets it back: the node's table at once, a
// router's with the next change of a Service.
func (b *balanced) tableDeleted() {
	of := b.service("survives", func(spec *corev1.ServiceSpec) { spec.Type = corev1.ServiceTypeNodePort })
	place := b.places(of.Spec.Ports[0].NodePort)[0]
	b.answers(b.away, "tcp", place, "a", "b")
	b.answers(b.pod, "tcp", at(of, 80)[0], "a", "b")
	b.must(b.node.Exec(b.ctx, "nft", "delete", "table", "inet", "kuryr_lb").Err())
	b.answers(b.away, "tcp", place, "a", "b")

	said := b.node.Exec(
		b.ctx, "sh", "-c",
		`for n in /run/kuryr/netns/*; do nsenter --net=$n nft delete table inet kuryr_lb && echo `+
			`$n; done; true`,
	)
	if strings.TrimSpace(said.Out()) == "" {
		b.Fatalf("no router balances: %s", said)
	}
	next := b.service("next", nil)
	b.answers(b.pod, "tcp", at(next, 80)[0], "a", "b")
	b.answers(b.pod, "tcp", at(of, 80)[0], "a", "b")
}
