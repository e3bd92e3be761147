package raven

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/sdn"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// balancerOf is what one VIP's load balancer is to be in the SDN: a listener for each port, with the endpoints for its members.
type balancerOf struct {
	spec      *v1.KuryrLoadBalancerSpec
	base      sdn.Base
	vip       sdn.VIP
	six       bool
	own       bool // the VIP is the Service's own, or a shared one, and no ClusterIP; the SDN chooses its address
	floats    bool // a floating IP leads to the VIP
	leaves    bool // the router has a way out for its family
	can       sdn.LoadBalancerCapabilities
	cluster   []netip.Prefix // whose addresses may connect whatever the Service's sources are
	endpoints map[portName][]endpoint
	subnet    func(netip.Addr) sdn.ID // that an endpoint is on; "" for one that is no pod's
	vips      []netip.Addr            // the Service's, of which none is an endpoint
	// barred reports whether an endpoint is one that pods are kept from; nil is none.
	barred func(e endpoint, p sdn.Protocol) bool
}

// What the owner of a Service is told of endpoints that are none in the SDN. How many there are would be news each time.
const (
	noteBeyond    = "not all endpoints are served: some are on no network of the namespace's, "
	noteWayless   = noteBeyond + "and the router has no way out for their family"
	noteMonitored = noteBeyond + "and such the SDN's load balancers do not check: not with the annotation enable-health-monitor"
	noteFloating  = noteBeyond + "and to such no floating IP leads"
	noteRound     = "not all endpoints are served: one is a VIP of the Service itself, where its connections would go round for ever"
	noteNodes     = "not all endpoints are served: some are on the nodes' network, which controller.underlay_isolation " +
		"keeps pods from, and the namespace is not granted them (" + v1.AnnotationAllowEndpoints + ")"
	noteMany = "not all endpoints are served: a port has more than the %d that the SDN's load balancers have room for"
)

// loadBalancer gives it, and the different endpoints that get new connections. The notes tell which endpoints are not served to all who ask.
func (b balancerOf) loadBalancer() (spec sdn.LoadBalancerSpec, members map[netip.Addr]bool, notes []string) {
	options := b.spec.Options
	spec = sdn.LoadBalancerSpec{Base: b.base, VIPs: []sdn.VIP{b.vip}, Backend: options.Provider, Flavor: options.Flavor, Zone: options.Zone}
	members = map[netip.Addr]bool{}
	for _, p := range b.spec.Ports {
		l := sdn.Listener{
			Name: listenerName(p), Protocol: protocols[corev1.Protocol(p.Protocol)], Port: uint16(p.Port), Sources: b.sources(), ConnectionLimit: int(options.ConnectionLimit),
			ClientTimeout: length(options.ClientTimeout), MemberTimeout: length(options.MemberTimeout), ConnectTimeout: length(options.ConnectTimeout), InspectTimeout: length(options.InspectTimeout),
			Pool: sdn.Pool{Algorithm: sdn.Algorithm(options.Method), Affinity: b.affinity(p), Health: health(options.HealthMonitor, p.Protocol)},
		}
		if l.Protocol == sdn.TCP { // of which alone these are
			l.ProxyProtocol, l.ProxyVersion = options.ProxyProtocol > 0, int(options.ProxyProtocol)
			l.ForwardedFor, l.Certificate = options.ForwardedFor, options.Certificate
		}
		var more []string
		all := b.endpoints[portName{p.Name, p.Protocol}]
		if served := b.unbarred(all, l.Protocol); len(served) < len(all) {
			all, notes = served, append(notes, noteNodes)
		}
		l.Pool.Members, more = b.members(all)
		notes = append(notes, more...)
		for _, m := range l.Pool.Members {
			if !m.Drain {
				members[m.Addr.Addr()] = true
			}
		}
		spec.Listeners = append(spec.Listeners, l)
	}
	return spec, members, notes
}

// unbarred returns the endpoints that pods are not kept from.
func (b balancerOf) unbarred(all []endpoint, p sdn.Protocol) []endpoint {
	if b.barred == nil {
		return all
	}
	return slices.DeleteFunc(slices.Clone(all), func(e endpoint) bool { return b.barred(e, p) })
}

