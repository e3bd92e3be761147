//go:build e2e

package kubernetes_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/kuryr/kuryr/test/e2e/kubelab"
)

// inside are the rows of what pods and nodes find at ClusterIPs.
func (s *services) inside() {
	s.row("ClusterIP", (*services).clusterIP)
	s.row("DNS", (*services).dns)
	s.row("PortsByName", (*services).portsByName)
	s.row("Affinity", (*services).affinity)
	s.row("NoEndpoints", (*services).noEndpoints)
	s.row("SlicesByHand", (*services).slicesByHand)
	s.row("Families", (*services).families)
	s.row("NotReady", (*services).notReady)
	s.row("OtherProxy", (*services).otherProxy)
	s.row("ServiceCIDRs", (*services).serviceCIDRs)
	s.row("SCTP", (*services).sctp)
}

// Each address and protocol leads to both pods, from a pod, from the node, and from an
// endpoint, to itself too. TCP and UDP at one port are two.
func (s *services) clusterIP() {
	web := s.service("cluster-ip", func(spec *corev1.ServiceSpec) {
		spec.Ports = append(spec.Ports, corev1.ServicePort{
			Name: "udp", Protocol: corev1.ProtocolUDP, Port: 80,
			TargetPort: intstr.FromInt32(talkUDP),
		})
	})
	if len(web.Spec.ClusterIPs) != 2 {
		s.Fatalf("the addresses are %v", web.Spec.ClusterIPs)
	}
	for _, to := range at(web, 80) {
		for _, network := range []string{"tcp", "udp"} {
			for _, from := range append(s.everywhere(), s.inPod("a")) {
				s.answers(from, network, to, "a", "b")
			}
		}
	}
	for _, to := range at(web, 81) {
		if got, err := s.ask(s.ctx, s.pod, 1, "tcp", to); err != nil || got[0].who != "" {
			s.Errorf("at a port that is not the Service's: %+v, %v", got, err)
		}
	}
}

// CoreDNS is reached at its ClusterIP, as it reaches the API server; a headless Service
// is its pods, an external name is another.
func (s *services) dns() {
	ctx, cancel := context.WithTimeout(s.ctx, limit/3)
	defer cancel()
	s.must(s.WaitDNS(ctx))
	web := s.service("named", nil)
	s.looks("named.default.svc.cluster.local", web.Spec.ClusterIPs...)
	s.looks("named", web.Spec.ClusterIPs...)
	s.answers(s.pod, "tcp", "named:80", "a", "b")

	s.service("headless", func(spec *corev1.ServiceSpec) { spec.ClusterIP = corev1.ClusterIPNone })
	var pods []string
	for _, p := range s.running("default", "app=web", 2) {
		pods = append(pods, addresses(p)...)
	}
	s.looks("headless.default.svc.cluster.local", pods...)

	s.service("external", func(spec *corev1.ServiceSpec) {
		*spec = corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "named.default.svc.cluster.local"}
	})
	s.looks("external.default.svc.cluster.local", web.Spec.ClusterIPs...)
}

// A target port by name is each pod's own, and a pod without a port of that name is no endpoint.
func (s *services) portsByName() {
	of := s.service("by-name", func(spec *corev1.ServiceSpec) {
		spec.Selector = map[string]string{"web": "any"}
		spec.Ports[0].TargetPort = intstr.FromString("talk")
		spec.Ports = append(spec.Ports, corev1.ServicePort{
			Name: "udp", Protocol: corev1.ProtocolUDP, Port: 81,
			TargetPort: intstr.FromString("chat"),
		})
	})
	s.answers(s.pod, "tcp", at(of, 80)[0], "a", "b", "c", "asks")
	s.answers(s.pod, "udp", at(of, 81)[0], "a", "b", "asks")
}

// A client keeps its endpoint, and after the timeout may have another.
func (s *services) affinity() {
	of := s.service("affinity", func(spec *corev1.ServiceSpec) {
		spec.SessionAffinity = corev1.ServiceAffinityClientIP
		spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{
			ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: new(int32(1))},
		}
	})
	for _, to := range at(of, 80) {
		// On a loaded machine the timeout may pass between two questions.
		var first string
		s.until(func(ctx context.Context) error {
			got, err := s.ask(ctx, s.pod, 20, "tcp", to)
			if err != nil {
				return err
			}
			for _, a := range got {
				if a.who == "" || a.who != got[0].who {
					return fmt.Errorf("at %s: %+v, then %+v", to, got[0], a)
				}
			}
			first = got[0].who
			return nil
		})
		s.until(func(ctx context.Context) error {
			got, err := s.ask(ctx, s.pod, 2, "tcp", to, "-every", "2500ms")
			if err == nil && got[0].who == first && got[1].who == first {
				err = fmt.Errorf("at %s still %s answers", to, first)
			}
			return err
		})
	}
}

