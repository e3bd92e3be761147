// Package node has the reconcilers of nodes: the pool of each node's own port, the router's
// routes to nodes that balance ClusterIPs, and the security group that keeps pods from the
// nodes' network.
//
// It owns the network of the nodes' own ports, its security groups, and the routes whose next
// hops are nodes' ports. It must not change other routes of the router, nor make ports: the
// pools do.
package node

import (
	"context"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/kuryr/kuryr/kube/raven/core"
)

// Config is what the reconcilers of nodes need besides the core.
type Config struct {
	Infrastructure *core.Infrastructure

	Project      string
	Ranges       []netip.Prefix // of the nodes' own ports
	Networks     []netip.Prefix // that nodes are on
	PortsNetwork string         // the name of the network of their own ports
	Balanced     bool           // nodes balance ClusterIPs
	Isolated     bool           // pods are kept from the nodes' network
	Audit        time.Duration

	// ServicePrefixes returns the ranges by which nodes reach ClusterIPs in the SDN.
	ServicePrefixes func() []netip.Prefix
	// ServiceRanges returns the ranges of ClusterIPs that nodes balance, as the cluster
	// has them now.
	ServiceRanges func(context.Context) ([]netip.Prefix, error)
	// Isolating is called before pods are kept from other networks or API servers than
	// before.
	Isolating func(ctx context.Context, underlay []netip.Prefix, servers []netip.AddrPort) error
}

// Node has the reconcilers of nodes, and what Prepare and pools need to know of nodes.
type Node struct {
	*core.Core
	cfg Config

	routes    nodeWays
	unrouted  atomic.Bool // the router is known to have no routes to nodes
	fewRoutes atomic.Bool // the SDN has refused routes to all nodes
}

// New returns the reconcilers of nodes.
func New(c *core.Core, cfg Config) *Node { return &Node{Core: c, cfg: cfg} }
