package dockertest

import (
	"context"
	"iter"
	"net/netip"

	"github.com/kuryr/kuryr/sdn"
)

// The methods of sdn.Provider that the Docker front end and nested binding call.

func (f *Provider) EnsureNetwork(ctx context.Context, spec sdn.NetworkSpec) (sdn.Network, error) {
	return get(ctx, f, "EnsureNetwork", f.Provider.EnsureNetwork, spec)
}

func (f *Provider) Network(ctx context.Context, id sdn.ID) (sdn.Network, error) {
	return get(ctx, f, "Network", f.Provider.Network, id)
}

func (f *Provider) FindNetworks(
	ctx context.Context, q sdn.NetworkQuery,
) iter.Seq2[sdn.Network, error] {
	return find(ctx, f, "FindNetworks", f.Provider.FindNetworks, q)
}

func (f *Provider) UpdateNetwork(
	ctx context.Context, id sdn.ID, p sdn.NetworkPatch,
) (sdn.Network, error) {
	return get2(ctx, f, "UpdateNetwork", f.Provider.UpdateNetwork, id, p)
}

func (f *Provider) DeleteNetwork(ctx context.Context, id sdn.ID) error {
	return do(ctx, f, "DeleteNetwork", f.Provider.DeleteNetwork, id)
}

func (f *Provider) EnsureSubnet(ctx context.Context, spec sdn.SubnetSpec) (sdn.Subnet, error) {
	return get(ctx, f, "EnsureSubnet", f.Provider.EnsureSubnet, spec)
}

func (f *Provider) Subnet(ctx context.Context, id sdn.ID) (sdn.Subnet, error) {
	return get(ctx, f, "Subnet", f.Provider.Subnet, id)
}

func (f *Provider) FindSubnets(
	ctx context.Context, q sdn.SubnetQuery,
) iter.Seq2[sdn.Subnet, error] {
	return find(ctx, f, "FindSubnets", f.Provider.FindSubnets, q)
}

func (f *Provider) UpdateSubnet(
	ctx context.Context, id sdn.ID, p sdn.SubnetPatch,
) (sdn.Subnet, error) {
	return get2(ctx, f, "UpdateSubnet", f.Provider.UpdateSubnet, id, p)
}

func (f *Provider) DeleteSubnet(ctx context.Context, id sdn.ID) error {
	return do(ctx, f, "DeleteSubnet", f.Provider.DeleteSubnet, id)
}

func (f *Provider) EnsureSubnetPool(
	ctx context.Context, spec sdn.SubnetPoolSpec,
) (sdn.SubnetPool, error) {
	return get(ctx, f, "EnsureSubnetPool", f.Provider.EnsureSubnetPool, spec)
}

func (f *Provider) SubnetPool(ctx context.Context, id sdn.ID) (sdn.SubnetPool, error) {
	return get(ctx, f, "SubnetPool", f.Provider.SubnetPool, id)
}

func (f *Provider) FindSubnetPools(
	ctx context.Context, q sdn.SubnetPoolQuery,
) iter.Seq2[sdn.SubnetPool, error] {
	return find(ctx, f, "FindSubnetPools", f.Provider.FindSubnetPools, q)
}

func (f *Provider) UpdateSubnetPool(
	ctx context.Context, id sdn.ID, p sdn.SubnetPoolPatch,
) (sdn.SubnetPool, error) {
	return get2(ctx, f, "UpdateSubnetPool", f.Provider.UpdateSubnetPool, id, p)
}

func (f *Provider) DeleteSubnetPool(ctx context.Context, id sdn.ID) error {
	return do(ctx, f, "DeleteSubnetPool", f.Provider.DeleteSubnetPool, id)
}

func (f *Provider) EnsurePorts(ctx context.Context, specs []sdn.PortSpec) ([]sdn.Port, error) {
	return get(ctx, f, "EnsurePorts", f.Provider.EnsurePorts, specs)
}

func (f *Provider) Port(ctx context.Context, id sdn.ID) (sdn.Port, error) {
	return get(ctx, f, "Port", f.Provider.Port, id)
}

