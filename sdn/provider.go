package sdn

import "context"

// Provider is an SDN: everything Kuryr asks of one. A noun the SDN does not have answers IsUnsupported, and Capabilities
// tell so beforehand. All methods may be called at once from many goroutines.
type Provider interface {
	Networks
	Subnets
	SubnetPools
	Ports
	Trunks
	Routers
	FloatingIPs
	Publications
	SecurityGroups
	LoadBalancers
	QoSPolicies
	Quotas

	// Installation is the id that marks what this installation of Kuryr made: the Owner of its Keys.
	Installation() string
	// Capabilities tell what the SDN can do. They may grow better while the provider learns; they are cheap to ask for.
	Capabilities() Capabilities
	// Ping asks the SDN the cheapest question that proves it answers this provider's credentials.
	Ping(ctx context.Context) error
	// Close lets go of what the provider holds. The SDN and its traffic go on.
	Close() error
}

// Capabilities are what an SDN can do, as values where a number says more than a yes.
type Capabilities struct {
	// ExternalNetwork is the network that routers get their gateway on unless told otherwise; "" where there is none such.
	ExternalNetwork ID

	ChooseMAC       bool // a port's MAC can be asked for and changed
	ChooseAddress   bool // a port's addresses can be asked for
	HostBinding     bool // a port's host can be set
	TagsAtCreate    bool // tags are there as soon as the object is
	MaxTags         int  // on one object; 0: no limit
	MaxTagLen       int  // 0: there are none, see HasTags
	MaxNameLen      int
	MaxBulk         int  // ports in one call that the SDN serves as one; more are cut up
	PortsPerNetwork int  // 0: no limit
	Segments        bool // networks can be placed on physical ones
	AdminState      bool // networks, ports, routers and trunks can be Disabled
	AddressModes    bool // IPv6 subnets can be other than Static
	KeepReserved    bool // a subnet's Reserved addresses are refused on request too, and shown
	ServiceTypes    bool // a subnet can be for ports of some device owners alone, see SubnetSpec
	SubnetPools     bool
	Trunks          bool
	Routers         bool
	SharedNetwork   bool // a network can be attached to more than one router
	FloatingIPs     bool
	FloatingIPv6    bool
	PickFloatingIP  bool // a floating IP's address can be asked for
	HostAddresses   bool // floating IPs can stand for the host's own addresses, one or all
	HostReached     bool // the machine that ports are plugged on and they reach one another, with no port of the machine's own
	Forwards        bool
	ForwardRanges   bool
	SecurityGroups  bool
	Stateless       bool // security groups can be stateless
	GrouplessOpen   bool // a port that has no security groups is not filtered
	RemoteGroups    bool
	AddressGroups   bool // only where a rule with one is known not to allow everyone
	QoS             bool
	Quotas          bool
	WatchPorts      bool // WaitPorts is told, it does not ask
	Ordered         bool // a Find without IDs and Keys gives objects in the order of their ids
	LoadBalancer    LoadBalancerCapabilities
	// Backends are what load balancers of the SDN's other providers can do, by the name that a LoadBalancerSpec's Backend has; see LoadBalancerOf.
	Backends map[string]LoadBalancerCapabilities `json:",omitempty"`
}

// LoadBalancerOf tells what the load balancers of a provider can do; "", and one that is not known here, are taken for the default.
func (c Capabilities) LoadBalancerOf(backend string) LoadBalancerCapabilities {
	if can, known := c.Backends[backend]; known {
		return can
	}
	return c.LoadBalancer
}

// HasTags tells whether objects have tags.
func (c Capabilities) HasTags() bool { return c.MaxTagLen > 0 }

// LoadBalancerCapabilities are what an SDN's load balancers can do. No Protocols: there are none.
type LoadBalancerCapabilities struct {
	Protocols      []Protocol
	Algorithms     []Algorithm // AnyAlgorithm is always among what can be said
	Affinity       bool
	AffinityTCP    bool // with a timeout that can be chosen for TCP
	SourceRanges   bool
	ClientIPKept   bool // members see the client's address
	HealthMonitors bool
	MixedProtocols bool // one port number for two protocols
	TwoFamilies    bool // VIPs of both families in one load balancer
	ChangeFamilies bool // a family can be added and taken away later
	FreePools      bool // pools that no listener sends to are kept, and listeners without a pool
	Weights        bool // a member's weight counts; else it is kept and means nothing
	Drain          bool
	Limits         bool   // listeners' connection limits
	Timeouts       bool   // listeners' idle timeouts
	ProxyProtocol  bool   // members can be told the client's address
	HTTP           bool   // listeners can speak HTTP (ForwardedFor) and end TLS (Certificate)
	Zones          bool   // availability zones and flavors
	Share          bool   // listeners of several Keys in one load balancer
	Groups         bool   // VIPs can have security groups
	PartTags       bool   // what is below a load balancer has tags
	AnyMember      bool   // a member beyond the networks of the VIP's router is served to all; else to clients in the SDN alone, and to no floating IP and no health monitor
	Members        int    // in a pool at most; 0 is that the SDN does not say
	HairpinSource  string // what a member sees when it reaches itself: "vip", "lb", "member"
}
