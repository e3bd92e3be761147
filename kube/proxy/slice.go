package proxy

import (
	"net/netip"
	"slices"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kuryr/kuryr/sdn"
)

// slice is what is kept of an EndpointSlice.
type slice struct {
	name      string
	ports     []slicePort
	endpoints []endpoint
}

type slicePort struct {
	name     string
	protocol sdn.Protocol
	port     uint16
}

// endpoint is one address of a slice.
type endpoint struct {
	addr  netip.Addr
	state state
	zones []string // that it is hinted for
}

// state is what is to be known of an endpoint, a bit each.
type state uint8

const (
	ready state = 1 << iota
	serving
	terminating
	local    // it is on this node
	hasNodes // it is hinted for some nodes
	forNode  // this one among them
)

func (s state) is(all state) bool { return s&all == all }

// newSlice takes of an EndpointSlice what is needed on this node; nil is nothing.
func newSlice(o *discoveryv1.EndpointSlice, node string) *slice {
	if o.AddressType != discoveryv1.AddressTypeIPv4 && o.AddressType != discoveryv1.AddressTypeIPv6 {
		return nil
	}
	s := &slice{name: o.Name}
	for _, p := range o.Ports {
		if p.Port == nil || *p.Port <= 0 { // the kernel is not asked for what it could not do
			continue
		}
		one := slicePort{protocol: sdn.TCP, port: uint16(*p.Port)}
		ok := true
		if p.Name != nil {
			one.name = strings.Clone(*p.Name)
		}
		if p.Protocol != nil {
			one.protocol, ok = protocolOf(*p.Protocol)
		}
		if ok {
			s.ports = append(s.ports, one)
		}
	}
	for i := range o.Endpoints {
		if e, ok := newEndpoint(&o.Endpoints[i], node); ok && e.addr.Is4() == (o.AddressType == discoveryv1.AddressTypeIPv4) {
			s.endpoints = append(s.endpoints, e)
		}
	}
	return s
}

// newEndpoint reads an endpoint. Of its addresses, which all mean the same one, the first is used, as by kube-proxy. What a condition does not say is as
// Kubernetes says: ready and serving, not terminating.
func newEndpoint(o *discoveryv1.Endpoint, node string) (e endpoint, ok bool) {
	if len(o.Addresses) == 0 {
		return e, false
	}
	if e.addr, ok = address(o.Addresses[0]); !ok || !unicast(e.addr) {
		return e, false
	}
	set := func(bit state, is bool) {
		if is {
			e.state |= bit
		}
	}
	unless := func(b *bool, otherwise bool) bool {
		if b == nil {
			return otherwise
		}
		return *b
	}
	set(ready, unless(o.Conditions.Ready, true))
	set(serving, unless(o.Conditions.Serving, true))
	set(terminating, unless(o.Conditions.Terminating, false))
	set(local, o.NodeName != nil && *o.NodeName == node)
	if o.Hints != nil {
		set(hasNodes, len(o.Hints.ForNodes) > 0)
		set(forNode, slices.ContainsFunc(o.Hints.ForNodes, func(n discoveryv1.ForNode) bool { return n.Name == node }))
		for _, z := range o.Hints.ForZones {
			e.zones = append(e.zones, strings.Clone(z.Name))
		}
	}
	return e, true
}
