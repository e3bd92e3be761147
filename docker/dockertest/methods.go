package dockertest

import (
	"context"
	"iter"
	"net/netip"

	"github.com/kuryr/kuryr/sdn"
)

// EnsureNetwork implements sdn.Provider.
func (f *Provider) EnsureNetwork(ctx context.Context, spec sdn.NetworkSpec) (sdn.Network, error) {
	return get(ctx, f, "EnsureNetwork", f.Provider.EnsureNetwork, spec)
}

// Network implements sdn.Provider.
func (f *Provider) Network(ctx context.Context, id sdn.ID) (sdn.Network, error) {
	return get(ctx, f, "Network", f.Provider.Network, id)
}

// FindNetworks implements sdn.Provider.
func (f *Provider) FindNetworks(
	ctx context.Context, q sdn.NetworkQuery,
) iter.Seq2[sdn.Network, error] {
	return find(ctx, f, "FindNetworks", f.Provider.FindNetworks, q)
}

// UpdateNetwork implements sdn.Provider.
func (f *Provider) UpdateNetwork(
	ctx context.Context, id sdn.ID, p sdn.NetworkPatch,
) (sdn.Network, error) {
	return get2(ctx, f, "UpdateNetwork", f.Provider.UpdateNetwork, id, p)
}

// DeleteNetwork implements sdn.Provider.
func (f *Provider) DeleteNetwork(ctx context.Context, id sdn.ID) error {
	return do(ctx, f, "DeleteNetwork", f.Provider.DeleteNetwork, id)
}

// EnsureSubnet implements sdn.Provider.
func (f *Provider) EnsureSubnet(ctx context.Context, spec sdn.SubnetSpec) (sdn.Subnet, error) {
	return get(ctx, f, "EnsureSubnet", f.Provider.EnsureSubnet, spec)
}

// Subnet implements sdn.Provider.
func (f *Provider) Subnet(ctx context.Context, id sdn.ID) (sdn.Subnet, error) {
	return get(ctx, f, "Subnet", f.Provider.Subnet, id)
}

// FindSubnets implements sdn.Provider.
func (f *Provider) FindSubnets(
	ctx context.Context, q sdn.SubnetQuery,
) iter.Seq2[sdn.Subnet, error] {
	return find(ctx, f, "FindSubnets", f.Provider.FindSubnets, q)
}

// UpdateSubnet implements sdn.Provider.
func (f *Provider) UpdateSubnet(
	ctx context.Context, id sdn.ID, p sdn.SubnetPatch,
) (sdn.Subnet, error) {
	return get2(ctx, f, "UpdateSubnet", f.Provider.UpdateSubnet, id, p)
}

// DeleteSubnet implements sdn.Provider.
func (f *Provider) DeleteSubnet(ctx context.Context, id sdn.ID) error {
	return do(ctx, f, "DeleteSubnet", f.Provider.DeleteSubnet, id)
}

// SubnetUsage implements sdn.Provider.
func (f *Provider) SubnetUsage(ctx context.Context, id sdn.ID) (sdn.SubnetUsage, error) {
	return get(ctx, f, "SubnetUsage", f.Provider.SubnetUsage, id)
}

// EnsureSubnetPool implements sdn.Provider.
func (f *Provider) EnsureSubnetPool(
	ctx context.Context, spec sdn.SubnetPoolSpec,
) (sdn.SubnetPool, error) {
	return get(ctx, f, "EnsureSubnetPool", f.Provider.EnsureSubnetPool, spec)
}

// SubnetPool implements sdn.Provider.
func (f *Provider) SubnetPool(ctx context.Context, id sdn.ID) (sdn.SubnetPool, error) {
	return get(ctx, f, "SubnetPool", f.Provider.SubnetPool, id)
}

// FindSubnetPools implements sdn.Provider.
func (f *Provider) FindSubnetPools(
	ctx context.Context, q sdn.SubnetPoolQuery,
) iter.Seq2[sdn.SubnetPool, error] {
	return find(ctx, f, "FindSubnetPools", f.Provider.FindSubnetPools, q)
}

// UpdateSubnetPool implements sdn.Provider.
func (f *Provider) UpdateSubnetPool(
	ctx context.Context, id sdn.ID, p sdn.SubnetPoolPatch,
) (sdn.SubnetPool, error) {
	return get2(ctx, f, "UpdateSubnetPool", f.Provider.UpdateSubnetPool, id, p)
}

// DeleteSubnetPool implements sdn.Provider.
func (f *Provider) DeleteSubnetPool(ctx context.Context, id sdn.ID) error {
	return do(ctx, f, "DeleteSubnetPool", f.Provider.DeleteSubnetPool, id)
}

// EnsurePorts implements sdn.Provider.
func (f *Provider) EnsurePorts(ctx context.Context, specs []sdn.PortSpec) ([]sdn.Port, error) {
	return get(ctx, f, "EnsurePorts", f.Provider.EnsurePorts, specs)
}

// Port implements sdn.Provider.
func (f *Provider) Port(ctx context.Context, id sdn.ID) (sdn.Port, error) {
	return get(ctx, f, "Port", f.Provider.Port, id)
}

