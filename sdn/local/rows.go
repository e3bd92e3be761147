package local

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strconv"

	"github.com/kuryr/kuryr/sdn"
)

// The rows of the store. What is written is their JSON: a change of a field's name or meaning here or in the sdn types
// inside is a new schema version with a migration (TestStoredForm fails first).

type networkRow struct {
	sdn.Network
	Ports int  // ports that are not the SDN's own
	Bound int  // of these, those with a Host
	Own   bool // it has a namespace of its own; never while it is on a router
}

type subnetRow struct{ sdn.Subnet }

type subnetPoolRow struct{ sdn.SubnetPool }

// portRow leaves Status and VIF empty: they follow from the rest.
type portRow struct {
	sdn.Port
	Own bool // the SDN's own: a router's leg or gateway, a floating IP's address, a VIP
	// Trunk is what a subport is reached through, and VLAN as which.
	Trunk sdn.ID `json:",omitempty"`
	VLAN  int    `json:",omitempty"`
}

// trunkRow leaves Subports empty: their own rows say it.
type trunkRow struct{ sdn.Trunk }

// routerRow leaves Unreached empty: it is made up when it is shown.
type routerRow struct {
	sdn.Router
	Networks []sdn.ID // of the interfaces, by position
	Uplink   sdn.ID   // the port that holds the gateway's addresses; "" without a gateway
}

type floatingIPRow struct {
	sdn.FloatingIP
	Holder   sdn.ID // the port that holds the address; "" where it is the host's
	Subnet   sdn.ID // of the target
	Forwards int
	// Balancer is the load balancer whose VIP the target is.
	Balancer sdn.ID `json:",omitempty"`
}

type forwardRow struct {
	sdn.Forward
	Meta       sdn.Meta
	FloatingIP sdn.ID
	Address    netip.Addr // of the floating IP
	Subnet     sdn.ID     // of the target
	Router     sdn.ID
	// Via is the first of the ports of the router's uplink that the host leads to: as many as there are external ones. 0 where the
	// address is not the host's.
	Via uint16 `json:",omitempty"`
}

// securityGroupRow has Rules in their normal form.
type securityGroupRow struct {
	sdn.SecurityGroup
	Default bool  // the project's own, which its ports get
	Defined int64 // the revision of the last change of Rules
}

type addressGroupRow struct {
	sdn.AddressGroup
	Defined int64 // the revision of the last change of Prefixes
}

type qosPolicyRow struct{ sdn.QoSPolicy }

// loadBalancerRow leaves Status empty. Its listeners and members are in their normal form: see setParts.
type loadBalancerRow struct{ sdn.LoadBalancer }

// ofHost tells a floating IP that stands for the host's own address, or for all of them.
func (r *floatingIPRow) ofHost() bool { return r.Holder == "" }

func (r *networkRow) meta() *sdn.Meta    { return &r.Meta }
func (r *subnetRow) meta() *sdn.Meta     { return &r.Meta }
func (r *subnetPoolRow) meta() *sdn.Meta { return &r.Meta }
func (r *portRow) meta() *sdn.Meta       { return &r.Meta }
func (r *trunkRow) meta() *sdn.Meta      { return &r.Meta }
func (r *routerRow) meta() *sdn.Meta     { return &r.Meta }
func (r *floatingIPRow) meta() *sdn.Meta { return &r.Meta }
func (r *forwardRow) meta() *sdn.Meta    { return &r.Meta }

func (r *securityGroupRow) meta() *sdn.Meta { return &r.Meta }
func (r *addressGroupRow) meta() *sdn.Meta  { return &r.Meta }
func (r *qosPolicyRow) meta() *sdn.Meta     { return &r.Meta }
func (r *loadBalancerRow) meta() *sdn.Meta  { return &r.Meta }

func (r *networkRow) counted() bool    { return true }
func (r *subnetRow) counted() bool     { return true }
func (r *subnetPoolRow) counted() bool { return true }
func (r *portRow) counted() bool       { return !r.Own || r.balancer() != "" }
func (r *trunkRow) counted() bool      { return true }
func (r *routerRow) counted() bool     { return true }
func (r *floatingIPRow) counted() bool { return true }
func (r *forwardRow) counted() bool    { return true }

func (r *securityGroupRow) counted() bool { return true }
func (r *addressGroupRow) counted() bool  { return true }
func (r *qosPolicyRow) counted() bool     { return true }
func (r *loadBalancerRow) counted() bool  { return true }

// withheld tells whether the host gets no routes to what is behind a router: a project could lead the host's own traffic wherever it likes, by
// giving its networks the ranges of others.
func (r *routerRow) withheld() bool { return r.Project != "" }

// plugged tells whether a port is the kernel's business.
func (r *portRow) plugged() bool { return !r.Own && r.Host != "" }

