//go:build e2e

package kubernetes_test

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kuryr/kuryr/test/e2e/kubelab"
)

// outside are the rows of what who is no part of the cluster finds at its nodes.
func (s *services) outside() {
	s.row("NodePort", (*services).nodePort)
	s.row("LocalPolicies", (*services).localPolicies)
	s.row("NodeHealth", (*services).nodeHealth)
	s.row("Hints", (*services).hints)
	s.row("IPModes", (*services).ipModes)
}

// places are the node's addresses with a port, where another host reaches it.
func (s *services) places(port int32) []string {
	return []string{
		net.JoinHostPort(s.node.Address.String(), strconv.Itoa(int(port))),
		net.JoinHostPort(s.node.Address6.String(), strconv.Itoa(int(port))),
	}
}

// A NodePort leads to both pods at each of the node's addresses, from another host, from
// a pod and from the node, until it is no NodePort any more.
func (s *services) nodePort() {
	of := s.service("node-port", func(spec *corev1.ServiceSpec) {
		spec.Type = corev1.ServiceTypeNodePort
		spec.Ports = append(spec.Ports, corev1.ServicePort{
			Name: "udp", Protocol: corev1.ProtocolUDP, Port: 80,
			TargetPort: spec.Ports[0].TargetPort,
		})
		spec.Ports[1].TargetPort.IntVal = talkUDP
	})
	for _, from := range []speaker{s.away, s.pod, s.here} {
		for _, to := range s.places(of.Spec.Ports[0].NodePort) {
			s.answers(from, "tcp", to, "a", "b")
		}
		for _, to := range s.places(of.Spec.Ports[1].NodePort) {
			s.answers(from, "udp", to, "a", "b")
		}
	}

	s.change("node-port", func(service *corev1.Service) {
		service.Spec.Type = corev1.ServiceTypeClusterIP
		for i := range service.Spec.Ports {
			service.Spec.Ports[i].NodePort = 0
		}
	})
	for _, to := range s.places(of.Spec.Ports[0].NodePort) {
		s.silence(s.away, "tcp", to, "refused")
	}
	s.answers(s.pod, "tcp", at(of, 80)[0], "a", "b")
}

// A node's port leads to the endpoints that their hints keep for its zone, also when the
// node comes to be in another one, to all of them where it is in none, and to those that
// are kept for the node itself.
func (s *services) hints() {
	of := s.service("hinted", func(spec *corev1.ServiceSpec) {
		spec.Type, spec.Selector = corev1.ServiceTypeNodePort, nil
	})
	pods := s.running("default", "app=web", 2)
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: "hinted-1", Labels: map[string]string{discoveryv1.LabelServiceName: "hinted"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{
			{Name: new("tcp"), Port: new(int32(talkTCP)), Protocol: new(corev1.ProtocolTCP)},
		},
	}
	for pod, zone := range map[string]string{"a": "east", "b": "west"} {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{pods[pod].Status.PodIP}, NodeName: &s.node.Name, Zone: &zone,
			Hints: &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: zone}}},
		})
	}
	_, err := s.Client.DiscoveryV1().EndpointSlices("default").Create(s.ctx, slice, metav1.CreateOptions{})
	s.must(err)
	s.Cleanup(func() {
		_ = s.Client.DiscoveryV1().EndpointSlices("default").Delete(
			context.WithoutCancel(s.ctx), slice.Name, metav1.DeleteOptions{},
		)
	})
	in := func(zone string) {
		s.Helper()
		patch := fmt.Sprintf(`{"metadata":{"labels":{%q:%s}}}`, corev1.LabelTopologyZone, zone)
		_, err := s.Client.CoreV1().Nodes().Patch(
			s.ctx, s.node.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{},
		)
		s.must(err)
	}
	to := s.places(of.Spec.Ports[0].NodePort)[0]
	s.answers(s.away, "tcp", to, "a", "b")
	in(`"east"`)
	s.answers(s.away, "tcp", to, "a")
	in(`"west"`)
	s.answers(s.away, "tcp", to, "b")
	in("null")
	s.answers(s.away, "tcp", to, "a", "b")

	for _, one := range []struct {
		of   [2]string // the nodes that a and b are for
		want []string
	}{
		{[2]string{s.node.Name, "another"}, []string{"a"}},
		{[2]string{"another", s.node.Name}, []string{"b"}},
		{[2]string{"another", "third"}, []string{"a", "b"}},
	} {
		for i := range slice.Endpoints {
			node := one.of[0]
			if slice.Endpoints[i].Addresses[0] == pods["b"].Status.PodIP {
				node = one.of[1]
			}
			slice.Endpoints[i].Hints.ForNodes = []discoveryv1.ForNode{{Name: node}}
		}
		_, err := s.Client.DiscoveryV1().EndpointSlices("default").Update(s.ctx, slice, metav1.UpdateOptions{})
		s.must(err)
		s.answers(s.away, "tcp", to, one.want...)
	}
}

