package metrics

import (
	"context"
	"iter"
	"net/netip"
	"time"

	"github.com/kuryr/kuryr/sdn"
)

// observed hands every call of the contract on and notes how it went. A stream is one
// call, from its first object to its end.

// EnsureNetwork is counted and timed.
func (o *observed) EnsureNetwork(ctx context.Context, spec sdn.NetworkSpec) (out sdn.Network, err error) {
	defer o.time("EnsureNetwork", time.Now(), &err)
	return o.Provider.EnsureNetwork(ctx, spec)
}

// Network is counted and timed.
func (o *observed) Network(ctx context.Context, id sdn.ID) (out sdn.Network, err error) {
	defer o.time("Network", time.Now(), &err)
	return o.Provider.Network(ctx, id)
}

// FindNetworks is counted and timed as one call.
func (o *observed) FindNetworks(ctx context.Context, q sdn.NetworkQuery) iter.Seq2[sdn.Network, error] {
	return stream(ctx, o, "FindNetworks", o.Provider.FindNetworks, q)
}

// UpdateNetwork is counted and timed.
func (o *observed) UpdateNetwork(ctx context.Context, id sdn.ID, p sdn.NetworkPatch) (out sdn.Network, err error) {
	defer o.time("UpdateNetwork", time.Now(), &err)
	return o.Provider.UpdateNetwork(ctx, id, p)
}

// DeleteNetwork is counted and timed.
func (o *observed) DeleteNetwork(ctx context.Context, id sdn.ID) (err error) {
	defer o.time("DeleteNetwork", time.Now(), &err)
	return o.Provider.DeleteNetwork(ctx, id)
}

// EnsureSubnet is counted and timed.
func (o *observed) EnsureSubnet(ctx context.Context, spec sdn.SubnetSpec) (out sdn.Subnet, err error) {
	defer o.time("EnsureSubnet", time.Now(), &err)
	return o.Provider.EnsureSubnet(ctx, spec)
}

// Subnet is counted and timed.
func (o *observed) Subnet(ctx context.Context, id sdn.ID) (out sdn.Subnet, err error) {
	defer o.time("Subnet", time.Now(), &err)
	return o.Provider.Subnet(ctx, id)
}

// FindSubnets is counted and timed as one call.
func (o *observed) FindSubnets(ctx context.Context, q sdn.SubnetQuery) iter.Seq2[sdn.Subnet, error] {
	return stream(ctx, o, "FindSubnets", o.Provider.FindSubnets, q)
}

// UpdateSubnet is counted and timed.
func (o *observed) UpdateSubnet(ctx context.Context, id sdn.ID, p sdn.SubnetPatch) (out sdn.Subnet, err error) {
	defer o.time("UpdateSubnet", time.Now(), &err)
	return o.Provider.UpdateSubnet(ctx, id, p)
}

// DeleteSubnet is counted and timed.
func (o *observed) DeleteSubnet(ctx context.Context, id sdn.ID) (err error) {
	defer o.time("DeleteSubnet", time.Now(), &err)
	return o.Provider.DeleteSubnet(ctx, id)
}

// SubnetUsage is counted and timed.
func (o *observed) SubnetUsage(ctx context.Context, id sdn.ID) (out sdn.SubnetUsage, err error) {
	defer o.time("SubnetUsage", time.Now(), &err)
	return o.Provider.SubnetUsage(ctx, id)
}

// EnsureSubnetPool is counted and timed.
func (o *observed) EnsureSubnetPool(ctx context.Context, spec sdn.SubnetPoolSpec) (out sdn.SubnetPool, err error) {
	defer o.time("EnsureSubnetPool", time.Now(), &err)
	return o.Provider.EnsureSubnetPool(ctx, spec)
}

// SubnetPool is counted and timed.
func (o *observed) SubnetPool(ctx context.Context, id sdn.ID) (out sdn.SubnetPool, err error) {
	defer o.time("SubnetPool", time.Now(), &err)
	return o.Provider.SubnetPool(ctx, id)
}

