package docker

import (
	"encoding/json"
	"net"
	"net/netip"

	"github.com/kuryr/kuryr/sdn"
)

// The requests, by the engine's field names (moby: daemon/libnetwork/drivers/remote/api and ipams/remote/api). What check
// makes of the text is kept beside it in fields without a name on the wire.

// options is a map whose values have a type for each key.
type options map[string]json.RawMessage

type networkRequest struct{ NetworkID string }

func (r *networkRequest) check() error { return checkID("NetworkID", r.NetworkID) }

type endpointRequest struct{ NetworkID, EndpointID string }

func (r *endpointRequest) check() error {
	if err := checkID("NetworkID", r.NetworkID); err != nil {
		return err
	}
	return checkID("EndpointID", r.EndpointID)
}

type gwAllocCheckRequest struct {
	Options options

	network networkOptions
}

func (r *gwAllocCheckRequest) check() (err error) {
	r.network, err = parseNetworkOptions(r.Options)
	return err
}

type allocateNetworkRequest struct {
	NetworkID          string
	Options            map[string]string
	IPv4Data, IPv6Data []*ipamData

	network networkOptions
}

type discoverRequest struct{ DiscoveryType int }

func (*discoverRequest) check() error { return nil }

type createNetworkRequest struct {
	NetworkID          string
	Options            options
	IPv4Data, IPv6Data []*ipamData

	network networkOptions
}

// ipamData is one range of a network.
type ipamData struct {
	AddressSpace string
	Pool         string
	Gateway      string
	AuxAddresses map[string]string

	cidr     netip.Prefix // masked
	gateway  netip.Addr   // invalid: none was taken
	reserved []netip.Addr
	routes   []sdn.HostRoute // of its containers, besides the gateway's
}

func (r *createNetworkRequest) check() (err error) {
	if err := checkID("NetworkID", r.NetworkID); err != nil {
		return err
	}
	if r.network, err = parseNetworkOptions(r.Options); err != nil {
		return err
	}
	for _, family := range []struct {
		name string
		v6   bool
		list []*ipamData
	}{{"IPv4Data", false, r.IPv4Data}, {"IPv6Data", true, r.IPv6Data}} {
		for _, data := range family.list {
			if data == nil {
				return malformed(family.name, "must not have null in it")
			}
			if err := data.parse(family.name, family.v6); err != nil {
				return err
			}
		}
	}
	return nil
}

func (data *ipamData) parse(field string, v6 bool) error {
	cidr, err := parsePrefix(field+".Pool", data.Pool, v6)
	if err != nil {
		return err
	}
	if !cidr.IsValid() {
		return malformed(field+".Pool", "is missing")
	}
	data.cidr = cidr.Masked()
	if data.gateway, err = parseAddr(field+".Gateway", data.Gateway); err != nil {
		return err
	}
	if data.gateway.IsValid() && !data.cidr.Contains(data.gateway) {
		return malformed(field+".Gateway", "%s is not in %s", data.gateway, data.cidr)
	}
	for name, aux := range data.AuxAddresses {
		a, err := parseAddr(field+".AuxAddresses."+clip(name, 60), aux)
		if err != nil {
			return err
		}
		if a.IsValid() {
			data.reserved = append(data.reserved, a)
		}
	}
	return nil
}

type createEndpointRequest struct {
	NetworkID, EndpointID string
	Interface             *struct{ Address, AddressIPv6, MacAddress string }
	Options               options

	addresses []netip.Prefix // those given, IPv4 first
	mac       net.HardwareAddr
	macGiven  bool     // in Interface, so that it must not be answered
	bindings  []string // the network's, filled in when it is known
	endpoint  endpointOptions
	groups    []sdn.ID // its security groups, found by what the options name; nil: none were asked for
	policy    sdn.ID   // its QoS policy likewise
}

func (r *createEndpointRequest) check() (err error) {
	if err := (&endpointRequest{r.NetworkID, r.EndpointID}).check(); err != nil {
		return err
	}
	if r.endpoint, err = parseEndpointOptions(r.Options); err != nil {
		return err
	}
	r.mac = r.endpoint.mac
	if r.Interface == nil {
		return nil
	}
	for _, a := range []struct {
		field, text string
		v6          bool
	}{{"Interface.Address", r.Interface.Address, false}, {"Interface.AddressIPv6", r.Interface.AddressIPv6, true}} {
		p, err := parsePrefix(a.field, a.text, a.v6)
		if err != nil {
			return err
		}
		if p.IsValid() {
			r.addresses = append(r.addresses, p)
		}
	}
	mac, err := parseMAC("Interface.MacAddress", r.Interface.MacAddress)
	if err != nil {
		return err
	}
	if mac != nil {
		r.mac, r.macGiven = mac, true
	}
	return nil
}

