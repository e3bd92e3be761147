package proxy

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"net/netip"
)

// here is the node of the tests.
var here = Node{Name: "n1", Zone: "z1", Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}

// of makes a Service of type NodePort with the port 80, at 30080 of nodes, and changes it.
func of(change ...func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "u1"},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeNodePort, ClusterIP: "10.96.0.10", ClusterIPs: []string{"10.96.0.10"},
			Ports: []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80, NodePort: 30080}},
		},
	}
	for _, f := range change {
		f(s)
	}
	return s
}

// sliceOf makes one slice of endpoints, each "ADDR[ NODE[ FLAG...]]": unready, terminating, serving (though it terminates or is not ready), zone=Z, node=N.
func sliceOf(name string, all ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "ns", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new("http"), Protocol: new(corev1.ProtocolTCP), Port: new(int32(8080))}},
	}
	for _, text := range all {
		words := strings.Fields(text)
		e := discoveryv1.Endpoint{Addresses: words[:1]}
		if strings.Contains(words[0], ":") {
			s.AddressType = discoveryv1.AddressTypeIPv6
		}
		if len(words) > 1 {
			e.NodeName = &words[1]
			words = words[1:]
		}
		for _, w := range words[1:] {
			key, value, _ := strings.Cut(w, "=")
			if e.Hints == nil && value != "" {
				e.Hints = &discoveryv1.EndpointHints{}
			}
			switch key {
			case "unready":
				e.Conditions.Ready, e.Conditions.Serving = new(false), new(false)
			case "terminating":
				e.Conditions.Ready, e.Conditions.Terminating = new(false), new(true)
			case "serving":
				e.Conditions.Serving = new(true)
			case "zone":
				e.Hints.ForZones = append(e.Hints.ForZones, discoveryv1.ForZone{Name: value})
			case "node":
				e.Hints.ForNodes = append(e.Hints.ForNodes, discoveryv1.ForNode{Name: value})
			default:
				panic(w)
			}
		}
		s.Endpoints = append(s.Endpoints, e)
	}
	return s
}

// picture is what a Service comes to, a line each frontend: "KEY -> ENDPOINTS FLAGS", and for clients inside, where that differs.
func picture(r realised) []string {
	var out []string
	for _, f := range r.frontends {
		line := f.Key.String() + " ->"
		for _, e := range f.Endpoints {
			line += " " + e.String()
		}
		for _, e := range f.Draining {
			line += " drains=" + e.String()
		}
		if f.Masquerade {
			line += " masquerade"
		}
		if f.Affinity != 0 {
			line += " affinity=" + f.Affinity.String()
		}
		for _, p := range f.Sources {
			line += " from=" + p.String()
		}
		if len(f.Endpoints) == 0 {
			line += fmt.Sprint(" ", map[bool]string{true: "reject", false: "drop"}[f.Empty == 0])
		}
		if f.Inside != nil {
			line += " inside:"
			for _, e := range f.Inside.Endpoints {
				line += " " + e.String()
			}
			if f.Inside.Masquerade {
				line += " masquerade"
			}
		}
		out = append(out, line)
	}
	slices.Sort(out)
	if r.health != 0 {
		out = append(out, fmt.Sprintf("health %d: %d", r.health, r.locals))
	}
	return out
}

func external(local bool, ips ...string) func(*corev1.Service) {
	return func(s *corev1.Service) {
		s.Spec.Type, s.Spec.HealthCheckNodePort = corev1.ServiceTypeLoadBalancer, 31000
		if local {
			s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
		}
		for _, ip := range ips {
			s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: ip})
		}
	}
}

func internalLocal(s *corev1.Service) {
	s.Spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal)
}

func outerLocal(s *corev1.Service) {
	s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
}

