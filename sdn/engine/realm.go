package engine

import (
	"context"
	"net/netip"
	"time"

	"github.com/kuryr/kuryr/sdn"
)

// Realm is what the rules ask of the place where the packets go. It follows the store: a transaction
// tells it which rows it changes, and a caller is answered when the realm has them.
type Realm interface {
	// Expect is called at the end of a transaction, before its commit. It returns what the caller of
	// the transaction waits for; nil for nothing.
	Expect(tx Tx, changes map[RowID]*RowChange) (Expectation, error)
	// HasPort reports whether the domain has what the store says of a plugged port.
	HasPort(domain, port sdn.ID) bool
	// HasBalancer reports whether the domain has what the store says of a load balancer at an address.
	HasBalancer(domain, balancer sdn.ID, at netip.Addr) bool
	// News returns a channel that is closed when HasPort may have changed.
	News() <-chan struct{}
	// Unreached returns the ranges behind a router that the host cannot reach.
	Unreached(router sdn.ID) []sdn.Unreached
	// Location returns where the bridge of a network is, or would be. It is a pure function.
	Location(domain, network sdn.ID) (nsPath, bridge string)
	// ExternalMTU returns the MTU of the built-in external network.
	ExternalMTU() int
	// UplinkMTU returns what the way out carries now. A network that does not say gets it.
	UplinkMTU(ctx context.Context) int
	// Supports returns what the realm can do. It is cheap.
	Supports() Support
}

// Expectation is what the caller of a transaction waits for. Either Join or Drop is called, once.
type Expectation interface {
	// Join says that the changes are in the store. The realm follows from then on.
	Join()
	// Drop says that the changes were not made.
	Drop()
	// Wait returns when the realm has the changes. It is called after Join. The realm follows also if ctx
	// ends first; the error is then one that IsUnavailable.
	Wait(ctx context.Context) error
}

// Support is what a realm can do.
type Support struct {
	Groups bool // filter ports by security groups
	Limits bool // limit what ports send
	VLANs  bool // make the links of subports
	SCTP   bool // balance it
	Routes bool // the host has routes to what is behind routers
	// Members is how many members a pool can have, and Affinity how long a client can keep its member.
	Members  int
	Affinity time.Duration
}
