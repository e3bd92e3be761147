package engine

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strconv"

	"github.com/kuryr/kuryr/sdn"
)

// The rows of the store. What is written is their JSON: a change of a field's name or meaning here or in the sdn types
// inside is a new schema version with a migration (TestStoredForm fails first).

// NetworkRow is a network.
type NetworkRow struct {
	sdn.Network
	Ports int  // ports that are not the SDN's own
	Bound int  // of these, those with a Host
	Own   bool // it has a namespace of its own; never while it is on a router
}

type subnetRow struct{ sdn.Subnet }

type subnetPoolRow struct{ sdn.SubnetPool }

// PortRow leaves Status and VIF empty: they follow from the rest.
type PortRow struct {
	sdn.Port
	Own bool // the SDN's own: a router's leg or gateway, a floating IP's address, a VIP
	// Trunk is what a subport is reached through, and VLAN as which.
	Trunk sdn.ID `json:",omitempty"`
	VLAN  int    `json:",omitempty"`
}

// TrunkRow leaves Subports empty: their own rows say it.
type TrunkRow struct{ sdn.Trunk }

// RouterRow leaves Unreached empty: it is made up when it is shown.
type RouterRow struct {
	sdn.Router
	Networks []sdn.ID // of the interfaces, by position
	Uplink   sdn.ID   // the port that holds the gateway's addresses; "" without a gateway
}

// FloatingIPRow is a floating IP.
type FloatingIPRow struct {
	sdn.FloatingIP
	Holder   sdn.ID // the port that holds the address; "" where it is the host's
	Subnet   sdn.ID // of the target
	Forwards int
	// Balancer is the load balancer whose VIP the target is.
	Balancer sdn.ID `json:",omitempty"`
}

// ForwardRow is a port forwarding.
type ForwardRow struct {
	sdn.Forward
	Meta       sdn.Meta
	FloatingIP sdn.ID
	Address    netip.Addr // of the floating IP
	Subnet     sdn.ID     // of the target
	Router     sdn.ID
	// Via is the first of the ports of the router's uplink that the host leads to: as many as there
	// are external ones. 0 where the address is not the host's.
	Via uint16 `json:",omitempty"`
}

// SecurityGroupRow has Rules in their normal form.
type SecurityGroupRow struct {
	sdn.SecurityGroup
	Default bool  // the project's own, which its ports get
	Defined int64 // the revision of the last change of Rules
}

// AddressGroupRow is an address group.
type AddressGroupRow struct {
	sdn.AddressGroup
	Defined int64 // the revision of the last change of Prefixes
}

// QoSPolicyRow is a QoS policy.
type QoSPolicyRow struct{ sdn.QoSPolicy }

// LoadBalancerRow leaves Status empty. Its listeners and members are in their normal form: see setParts.
type LoadBalancerRow struct{ sdn.LoadBalancer }

// OfHost reports whether a floating IP stands for the host's own address, or for all of them.
func (r *FloatingIPRow) OfHost() bool { return r.Holder == "" }

func (r *NetworkRow) meta() *sdn.Meta    { return &r.Meta }
func (r *subnetRow) meta() *sdn.Meta     { return &r.Meta }
func (r *subnetPoolRow) meta() *sdn.Meta { return &r.Meta }
func (r *PortRow) meta() *sdn.Meta       { return &r.Meta }
func (r *TrunkRow) meta() *sdn.Meta      { return &r.Meta }
func (r *RouterRow) meta() *sdn.Meta     { return &r.Meta }
func (r *FloatingIPRow) meta() *sdn.Meta { return &r.Meta }
func (r *ForwardRow) meta() *sdn.Meta    { return &r.Meta }

func (r *SecurityGroupRow) meta() *sdn.Meta { return &r.Meta }
func (r *AddressGroupRow) meta() *sdn.Meta  { return &r.Meta }
func (r *QoSPolicyRow) meta() *sdn.Meta     { return &r.Meta }
func (r *LoadBalancerRow) meta() *sdn.Meta  { return &r.Meta }

