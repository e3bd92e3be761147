package sdn

import (
	"context"
	"iter"
	"net/netip"
	"time"
)

// LoadBalancerSpec is what a load balancer is to be (addresses, listeners, members), applied as one whole value.
type LoadBalancerSpec struct {
	Base
	ID         ID // of the load balancer that is to be this; "" is the one with the Key
	IfRevision int64
	VIPs       []VIP // one, or one of each family; fixed at creation
	Listeners  []Listener
	Groups     []ID   // security groups of the VIP, where the SDN has them
	Backend    string // which of the SDN's load-balancer providers; "" its default; fixed at creation
	Flavor     string // of that provider; fixed at creation
}

// LoadBalancer is a load balancer as the SDN has it.
type LoadBalancer struct {
	Meta
	VIPs      []VIP
	Listeners []Listener
	Groups    []ID
	Backend   string
	Flavor    string
	Status    LoadBalancerStatus
}

// VIP is an address that a load balancer answers at. An invalid Addr lets the SDN choose.
type VIP struct {
	Subnet ID
	Addr   netip.Addr
	Port   ID // given by the SDN: what a floating IP leads to; "" where it has no such object
}

// Listener is a transport port of the load balancer. Protocol and Port are unique in it.
type Listener struct {
	Name            string
	Protocol        Protocol
	Port            uint16
	Sources         []netip.Prefix // who may connect; none: everyone
	ConnectionLimit int            // 0: no limit
	ClientTimeout   time.Duration  // idle; 0: the SDN's
	MemberTimeout   time.Duration  // idle; 0: the SDN's
	ProxyProtocol   bool           // tell members the client's address by the PROXY protocol
	Pool            Pool
}

// Pool is where a listener sends connections.
type Pool struct {
	Algorithm Algorithm
	Affinity  Affinity
	Members   []Member // known by address and port
	Health    *HealthMonitor
}

// Algorithm is how a member is chosen.
type Algorithm string

// The algorithms (Octavia's names).
const (
	AnyAlgorithm Algorithm = "" // the SDN's default
	RoundRobin   Algorithm = "ROUND_ROBIN"
	LeastConns   Algorithm = "LEAST_CONNECTIONS"
	SourceIP     Algorithm = "SOURCE_IP"
	SourceIPPort Algorithm = "SOURCE_IP_PORT"
)

// Affinity keeps a client with its member. The zero Affinity does not.
type Affinity struct {
	ClientIP bool
	Timeout  time.Duration // since the last connection; 0: the SDN's
}

// Member is one that answers.
type Member struct {
	Name   string
	Addr   netip.AddrPort
	Subnet ID   // the member is on; "" is the VIP's
	Weight int  // relative to others; 0 is 1
	Drain  bool // no new connections
}

// HealthMonitor checks members.
type HealthMonitor struct {
	Type       string // Octavia's names: TCP, UDP-CONNECT, HTTP, …
	Path       string // with HTTP and HTTPS
	Interval   time.Duration
	Timeout    time.Duration
	Rise, Fall int
}

// LoadBalancerStatus is how far a load balancer is.
type LoadBalancerStatus struct {
	Ready      bool          // it is as applied last, and answers
	RetryAfter time.Duration // until the next step may be tried, while it is not Ready
	Message    string        // what it waits for, or why it was made anew
}

// LoadBalancerQuery selects load balancers.
type LoadBalancerQuery struct {
	Match
}

// LoadBalancers spread connections over members (Octavia: loadbalancer and what is below it; OVN: Load_Balancer).
type LoadBalancers interface {
	// ApplyLoadBalancer makes the load balancer be this value. It is a step, not a wait: it does what can be done now and tells
	// in the Status whether that was all; apply again after RetryAfter until Ready. That the SDN is at work on it is no error
	// here. A VIP taken by another IsConflict, AddressInUse; what cannot be changed and differs IsConflict, Immutable. One the
	// SDN holds in error is made anew, with another ID.
	ApplyLoadBalancer(ctx context.Context, spec LoadBalancerSpec) (LoadBalancer, error)
	LoadBalancer(ctx context.Context, id ID) (LoadBalancer, error)
	FindLoadBalancers(ctx context.Context, q LoadBalancerQuery) iter.Seq2[LoadBalancer, error]
	// DeleteLoadBalancer deletes the whole tree; while the SDN is at work on it IsPending: ask again after RetryAfterOf.
	DeleteLoadBalancer(ctx context.Context, id ID) error
}