// FindSubnetPools is counted and timed as one call.
func (o *observed) FindSubnetPools(ctx context.Context, q sdn.SubnetPoolQuery) iter.Seq2[sdn.SubnetPool, error] {
	return stream(ctx, o, "FindSubnetPools", o.Provider.FindSubnetPools, q)
}

// UpdateSubnetPool is counted and timed.
func (o *observed) UpdateSubnetPool(
	ctx context.Context, id sdn.ID, p sdn.SubnetPoolPatch,
) (out sdn.SubnetPool, err error) {
	defer o.time("UpdateSubnetPool", time.Now(), &err)
	return o.Provider.UpdateSubnetPool(ctx, id, p)
}

// DeleteSubnetPool is counted and timed.
func (o *observed) DeleteSubnetPool(ctx context.Context, id sdn.ID) (err error) {
	defer o.time("DeleteSubnetPool", time.Now(), &err)
	return o.Provider.DeleteSubnetPool(ctx, id)
}

// EnsurePorts is counted and timed.
func (o *observed) EnsurePorts(ctx context.Context, specs []sdn.PortSpec) (out []sdn.Port, err error) {
	defer o.time("EnsurePorts", time.Now(), &err)
	return o.Provider.EnsurePorts(ctx, specs)
}

// Port is counted and timed.
func (o *observed) Port(ctx context.Context, id sdn.ID) (out sdn.Port, err error) {
	defer o.time("Port", time.Now(), &err)
	return o.Provider.Port(ctx, id)
}

// FindPorts is counted and timed as one call.
func (o *observed) FindPorts(ctx context.Context, q sdn.PortQuery) iter.Seq2[sdn.Port, error] {
	return stream(ctx, o, "FindPorts", o.Provider.FindPorts, q)
}

// UpdatePort is counted and timed.
func (o *observed) UpdatePort(ctx context.Context, id sdn.ID, p sdn.PortPatch) (out sdn.Port, err error) {
	defer o.time("UpdatePort", time.Now(), &err)
	return o.Provider.UpdatePort(ctx, id, p)
}

// AddGroups is counted and timed.
func (o *observed) AddGroups(ctx context.Context, id sdn.ID, groups []sdn.ID) (err error) {
	defer o.time("AddGroups", time.Now(), &err)
	return o.Provider.AddGroups(ctx, id, groups)
}

// RemoveGroups is counted and timed.
func (o *observed) RemoveGroups(ctx context.Context, id sdn.ID, groups []sdn.ID) (err error) {
	defer o.time("RemoveGroups", time.Now(), &err)
	return o.Provider.RemoveGroups(ctx, id, groups)
}

// DeletePorts is counted and timed.
func (o *observed) DeletePorts(ctx context.Context, ids []sdn.ID) (err error) {
	defer o.time("DeletePorts", time.Now(), &err)
	return o.Provider.DeletePorts(ctx, ids)
}

// DeletePort is counted and timed.
func (o *observed) DeletePort(ctx context.Context, id sdn.ID, ifRevision int64) (err error) {
	defer o.time("DeletePort", time.Now(), &err)
	return o.Provider.DeletePort(ctx, id, ifRevision)
}

// WaitPorts is counted and timed.
func (o *observed) WaitPorts(ctx context.Context, ids []sdn.ID, status sdn.PortStatus) (err error) {
	defer o.time("WaitPorts", time.Now(), &err)
	return o.Provider.WaitPorts(ctx, ids, status)
}

// EnsureTrunk is counted and timed.
func (o *observed) EnsureTrunk(ctx context.Context, spec sdn.TrunkSpec) (out sdn.Trunk, err error) {
	defer o.time("EnsureTrunk", time.Now(), &err)
	return o.Provider.EnsureTrunk(ctx, spec)
}

// Trunk is counted and timed.
func (o *observed) Trunk(ctx context.Context, id sdn.ID) (out sdn.Trunk, err error) {
	defer o.time("Trunk", time.Now(), &err)
	return o.Provider.Trunk(ctx, id)
}

