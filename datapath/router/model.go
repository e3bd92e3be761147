//go:build linux

package router

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"

	"github.com/kuryr/kuryr/datapath/lb"
	"github.com/kuryr/kuryr/datapath/securitygroup"
	"github.com/kuryr/kuryr/internal/netns"
)

// Options is what a Kernel needs to know of its surroundings.
type Options struct {
	Namespaces *netns.Store
	// Uplink4 and Uplink6 are the ranges that the routers' uplink addresses are taken from
	// (by the caller). The first address of each is the host's, on every uplink. Either may
	// be invalid: then routers have no uplink in that family.
	Uplink4, Uplink6 netip.Prefix
	HostNS           string       // path of the host's network namespace; "" is the one New is called in
	Logger           *slog.Logger // nil: slog.Default()
	// Balanced is told of each change of what the routers balance, as [lb.Config] says; nil:
	// nobody is.
	Balanced func(lb.Transaction)
}

// Shape is what shares one namespace, without its ports: a router with its networks, or one
// network without a router.
type Shape struct {
	ID      string // UUID of the router, or of the network
	Bridges []Bridge
	Uplink  *Uplink // nil: not connected to the host
	Routes  []Route
}

// Bridge is a network in a router.
type Bridge struct {
	Network string         // UUID
	Addrs   []netip.Prefix // gateway addresses with their subnets' lengths; none: a network without gateway
	MTU     int            // bytes; 0 is 1500
}

// Uplink connects a router to the host and so to the outside.
type Uplink struct {
	Addrs    []netip.Addr   // at most one of each family, from the uplink ranges
	SNAT     bool           // what leaves carries the uplink address
	MTU      int            // bytes; 0 is 1500
	Reach    []netip.Prefix // networks behind the router that the host itself may reach without translation
	Floating []Floating
}

// Floating is an address outside that belongs to this router. With Internal, it is
// translated one to one; without, it only carries Forwards.
type Floating struct{ External, Internal netip.Addr }

// Route is a static route of a router; the next hop is an address on one of its bridges.
type Route struct {
	Destination netip.Prefix
	NextHop     netip.Addr
}

// Port is what the data path knows of a port; its host end's name follows from its ID
// (see TapName). Package bind makes that, but for a subport.
type Port struct {
	ID, Network string // UUIDs
	MAC         net.HardwareAddr
	Addrs       []netip.Addr
	// OnLink are the IPv6 prefixes of the subnets on its link. A filtered port sends
	// neighbour discovery there, to where its allowed addresses are, to link-local
	// addresses and to groups.
	OnLink  []netip.Prefix
	Guard   bool // false: whatever the port sends passes
	Allowed []AllowedAddress
	// Groups are the UUIDs of its security groups, in order. A port that has none, or that
	// is not guarded, is not filtered.
	Groups []string
	Limits securitygroup.Limits
	// Trunk is what a subport is reached through; the zero Trunk is for all other ports.
	Trunk Trunk
	// Parent says that the port has a trunk: subports may be reached through it.
	Parent bool
	// Down says that the port passes nothing, in either direction. Its subports have a state
	// of their own.
	Down bool
}

// Trunk makes a port a subport: what its parent's interface sends and gets with a VLAN
// tag is the subport's.
type Trunk struct {
	Parent, Network string // UUIDs of the parent and of the parent's network
	VLAN            int    // 1 to 4094; no two subports of a parent have the same
}

// Filtered reports whether only what security groups allow passes.
func (p Port) Filtered() bool { return p.Guard && len(p.Groups) > 0 }

// AllowedAddress is a further source that a guarded port may use. A nil MAC is the port's own.
type AllowedAddress struct {
	Prefix netip.Prefix
	MAC    net.HardwareAddr
}

// Forward maps one port of an outside address to a port of a container.
type Forward struct {
	// a floating address of the router, or of the host; unspecified (0.0.0.0 or ::): every
	// address of the host in that family
	Address  netip.Addr
	Protocol uint8 // 6 TCP, 17 UDP, 132 SCTP
	Port     uint16
	To       netip.AddrPort
	// Via is the port of the router's uplink address that the host leads an address of its
	// own to; no two forwardings of a router have the same for a protocol and family. 0 says
	// that Address is a floating one, and for the unspecified address it is Port.
	Via uint16
}

// ofHost tells a forwarding of the host's own addresses.
func (w Forward) ofHost() bool { return w.Via != 0 || w.Address.IsUnspecified() }

