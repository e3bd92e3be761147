//go:build e2e

package kubernetes_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	kuryrv1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/test/e2e/kubelab"
	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

// The ranges of addresses outside that Services of these tests claim: Kuryr is told that they may have the first.
const (
	claimable   = "203.0.113.0/25"
	claimed     = "203.0.113.7"
	unclaimable = "203.0.113.200"
)

// The settings by which Kuryr serves Services.
var (
	ravenRanges    = []string{"--controller-pod-ranges=" + podRange + "," + podRange6, "--controller-service-ranges=" + kubelab.ServiceRange + "," + kubelab.ServiceRange6}
	ravenServices  = append([]string{"--controller-services=true"}, ravenRanges...)
	daemonServices = []string{"--node-services=true", "--node-external-ips=" + claimable}
)

// balanced is a cluster without kube-proxy, whose Services are Kuryr's.
type balanced struct {
	*services
	whole *whole
}

// startServices starts one; with serves false Kuryr leaves Services alone at first.
func startServices(t *testing.T, serves bool, booted func(context.Context, *kubelab.Node) error) *balanced {
	w := &whole{node: &kuryrNode{}, settings: ravenRanges}
	if serves {
		w.settings, w.daemonSettings = ravenServices, daemonServices
	}
	w.start(t, talkOptions(func(ctx context.Context, n *kubelab.Node) error {
		if booted != nil {
			if err := booted(ctx, n); err != nil {
				return err
			}
		}
		return w.boot(ctx, n)
	}))
	begin := time.Now()
	s := newServices(w.rig)
	t.Logf("the pods are ready after %s", time.Since(begin).Round(10*time.Millisecond))
	return &balanced{s, w}
}

// row is services.row.
func (b *balanced) row(name string, test func(*balanced)) {
	b.services.row(name, func(s *services) {
		w := *b.whole
		w.rig = s.rig
		test(&balanced{s, &w})
	})
}

// element is one of a set or map of nftables that begins with an address.
var element = regexp.MustCompile(`^[0-9a-f]+[.:][0-9a-f.:]+ \. `)