// FindTrunks is counted and timed as one call.
func (o *observed) FindTrunks(ctx context.Context, q sdn.TrunkQuery) iter.Seq2[sdn.Trunk, error] {
	return stream(ctx, o, "FindTrunks", o.Provider.FindTrunks, q)
}

// UpdateTrunk is counted and timed.
func (o *observed) UpdateTrunk(ctx context.Context, id sdn.ID, p sdn.TrunkPatch) (out sdn.Trunk, err error) {
	defer o.time("UpdateTrunk", time.Now(), &err)
	return o.Provider.UpdateTrunk(ctx, id, p)
}

// AttachSubports is counted and timed.
func (o *observed) AttachSubports(
	ctx context.Context, trunk sdn.ID, subports []sdn.Subport,
) (out []sdn.Subport, err error) {
	defer o.time("AttachSubports", time.Now(), &err)
	return o.Provider.AttachSubports(ctx, trunk, subports)
}

// DetachSubports is counted and timed.
func (o *observed) DetachSubports(ctx context.Context, trunk sdn.ID, ports []sdn.ID) (err error) {
	defer o.time("DetachSubports", time.Now(), &err)
	return o.Provider.DetachSubports(ctx, trunk, ports)
}

// DeleteTrunk is counted and timed.
func (o *observed) DeleteTrunk(ctx context.Context, id sdn.ID) (err error) {
	defer o.time("DeleteTrunk", time.Now(), &err)
	return o.Provider.DeleteTrunk(ctx, id)
}

// EnsureRouter is counted and timed.
func (o *observed) EnsureRouter(ctx context.Context, spec sdn.RouterSpec) (out sdn.Router, err error) {
	defer o.time("EnsureRouter", time.Now(), &err)
	return o.Provider.EnsureRouter(ctx, spec)
}

// Router is counted and timed.
func (o *observed) Router(ctx context.Context, id sdn.ID) (out sdn.Router, err error) {
	defer o.time("Router", time.Now(), &err)
	return o.Provider.Router(ctx, id)
}

// FindRouters is counted and timed as one call.
func (o *observed) FindRouters(ctx context.Context, q sdn.RouterQuery) iter.Seq2[sdn.Router, error] {
	return stream(ctx, o, "FindRouters", o.Provider.FindRouters, q)
}

// UpdateRouter is counted and timed.
func (o *observed) UpdateRouter(ctx context.Context, id sdn.ID, p sdn.RouterPatch) (out sdn.Router, err error) {
	defer o.time("UpdateRouter", time.Now(), &err)
	return o.Provider.UpdateRouter(ctx, id, p)
}

// AttachSubnet is counted and timed.
func (o *observed) AttachSubnet(ctx context.Context, router, subnet sdn.ID, addr netip.Addr) (err error) {
	defer o.time("AttachSubnet", time.Now(), &err)
	return o.Provider.AttachSubnet(ctx, router, subnet, addr)
}

// DetachSubnet is counted and timed.
func (o *observed) DetachSubnet(ctx context.Context, router, subnet sdn.ID) (err error) {
	defer o.time("DetachSubnet", time.Now(), &err)
	return o.Provider.DetachSubnet(ctx, router, subnet)
}

// DeleteRouter is counted and timed.
func (o *observed) DeleteRouter(ctx context.Context, id sdn.ID) (err error) {
	defer o.time("DeleteRouter", time.Now(), &err)
	return o.Provider.DeleteRouter(ctx, id)
}

// EnsureFloatingIP is counted and timed.
func (o *observed) EnsureFloatingIP(ctx context.Context, spec sdn.FloatingIPSpec) (out sdn.FloatingIP, err error) {
	defer o.time("EnsureFloatingIP", time.Now(), &err)
	return o.Provider.EnsureFloatingIP(ctx, spec)
}

// FloatingIP is counted and timed.
func (o *observed) FloatingIP(ctx context.Context, id sdn.ID) (out sdn.FloatingIP, err error) {
	defer o.time("FloatingIP", time.Now(), &err)
	return o.Provider.FloatingIP(ctx, id)
}

