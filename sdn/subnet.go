package sdn

import (
	"context"
	"iter"
	"net/netip"
)

// AddressMode is how hosts on an IPv6 subnet get their addresses.
type AddressMode string

// The address modes (Neutron: ipv6_address_mode). Containers whose address the engine must know are on static subnets.
const (
	Static    AddressMode = ""                 // the SDN allocates, the binding configures
	Stateful  AddressMode = "dhcpv6-stateful"  // the SDN allocates, DHCPv6 tells
	Stateless AddressMode = "dhcpv6-stateless" // made of the MAC, /64 only; every port of the network gets one
	SLAAC     AddressMode = "slaac"            // the same, without DHCPv6
)

// Gateway says what a subnet's gateway address is. The zero Gateway is the first address of the subnet.
type Gateway struct {
	None bool       // no gateway
	Addr netip.Addr // this address; inside the subnet
}

// AddressRange is a range of addresses with both its ends in it.
type AddressRange struct{ First, Last netip.Addr }

// HostRoute is a route that every port on a subnet is to have. An unspecified NextHop (0.0.0.0, ::) says that the destination is
// on the link itself, as DHCP's option 121 has it (RFC 3442) and Neutron with it; such a route is a connected one. Routers have
// none of these.
type HostRoute struct {
	Destination netip.Prefix
	NextHop     netip.Addr
}

// Connected tells whether the destination is on the link, so that there is no next hop to send to.
func (r HostRoute) Connected() bool { return r.NextHop.IsUnspecified() }

// SubnetSpec asks for a subnet of a network.
type SubnetSpec struct {
	Base
	Network ID
	// CIDR is the subnet; bits beyond its length IsInvalid. With a zero CIDR the SDN cuts one of PrefixLen from Pool.
	CIDR netip.Prefix
	// Pool is the subnet pool that CIDR is taken from, or that is to give one; "" is none.
	Pool ID
	// PrefixLen is the length of the subnet to cut from Pool, 0 the pool's default.
	PrefixLen int
	Gateway   Gateway
	// Ranges are what automatic allocation chooses from (Neutron: allocation_pools); none is the whole subnet. The gateway
	// and Reserved are always left out. A request for one address outside of them is served.
	Ranges []AddressRange
	// WithoutRanges is a subnet without automatic allocation; Ranges must be empty.
	WithoutRanges bool
	// Reserved are single addresses that are not given to anybody automatically (Docker's auxiliary addresses). Where
	// Capabilities.KeepReserved is true they are refused on request too (IsConflict, AddressInUse) and shown; elsewhere the SDN
	// leaves them out of Ranges and forgets why. They may lie outside the CIDR, where they mean nothing.
	Reserved []netip.Addr
	Mode     AddressMode // other than Static only where Capabilities.AddressModes is true
	// NoDHCP switches the SDN's DHCP off where it has one.
	NoDHCP      bool
	Nameservers []netip.Addr
	HostRoutes  []HostRoute
	// ServiceTypes are the device owners of the ports that the subnet is for; none is all. Only
	// where Capabilities.ServiceTypes is true.
	ServiceTypes []string
}

// Subnet is a range of addresses on a network. Network, CIDR, Pool and Mode are fixed at creation.
type Subnet struct {
	Meta
	Network     ID             `json:",omitzero"`
	CIDR        netip.Prefix   `json:",omitzero"`
	Pool        ID             `json:",omitzero"`
	Gateway     netip.Addr     `json:",omitzero"` // invalid: none
	Ranges      []AddressRange `json:",omitzero"`
	Reserved    []netip.Addr   `json:",omitzero"`
	Mode        AddressMode    `json:",omitzero"`
	NoDHCP      bool           `json:",omitzero"`
	Nameservers []netip.Addr   `json:",omitzero"`
	HostRoutes  []HostRoute    `json:",omitzero"`

	WithoutRanges bool     `json:",omitempty"`
	ServiceTypes  []string `json:",omitempty"`
}

// SubnetPatch changes a subnet.
type SubnetPatch struct {
	Patch
	// Gateway moves or takes away the gateway; while a router holds the old address that IsConflict, InUse.
	Gateway     *Gateway
	Ranges      *[]AddressRange // no range is the whole subnet
	Reserved    *[]netip.Addr
	Nameservers *[]netip.Addr
	HostRoutes  *[]HostRoute
	NoDHCP      *bool
	// ServiceTypes is the whole new list. Ports keep the addresses that they have.
	ServiceTypes *[]string
	// WithoutRanges ends automatic allocation; Ranges must be nil. Ranges begin it again.
	WithoutRanges bool
}

// SubnetQuery selects subnets.
type SubnetQuery struct {
	Match
	Networks []ID
	Pools    []ID
	CIDRs    []netip.Prefix
}

// Subnets are address ranges (Neutron: subnet; OVN: none of its own).
type Subnets interface {
	// EnsureSubnet makes, finishes or adopts the subnet with the spec's Key. A subnet of the network that overlaps and has
	// another Key IsConflict, Exists, also when many ask at once; the same range on another network is free.
	EnsureSubnet(ctx context.Context, spec SubnetSpec) (Subnet, error)
	Subnet(ctx context.Context, id ID) (Subnet, error)
	FindSubnets(ctx context.Context, q SubnetQuery) iter.Seq2[Subnet, error]
	UpdateSubnet(ctx context.Context, id ID, p SubnetPatch) (Subnet, error)
	// DeleteSubnet deletes the subnet; one that ports have addresses of IsConflict, InUse.
	DeleteSubnet(ctx context.Context, id ID) error
	// SubnetUsage tells how full the subnet is; IsDenied where the SDN tells its administrators only.
	SubnetUsage(ctx context.Context, id ID) (SubnetUsage, error)
}

// SubnetUsage counts addresses. Numbers beyond 2^63-1 are shown as that.
type SubnetUsage struct {
	Total int64 // that automatic allocation chooses from
	Used  int64 // of these
	Free  int64 // of these
}
