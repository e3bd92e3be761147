package api

import (
	"maps"
	"net"
	"net/netip"
	"path"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/kuryr/kuryr/sdn"
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

// The options of an endpoint: their keys in Options of CreateEndpoint. OptExposed and OptPortMap
// are in Join and ProgramExternalConnectivity too. EndpointOptions has their formats and defaults.
const (
	OptMAC     = "com.docker.network.endpoint.macaddress" // also of RequestAddress
	OptDNS     = "com.docker.network.endpoint.dnsservers" // strings; ignored
	OptExposed = "com.docker.network.endpoint.exposedports"
	OptPortMap = "com.docker.network.portmap"

	OptIfname       = "com.docker.network.endpoint.ifname" // docker network connect --driver-opt
	OptPort         = "kuryr.port"                         // --driver-opt
	OptNeutronPort  = "neutron.port.uuid"                  // --driver-opt; the same
	OptPortSecurity = "kuryr.port_security"                // --driver-opt
	OptAllowed      = "kuryr.allowed_addresses"            // --driver-opt
	OptQoSPolicy    = "kuryr.qos_policy"                   // --driver-opt
	OptFloatingIP   = "kuryr.floating_ip"                  // --driver-opt
	// OptGroups and OptPublish are --driver-opt too.
)

// FloatingAuto is the value of OptFloatingIP for any floating IP.
const FloatingAuto = "auto"

// Limits of options.
const (
	maxGroups  = 20
	maxAllowed = 100 // SDNs may allow fewer (Neutron: max_allowed_address_pair, 10)
)

const neutronPrefix = "neutron."

// ownEndpointOptions are the options that begin with ownPrefix or neutronPrefix. Others with these
// prefixes are refused. All other options are ignored.
var ownEndpointOptions = []string{
	OptPortSecurity, OptAllowed, OptPort, OptNeutronPort,
	OptGroups, OptQoSPolicy, OptFloatingIP, OptPublish,
}

// EndpointOptions are the options of an endpoint. The zero value has the defaults.
type EndpointOptions struct {
	MAC     net.HardwareAddr // OptMAC, base64 of 6 bytes that are a unicast MAC address; nil: any
	Exposed []ExposedPort    // OptExposed (--expose)
	PortMap []PortMapping    // OptPortMap (-p, -P)

	Ifname     string // OptIfname: the interface in the container, see ValidIfname; "": any
	Port       sdn.ID // OptPort: an existing port; "": the port that has the addresses
	PortOption string // the key of the option that named Port
	// NoPortSecurity is the opposite of OptPortSecurity, true or false: whether anti-spoofing and
	// security groups do not filter the port. nil: as of the network.
	NoPortSecurity *bool
	// Allowed are OptAllowed: ADDRESS or RANGE, each with @MAC or without, from which the container
	// may send besides its own, separated by commas or spaces, at most 100. nil: none.
	Allowed []sdn.AllowedPair
	// Groups are OptGroups: names or ids of security groups, separated by commas or spaces, at most
	// 20. nil: those of the network.
	Groups     []string
	QoSPolicy  string // OptQoSPolicy: the name or id of a QoS policy; "": none
	FloatingIP string // OptFloatingIP: FloatingAuto, an address, or a floating IP's id; "": none
	Publish    string // OptPublish: PublishFloatingIP or PublishProxy; "": as of the network
	unknown    string // the first option with a prefix of ownEndpointOptions that is unknown
}

func (d *decoder) endpointOptions(o options) (e EndpointOptions) {
	d.option(o, OptMAC, (*[]byte)(&e.MAC)) // base64
	if e.MAC != nil {
		d.checkMAC("Options."+OptMAC, e.MAC)
	}
	var dns []string
	d.option(o, OptDNS, &dns)
	d.option(o, OptExposed, &e.Exposed)
	e.PortMap = d.portMap(o)
	for _, name := range slices.Sorted(maps.Keys(o)) {
		own := strings.HasPrefix(name, ownPrefix) || strings.HasPrefix(name, neutronPrefix)
		var text string
		switch {
		case name == OptIfname, slices.Contains(ownEndpointOptions, name):
			if d.option(o, name, &text); text != "" {
				e.set(d, name, "Options."+name, text)
			}
		case own && e.unknown == "":
			e.unknown = name
		}
	}
	return e
}

func (e *EndpointOptions) set(d *decoder, name, field, text string) {
	switch name {
	case OptIfname:
		e.Ifname = text
		d.check(ValidIfname(text), field,
			"must be 1 to 15 visible characters without '/', ':', ',' and '%%', not %q", Clip(text, 40))
	case OptPortSecurity:
		off := text == "false"
		e.NoPortSecurity = &off
		d.check(off || text == "true", field, "must be true or false, not %q", Clip(text, 40))
	case OptAllowed:
		e.Allowed = d.allowed(field, text)
	case OptPort, OptNeutronPort:
		d.check(e.Port == "" || e.Port == sdn.ID(text), field,
			"must be the port of %s, not %q", e.PortOption, Clip(text, 60))
		e.Port, e.PortOption = sdn.ID(d.name(field, text, "the id of a port")), name
	case OptGroups:
		e.Groups = d.groups(field, text)
	case OptQoSPolicy:
		e.QoSPolicy = d.name(field, text, "the name or the id of a QoS policy")
	case OptPublish:
		e.Publish = d.publish(field, text)
	case OptFloatingIP:
		e.FloatingIP = text
		a, err := netip.ParseAddr(text)
		address := err == nil && a.Zone() == "" && !a.IsUnspecified()
		d.check(text == FloatingAuto || uuid.Validate(text) == nil || address, field,
			"must be %s, an address, or the id of a floating IP, not %q", FloatingAuto, Clip(text, 60))
	}
}

func (e EndpointOptions) check() error {
	if e.NoPortSecurity != nil && *e.NoPortSecurity {
		if e.Allowed != nil {
			return Refuse("%s=false allows all addresses: leave out %s", OptPortSecurity, OptAllowed)
		}
		if e.Groups != nil {
			return Refuse("%s=false disables security groups: leave out %s", OptPortSecurity, OptGroups)
		}
	}
	return refuseUnknown(e.unknown, ownEndpointOptions)
}

func (d *decoder) groups(field, text string) []string {
	const form = "names or ids of security groups, separated by commas or spaces"
	var groups []string
	for _, name := range split(text) {
		if !slices.Contains(groups, d.name(field, name, form)) {
			groups = append(groups, name)
		}
		d.check(len(groups) <= maxGroups, field, "has more than %d security groups", maxGroups)
		if d.err != nil {
			return nil
		}
	}
	return groups
}

// name parses the name or the id of an object of the SDN, without commas.
func (d *decoder) name(field, text, form string) string {
	ok := isText(text) && !strings.Contains(text, ",")
	d.check(ok, field, "must be %s, not %q", form, Clip(text, 60))
	return text
}

// ValidIfname reports whether a text can name an interface: 1 to 15 visible characters that are
// allowed by the kernel (dev_valid_name), in its patterns for links, and in tags.
func ValidIfname(s string) bool {
	bad := func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune("/:,%", r) }
	return s != "" && len(s) <= 15 && s != "." && s != ".." && s != "lo" &&
		!strings.ContainsFunc(s, bad)
}