func (f *Provider) FindPorts(ctx context.Context, q sdn.PortQuery) iter.Seq2[sdn.Port, error] {
	return find(ctx, f, "FindPorts", f.Provider.FindPorts, q)
}

func (f *Provider) UpdatePort(ctx context.Context, id sdn.ID, p sdn.PortPatch) (sdn.Port, error) {
	return get2(ctx, f, "UpdatePort", f.Provider.UpdatePort, id, p)
}

func (f *Provider) AddGroups(ctx context.Context, id sdn.ID, groups []sdn.ID) error {
	return do2(ctx, f, "AddGroups", f.Provider.AddGroups, id, groups)
}

func (f *Provider) RemoveGroups(ctx context.Context, id sdn.ID, groups []sdn.ID) error {
	return do2(ctx, f, "RemoveGroups", f.Provider.RemoveGroups, id, groups)
}

func (f *Provider) DeletePorts(ctx context.Context, ids []sdn.ID) error {
	return do(ctx, f, "DeletePorts", f.Provider.DeletePorts, ids)
}

func (f *Provider) DeletePort(ctx context.Context, id sdn.ID, ifRevision int64) error {
	return do2(ctx, f, "DeletePort", f.Provider.DeletePort, id, ifRevision)
}

func (f *Provider) WaitPorts(ctx context.Context, ids []sdn.ID, status sdn.PortStatus) error {
	return do2(ctx, f, "WaitPorts", f.Provider.WaitPorts, ids, status)
}

func (f *Provider) EnsureTrunk(ctx context.Context, spec sdn.TrunkSpec) (sdn.Trunk, error) {
	return get(ctx, f, "EnsureTrunk", f.Provider.EnsureTrunk, spec)
}

func (f *Provider) Trunk(ctx context.Context, id sdn.ID) (sdn.Trunk, error) {
	return get(ctx, f, "Trunk", f.Provider.Trunk, id)
}

func (f *Provider) FindTrunks(ctx context.Context, q sdn.TrunkQuery) iter.Seq2[sdn.Trunk, error] {
	return find(ctx, f, "FindTrunks", f.Provider.FindTrunks, q)
}

func (f *Provider) UpdateTrunk(
	ctx context.Context, id sdn.ID, p sdn.TrunkPatch,
) (sdn.Trunk, error) {
	return get2(ctx, f, "UpdateTrunk", f.Provider.UpdateTrunk, id, p)
}

func (f *Provider) AttachSubports(
	ctx context.Context, trunk sdn.ID, subports []sdn.Subport,
) ([]sdn.Subport, error) {
	return get2(ctx, f, "AttachSubports", f.Provider.AttachSubports, trunk, subports)
}

func (f *Provider) DetachSubports(ctx context.Context, trunk sdn.ID, ports []sdn.ID) error {
	return do2(ctx, f, "DetachSubports", f.Provider.DetachSubports, trunk, ports)
}

func (f *Provider) DeleteTrunk(ctx context.Context, id sdn.ID) error {
	return do(ctx, f, "DeleteTrunk", f.Provider.DeleteTrunk, id)
}

func (f *Provider) EnsureRouter(ctx context.Context, spec sdn.RouterSpec) (sdn.Router, error) {
	return get(ctx, f, "EnsureRouter", f.Provider.EnsureRouter, spec)
}

func (f *Provider) Router(ctx context.Context, id sdn.ID) (sdn.Router, error) {
	return get(ctx, f, "Router", f.Provider.Router, id)
}

func (f *Provider) FindRouters(
	ctx context.Context, q sdn.RouterQuery,
) iter.Seq2[sdn.Router, error] {
	return find(ctx, f, "FindRouters", f.Provider.FindRouters, q)
}

func (f *Provider) AttachSubnet(ctx context.Context, router, subnet sdn.ID, addr netip.Addr) error {
	return do3(ctx, f, "AttachSubnet", f.Provider.AttachSubnet, router, subnet, addr)
}

