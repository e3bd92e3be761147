package api

import (
	"cmp"
	"encoding/json"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/kuryr/kuryr/internal/spelling"
	"github.com/kuryr/kuryr/sdn"
)

// NetworkRequest is the request of NetworkDriver.DeleteNetwork and FreeNetwork, answered with
// Empty.
type NetworkRequest struct {
	NetworkID string // 64 hexadecimal digits; 25 digits of base 36 in a swarm
}

func (r *NetworkRequest) decode(d *decoder) {
	d.object(r)
	d.checkID("NetworkID", r.NetworkID)
}

// CreateNetworkRequest is the request of NetworkDriver.CreateNetwork, answered with Empty.
type CreateNetworkRequest struct {
	NetworkID string
	Options   NetworkOptions
	Ranges    []*IPAMData // IPv4Data and IPv6Data
}

func (r *CreateNetworkRequest) decode(d *decoder) {
	var w struct {
		NetworkID          string
		Options            options
		IPv4Data, IPv6Data []*ipamData
	}
	d.object(&w)
	r.set(d, w.NetworkID, w.Options, w.IPv4Data, w.IPv6Data)
	d.fail(r.Options.Check())
	if d.err == nil {
		d.fail(r.placeRoutes())
	}
}

func (r *CreateNetworkRequest) set(d *decoder, id string, o options, v4, v6 []*ipamData) {
	d.checkID("NetworkID", id)
	r.NetworkID, r.Options = id, d.networkOptions(o)
	r.Ranges = append(d.ranges("IPv4Data", v4, false), d.ranges("IPv6Data", v6, true)...)
}

// IPAMData is a range of a network. The range 0.0.0.0/0, which the IPAM driver null sends, is left
// out: there is no range.
type IPAMData struct {
	AddressSpace string          // LocalSpace, GlobalSpace, or a name of another IPAM driver
	Pool         netip.Prefix    // without host bits
	Place        int             // in the list of its family
	Gateway      netip.Addr      // in the Pool; invalid: none
	AuxAddresses []netip.Addr    // of --aux-address, in or outside of the Pool
	Routes       []sdn.HostRoute // those of OptRoutes that the containers of the range can use
}

type ipamData struct {
	AddressSpace, Pool, Gateway string
	AuxAddresses                map[string]string
}

func (d *decoder) ranges(field string, list []*ipamData, v6 bool) []*IPAMData {
	var ranges []*IPAMData
	for i, w := range list {
		if d.check(w != nil, field, "must not contain null"); w == nil {
			return nil
		}
		pool, gateway := d.prefix(field+".Pool", w.Pool, v6), d.addr(field+".Gateway", w.Gateway)
		data := &IPAMData{AddressSpace: w.AddressSpace, Pool: pool.Masked(), Place: i, Gateway: gateway}
		d.check(w.Pool != "", field+".Pool", "is missing")
		d.check(!gateway.IsValid() || pool.Contains(gateway), field+".Gateway",
			"must be in %s, not %s", data.Pool, gateway)
		for name, text := range w.AuxAddresses {
			if a := d.addr(field+".AuxAddresses."+Clip(name, 60), text); a.IsValid() {
				data.AuxAddresses = append(data.AuxAddresses, a)
			}
		}
		if pool.Bits() > 0 {
			ranges = append(ranges, data)
		}
	}
	return ranges
}

// AllocateNetworkRequest is the request of NetworkDriver.AllocateNetwork, by which the manager of a
// swarm announces a network before a node creates it.
type AllocateNetworkRequest struct {
	CreateNetworkRequest
	UserOptions map[string]string // of docker network create -o; not nil
}

func (r *AllocateNetworkRequest) decode(d *decoder) {
	var w struct {
		NetworkID          string
		Options            map[string]string
		IPv4Data, IPv6Data []*ipamData
	}
	d.object(&w)
	generic, err := json.Marshal(w.Options)
	d.fail(err)
	if r.UserOptions = w.Options; r.UserOptions == nil {
		r.UserOptions = map[string]string{}
	}
	r.set(d, w.NetworkID, options{OptGeneric: generic}, w.IPv4Data, w.IPv6Data)
	d.fail(r.Options.checkKnown())
}

// AllocateNetworkResponse answers NetworkDriver.AllocateNetwork.
type AllocateNetworkResponse struct {
	Options map[string]string // replace those of the user in the calls to the nodes; not null
}