// allowed parses pairs such as "10.9.0.0/16,192.0.2.7@02:00:00:00:00:07".
func (d *decoder) allowed(field, text string) []sdn.AllowedPair {
	var pairs []sdn.AllowedPair
	for _, part := range split(text) {
		pairs = append(pairs, d.pair(field, part))
		d.check(len(pairs) <= maxAllowed, field, "has more than %d addresses", maxAllowed)
		if d.err != nil {
			return nil
		}
	}
	return pairs
}

func (d *decoder) pair(field, text string) (pair sdn.AllowedPair) {
	addresses, mac, withMAC := strings.Cut(text, "@")
	var err error
	if a, single := netip.ParseAddr(addresses); single == nil && a.Zone() == "" {
		pair.Prefix = netip.PrefixFrom(a, a.BitLen())
	} else {
		pair.Prefix, err = netip.ParsePrefix(addresses)
	}
	d.check(err == nil, field, "must be addresses or ranges, each with @MAC or without, separated by "+
		"commas or spaces, not %q", Clip(text, 60))
	d.check(!pair.Prefix.Addr().Is4In6(), field,
		"must not have an IPv4 address in IPv6 form, such as %s", pair.Prefix.Addr())
	d.checkHostBits(field, pair.Prefix)
	d.check(!withMAC || mac != "", field, "%q has no MAC address after @", Clip(text, 60))
	pair.MAC = d.mac(field, mac)
	return pair
}

// The values of OptPublish: how ports are published by an SDN that cannot publish them at the
// addresses of the host.
const (
	PublishFloatingIP = "floatingip" // by a floating IP that forwards them
	PublishProxy      = "proxy"      // by a proxy on the host
)

func (d *decoder) publish(field, text string) string {
	d.check(text == PublishFloatingIP || text == PublishProxy, field,
		"must be %s or %s, not %q", PublishFloatingIP, PublishProxy, Clip(text, 40))
	return text
}

// PortMapping is a published port (moby: types.PortBinding).
type PortMapping struct {
	Proto sdn.Protocol // the number of the protocol
	Port  uint16       // of the container, not 0
	// HostIP is the address of the host; an unspecified one is all addresses of its family. Invalid:
	// all addresses, or the HostBinding of the network.
	HostIP    netip.Addr
	HostPorts sdn.PortRange // HostPort to HostPortEnd, of which one is used; zero: any
}

// ExposedPort is a port that a container exposes (moby: types.TransportPort).
type ExposedPort struct {
	Proto sdn.Protocol // the number of the protocol
	Port  uint16
}

func (d *decoder) portMap(o options) []PortMapping {
	var list []struct {
		Proto                 sdn.Protocol
		IP                    string // of the container; ignored
		Port                  uint16
		HostIP                string
		HostPort, HostPortEnd uint16 // HostPortEnd 0: HostPort alone
	}
	d.option(o, OptPortMap, &list)
	const field = "Options." + OptPortMap
	mappings := make([]PortMapping, len(list))
	for i, w := range list {
		host := d.addr(field+".HostIP", w.HostIP)
		mappings[i] = PortMapping{Proto: w.Proto, Port: w.Port, HostIP: host}
		d.check(w.Port != 0, field+".Port", "must be from 1 to 65535, not 0")
		d.check(w.HostPortEnd == 0 || w.HostPortEnd >= w.HostPort, field+".HostPortEnd",
			"must be at least %d, not %d", w.HostPort, w.HostPortEnd)
		if w.HostPort != 0 {
			last := max(w.HostPort, w.HostPortEnd)
			mappings[i].HostPorts = sdn.PortRange{First: w.HostPort, Last: last}
		}
	}
	return mappings
}