func TestRealise(t *testing.T) {
	onLeg := here
	onLeg.Leg = true
	rules := Rules{ExternalIPs: []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}}
	every := Rules{ClusterIPs: true}
	const (
		nodePort  = "tcp 0.0.0.0:30080 ->"
		clusterIP = "tcp 10.96.0.10:80 ->"
		near      = "10.128.0.5 n1"
		far       = "10.128.0.6 n2"
	)
	for name, row := range map[string]struct {
		rules   Rules
		node    Node
		service *corev1.Service
		slices  []*discoveryv1.EndpointSlice
		want    []string
	}{
		"a NodePort, with an endpoint here": {rules, here, of(), []*discoveryv1.EndpointSlice{sliceOf("a", near)}, []string{nodePort + " 10.128.0.5:8080"}},
		"and one elsewhere, whose answers would not come by this node": {rules, here, of(), []*discoveryv1.EndpointSlice{sliceOf("a", near, far)},
			[]string{nodePort + " 10.128.0.5:8080 10.128.0.6:8080 masquerade"}},
		"pods beyond the node's own port answer by their router": {rules, onLeg, of(outerLocal), []*discoveryv1.EndpointSlice{sliceOf("a", near)},
			[]string{nodePort + " 10.128.0.5:8080 masquerade"}},
		"but who is on the node's own network does not": {rules, onLeg, of(outerLocal), []*discoveryv1.EndpointSlice{sliceOf("a", "192.0.2.1 n1")},
			[]string{nodePort + " 192.0.2.1:8080"}},
		"nobody answers": {rules, here, of(), nil, []string{nodePort + " reject"}},
		"nobody is ready, and none serves": {rules, here, of(), []*discoveryv1.EndpointSlice{sliceOf("a", near+" unready", far+" terminating", "10.128.0.7 n1 unready terminating")},
			[]string{nodePort + " 10.128.0.6:8080 masquerade"}},
		"who terminates serves only where nobody else does": {rules, here, of(), []*discoveryv1.EndpointSlice{sliceOf("a", near+" terminating", "10.128.0.7 n1")},
			[]string{nodePort + " 10.128.0.7:8080 drains=10.128.0.5:8080"}},
		"but who terminates and does not serve keeps nothing": {rules, here, of(), []*discoveryv1.EndpointSlice{sliceOf("a", near+" unready terminating", "10.128.0.7 n1", "10.128.0.8 n1 unready")},
			[]string{nodePort + " 10.128.0.7:8080"}},
		"local, and one of two terminates": {rules, here, of(outerLocal), []*discoveryv1.EndpointSlice{sliceOf("a", near+" terminating", "10.128.0.7 n1", far, "10.128.0.8 n2 terminating")},
			[]string{nodePort + " 10.128.0.7:8080 drains=10.128.0.5:8080 drains=10.128.0.8:8080 inside: 10.128.0.6:8080 10.128.0.7:8080 masquerade"}},
		"local": {rules, here, of(outerLocal), []*discoveryv1.EndpointSlice{sliceOf("a", near, far)}, []string{nodePort + " 10.128.0.5:8080 inside: 10.128.0.5:8080 10.128.0.6:8080 masquerade"}},
		"local, but there is none: another node is to be tried": {rules, here, of(outerLocal), []*discoveryv1.EndpointSlice{sliceOf("a", far)}, []string{nodePort + " drop inside: 10.128.0.6:8080 masquerade"}},
		"local, and none anywhere":                              {rules, here, of(outerLocal), nil, []string{nodePort + " reject"}},
		"local, and it terminates": {rules, here, of(outerLocal), []*discoveryv1.EndpointSlice{sliceOf("a", near+" terminating", far)},
			[]string{nodePort + " 10.128.0.5:8080 inside: 10.128.0.6:8080 masquerade"}},
		"a load balancer's address": {rules, here, of(external(false, "203.0.113.7")), []*discoveryv1.EndpointSlice{sliceOf("a", near)},
			[]string{nodePort + " 10.128.0.5:8080", "tcp 203.0.113.7:80 -> 10.128.0.5:8080"}},
		"is a proxy's": {rules, here, of(external(false, "203.0.113.7"), func(s *corev1.Service) {
			s.Status.LoadBalancer.Ingress[0].IPMode = new(corev1.LoadBalancerIPModeProxy)
		}), nil, []string{nodePort + " reject"}},
		"for some clients": {rules, here, of(external(false, "203.0.113.7"), func(s *corev1.Service) { s.Spec.LoadBalancerSourceRanges = []string{" 192.0.2.0/24 ", "fd00::/8"} }),
			[]*discoveryv1.EndpointSlice{sliceOf("a", near)}, []string{nodePort + " 10.128.0.5:8080", "tcp 203.0.113.7:80 -> 10.128.0.5:8080 from=192.0.2.0/24"}},
		"for clients of the other family": {rules, here, of(external(false, "203.0.113.7"), func(s *corev1.Service) { s.Spec.LoadBalancerSourceRanges = []string{"fd00::/8"} }),
			[]*discoveryv1.EndpointSlice{sliceOf("a", near, "10.128.0.7 n1 terminating")}, []string{nodePort + " 10.128.0.5:8080 drains=10.128.0.7:8080", "tcp 203.0.113.7:80 -> drop"}},
		"for all": {rules, here, of(external(false, "203.0.113.7"), func(s *corev1.Service) { s.Spec.LoadBalancerSourceRanges = []string{"192.0.2.0/24", "0.0.0.0/0"} }),
			[]*discoveryv1.EndpointSlice{sliceOf("a", near)}, []string{nodePort + " 10.128.0.5:8080", "tcp 203.0.113.7:80 -> 10.128.0.5:8080"}},
		"for clients of what is no range": {rules, here, of(external(false, "203.0.113.7"), func(s *corev1.Service) { s.Spec.LoadBalancerSourceRanges = []string{"010.0.0.0/8"} }),
			[]*discoveryv1.EndpointSlice{sliceOf("a", near)}, []string{nodePort + " 10.128.0.5:8080", "tcp 203.0.113.7:80 -> drop"}},
		"a load balancer's address that is the ClusterIP": {rules, here, of(external(true, "10.96.0.10")), []*discoveryv1.EndpointSlice{sliceOf("a", far)},
			[]string{nodePort + " drop inside: 10.128.0.6:8080 masquerade", "health 31000: 0"}},
		"local, with a health check": {rules, here, of(external(true, "203.0.113.7")), []*discoveryv1.EndpointSlice{sliceOf("a", near, far, "10.128.0.7 n1 unready")},
			[]string{nodePort + " 10.128.0.5:8080 inside: 10.128.0.5:8080 10.128.0.6:8080 masquerade", "tcp 203.0.113.7:80 -> 10.128.0.5:8080 inside: 10.128.0.5:8080 10.128.0.6:8080 masquerade", "health 31000: 1"}},
		"a health check of two families": {rules, here, of(external(true)), []*discoveryv1.EndpointSlice{sliceOf("a", near), sliceOf("b", "fd00::5 n1")},
			[]string{nodePort + " 10.128.0.5:8080", "health 31000: 1"}},
		"without NodePorts": {rules, here, of(external(true, "203.0.113.7"), func(s *corev1.Service) { s.Spec.Ports[0].NodePort = 0 }), []*discoveryv1.EndpointSlice{sliceOf("a", far)},
			[]string{"tcp 203.0.113.7:80 -> drop inside: 10.128.0.6:8080 masquerade", "health 31000: 0"}},
		"external addresses, one of them allowed": {rules, here, of(func(s *corev1.Service) { s.Spec.ExternalIPs = []string{"198.51.100.7", "203.0.113.9", "198.51.100.7"} }),
			[]*discoveryv1.EndpointSlice{sliceOf("a", near)}, []string{nodePort + " 10.128.0.5:8080", "tcp 198.51.100.7:80 -> 10.128.0.5:8080"}},
		"an address claimed twice is the load balancer's": {rules, here, of(external(false, "198.51.100.7"), func(s *corev1.Service) {
			s.Spec.ExternalIPs, s.Spec.LoadBalancerSourceRanges = []string{"198.51.100.7"}, []string{"192.0.2.0/24"}
		}), []*discoveryv1.EndpointSlice{sliceOf("a", near)}, []string{nodePort + " 10.128.0.5:8080", "tcp 198.51.100.7:80 -> 10.128.0.5:8080 from=192.0.2.0/24"}},
		"affinity": {rules, here, of(func(s *corev1.Service) {
			s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
			s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: new(int32(60))}}
		}), []*discoveryv1.EndpointSlice{sliceOf("a", near)}, []string{nodePort + " 10.128.0.5:8080 affinity=1m0s"}},
		"hints of zones": {rules, here, of(), []*discoveryv1.EndpointSlice{sliceOf("a", near+" zone=z1", "10.128.0.7 n1 zone=z2")}, []string{nodePort + " 10.128.0.5:8080 drains=10.128.0.7:8080"}},
		"hints that not all have": {rules, here, of(), []*discoveryv1.EndpointSlice{sliceOf("a", near+" zone=z1", "10.128.0.7 n1")},
			[]string{nodePort + " 10.128.0.5:8080 10.128.0.7:8080"}},
		"hints of other zones": {rules, here, of(), []*discoveryv1.EndpointSlice{sliceOf("a", near+" zone=z2", "10.128.0.7 n1 zone=z2")},
			[]string{nodePort + " 10.128.0.5:8080 10.128.0.7:8080"}},
		"hints of who is not ready do not count": {rules, here, of(), []*discoveryv1.EndpointSlice{sliceOf("a", near+" zone=z1", "10.128.0.7 n1 unready", "10.128.0.8 n1 zone=z2")},
			[]string{nodePort + " 10.128.0.5:8080 drains=10.128.0.8:8080"}},
		"hints of nodes go before those of zones": {rules, here, of(), []*discoveryv1.EndpointSlice{sliceOf("a", near+" zone=z1 node=n1", "10.128.0.7 n1 zone=z1 node=n3")},
			[]string{nodePort + " 10.128.0.5:8080 drains=10.128.0.7:8080"}},
		"hints of other nodes": {rules, here, of(), []*discoveryv1.EndpointSlice{sliceOf("a", near+" zone=z1 node=n3", "10.128.0.7 n1 zone=z2 node=n4")},
			[]string{nodePort + " 10.128.0.5:8080 drains=10.128.0.7:8080"}},
		"hints do not count where only endpoints here do": {rules, here, of(outerLocal), []*discoveryv1.EndpointSlice{sliceOf("a", near+" zone=z2", "10.128.0.7 n2 zone=z1")},
			[]string{nodePort + " 10.128.0.5:8080 inside: 10.128.0.7:8080 masquerade"}},
		"an endpoint in two slices":    {rules, here, of(), []*discoveryv1.EndpointSlice{sliceOf("a", near+" unready"), sliceOf("b", near)}, []string{nodePort + " 10.128.0.5:8080"}},
		"of an address that is none's": {rules, here, of(), []*discoveryv1.EndpointSlice{sliceOf("a", "127.0.0.1 n1", "224.0.0.1 n1", near)}, []string{nodePort + " 10.128.0.5:8080"}},
		"another port of the slice": {rules, here, of(func(s *corev1.Service) { s.Spec.Ports[0].Name = "https" }), []*discoveryv1.EndpointSlice{sliceOf("a", near)},
			[]string{nodePort + " reject"}},
		"two protocols on one port": {rules, here, of(func(s *corev1.Service) {
			s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: "quic", Protocol: corev1.ProtocolUDP, Port: 80, NodePort: 30080})
		}), []*discoveryv1.EndpointSlice{sliceOf("a", near)}, []string{nodePort + " 10.128.0.5:8080", "udp 0.0.0.0:30080 -> reject"}},
		"two families": {rules, here, of(func(s *corev1.Service) { s.Spec.ClusterIPs = append(s.Spec.ClusterIPs, "fd00:96::10") }),
			[]*discoveryv1.EndpointSlice{sliceOf("a", near), sliceOf("b", "fd00::5 n1")}, []string{nodePort + " 10.128.0.5:8080", "tcp [::]:30080 -> [fd00::5]:8080"}},
		"a ClusterIP is the SDN's": {rules, here, of(func(s *corev1.Service) { s.Spec.Ports[0].NodePort = 0 }), []*discoveryv1.EndpointSlice{sliceOf("a", near)}, nil},
		"or the node's":            {every, onLeg, of(func(s *corev1.Service) { s.Spec.Ports[0].NodePort = 0 }), []*discoveryv1.EndpointSlice{sliceOf("a", near)}, []string{clusterIP + " 10.128.0.5:8080 masquerade"}},
		"inside only here":         {every, here, of(internalLocal), []*discoveryv1.EndpointSlice{sliceOf("a", near, far)}, []string{nodePort + " 10.128.0.5:8080 10.128.0.6:8080 masquerade", clusterIP + " 10.128.0.5:8080 drains=10.128.0.6:8080"}},
		"inside, but none here":    {every, here, of(internalLocal), []*discoveryv1.EndpointSlice{sliceOf("a", far)}, []string{nodePort + " 10.128.0.6:8080 masquerade", clusterIP + " drains=10.128.0.6:8080 drop"}},
		"inside, but none here, where pods' connections come to any node": {every, onLeg, of(internalLocal), []*discoveryv1.EndpointSlice{sliceOf("a", far)},
			[]string{nodePort + " 10.128.0.6:8080 masquerade", clusterIP + " 10.128.0.6:8080 masquerade"}},
		"and one here": {every, onLeg, of(internalLocal), []*discoveryv1.EndpointSlice{sliceOf("a", near, far)},
			[]string{nodePort + " 10.128.0.5:8080 10.128.0.6:8080 masquerade", clusterIP + " 10.128.0.5:8080 drains=10.128.0.6:8080 masquerade"}},
		"headless":        {every, here, of(func(s *corev1.Service) { s.Spec.ClusterIP, s.Spec.ClusterIPs = "None", []string{"None"} }), []*discoveryv1.EndpointSlice{sliceOf("a", near)}, nil},
		"by a label":      {every, here, of(func(s *corev1.Service) { s.Labels = map[string]string{labelHeadless: ""} }), []*discoveryv1.EndpointSlice{sliceOf("a", near)}, nil},
		"another proxy's": {every, here, of(func(s *corev1.Service) { s.Labels = map[string]string{labelProxyName: "x"} }), []*discoveryv1.EndpointSlice{sliceOf("a", near)}, nil},
		"a name elsewhere": {every, here, of(func(s *corev1.Service) {
			s.Spec.Type, s.Spec.ClusterIP, s.Spec.ClusterIPs = corev1.ServiceTypeExternalName, "", nil
		}), nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var all []*slice
			for _, o := range row.slices {
				all = append(all, newSlice(o, row.node.Name))
			}
			got := picture(row.rules.realise(row.rules.service(row.service), all, row.node))
			if !slices.Equal(got, row.want) {
				t.Errorf("got\n %s\nwant\n %s", strings.Join(got, "\n "), strings.Join(row.want, "\n "))
			}
		})
	}
}