// place is where a port is in an index by what may concern the kernel: under what is plugged or under what is not, by network.
func (r *portRow) place(of sdn.ID) string {
	if r.plugged() {
		return key(string(of), pluggedPlace, string(r.Network))
	}
	return key(string(of), "0", string(r.Network))
}

const pluggedPlace = "1"

// ident is the index key of an object's identity: its Key and its project.
func ident(m sdn.Meta) []string {
	if m.Key.IsZero() {
		return nil
	}
	return []string{identKey(m.Project, m.Key)}
}

// identKey begins with the Key, so that a search by Keys finds them in all projects.
func identKey(project string, k sdn.Key) string { return key(k.String(), project) }

// some is the index key of an id that may be "".
func some(id sdn.ID) []string {
	if id == "" {
		return nil
	}
	return []string{string(id)}
}

// someIf is the index key of a truth value, of which only the true are indexed.
func someIf(is bool) []string {
	if !is {
		return nil
	}
	return []string{"x"}
}

// itselfIf is the index key of a flag that few rows have, so that it can be looked up without reading the row.
func itselfIf(id sdn.ID, is bool) []string {
	if !is {
		return nil
	}
	return []string{string(id)}
}

func addrKey(scope sdn.ID, a netip.Addr) string { return key(string(scope), string(a.AsSlice())) }

// prefixKey is a prefix's family and then its bits as digits, so that what is inside of it begins with its key.
func prefixKey(p netip.Prefix) string {
	key := strconv.Itoa(family(p.Addr())) + ":"
	for i, b := range p.Masked().Addr().AsSlice() {
		if i*8 < p.Bits() {
			key += fmt.Sprintf("%08b", b)[:min(8, p.Bits()-i*8)]
		}
	}
	return key
}

// overlapping offers to look up what is inside a prefix, and what it is inside of.
func overlapping(p netip.Prefix) []scan {
	key := prefixKey(p.Masked())
	scans := []scan{{index: "prefix", inner: true, prefix: key}}
	for n := range p.Bits() {
		scans = append(scans, scan{index: "prefix", prefix: key[:len(key)-1-n] + "\x00"})
	}
	return scans
}

// vlanKey is two bytes for the VLAN, the higher first, so that they are in order.
func vlanKey(trunk sdn.ID, vlan int) string {
	return key(string(trunk), string(binary.BigEndian.AppendUint16(nil, uint16(vlan))))
}

func macKey(network sdn.ID, mac []byte) string { return key(string(network), string(mac)) }

// tuple is the index key of an external transport port; without an address it is what the keys of all addresses of the family
// begin with.
func tuple(p sdn.Protocol, port uint16, a netip.Addr, whole bool) string {
	k := strconv.Itoa(int(p)) + "/" + strconv.Itoa(int(port)) + "/" + strconv.Itoa(a.BitLen()) + "/"
	if whole {
		k += a.String()
	}
	return k
}

// viaKey is the index key of a port of a router's uplink.
func viaKey(router sdn.ID, p sdn.Protocol, a netip.Addr, port int) string {
	return key(string(router), tuple(p, uint16(port), a, false))
}

// width is how many external ports a forwarding has.
func (r *forwardRow) width() int { return int(r.External.Last) - int(r.External.First) + 1 }

var networks = table[networkRow, *networkRow]{sdn.NounNetwork, "network", []index[networkRow]{
	{"key", true, func(r *networkRow) []string { return ident(r.Meta) }},
	{"project", false, func(r *networkRow) []string { return some(sdn.ID(r.Project)) }},
	{"external", false, func(r *networkRow) []string { return someIf(r.External) }},
	{"shared", false, func(r *networkRow) []string { return someIf(r.Shared) }},
	{"down", true, func(r *networkRow) []string { return itselfIf(r.ID, r.Disabled) }},
	{"limited", true, func(r *networkRow) []string { return itselfIf(r.ID, r.QoSPolicy != "") }},
	{"qos", false, func(r *networkRow) []string { return some(r.QoSPolicy) }},
}}

var subnets = table[subnetRow, *subnetRow]{sdn.NounSubnet, "subnet", []index[subnetRow]{
	{"key", true, func(r *subnetRow) []string { return ident(r.Meta) }},
	{"network", false, func(r *subnetRow) []string { return some(r.Network) }},
	{"pool", false, func(r *subnetRow) []string { return some(r.Pool) }},
	{"project", false, func(r *subnetRow) []string { return some(sdn.ID(r.Project)) }},
}}