// GwAllocCheckRequest is the request of NetworkDriver.GwAllocCheck. Engines 28 and later send it
// before they request gateways.
type GwAllocCheckRequest struct{ Options NetworkOptions }

func (r *GwAllocCheckRequest) decode(d *decoder) {
	var w struct{ Options options }
	d.object(&w)
	r.Options = d.networkOptions(w.Options)
}

// GwAllocCheckResponse answers NetworkDriver.GwAllocCheck.
type GwAllocCheckResponse struct {
	SkipIPv4, SkipIPv6 bool // Docker requests no gateway of the family
}

// The options of a network: their keys in Options of CreateNetwork, and those in OptGeneric, which
// has the strings of docker network create -o. NetworkOptions has their formats and defaults. The
// keys of existing objects are with Existing.
const (
	OptGeneric  = "com.docker.network.generic"
	OptInternal = "com.docker.network.internal"

	OptMTU         = "com.docker.network.driver.mtu"               // -o
	OptHostBinding = "com.docker.network.bridge.host_binding_ipv4" // -o
	OptRouter      = "kuryr.router"                                // -o
	OptExternal    = "kuryr.external_network"                      // -o
	OptGateway     = "kuryr.gateway"                               // -o
	OptRoutes      = "kuryr.routes"                                // -o
	OptGroups      = "kuryr.security_groups"                       // -o, and of endpoints
	OptPublish     = "kuryr.publish"                               // -o, and of endpoints
)

// GatewayNone is the value of OptGateway.
const GatewayNone = "none"

const ownPrefix = "kuryr."

// ownNetworkOptions are the options that begin with ownPrefix. Others with that prefix are refused.
var ownNetworkOptions = []string{
	OptRouter, OptRoutes, OptGateway, OptExternal, OptGroups, OptPublish,
}

// dockersNetworkOptions are Docker's options that need no warning. Its others belong to drivers of
// its own.
var dockersNetworkOptions = []string{
	OptGeneric, OptInternal, OptMTU, OptHostBinding,
	"com.docker.network.enable_ipv6", "com.docker.network.enable_ipv4",
}

// NetworkOptions are the options of a network. The zero value has the defaults.
type NetworkOptions struct {
	Internal  bool // OptInternal (--internal): no router and no gateway
	NoGateway bool // OptGateway, whose only value is GatewayNone: no gateway and no router
	MTU       int  // OptMTU, 68 to 65535; 0: the MTU of the SDN
	// Router is OptRouter: the name of a router that networks share, or the name or id of an
	// existing one. 1 to 64 letters, digits, '_', '.' and '-'. "": a router of its own, if any.
	Router string
	// External is OptExternal: the name or id of the external network of its own router, in the
	// form of Router. "": the external network of the SDN.
	External string
	// Routes are OptRoutes: routes of every container, DESTINATION=NEXTHOP or DESTINATION=link,
	// separated by commas or spaces, at most 20.
	Routes []sdn.HostRoute
	// HostBinding is OptHostBinding: the IPv4 address of the host at which ports without one are
	// published. Invalid, and 0.0.0.0: all addresses.
	HostBinding netip.Addr
	// Groups are OptGroups: names or ids of the security groups of the endpoints, separated by
	// commas or spaces, at most 20, each at most 41 characters. nil: those of the SDN.
	Groups   []string
	Publish  string   // OptPublish: PublishFloatingIP or PublishProxy; "": PublishProxy
	Existing Existing // the objects of the SDN that the network uses
	Foreign  []string // options without a meaning for Kuryr, sorted
	unknown  string   // the first option that begins with ownPrefix and is unknown
}

// maxNetworkGroup is the length of a security group that fits in a tag of the network: Neutron
// before 19 has tags of 60 characters, of which 19 are kuryr.docker.group=.
const maxNetworkGroup = 41

// Routed reports whether the network has a way out.
func (n NetworkOptions) Routed() bool { return !n.Internal && !n.NoGateway }

// AsksRouter reports whether an option asks for a router.
func (n NetworkOptions) AsksRouter() bool { return n.Router != "" || n.External != "" }

