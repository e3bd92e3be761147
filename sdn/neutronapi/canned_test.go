package neutronapi

import (
	"context"
	"iter"
	"net/netip"
	"slices"
	"strconv"

	"github.com/kuryr/kuryr/sdn"
)

// canned is a provider that has one object of each noun, by any id, and forgets what it is told: what is fuzzed is how requests are read.
type canned struct {
	sdn.NoLoadBalancers
}

func one[T any](v T) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) { yield(v, nil) }
}

func cannedMeta() sdn.Meta { return sdn.Meta{ID: "one", Revision: 1, Base: sdn.Base{Project: "p"}} }

func cannedNetwork() sdn.Network {
	return sdn.Network{Meta: cannedMeta(), MTU: 1500, Subnets: []sdn.ID{"one"}}
}

func cannedSubnet() sdn.Subnet {
	return sdn.Subnet{Meta: cannedMeta(), Network: "one", CIDR: netip.MustParsePrefix("10.0.0.0/24"), Gateway: netip.MustParseAddr("10.0.0.1")}
}

func cannedPool() sdn.SubnetPool {
	return sdn.SubnetPool{Meta: cannedMeta(), Prefixes: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, DefaultLen: 24, MinLen: 8, MaxLen: 32}
}

func cannedPort() sdn.Port {
	return sdn.Port{Meta: cannedMeta(), Network: "one", MAC: []byte{2, 0, 0, 0, 0, 1}, Addresses: []sdn.Address{{Subnet: "one", Addr: netip.MustParseAddr("10.0.0.5")}}}
}

func cannedRouter() sdn.Router {
	return sdn.Router{Meta: cannedMeta(), Interfaces: []sdn.RouterInterface{{Subnet: "one", Port: "one", Addr: netip.MustParseAddr("10.0.0.1")}}}
}

func cannedFloatingIP() sdn.FloatingIP {
	return sdn.FloatingIP{Meta: cannedMeta(), Network: "one", Address: netip.MustParseAddr("192.0.2.1")}
}

func cannedGroup() sdn.SecurityGroup {
	return sdn.SecurityGroup{Meta: cannedMeta(), Rules: []sdn.Rule{{ID: "one", Direction: sdn.Ingress}}}
}

func (canned) Installation() string { return "x" }
func (canned) Capabilities() sdn.Capabilities {
	return sdn.Capabilities{ExternalNetwork: "one", MaxTagLen: 255, TagsAtCreate: true, HostBinding: true, SubnetPools: true, Trunks: true, Routers: true, FloatingIPs: true, Forwards: true, HostAddresses: true,
		SecurityGroups: true, AddressGroups: true, Stateless: true, RemoteGroups: true, QoS: true, Quotas: true, Ordered: true}
}
func (canned) Ping(context.Context) error { return nil }
func (canned) Close() error               { return nil }

func (canned) EnsureNetwork(context.Context, sdn.NetworkSpec) (sdn.Network, error) {
	return cannedNetwork(), nil
}
func (canned) Network(context.Context, sdn.ID) (sdn.Network, error) { return cannedNetwork(), nil }
func (canned) FindNetworks(context.Context, sdn.NetworkQuery) iter.Seq2[sdn.Network, error] {
	return one(cannedNetwork())
}
func (canned) UpdateNetwork(context.Context, sdn.ID, sdn.NetworkPatch) (sdn.Network, error) {
	return cannedNetwork(), nil
}
func (canned) DeleteNetwork(context.Context, sdn.ID) error { return nil }

func (canned) EnsureSubnet(context.Context, sdn.SubnetSpec) (sdn.Subnet, error) {
	return cannedSubnet(), nil
}
func (canned) Subnet(context.Context, sdn.ID) (sdn.Subnet, error) { return cannedSubnet(), nil }
func (canned) FindSubnets(context.Context, sdn.SubnetQuery) iter.Seq2[sdn.Subnet, error] {
	return one(cannedSubnet())
}
func (canned) UpdateSubnet(context.Context, sdn.ID, sdn.SubnetPatch) (sdn.Subnet, error) {
	return cannedSubnet(), nil
}
func (canned) DeleteSubnet(context.Context, sdn.ID) error { return nil }
func (canned) SubnetUsage(context.Context, sdn.ID) (sdn.SubnetUsage, error) {
	return sdn.SubnetUsage{}, nil
}

