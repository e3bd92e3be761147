package rpc

import (
	"context"
	"iter"
	"net/netip"

	"github.com/kuryr/kuryr/sdn"
)

// methods are the methods of a provider that can be called, by name.
func methods(p sdn.Provider) map[string]any {
	return map[string]any{
		"Ping":                p.Ping,
		"EnsureNetwork":       p.EnsureNetwork,
		"Network":             p.Network,
		"FindNetworks":        p.FindNetworks,
		"UpdateNetwork":       p.UpdateNetwork,
		"DeleteNetwork":       p.DeleteNetwork,
		"EnsureSubnet":        p.EnsureSubnet,
		"Subnet":              p.Subnet,
		"FindSubnets":         p.FindSubnets,
		"UpdateSubnet":        p.UpdateSubnet,
		"DeleteSubnet":        p.DeleteSubnet,
		"SubnetUsage":         p.SubnetUsage,
		"EnsureSubnetPool":    p.EnsureSubnetPool,
		"SubnetPool":          p.SubnetPool,
		"FindSubnetPools":     p.FindSubnetPools,
		"UpdateSubnetPool":    p.UpdateSubnetPool,
		"DeleteSubnetPool":    p.DeleteSubnetPool,
		"EnsurePorts":         p.EnsurePorts,
		"Port":                p.Port,
		"FindPorts":           p.FindPorts,
		"UpdatePort":          p.UpdatePort,
		"AddGroups":           p.AddGroups,
		"RemoveGroups":        p.RemoveGroups,
		"DeletePorts":         p.DeletePorts,
		"DeletePort":          p.DeletePort,
		"WaitPorts":           p.WaitPorts,
		"EnsureTrunk":         p.EnsureTrunk,
		"Trunk":               p.Trunk,
		"FindTrunks":          p.FindTrunks,
		"UpdateTrunk":         p.UpdateTrunk,
		"AttachSubports":      p.AttachSubports,
		"DetachSubports":      p.DetachSubports,
		"DeleteTrunk":         p.DeleteTrunk,
		"EnsureRouter":        p.EnsureRouter,
		"Router":              p.Router,
		"FindRouters":         p.FindRouters,
		"UpdateRouter":        p.UpdateRouter,
		"AttachSubnet":        p.AttachSubnet,
		"DetachSubnet":        p.DetachSubnet,
		"DeleteRouter":        p.DeleteRouter,
		"EnsureFloatingIP":    p.EnsureFloatingIP,
		"FloatingIP":          p.FloatingIP,
		"FindFloatingIPs":     p.FindFloatingIPs,
		"UpdateFloatingIP":    p.UpdateFloatingIP,
		"DeleteFloatingIP":    p.DeleteFloatingIP,
		"EnsureForwards":      p.EnsureForwards,
		"FindForwards":        p.FindForwards,
		"DeleteForwards":      p.DeleteForwards,
		"Publish":             p.Publish,
		"Publication":         p.Publication,
		"Unpublish":           p.Unpublish,
		"ApplySecurityGroup":  p.ApplySecurityGroup,
		"SecurityGroup":       p.SecurityGroup,
		"FindSecurityGroups":  p.FindSecurityGroups,
		"DeleteSecurityGroup": p.DeleteSecurityGroup,
		"ApplyAddressGroup":   p.ApplyAddressGroup,
		"AddressGroup":        p.AddressGroup,
		"FindAddressGroups":   p.FindAddressGroups,
		"DeleteAddressGroup":  p.DeleteAddressGroup,
		"ApplyLoadBalancer":   p.ApplyLoadBalancer,
		"LoadBalancer":        p.LoadBalancer,
		"FindLoadBalancers":   p.FindLoadBalancers,
		"DeleteLoadBalancer":  p.DeleteLoadBalancer,
		"ApplyQoSPolicy":      p.ApplyQoSPolicy,
		"QoSPolicy":           p.QoSPolicy,
		"FindQoSPolicies":     p.FindQoSPolicies,
		"DeleteQoSPolicy":     p.DeleteQoSPolicy,
		"Usage":               p.Usage,
		"SetQuota":            p.SetQuota,
	}
}

// The methods of Client are the contract's.

// Ping asks the server, and the server its provider.
func (c *Client) Ping(ctx context.Context) error { return c.do(ctx, "Ping") }

