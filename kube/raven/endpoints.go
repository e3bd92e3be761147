package raven

import (
	"net/netip"
	"slices"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// endpoint is one that answers for a port of a Service.
type endpoint struct {
	addr   netip.AddrPort
	pod    string // "" where it is none
	drains bool   // it answers those that it has, and gets no new ones
}

// portName is how EndpointSlices name a Service's port.
type portName struct {
	name     string
	protocol string
}

// endpointsOf gives, of one family, who answers for each port of a Service, in the order of addresses. Which slice has an endpoint, in what order slices come, and whether two have
// the same one does not matter. Those that are ready answer; where none is, those that are being ended and still serve (KEP-1669), which else drain, and come last. What slices say of zones and of
// nodes is for proxies of nodes: a VIP in the SDN is one for the whole cluster. With publishNotReadyAddresses the control plane calls all that it writes there ready.
func endpointsOf(ports []v1.LoadBalancerPort, all []discoveryv1.EndpointSlice, six bool) map[portName][]endpoint {
	type known struct {
		pod              string
		ready, finishing bool
	}
	found := map[portName]map[netip.AddrPort]known{}
	for _, p := range ports {
		found[portName{p.Name, p.Protocol}] = map[netip.AddrPort]known{}
	}
	family := discoveryv1.AddressTypeIPv4
	if six {
		family = discoveryv1.AddressTypeIPv6
	}
	for i := range all {
		slice := &all[i]
		if slice.AddressType != family || !slice.DeletionTimestamp.IsZero() || !oursByLabels(slice.Labels) {
			continue
		}
		for _, p := range slice.Ports {
			of := found[nameOf(p)]
			if of == nil || p.Port == nil || *p.Port < 1 || *p.Port > 65535 {
				continue
			}
			for j := range slice.Endpoints {
				e := &slice.Endpoints[j]
				addr, ok := addressOf(e, six)
				if !ok {
					continue
				}
				at := netip.AddrPortFrom(addr, uint16(*p.Port))
				is := of[at]
				is.ready = is.ready || yes(e.Conditions.Ready)
				is.finishing = is.finishing || e.Conditions.Terminating != nil && *e.Conditions.Terminating && yes(e.Conditions.Serving)
				if e.TargetRef != nil && e.TargetRef.Kind == "Pod" && is.pod < e.TargetRef.Name {
					is.pod = e.TargetRef.Name
				}
				of[at] = is
			}
		}
	}
	out := map[portName][]endpoint{}
	for name, of := range found {
		var ready, finishing []endpoint
		for addr, is := range of {
			switch {
			case is.ready:
				ready = append(ready, endpoint{addr: addr, pod: is.pod})
			case is.finishing:
				finishing = append(finishing, endpoint{addr: addr, pod: is.pod})
			}
		}
		for i := range finishing {
			finishing[i].drains = len(ready) > 0
		}
		for _, list := range [][]endpoint{ready, finishing} {
			slices.SortFunc(list, func(a, b endpoint) int { return a.addr.Compare(b.addr) })
		}
		out[name] = append(ready, finishing...)
	}
	return out
}

func nameOf(p discoveryv1.EndpointPort) portName {
	n := portName{protocol: string(corev1.ProtocolTCP)}
	if p.Name != nil {
		n.name = *p.Name
	}
	if p.Protocol != nil && *p.Protocol != "" {
		n.protocol = string(*p.Protocol)
	}
	return n
}

// addressOf is an endpoint's address: of several any one does. One that no other machine could mean, which a hand-made slice may have, is none.
func addressOf(e *discoveryv1.Endpoint, six bool) (netip.Addr, bool) {
	if len(e.Addresses) == 0 {
		return netip.Addr{}, false
	}
	a, err := netip.ParseAddr(e.Addresses[0])
	bad := err != nil || a.Zone() != "" || a.Is4In6() || a.Is6() != six || a.IsUnspecified() || a.IsLoopback() || a.IsMulticast() || a.IsLinkLocalUnicast()
	return a, !bad
}

// yes reads a condition, of which none is true.
func yes(condition *bool) bool { return condition == nil || *condition }

// StripSlice takes from an EndpointSlice what Raven does not look at, so that the cache of a large cluster stays small.
func StripSlice(o any) (any, error) {
	s, ok := o.(*discoveryv1.EndpointSlice)
	if !ok {
		return o, nil
	}
	s.ManagedFields, s.OwnerReferences, s.Annotations = nil, nil, nil
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		kept := discoveryv1.Endpoint{Addresses: e.Addresses, Conditions: e.Conditions}
		if e.TargetRef != nil {
			kept.TargetRef = &corev1.ObjectReference{Kind: e.TargetRef.Kind, Name: e.TargetRef.Name}
		}
		*e = kept
	}
	return s, nil
}