type joinRequest struct {
	NetworkID, EndpointID, SandboxKey string
	Options                           options

	endpoint endpointOptions
}

func (r *joinRequest) check() (err error) {
	if err := (&endpointRequest{r.NetworkID, r.EndpointID}).check(); err != nil {
		return err
	}
	if r.endpoint, err = parseEndpointOptions(r.Options); err != nil {
		return err
	}
	return checkSandboxKey(r.SandboxKey)
}

type programRequest struct {
	NetworkID, EndpointID string
	Options               options

	endpoint endpointOptions
}

func (r *programRequest) check() (err error) {
	if err := (&endpointRequest{r.NetworkID, r.EndpointID}).check(); err != nil {
		return err
	}
	r.endpoint, err = parseEndpointOptions(r.Options)
	return err
}

type requestPoolRequest struct {
	AddressSpace, Pool, SubPool string
	Options                     map[string]string
	V6                          bool

	pool, sub netip.Prefix // masked; invalid: not given
	length    int          // of any range, asked for as 0.0.0.0/LENGTH or ::/LENGTH; 0: not given
	existing  existingOptions
}

func (r *requestPoolRequest) check() error {
	pool, err := parsePrefix("Pool", r.Pool, r.V6)
	if err != nil {
		return err
	}
	sub, err := parsePrefix("SubPool", r.SubPool, r.V6)
	if err != nil {
		return err
	}
	r.pool, r.sub = pool.Masked(), sub.Masked()
	if pool.IsValid() && pool.Addr().IsUnspecified() && pool.Bits() > 0 {
		r.pool, r.length = netip.Prefix{}, pool.Bits()
		if err := r.checkLength(); err != nil {
			return err
		}
	}
	if r.existing, err = existingOf("Options", r.Options); err != nil {
		return err
	}
	switch {
	case !r.pool.IsValid() && r.sub.IsValid():
		return malformed("SubPool", "needs a Pool that it is part of")
	case r.sub.IsValid() && (r.sub.Bits() < r.pool.Bits() || !r.pool.Contains(r.sub.Addr())):
		return malformed("SubPool", "%s is not in %s", r.sub, r.pool)
	case r.pool.IsValid() && (r.pool.Bits() == 0 || r.pool.Addr().IsMulticast() || r.pool.Addr().IsLoopback()):
		return malformed("Pool", "%s cannot be a network's range", r.pool)
	}
	return nil
}

// checkLength checks what a request without an address of the range can ask for.
func (r *requestPoolRequest) checkLength() error {
	smallest := 30 // it has room for a gateway and a container
	if r.V6 {
		smallest = 126
	}
	switch {
	case r.sub.IsValid():
		return malformed("SubPool", "%s needs a Pool with an address, not %s", r.sub, r.Pool)
	case r.length > smallest:
		return malformed("Pool", "%s: the smallest range that can be had is a /%d", r.Pool, smallest)
	}
	return nil
}

type releasePoolRequest struct {
	PoolID string

	ref poolRef
}

func (r *releasePoolRequest) check() error {
	r.ref = parsePoolID(r.PoolID)
	return checkPoolID(r.PoolID)
}

type requestAddressRequest struct {
	PoolID, Address string
	Options         map[string]string

	ref     poolRef
	addr    netip.Addr // invalid: any
	mac     net.HardwareAddr
	gateway bool
}

// Options of RequestAddress (moby: ipamapi and netlabel).
const (
	optAddressType = "RequestAddressType"
	addressGateway = "com.docker.network.gateway"
)

func (r *requestAddressRequest) check() (err error) {
	if err := checkPoolID(r.PoolID); err != nil {
		return err
	}
	if r.addr, err = parseAddr("Address", r.Address); err != nil {
		return err
	}
	r.mac, err = parseMAC("Options."+optMAC, r.Options[optMAC])
	r.gateway = r.Options[optAddressType] == addressGateway
	r.ref = parsePoolID(r.PoolID)
	return err
}

type releaseAddressRequest struct {
	PoolID, Address string

	ref  poolRef
	addr netip.Addr
}

func (r *releaseAddressRequest) check() (err error) {
	if err := checkPoolID(r.PoolID); err != nil {
		return err
	}
	if r.addr, err = parseAddr("Address", r.Address); err == nil && !r.addr.IsValid() {
		err = malformed("Address", "is missing")
	}
	r.ref = parsePoolID(r.PoolID)
	return err
}