// FindPorts implements sdn.Provider.
func (f *Provider) FindPorts(ctx context.Context, q sdn.PortQuery) iter.Seq2[sdn.Port, error] {
	return find(ctx, f, "FindPorts", f.Provider.FindPorts, q)
}

// UpdatePort implements sdn.Provider.
func (f *Provider) UpdatePort(ctx context.Context, id sdn.ID, p sdn.PortPatch) (sdn.Port, error) {
	return get2(ctx, f, "UpdatePort", f.Provider.UpdatePort, id, p)
}

// AddGroups implements sdn.Provider.
func (f *Provider) AddGroups(ctx context.Context, id sdn.ID, groups []sdn.ID) error {
	return do2(ctx, f, "AddGroups", f.Provider.AddGroups, id, groups)
}

// RemoveGroups implements sdn.Provider.
func (f *Provider) RemoveGroups(ctx context.Context, id sdn.ID, groups []sdn.ID) error {
	return do2(ctx, f, "RemoveGroups", f.Provider.RemoveGroups, id, groups)
}

// DeletePorts implements sdn.Provider.
func (f *Provider) DeletePorts(ctx context.Context, ids []sdn.ID) error {
	return do(ctx, f, "DeletePorts", f.Provider.DeletePorts, ids)
}

// DeletePort implements sdn.Provider.
func (f *Provider) DeletePort(ctx context.Context, id sdn.ID, ifRevision int64) error {
	return do2(ctx, f, "DeletePort", f.Provider.DeletePort, id, ifRevision)
}

// WaitPorts implements sdn.Provider.
func (f *Provider) WaitPorts(ctx context.Context, ids []sdn.ID, status sdn.PortStatus) error {
	return do2(ctx, f, "WaitPorts", f.Provider.WaitPorts, ids, status)
}

// EnsureTrunk implements sdn.Provider.
func (f *Provider) EnsureTrunk(ctx context.Context, spec sdn.TrunkSpec) (sdn.Trunk, error) {
	return get(ctx, f, "EnsureTrunk", f.Provider.EnsureTrunk, spec)
}

// Trunk implements sdn.Provider.
func (f *Provider) Trunk(ctx context.Context, id sdn.ID) (sdn.Trunk, error) {
	return get(ctx, f, "Trunk", f.Provider.Trunk, id)
}

// FindTrunks implements sdn.Provider.
func (f *Provider) FindTrunks(ctx context.Context, q sdn.TrunkQuery) iter.Seq2[sdn.Trunk, error] {
	return find(ctx, f, "FindTrunks", f.Provider.FindTrunks, q)
}

// UpdateTrunk implements sdn.Provider.
func (f *Provider) UpdateTrunk(
	ctx context.Context, id sdn.ID, p sdn.TrunkPatch,
) (sdn.Trunk, error) {
	return get2(ctx, f, "UpdateTrunk", f.Provider.UpdateTrunk, id, p)
}

// AttachSubports implements sdn.Provider.
func (f *Provider) AttachSubports(
	ctx context.Context, trunk sdn.ID, subports []sdn.Subport,
) ([]sdn.Subport, error) {
	return get2(ctx, f, "AttachSubports", f.Provider.AttachSubports, trunk, subports)
}

// DetachSubports implements sdn.Provider.
func (f *Provider) DetachSubports(ctx context.Context, trunk sdn.ID, ports []sdn.ID) error {
	return do2(ctx, f, "DetachSubports", f.Provider.DetachSubports, trunk, ports)
}

// DeleteTrunk implements sdn.Provider.
func (f *Provider) DeleteTrunk(ctx context.Context, id sdn.ID) error {
	return do(ctx, f, "DeleteTrunk", f.Provider.DeleteTrunk, id)
}

// EnsureRouter implements sdn.Provider.
func (f *Provider) EnsureRouter(ctx context.Context, spec sdn.RouterSpec) (sdn.Router, error) {
	return get(ctx, f, "EnsureRouter", f.Provider.EnsureRouter, spec)
}

// Router implements sdn.Provider.
func (f *Provider) Router(ctx context.Context, id sdn.ID) (sdn.Router, error) {
	return get(ctx, f, "Router", f.Provider.Router, id)
}

// FindRouters implements sdn.Provider.
func (f *Provider) FindRouters(
	ctx context.Context, q sdn.RouterQuery,
) iter.Seq2[sdn.Router, error] {
	return find(ctx, f, "FindRouters", f.Provider.FindRouters, q)
}

// UpdateRouter implements sdn.Provider.
func (f *Provider) UpdateRouter(
	ctx context.Context, id sdn.ID, p sdn.RouterPatch,
) (sdn.Router, error) {
	return get2(ctx, f, "UpdateRouter", f.Provider.UpdateRouter, id, p)
}

// AttachSubnet implements sdn.Provider.
func (f *Provider) AttachSubnet(ctx context.Context, router, subnet sdn.ID, addr netip.Addr) error {
	return do3(ctx, f, "AttachSubnet", f.Provider.AttachSubnet, router, subnet, addr)
}

