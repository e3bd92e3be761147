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

// NoQoS is the same for bandwidth limits.
type NoQoS struct{}

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
	errNoQoS            = Unsupported("port", "this SDN has no bandwidth limits")
)

func (NoTrunks) EnsureTrunk(context.Context, TrunkSpec) (Trunk, error) { return Trunk{}, errNoTrunks }
func (NoTrunks) Trunk(context.Context, ID) (Trunk, error)              { return Trunk{}, errNoTrunks }
func (NoTrunks) FindTrunks(context.Context, TrunkQuery) iter.Seq2[Trunk, error] {
	return none[Trunk](errNoTrunks)
}
func (NoTrunks) AttachSubports(context.Context, ID, []Subport) ([]Subport, error) {
	return nil, errNoTrunks
}
func (NoTrunks) DetachSubports(context.Context, ID, []ID) error { return errNoTrunks }
func (NoTrunks) DeleteTrunk(context.Context, ID) error          { return errNoTrunks }

func (NoSecurityGroups) ApplySecurityGroup(context.Context, SecurityGroup) (ID, error) {
	return "", errNoSecurityGroups
}
func (NoSecurityGroups) SecurityGroup(context.Context, ID) (SecurityGroupInfo, error) {
	return SecurityGroupInfo{}, errNoSecurityGroups
}
func (NoSecurityGroups) FindSecurityGroups(context.Context, SecurityGroupQuery) iter.Seq2[SecurityGroupInfo, error] {
	return none[SecurityGroupInfo](errNoSecurityGroups)
}
func (NoSecurityGroups) DeleteSecurityGroup(context.Context, ID) error { return errNoSecurityGroups }
func (NoSecurityGroups) ApplyAddressGroup(context.Context, AddressGroup) (ID, error) {
	return "", errNoAddressGroups
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

func (NoLoadBalancers) ApplyLoadBalancer(context.Context, LoadBalancer) (LoadBalancerStatus, error) {
	return LoadBalancerStatus{}, errNoLoadBalancers
}
func (NoLoadBalancers) LoadBalancer(context.Context, Key) (LoadBalancerInfo, error) {
	return LoadBalancerInfo{}, errNoLoadBalancers
}
func (NoLoadBalancers) FindLoadBalancers(context.Context, LoadBalancerQuery) iter.Seq2[LoadBalancerInfo, error] {
	return none[LoadBalancerInfo](errNoLoadBalancers)
}
func (NoLoadBalancers) DeleteLoadBalancer(context.Context, Key) error { return errNoLoadBalancers }

func (NoQoS) SetPortQoS(context.Context, ID, PortQoS) error { return errNoQoS }
