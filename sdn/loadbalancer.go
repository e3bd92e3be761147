package sdn

import (
	"context"
	"iter"
	"net/netip"
	"time"
)

// LoadBalancerSpec is what a load balancer is to be (addresses, listeners, members), applied as one whole value. What
// makes no sense IsInvalid and what the SDN cannot do IsUnsupported; both name the field, such as "listeners[0].pool.members[2].addr".
type LoadBalancerSpec struct {
	Base
	ID         ID // of the load balancer that is to be this; "" is the one with the Key
	IfRevision int64
	// VIPs are one, or one of each family. nil are those that it has. A family that is added or left out later IsConflict,
	// Immutable, unless the Capabilities' ChangeFamilies says that it can be.
	VIPs      []VIP
	Listeners []Listener
	Pools     []Pool // that no listener sends to (yet); only where the Capabilities' FreePools says so
	Groups    []ID   // security groups of the VIP, where the SDN has them; nil are those that it has
	Backend   string // which of the SDN's load-balancer providers; "" its default; fixed at creation
	Flavor    string // of that provider; fixed at creation
	Zone      string `json:",omitempty"` // the SDN's availability zone; "" its default; fixed at creation
	// Shared says that others have listeners here as well: of the load balancer with the ID, which is needed, only the listeners that carry the Key are
	// meant. All else, and the load balancer itself, stays as it is; so do the listeners of those who share it where its own value is applied by its Key. A port that another's
	// listener has IsConflict, Exists. To leave it is to apply no listeners. Only where the Capabilities' Share says so.
	Shared bool `json:",omitempty"`
}

// LoadBalancer is a load balancer as the SDN has it. Listeners are in the order of port and protocol, members in that of address and port.
type LoadBalancer struct {
	Meta
	VIPs      []VIP // IPv4 first
	Listeners []Listener
	Pools     []Pool
	Groups    []ID
	Backend   string
	Flavor    string
	Zone      string `json:",omitempty"`
	Status    LoadBalancerStatus
}

// Parts are the ids of everything below the load balancer.
func (l LoadBalancer) Parts() []ID {
	var ids []ID
	add := func(id ID) {
		if id != "" {
			ids = append(ids, id)
		}
	}
	pool := func(p Pool) {
		add(p.ID)
		for _, m := range p.Members {
			add(m.ID)
		}
		if p.Health != nil {
			add(p.Health.ID)
		}
	}
	for _, listener := range l.Listeners {
		add(listener.ID)
		pool(listener.Pool)
	}
	for _, p := range l.Pools {
		pool(p)
	}
	return ids
}

// VIP is an address that a load balancer answers at. An invalid Addr lets the SDN choose, or is the one that is there. Of a
// VIP that is there the subnet may be left out.
type VIP struct {
	Subnet ID
	Addr   netip.Addr
	Port   ID // given by the SDN: what a floating IP leads to; "" where it has no such object. Of no meaning in what is applied
}

// Listener is a transport port of the load balancer. Protocol and Port are unique in it, and by them it is known: its ID stays
// while they do.
type Listener struct {
	ID              ID  `json:",omitempty"` // given by the SDN, "" where it has none; of no meaning in what is applied
	Key             Key `json:",omitzero"`  // whose it is, where several may share the load balancer; of no meaning in what is applied
	Name            string
	Description     string `json:",omitempty"`
	Protocol        Protocol
	Port            uint16
	Sources         []netip.Prefix // who may connect; none: everyone. Without bits beyond their length, in order
	ConnectionLimit int            // 0: no limit
	ClientTimeout   time.Duration  // idle; 0: the SDN's
	MemberTimeout   time.Duration  // idle; 0: the SDN's
	ConnectTimeout  time.Duration  `json:",omitempty"` // to a member; 0: the SDN's
	InspectTimeout  time.Duration  `json:",omitempty"` // wait for more of a connection's first bytes; 0: the SDN's
	ProxyProtocol   bool           // tell members the client's address by the PROXY protocol
	ProxyVersion    int            `json:",omitempty"` // of it: 1 or 2; 0 is 1
	ForwardedFor    bool           `json:",omitempty"` // speak HTTP, and tell members the client's address in X-Forwarded-For
	Certificate     string         `json:",omitempty"` // ends TLS: where the SDN finds certificate and key (Octavia: Barbican's reference)
	Tags            []string       `json:",omitzero"`  // nil are those that it has; so with all that is below a load balancer
	// WithoutPool is a listener that has nowhere to send to; Pool must be the zero one. To its clients it is one without members.
	WithoutPool bool `json:",omitempty"`
	Pool        Pool
}