// DetachSubnet implements sdn.Provider.
func (f *Provider) DetachSubnet(ctx context.Context, router, subnet sdn.ID) error {
	return do2(ctx, f, "DetachSubnet", f.Provider.DetachSubnet, router, subnet)
}

// DeleteRouter implements sdn.Provider.
func (f *Provider) DeleteRouter(ctx context.Context, id sdn.ID) error {
	return do(ctx, f, "DeleteRouter", f.Provider.DeleteRouter, id)
}

// EnsureFloatingIP implements sdn.Provider.
func (f *Provider) EnsureFloatingIP(
	ctx context.Context, spec sdn.FloatingIPSpec,
) (sdn.FloatingIP, error) {
	return get(ctx, f, "EnsureFloatingIP", f.Provider.EnsureFloatingIP, spec)
}

// FloatingIP implements sdn.Provider.
func (f *Provider) FloatingIP(ctx context.Context, id sdn.ID) (sdn.FloatingIP, error) {
	return get(ctx, f, "FloatingIP", f.Provider.FloatingIP, id)
}

// FindFloatingIPs implements sdn.Provider.
func (f *Provider) FindFloatingIPs(
	ctx context.Context, q sdn.FloatingIPQuery,
) iter.Seq2[sdn.FloatingIP, error] {
	return find(ctx, f, "FindFloatingIPs", f.Provider.FindFloatingIPs, q)
}

// UpdateFloatingIP implements sdn.Provider.
func (f *Provider) UpdateFloatingIP(
	ctx context.Context, id sdn.ID, p sdn.FloatingIPPatch,
) (sdn.FloatingIP, error) {
	return get2(ctx, f, "UpdateFloatingIP", f.Provider.UpdateFloatingIP, id, p)
}

// DeleteFloatingIP implements sdn.Provider.
func (f *Provider) DeleteFloatingIP(ctx context.Context, id sdn.ID) error {
	return do(ctx, f, "DeleteFloatingIP", f.Provider.DeleteFloatingIP, id)
}

// EnsureForwards implements sdn.Provider.
func (f *Provider) EnsureForwards(
	ctx context.Context, floatingIP sdn.ID, forwards []sdn.Forward,
) ([]sdn.Forward, error) {
	return get2(ctx, f, "EnsureForwards", f.Provider.EnsureForwards, floatingIP, forwards)
}

// FindForwards implements sdn.Provider.
func (f *Provider) FindForwards(
	ctx context.Context, q sdn.ForwardQuery,
) iter.Seq2[sdn.Forward, error] {
	return find(ctx, f, "FindForwards", f.Provider.FindForwards, q)
}

// DeleteForwards implements sdn.Provider.
func (f *Provider) DeleteForwards(ctx context.Context, floatingIP sdn.ID, ids []sdn.ID) error {
	return do2(ctx, f, "DeleteForwards", f.Provider.DeleteForwards, floatingIP, ids)
}

// Publish implements sdn.Provider.
func (f *Provider) Publish(ctx context.Context, spec sdn.PublicationSpec) (sdn.Publication, error) {
	return get(ctx, f, "Publish", f.Provider.Publish, spec)
}

// Publication implements sdn.Provider.
func (f *Provider) Publication(ctx context.Context, key sdn.Key) (sdn.Publication, error) {
	return get(ctx, f, "Publication", f.Provider.Publication, key)
}

// Unpublish implements sdn.Provider.
func (f *Provider) Unpublish(ctx context.Context, key sdn.Key) error {
	return do(ctx, f, "Unpublish", f.Provider.Unpublish, key)
}

// ApplySecurityGroup implements sdn.Provider.
func (f *Provider) ApplySecurityGroup(
	ctx context.Context, spec sdn.SecurityGroupSpec,
) (sdn.SecurityGroup, error) {
	return get(ctx, f, "ApplySecurityGroup", f.Provider.ApplySecurityGroup, spec)
}

// SecurityGroup implements sdn.Provider.
func (f *Provider) SecurityGroup(ctx context.Context, id sdn.ID) (sdn.SecurityGroup, error) {
	return get(ctx, f, "SecurityGroup", f.Provider.SecurityGroup, id)
}

// FindSecurityGroups implements sdn.Provider.
func (f *Provider) FindSecurityGroups(
	ctx context.Context, q sdn.SecurityGroupQuery,
) iter.Seq2[sdn.SecurityGroup, error] {
	return find(ctx, f, "FindSecurityGroups", f.Provider.FindSecurityGroups, q)
}

// DeleteSecurityGroup implements sdn.Provider.
func (f *Provider) DeleteSecurityGroup(ctx context.Context, id sdn.ID) error {
	return do(ctx, f, "DeleteSecurityGroup", f.Provider.DeleteSecurityGroup, id)
}

// FindQoSPolicies implements sdn.Provider.
func (f *Provider) FindQoSPolicies(
	ctx context.Context, q sdn.QoSPolicyQuery,
) iter.Seq2[sdn.QoSPolicy, error] {
	return find(ctx, f, "FindQoSPolicies", f.Provider.FindQoSPolicies, q)
}
