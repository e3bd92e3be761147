package proxy

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kuryr/kuryr/sdn"
)

// Labels by which a Service is another's to realise, or nobody's (kube-proxy's selector).
const (
	labelProxyName = "service.kubernetes.io/service-proxy-name"
	labelHeadless  = corev1.IsHeadlessService
)

// service is what is kept of a Service.
type service struct {
	uid     types.UID
	created time.Time

	clusterIPs []netip.Addr // one of each of its families
	external   []netip.Addr // of spec.externalIPs, those that are allowed
	ingress    []netip.Addr // of status.loadBalancer, those that are for nodes to answer at
	sources    []netip.Prefix
	affinity   time.Duration
	localIn    bool // internalTrafficPolicy is Local
	localOut   bool // externalTrafficPolicy is Local
	health     uint16
	ports      []servicePort

	refused        []netip.Addr // of spec.externalIPs, those that are not allowed
	refusedIngress []netip.Addr // of status.loadBalancer, those that are not allowed
}

// claimed are the addresses that a Service asks for beside its ClusterIPs.
func (s *service) claimed() []netip.Addr {
	all := slices.Concat(s.external, s.ingress)
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all)
}

type servicePort struct {
	name       string
	protocol   sdn.Protocol
	port, node uint16
}

// Rules are what an administrator allows and wants.
type Rules struct {
	// ClusterIPs has the node balance these too, where the SDN does not.
	ClusterIPs bool
	// ExternalIPs are the ranges that spec.externalIPs may be of. None allows none: whoever may write a Service would take any address's traffic over (CVE-2020-8554).
	ExternalIPs []netip.Prefix
	// LoadBalancerIPs are the ranges that addresses of status.loadBalancer may be of. None
	// allows all: Kubernetes lets only load balancer controllers write them. An address that is
	// the ClusterIP of another Service is refused in any case.
	LoadBalancerIPs []netip.Prefix
}

// service takes of a Service what its realisation depends on; nil is that there is nothing for the node to do.
func (r Rules) service(o *corev1.Service) *service {
	if _, others := o.Labels[labelProxyName]; others || o.Spec.Type == corev1.ServiceTypeExternalName {
		return nil
	}
	if _, headless := o.Labels[labelHeadless]; headless || o.Spec.ClusterIP == corev1.ClusterIPNone {
		return nil
	}
	s := &service{uid: o.UID, created: o.CreationTimestamp.Time}
	s.clusterIPs = clusterIPs(o)
	for _, text := range o.Spec.ExternalIPs {
		a, ok := address(text)
		switch {
		case !ok || slices.Contains(s.external, a):
		case !unicast(a):
			s.refused = append(s.refused, a)
		case within(r.ExternalIPs, a):
			s.external = append(s.external, a)
		default:
			s.refused = append(s.refused, a)
		}
	}
	balancer := o.Spec.Type == corev1.ServiceTypeLoadBalancer
	if balancer {
		for _, a := range ingress(o.Status.LoadBalancer.Ingress) {
			if len(r.LoadBalancerIPs) == 0 || within(r.LoadBalancerIPs, a) || slices.Contains(s.clusterIPs, a) {
				s.ingress = append(s.ingress, a)
			} else {
				s.refusedIngress = append(s.refusedIngress, a)
			}
		}
		s.sources = sources(o.Spec.LoadBalancerSourceRanges)
	}
	nodePorts := false
	for _, p := range o.Spec.Ports {
		protocol, ok := protocolOf(p.Protocol)
		if !ok {
			continue
		}
		s.ports = append(s.ports, servicePort{name: strings.Clone(p.Name), protocol: protocol, port: uint16(p.Port), node: uint16(p.NodePort)})
		nodePorts = nodePorts || p.NodePort != 0
	}
	outer := nodePorts || len(s.external)+len(s.ingress) > 0
	s.localIn = o.Spec.InternalTrafficPolicy != nil && *o.Spec.InternalTrafficPolicy == corev1.ServiceInternalTrafficPolicyLocal
	s.localOut = o.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
	if balancer && s.localOut {
		s.health = uint16(o.Spec.HealthCheckNodePort)
	}
	if o.Spec.SessionAffinity == corev1.ServiceAffinityClientIP {
		s.affinity = affinity(o.Spec.SessionAffinityConfig)
	}
	if !outer && s.health == 0 && !r.ClusterIPs && len(s.refused)+len(s.refusedIngress) == 0 {
		return nil
	}
	return s
}

// clusterIPs are the ClusterIPs of a Service, each once.
func clusterIPs(o *corev1.Service) (out []netip.Addr) {
	for _, text := range slices.Concat([]string{o.Spec.ClusterIP}, o.Spec.ClusterIPs) {
		if a, ok := address(text); ok && !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	return out
}

func within(ranges []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(a) })
}

// ingress are a load balancer's addresses that clients' packets still carry when they come to a node: not those of a proxy (ipMode).
func ingress(list []corev1.LoadBalancerIngress) (out []netip.Addr) {
	for _, i := range list {
		if a, ok := address(i.IP); ok && unicast(a) && (i.IPMode == nil || *i.IPMode == corev1.LoadBalancerIPModeVIP) && !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	return out
}

// sources are the ranges; the API takes blanks around them. What is none, such as one with leading zeros that it took of old, is the zero Prefix: it lets nobody in, and none is not all.
func sources(list []string) (out []netip.Prefix) {
	for _, text := range list {
		p, _ := netip.ParsePrefix(strings.TrimSpace(text))
		out = append(out, p.Masked())
	}
	return out
}

func affinity(c *corev1.SessionAffinityConfig) time.Duration {
	if c == nil || c.ClientIP == nil || c.ClientIP.TimeoutSeconds == nil {
		return time.Duration(corev1.DefaultClientIPServiceAffinitySeconds) * time.Second
	}
	return time.Duration(*c.ClientIP.TimeoutSeconds) * time.Second
}

// address reads what the API has accepted, and what it accepted of old: leading zeros are decimal to nobody any more, and such an address is none.
func address(text string) (netip.Addr, bool) {
	a, err := netip.ParseAddr(text)
	return a.Unmap(), err == nil
}

// unicast tells whether an address can be balanced, or be an endpoint: the kernel has others to itself.
func unicast(a netip.Addr) bool {
	return !a.IsUnspecified() && !a.IsLoopback() && !a.IsMulticast() && a.Zone() == ""
}

func protocolOf(p corev1.Protocol) (sdn.Protocol, bool) {
	switch p {
	case corev1.ProtocolTCP, "":
		return sdn.TCP, true
	case corev1.ProtocolUDP:
		return sdn.UDP, true
	case corev1.ProtocolSCTP:
		return sdn.SCTP, true
	}
	return 0, false
}
