// Package api has the requests and responses of the plugin protocol of Docker: the network
// driver and the IPAM driver of libnetwork (moby: libnetwork/docs/remote.md and ipam.md, as
// engines 20.10 to 29 use them). It decodes and validates what Docker sends.
//
// There is one type per request and response. A request has typed values; its documentation
// names the format and the default of each field and option. Decode reads a request. Its errors
// name the field and the value. The options of a network are in NetworkOptions and Existing,
// those of an endpoint in EndpointOptions.
//
// An error is an Error, answered with its HTTP status, if the call cannot be decoded. It is a
// Refusal, answered with status 200 and an ErrorResponse, if the call asks for what does not exist
// or for what excludes one another.
//
// The package calls neither the SDN nor Docker and keeps no state.
package api

// ContentType is the content type of all responses.
const ContentType = "application/vnd.docker.plugins.v1.2+json"

// Empty is the response of a call without results: {}.
type Empty struct{}

// ActivateResponse answers Plugin.Activate, which has no body.
type ActivateResponse struct {
	Implements []string // NetworkDriver, IpamDriver
}

// NetworkCapabilitiesResponse answers NetworkDriver.GetCapabilities, which has no body.
type NetworkCapabilitiesResponse struct {
	Scope             string // local or global: a network belongs to one engine, or to a swarm
	ConnectivityScope string // local or global: a network connects one host, or several
	GwAllocChecker    bool   // requests the call GwAllocCheck (engines 28 and later)
}

// IPAMCapabilitiesResponse answers IpamDriver.GetCapabilities, which has no body.
type IPAMCapabilitiesResponse struct {
	// RequiresMACAddress requests the MAC address of an endpoint in RequestAddress. It separates
	// requests for endpoints from those for auxiliary addresses, and joins the two addresses of a
	// dual-stack endpoint.
	RequiresMACAddress    bool
	RequiresRequestReplay bool // requests all pools and addresses again after a restart
}

// AddressSpacesResponse answers IpamDriver.GetDefaultAddressSpaces, which has no body.
type AddressSpacesResponse struct{ LocalDefaultAddressSpace, GlobalDefaultAddressSpace string }

// The address spaces, by the names of kuryr-libnetwork. They separate the requests of the nodes of
// a swarm from those of its manager.
const (
	LocalSpace  = "local_scope"
	GlobalSpace = "global_scope"
)

// AddressSpaces is the response with both.
var AddressSpaces = AddressSpacesResponse{LocalSpace, GlobalSpace}

// DiscoverRequest is the request of NetworkDriver.DiscoverNew and DiscoverDelete, answered with
// Empty. It announces a node of a swarm.
type DiscoverRequest struct {
	DiscoveryType int // 1: a node
}

func (r *DiscoverRequest) decode(d *decoder) { d.object(r) }