// FindFloatingIPs is counted and timed as one call.
func (o *observed) FindFloatingIPs(ctx context.Context, q sdn.FloatingIPQuery) iter.Seq2[sdn.FloatingIP, error] {
	return stream(ctx, o, "FindFloatingIPs", o.Provider.FindFloatingIPs, q)
}

// UpdateFloatingIP is counted and timed.
func (o *observed) UpdateFloatingIP(
	ctx context.Context, id sdn.ID, p sdn.FloatingIPPatch,
) (out sdn.FloatingIP, err error) {
	defer o.time("UpdateFloatingIP", time.Now(), &err)
	return o.Provider.UpdateFloatingIP(ctx, id, p)
}

// DeleteFloatingIP is counted and timed.
func (o *observed) DeleteFloatingIP(ctx context.Context, id sdn.ID) (err error) {
	defer o.time("DeleteFloatingIP", time.Now(), &err)
	return o.Provider.DeleteFloatingIP(ctx, id)
}

// EnsureForwards is counted and timed.
func (o *observed) EnsureForwards(
	ctx context.Context, floatingIP sdn.ID, forwards []sdn.Forward,
) (out []sdn.Forward, err error) {
	defer o.time("EnsureForwards", time.Now(), &err)
	return o.Provider.EnsureForwards(ctx, floatingIP, forwards)
}

// FindForwards is counted and timed as one call.
func (o *observed) FindForwards(ctx context.Context, q sdn.ForwardQuery) iter.Seq2[sdn.Forward, error] {
	return stream(ctx, o, "FindForwards", o.Provider.FindForwards, q)
}

// DeleteForwards is counted and timed.
func (o *observed) DeleteForwards(ctx context.Context, floatingIP sdn.ID, ids []sdn.ID) (err error) {
	defer o.time("DeleteForwards", time.Now(), &err)
	return o.Provider.DeleteForwards(ctx, floatingIP, ids)
}

// Publish is counted and timed.
func (o *observed) Publish(ctx context.Context, spec sdn.PublicationSpec) (out sdn.Publication, err error) {
	defer o.time("Publish", time.Now(), &err)
	return o.Provider.Publish(ctx, spec)
}

// Publication is counted and timed.
func (o *observed) Publication(ctx context.Context, key sdn.Key) (out sdn.Publication, err error) {
	defer o.time("Publication", time.Now(), &err)
	return o.Provider.Publication(ctx, key)
}

// Unpublish is counted and timed.
func (o *observed) Unpublish(ctx context.Context, key sdn.Key) (err error) {
	defer o.time("Unpublish", time.Now(), &err)
	return o.Provider.Unpublish(ctx, key)
}

// ApplySecurityGroup is counted and timed.
func (o *observed) ApplySecurityGroup(
	ctx context.Context, spec sdn.SecurityGroupSpec,
) (out sdn.SecurityGroup, err error) {
	defer o.time("ApplySecurityGroup", time.Now(), &err)
	return o.Provider.ApplySecurityGroup(ctx, spec)
}

// SecurityGroup is counted and timed.
func (o *observed) SecurityGroup(ctx context.Context, id sdn.ID) (out sdn.SecurityGroup, err error) {
	defer o.time("SecurityGroup", time.Now(), &err)
	return o.Provider.SecurityGroup(ctx, id)
}

// FindSecurityGroups is counted and timed as one call.
func (o *observed) FindSecurityGroups(
	ctx context.Context, q sdn.SecurityGroupQuery,
) iter.Seq2[sdn.SecurityGroup, error] {
	return stream(ctx, o, "FindSecurityGroups", o.Provider.FindSecurityGroups, q)
}

// DeleteSecurityGroup is counted and timed.
func (o *observed) DeleteSecurityGroup(ctx context.Context, id sdn.ID) (err error) {
	defer o.time("DeleteSecurityGroup", time.Now(), &err)
	return o.Provider.DeleteSecurityGroup(ctx, id)
}

// ApplyAddressGroup is counted and timed.
func (o *observed) ApplyAddressGroup(ctx context.Context, spec sdn.AddressGroupSpec) (out sdn.AddressGroup, err error) {
	defer o.time("ApplyAddressGroup", time.Now(), &err)
	return o.Provider.ApplyAddressGroup(ctx, spec)
}