// Load balancers are told not to send connections to a node that the cluster autoscaler is about to take away.
func (s *services) nodeHealth() {
	tainted := func(taints string) {
		s.Helper()
		_, err := s.Client.CoreV1().Nodes().Patch(
			s.ctx, s.node.Name, types.MergePatchType, []byte(`{"spec":{"taints":`+taints+`}}`),
			metav1.PatchOptions{},
		)
		s.must(err)
	}
	says := func(path, code, word string) {
		s.Helper()
		s.until(func(ctx context.Context) error {
			said := s.Central.Exec(ctx, "curl", "-s", "-m", "2", "-w", " %{http_code}", fmt.Sprintf(
				"http://%s:10256/%s", s.node.Address, path,
			))
			if !strings.HasSuffix(said.Stdout, code) || !strings.Contains(strings.ReplaceAll(said.Stdout, " ", ""), word) {
				return fmt.Errorf("/%s says %s, want %s and %s", path, said.Stdout, code, word)
			}
			return nil
		})
	}
	says("healthz", "200", `"nodeEligible":true`)
	tainted(`[{"key":"ToBeDeletedByClusterAutoscaler","value":"1","effect":"PreferNoSchedule"}]`)
	says("healthz", "503", `"nodeEligible":false`)
	says("livez", "200", `"lastUpdated":`)
	tainted("null")
	says("healthz", "200", `"nodeEligible":true`)
}

// With externalTrafficPolicy Local a node leads to its own endpoints, which see who asks,
// and to nobody where it has none; its health check counts them. With Cluster, before and
// after, it leads to all, and has no health check. What internalTrafficPolicy Local means
// at a ClusterIP only several nodes would show, and kube-proxy does otherwise than a VIP
// of the SDN: TestNeutronServicesNode has it.
func (s *services) localPolicies() {
	const elsewhere = 7004
	other, err := s.Central.StartService(
		s.ctx, "talk-elsewhere", nil,
		[]string{talkPath(), "serve", "-tcp", strconv.Itoa(elsewhere), "-name", "elsewhere"}, nil,
	)
	s.must(err)
	s.Cleanup(func() { _ = other.Stop(9, limit) })
	of := s.service("local", func(spec *corev1.ServiceSpec) { spec.Type = corev1.ServiceTypeLoadBalancer })
	for _, six := range []bool{false, true} {
		slice := &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{
				Name:   fmt.Sprint("local-six-", six),
				Labels: map[string]string{discoveryv1.LabelServiceName: "local"},
			},
			AddressType: discoveryv1.AddressTypeIPv4,
			Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{kubelab.Nodes.Addr().String()}, NodeName: new("another")}},
			Ports: []discoveryv1.EndpointPort{
				{Name: new("tcp"), Port: new(int32(elsewhere)), Protocol: new(corev1.ProtocolTCP)},
			},
		}
		if six {
			slice.AddressType, slice.Endpoints[0].Addresses[0] = discoveryv1.AddressTypeIPv6, kubelab.Nodes6.Addr().String()
		}
		_, err := s.Client.DiscoveryV1().EndpointSlices("default").Create(s.ctx, slice, metav1.CreateOptions{})
		s.must(err)
		s.Cleanup(func() {
			_ = s.Client.DiscoveryV1().EndpointSlices("default").Delete(
				context.WithoutCancel(s.ctx), slice.Name, metav1.DeleteOptions{},
			)
		})
	}
	places := s.places(of.Spec.Ports[0].NodePort)
	everybody := func() {
		s.Helper()
		for _, to := range places {
			s.answers(s.away, "tcp", to, "a", "b", "elsewhere")
		}
	}
	turn := func(policy corev1.ServiceExternalTrafficPolicy) *corev1.Service {
		s.Helper()
		return s.change("local", func(service *corev1.Service) { service.Spec.ExternalTrafficPolicy = policy })
	}
	everybody()

	now := turn(corev1.ServiceExternalTrafficPolicyLocal)
	for i, to := range places {
		want := []string{kubelab.Nodes.Addr().String(), kubelab.Nodes6.Addr().String()}[i]
		for _, a := range s.answers(s.away, "tcp", to, "a", "b") {
			if a.client.String() != want {
				s.Errorf("at %s %s saw the client %s, want %s", to, a.who, a.client, want)
			}
		}
	}
	checks := s.places(now.Spec.HealthCheckNodePort)
	health := func(code, endpoints string) {
		s.Helper()
		for _, at := range checks {
			s.until(func(ctx context.Context) error {
				said := s.Central.Exec(ctx, "curl", "-gs", "-m", "2", "-w", " %{http_code}", "http://"+at+"/healthz")
				if !strings.HasSuffix(said.Stdout, code) || !strings.Contains(
					strings.ReplaceAll(said.Stdout, " ", ""), `"localEndpoints":`+endpoints,
				) {
					return fmt.Errorf("the health check at %s says %s, want %s and %s endpoints", at, said.Stdout, code, endpoints)
				}
				return nil
			})
		}
	}
	health("200", "2")
	s.change("local", func(service *corev1.Service) { service.Spec.Selector = map[string]string{"app": "nobody"} })
	health("503", "0")
	for _, to := range places {
		s.silence(s.away, "tcp", to, "timeout") // so that it tries another node
	}

	s.change("local", func(service *corev1.Service) { service.Spec.Selector = map[string]string{"app": "web"} })
	health("200", "2")
	turn(corev1.ServiceExternalTrafficPolicyCluster)
	everybody()
	for _, to := range checks {
		s.silence(s.away, "tcp", to, "refused")
	}
}

