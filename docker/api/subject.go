package api

import (
	"encoding/json"
	"net"
	"net/netip"
)

// Subject names the objects of a call, read without knowledge of its method. Fields that the call
// does not have, or that are invalid, are empty.
type Subject struct {
	NetworkID, EndpointID, PoolID string

	Addresses []netip.Addr // of RequestAddress, ReleaseAddress and CreateEndpoint
	MAC       string
}

// SubjectOf reads the body of a call. The Subject of an invalid body is empty.
func SubjectOf(body []byte) (s Subject) {
	var w struct {
		NetworkID, EndpointID, PoolID, Address string
		Options                                options
		Interface                              struct{ Address, AddressIPv6, MacAddress string }
	}
	if json.Unmarshal(body, &w) != nil {
		return s
	}
	s = Subject{NetworkID: w.NetworkID, EndpointID: w.EndpointID, PoolID: w.PoolID}
	for _, text := range []string{w.Address, w.Interface.Address, w.Interface.AddressIPv6} {
		if a, ok := parseAddr(text); ok {
			s.Addresses = append(s.Addresses, a)
		}
	}
	var text string
	if json.Unmarshal(w.Options[OptMAC], &text) != nil || text == "" {
		text = w.Interface.MacAddress
	}
	if mac, err := net.ParseMAC(text); err == nil && isUnicast(mac) {
		s.MAC = mac.String()
	}
	return s
}