// AddressGroup is counted and timed.
func (o *observed) AddressGroup(ctx context.Context, id sdn.ID) (out sdn.AddressGroup, err error) {
	defer o.time("AddressGroup", time.Now(), &err)
	return o.Provider.AddressGroup(ctx, id)
}

// FindAddressGroups is counted and timed as one call.
func (o *observed) FindAddressGroups(ctx context.Context, q sdn.AddressGroupQuery) iter.Seq2[sdn.AddressGroup, error] {
	return stream(ctx, o, "FindAddressGroups", o.Provider.FindAddressGroups, q)
}

// DeleteAddressGroup is counted and timed.
func (o *observed) DeleteAddressGroup(ctx context.Context, id sdn.ID) (err error) {
	defer o.time("DeleteAddressGroup", time.Now(), &err)
	return o.Provider.DeleteAddressGroup(ctx, id)
}

// ApplyLoadBalancer is counted and timed.
func (o *observed) ApplyLoadBalancer(ctx context.Context, spec sdn.LoadBalancerSpec) (out sdn.LoadBalancer, err error) {
	defer o.time("ApplyLoadBalancer", time.Now(), &err)
	return o.Provider.ApplyLoadBalancer(ctx, spec)
}

// LoadBalancer is counted and timed.
func (o *observed) LoadBalancer(ctx context.Context, id sdn.ID) (out sdn.LoadBalancer, err error) {
	defer o.time("LoadBalancer", time.Now(), &err)
	return o.Provider.LoadBalancer(ctx, id)
}

// FindLoadBalancers is counted and timed as one call.
func (o *observed) FindLoadBalancers(ctx context.Context, q sdn.LoadBalancerQuery) iter.Seq2[sdn.LoadBalancer, error] {
	return stream(ctx, o, "FindLoadBalancers", o.Provider.FindLoadBalancers, q)
}

// DeleteLoadBalancer is counted and timed.
func (o *observed) DeleteLoadBalancer(ctx context.Context, id sdn.ID) (err error) {
	defer o.time("DeleteLoadBalancer", time.Now(), &err)
	return o.Provider.DeleteLoadBalancer(ctx, id)
}

// ApplyQoSPolicy is counted and timed.
func (o *observed) ApplyQoSPolicy(ctx context.Context, spec sdn.QoSPolicySpec) (out sdn.QoSPolicy, err error) {
	defer o.time("ApplyQoSPolicy", time.Now(), &err)
	return o.Provider.ApplyQoSPolicy(ctx, spec)
}

// QoSPolicy is counted and timed.
func (o *observed) QoSPolicy(ctx context.Context, id sdn.ID) (out sdn.QoSPolicy, err error) {
	defer o.time("QoSPolicy", time.Now(), &err)
	return o.Provider.QoSPolicy(ctx, id)
}

// FindQoSPolicies is counted and timed as one call.
func (o *observed) FindQoSPolicies(ctx context.Context, q sdn.QoSPolicyQuery) iter.Seq2[sdn.QoSPolicy, error] {
	return stream(ctx, o, "FindQoSPolicies", o.Provider.FindQoSPolicies, q)
}

// DeleteQoSPolicy is counted and timed.
func (o *observed) DeleteQoSPolicy(ctx context.Context, id sdn.ID) (err error) {
	defer o.time("DeleteQoSPolicy", time.Now(), &err)
	return o.Provider.DeleteQoSPolicy(ctx, id)
}

// Usage is counted and timed.
func (o *observed) Usage(ctx context.Context, project string) (out map[sdn.Noun]sdn.Usage, err error) {
	defer o.time("Usage", time.Now(), &err)
	return o.Provider.Usage(ctx, project)
}

// SetQuota is counted and timed.
func (o *observed) SetQuota(ctx context.Context, project string, limits map[sdn.Noun]int64) (err error) {
	defer o.time("SetQuota", time.Now(), &err)
	return o.Provider.SetQuota(ctx, project, limits)
}
