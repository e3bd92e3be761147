package docker

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/kuryr/kuryr/sdn"
)

// The driver options of an endpoint, which docker network connect --driver-opt gives.
const (
	optIfname = "com.docker.network.endpoint.ifname" // Docker's

	// Ours.
	optPortSecurity = "kuryr.port_security"     // false: the port may send as whomever it likes
	optAllowed      = "kuryr.allowed_addresses" // what it may send as besides its own addresses: PREFIX[@MAC],…
	optPort         = "kuryr.port"              // the id of a port that is there
	optNeutronPort  = "neutron.port.uuid"       // the same, named as kuryr-libnetwork names networks and subnets
	optGroups       = "kuryr.security_groups"   // names or ids of security groups, separated by commas or spaces; also of a network, for all its endpoints
	optQoSPolicy    = "kuryr.qos_policy"        // the name or id of a QoS policy
	optFloatingIP   = "kuryr.floating_ip"       // auto, an address, or the id of a floating IP

	neutronPrefix = "neutron."
	floatingAuto  = "auto"
)

var ownEndpointOptions = []string{optPortSecurity, optAllowed, optPort, optNeutronPort, optGroups, optQoSPolicy, optFloatingIP, optPublish}

// maxGroups is how many security groups an endpoint may be given.
const maxGroups = 20

// maxAllowed is how many allowed addresses an endpoint may have. SDNs may have fewer (Neutron: max_allowed_address_pair, 10).
const maxAllowed = 100

// driverOptions are what an endpoint was asked to be beyond what every driver is told.
type driverOptions struct {
	ifname      string            // the interface's name in the container; "" is the engine's choice
	portSafety  *bool             // whether the port is guarded; nil is as the network says
	allowed     []sdn.AllowedPair // nil: none were asked for
	port        sdn.ID            // one that is there; "": the one with the addresses
	portOption  string            // which option named it
	groups      []string          // security groups, by name or id; nil: none were asked for
	policy      string            // a QoS policy, by name or id
	floating    string            // floatingAuto, an address or an id of a floating IP; "": none
	publish     string            // how ports are published; "": as the network says
	unknown     string            // the first option in our name that we do not know
	contradicts bool
}

func parseDriverOptions(o options) (d driverOptions, err error) {
	for name := range o {
		if (strings.HasPrefix(name, ownPrefix) || strings.HasPrefix(name, neutronPrefix)) && !slices.Contains(ownEndpointOptions, name) && (d.unknown == "" || name < d.unknown) {
			d.unknown = name
		}
	}
	if err := o.get(optIfname, &d.ifname); err != nil {
		return d, err
	}
	if d.ifname != "" && !validIfname(d.ifname) {
		return d, malformed("Options."+optIfname,
			"must be an interface's name: 1 to 15 visible characters, none of them '/', ':', ',' or '%%', not %q", clip(d.ifname, 40))
	}
	var guarded, allowed string
	if err := o.get(optPortSecurity, &guarded); err != nil {
		return d, err
	}
	switch guarded {
	case "true", "false":
		on := guarded == "true"
		d.portSafety = &on
	case "":
	default:
		return d, malformed("Options."+optPortSecurity, "must be true or false, not %q", clip(guarded, 40))
	}
	if err := o.get(optAllowed, &allowed); err != nil {
		return d, err
	}
	if allowed != "" {
		if d.allowed, err = parseAllowed("Options."+optAllowed, allowed); err != nil {
			return d, err
		}
	}
	if err := d.parseNamed(o); err != nil {
		return d, err
	}
	d.contradicts = d.portSafety != nil && !*d.portSafety && d.allowed != nil
	return d, nil
}

// parseNamed reads the options that name things of the SDN.
func (d *driverOptions) parseNamed(o options) error {
	var groups string
	for _, name := range []string{optPort, optNeutronPort} {
		var id string
		if err := o.get(name, &id); err != nil {
			return err
		}
		switch {
		case id == "":
		case d.port != "" && d.port != sdn.ID(id):
			return malformed("Options."+name, "names another port than %s", d.portOption)
		case !sdnName(id):
			return malformed("Options."+name, "must be the id of a port, not %q", clip(id, 60))
		default:
			d.port, d.portOption = sdn.ID(id), name
		}
	}
	if err := o.get(optGroups, &groups); err != nil {
		return err
	}
	if groups != "" {
		var err error
		if d.groups, err = parseGroups("Options."+optGroups, groups); err != nil {
			return err
		}
	}
	if err := o.get(optQoSPolicy, &d.policy); err != nil {
		return err
	}
	if d.policy != "" && !sdnName(d.policy) {
		return malformed("Options."+optQoSPolicy, "must be the name or the id of a QoS policy, not %q", clip(d.policy, 60))
	}
	if err := o.get(optPublish, &d.publish); err != nil {
		return err
	}
	if d.publish != "" {
		if err := checkPublish("Options."+optPublish, d.publish); err != nil {
			return err
		}
	}
	if err := o.get(optFloatingIP, &d.floating); err != nil {
		return err
	}
	if d.floating == "" || d.floating == floatingAuto || uuid.Validate(d.floating) == nil {
		return nil
	}
	if a, err := netip.ParseAddr(d.floating); err != nil || a.Zone() != "" || a.IsUnspecified() {
		return malformed("Options."+optFloatingIP, "must be %s, an address, or the id of a floating IP, not %q", floatingAuto, clip(d.floating, 60))
	}
	return nil
}

