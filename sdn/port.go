package sdn

import (
	"context"
	"encoding/json"
	"iter"
	"net"
	"net/netip"
)

// Address is one address of a port.
type Address struct {
	Subnet ID         `json:",omitzero"`
	Addr   netip.Addr `json:",omitzero"`
}

// AllowedPair is a further source that a port may send as: a prefix, and a MAC, which if nil is the port's own.
// Bits beyond the prefix's length are kept, and mean nothing.
type AllowedPair struct {
	Prefix netip.Prefix
	MAC    net.HardwareAddr

	// Length has a single address written with its length, which says that no other port gives way to it: of an address without one Neutron's OVN
	// driver takes the unbound port that has it for a virtual one.
	Length bool `json:",omitempty"`
}

// VNICType is what sort of interface a port is to be plugged as (Neutron: binding:vnic_type).
type VNICType string

// The VNIC types in use.
const (
	VNICNormal         VNICType = ""                // a virtual interface
	VNICDirect         VNICType = "direct"          // a virtual function of a network card (SR-IOV)
	VNICMacvtap        VNICType = "macvtap"         // the same, which virtual machines take by way of a macvtap
	VNICDirectPhysical VNICType = "direct-physical" // a whole network card
	VNICBaremetal      VNICType = "baremetal"       // by none of the SDN's agents
)

// PortSpec asks for a port: one interface's place on a network.
type PortSpec struct {
	Base
	Network ID
	MAC     net.HardwareAddr // nil: the SDN chooses. Unicast, 6 bytes
	// Addresses the port is to have. An element without Addr takes any free one of its Subnet; one without Subnet takes the
	// subnet of the network that holds Addr. That of a subnet's gateway is nobody's until it is named, by a port or with a router's leg; whoever is second
	// IsConflict, AddressInUse. nil is one address of each family the network has.
	// Subnets whose ServiceTypes lack the port's DeviceOwner give it none (IsInvalid, "addresses"; of
	// a network without others IsExhausted, NoAddresses). Those that have it give it theirs first.
	Addresses []Address
	// WithoutAddresses makes a port with none; Addresses must be nil.
	WithoutAddresses bool
	DeviceID         string // what the port is plugged into, in its owner's words: a Docker endpoint's id, a pod's UID; ≤255 bytes
	DeviceOwner      string // whose DeviceID that is: DeviceOwner constants or others; ≤255 bytes
	Host             string // the host it is to be plugged on; "" leaves it unbound. One that the SDN cannot bind to is an error naming "host"
	VNICType         VNICType
	// Profile tells the SDN what it must know of the interface to bind the port (Neutron: binding:profile), such as the PCI
	// slot of a virtual function. The values are JSON in its shortest form.
	Profile map[string]json.RawMessage
	// Groups are its security groups: nil is the project's default group where the SDN has one.
	Groups []ID
	// WithoutGroups makes a port with none; Groups must be nil.
	WithoutGroups bool
	// NoPortSecurity switches anti-spoofing off; nil is as the network says.
	NoPortSecurity *bool
	AllowedPairs   []AllowedPair
	QoSPolicy      ID // limits what it sends and receives; "" is as the network says
	// Disabled stops all traffic of the port (Neutron: admin_state_up false).
	Disabled bool
}

// The device owners that Kuryr and its SDNs write.
const (
	OwnerContainer       = "compute:kuryr"            // a container's port, as kuryr-libnetwork marks it
	OwnerRouterInterface = "network:router_interface" // a router's leg on a subnet; the SDN's own
	OwnerRouterGateway   = "network:router_gateway"   // a router's leg on an external network; the SDN's own
	OwnerFloatingIP      = "network:floatingip"       // holds a floating IP's address; the SDN's own
	OwnerLoadBalancer    = "Octavia"                  // holds a load balancer's VIP, with the device id "lb-<id>"; the SDN's own, to which floating IPs lead
	OwnerSubport         = "trunk:subport"            // a port that is reached through a trunk; blanked when it leaves
)

// PortStatus is what the SDN knows of a port's data path.
type PortStatus string

// The states of a port.
const (
	PortDown   PortStatus = "DOWN"   // not plugged, not yet seen, or switched off: it, its network or its router
	PortBuild  PortStatus = "BUILD"  // the SDN is at work on it
	PortActive PortStatus = "ACTIVE" // traffic flows
	PortError  PortStatus = "ERROR"
)

// VIF tells a binding how to plug a port (Neutron: binding:vif_type and binding:vif_details).
type VIF struct {
	Type    string            `json:",omitzero"` // VIFBridge, VIFOVS, …; VIFUnbound while the port has no host
	Details map[string]string `json:",omitzero"` // by the Detail constants and whatever else the SDN says
	// Hidden is what the SDN keeps from these credentials of how the port is bound, by the SDN's own names. Where there is any, the port is
	// not to be plugged. The embedded SDN hides nothing, and does not store it.
	Hidden []string `json:",omitempty"`
}

