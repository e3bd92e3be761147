//go:build linux

package router

import (
	"net/netip"

	"github.com/kuryr/kuryr/datapath/lb"
	"github.com/kuryr/kuryr/datapath/securitygroup"
)

// Config is what a router should have, by part. Set changes the parts that are named: a
// named part whose value is nil is removed, and a part that is not named stays.
type Config struct {
	ID string // of the router
	// Shaped names the shape. If Shape is nil then, the router is removed with all parts.
	Shaped bool
	Shape  *Shape

	Ports    map[string]*Port // by ID
	Forwards map[ForwardKey]*Forward
	Balances map[netip.Addr]*Balance
	// Groups and Sets are definitions. A router must know a port's groups, and the sets that
	// their rules name, before or with the port. Definitions at a revision that it knows cost
	// nothing. The router forgets those that no port uses.
	Groups []securitygroup.Group
	Sets   []securitygroup.Set
}

// ForwardKey is the part of a Forward that no two forwards of a router have in common.
type ForwardKey struct {
	Address  netip.Addr
	Protocol uint8
	Port     uint16
}

// Key returns the key of a forward.
func (w Forward) Key() ForwardKey { return ForwardKey{w.Address, w.Protocol, w.Port} }

// Balance is an address that a router balances connections to, with its frontends.
type Balance struct {
	VIP       VIP
	Frontends []lb.Frontend
}