var subnetPools = table[subnetPoolRow, *subnetPoolRow]{sdn.NounSubnetPool, "subnet pool", []index[subnetPoolRow]{
	{"key", true, func(r *subnetPoolRow) []string { return ident(r.Meta) }},
	{"name", false, func(r *subnetPoolRow) []string { return some(sdn.ID(r.Name)) }},
	{"project", false, func(r *subnetPoolRow) []string { return some(sdn.ID(r.Project)) }},
	{"shared", false, func(r *subnetPoolRow) []string { return someIf(r.Shared) }},
	{"scope", false, func(r *subnetPoolRow) []string { return some(r.Scope) }},
	{"prefix", false, func(r *subnetPoolRow) []string {
		keys := make([]string, len(r.Prefixes))
		for i, p := range r.Prefixes {
			keys[i] = prefixKey(p)
		}
		return keys
	}},
}}

var ports = table[portRow, *portRow]{sdn.NounPort, "port", []index[portRow]{
	{"key", true, func(r *portRow) []string { return ident(r.Meta) }},
	{"network", false, func(r *portRow) []string { return some(r.Network) }},
	{"device", false, func(r *portRow) []string {
		if r.DeviceID == "" {
			return nil
		}
		return []string{r.DeviceID}
	}},
	{"project", false, func(r *portRow) []string { return some(sdn.ID(r.Project)) }},
	{"group", false, func(r *portRow) []string {
		keys := make([]string, len(r.Groups))
		for i, g := range r.Groups {
			keys[i] = r.place(g)
		}
		return keys
	}},
	{"qos", false, func(r *portRow) []string {
		if r.QoSPolicy == "" {
			return nil
		}
		return []string{r.place(r.QoSPolicy)}
	}},
	{"trunk", true, func(r *portRow) []string {
		if r.Trunk == "" {
			return nil
		}
		return []string{vlanKey(r.Trunk, r.VLAN)}
	}},
	{"mac", true, func(r *portRow) []string { return []string{macKey(r.Network, r.MAC)} }},
	{"address", true, func(r *portRow) []string {
		keys := make([]string, len(r.Addresses))
		for i, a := range r.Addresses {
			keys[i] = addrKey(a.Subnet, a.Addr)
		}
		return keys
	}},
}}

var trunks = table[trunkRow, *trunkRow]{sdn.NounTrunk, "trunk", []index[trunkRow]{
	{"key", true, func(r *trunkRow) []string { return ident(r.Meta) }},
	{"parent", true, func(r *trunkRow) []string { return some(r.Parent) }},
	{"project", false, func(r *trunkRow) []string { return some(sdn.ID(r.Project)) }},
}}

var routers = table[routerRow, *routerRow]{sdn.NounRouter, "router", []index[routerRow]{
	{"key", true, func(r *routerRow) []string { return ident(r.Meta) }},
	{"project", false, func(r *routerRow) []string { return some(sdn.ID(r.Project)) }},
	{"subnet", true, func(r *routerRow) []string {
		keys := make([]string, len(r.Interfaces))
		for i, leg := range r.Interfaces {
			keys[i] = string(leg.Subnet)
		}
		return keys
	}},
	{"network", true, func(r *routerRow) []string {
		keys := make([]string, len(r.Networks))
		for i, n := range r.Networks {
			keys[i] = string(n)
		}
		return keys
	}},
	{"gateway", false, func(r *routerRow) []string {
		if r.Gateway == nil {
			return nil
		}
		return []string{string(r.Gateway.Network)}
	}},
	{"down", true, func(r *routerRow) []string { return itselfIf(r.ID, r.Disabled) }},
}}

var floatingIPs = table[floatingIPRow, *floatingIPRow]{sdn.NounFloatingIP, "floating IP", []index[floatingIPRow]{
	{"key", true, func(r *floatingIPRow) []string { return ident(r.Meta) }},
	{"project", false, func(r *floatingIPRow) []string { return some(sdn.ID(r.Project)) }},
	{"network", false, func(r *floatingIPRow) []string { return some(r.Network) }},
	{"router", false, func(r *floatingIPRow) []string { return some(r.Router) }},
	{"subnet", false, func(r *floatingIPRow) []string { return some(r.Subnet) }},
	{"port", false, func(r *floatingIPRow) []string { return some(r.Target.Port) }},
	{"target", true, func(r *floatingIPRow) []string {
		if r.Target.Port == "" {
			return nil
		}
		return []string{addrKey(r.Target.Port, r.Target.Addr)}
	}},
	{"address", true, func(r *floatingIPRow) []string {
		if r.ofHost() {
			return nil
		}
		return []string{addrKey(r.Network, r.Address)}
	}},
}}

// forwardTable is the name of the table of port forwardings, which is older than their
// noun.
const forwardTable = "forward"