func (canned) EnsureSubnetPool(context.Context, sdn.SubnetPoolSpec) (sdn.SubnetPool, error) {
	return cannedPool(), nil
}
func (canned) SubnetPool(context.Context, sdn.ID) (sdn.SubnetPool, error) { return cannedPool(), nil }
func (canned) FindSubnetPools(context.Context, sdn.SubnetPoolQuery) iter.Seq2[sdn.SubnetPool, error] {
	return one(cannedPool())
}
func (canned) UpdateSubnetPool(context.Context, sdn.ID, sdn.SubnetPoolPatch) (sdn.SubnetPool, error) {
	return cannedPool(), nil
}
func (canned) DeleteSubnetPool(context.Context, sdn.ID) error { return nil }

func (canned) EnsurePorts(_ context.Context, specs []sdn.PortSpec) (all []sdn.Port, err error) {
	for range specs {
		all = append(all, cannedPort())
	}
	return all, nil
}
func (canned) Port(context.Context, sdn.ID) (sdn.Port, error) { return cannedPort(), nil }
func (canned) FindPorts(context.Context, sdn.PortQuery) iter.Seq2[sdn.Port, error] {
	return one(cannedPort())
}
func (canned) UpdatePort(context.Context, sdn.ID, sdn.PortPatch) (sdn.Port, error) {
	return cannedPort(), nil
}
func (canned) AddGroups(context.Context, sdn.ID, []sdn.ID) error         { return nil }
func (canned) RemoveGroups(context.Context, sdn.ID, []sdn.ID) error      { return nil }
func (canned) DeletePorts(context.Context, []sdn.ID) error               { return nil }
func (canned) DeletePort(context.Context, sdn.ID, int64) error           { return nil }
func (canned) WaitPorts(context.Context, []sdn.ID, sdn.PortStatus) error { return nil }

func (canned) EnsureRouter(context.Context, sdn.RouterSpec) (sdn.Router, error) {
	return cannedRouter(), nil
}
func (canned) Router(context.Context, sdn.ID) (sdn.Router, error) { return cannedRouter(), nil }
func (canned) FindRouters(context.Context, sdn.RouterQuery) iter.Seq2[sdn.Router, error] {
	return one(cannedRouter())
}
func (canned) UpdateRouter(context.Context, sdn.ID, sdn.RouterPatch) (sdn.Router, error) {
	return cannedRouter(), nil
}
func (canned) AttachSubnet(context.Context, sdn.ID, sdn.ID, netip.Addr) error { return nil }
func (canned) DetachSubnet(context.Context, sdn.ID, sdn.ID) error             { return nil }
func (canned) DeleteRouter(context.Context, sdn.ID) error                     { return nil }

func (canned) EnsureFloatingIP(context.Context, sdn.FloatingIPSpec) (sdn.FloatingIP, error) {
	return cannedFloatingIP(), nil
}
func (canned) FloatingIP(context.Context, sdn.ID) (sdn.FloatingIP, error) {
	return cannedFloatingIP(), nil
}
func (canned) FindFloatingIPs(context.Context, sdn.FloatingIPQuery) iter.Seq2[sdn.FloatingIP, error] {
	return one(cannedFloatingIP())
}
func (canned) UpdateFloatingIP(context.Context, sdn.ID, sdn.FloatingIPPatch) (sdn.FloatingIP, error) {
	return cannedFloatingIP(), nil
}
func (canned) DeleteFloatingIP(context.Context, sdn.ID) error { return nil }
func (canned) EnsureForwards(_ context.Context, _ sdn.ID, forwards []sdn.Forward) ([]sdn.Forward, error) {
	return forwards, nil
}
func (canned) FindForwards(context.Context, sdn.ForwardQuery) iter.Seq2[sdn.Forward, error] {
	return one(sdn.Forward{ID: "one", Protocol: sdn.TCP})
}
func (canned) DeleteForwards(context.Context, sdn.ID, []sdn.ID) error { return nil }

