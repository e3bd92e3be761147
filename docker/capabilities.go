package docker

import "context"

// Our address spaces, by the names of kuryr-libnetwork's design. They only keep apart what a swarm's manager and its nodes
// ask for the same network.
const (
	localSpace  = "local_scope"
	globalSpace = "global_scope"
)

type activateResponse struct{ Implements []string }

type networkCapabilitiesResponse struct {
	Scope, ConnectivityScope Scope
	// GwAllocChecker makes the engine (28 and later) ask whether a network needs gateway addresses at all.
	GwAllocChecker bool
}

func networkCapabilities(d *Driver) any {
	return networkCapabilitiesResponse{Scope: d.scope, ConnectivityScope: d.reach, GwAllocChecker: true}
}

type ipamCapabilitiesResponse struct {
	// RequiresMACAddress makes the engine send the MAC with an endpoint's request, which tells it from a request for an
	// auxiliary address and joins the two addresses of a dual-stack endpoint in one port.
	RequiresMACAddress bool
	// RequiresRequestReplay is for drivers that forget.
	RequiresRequestReplay bool
}

func ipamCapabilities(*Driver) any { return ipamCapabilitiesResponse{RequiresMACAddress: true} }

type addressSpacesResponse struct {
	LocalDefaultAddressSpace  string
	GlobalDefaultAddressSpace string
}

func addressSpaces(*Driver) any { return addressSpacesResponse{localSpace, globalSpace} }

type gwAllocCheckResponse struct{ SkipIPv4, SkipIPv6 bool }

// gwAllocCheck: a network without a router has no gateway.
func (*Driver) gwAllocCheck(_ context.Context, r *gwAllocCheckRequest) (any, error) {
	none := !r.network.routed()
	return gwAllocCheckResponse{none, none}, nil
}

// discover hears of a swarm's nodes; the SDN knows its own.
func (*Driver) discover(_ context.Context, _ *discoverRequest) (any, error) { return nothing{}, nil }