func (f *Provider) DetachSubnet(ctx context.Context, router, subnet sdn.ID) error {
	return do2(ctx, f, "DetachSubnet", f.Provider.DetachSubnet, router, subnet)
}

func (f *Provider) DeleteRouter(ctx context.Context, id sdn.ID) error {
	return do(ctx, f, "DeleteRouter", f.Provider.DeleteRouter, id)
}

func (f *Provider) EnsureFloatingIP(
	ctx context.Context, spec sdn.FloatingIPSpec,
) (sdn.FloatingIP, error) {
	return get(ctx, f, "EnsureFloatingIP", f.Provider.EnsureFloatingIP, spec)
}

func (f *Provider) FloatingIP(ctx context.Context, id sdn.ID) (sdn.FloatingIP, error) {
	return get(ctx, f, "FloatingIP", f.Provider.FloatingIP, id)
}

func (f *Provider) FindFloatingIPs(
	ctx context.Context, q sdn.FloatingIPQuery,
) iter.Seq2[sdn.FloatingIP, error] {
	return find(ctx, f, "FindFloatingIPs", f.Provider.FindFloatingIPs, q)
}

func (f *Provider) UpdateFloatingIP(
	ctx context.Context, id sdn.ID, p sdn.FloatingIPPatch,
) (sdn.FloatingIP, error) {
	return get2(ctx, f, "UpdateFloatingIP", f.Provider.UpdateFloatingIP, id, p)
}

func (f *Provider) DeleteFloatingIP(ctx context.Context, id sdn.ID) error {
	return do(ctx, f, "DeleteFloatingIP", f.Provider.DeleteFloatingIP, id)
}

func (f *Provider) EnsureForwards(
	ctx context.Context, floatingIP sdn.ID, forwards []sdn.Forward,
) ([]sdn.Forward, error) {
	return get2(ctx, f, "EnsureForwards", f.Provider.EnsureForwards, floatingIP, forwards)
}

func (f *Provider) FindForwards(
	ctx context.Context, q sdn.ForwardQuery,
) iter.Seq2[sdn.Forward, error] {
	return find(ctx, f, "FindForwards", f.Provider.FindForwards, q)
}

func (f *Provider) DeleteForwards(ctx context.Context, floatingIP sdn.ID, ids []sdn.ID) error {
	return do2(ctx, f, "DeleteForwards", f.Provider.DeleteForwards, floatingIP, ids)
}

func (f *Provider) Publish(ctx context.Context, spec sdn.PublicationSpec) (sdn.Publication, error) {
	return get(ctx, f, "Publish", f.Provider.Publish, spec)
}

func (f *Provider) Publication(ctx context.Context, key sdn.Key) (sdn.Publication, error) {
	return get(ctx, f, "Publication", f.Provider.Publication, key)
}

func (f *Provider) Unpublish(ctx context.Context, key sdn.Key) error {
	return do(ctx, f, "Unpublish", f.Provider.Unpublish, key)
}

func (f *Provider) ApplySecurityGroup(
	ctx context.Context, spec sdn.SecurityGroupSpec,
) (sdn.SecurityGroup, error) {
	return get(ctx, f, "ApplySecurityGroup", f.Provider.ApplySecurityGroup, spec)
}

func (f *Provider) FindSecurityGroups(
	ctx context.Context, q sdn.SecurityGroupQuery,
) iter.Seq2[sdn.SecurityGroup, error] {
	return find(ctx, f, "FindSecurityGroups", f.Provider.FindSecurityGroups, q)
}

func (f *Provider) DeleteSecurityGroup(ctx context.Context, id sdn.ID) error {
	return do(ctx, f, "DeleteSecurityGroup", f.Provider.DeleteSecurityGroup, id)
}

func (f *Provider) FindQoSPolicies(
	ctx context.Context, q sdn.QoSPolicyQuery,
) iter.Seq2[sdn.QoSPolicy, error] {
	return find(ctx, f, "FindQoSPolicies", f.Provider.FindQoSPolicies, q)
}
