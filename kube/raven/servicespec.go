package raven

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/sdn"
	corev1 "k8s.io/api/core/v1"
)

// labelProxyName says that somebody else serves a Service or an EndpointSlice (KEP-2447).
const labelProxyName = "service.kubernetes.io/service-proxy-name"

// balanced tells whether a Service has VIPs that are Kuryr's to serve. One that is being deleted is served until it has gone, as others' finalizers may keep it.
func balanced(s *corev1.Service) bool {
	return s.Spec.Type != corev1.ServiceTypeExternalName && s.Spec.ClusterIP != "" && s.Spec.ClusterIP != corev1.ClusterIPNone && oursByLabels(s.Labels)
}

// oursByLabels tells whether the labels of a Service or an EndpointSlice leave it to the cluster's own proxy: the same two count for kube-proxy.
func oursByLabels(labels map[string]string) bool {
	_, others := labels[labelProxyName]
	_, headless := labels[corev1.IsHeadlessService]
	return !others && !headless
}

// exposed tells whether a Service is to be reached from outside by what Kuryr does: it is of type LoadBalancer, and its class is Kuryr's or none.
func exposed(s *corev1.Service) bool {
	return s.Spec.Type == corev1.ServiceTypeLoadBalancer && (s.Spec.LoadBalancerClass == nil || *s.Spec.LoadBalancerClass == v1.LoadBalancerClass)
}

// internal tells whether a Service of type LoadBalancer is to be reached at its VIP alone. A word that is neither yes nor no does not send everybody there.
func internal(s *corev1.Service) bool {
	on, known := isInternal(s)
	return on || !known
}

func isInternal(s *corev1.Service) (on, known bool) {
	value := strings.TrimSpace(s.Annotations[annotationInternal])
	if value == "" {
		return false, true
	}
	on, err := strconv.ParseBool(value)
	return on, err == nil
}

// sourcesOf are the ranges that may connect to a Service of type LoadBalancer, as they are written, and where. none is everybody. The annotation counts where the field is empty, as with Kubernetes'
// own helpers for clouds.
func sourcesOf(s *corev1.Service) (ranges []string, where string) {
	if len(s.Spec.LoadBalancerSourceRanges) > 0 {
		return s.Spec.LoadBalancerSourceRanges, "spec.loadBalancerSourceRanges"
	}
	if value := strings.TrimSpace(s.Annotations[corev1.AnnotationLoadBalancerSourceRangesKey]); value != "" {
		ranges = strings.Split(value, ",")
	}
	return ranges, "annotation " + corev1.AnnotationLoadBalancerSourceRangesKey
}

// loadBalancerSpec is what a Service that is balanced says, as far as the SDN can do it. The notes tell its owner what it cannot.
func loadBalancerSpec(s *corev1.Service, can sdn.Capabilities) (spec v1.KuryrLoadBalancerSpec, notes []string) {
	spec = v1.KuryrLoadBalancerSpec{ServiceUID: s.UID, Type: string(s.Spec.Type), VIPs: slices.Clone(s.Spec.ClusterIPs)}
	can.LoadBalancer = can.LoadBalancerOf(strings.TrimSpace(s.Annotations[annotationClass]))
	if spec.Type == "" {
		spec.Type = string(corev1.ServiceTypeClusterIP)
	}
	if len(spec.VIPs) == 0 {
		spec.VIPs = []string{s.Spec.ClusterIP}
	}
	spec.Ports, notes = portsOfService(s, can.LoadBalancer)
	if s.Spec.SessionAffinity == corev1.ServiceAffinityClientIP {
		seconds := corev1.DefaultClientIPServiceAffinitySeconds
		if c := s.Spec.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
			seconds = *c.ClientIP.TimeoutSeconds
		}
		spec.AffinitySeconds = &seconds
		if !can.LoadBalancer.Affinity && hasLoadBalancers(can) {
			notes = append(notes, "spec.sessionAffinity: the SDN's load balancers do not keep clients with their endpoints")
		}
	}
	if hasLoadBalancers(can) && !can.HostReached { // else all clients and endpoints are on one machine
		notes = append(notes, nearness(s, "the SDN's load balancers send to all endpoints, wherever the client is")...)
	}
	var floating v1.LoadBalancerFloatingIP
	options, shared, more := optionsOfService(s, can.LoadBalancer, &floating)
	spec.Options, notes = options, append(notes, more...)
	if !exposed(s) {
		return spec, notes
	}
	sources, where := sourcesOf(s)
	for _, text := range sources {
		p, err := netip.ParsePrefix(strings.TrimSpace(text))
		if err != nil {
			notes = append(notes, fmt.Sprintf("%s: %q is no range", where, text)) // then fewer may connect, not more
			continue
		}
		if !slices.Contains(spec.Sources, p.Masked().String()) {
			spec.Sources = append(spec.Sources, p.Masked().String())
		}
	}
	if _, known := isInternal(s); !known {
		notes = append(notes, fmt.Sprintf("annotation %s: want true or false, so there is no floating IP", annotationInternal))
	}
	if shared != "" && internal(s) {
		notes = append(notes, fmt.Sprintf("annotation %s has no effect: an internal load balancer is not shared", annotationShared))
		shared = ""
	}
	switch {
	case len(spec.Sources) > mostSources:
		spec.Sources = nil
		notes = append(notes, fmt.Sprintf("%s: want at most %d, so there is no floating IP", where, mostSources))
	case len(sources) > 0 && len(spec.Sources) == 0:
		notes = append(notes, where+": none is a range, so there is no floating IP")
	case shared != "":
		if spec.SharedID = shared; s.Spec.LoadBalancerIP != "" {
			notes = append(notes, "spec.loadBalancerIP has no effect: the address is that of the load balancer which is shared")
		}
	case len(spec.Sources) > 0 && !can.LoadBalancer.SourceRanges && hasLoadBalancers(can):
		spec.Sources = nil // with which the SDN would refuse the ClusterIP too
		notes = append(notes, where+": the SDN's load balancers let everybody connect, so there is no floating IP")
	case internal(s):
	case s.Spec.LoadBalancerIP != "" && wantedAddress(s) == "":
		notes = append(notes, fmt.Sprintf("spec.loadBalancerIP: %q is no address, so there is no floating IP", s.Spec.LoadBalancerIP))
	default:
		floating.Address = wantedAddress(s)
		spec.FloatingIP = &floating
	}
	return spec, notes
}