// What another's load balancer says of its address counts at nodes: with ipMode VIP they
// lead to the endpoints themselves, from pods too, and with Proxy they leave what is for
// it to the proxy. It stays as the other says it.
func (s *services) ipModes() {
	const address, port = "198.51.100.10", 7005
	proxy, err := s.Central.StartService(
		s.ctx, "talk-proxy", nil,
		[]string{talkPath(), "serve", "-tcp", strconv.Itoa(port), "-name", "proxy"}, nil,
	)
	s.must(err)
	s.Cleanup(func() { _ = proxy.Stop(9, limit) })
	s.must(s.Central.Exec(s.ctx, "ip", "addr", "replace", address+"/32", "dev", "lo").Err())
	s.must(s.node.Exec(s.ctx, "ip", "route", "replace", address, "via", kubelab.Nodes.Addr().String()).Err())
	s.Cleanup(func() {
		ctx := context.WithoutCancel(s.ctx)
		s.Central.Exec(ctx, "ip", "addr", "del", address+"/32", "dev", "lo")
		s.node.Exec(ctx, "ip", "route", "del", address)
	})
	s.service("modes", func(spec *corev1.ServiceSpec) {
		inIPv4(spec)
		spec.Type, spec.LoadBalancerClass, spec.Ports[0].Port = corev1.ServiceTypeLoadBalancer, new("example.com/other"), port
	})
	for _, one := range []struct {
		mode corev1.LoadBalancerIPMode
		want []string
	}{{corev1.LoadBalancerIPModeVIP, []string{"a", "b"}}, {corev1.LoadBalancerIPModeProxy, []string{"proxy"}}} {
		says := []corev1.LoadBalancerIngress{{IP: address, IPMode: &one.mode}}
		s.until(func(ctx context.Context) error {
			is, err := s.Client.CoreV1().Services("default").Get(ctx, "modes", metav1.GetOptions{})
			if err == nil {
				is.Status.LoadBalancer.Ingress = says
				_, err = s.Client.CoreV1().Services("default").UpdateStatus(ctx, is, metav1.UpdateOptions{})
			}
			return err
		})
		for _, from := range s.everywhere() {
			s.answers(from, "tcp", net.JoinHostPort(address, strconv.Itoa(port)), one.want...)
		}
		is, err := s.Client.CoreV1().Services("default").Get(s.ctx, "modes", metav1.GetOptions{})
		if s.must(err); !equality.Semantic.DeepEqual(is.Status.LoadBalancer.Ingress, says) {
			s.Errorf("the status of another's load balancer is %+v", is.Status)
		}
	}
}