// Pool is where a listener sends connections.
type Pool struct {
	// ID is given by the SDN, "" where it has none. In what is applied it says which of the load balancer's pools this is, so that one can
	// be moved; "" and an unknown one are the pool that the listener has, or a new one.
	ID          ID     `json:",omitempty"`
	Name        string `json:",omitempty"`
	Description string `json:",omitempty"`
	// Protocol is that of the listener, which 0 stands for. A pool without a listener must say it.
	Protocol  Protocol `json:",omitempty"`
	Algorithm Algorithm
	Affinity  Affinity
	Members   []Member // known by address and port: a member's ID stays while they do
	Tags      []string `json:",omitzero"`
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

// Member is one that answers. It is of the family of one of the VIPs, whose clients it serves.
type Member struct {
	ID     ID `json:",omitempty"` // given by the SDN, "" where it has none; of no meaning in what is applied
	Name   string
	Addr   netip.AddrPort
	Subnet ID       // the member is on; "" is wherever the load balancer finds it
	Weight int      // relative to others, up to 256; 0 is 1
	Drain  bool     // no new connections; those that it has go on for as long as it is a member
	Tags   []string `json:",omitzero"`
}

// HealthMonitor checks members.
type HealthMonitor struct {
	ID         ID     `json:",omitempty"` // given by the SDN, "" where it has none; of no meaning in what is applied
	Name       string `json:",omitempty"`
	Type       string // Octavia's names: TCP, UDP-CONNECT, HTTP, …
	Path       string // with HTTP and HTTPS
	Interval   time.Duration
	Timeout    time.Duration
	Rise, Fall int
	Tags       []string `json:",omitzero"`
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
	Subnets   []ID         // of a VIP
	Addresses []netip.Addr // of a VIP
	Ports     []ID         // of a VIP
	// Parts selects those that have one of these listeners, pools, members or health monitors, by ID.
	Parts []ID
	// Outline is where what is below them does not matter: their Listeners, Pools and Status may be empty, if to read those takes calls of their own. Without Parts.
	Outline bool
}

// LoadBalancers spread connections over members (Octavia: loadbalancer and what is below it; OVN: Load_Balancer).
type LoadBalancers interface {
	// ApplyLoadBalancer makes the load balancer be this value: also a setting that is not in it any more (a timeout, a limit, an algorithm, a health monitor) is what a new one
	// has. Names, descriptions and tags that are not in it stay. It is a step, not a wait: it does what can be done now and tells
	// in the Status whether that was all; apply again after RetryAfter until Ready. That the SDN is at work on it is no error
	// here. A VIP taken by another IsConflict, AddressInUse; what cannot be changed and differs IsConflict, Immutable; a
	// subnet that is absent IsNotFound. One the SDN holds in error is made anew, with another ID. The order of VIPs, listeners,
	// pools, members and sources means nothing.
	ApplyLoadBalancer(ctx context.Context, spec LoadBalancerSpec) (LoadBalancer, error)
	LoadBalancer(ctx context.Context, id ID) (LoadBalancer, error)
	FindLoadBalancers(ctx context.Context, q LoadBalancerQuery) iter.Seq2[LoadBalancer, error]
	// DeleteLoadBalancer deletes the whole tree, and the VIPs with it: a floating IP of one leads nowhere afterwards. While the SDN is at
	// work on it IsPending: ask again after RetryAfterOf.
	DeleteLoadBalancer(ctx context.Context, id ID) error
}