func (w Forward) via() uint16 {
	if w.Via == 0 {
		return w.Port
	}
	return w.Via
}

// VIP is an address that a router balances connections to. What comes to it and is for no
// frontend the router refuses. Network is the one that it is of, whose ports find it on
// their link; "" is one from the outside.
type VIP struct {
	Addr    netip.Addr
	Network string // UUID
}

// State is everything that should exist.
type State struct {
	Shapes   []Shape
	Ports    map[string][]Port    // by router
	Forwards map[string][]Forward // by router
	VIPs     map[string][]VIP     // by router
	// Frontends are where clients connect, by router: of one router none has the key of another.
	Frontends map[string][]lb.Frontend
	Groups    []securitygroup.Group // those that ports of Ports have
	Sets      []securitygroup.Set   // those that rules of Groups name
}

// Result tells what of a router could not be had.
type Result struct{ Unreached []Unreached }

// Unreached is a range of Uplink.Reach that got no route in the host.
type Unreached struct {
	Prefix netip.Prefix
	Reason string
}

// Difference is one thing in the kernel that is not as wanted.
type Difference struct {
	Router string // "" is the host's namespace
	Object string // such as "bridge br-1f0e9a3c-77"
	Want   string // "" : it should not exist
	Have   string // "" : it does not exist
}

func (d Difference) String() string {
	return fmt.Sprintf("[%s] %s: want %q, have %q", d.Router, d.Object, d.Want, d.Have)
}

// Report tells what Reconcile changed, in order; nothing means that the kernel was as wanted.
type Report struct {
	Changed   []Difference
	Unreached map[string][]Unreached // by router
	Whole     map[string]bool        // with an error: the routers that are as wanted
}

func (d Shape) validate(c Options) error {
	if d.ID == "" {
		return errors.New("router: no id")
	}
	seen := map[string]bool{}
	for _, b := range d.Bridges {
		if len(b.Network) < shortID {
			return fmt.Errorf("router %s: network id %q is shorter than %d characters", d.ID, b.Network, shortID)
		}
		if seen[BridgeName(b.Network)] {
			return fmt.Errorf("router %s: two networks with bridge %s", d.ID, BridgeName(b.Network))
		}
		seen[BridgeName(b.Network)] = true
		for _, a := range b.Addrs {
			if !a.IsValid() {
				return fmt.Errorf("router %s: network %s: invalid gateway address", d.ID, b.Network)
			}
		}
	}
	for _, r := range d.Routes {
		if !r.Destination.IsValid() || !r.NextHop.IsValid() || r.Destination.Addr().Is4() != r.NextHop.Is4() {
			return fmt.Errorf(
				"router %s: route %s via %s: want a prefix and a next hop of one family", d.ID, r.Destination,
				r.NextHop,
			)
		}
	}
	if d.Uplink == nil {
		return nil
	}
	if len(d.ID) < shortID {
		return fmt.Errorf("router id %q is shorter than %d characters", d.ID, shortID)
	}
	var four, six int
	for _, a := range d.Uplink.Addrs {
		pool := c.Uplink6
		if a.Is4() {
			pool = c.Uplink4
			four++
		} else {
			six++
		}
		if !pool.IsValid() || !pool.Contains(a) || a == hostEnd(pool) {
			return fmt.Errorf("router %s: uplink address %s is not a router's address of range %s", d.ID, a, pool)
		}
	}
	if four > 1 || six > 1 || four+six == 0 {
		return fmt.Errorf(
			"router %s: uplink with %d IPv4 and %d IPv6 addresses, want one of a family or of each", d.ID,
			four, six,
		)
	}
	for _, f := range d.Uplink.Floating {
		if !f.External.IsValid() || f.Internal.IsValid() && f.Internal.Is4() != f.External.Is4() {
			return fmt.Errorf(
				"router %s: floating address %s to %s: want two addresses of one family", d.ID, f.External,
				f.Internal,
			)
		}
		if !d.Uplink.addr(f.External.Is4()).IsValid() {
			return fmt.Errorf("router %s: floating address %s: the uplink has no address of its family", d.ID, f.External)
		}
	}
	return nil
}

// addr is the uplink's address of a family; invalid if it has none.
func (u *Uplink) addr(four bool) netip.Addr {
	for _, a := range u.Addrs {
		if a.Is4() == four {
			return a
		}
	}
	return netip.Addr{}
}

// hostEnd is the host's address in an uplink range.
func hostEnd(pool netip.Prefix) netip.Addr { return pool.Masked().Addr().Next() }
