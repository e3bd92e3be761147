package sdn

import (
	"context"
	"iter"
)

// NoTrunks answers for a provider without trunks that embeds it: every method IsUnsupported.
type NoTrunks struct{}

// NoSecurityGroups is the same for security groups and address groups; ports have none, so taking some away succeeds.
type NoSecurityGroups struct{}

// NoLoadBalancers is the same for load balancers.
type NoLoadBalancers struct{}

// NoQoSPolicies is the same for QoS policies.
type NoQoSPolicies struct{}

func none[T any](err error) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var zero T
		yield(zero, err)
	}
}

var (
	errNoTrunks         = Unsupported("trunk", "this SDN has no trunks")
	errNoSecurityGroups = Unsupported("security group", "this SDN has no security groups")
	errNoAddressGroups  = Unsupported("address group", "this SDN has no address groups")
	errNoLoadBalancers  = Unsupported("load balancer", "this SDN has no load balancers")
	errNoQoSPolicies    = Unsupported("QoS policy", "this SDN has no bandwidth limits")
)

func (NoTrunks) EnsureTrunk(context.Context, TrunkSpec) (Trunk, error) { return Trunk{}, errNoTrunks }
func (NoTrunks) Trunk(context.Context, ID) (Trunk, error)              { return Trunk{}, errNoTrunks }
func (NoTrunks) FindTrunks(context.Context, TrunkQuery) iter.Seq2[Trunk, error] {
	return none[Trunk](errNoTrunks)
}
func (NoTrunks) UpdateTrunk(context.Context, ID, TrunkPatch) (Trunk, error) {
	return Trunk{}, errNoTrunks
}
func (NoTrunks) AttachSubports(context.Context, ID, []Subport) ([]Subport, error) {
	return nil, errNoTrunks
}
func (NoTrunks) DetachSubports(context.Context, ID, []ID) error { return errNoTrunks }
func (NoTrunks) DeleteTrunk(context.Context, ID) error          { return errNoTrunks }

func (NoSecurityGroups) ApplySecurityGroup(context.Context, SecurityGroupSpec) (SecurityGroup, error) {
	return SecurityGroup{}, errNoSecurityGroups
}
func (NoSecurityGroups) SecurityGroup(context.Context, ID) (SecurityGroup, error) {
	return SecurityGroup{}, errNoSecurityGroups
}
func (NoSecurityGroups) FindSecurityGroups(context.Context, SecurityGroupQuery) iter.Seq2[SecurityGroup, error] {
	return none[SecurityGroup](errNoSecurityGroups)
}
func (NoSecurityGroups) DeleteSecurityGroup(context.Context, ID) error { return errNoSecurityGroups }
func (NoSecurityGroups) ApplyAddressGroup(context.Context, AddressGroupSpec) (AddressGroup, error) {
	return AddressGroup{}, errNoAddressGroups
}
func (NoSecurityGroups) AddressGroup(context.Context, ID) (AddressGroup, error) {
	return AddressGroup{}, errNoAddressGroups
}
func (NoSecurityGroups) FindAddressGroups(context.Context, AddressGroupQuery) iter.Seq2[AddressGroup, error] {
	return none[AddressGroup](errNoAddressGroups)
}
func (NoSecurityGroups) DeleteAddressGroup(context.Context, ID) error { return errNoAddressGroups }

// AddGroups of a provider without security groups succeeds for no groups.
func (NoSecurityGroups) AddGroups(_ context.Context, _ ID, groups []ID) error {
	if len(groups) == 0 {
		return nil
	}
	return errNoSecurityGroups
}

// RemoveGroups of a provider without security groups succeeds: no port has any.
func (NoSecurityGroups) RemoveGroups(context.Context, ID, []ID) error { return nil }

func (NoLoadBalancers) ApplyLoadBalancer(context.Context, LoadBalancerSpec) (LoadBalancer, error) {
	return LoadBalancer{}, errNoLoadBalancers
}
func (NoLoadBalancers) LoadBalancer(context.Context, ID) (LoadBalancer, error) {
	return LoadBalancer{}, errNoLoadBalancers
}
func (NoLoadBalancers) FindLoadBalancers(context.Context, LoadBalancerQuery) iter.Seq2[LoadBalancer, error] {
	return none[LoadBalancer](errNoLoadBalancers)
}
func (NoLoadBalancers) DeleteLoadBalancer(context.Context, ID) error { return errNoLoadBalancers }

func (NoQoSPolicies) ApplyQoSPolicy(context.Context, QoSPolicySpec) (QoSPolicy, error) {
	return QoSPolicy{}, errNoQoSPolicies
}
func (NoQoSPolicies) QoSPolicy(context.Context, ID) (QoSPolicy, error) {
	return QoSPolicy{}, errNoQoSPolicies
}
func (NoQoSPolicies) FindQoSPolicies(context.Context, QoSPolicyQuery) iter.Seq2[QoSPolicy, error] {
	return none[QoSPolicy](errNoQoSPolicies)
}
func (NoQoSPolicies) DeleteQoSPolicy(context.Context, ID) error { return errNoQoSPolicies }
