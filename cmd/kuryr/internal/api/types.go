package api

import (
	"encoding/json"

	"github.com/kuryr/kuryr/sdn"
)

// Common is what every object shows.
type Common struct {
	ID          string   `json:"id"`
	Name        string   `json:"name"`
	Description string   `json:"description"`
	ProjectID   string   `json:"project_id"`
	TenantID    string   `json:"tenant_id"` // the older name of ProjectID
	Tags        []string `json:"tags"`
	Revision    int64    `json:"revision_number"`
	CreatedAt   string   `json:"created_at"` // UTC, to the second
	UpdatedAt   string   `json:"updated_at"`
}

// Key is the Key that the description carries; zero where it carries none.
func (c Common) Key() sdn.Key {
	key, _ := sdn.ParseKey(c.Description)
	return key
}

// Value is what an optional field holds, "" for null.
func Value(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// Networks are served below /v2.0/networks.
var Networks = Resource[Network]{"network", "networks"}

// Network is a network in Neutron's JSON.
type Network struct {
	Common
	MTU          int      `json:"mtu"`
	External     bool     `json:"router:external"`
	Shared       bool     `json:"shared"`
	PortSecurity bool     `json:"port_security_enabled"`
	Subnets      []string `json:"subnets"`
	Status       string   `json:"status"`
	AdminStateUp bool     `json:"admin_state_up"`
	IsDefault    bool     `json:"is_default"`
	QoSPolicyID  *string  `json:"qos_policy_id"` // ports have policies, networks none
	// Where the SDN has put it; null where it does not tell. For administrators.
	NetworkType     *string `json:"provider:network_type"`
	PhysicalNetwork *string `json:"provider:physical_network"`
	SegmentationID  *int    `json:"provider:segmentation_id"`
	// The SDN has no such thing.
	AvailabilityZones     []string `json:"availability_zones"`
	AvailabilityZoneHints []string `json:"availability_zone_hints"`
	IPv4AddressScope      *string  `json:"ipv4_address_scope"`
	IPv6AddressScope      *string  `json:"ipv6_address_scope"`
}

// Subnets are served below /v2.0/subnets.
var Subnets = Resource[Subnet]{"subnet", "subnets"}

// Subnet is a subnet in Neutron's JSON.
type Subnet struct {
	Common
	NetworkID       string           `json:"network_id"`
	CIDR            string           `json:"cidr"`
	IPVersion       int              `json:"ip_version"`
	GatewayIP       *string          `json:"gateway_ip"`
	AllocationPools []AllocationPool `json:"allocation_pools"`
	SubnetPoolID    *string          `json:"subnetpool_id"`
	EnableDHCP      bool             `json:"enable_dhcp"`
	AddressMode     *string          `json:"ipv6_address_mode"`
	RAMode          *string          `json:"ipv6_ra_mode"`
	Nameservers     []string         `json:"dns_nameservers"`
	HostRoutes      []Route          `json:"host_routes"`
	ServiceTypes    []string         `json:"service_types"`
	Reserved        []string         `json:"kuryr:reserved_addresses"`
}

// SubnetPools are served below /v2.0/subnetpools.
var SubnetPools = Resource[SubnetPool]{"subnetpool", "subnetpools"}

// SubnetPool is a subnet pool in Neutron's JSON.
type SubnetPool struct {
	Common
	Prefixes         []string `json:"prefixes"`
	IPVersion        int      `json:"ip_version"`
	DefaultPrefixLen int      `json:"default_prefixlen"`
	MinPrefixLen     int      `json:"min_prefixlen"`
	MaxPrefixLen     int      `json:"max_prefixlen"`
	Shared           bool     `json:"shared"`
	IsDefault        bool     `json:"is_default"`
	DefaultQuota     *int     `json:"default_quota"`
	AddressScopeID   *string  `json:"address_scope_id"`
}

// Ports are served below /v2.0/ports.
var Ports = Resource[Port]{"port", "ports"}

// Port is a port in Neutron's JSON.
type Port struct {
	Common
	NetworkID      string                     `json:"network_id"`
	MACAddress     string                     `json:"mac_address"`
	FixedIPs       []FixedIP                  `json:"fixed_ips"`
	DeviceID       string                     `json:"device_id"`
	DeviceOwner    string                     `json:"device_owner"`
	HostID         string                     `json:"binding:host_id"`
	VNICType       string                     `json:"binding:vnic_type"`
	VIFType        string                     `json:"binding:vif_type"`
	VIFDetails     map[string]string          `json:"binding:vif_details"`
	Profile        map[string]json.RawMessage `json:"binding:profile"`
	SecurityGroups []string                   `json:"security_groups"`
	PortSecurity   bool                       `json:"port_security_enabled"`
	AllowedPairs   []AddressPair              `json:"allowed_address_pairs"`
	Trusted        *bool                      `json:"trusted"` // of the profile; null where it says nothing
	QoSPolicyID    *string                    `json:"qos_policy_id"`
	DHCPOptions    []struct{}                 `json:"extra_dhcp_opts"` // the SDN has none
	Status         string                     `json:"status"`
	AdminStateUp   bool                       `json:"admin_state_up"`
}

// Routers are served below /v2.0/routers.
var Routers = Resource[Router]{"router", "routers"}

// Router is a router in Neutron's JSON.
type Router struct {
	Common
	Gateway      *GatewayInfo `json:"external_gateway_info"`
	Routes       []Route      `json:"routes"`
	Interfaces   []Interface  `json:"interfaces_info"`
	Unreached    []Unreached  `json:"kuryr:unreached"`
	Status       string       `json:"status"`
	AdminStateUp bool         `json:"admin_state_up"`
	HA           bool         `json:"ha"`
	Distributed  bool         `json:"distributed"`
	// The SDN has no such thing.
	FlavorID              *string  `json:"flavor_id"`
	AvailabilityZones     []string `json:"availability_zones"`
	AvailabilityZoneHints []string `json:"availability_zone_hints"`
}

// FloatingIPs are served below /v2.0/floatingips.
var FloatingIPs = Resource[FloatingIP]{"floatingip", "floatingips"}

// FloatingIP is a floating IP in Neutron's JSON.
type FloatingIP struct {
	Common
	FloatingNetworkID string  `json:"floating_network_id"`
	FloatingIPAddress string  `json:"floating_ip_address"`
	PortID            *string `json:"port_id"`
	FixedIPAddress    *string `json:"fixed_ip_address"`
	RouterID          *string `json:"router_id"`
	Status            string  `json:"status"`
}

// PortForwarding is a port forwarding of a floating IP in Neutron's JSON.
type PortForwarding struct {
	ID                string  `json:"id"`
	Protocol          string  `json:"protocol"`
	ExternalPort      *uint16 `json:"external_port"` // null where it is a range
	ExternalPortRange string  `json:"external_port_range"`
	InternalPort      *uint16 `json:"internal_port"` // null where it is a range
	InternalPortRange string  `json:"internal_port_range"`
	InternalPortID    string  `json:"internal_port_id"`
	InternalIPAddress *string `json:"internal_ip_address"`
	Description       string  `json:"description"`
}

// SecurityGroups are served below /v2.0/security-groups.
var SecurityGroups = Resource[SecurityGroup]{"security_group", "security_groups"}

// SecurityGroup is a security group in Neutron's JSON.
type SecurityGroup struct {
	Common
	Stateful bool                `json:"stateful"`
	Shared   bool                `json:"shared"` // never: no group is given to other projects
	Rules    []SecurityGroupRule `json:"security_group_rules"`
}

// SecurityGroupRule is a rule of a security group in Neutron's JSON. The port range of ICMP is its
// type and code. Its times are those of its group: a rule is a part of the group's value.
type SecurityGroupRule struct {
	ID                   string   `json:"id"`
	ProjectID            string   `json:"project_id"`
	TenantID             string   `json:"tenant_id"`
	SecurityGroupID      string   `json:"security_group_id"`
	Description          string   `json:"description"`
	Direction            string   `json:"direction"`
	EtherType            string   `json:"ethertype"`
	Protocol             *string  `json:"protocol"`
	PortRangeMin         *int     `json:"port_range_min"`
	PortRangeMax         *int     `json:"port_range_max"`
	RemoteIPPrefix       *string  `json:"remote_ip_prefix"`
	NormalizedCIDR       *string  `json:"normalized_cidr"`
	RemoteGroupID        *string  `json:"remote_group_id"`
	RemoteAddressGroupID *string  `json:"remote_address_group_id"`
	BelongsToDefaultSG   bool     `json:"belongs_to_default_sg"`
	Tags                 []string `json:"tags"`
	Revision             int64    `json:"revision_number"`
	CreatedAt            string   `json:"created_at"`
	UpdatedAt            string   `json:"updated_at"`
}

// LoadBalancers are served below /v2.0/lbaas/loadbalancers.
var LoadBalancers = Resource[LoadBalancer]{"loadbalancer", "loadbalancers"}

// balancerStatus is the status of an object of Octavia. A time is null if the SDN does not know it.
type balancerStatus struct {
	ProvisioningStatus string  `json:"provisioning_status"`
	OperatingStatus    string  `json:"operating_status"`
	AdminStateUp       bool    `json:"admin_state_up"`
	CreatedAt          *string `json:"created_at"`
	UpdatedAt          *string `json:"updated_at"`
}

// LoadBalancer is a load balancer in Octavia's JSON.
type LoadBalancer struct {
	ID          string   `json:"id"`
	Name        string   `json:"name"`
	Description string   `json:"description"`
	ProjectID   string   `json:"project_id"`
	Tags        []string `json:"tags"`
	Revision    int64    `json:"kuryr:revision_number"` // Octavia has none
	balancerStatus
	VIPAddress     string          `json:"vip_address"`
	VIPSubnetID    string          `json:"vip_subnet_id"`
	VIPNetworkID   string          `json:"vip_network_id"`
	VIPPortID      string          `json:"vip_port_id"`
	VIPQoSPolicyID *string         `json:"vip_qos_policy_id"`
	VIPGroups      []string        `json:"vip_sg_ids"`
	AdditionalVIPs []AdditionalVIP `json:"additional_vips"`
	Listeners      []ref           `json:"listeners"`
	Pools          []ref           `json:"pools"`
	Provider       string          `json:"provider"`
	FlavorID       *string         `json:"flavor_id"`
	Zone           *string         `json:"availability_zone"`
}

// Listeners are served below /v2.0/lbaas/listeners.
var Listeners = Resource[Listener]{"listener", "listeners"}

// Listener is a listener in Octavia's JSON. The attributes of HTTP and TLS, which are not balanced
// here, are null or empty.
type Listener struct {
	ID          string   `json:"id"`
	Name        string   `json:"name"`
	Description string   `json:"description"`
	ProjectID   string   `json:"project_id"`
	Tags        []string `json:"tags"`
	balancerStatus
	Protocol        string            `json:"protocol"`
	ProtocolPort    uint16            `json:"protocol_port"`
	ConnectionLimit int               `json:"connection_limit"`
	DefaultPoolID   *string           `json:"default_pool_id"`
	LoadBalancers   []ref             `json:"loadbalancers"`
	AllowedCIDRs    []string          `json:"allowed_cidrs"`
	ClientData      int64             `json:"timeout_client_data"` // milliseconds, as those below
	MemberConnect   int64             `json:"timeout_member_connect"`
	MemberData      int64             `json:"timeout_member_data"`
	TCPInspect      int64             `json:"timeout_tcp_inspect"`
	Policies        []ref             `json:"l7policies"`
	InsertHeaders   map[string]string `json:"insert_headers"`
	TLS             *string           `json:"default_tls_container_ref"`
	SNI             []string          `json:"sni_container_refs"`
	ClientAuth      *string           `json:"client_authentication"`
	ClientCA        *string           `json:"client_ca_tls_container_ref"`
	ClientCRL       *string           `json:"client_crl_container_ref"`
	Ciphers         *string           `json:"tls_ciphers"`
	Versions        []string          `json:"tls_versions"`
	ALPN            []string          `json:"alpn_protocols"`
}

// Pools are served below /v2.0/lbaas/pools.
var Pools = Resource[Pool]{"pool", "pools"}

// Pool is a pool in Octavia's JSON.
type Pool struct {
	ID          string   `json:"id"`
	Name        string   `json:"name"`
	Description string   `json:"description"`
	ProjectID   string   `json:"project_id"`
	Tags        []string `json:"tags"`
	balancerStatus
	Protocol      string       `json:"protocol"`
	Algorithm     string       `json:"lb_algorithm"`
	Persistence   *Persistence `json:"session_persistence"`
	LoadBalancers []ref        `json:"loadbalancers"`
	Listeners     []ref        `json:"listeners"`
	Members       []ref        `json:"members"`
	MonitorID     *string      `json:"healthmonitor_id"`
	TLS           bool         `json:"tls_enabled"` // never, and what follows is of TLS
	TLSRef        *string      `json:"tls_container_ref"`
	CARef         *string      `json:"ca_tls_container_ref"`
	CRLRef        *string      `json:"crl_container_ref"`
	Ciphers       *string      `json:"tls_ciphers"`
	Versions      []string     `json:"tls_versions"`
	ALPN          []string     `json:"alpn_protocols"`
}

// PoolMember is a member of a pool in Octavia's JSON.
type PoolMember struct {
	ID        string   `json:"id"`
	Name      string   `json:"name"`
	ProjectID string   `json:"project_id"`
	Tags      []string `json:"tags"`
	balancerStatus
	Address        string  `json:"address"`
	ProtocolPort   uint16  `json:"protocol_port"`
	SubnetID       *string `json:"subnet_id"`
	Weight         int     `json:"weight"`
	Backup         bool    `json:"backup"`
	MonitorAddress *string `json:"monitor_address"`
	MonitorPort    *int    `json:"monitor_port"`
}

// FixedIP is an address of a port.
type FixedIP struct {
	SubnetID  string `json:"subnet_id"`
	IPAddress string `json:"ip_address"`
}

// Route leads to a destination by a next hop.
type Route struct {
	Destination string `json:"destination"`
	NextHop     string `json:"nexthop"`
}

// AllocationPool is a range that addresses are allocated from.
type AllocationPool struct {
	Start string `json:"start"`
	End   string `json:"end"`
}

// AddressPair is a further source that a port may send as.
type AddressPair struct {
	IPAddress  string `json:"ip_address"`
	MACAddress string `json:"mac_address"`
}

// GatewayInfo is a router's way out.
type GatewayInfo struct {
	NetworkID  string    `json:"network_id"`
	EnableSNAT bool      `json:"enable_snat"`
	FixedIPs   []FixedIP `json:"external_fixed_ips"`
}

// Interface is a router's interface on a subnet.
type Interface struct {
	PortID    string `json:"port_id"`
	SubnetID  string `json:"subnet_id"`
	IPAddress string `json:"ip_address"`
}

// Unreached is a range that the host cannot lead to the router, and why.
type Unreached struct {
	Prefix string `json:"prefix"`
	Reason string `json:"reason"`
}

// AdditionalVIP is the address of the other family of a load balancer.
type AdditionalVIP struct {
	SubnetID  string `json:"subnet_id"`
	IPAddress string `json:"ip_address"`
	PortID    string `json:"port_id"`
}

// Persistence keeps clients with their members.
type Persistence struct {
	Type        string  `json:"type"`
	CookieName  *string `json:"cookie_name"`
	Timeout     *int64  `json:"persistence_timeout"` // seconds
	Granularity *string `json:"persistence_granularity"`
}

// ref names another object.
type ref struct {
	ID string `json:"id"`
}
