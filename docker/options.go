package docker

import (
	"context"
	"encoding/json"
	"maps"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/kuryr/kuryr/internal/spelling"
	"github.com/kuryr/kuryr/sdn"
)

// Keys of options (moby: daemon/libnetwork/netlabel).
const (
	optGeneric  = "com.docker.network.generic" // the -o options of docker network create
	optInternal = "com.docker.network.internal"
	optMTU      = "com.docker.network.driver.mtu"
	optBinding  = "com.docker.network.bridge.host_binding_ipv4" // where ports without a host address are published
	optMAC      = "com.docker.network.endpoint.macaddress"
	optExposed  = "com.docker.network.endpoint.exposedports"
	optPortMap  = "com.docker.network.portmap"
	optDNS      = "com.docker.network.endpoint.dnsservers"

	// Ours, given by -o.
	ownPrefix  = "kuryr."
	optRouter  = "kuryr.router"  // name of a router that networks share, or name or id of one that is there
	optRoutes  = "kuryr.routes"  // routes of every container: DESTINATION=NEXTHOP,…
	optGateway = "kuryr.gateway" // none: no gateway, and no router
	// name or id of the network that the router made for this network has its gateway on
	optExternal = "kuryr.external_network"

	gatewayNone = "none"
)

var ownOptions = []string{optRouter, optRoutes, optGateway, optExternal, optGroups, optPublish}

// networkOptions are what a network was asked to be.
type networkOptions struct {
	internal  bool
	noGateway bool
	mtu       int             // 0: the SDN's
	router    string          // "": one of its own, if any
	external  string          // where its own router has its gateway; "": where the SDN says
	existing  existingOptions // what of the SDN's is to be used
	routes    []sdn.HostRoute // of every container
	binding   netip.Addr      // where ports are published that name no address of the host; invalid: everywhere
	groups    []string        // security groups of its endpoints, by name or id
	publish   string          // how ports are published; "": at the host's addresses
	unknown   string          // the first option in our name that we do not know
	foreign   []string        // options that mean nothing to us, in order
}

// known are the options of docker network create that reach a driver and have a meaning here, ours aside. The others belong to
// drivers of the engine's own.
var known = []string{optGeneric, optInternal, optMTU, optBinding, "com.docker.network.enable_ipv6", "com.docker.network.enable_ipv4"}