func (r *NetworkRow) counted() bool    { return true }
func (r *subnetRow) counted() bool     { return true }
func (r *subnetPoolRow) counted() bool { return true }
func (r *PortRow) counted() bool       { return !r.Own || r.Balancer() != "" }
func (r *TrunkRow) counted() bool      { return true }
func (r *RouterRow) counted() bool     { return true }
func (r *FloatingIPRow) counted() bool { return true }
func (r *ForwardRow) counted() bool    { return true }

func (r *SecurityGroupRow) counted() bool { return true }
func (r *AddressGroupRow) counted() bool  { return true }
func (r *QoSPolicyRow) counted() bool     { return true }
func (r *LoadBalancerRow) counted() bool  { return true }

// Withheld reports whether the host gets no routes to what is behind a router: a project could lead
// the host's own traffic wherever it likes, by giving its networks the ranges of others.
func (r *RouterRow) Withheld() bool { return r.Project != "" }

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

// AddrKey is the index key of an address on a subnet or a network.
func AddrKey(scope sdn.ID, a netip.Addr) string { return key(string(scope), string(a.AsSlice())) }

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

// Tuple is the index key of an external transport port; without an address it is what the keys of
// all addresses of the family begin with.
func Tuple(p sdn.Protocol, port uint16, a netip.Addr, whole bool) string {
	k := strconv.Itoa(int(p)) + "/" + strconv.Itoa(int(port)) + "/" + strconv.Itoa(a.BitLen()) + "/"
	if whole {
		k += a.String()
	}
	return k
}

// viaKey is the index key of a port of a router's uplink.
func viaKey(router sdn.ID, p sdn.Protocol, a netip.Addr, port int) string {
	return key(string(router), Tuple(p, uint16(port), a, false))
}

// Width is how many external ports a forwarding has.
func (r *ForwardRow) Width() int { return int(r.External.Last) - int(r.External.First) + 1 }

// Networks is the table of networks.
var Networks = table[NetworkRow, *NetworkRow]{sdn.NounNetwork, "network", []index[NetworkRow]{
	{"key", true, func(r *NetworkRow) []string { return ident(r.Meta) }},
	{"project", false, func(r *NetworkRow) []string { return some(sdn.ID(r.Project)) }},
	{"external", false, func(r *NetworkRow) []string { return someIf(r.External) }},
	{"shared", false, func(r *NetworkRow) []string { return someIf(r.Shared) }},
	{"down", true, func(r *NetworkRow) []string { return itselfIf(r.ID, r.Disabled) }},
	{"limited", true, func(r *NetworkRow) []string { return itselfIf(r.ID, r.QoSPolicy != "") }},
	{"qos", false, func(r *NetworkRow) []string { return some(r.QoSPolicy) }},
}}