// WaitPorts is as the contract says. Its error is that of the context's end, not that the
// SDN did not answer.
func (c *Client) WaitPorts(ctx context.Context, ids []sdn.ID, status sdn.PortStatus) error {
	err := c.do(ctx, "WaitPorts", ids, status)
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

func (c *Client) EnsureNetwork(ctx context.Context, spec sdn.NetworkSpec) (sdn.Network, error) {
	spec.New = false // a repeat must look for it
	return call[sdn.Network](ctx, c, "EnsureNetwork", spec)
}

func (c *Client) Network(ctx context.Context, id sdn.ID) (sdn.Network, error) {
	return call[sdn.Network](ctx, c, "Network", id)
}

func (c *Client) FindNetworks(
	ctx context.Context, q sdn.NetworkQuery,
) iter.Seq2[sdn.Network, error] {
	return find[sdn.Network](ctx, c, "FindNetworks", q)
}

func (c *Client) UpdateNetwork(
	ctx context.Context, id sdn.ID, p sdn.NetworkPatch,
) (sdn.Network, error) {
	return call[sdn.Network](ctx, c, "UpdateNetwork", id, p)
}

func (c *Client) DeleteNetwork(ctx context.Context, id sdn.ID) error {
	return c.do(ctx, "DeleteNetwork", id)
}

func (c *Client) EnsureSubnet(ctx context.Context, spec sdn.SubnetSpec) (sdn.Subnet, error) {
	return call[sdn.Subnet](ctx, c, "EnsureSubnet", spec)
}

func (c *Client) Subnet(ctx context.Context, id sdn.ID) (sdn.Subnet, error) {
	return call[sdn.Subnet](ctx, c, "Subnet", id)
}

func (c *Client) FindSubnets(ctx context.Context, q sdn.SubnetQuery) iter.Seq2[sdn.Subnet, error] {
	return find[sdn.Subnet](ctx, c, "FindSubnets", q)
}

func (c *Client) UpdateSubnet(
	ctx context.Context, id sdn.ID, p sdn.SubnetPatch,
) (sdn.Subnet, error) {
	return call[sdn.Subnet](ctx, c, "UpdateSubnet", id, p)
}

func (c *Client) DeleteSubnet(ctx context.Context, id sdn.ID) error {
	return c.do(ctx, "DeleteSubnet", id)
}

func (c *Client) SubnetUsage(ctx context.Context, id sdn.ID) (sdn.SubnetUsage, error) {
	return call[sdn.SubnetUsage](ctx, c, "SubnetUsage", id)
}

func (c *Client) EnsureSubnetPool(
	ctx context.Context, spec sdn.SubnetPoolSpec,
) (sdn.SubnetPool, error) {
	spec.New = false // a repeat must look for it
	return call[sdn.SubnetPool](ctx, c, "EnsureSubnetPool", spec)
}

func (c *Client) SubnetPool(ctx context.Context, id sdn.ID) (sdn.SubnetPool, error) {
	return call[sdn.SubnetPool](ctx, c, "SubnetPool", id)
}

func (c *Client) FindSubnetPools(
	ctx context.Context, q sdn.SubnetPoolQuery,
) iter.Seq2[sdn.SubnetPool, error] {
	return find[sdn.SubnetPool](ctx, c, "FindSubnetPools", q)
}

func (c *Client) UpdateSubnetPool(
	ctx context.Context, id sdn.ID, p sdn.SubnetPoolPatch,
) (sdn.SubnetPool, error) {
	return call[sdn.SubnetPool](ctx, c, "UpdateSubnetPool", id, p)
}

func (c *Client) DeleteSubnetPool(ctx context.Context, id sdn.ID) error {
	return c.do(ctx, "DeleteSubnetPool", id)
}

func (c *Client) EnsurePorts(ctx context.Context, specs []sdn.PortSpec) ([]sdn.Port, error) {
	return call[[]sdn.Port](ctx, c, "EnsurePorts", specs)
}

func (c *Client) Port(ctx context.Context, id sdn.ID) (sdn.Port, error) {
	return call[sdn.Port](ctx, c, "Port", id)
}

func (c *Client) FindPorts(ctx context.Context, q sdn.PortQuery) iter.Seq2[sdn.Port, error] {
	return find[sdn.Port](ctx, c, "FindPorts", q)
}

func (c *Client) UpdatePort(ctx context.Context, id sdn.ID, p sdn.PortPatch) (sdn.Port, error) {
	return call[sdn.Port](ctx, c, "UpdatePort", id, p)
}

func (c *Client) AddGroups(ctx context.Context, id sdn.ID, groups []sdn.ID) error {
	return c.do(ctx, "AddGroups", id, groups)
}

func (c *Client) RemoveGroups(ctx context.Context, id sdn.ID, groups []sdn.ID) error {
	return c.do(ctx, "RemoveGroups", id, groups)
}

func (c *Client) DeletePorts(ctx context.Context, ids []sdn.ID) error {
	return c.do(ctx, "DeletePorts", ids)
}

func (c *Client) DeletePort(ctx context.Context, id sdn.ID, ifRevision int64) error {
	return c.do(ctx, "DeletePort", id, ifRevision)
}

func (c *Client) EnsureTrunk(ctx context.Context, spec sdn.TrunkSpec) (sdn.Trunk, error) {
	return call[sdn.Trunk](ctx, c, "EnsureTrunk", spec)
}

func (c *Client) Trunk(ctx context.Context, id sdn.ID) (sdn.Trunk, error) {
	return call[sdn.Trunk](ctx, c, "Trunk", id)
}

func (c *Client) FindTrunks(ctx context.Context, q sdn.TrunkQuery) iter.Seq2[sdn.Trunk, error] {
	return find[sdn.Trunk](ctx, c, "FindTrunks", q)
}

func (c *Client) UpdateTrunk(ctx context.Context, id sdn.ID, p sdn.TrunkPatch) (sdn.Trunk, error) {
	return call[sdn.Trunk](ctx, c, "UpdateTrunk", id, p)
}

func (c *Client) AttachSubports(
	ctx context.Context, trunk sdn.ID, subports []sdn.Subport,
) ([]sdn.Subport, error) {
	return call[[]sdn.Subport](ctx, c, "AttachSubports", trunk, subports)
}

func (c *Client) DetachSubports(ctx context.Context, trunk sdn.ID, ports []sdn.ID) error {
	return c.do(ctx, "DetachSubports", trunk, ports)
}

func (c *Client) DeleteTrunk(ctx context.Context, id sdn.ID) error {
	return c.do(ctx, "DeleteTrunk", id)
}

func (c *Client) EnsureRouter(ctx context.Context, spec sdn.RouterSpec) (sdn.Router, error) {
	spec.New = false // a repeat must look for it
	return call[sdn.Router](ctx, c, "EnsureRouter", spec)
}

func (c *Client) Router(ctx context.Context, id sdn.ID) (sdn.Router, error) {
	return call[sdn.Router](ctx, c, "Router", id)
}

func (c *Client) FindRouters(ctx context.Context, q sdn.RouterQuery) iter.Seq2[sdn.Router, error] {
	return find[sdn.Router](ctx, c, "FindRouters", q)
}

func (c *Client) UpdateRouter(
	ctx context.Context, id sdn.ID, p sdn.RouterPatch,
) (sdn.Router, error) {
	return call[sdn.Router](ctx, c, "UpdateRouter", id, p)
}

func (c *Client) AttachSubnet(ctx context.Context, router, subnet sdn.ID, addr netip.Addr) error {
	return c.do(ctx, "AttachSubnet", router, subnet, addr)
}

func (c *Client) DetachSubnet(ctx context.Context, router, subnet sdn.ID) error {
	return c.do(ctx, "DetachSubnet", router, subnet)
}

func (c *Client) DeleteRouter(ctx context.Context, id sdn.ID) error {
	return c.do(ctx, "DeleteRouter", id)
}

func (c *Client) EnsureFloatingIP(
	ctx context.Context, spec sdn.FloatingIPSpec,
) (sdn.FloatingIP, error) {
	return call[sdn.FloatingIP](ctx, c, "EnsureFloatingIP", spec)
}

func (c *Client) FloatingIP(ctx context.Context, id sdn.ID) (sdn.FloatingIP, error) {
	return call[sdn.FloatingIP](ctx, c, "FloatingIP", id)
}

func (c *Client) FindFloatingIPs(
	ctx context.Context, q sdn.FloatingIPQuery,
) iter.Seq2[sdn.FloatingIP, error] {
	return find[sdn.FloatingIP](ctx, c, "FindFloatingIPs", q)
}

func (c *Client) UpdateFloatingIP(
	ctx context.Context, id sdn.ID, p sdn.FloatingIPPatch,
) (sdn.FloatingIP, error) {
	return call[sdn.FloatingIP](ctx, c, "UpdateFloatingIP", id, p)
}

func (c *Client) DeleteFloatingIP(ctx context.Context, id sdn.ID) error {
	return c.do(ctx, "DeleteFloatingIP", id)
}

func (c *Client) EnsureForwards(
	ctx context.Context, floatingIP sdn.ID, forwards []sdn.Forward,
) ([]sdn.Forward, error) {
	return call[[]sdn.Forward](ctx, c, "EnsureForwards", floatingIP, forwards)
}

func (c *Client) FindForwards(
	ctx context.Context, q sdn.ForwardQuery,
) iter.Seq2[sdn.Forward, error] {
	return find[sdn.Forward](ctx, c, "FindForwards", q)
}

func (c *Client) DeleteForwards(ctx context.Context, floatingIP sdn.ID, ids []sdn.ID) error {
	return c.do(ctx, "DeleteForwards", floatingIP, ids)
}

func (c *Client) Publish(ctx context.Context, spec sdn.PublicationSpec) (sdn.Publication, error) {
	return call[sdn.Publication](ctx, c, "Publish", spec)
}

func (c *Client) Publication(ctx context.Context, key sdn.Key) (sdn.Publication, error) {
	return call[sdn.Publication](ctx, c, "Publication", key)
}

func (c *Client) Unpublish(ctx context.Context, key sdn.Key) error {
	return c.do(ctx, "Unpublish", key)
}

func (c *Client) ApplySecurityGroup(
	ctx context.Context, spec sdn.SecurityGroupSpec,
) (sdn.SecurityGroup, error) {
	return call[sdn.SecurityGroup](ctx, c, "ApplySecurityGroup", spec)
}

func (c *Client) SecurityGroup(ctx context.Context, id sdn.ID) (sdn.SecurityGroup, error) {
	return call[sdn.SecurityGroup](ctx, c, "SecurityGroup", id)
}

func (c *Client) FindSecurityGroups(
	ctx context.Context, q sdn.SecurityGroupQuery,
) iter.Seq2[sdn.SecurityGroup, error] {
	return find[sdn.SecurityGroup](ctx, c, "FindSecurityGroups", q)
}

func (c *Client) DeleteSecurityGroup(ctx context.Context, id sdn.ID) error {
	return c.do(ctx, "DeleteSecurityGroup", id)
}

func (c *Client) ApplyAddressGroup(
	ctx context.Context, spec sdn.AddressGroupSpec,
) (sdn.AddressGroup, error) {
	return call[sdn.AddressGroup](ctx, c, "ApplyAddressGroup", spec)
}

func (c *Client) AddressGroup(ctx context.Context, id sdn.ID) (sdn.AddressGroup, error) {
	return call[sdn.AddressGroup](ctx, c, "AddressGroup", id)
}

func (c *Client) FindAddressGroups(
	ctx context.Context, q sdn.AddressGroupQuery,
) iter.Seq2[sdn.AddressGroup, error] {
	return find[sdn.AddressGroup](ctx, c, "FindAddressGroups", q)
}

func (c *Client) DeleteAddressGroup(ctx context.Context, id sdn.ID) error {
	return c.do(ctx, "DeleteAddressGroup", id)
}

func (c *Client) ApplyLoadBalancer(
	ctx context.Context, spec sdn.LoadBalancerSpec,
) (sdn.LoadBalancer, error) {
	return call[sdn.LoadBalancer](ctx, c, "ApplyLoadBalancer", spec)
}

func (c *Client) LoadBalancer(ctx context.Context, id sdn.ID) (sdn.LoadBalancer, error) {
	return call[sdn.LoadBalancer](ctx, c, "LoadBalancer", id)
}

func (c *Client) FindLoadBalancers(
	ctx context.Context, q sdn.LoadBalancerQuery,
) iter.Seq2[sdn.LoadBalancer, error] {
	return find[sdn.LoadBalancer](ctx, c, "FindLoadBalancers", q)
}

func (c *Client) DeleteLoadBalancer(ctx context.Context, id sdn.ID) error {
	return c.do(ctx, "DeleteLoadBalancer", id)
}

func (c *Client) ApplyQoSPolicy(ctx context.Context, s sdn.QoSPolicySpec) (sdn.QoSPolicy, error) {
	return call[sdn.QoSPolicy](ctx, c, "ApplyQoSPolicy", s)
}

func (c *Client) QoSPolicy(ctx context.Context, id sdn.ID) (sdn.QoSPolicy, error) {
	return call[sdn.QoSPolicy](ctx, c, "QoSPolicy", id)
}

func (c *Client) FindQoSPolicies(
	ctx context.Context, q sdn.QoSPolicyQuery,
) iter.Seq2[sdn.QoSPolicy, error] {
	return find[sdn.QoSPolicy](ctx, c, "FindQoSPolicies", q)
}

func (c *Client) DeleteQoSPolicy(ctx context.Context, id sdn.ID) error {
	return c.do(ctx, "DeleteQoSPolicy", id)
}

func (c *Client) Usage(ctx context.Context, project string) (map[sdn.Noun]sdn.Usage, error) {
	return call[map[sdn.Noun]sdn.Usage](ctx, c, "Usage", project)
}

func (c *Client) SetQuota(ctx context.Context, project string, limits map[sdn.Noun]int64) error {
	return c.do(ctx, "SetQuota", project, limits)
}
