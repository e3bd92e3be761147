package sdn

import (
	"context"
	"iter"
	"net/netip"
)

// Target is what a floating IP leads to: an address of a port. The zero Target is nothing.
type Target struct {
	Port ID
	Addr netip.Addr // which of the port's addresses; invalid: its first one of the family
}

// FloatingIPSpec asks for a floating IP: an address of an external network that leads to a port.
type FloatingIPSpec struct {
	Base
	Network ID // external
	// Address asks for this one; invalid lets the SDN choose.
	Address netip.Addr
	// Subnet is the one of the Network that the address is to be of; "" is any. One of another network IsInvalid, and so is an Address that is not of it; one without a
	// free address IsExhausted. A floating IP that is there with an address of another IsConflict, Immutable, but where the SDN does not show the subnet to who asks.
	// OfHost has none.
	Subnet ID
	// OfHost says that Address is the host's own, be it a loopback address, and no other is to be found for it; the unspecified address (0.0.0.0 or
	// ::) stands for every address the host has or will have, and implies it. Such a floating IP carries port forwardings only, needs no free
	// address, and there may be many of one address, told apart by their Key. It leads somewhere while the host has the address, which
	// the SDN does not ask. Unsupported where Capabilities.HostAddresses is false.
	OfHost bool
	Target Target
}

// FloatingIP is an external address. Network and Address are fixed at creation.
type FloatingIP struct {
	Meta
	Network ID
	Address netip.Addr
	Target  Target
	Router  ID // through which; "" while it leads nowhere
}

// FloatingIPPatch changes a floating IP.
type FloatingIPPatch struct {
	Patch
	// Target is where it is to lead; the zero Target is nowhere. One that has forwardings IsConflict, InUse, but for the zero
	// Target, as it leads nowhere already; a target address that has another floating IP IsConflict, Exists.
	Target *Target
}

// FloatingIPQuery selects floating IPs.
type FloatingIPQuery struct {
	Match
	Networks  []ID
	Addresses []netip.Addr
	Ports     []ID
	Routers   []ID
}

// Protocol is an IP protocol number.
type Protocol uint8

// The protocols with ports.
const (
	TCP  Protocol = 6
	UDP  Protocol = 17
	SCTP Protocol = 132
)

// PortRange is one transport port, or several with both ends in it. A Last of 0 is First.
type PortRange struct{ First, Last uint16 }

// Forward leads transport ports of a floating IP to those of a port (Neutron: port forwarding). External and Internal are of
// equal length, or Internal is one port.
type Forward struct {
	ID       ID // given by the SDN
	Protocol Protocol
	External PortRange
	Target   Target
	Internal PortRange
	// Description is its words; of one that is there already it stays. Forwardings that differ in it alone are alike.
	Description string `json:",omitempty"`
}

// ForwardQuery selects port forwardings. Ports are those led to.
type ForwardQuery struct {
	FloatingIPs []ID
	Ports       []ID
}

// FloatingIPs lead from the outside to ports (Neutron: floatingip, port_forwarding; OVN: NAT, Load_Balancer).
type FloatingIPs interface {
	// EnsureFloatingIP makes, finishes or adopts the floating IP with the spec's Key. An address taken by a port or another
	// floating IP IsConflict, AddressInUse; a target that no router connects with the external network IsNotFound.
	EnsureFloatingIP(ctx context.Context, spec FloatingIPSpec) (FloatingIP, error)
	FloatingIP(ctx context.Context, id ID) (FloatingIP, error)
	FindFloatingIPs(ctx context.Context, q FloatingIPQuery) iter.Seq2[FloatingIP, error]
	UpdateFloatingIP(ctx context.Context, id ID, p FloatingIPPatch) (FloatingIP, error)
	// DeleteFloatingIP deletes it with its forwardings.
	DeleteFloatingIP(ctx context.Context, id ID) error
	// EnsureForwards adds forwardings and answers with their ids, by position. One that is there alike keeps its id. Where one
	// is refused those that this call made are taken back; who is killed in between repeats the call. Transport ports that another forwarding of the same address has IsConflict,
	// Exists; the unspecified address counts as every one, as it does to bind(2). A floating IP that is associated IsConflict, InUse.
	EnsureForwards(ctx context.Context, floatingIP ID, forwards []Forward) ([]Forward, error)
	FindForwards(ctx context.Context, q ForwardQuery) iter.Seq2[Forward, error]
	// DeleteForwards deletes forwardings of a floating IP; absent ones count as deleted.
	DeleteForwards(ctx context.Context, floatingIP ID, ids []ID) error
}