func (d *decoder) networkOptions(o options) (n NetworkOptions) {
	var generic options
	d.option(o, OptInternal, &n.Internal)
	d.option(o, OptGeneric, &generic)
	for name := range o {
		n.noteForeign(name)
	}
	const field = "Options." + OptGeneric
	existing := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(generic)) {
		var text string
		switch field := field + "." + name; {
		case slices.Contains(ExistingOptions, name):
			d.unmarshal(field, generic[name], &text)
			existing[name] = text
		case slices.Contains(ownNetworkOptions, name), name == OptMTU, name == OptHostBinding:
			d.unmarshal(field, generic[name], &text)
			n.set(d, name, field, text)
		case strings.HasPrefix(name, ownPrefix):
			n.unknown = cmp.Or(n.unknown, name)
		default:
			n.noteForeign(name)
		}
	}
	n.Existing = d.existing(field, existing)
	slices.Sort(n.Foreign)
	return n
}

func (n *NetworkOptions) noteForeign(name string) {
	if !slices.Contains(dockersNetworkOptions, name) {
		n.Foreign = append(n.Foreign, Clip(name, 100))
	}
}

func (n *NetworkOptions) set(d *decoder, name, field, text string) {
	switch name {
	case OptMTU:
		var err error
		n.MTU, err = strconv.Atoi(text)
		d.check(err == nil && n.MTU >= 68 && n.MTU <= 65535, field,
			"must be a number from 68 to 65535, not %q", Clip(text, 40))
	case OptHostBinding:
		address, _ := parseAddr(text)
		d.check(address.Is4(), field, "must be an IPv4 address, not %q", Clip(text, 60))
		if !address.IsUnspecified() {
			n.HostBinding = address
		}
	case OptRouter:
		n.Router = d.router(field, text)
	case OptExternal:
		n.External = d.router(field, text)
	case OptRoutes:
		n.Routes = d.routes(field, text)
	case OptGroups:
		n.Groups = d.groups(field, text)
		for _, group := range n.Groups {
			d.check(len(group) <= maxNetworkGroup, field,
				"must be ids, or names of at most %d characters, not %q", maxNetworkGroup, Clip(group, 60))
		}
	case OptPublish:
		n.Publish = d.publish(field, text)
	case OptGateway:
		n.NoGateway = text == GatewayNone
		d.check(n.NoGateway, field, "must be %s, not %q; use --gateway for an address",
			GatewayNone, Clip(text, 60))
	}
}

var routerPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$`)

func (d *decoder) router(field, text string) string {
	d.check(routerPattern.MatchString(text), field,
		"must be 1 to 64 letters, digits, '_', '.' or '-', not %q", Clip(text, 100))
	return text
}

// Check refuses unknown options and options that exclude one another.
func (n NetworkOptions) Check() error {
	switch {
	case n.Router != "" && n.Internal:
		return Refuse("an internal network has no router: leave out --internal or %s", OptRouter)
	case n.Router != "" && n.NoGateway:
		return Refuse("a network without a gateway has no router: leave out %s or %s",
			OptGateway, OptRouter)
	case n.External != "" && !n.Routed():
		return Refuse("a network without a way out has no external network: leave out %s, or "+
			"--internal and %s", OptExternal, OptGateway)
	case n.External != "" && n.Router != "":
		return Refuse("a shared router has a gateway of its own: leave out %s or %s",
			OptExternal, OptRouter)
	case !n.Existing.Given():
	case n.Router != "":
		return Refuse("an existing network has its owner's router: leave out %s", OptRouter)
	case n.External != "":
		return Refuse("an existing network has its owner's router: leave out %s", OptExternal)
	case n.MTU != 0:
		return Refuse("an existing network has its owner's MTU: leave out %s", OptMTU)
	case len(n.Routes) > 0:
		return Refuse("an existing network has its owner's routes: leave out %s", OptRoutes)
	}
	return n.checkKnown()
}

func (n NetworkOptions) checkKnown() error { return refuseUnknown(n.unknown, ownNetworkOptions) }

// refuseUnknown refuses an option and names the nearest known one. It accepts "".
func refuseUnknown(name string, known []string) error {
	if name == "" {
		return nil
	}
	distance := func(option string) int {
		if strings.HasPrefix(option, name) {
			return 0
		}
		return spelling.Distance(name, option)
	}
	nearest := slices.MinFunc(known, func(a, b string) int { return distance(a) - distance(b) })
	return Refuse("option %s is not known; did you mean %s?", Clip(name, 100), nearest)
}