func (canned) Publish(_ context.Context, spec sdn.PublicationSpec) (sdn.Publication, error) {
	return sdn.Publication{Key: spec.Key, Ports: spec.Ports}, nil
}
func (canned) Publication(_ context.Context, key sdn.Key) (sdn.Publication, error) {
	return sdn.Publication{Key: key}, nil
}
func (canned) Unpublish(context.Context, sdn.Key) error { return nil }

func (canned) ApplySecurityGroup(_ context.Context, spec sdn.SecurityGroupSpec) (sdn.SecurityGroup, error) {
	rules := slices.Clone(spec.Rules)
	for i := range rules {
		rules[i].ID = sdn.ID(strconv.Itoa(i))
	}
	return sdn.SecurityGroup{Meta: cannedMeta(), Rules: rules}, nil
}
func (canned) SecurityGroup(context.Context, sdn.ID) (sdn.SecurityGroup, error) {
	return cannedGroup(), nil
}
func (canned) FindSecurityGroups(context.Context, sdn.SecurityGroupQuery) iter.Seq2[sdn.SecurityGroup, error] {
	return one(cannedGroup())
}
func (canned) DeleteSecurityGroup(context.Context, sdn.ID) error { return nil }
func (canned) ApplyAddressGroup(context.Context, sdn.AddressGroupSpec) (sdn.AddressGroup, error) {
	return sdn.AddressGroup{Meta: cannedMeta()}, nil
}
func (canned) AddressGroup(context.Context, sdn.ID) (sdn.AddressGroup, error) {
	return sdn.AddressGroup{Meta: cannedMeta()}, nil
}
func (canned) FindAddressGroups(context.Context, sdn.AddressGroupQuery) iter.Seq2[sdn.AddressGroup, error] {
	return one(sdn.AddressGroup{Meta: cannedMeta()})
}
func (canned) DeleteAddressGroup(context.Context, sdn.ID) error { return nil }

func (canned) EnsureTrunk(context.Context, sdn.TrunkSpec) (sdn.Trunk, error) {
	return sdn.Trunk{Meta: cannedMeta(), Parent: "one"}, nil
}
func (canned) Trunk(context.Context, sdn.ID) (sdn.Trunk, error) {
	return sdn.Trunk{Meta: cannedMeta(), Parent: "one"}, nil
}
func (canned) FindTrunks(context.Context, sdn.TrunkQuery) iter.Seq2[sdn.Trunk, error] {
	return one(sdn.Trunk{Meta: cannedMeta(), Parent: "one"})
}
func (canned) UpdateTrunk(context.Context, sdn.ID, sdn.TrunkPatch) (sdn.Trunk, error) {
	return sdn.Trunk{Meta: cannedMeta(), Parent: "one"}, nil
}
func (canned) AttachSubports(_ context.Context, _ sdn.ID, ports []sdn.Subport) ([]sdn.Subport, error) {
	return ports, nil
}
func (canned) DetachSubports(context.Context, sdn.ID, []sdn.ID) error { return nil }
func (canned) DeleteTrunk(context.Context, sdn.ID) error              { return nil }

func (canned) ApplyQoSPolicy(context.Context, sdn.QoSPolicySpec) (sdn.QoSPolicy, error) {
	return sdn.QoSPolicy{Meta: cannedMeta()}, nil
}
func (canned) QoSPolicy(context.Context, sdn.ID) (sdn.QoSPolicy, error) {
	return sdn.QoSPolicy{Meta: cannedMeta()}, nil
}
func (canned) FindQoSPolicies(context.Context, sdn.QoSPolicyQuery) iter.Seq2[sdn.QoSPolicy, error] {
	return one(sdn.QoSPolicy{Meta: cannedMeta()})
}
func (canned) DeleteQoSPolicy(context.Context, sdn.ID) error { return nil }

func (canned) Usage(context.Context, string) (map[sdn.Noun]sdn.Usage, error) {
	return map[sdn.Noun]sdn.Usage{sdn.NounPort: {Limit: 5}}, nil
}
func (canned) SetQuota(context.Context, string, map[sdn.Noun]int64) error { return nil }

var _ sdn.Provider = canned{}
