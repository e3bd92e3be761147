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