// VIF types that Kuryr's binding drivers or the contract know by name.
const (
	VIFUnbound       = "unbound"        // no host yet: not to be plugged
	VIFBindingFailed = "binding_failed" // nothing of the SDN serves the host: not to be plugged
	VIFBridge        = "bridge"         // a Linux bridge: DetailBridge, DetailNamespace; without either, that of Neutron's Linux bridge agent
	VIFOVS           = "ovs"            // Open vSwitch: DetailBridge, DetailHybrid
	VIFTap           = "tap"            // an agent finds the host end by its name
	VIFNoop          = "noop"           // the interface is not Kuryr's to make
	VIFMacvlan       = "macvlan"        // nested in a virtual machine, on the link of its own port: DetailParentMAC
	VIFVLAN          = "vlan"           // nested in a virtual machine whose port has a trunk: DetailParentMAC, DetailVLAN
)

// Keys of VIF.Details.
const (
	DetailBridge    = "bridge_name"     // the bridge's interface name
	DetailNamespace = "netns"           // path of the network namespace the bridge is in; absent: the host's
	DetailHybrid    = "ovs_hybrid_plug" // "true": with a Linux bridge of the port's own, for an agent's iptables
	DetailVLAN      = "vlan"            // 1 to 4094: of a nested port in its trunk; of a virtual function on the wire
	DetailParentMAC = "parent_mac"      // of a nested port: the MAC of the virtual machine's own port
)

// Port is one interface's place on a network. Network is fixed at creation, MAC wherever Capabilities do not allow its choice.
type Port struct {
	Meta
	Network        ID                         `json:",omitzero"`
	MAC            net.HardwareAddr           `json:",omitzero"`
	Addresses      []Address                  `json:",omitzero"` // at least those asked for; SLAAC subnets add theirs
	DeviceID       string                     `json:",omitzero"`
	DeviceOwner    string                     `json:",omitzero"`
	Host           string                     `json:",omitzero"`
	VNICType       VNICType                   `json:",omitzero"`
	Profile        map[string]json.RawMessage `json:",omitzero"`
	Groups         []ID                       `json:",omitzero"`
	NoPortSecurity bool                       `json:",omitzero"`
	AllowedPairs   []AllowedPair              `json:",omitzero"`
	QoSPolicy      ID                         `json:",omitzero"`
	Disabled       bool                       `json:",omitzero"`
	Status         PortStatus                 `json:",omitzero"`
	VIF            VIF                        `json:",omitzero"`
}

// PortPatch changes a port.
type PortPatch struct {
	Patch
	MAC net.HardwareAddr // nil: stays
	// Addresses is the whole new list, as in PortSpec; addresses the port keeps are named in it.
	Addresses   *[]Address
	DeviceID    *string
	DeviceOwner *string
	Host        *string
	Profile     *map[string]json.RawMessage
	// Groups is the whole new set; AddGroups and RemoveGroups are for who knows only of some.
	Groups *[]ID
	// NoPortSecurity, switched on, takes the groups away where Groups says nothing of them.
	NoPortSecurity *bool
	AllowedPairs   *[]AllowedPair
	QoSPolicy      *ID // "" takes it away
	Disabled       *bool
}

// PortQuery selects ports. Subnets and Addresses must be met by one and the same address.
type PortQuery struct {
	Match
	Networks     []ID
	Subnets      []ID
	Addresses    []netip.Addr
	MACs         []net.HardwareAddr
	Devices      []string
	DeviceOwners []string
	Hosts        []string
	Groups       []ID // ports that have one of these security groups
}

// Ports are interfaces' places on networks (Neutron: port; OVN: Logical_Switch_Port). They come and go in bulk.
type Ports interface {
	// EnsurePorts makes, finishes or adopts a port for each spec; the answer has a port for each, by position. Each port is
	// whole or absent, but the call is not all or nothing: where some fail the error is a *BulkError, and the ports of those
	// that succeeded are returned, those that failed zero; any other error tells nothing of any of them. A repeat finishes.
	// Addresses and MACs of others: IsConflict, AddressInUse and MACInUse; a full subnet: IsExhausted, NoAddresses.
	EnsurePorts(ctx context.Context, specs []PortSpec) ([]Port, error)
	Port(ctx context.Context, id ID) (Port, error)
	// FindPorts streams the ports that match. A query by IDs, Keys, Devices, MACs with Networks, or Addresses with Subnets
	// costs by what it finds, not by what there is.
	FindPorts(ctx context.Context, q PortQuery) iter.Seq2[Port, error]
	// UpdatePort changes a port. Taking an address away that a floating IP or a port forwarding leads to IsConflict, InUse.
	UpdatePort(ctx context.Context, id ID, p PortPatch) (Port, error)
	// AddGroups and RemoveGroups change a port's security groups without losing what another does at the same time.
	AddGroups(ctx context.Context, id ID, groups []ID) error
	RemoveGroups(ctx context.Context, id ID, groups []ID) error
	// DeletePorts deletes the ports; absent ones count as deleted. It takes along what forwards to them and the association
	// of their floating IPs. A port of the SDN's own (a router's leg) or in a trunk IsConflict, InUse: it stays, the others go,
	// and the error is a *BulkError.
	DeletePorts(ctx context.Context, ids []ID) error
	// DeletePort deletes one port if it is still at ifRevision, which is as in Patch; all else is as in DeletePorts.
	DeletePort(ctx context.Context, id ID, ifRevision int64) error
	// WaitPorts returns when every port has the status, or with the context's error; IsNotFound when one is gone,
	// IsUnavailable when one is in PortError and that is not what is waited for.
	WaitPorts(ctx context.Context, ids []ID, status PortStatus) error
}
