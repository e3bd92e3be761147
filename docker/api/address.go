package api

import (
	"net"
	"net/netip"
)

// The options of IpamDriver.RequestAddress. OptMAC is one too.
const (
	OptAddressType = "RequestAddressType"
	OptSerial      = "com.docker.network.ipam.serial"
)

// AddressGateway is the value of OptAddressType for a gateway.
const AddressGateway = "com.docker.network.gateway"

// RequestAddressRequest is the request of IpamDriver.RequestAddress.
type RequestAddressRequest struct {
	PoolID  PoolID
	Address netip.Addr       // --ip, --gateway or --aux-address; invalid: any
	MAC     net.HardwareAddr // OptMAC, such as 02:42:ac:11:00:02; nil: not of an endpoint
	Gateway bool             // OptAddressType is AddressGateway
	Serial  bool             // OptSerial is given: of the manager of a swarm, for a task or a service
}

func (r *RequestAddressRequest) decode(d *decoder) {
	var w struct {
		PoolID, Address string
		Options         map[string]string
	}
	d.object(&w)
	r.PoolID, r.Address = d.poolID(w.PoolID), d.addr("Address", w.Address)
	r.MAC = d.mac("Options."+OptMAC, w.Options[OptMAC])
	r.Gateway, r.Serial = w.Options[OptAddressType] == AddressGateway, w.Options[OptSerial] != ""
}

// RequestAddressResponse answers IpamDriver.RequestAddress.
type RequestAddressResponse struct {
	Address string            // with the prefix length of the range
	Data    map[string]string // not null
}

// NewRequestAddressResponse returns the response with an address in a range of a prefix length.
func NewRequestAddressResponse(a netip.Addr, bits int) RequestAddressResponse {
	return RequestAddressResponse{netip.PrefixFrom(a, bits).String(), map[string]string{}}
}

// ReleaseAddressRequest is the request of IpamDriver.ReleaseAddress, answered with Empty.
type ReleaseAddressRequest struct {
	PoolID  PoolID
	Address netip.Addr
}

func (r *ReleaseAddressRequest) decode(d *decoder) {
	var w struct{ PoolID, Address string }
	d.object(&w)
	r.PoolID, r.Address = d.poolID(w.PoolID), d.addr("Address", w.Address)
	d.check(w.Address != "", "Address", "is missing")
}
