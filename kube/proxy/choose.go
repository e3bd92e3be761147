package proxy

import (
	"net/netip"
	"slices"
)

// choice is what of a Service port's endpoints this node sends connections to.
type choice struct {
	cluster []target         // where any endpoint will do
	local   []target         // where only those of this node will
	serving []netip.AddrPort // who keeps the flows that he has, chosen or not
	some    bool             // somebody in the cluster can answer
}

// choose follows Kubernetes: endpoints that are ready and, if every one is hinted, that are hinted for this node, else for its zone, where any are. Of none that is ready, those
// that terminate and still serve. On this node alone likewise, without hints. A flow of UDP goes on for as long as its endpoint serves, whatever is chosen for new ones, as a connection of TCP does.
func choose(all []target, zone string) (c choice) {
	fits := hinted(all, zone)
	c.cluster = pick(all, func(t target) bool { return t.state.is(ready) && fits(t) })
	if len(c.cluster) == 0 {
		c.cluster = pick(all, lingers)
	}
	c.local = pick(all, func(t target) bool { return t.state.is(ready | local) })
	if len(c.local) == 0 {
		c.local = pick(all, func(t target) bool { return lingers(t) && t.state.is(local) })
	}
	for _, t := range all {
		if t.state.is(serving) {
			c.serving = append(c.serving, t.AddrPort)
		}
	}
	c.some = len(c.cluster) > 0
	return c
}

// lingers tells whether an endpoint that is on its way out still serves.
func lingers(t target) bool { return t.state.is(serving | terminating) }

func pick(all []target, which func(target) bool) (out []target) {
	for _, t := range all {
		if which(t) {
			out = append(out, t)
		}
	}
	return out
}

// hinted tells which endpoints the hints leave. Hints count only where every ready endpoint has them and one of them fits: else some nodes would have none.
func hinted(all []target, zone string) func(target) bool {
	nodes, zones, node, here := true, true, false, false
	for _, t := range all {
		if !t.state.is(ready) {
			continue
		}
		nodes = nodes && t.state.is(hasNodes)
		node = node || t.state.is(forNode)
		zones = zones && len(t.zones) > 0
		here = here || slices.Contains(t.zones, zone)
	}
	switch {
	case nodes && node:
		return func(t target) bool { return t.state.is(forNode) }
	case zones && here:
		return func(t target) bool { return slices.Contains(t.zones, zone) }
	}
	return func(target) bool { return true }
}