// members are the endpoints of one port, but for VIPs of the Service itself and for what the SDN has no room for. Endpoints on no network of the namespace's an SDN may serve to clients in it alone,
// by the router's way out: they are left out where it has none, where there is a health monitor, and where a floating IP leads to others. Where there are no others they stay, and the
// floating IP leads to nobody. One that drains is a member where the SDN knows such, and else none: its end is one change then. The notes tell what is not served.
func (b balancerOf) members(endpoints []endpoint) (all []sdn.Member, notes []string) {
	var near []sdn.Member
	for _, e := range endpoints {
		if e.drains && !b.can.Drain {
			continue
		}
		if slices.Contains(b.vips, e.addr.Addr()) {
			notes = append(notes, noteRound)
			continue
		}
		m := sdn.Member{Name: e.pod, Addr: e.addr, Subnet: b.subnet(e.addr.Addr()), Drain: e.drains}
		all = append(all, m)
		if m.Subnet != "" {
			near = append(near, m)
		}
	}
	switch {
	case b.can.AnyMember || len(near) == len(all):
	case !b.leaves:
		all, notes = near, append(notes, noteWayless)
	case b.spec.Options.HealthMonitor != nil:
		all, notes = near, append(notes, noteMonitored)
	case b.floats:
		notes = append(notes, noteFloating)
		if slices.ContainsFunc(near, func(m sdn.Member) bool { return !m.Drain }) {
			all = near
		}
	}
	if most := b.can.Members; most > 0 && len(all) > most {
		if !all[most].Drain {
			notes = append(notes, fmt.Sprintf(noteMany, most))
		}
		all = all[:most]
	}
	return all, notes
}

func listenerName(p v1.LoadBalancerPort) string {
	if p.Name == "" {
		return fmt.Sprintf("%s:%d", p.Protocol, p.Port)
	}
	return fmt.Sprintf("%s:%d:%s", p.Protocol, p.Port, p.Name)
}

// name tells the VIPs of a Service apart.
func (b balancerOf) name() string {
	if b.own {
		return "own" + familyOf(b.six)
	}
	return b.vip.Addr.String()
}

// shown tells whether this is what a KuryrLoadBalancer's status tells of the VIP.
func (b balancerOf) shown(of v1.LoadBalancerOfVIP) bool {
	if b.own {
		return of.Own && isFamily(of.VIP, b.six)
	}
	return !of.Own && of.VIP == b.vip.Addr.String()
}

// sources are who may connect. A VIP that is the ClusterIP too all of the cluster may reach whatever the Service says of the outside, and one that is not for the outside everybody.
func (b balancerOf) sources() (all []netip.Prefix) {
	if apart := b.spec.OwnVIPs || b.spec.SharedID != ""; len(b.spec.Sources) == 0 || apart && !b.own {
		return nil
	}
	six := b.six
	for _, text := range b.spec.Sources {
		if p, err := netip.ParsePrefix(text); err == nil && p.Addr().Is6() == six {
			all = append(all, p)
		}
	}
	for _, p := range b.cluster {
		if p.Addr().Is6() == six {
			all = append(all, p)
		}
	}
	slices.SortFunc(all, netip.Prefix.Compare)
	all = slices.Compact(all)
	if len(all) == 0 { // none would be everyone
		all = []netip.Prefix{nobody(six)}
	}
	return all
}

// nobody is a range that no packet comes from.
func nobody(six bool) netip.Prefix {
	if six {
		return netip.PrefixFrom(netip.IPv6Loopback(), 128)
	}
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), 32)
}

func (b balancerOf) affinity(p v1.LoadBalancerPort) sdn.Affinity {
	if b.spec.AffinitySeconds == nil || !b.can.Affinity {
		return sdn.Affinity{}
	}
	a := sdn.Affinity{ClientIP: true}
	if p.Protocol != string(corev1.ProtocolTCP) || b.can.AffinityTCP {
		a.Timeout = time.Duration(*b.spec.AffinitySeconds) * time.Second
	}
	return a
}

// health is the monitor, of the type that fits the protocol (Octavia's names).
func health(m *v1.LoadBalancerHealthMonitor, protocol string) *sdn.HealthMonitor {
	if m == nil {
		return nil
	}
	types := map[string]string{"TCP": "TCP", "UDP": "UDP-CONNECT", "SCTP": "SCTP"}
	return &sdn.HealthMonitor{
		Type: types[protocol], Interval: time.Duration(m.DelaySeconds) * time.Second, Timeout: time.Duration(m.TimeoutSeconds) * time.Second, Rise: int(m.Rise), Fall: int(m.Fall),
	}
}

func length(d *metav1.Duration) time.Duration {
	if d == nil {
		return 0
	}
	return d.Duration
}