// rules are the elements of what balances in the kernel, on the node and where its SDN has routers, in an order of its own. What the kernel forgets by itself, as
// clients with an affinity, is not among them.
func (b *balanced) rules() []string {
	b.Helper()
	said := b.node.Exec(b.ctx, "sh", "-c", `for n in /proc/self/ns/net /run/kuryr/netns/*; do
		nsenter --net=$n nft -s list tables | while read -r _ family name; do case $name in *lb*) nsenter --net=$n nft -s list table $family $name;; esac; done; done`)
	b.must(said.Err())
	var all []string
	for block := range strings.SplitSeq(said.Stdout, "\n\t}") {
		if strings.Contains(block, "timeout") {
			continue
		}
		for part := range strings.SplitSeq(strings.NewReplacer("elements = {", "\n", "}", "\n", ",", "\n").Replace(block), "\n") {
			if part = strings.TrimSpace(part); element.MatchString(part) {
				all = append(all, part)
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// Services of a cluster without kube-proxy, by packets: what pods, the node and others find where a Service says, as Services and their endpoints change; and what is left when they have gone.
func TestServices(t *testing.T) {
	t.Parallel()
	b := startServices(t, true, nil)
	b.services.kubernetes()
	b.must(b.WaitDNS(b.ctx))
	b.until(func(context.Context) error { return b.settled() })
	var before []string
	b.until(func(context.Context) error {
		before = b.rules()
		for _, protocol := range []string{"tcp", "udp"} {
			if !slices.ContainsFunc(before, func(line string) bool { return strings.HasPrefix(line, kubelab.ServiceDNS+" . "+protocol+" . 53 . ") }) {
				return fmt.Errorf("the kernel does not lead to CoreDNS by %s:\n%s", protocol, strings.Join(before, "\n"))
			}
		}
		return nil
	})
	b.inside()
	b.outside()
	b.row("ExternalIPs", (*balanced).externalIPs)
	b.row("LoadBalancer", (*balanced).loadBalancer)
	b.row("TakenAddress", (*balanced).takenAddress)
	b.row("VIPsInNamespaces", (*balanced).vipsInNamespaces)
	b.row("ManyEndpoints", (*balanced).manyEndpoints)
	b.changing()
	b.until(func(context.Context) error { return b.settled() })
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
func (b *balanced) settled() error {
	var all kuryrv1.KuryrLoadBalancerList
	var there corev1.ServiceList
	if err := errors.Join(b.whole.api.List(b.ctx, &all), b.whole.api.List(b.ctx, &there)); err != nil {
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
	b.must(b.Central.Exec(b.ctx, "ip", "route", "replace", prefix, "via", b.node.Address.String()).Err())
}

// An external address leads to the pods where the administrator allows its range, and nowhere else (CVE-2020-8554).
func (b *balanced) externalIPs() {
	b.routed("203.0.113.0/24")
	b.service("external-ips", func(spec *corev1.ServiceSpec) { spec.ExternalIPs = []string{claimed, unclaimable} })
	for _, from := range []speaker{b.away, b.here} {
		b.answers(from, "tcp", net.JoinHostPort(claimed, "80"), "a", "b")
		if got, err := b.ask(b.ctx, from, 1, "tcp", net.JoinHostPort(unclaimable, "80")); err != nil || got[0].who != "" {
			b.Errorf("%s, at an address that is not to be claimed: %+v, %v", from.name, got, err)
		}
	}
}

// ingress waits for what the Service's status says of how it is reached.
func (b *balanced) ingress(name string, fits func([]corev1.LoadBalancerIngress) bool) (all []corev1.LoadBalancerIngress) {
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
	b.service(name, func(spec *corev1.ServiceSpec) {
		spec.Type, spec.LoadBalancerIP, spec.LoadBalancerSourceRanges = corev1.ServiceTypeLoadBalancer, wanted, sources
		spec.IPFamilyPolicy, spec.IPFamilies = new(corev1.IPFamilyPolicySingleStack), []corev1.IPFamily{corev1.IPv4Protocol}
	})
	is := b.ingress(name, func(all []corev1.LoadBalancerIngress) bool { return len(all) == 1 })[0]
	if is.IP == "" || is.IPMode == nil || wanted != "" && is.IP != wanted {
		b.Errorf("the status of %s is %+v, want the address %q", name, is, wanted)
	}
	return is.IP
}

// A load balancer has an address outside, or the one that it asks for, tells it, is reached there by those who may, and has none any more when it is no load balancer.
func (b *balanced) loadBalancer() {
	address := b.balancer("balancer", "")
	to := net.JoinHostPort(address, "80")
	b.routed(address + "/32")
	for _, from := range []speaker{b.here, b.pod, b.away} {
		b.answers(from, "tcp", to, "a", "b")
	}
	b.change("balancer", func(service *corev1.Service) { service.Spec.LoadBalancerSourceRanges = []string{"198.18.0.0/15"} })
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

// Of two that ask for one address the first has it, and the second when that has gone.
func (b *balanced) takenAddress() {
	address := b.balancer("holder", "")
	b.routed(address + "/32")
	b.service("waiter", func(spec *corev1.ServiceSpec) {
		spec.Type, spec.LoadBalancerIP, spec.Selector = corev1.ServiceTypeLoadBalancer, address, map[string]string{"app": "asks"}
		spec.IPFamilyPolicy, spec.IPFamilies = new(corev1.IPFamilyPolicySingleStack), []corev1.IPFamily{corev1.IPv4Protocol}
	})
	b.until(func(ctx context.Context) error {
		events, err := b.Client.EventsV1().Events("default").List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, e := range events.Items {
			if e.Regarding.Name == "waiter" && strings.Contains(e.Note, address) {
				return nil
			}
		}
		return fmt.Errorf("of %d Events none says that %s is taken", len(events.Items), address)
	})
	b.answers(b.away, "tcp", net.JoinHostPort(address, "80"), "a", "b")
	b.must(b.Client.CoreV1().Services("default").Delete(b.ctx, "holder", metav1.DeleteOptions{}))
	b.ingress("waiter", func(all []corev1.LoadBalancerIngress) bool { return len(all) == 1 && all[0].IP == address })
	b.answers(b.away, "tcp", net.JoinHostPort(address, "80"), "asks")
}

// With VIPs in namespaces an internal load balancer is reached at an address of its namespace's network, and who may come in by a load balancer is restricted there alone.
func (b *balanced) vipsInNamespaces() {
	b.whole.reset(append(slices.Clone(ravenServices), "--controller-vip-placement=namespace")...)
	defer func() { b.whole.reset(ravenServices...) }()
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
	b.ingress("placed", func(all []corev1.LoadBalancerIngress) bool { return len(all) == 1 && all[0].IP != is.IP })
}

// A thousand endpoints in ten slices that come in any order, some of them twice, are all there; and those who are left when slices go.
func (b *balanced) manyEndpoints() {
	of := b.service("many", func(spec *corev1.ServiceSpec) { spec.Selector = nil })
	slices := b.Client.DiscoveryV1().EndpointSlices("default")
	port := int32(talkTCP)
	make := func(i int, addresses ...string) {
		slice := &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Name: fmt.Sprintf("many-%d", i), Labels: map[string]string{discoveryv1.LabelServiceName: "many"}},
			AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: new("tcp"), Port: &port, Protocol: new(corev1.ProtocolTCP)}},
		}
		for _, a := range addresses {
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}, Conditions: discoveryv1.EndpointConditions{Ready: new(true)}})
		}
		_, err := slices.Create(b.ctx, slice, metav1.CreateOptions{})
		b.must(err)
		b.Cleanup(func() { _ = slices.Delete(context.WithoutCancel(b.ctx), slice.Name, metav1.DeleteOptions{}) })
	}
	for _, i := range []int{7, 2, 9, 0, 5, 1, 8, 3, 6, 4} {
		var addresses []string
		for j := range 100 {
			addresses = append(addresses, fmt.Sprintf("198.18.%d.%d", i, j+1))
		}
		if i == 3 {
			addresses[50] = "198.18.2.7" // which another slice has as well
		}
		make(i, addresses...)
	}
	const want = 999
	b.until(func(ctx context.Context) error {
		var lb kuryrv1.KuryrLoadBalancer
		if err := b.whole.api.Get(ctx, types.NamespacedName{Namespace: "default", Name: "many"}, &lb); err != nil {
			return err
		}
		if n := strings.Count(strings.Join(b.rules(), "\n"), "198.18."); n < want {
			return fmt.Errorf("the kernel knows of %d of the endpoints: %+v", n, lb.Status)
		}
		return nil
	})
	b.must(slices.DeleteCollection(b.ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=many"}))
	b.silence(b.pod, "tcp", at(of, 80)[0], "refused")
}

// Whoever of Kuryr is killed and comes again, under load: no connection breaks, and no new one fails.
func TestServicesKilled(t *testing.T) {
	t.Parallel()
	b := startServices(t, true, nil)
	of := b.service("loaded", nil)
	ported := b.service("ported", func(spec *corev1.ServiceSpec) { spec.Type = corev1.ServiceTypeNodePort })
	for _, to := range append(at(of, 80), b.places(ported.Spec.Ports[0].NodePort)...) {
		b.answers(b.pod, "tcp", to, "a", "b")
	}
	place := b.places(ported.Spec.Ports[0].NodePort)[0]
	all := []load{
		b.loads("keeps", "tcp", at(of, 80)[0], true), b.loads("keeps6", "tcp", at(of, 80)[1], true), b.loads("keeps-port", "tcp", place, true),
		b.loads("comes", "tcp", at(of, 80)[0], false), b.loads("comes-port", "tcp", place, false),
	}
	for name, one := range map[string]struct {
		of    func() *privatehost.Service
		start func(context.Context) error
	}{
		"the node's daemon": {func() *privatehost.Service { return b.whole.claim }, b.whole.startDaemon},
		"the SDN":           {func() *privatehost.Service { return b.whole.sdnDaemon }, b.whole.startSDN},
		"Raven":             {func() *privatehost.Service { return b.whole.raven }, b.whole.startRaven},
	} {
		for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
			b.must(one.of().Stop(sig, limit))
			for _, l := range all {
				l.goesOn()
			}
			b.must(one.start(b.ctx))
			for _, l := range all {
				l.goesOn()
			}
			if b.Failed() {
				b.Fatalf("at %s of %s", sig, name)
			}
		}
	}
	later := b.service("later", nil)
	b.answers(b.pod, "tcp", at(later, 80)[0], "a", "b")
	for _, l := range all {
		l.ends()
	}
}

// A live cluster leaves kube-proxy for Kuryr, and goes back: the node finds the API server at its ClusterIP and a Service's pods at a NodePort throughout, and of who has gone no rules are left.
func TestServicesMove(t *testing.T) {
	t.Parallel()
	b := startServices(t, false, func(ctx context.Context, n *kubelab.Node) error { return n.StartProxy(ctx) })
	of := b.service("moved", func(spec *corev1.ServiceSpec) { spec.Type = corev1.ServiceTypeNodePort })
	place := b.places(of.Spec.Ports[0].NodePort)[0]
	b.answers(b.here, "tcp", at(of, 80)[0], "a", "b")
	b.answers(b.away, "tcp", place, "a", "b")
	watch := b.watches(b.here, at(of, 80)[0])
	outer := b.watches(b.away, place)
	tables := func(has, lacks string) {
		b.Helper()
		b.until(func(ctx context.Context) error {
			all := b.node.Exec(ctx, "nft", "list", "tables").Out()
			if !strings.Contains(all, has) || strings.Contains(all, lacks) {
				return fmt.Errorf("the tables are %q, want %s and not %s", all, has, lacks)
			}
			return nil
		})
	}

	b.whole.daemonSettings = daemonServices
	b.whole.reset(ravenServices...)
	b.must(errors.Join(b.whole.claim.Stop(syscall.SIGTERM, limit), b.whole.startDaemon(b.ctx)))
	b.answers(b.pod, "tcp", at(of, 80)[0], "a", "b")
	tables("kuryr_lb", "nothing")
	b.must(b.node.StopProxy(syscall.SIGTERM))
	b.must(b.node.CleanProxy(b.ctx))
	tables("kuryr_lb", "kube-proxy")
	b.services.kubernetes()
	b.answers(b.here, "tcp", at(of, 80)[0], "a", "b")
	b.answers(b.away, "tcp", place, "a", "b")

	b.must(b.node.StartProxy(b.ctx))
	tables("kube-proxy", "nothing")
	b.whole.daemonSettings = nil
	b.must(errors.Join(b.whole.claim.Stop(syscall.SIGTERM, limit), b.whole.startDaemon(b.ctx)))
	b.whole.reset(ravenRanges...)
	tables("kube-proxy", "kuryr_lb")
	b.answers(b.here, "tcp", at(of, 80)[0], "a", "b")
	b.answers(b.away, "tcp", place, "a", "b")
	for _, ends := range []func() error{watch, outer} {
		if err := ends(); err != nil {
			t.Error(err)
		}
	}
}

// watches asks all the time until it is told to end, and then says what failed.
func (s *services) watches(from speaker, to string) (end func() error) {
	ctx, cancel := context.WithCancel(s.ctx)
	failed := make(chan error, 1)
	go func() {
		n := 0
		for ctx.Err() == nil {
			got, err := s.ask(s.ctx, from, 20, "tcp", to, "-every", "20ms")
			if err != nil {
				failed <- err
				return
			}
			for _, a := range got {
				if n++; a.failed != "" {
					failed <- fmt.Errorf("%s, at %s: question %d: %s", from.name, to, n, a.failed)
					return
				}
			}
		}
		failed <- nil
	}()
	return func() error {
		cancel()
		return <-failed
	}
}
