package sdn

import (
	"context"
	"iter"
	"net/netip"
	"time"
)

// LoadBalancer is a whole load balancer: addresses, listeners, members. It is known by its Key and applied as one value.
type LoadBalancer struct {
	Base
	VIPs      []VIP // one, or one of each family; fixed at creation
	Listeners []Listener
	Groups    []ID   // security groups of the VIP, where the SDN has them
	Backend   string // which of the SDN's load-balancer providers; "" its default; fixed at creation
	Flavor    string // of that provider; fixed at creation
}

// VIP is an address that a load balancer answers at. An invalid Addr lets the SDN choose.
type VIP struct {
	Subnet ID
	Addr   netip.Addr
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
	ID         ID
	Ready      bool // it is as applied, and answers
	RetryAfter time.Duration
	VIPs       []VIP
	VIPPorts   []ID   // by position of VIPs; what a floating IP leads to; "" where the SDN has no such object
	Message    string // what it waits for, or why it was made anew
}

// LoadBalancerQuery selects load balancers.
type LoadBalancerQuery struct {
	Match
}

// LoadBalancerInfo is a load balancer as the SDN has it.
type LoadBalancerInfo struct {
	Meta
	LoadBalancer LoadBalancer
	Status       LoadBalancerStatus
}

// LoadBalancers spread connections over members (Octavia: loadbalancer and what is below it; OVN: Load_Balancer).
type LoadBalancers interface {
	// ApplyLoadBalancer makes the load balancer with the value's Key be this value. It is a step, not a wait: it does what can
	// be done now and tells whether that was all; apply again after RetryAfter until Ready. A VIP taken by another IsConflict,
	// AddressInUse; what cannot be changed and differs IsConflict, Immutable. One the SDN holds in error is made anew.
	ApplyLoadBalancer(ctx context.Context, lb LoadBalancer) (LoadBalancerStatus, error)
	LoadBalancer(ctx context.Context, key Key) (LoadBalancerInfo, error)
	FindLoadBalancers(ctx context.Context, q LoadBalancerQuery) iter.Seq2[LoadBalancerInfo, error]
	// DeleteLoadBalancer deletes the whole tree; while the SDN is at work on it IsPending.
	DeleteLoadBalancer(ctx context.Context, key Key) error
}