// silenceEnds waits for the first answer.
func (s *services) silenceEnds(to string) {
	s.Helper()
	s.until(func(ctx context.Context) error {
		got, err := s.ask(ctx, s.pod, 1, "tcp", to)
		if err == nil && got[0].failed != "" {
			err = fmt.Errorf("at %s: %s", to, got[0].failed)
		}
		return err
	})
}

// Where there is no endpoint a client is refused, at once, and served when there is one.
func (s *services) noEndpoints() {
	of := s.service("nobody", func(spec *corev1.ServiceSpec) {
		spec.Selector = map[string]string{"app": "nobody"}
		spec.Ports = append(spec.Ports, corev1.ServicePort{
			Name: "udp", Protocol: corev1.ProtocolUDP, Port: 80,
			TargetPort: intstr.FromInt32(talkUDP),
		})
	})
	for _, to := range at(of, 80) {
		for _, from := range s.everywhere() {
			s.silence(from, "tcp", to, "refused")
			s.silence(from, "udp", to, "refused")
		}
	}
	s.change("nobody", func(service *corev1.Service) { service.Spec.Selector = map[string]string{"app": "web"} })
	for _, to := range at(of, 80) {
		s.answers(s.pod, "tcp", to, "a", "b")
	}
	s.change("nobody", func(service *corev1.Service) { service.Spec.Selector = map[string]string{"app": "nobody"} })
	for _, to := range at(of, 80) {
		s.silence(s.pod, "tcp", to, "refused")
	}
}

// Endpoints that are no pods, of both families, in several slices that somebody writes,
// one endpoint in two of them; those in conditions other than ready get nothing.
func (s *services) slicesByHand() { s.byHand(true) }

// byHand is told whether there is a way to what is no pod by IPv6: where there is none an Event says so.
func (s *services) byHand(wayOut6 bool) {
	const first, second = 7001, 7002
	for i, name := range map[int]string{first: "one", second: "two"} {
		stop, err := s.Central.StartService(
			s.ctx, "talk-"+name, nil,
			[]string{talkPath(), "serve", "-tcp", strconv.Itoa(i), "-name", name}, nil,
		)
		s.must(err)
		s.Cleanup(func() { _ = stop.Stop(9, limit) })
	}
	of := s.service("by-hand", func(spec *corev1.ServiceSpec) { spec.Selector = nil })
	slice := func(name string, port int32, ready, six bool) string {
		one := &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: "by-hand"}},
			AddressType: discoveryv1.AddressTypeIPv4,
			Endpoints: []discoveryv1.Endpoint{{
				Addresses:  []string{kubelab.Nodes.Addr().String()},
				Conditions: discoveryv1.EndpointConditions{Ready: &ready},
			}},
			Ports: []discoveryv1.EndpointPort{{Name: new("tcp"), Port: &port, Protocol: new(corev1.ProtocolTCP)}},
		}
		if six {
			one.AddressType, one.Endpoints[0].Addresses[0] = discoveryv1.AddressTypeIPv6, kubelab.Nodes6.Addr().String()
		}
		_, err := s.Client.DiscoveryV1().EndpointSlices("default").Create(s.ctx, one, metav1.CreateOptions{})
		s.must(err)
		s.Cleanup(func() {
			_ = s.Client.DiscoveryV1().EndpointSlices("default").Delete(
				context.WithoutCancel(s.ctx), name, metav1.DeleteOptions{},
			)
		})
		return name
	}
	for i, to := range at(of, 80) {
		six, name := i == 1, fmt.Sprint("by-hand-", i)
		gone := slice(name+"-1", first, true, six)
		slice(name+"-2", second, true, six)
		again := slice(name+"-3", second, true, six)
		slice(name+"-4", 7003, false, six)
		if six && !wayOut6 {
			s.warned("by-hand", "the router has no way out for their family")
			continue
		}
		for _, from := range s.everywhere() {
			s.answers(from, "tcp", to, "one", "two")
		}
		for _, name := range []string{gone, again} {
			s.must(s.Client.DiscoveryV1().EndpointSlices("default").Delete(s.ctx, name, metav1.DeleteOptions{}))
		}
		s.answers(s.pod, "tcp", to, "two")
	}
}

// A Service gets a second family, and loses it again: it answers there as long as it has
// it, and in its first family throughout.
func (s *services) families() {
	of := s.service("families", func(spec *corev1.ServiceSpec) {
		spec.IPFamilyPolicy, spec.IPFamilies = new(corev1.IPFamilyPolicySingleStack), []corev1.IPFamily{corev1.IPv4Protocol}
	})
	first := at(of, 80)[0]
	s.answers(s.pod, "tcp", first, "a", "b")
	watch := s.watches(s.pod, first)
	var second string
	for range 2 {
		now := s.change("families", func(service *corev1.Service) {
			service.Spec.IPFamilyPolicy = new(corev1.IPFamilyPolicyPreferDualStack)
		})
		if len(now.Spec.ClusterIPs) != 2 {
			s.Fatalf("the addresses are %v", now.Spec.ClusterIPs)
		}
		second = at(now, 80)[1]
		for _, from := range s.everywhere() {
			s.answers(from, "tcp", second, "a", "b")
		}
		s.change("families", func(service *corev1.Service) {
			service.Spec.IPFamilyPolicy = new(corev1.IPFamilyPolicySingleStack)
			service.Spec.ClusterIPs, service.Spec.IPFamilies = service.Spec.ClusterIPs[:1], service.Spec.IPFamilies[:1]
		})
		for _, from := range s.everywhere() {
			s.silence(from, "tcp", second, "timeout", "refused", "unreachable")
		}
	}
	if err := watch(); err != nil {
		s.Error(err)
	}
}