// nearness names what a Service says of where its endpoints are to be from a client, with what becomes of it.
func nearness(s *corev1.Service, all string) (notes []string) {
	if p := s.Spec.InternalTrafficPolicy; p != nil && *p == corev1.ServiceInternalTrafficPolicyLocal {
		notes = append(notes, "spec.internalTrafficPolicy: Local: "+all)
	}
	if d := s.Spec.TrafficDistribution; d != nil {
		notes = append(notes, fmt.Sprintf("spec.trafficDistribution: %s: %s", *d, all))
	} else if mode := s.Annotations[corev1.AnnotationTopologyMode]; strings.EqualFold(mode, "auto") { // then it has its slices hinted
		notes = append(notes, fmt.Sprintf("annotation %s: %s: %s", corev1.AnnotationTopologyMode, mode, all))
	}
	return notes
}

// mostSources is how many ranges a KuryrLoadBalancer has at the most. Kubernetes takes any number.
const mostSources = 1000

func hasLoadBalancers(can sdn.Capabilities) bool { return len(can.LoadBalancer.Protocols) > 0 }

// canBalance is what the SDN can do, its load balancers too: of those an SDN may know nothing until it is asked for one, as Neutron, which learns then whether there is an Octavia. The error
// is that it cannot tell now; that there are none is no error.
func (r *Raven) canBalance(ctx context.Context) (sdn.Capabilities, error) {
	if can := r.SDN.Capabilities(); hasLoadBalancers(can) {
		return can, nil
	}
	nobodys := sdn.LoadBalancerQuery{Match: sdn.Match{Keys: []sdn.Key{r.Key(v1.KeyKindLoadBalancer, "capabilities")}}}
	err := r.Call(ctx, func(ctx context.Context) error {
		_, _, err := sdn.First(r.SDN.FindLoadBalancers(ctx, nobodys))
		return err
	})
	if sdn.IsUnsupported(err) {
		err = nil
	}
	return r.SDN.Capabilities(), err
}

// portsOfService are the ports that the SDN can serve. An SDN without load balancers can serve none, which is told once of all.
func portsOfService(s *corev1.Service, can sdn.LoadBalancerCapabilities) (ports []v1.LoadBalancerPort, notes []string) {
	taken := map[int32]corev1.Protocol{}
	for _, p := range s.Spec.Ports {
		protocol := p.Protocol
		if protocol == "" {
			protocol = corev1.ProtocolTCP
		}
		other, there := taken[p.Port]
		switch {
		case len(can.Protocols) > 0 && !slices.Contains(can.Protocols, protocols[protocol]):
			notes = append(notes, fmt.Sprintf("spec.ports: port %d is of %s, which the SDN's load balancers do not have", p.Port, protocol))
			continue
		case there && len(can.Protocols) > 0 && !can.MixedProtocols:
			notes = append(notes, fmt.Sprintf("spec.ports: port %d is of %s and of %s; the SDN's load balancers have a number for one protocol, so %s is not served", p.Port, other, protocol, protocol))
			continue
		}
		taken[p.Port] = protocol
		one := v1.LoadBalancerPort{Name: p.Name, Protocol: string(protocol), Port: p.Port, TargetPort: p.TargetPort.String()}
		if p.TargetPort.String() == "0" {
			one.TargetPort = "" // the port's own number
		}
		ports = append(ports, one)
	}
	return ports, notes
}

var protocols = map[corev1.Protocol]sdn.Protocol{corev1.ProtocolTCP: sdn.TCP, corev1.ProtocolUDP: sdn.UDP, corev1.ProtocolSCTP: sdn.SCTP}
