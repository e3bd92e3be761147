package api

import (
	"net"
	"net/netip"
	"path"
	"strings"
)

// EndpointRequest is the request of NetworkDriver.DeleteEndpoint, Leave and
// RevokeExternalConnectivity, answered with Empty, and of EndpointOperInfo.
type EndpointRequest struct {
	NetworkID  string
	EndpointID string // 64 hexadecimal digits
}

func (r *EndpointRequest) decode(d *decoder) {
	d.object(r)
	r.check(d)
}

func (r *EndpointRequest) check(d *decoder) {
	d.checkID("NetworkID", r.NetworkID)
	d.checkID("EndpointID", r.EndpointID)
}

// OperInfoResponse answers NetworkDriver.EndpointOperInfo.
type OperInfoResponse struct{ Value map[string]any }

// CreateEndpointRequest is the request of NetworkDriver.CreateEndpoint.
type CreateEndpointRequest struct {
	EndpointRequest
	Options   EndpointOptions
	Addresses []netip.Prefix   // Interface.Address and Interface.AddressIPv6, if given
	MAC       net.HardwareAddr // Interface.MacAddress or OptMAC; nil: any
	MACGiven  bool             // Interface.MacAddress is given: the response must not repeat it
}

func (r *CreateEndpointRequest) decode(d *decoder) {
	var w struct {
		NetworkID, EndpointID string
		Interface             struct{ Address, AddressIPv6, MacAddress string }
		Options               options
	}
	d.object(&w)
	r.EndpointRequest = EndpointRequest{w.NetworkID, w.EndpointID}
	r.check(d)
	r.Options = d.endpointOptions(w.Options)
	for _, p := range []netip.Prefix{
		d.prefix("Interface.Address", w.Interface.Address, false),
		d.prefix("Interface.AddressIPv6", w.Interface.AddressIPv6, true),
	} {
		if p.IsValid() {
			r.Addresses = append(r.Addresses, p)
		}
	}
	r.MAC = d.mac("Interface.MacAddress", w.Interface.MacAddress)
	if r.MACGiven = r.MAC != nil; !r.MACGiven {
		r.MAC = r.Options.MAC
	}
	d.fail(r.Options.check())
}

// CreateEndpointResponse answers NetworkDriver.CreateEndpoint.
type CreateEndpointResponse struct{ Interface EndpointInterface }

// EndpointInterface has the addresses of an endpoint that the request left empty. Docker rejects
// others.
type EndpointInterface struct {
	Address     string `json:",omitempty"` // IPv4, with the prefix length
	AddressIPv6 string `json:",omitempty"` // with the prefix length
	MacAddress  string `json:",omitempty"`
}

// JoinRequest is the request of NetworkDriver.Join. Docker repeats OptExposed and OptPortMap, and
// no option of the user.
type JoinRequest struct {
	EndpointRequest
	SandboxKey string // the absolute path of the network namespace
	Options    EndpointOptions
}

func (r *JoinRequest) decode(d *decoder) {
	var w struct {
		NetworkID, EndpointID, SandboxKey string
		Options                           options
	}
	d.object(&w)
	r.EndpointRequest, r.SandboxKey = EndpointRequest{w.NetworkID, w.EndpointID}, w.SandboxKey
	r.check(d)
	r.Options = d.endpointOptions(w.Options)
	key, control := w.SandboxKey, func(r rune) bool { return r < ' ' }
	d.check(len(key) < 4096 && path.IsAbs(key) && path.Clean(key) == key &&
		!strings.ContainsFunc(key, control),
		"SandboxKey", "must be a clean absolute path, not %q", Clip(key, 140))
}

// JoinResponse answers NetworkDriver.Join.
type JoinResponse struct {
	InterfaceName InterfaceName
	Gateway       string        `json:",omitempty"` // an IPv4 address
	GatewayIPv6   string        `json:",omitempty"`
	StaticRoutes  []StaticRoute `json:",omitempty"`
	// DisableGatewayService forbids the interface on docker_gwbridge that Docker adds if there is
	// no Gateway.
	DisableGatewayService bool `json:",omitempty"`
}

// InterfaceName names the interface that Docker moves into the container.
type InterfaceName struct {
	SrcName   string // on the host
	DstPrefix string // in the container; Docker appends a number
	// DstName is the name in the container. Engines before the end of 29's development ignore it.
	DstName string `json:",omitempty"`
}

// ProgramRequest is the request of NetworkDriver.ProgramExternalConnectivity, answered with Empty.
type ProgramRequest struct {
	EndpointRequest
	Options EndpointOptions // OptExposed and OptPortMap
}

func (r *ProgramRequest) decode(d *decoder) {
	var w struct {
		NetworkID, EndpointID string
		Options               options
	}
	d.object(&w)
	r.EndpointRequest = EndpointRequest{w.NetworkID, w.EndpointID}
	r.check(d)
	r.Options = d.endpointOptions(w.Options)
}