// Subnets is the table of subnets.
var Subnets = table[subnetRow, *subnetRow]{sdn.NounSubnet, "subnet", []index[subnetRow]{
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

// Ports is the table of ports.
var Ports = table[PortRow, *PortRow]{sdn.NounPort, "port", []index[PortRow]{
	{"key", true, func(r *PortRow) []string { return ident(r.Meta) }},
	{"network", false, func(r *PortRow) []string { return some(r.Network) }},
	{"device", false, func(r *PortRow) []string {
		if r.DeviceID == "" {
			return nil
		}
		return []string{r.DeviceID}
	}},
	{"project", false, func(r *PortRow) []string { return some(sdn.ID(r.Project)) }},
	{"group", false, func(r *PortRow) []string {
		keys := make([]string, len(r.Groups))
		for i, g := range r.Groups {
			keys[i] = r.place(g)
		}
		return keys
	}},
	{"qos", false, func(r *PortRow) []string {
		if r.QoSPolicy == "" {
			return nil
		}
		return []string{r.place(r.QoSPolicy)}
	}},
	{"trunk", true, func(r *PortRow) []string {
		if r.Trunk == "" {
			return nil
		}
		return []string{vlanKey(r.Trunk, r.VLAN)}
	}},
	{"mac", true, func(r *PortRow) []string { return []string{macKey(r.Network, r.MAC)} }},
	{"address", true, func(r *PortRow) []string {
		keys := make([]string, len(r.Addresses))
		for i, a := range r.Addresses {
			keys[i] = AddrKey(a.Subnet, a.Addr)
		}
		return keys
	}},
}}

// Trunks is the table of trunks.
var Trunks = table[TrunkRow, *TrunkRow]{sdn.NounTrunk, "trunk", []index[TrunkRow]{
	{"key", true, func(r *TrunkRow) []string { return ident(r.Meta) }},
	{"parent", true, func(r *TrunkRow) []string { return some(r.Parent) }},
	{"project", false, func(r *TrunkRow) []string { return some(sdn.ID(r.Project)) }},
}}

// Routers is the table of routers.
var Routers = table[RouterRow, *RouterRow]{sdn.NounRouter, "router", []index[RouterRow]{
	{"key", true, func(r *RouterRow) []string { return ident(r.Meta) }},
	{"project", false, func(r *RouterRow) []string { return some(sdn.ID(r.Project)) }},
	{"subnet", true, func(r *RouterRow) []string {
		keys := make([]string, len(r.Interfaces))
		for i, leg := range r.Interfaces {
			keys[i] = string(leg.Subnet)
		}
		return keys
	}},
	{"network", true, func(r *RouterRow) []string {
		keys := make([]string, len(r.Networks))
		for i, n := range r.Networks {
			keys[i] = string(n)
		}
		return keys
	}},
	{"gateway", false, func(r *RouterRow) []string {
		if r.Gateway == nil {
			return nil
		}
		return []string{string(r.Gateway.Network)}
	}},
	{"down", true, func(r *RouterRow) []string { return itselfIf(r.ID, r.Disabled) }},
}}

// FloatingIPs is the table of floating IPs.
var FloatingIPs = table[FloatingIPRow, *FloatingIPRow]{sdn.NounFloatingIP, "floating IP", []index[FloatingIPRow]{
	{"key", true, func(r *FloatingIPRow) []string { return ident(r.Meta) }},
	{"project", false, func(r *FloatingIPRow) []string { return some(sdn.ID(r.Project)) }},
	{"network", false, func(r *FloatingIPRow) []string { return some(r.Network) }},
	{"router", false, func(r *FloatingIPRow) []string { return some(r.Router) }},
	{"subnet", false, func(r *FloatingIPRow) []string { return some(r.Subnet) }},
	{"port", false, func(r *FloatingIPRow) []string { return some(r.Target.Port) }},
	{"target", true, func(r *FloatingIPRow) []string {
		if r.Target.Port == "" {
			return nil
		}
		return []string{AddrKey(r.Target.Port, r.Target.Addr)}
	}},
	{"address", true, func(r *FloatingIPRow) []string {
		if r.OfHost() {
			return nil
		}
		return []string{AddrKey(r.Network, r.Address)}
	}},
}}

// forwardTable is the name of the table of port forwardings, which is older than their
// noun.
const forwardTable = "forward"

// Forwards is the table of port forwardings.
var Forwards = table[ForwardRow, *ForwardRow]{forwardTable, "port forwarding", []index[ForwardRow]{
	{"floatingip", false, func(r *ForwardRow) []string { return some(r.FloatingIP) }},
	{"router", false, func(r *ForwardRow) []string { return some(r.Router) }},
	{"subnet", false, func(r *ForwardRow) []string { return some(r.Subnet) }},
	{"port", false, func(r *ForwardRow) []string { return some(r.Target.Port) }},
	{"tuple", true, func(r *ForwardRow) []string {
		var keys []string
		for port := int(r.External.First); port <= int(r.External.Last); port++ {
			keys = append(keys, Tuple(r.Protocol, uint16(port), r.Address, true))
		}
		return keys
	}},
	{"via", true, func(r *ForwardRow) []string {
		var keys []string
		for i := range r.Width() {
			if r.Via != 0 {
				keys = append(keys, viaKey(r.Router, r.Protocol, r.Address, int(r.Via)+i))
			}
		}
		return keys
	}},
}}

// SecurityGroups is the table of security groups.
var SecurityGroups = table[SecurityGroupRow, *SecurityGroupRow]{sdn.NounSecurityGroup, "security group", []index[SecurityGroupRow]{
	{"key", true, func(r *SecurityGroupRow) []string { return ident(r.Meta) }},
	{"project", false, func(r *SecurityGroupRow) []string { return some(sdn.ID(r.Project)) }},
	{"default", true, func(r *SecurityGroupRow) []string {
		if !r.Default {
			return nil
		}
		return []string{r.Project}
	}},
	{"rule", true, func(r *SecurityGroupRow) []string {
		keys := make([]string, len(r.Rules))
		for i, rule := range r.Rules {
			keys[i] = string(rule.ID)
		}
		return keys
	}},
	{"remote", false, func(r *SecurityGroupRow) []string { // without itself: that keeps no group from being deleted
		var keys []string
		for _, rule := range r.Rules {
			if rule.RemoteGroup != r.ID {
				keys = append(keys, some(rule.RemoteGroup)...)
			}
		}
		return keys
	}},
	{"set", false, func(r *SecurityGroupRow) []string {
		var keys []string
		for _, rule := range r.Rules {
			keys = append(keys, some(rule.RemoteSet)...)
		}
		return keys
	}},
}}

// AddressGroups is the table of address groups.
var AddressGroups = table[AddressGroupRow, *AddressGroupRow]{sdn.NounAddressGroup, "address group", []index[AddressGroupRow]{
	{"key", true, func(r *AddressGroupRow) []string { return ident(r.Meta) }},
	{"project", false, func(r *AddressGroupRow) []string { return some(sdn.ID(r.Project)) }},
}}

// QoSPolicies is the table of QoS policies.
var QoSPolicies = table[QoSPolicyRow, *QoSPolicyRow]{sdn.NounQoSPolicy, "QoS policy", []index[QoSPolicyRow]{
	{"key", true, func(r *QoSPolicyRow) []string { return ident(r.Meta) }},
	{"default", true, func(r *QoSPolicyRow) []string { // a key must not be empty
		if !r.Default {
			return nil
		}
		return []string{"x" + r.Project}
	}},
}}

// LoadBalancers is the table of load balancers.
var LoadBalancers = table[LoadBalancerRow, *LoadBalancerRow]{sdn.NounLoadBalancer, "load balancer", []index[LoadBalancerRow]{
	{"key", true, func(r *LoadBalancerRow) []string { return ident(r.Meta) }},
	{"project", false, func(r *LoadBalancerRow) []string { return some(sdn.ID(r.Project)) }},
	{"part", true, func(r *LoadBalancerRow) []string {
		ids := r.Parts()
		keys := make([]string, len(ids))
		for i, id := range ids {
			keys[i] = string(id)
		}
		return keys
	}},
	{"port", false, func(r *LoadBalancerRow) []string { return ofVIPs(r, func(v sdn.VIP) string { return string(v.Port) }) }},
	{"subnet", false, func(r *LoadBalancerRow) []string {
		return ofVIPs(r, func(v sdn.VIP) string { return string(v.Subnet) })
	}},
	{"address", false, func(r *LoadBalancerRow) []string { return ofVIPs(r, func(v sdn.VIP) string { return v.Addr.String() }) }},
}}

func ofVIPs(r *LoadBalancerRow, key func(sdn.VIP) string) []string {
	keys := make([]string, len(r.VIPs))
	for i, v := range r.VIPs {
		keys[i] = key(v)
	}
	return keys
}

// Tables that hold no rows. Below addressIndexes are the free addresses of each subnet, and below
// prefixIndexes the free prefixes of each subnet pool, see intervals.
const (
	MetaTable      = "meta" // facts about the whole store
	addressIndexes = "free-addresses"
	prefixIndexes  = "free-prefixes"
	quotaTable     = "quotas" // project → limits
	usageTable     = "usage"  // project, 0, noun → count
)

// Tables lists all tables but those below others.
func Tables() []string {
	names := []string{MetaTable, addressIndexes, prefixIndexes, quotaTable, usageTable}
	for _, t := range []interface{ tableNames() []string }{
		Networks, Subnets, subnetPools, Ports, Trunks, Routers, FloatingIPs, Forwards, SecurityGroups,
		AddressGroups, QoSPolicies, LoadBalancers, accesses, addressScopes,
	} {
		names = append(names, t.tableNames()...)
	}
	return names
}