var routerName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$`)

func parseNetworkOptions(o options) (n networkOptions, err error) {
	if err := o.get(optInternal, &n.internal); err != nil {
		return n, err
	}
	var generic map[string]json.RawMessage
	if err := o.get(optGeneric, &generic); err != nil {
		return n, err
	}
	for name := range o {
		n.pass(name)
	}
	if n.existing, err = parseExisting(generic); err != nil {
		return n, err
	}
	for name, raw := range generic {
		n.pass(name)
		field := "Options." + optGeneric + "." + clip(name, 100)
		if strings.HasPrefix(name, ownPrefix) && !slices.Contains(ownOptions, name) && (n.unknown == "" || name < n.unknown) {
			n.unknown = name
		}
		if name != optMTU && name != optBinding && !slices.Contains(ownOptions, name) {
			continue
		}
		var value string
		if err := unmarshal(field, raw, &value); err != nil {
			return n, err
		}
		switch name {
		case optMTU:
			mtu, err := strconv.Atoi(value)
			if err != nil || mtu < 68 || mtu > 65535 {
				return n, malformed(field, "must be a number from 68 to 65535, not %q", clip(value, 40))
			}
			n.mtu = mtu
		case optBinding:
			address, err := parseAddr(field, value)
			if err != nil || !address.Is4() {
				return n, malformed(field, "must be an IPv4 address, not %q", clip(value, 60))
			}
			if !address.IsUnspecified() {
				n.binding = address
			}
		case optRouter:
			if !routerName.MatchString(value) {
				return n, malformed(field, "must be 1 to 64 letters, digits, '_', '.' or '-', not %q", clip(value, 100))
			}
			n.router = value
		case optExternal:
			if !routerName.MatchString(value) {
				return n, malformed(field, "must be 1 to 64 letters, digits, '_', '.' or '-', not %q", clip(value, 100))
			}
			n.external = value
		case optRoutes:
			if n.routes, err = parseRoutes(field, value); err != nil {
				return n, err
			}
		case optGroups:
			var err error
			if n.groups, err = parseGroups(field, value); err != nil {
				return n, err
			}
			if i := slices.IndexFunc(n.groups, func(g string) bool { return len(g) > maxGroupTag }); i >= 0 {
				return n, malformed(field, "%q is too long to be remembered: give its id", clip(n.groups[i], 60))
			}
		case optPublish:
			if err := checkPublish(field, value); err != nil {
				return n, err
			}
			n.publish = value
		case optGateway:
			if value != gatewayNone {
				return n, malformed(field, "must be %s, not %q; an address is given by --gateway", gatewayNone, clip(value, 60))
			}
			n.noGateway = true
		}
	}
	slices.Sort(n.foreign)
	return n, nil
}

// tags remember of the options what no field of the SDN's network has room for.
func (n networkOptions) tags() []string {
	var tags []string
	if n.router != "" {
		tags = append(tags, tagRouter+n.router)
	}
	if n.external != "" {
		tags = append(tags, tagExternal+n.external)
	}
	if n.internal {
		tags = append(tags, tagInternal)
	}
	if n.noGateway {
		tags = append(tags, tagNoGateway)
	}
	if n.binding.IsValid() {
		tags = append(tags, tagBinding+n.binding.String())
	}
	if n.publish != "" {
		tags = append(tags, tagPublish+n.publish)
	}
	for _, g := range n.groups {
		tags = append(tags, tagGroup+g)
	}
	return tags
}

// kept refuses options that the tags of what was made do not remember, because the SDN has none, and nothing else does: a router or a security
// group would be forgotten.
func (n networkOptions) kept(tags []string) error {
	needed := slices.DeleteFunc(n.tags(), func(t string) bool { return t == tagInternal || t == tagNoGateway })
	if hasAll(tags, needed) {
		return nil
	}
	var options []string
	for _, o := range []struct{ tag, option string }{{tagRouter, optRouter}, {tagExternal, optExternal}, {tagGroup, optGroups}, {tagPublish, optPublish}, {tagBinding, optBinding}} {
		if len(tagsWith(needed, o.tag)) > 0 {
			options = append(options, o.option)
		}
	}
	return untagged(options)
}

// untagged refuses options that an SDN without tags would forget.
func untagged(options []string) error {
	return refuse("option %s: it is kept in tags, which this SDN does not have (a Neutron has them with the extension standard-attr-tag)", strings.Join(options, " and "))
}

// pass notes an option that is not for us.
func (n *networkOptions) pass(name string) {
	if !slices.Contains(known, name) && !slices.Contains(existingNames, name) && !strings.HasPrefix(name, ownPrefix) {
		n.foreign = append(n.foreign, clip(name, 100))
	}
}

// maxForeign is how many names of options that mean nothing are told.
const maxForeign = 20

// toldForeign is what the log says of options that mean nothing to us.
func toldForeign(names []string) string {
	text := strings.Join(names[:min(len(names), maxForeign)], " ")
	if len(names) > maxForeign {
		text += " …"
	}
	return printable(text)
}

// tellForeign logs the names of IPAM options that have no meaning here.
func (d *Driver) tellForeign(ctx context.Context, pool enginePool, ipam map[string]string) {
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(ipam)), func(name string) bool { return slices.Contains(existingNames, name) })
	if len(names) == 0 {
		return
	}
	for i, name := range names {
		names[i] = clip(name, 100)
	}
	d.log.WarnContext(ctx, "IPAM options of a network mean nothing to kuryr", "range", pool.cidr, "options", toldForeign(names))
}

// check refuses what cannot be asked for together.
func (n networkOptions) check() error {
	if n.router != "" && n.internal {
		return refuse("an internal network has no router: leave out --internal or %s", optRouter)
	}
	if n.router != "" && n.noGateway {
		return refuse("a network without a gateway has no router: leave out %s or %s", optGateway, optRouter)
	}
	if n.external != "" && !n.routed() {
		return refuse("a network without a way out has no external network: leave out %s, or --internal and %s", optExternal, optGateway)
	}
	if n.external != "" && n.router != "" {
		return refuse("a router that networks share has a gateway of its own: leave out %s or %s", optExternal, optRouter)
	}
	if n.existing.given() {
		switch {
		case n.router != "":
			return refuse("an existing network has its owner's router: leave out %s", optRouter)
		case n.external != "":
			return refuse("an existing network has its owner's router: leave out %s", optExternal)
		case n.mtu != 0:
			return refuse("an existing network has its owner's MTU: leave out %s", optMTU)
		case len(n.routes) > 0:
			return refuse("an existing network has its owner's routes: leave out %s", optRoutes)
		}
	}
	return n.refuseUnknown()
}

// asksRouter tells whether the network's creator named a router, or where one is to lead.
func (n networkOptions) asksRouter() bool { return n.router != "" || n.external != "" }

// routed tells whether the network is to have a router.
func (n networkOptions) routed() bool { return !n.internal && !n.noGateway }

// refuseUnknown is the refusal of an option in our name that we do not know: a slip of the pen must not pass unseen.
func (n networkOptions) refuseUnknown() error { return unknownOption(n.unknown, ownOptions) }

func unknownOption(name string, known []string) error {
	if name == "" {
		return nil
	}
	distance := func(option string) int {
		if strings.HasPrefix(option, name) {
			return 0 // cut short
		}
		return spelling.Distance(name, option)
	}
	nearest := slices.MinFunc(known, func(a, b string) int { return distance(a) - distance(b) })
	return refuse("option %s is not known; did you mean %s?", clip(name, 100), nearest)
}

// endpointOptions are what an endpoint was asked to be.
type endpointOptions struct {
	mac       net.HardwareAddr
	published []portMap
	exposed   []exposedPort
	driver    driverOptions
}

// portMap is one -p (moby: types.PortBinding).
type portMap struct {
	Proto                 sdn.Protocol
	IP                    string
	Port                  uint16
	HostIP                string
	HostPort, HostPortEnd uint16
}

// exposedPort is one --expose (moby: types.TransportPort).
type exposedPort struct {
	Proto sdn.Protocol
	Port  uint16
}

func parseEndpointOptions(o options) (e endpointOptions, err error) {
	var mac []byte // encoding/json reads base64 into it
	if err := o.get(optMAC, &mac); err != nil {
		return e, err
	}
	if mac != nil {
		e.mac = net.HardwareAddr(mac)
		if err := checkMAC("Options."+optMAC, e.mac); err != nil {
			return e, err
		}
	}
	if err := o.get(optExposed, &e.exposed); err != nil {
		return e, err
	}
	if e.driver, err = parseDriverOptions(o); err != nil {
		return e, err
	}
	var dns []string
	if err := o.get(optDNS, &dns); err != nil {
		return e, err
	}
	if err := o.get(optPortMap, &e.published); err != nil {
		return e, err
	}
	for _, m := range e.published {
		field := "Options." + optPortMap
		if m.Port == 0 {
			return e, malformed(field+".Port", "must be from 1 to 65535")
		}
		if m.HostPortEnd != 0 && m.HostPortEnd < m.HostPort {
			return e, malformed(field+".HostPortEnd", "%d is before %d", m.HostPortEnd, m.HostPort)
		}
		if _, err := parseAddr(field+".HostIP", m.HostIP); err != nil {
			return e, err
		}
	}
	return e, nil
}

// get decodes one option; one that is absent or null leaves v as it is.
func (o options) get(name string, v any) error {
	raw, ok := o[name]
	if !ok {
		return nil
	}
	return unmarshal("Options."+name, raw, v)
}
