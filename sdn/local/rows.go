package local

import (
	"net/netip"
	"strconv"

	"github.com/kuryr/kuryr/sdn"
	"go.etcd.io/bbolt"
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
	Own bool // the SDN's own: a router's leg or gateway, a floating IP's address
}

// routerRow leaves Unreached empty: it is the data path's answer.
type routerRow struct {
	sdn.Router
	Networks []sdn.ID // of the interfaces, by position
	Uplink   sdn.ID   // the port that holds the gateway's addresses; "" without a gateway
}

type floatingIPRow struct {
	sdn.FloatingIP
	Holder   sdn.ID // the port that holds the address; "" where it is the unspecified one
	Subnet   sdn.ID // of the target
	Forwards int
}

type forwardRow struct {
	sdn.Forward
	Meta       sdn.Meta
	FloatingIP sdn.ID
	Address    netip.Addr // of the floating IP
	Subnet     sdn.ID     // of the target
	Router     sdn.ID
}

func (r *networkRow) meta() *sdn.Meta    { return &r.Meta }
func (r *subnetRow) meta() *sdn.Meta     { return &r.Meta }
func (r *subnetPoolRow) meta() *sdn.Meta { return &r.Meta }
func (r *portRow) meta() *sdn.Meta       { return &r.Meta }
func (r *routerRow) meta() *sdn.Meta     { return &r.Meta }
func (r *floatingIPRow) meta() *sdn.Meta { return &r.Meta }
func (r *forwardRow) meta() *sdn.Meta    { return &r.Meta }

func (r *networkRow) counted() bool    { return true }
func (r *subnetRow) counted() bool     { return true }
func (r *subnetPoolRow) counted() bool { return true }
func (r *portRow) counted() bool       { return !r.Own }
func (r *routerRow) counted() bool     { return true }
func (r *floatingIPRow) counted() bool { return true }
func (r *forwardRow) counted() bool    { return false }

// ident is the index key of a Key.
func ident(m sdn.Meta) []string {
	if m.Key.IsZero() {
		return nil
	}
	return []string{m.Key.String()}
}

// some is the index key of an id that may be "".
func some(id sdn.ID) []string {
	if id == "" {
		return nil
	}
	return []string{string(id)}
}

func addrKey(scope sdn.ID, a netip.Addr) string { return key(string(scope), string(a.AsSlice())) }

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

var networks = table[networkRow, *networkRow]{sdn.NounNetwork, "network", []index[networkRow]{
	{"key", true, func(r *networkRow) []string { return ident(r.Meta) }},
	{"external", false, func(r *networkRow) []string {
		if r.External {
			return []string{"x"}
		}
		return nil
	}},
}}

var subnets = table[subnetRow, *subnetRow]{sdn.NounSubnet, "subnet", []index[subnetRow]{
	{"key", true, func(r *subnetRow) []string { return ident(r.Meta) }},
	{"network", false, func(r *subnetRow) []string { return some(r.Network) }},
	{"pool", false, func(r *subnetRow) []string { return some(r.Pool) }},
}}

var subnetPools = table[subnetPoolRow, *subnetPoolRow]{sdn.NounSubnetPool, "subnet pool", []index[subnetPoolRow]{
	{"key", true, func(r *subnetPoolRow) []string { return ident(r.Meta) }},
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
	{"mac", true, func(r *portRow) []string { return []string{macKey(r.Network, r.MAC)} }},
	{"address", true, func(r *portRow) []string {
		keys := make([]string, len(r.Addresses))
		for i, a := range r.Addresses {
			keys[i] = addrKey(a.Subnet, a.Addr)
		}
		return keys
	}},
}}

var routers = table[routerRow, *routerRow]{sdn.NounRouter, "router", []index[routerRow]{
	{"key", true, func(r *routerRow) []string { return ident(r.Meta) }},
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
}}

var floatingIPs = table[floatingIPRow, *floatingIPRow]{sdn.NounFloatingIP, "floating IP", []index[floatingIPRow]{
	{"key", true, func(r *floatingIPRow) []string { return ident(r.Meta) }},
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
		if r.Address.IsUnspecified() {
			return nil
		}
		return []string{addrKey(r.Network, r.Address)}
	}},
}}

var forwards = table[forwardRow, *forwardRow]{"forward", "port forwarding", []index[forwardRow]{
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
}}

// addressIndexes is where the free addresses of subnets are, and prefixIndexes where the free prefixes of subnet pools are, each in a
// bucket named by id.
var (
	addressIndexes = []byte("free-addresses")
	prefixIndexes  = []byte("free-prefixes")
)

// createTables makes every bucket that is missing.
func createTables(b *bbolt.Tx) error {
	for _, t := range []interface{ create(*bbolt.Tx) error }{networks, subnets, subnetPools, ports, routers, floatingIPs, forwards} {
		if err := t.create(b); err != nil {
			return err
		}
	}
	for _, name := range [][]byte{addressIndexes, prefixIndexes, quotaBucket, usageBucket} {
		if _, err := b.CreateBucketIfNotExists(name); err != nil {
			return err
		}
	}
	return nil
}