var forwards = table[forwardRow, *forwardRow]{forwardTable, "port forwarding", []index[forwardRow]{
	{"floatingip", false, func(r *forwardRow) []string { return some(r.FloatingIP) }},
	{"router", false, func(r *forwardRow) []string { return some(r.Router) }},
	{"subnet", false, func(r *forwardRow) []string { return some(r.Subnet) }},
	{"port", false, func(r *forwardRow) []string { return some(r.Target.Port) }},
	{"tuple", true, func(r *forwardRow) []string {
		var keys []string
		for port := int(r.External.First); port <= int(r.External.Last); port++ {
			keys = append(keys, tuple(r.Protocol, uint16(port), r.Address, true))
		}
		return keys
	}},
	{"via", true, func(r *forwardRow) []string {
		var keys []string
		for i := range r.width() {
			if r.Via != 0 {
				keys = append(keys, viaKey(r.Router, r.Protocol, r.Address, int(r.Via)+i))
			}
		}
		return keys
	}},
}}

var securityGroups = table[securityGroupRow, *securityGroupRow]{sdn.NounSecurityGroup, "security group", []index[securityGroupRow]{
	{"key", true, func(r *securityGroupRow) []string { return ident(r.Meta) }},
	{"project", false, func(r *securityGroupRow) []string { return some(sdn.ID(r.Project)) }},
	{"default", true, func(r *securityGroupRow) []string {
		if !r.Default {
			return nil
		}
		return []string{r.Project}
	}},
	{"rule", true, func(r *securityGroupRow) []string {
		keys := make([]string, len(r.Rules))
		for i, rule := range r.Rules {
			keys[i] = string(rule.ID)
		}
		return keys
	}},
	{"remote", false, func(r *securityGroupRow) []string { // without itself: that keeps no group from being deleted
		var keys []string
		for _, rule := range r.Rules {
			if rule.RemoteGroup != r.ID {
				keys = append(keys, some(rule.RemoteGroup)...)
			}
		}
		return keys
	}},
	{"set", false, func(r *securityGroupRow) []string {
		var keys []string
		for _, rule := range r.Rules {
			keys = append(keys, some(rule.RemoteSet)...)
		}
		return keys
	}},
}}

var addressGroups = table[addressGroupRow, *addressGroupRow]{sdn.NounAddressGroup, "address group", []index[addressGroupRow]{
	{"key", true, func(r *addressGroupRow) []string { return ident(r.Meta) }},
	{"project", false, func(r *addressGroupRow) []string { return some(sdn.ID(r.Project)) }},
}}

var qosPolicies = table[qosPolicyRow, *qosPolicyRow]{sdn.NounQoSPolicy, "QoS policy", []index[qosPolicyRow]{
	{"key", true, func(r *qosPolicyRow) []string { return ident(r.Meta) }},
	{"default", true, func(r *qosPolicyRow) []string { // a key must not be empty
		if !r.Default {
			return nil
		}
		return []string{"x" + r.Project}
	}},
}}

var loadBalancers = table[loadBalancerRow, *loadBalancerRow]{sdn.NounLoadBalancer, "load balancer", []index[loadBalancerRow]{
	{"key", true, func(r *loadBalancerRow) []string { return ident(r.Meta) }},
	{"project", false, func(r *loadBalancerRow) []string { return some(sdn.ID(r.Project)) }},
	{"part", true, func(r *loadBalancerRow) []string {
		ids := r.Parts()
		keys := make([]string, len(ids))
		for i, id := range ids {
			keys[i] = string(id)
		}
		return keys
	}},
	{"port", false, func(r *loadBalancerRow) []string { return ofVIPs(r, func(v sdn.VIP) string { return string(v.Port) }) }},
	{"subnet", false, func(r *loadBalancerRow) []string {
		return ofVIPs(r, func(v sdn.VIP) string { return string(v.Subnet) })
	}},
	{"address", false, func(r *loadBalancerRow) []string { return ofVIPs(r, func(v sdn.VIP) string { return v.Addr.String() }) }},
}}

func ofVIPs(r *loadBalancerRow, key func(sdn.VIP) string) []string {
	keys := make([]string, len(r.VIPs))
	for i, v := range r.VIPs {
		keys[i] = key(v)
	}
	return keys
}

// Tables that hold no rows. Below addressIndexes are the free addresses of each subnet, and below
// prefixIndexes the free prefixes of each subnet pool, see intervals.
const (
	metaTable      = "meta" // facts about the whole store
	addressIndexes = "free-addresses"
	prefixIndexes  = "free-prefixes"
	quotaTable     = "quotas" // project → limits
	usageTable     = "usage"  // project, 0, noun → count
)

// tableNames lists all tables but those below others.
func tableNames() []string {
	names := []string{metaTable, addressIndexes, prefixIndexes, quotaTable, usageTable}
	for _, t := range []interface{ tableNames() []string }{
		networks, subnets, subnetPools, ports, trunks, routers, floatingIPs, forwards, securityGroups,
		addressGroups, qosPolicies, loadBalancers, accesses, addressScopes,
	} {
		names = append(names, t.tableNames()...)
	}
	return names
}
