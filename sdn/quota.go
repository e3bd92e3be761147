package sdn

import "context"

// Noun names a noun of the contract, for quotas, metrics and errors.
type Noun string

// The nouns, by Neutron's and Octavia's names.
const (
	NounNetwork       Noun = "network"
	NounSubnet        Noun = "subnet"
	NounSubnetPool    Noun = "subnetpool"
	NounPort          Noun = "port"
	NounTrunk         Noun = "trunk"
	NounRouter        Noun = "router"
	NounFloatingIP    Noun = "floatingip"
	NounSecurityGroup Noun = "security_group"
	NounRule          Noun = "security_group_rule"
	NounAddressGroup  Noun = "address_group"
	NounQoSPolicy     Noun = "qos_policy"
	NounLoadBalancer  Noun = "loadbalancer"
	NounListener      Noun = "listener"
	NounPool          Noun = "pool"
	NounMember        Noun = "member"
	NounHealthMonitor Noun = "healthmonitor"
	NounForward       Noun = "port_forwarding"
	NounAddressScope  Noun = "address_scope"
	NounRBACPolicy    Noun = "rbac_policy" // Neutron's rules of sharing, see AccessPolicies
	// The contract has none of these: there is but a limit of them, which clients set with the others.
	NounL7Policy Noun = "l7policy"
	NounL7Rule   Noun = "l7rule"
)

// Usage is how much of a quota is used.
type Usage struct {
	Used  int64
	Limit int64 // -1: none
	// Default says that the limit is that of every project without one of its own. It
	// holds for what a server makes for its clients, and not for its administrators.
	Default bool
}

// Quotas tell how much a project may have and has.
type Quotas interface {
	// Usage tells it for each noun that the SDN counts; "" is the provider's own project.
	Usage(ctx context.Context, project string) (map[Noun]Usage, error)
	// SetQuota sets limits, -1 being none; those not named stay. Where the SDN leaves that to its operators: IsDenied.
	SetQuota(ctx context.Context, project string, limits map[Noun]int64) error
}