// parseGroups reads names and ids of security groups.
func parseGroups(field, text string) ([]string, error) {
	var groups []string
	for _, name := range listed(text) {
		if !sdnName(name) {
			return nil, malformed(field, "must be names or ids of security groups, separated by commas or spaces, not %q", clip(text, 100))
		}
		if !slices.Contains(groups, name) {
			groups = append(groups, name)
		}
	}
	if len(groups) > maxGroups {
		return nil, malformed(field, "has more than %d security groups", maxGroups)
	}
	return groups, nil
}

// sdnName tells whether a text can be the name or the id of something of the SDN's.
func sdnName(s string) bool {
	return s != "" && len(s) <= 255 && !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f || r == ',' })
}

// validIfname is the kernel's rule (dev_valid_name), less what means something to it when a link is named, or to tags.
func validIfname(s string) bool {
	return len(s) <= 15 && s != "." && s != ".." && s != "lo" && !strings.ContainsFunc(s, func(r rune) bool {
		return r <= ' ' || r > '~' || strings.ContainsRune("/:,%", r)
	})
}

// parseAllowed reads "10.9.0.0/16,192.0.2.7@02:00:00:00:00:07".
func parseAllowed(field, text string) ([]sdn.AllowedPair, error) {
	var pairs []sdn.AllowedPair
	for _, part := range listed(text) {
		pair, err := parsePair(field, part)
		if err != nil {
			return nil, err
		}
		if pairs = append(pairs, pair); len(pairs) > maxAllowed {
			return nil, malformed(field, "has more than %d addresses", maxAllowed)
		}
	}
	return pairs, nil
}

func parsePair(field, text string) (pair sdn.AllowedPair, err error) {
	addresses, mac, withMAC := strings.Cut(text, "@")
	if a, single := netip.ParseAddr(addresses); single == nil && a.Zone() == "" {
		pair.Prefix = netip.PrefixFrom(a, a.BitLen())
	} else if pair.Prefix, err = netip.ParsePrefix(addresses); err != nil {
		return pair, malformed(field, "must be addresses or ranges, each with a @MAC or not, separated by commas or spaces, not %q", clip(text, 60))
	}
	switch p := pair.Prefix; {
	case p.Addr().Is4In6():
		return pair, malformed(field, "%s is an IPv4 address in IPv6 form; write it as IPv4", p.Addr())
	case p != p.Masked():
		return pair, malformed(field, "%s has bits beyond its length; did you mean %s?", p, p.Masked())
	}
	if withMAC {
		if pair.MAC, err = parseMAC(field, mac); err == nil && pair.MAC == nil {
			err = malformed(field, "%q has no MAC after the @", clip(text, 60))
		}
	}
	return pair, err
}

// refuse is the refusal of what cannot be asked for together, or of an option in our name that we do not know.
func (d driverOptions) refuse() error {
	if d.contradicts {
		return refuse("%s=false lets the container send as whomever it likes: leave out %s", optPortSecurity, optAllowed)
	}
	if d.portSafety != nil && !*d.portSafety && d.groups != nil {
		return refuse("%s=false lets everything through: leave out %s", optPortSecurity, optGroups)
	}
	return unknownOption(d.unknown, ownEndpointOptions)
}

// changing is an option that changes what a port is beyond who has it, "" if there is none.
func (d driverOptions) changing() string {
	switch {
	case d.groups != nil:
		return optGroups
	case d.policy != "":
		return optQoSPolicy
	case d.portSafety != nil:
		return optPortSecurity
	case d.allowed != nil:
		return optAllowed
	}
	return ""
}

// tags remember what Join will not be told again, and what has to be undone when the port is parked.
func (d driverOptions) tags() []string {
	var tags []string
	if d.ifname != "" {
		tags = append(tags, tagIfname+d.ifname)
	}
	if d.portSafety != nil {
		tags = append(tags, tagGuarded+strconv.FormatBool(*d.portSafety))
	}
	switch {
	case d.floating != "" && d.publish != publishFloating:
		tags = append(tags, tagFloating+d.floating)
	case d.floating != "" && d.floating != floatingAuto:
		tags = append(tags, tagPublishAt+d.floating)
	}
	if d.publish != "" {
		tags = append(tags, tagPublish+d.publish)
	}
	return tags
}

// lost are the options that an SDN without tags would forget.
func (d driverOptions) lost() (options []string) {
	for _, o := range []struct {
		option string
		asked  bool
	}{{optIfname, d.ifname != ""}, {optPortSecurity, d.portSafety != nil}, {optFloatingIP, d.floating != ""}, {optPublish, d.publish == publishFloating}} {
		if o.asked {
			options = append(options, o.option)
		}
	}
	return options
}

// unguarded is what the SDN is told of an endpoint's guard, nil where it was not asked for anything.
func (d driverOptions) unguarded() *bool {
	if d.portSafety == nil {
		return nil
	}
	off := !*d.portSafety
	return &off
}

func samePairs(a, b []sdn.AllowedPair) bool {
	return slices.EqualFunc(a, b, func(x, y sdn.AllowedPair) bool {
		return x.Prefix == y.Prefix && slices.Equal(x.MAC, y.MAC)
	})
}

// ifname is the name that the engine's user wants the interface of a port to have, "" for whatever it is given.
func ifname(port sdn.Port) string {
	for _, name := range tagValues(port.Tags, tagIfname) {
		if validIfname(name) {
			return name
		}
	}
	return ""
}