// A pod that is not ready is asked where its addresses are wanted all the same, and nowhere else.
func (s *services) notReady() {
	silent := map[string]string{"app": "silent"}
	strict := s.service("strict", func(spec *corev1.ServiceSpec) { spec.Selector = silent })
	loose := s.service("loose", func(spec *corev1.ServiceSpec) {
		spec.Selector, spec.PublishNotReadyAddresses = silent, true
	})
	s.answers(s.pod, "tcp", at(loose, 80)[0], "silent")
	s.silence(s.pod, "tcp", at(strict, 80)[0], "refused")
}

// A Service has an address of a range that the cluster got later.
func (s *services) serviceCIDRs() {
	more := &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: "more"},
		Spec:       networkingv1.ServiceCIDRSpec{CIDRs: []string{"172.30.0.0/24"}},
	}
	_, err := s.Client.NetworkingV1().ServiceCIDRs().Create(s.ctx, more, metav1.CreateOptions{})
	s.must(err)
	s.Cleanup(func() {
		_ = s.Client.NetworkingV1().ServiceCIDRs().Delete(context.WithoutCancel(s.ctx), more.Name, metav1.DeleteOptions{})
	})
	s.until(func(ctx context.Context) error {
		now, err := s.Client.NetworkingV1().ServiceCIDRs().Get(ctx, more.Name, metav1.GetOptions{})
		if err == nil && !slices.ContainsFunc(now.Status.Conditions, func(c metav1.Condition) bool {
			return c.Type == "Ready" && c.Status == metav1.ConditionTrue
		}) {
			err = fmt.Errorf("the ServiceCIDR is not ready: %+v", now.Status)
		}
		return err
	})
	of := s.service("of-more", func(spec *corev1.ServiceSpec) { spec.ClusterIP, spec.IPFamilyPolicy = "172.30.0.10", nil })
	for _, from := range s.everywhere() {
		s.answers(from, "tcp", at(of, 80)[0], "a", "b")
	}
}

// Associations of SCTP come to each endpoint, and the answers come from where it was
// asked: at the ClusterIP, where TCP has the same port, and at a NodePort.
func (s *services) sctp() {
	if _, err := os.Stat("/proc/sys/net/netfilter/nf_conntrack_sctp_timeout_closed"); err != nil {
		s.Skip("this kernel does not track SCTP:", err)
	}
	of := s.service("sctp", func(spec *corev1.ServiceSpec) {
		spec.Type = corev1.ServiceTypeNodePort
		spec.Ports = append(spec.Ports, corev1.ServicePort{
			Name: "sctp", Protocol: corev1.ProtocolSCTP, Port: 80,
			TargetPort: intstr.FromInt32(talkSCTP),
		})
	})
	for _, to := range at(of, 80) {
		for _, from := range append(s.everywhere(), s.inPod("a")) {
			s.answers(from, "sctp", to, "a", "b")
		}
		s.answers(s.pod, "tcp", to, "a", "b")
	}
	for _, to := range s.places(of.Spec.Ports[1].NodePort) {
		s.answers(s.away, "sctp", to, "a", "b")
	}
}

// A Service that is another proxy's is left to it.
func (s *services) otherProxy() {
	const label = "service.kubernetes.io/service-proxy-name"
	of := s.service("others", nil)
	s.answers(s.pod, "tcp", at(of, 80)[0], "a", "b")
	s.change("others", func(service *corev1.Service) { service.Labels = map[string]string{label: "another"} })
	s.until(func(ctx context.Context) error {
		got, err := s.ask(ctx, s.pod, 1, "tcp", at(of, 80)[0])
		if err == nil && got[0].who != "" {
			err = fmt.Errorf("%s answers for a Service of another proxy", got[0].who)
		}
		return err
	})
}

// kubernetes checks that a pod finds the API server at the first of the ClusterIPs, and for how long it takes.
func (s *services) kubernetes() {
	s.Helper()
	begin := time.Now()
	s.until(func(ctx context.Context) error {
		got, err := s.ask(ctx, s.pod, 1, "tcp", apiAddress())
		if err == nil && !hungUp(got[0]) {
			err = fmt.Errorf("at %s: %+v", apiAddress(), got[0])
		}
		return err
	})
	s.Logf("the API server answers at %s after %s", apiAddress(), time.Since(begin).Round(10*time.Millisecond))
}
