// This test made store.db.gz and objects.json. It ran as sdn/local/make_test.go in a worktree of commit
// faf2083, the release whose stores have schema 5:
//
//	OUT=FOLDER go test -run TestMake ./sdn/local
package local_test

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"io"
	"iter"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/local"
)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func done(err error) {
	if err != nil {
		panic(err)
	}
}

func list[T any](all iter.Seq2[T, error]) any { return must(sdn.All(all)) }

func base(kind, name string) sdn.Base {
	return sdn.Base{Key: sdn.Key{Owner: "0f2083fa", Kind: kind, Name: name}, Name: name}
}

func prefixes(list ...string) (out []netip.Prefix) {
	for _, p := range list {
		out = append(out, netip.MustParsePrefix(p))
	}
	return out
}

func TestMake(t *testing.T) {
	out := os.Getenv("OUT")
	path := filepath.Join(out, "store.db")
	ctx := context.Background()
	p := must(local.Open(ctx, local.Options{Path: path, Host: "this-host", Installation: "0f2083fa"}))
	fill(ctx, p)
	all := map[string]any{
		"network": list(p.FindNetworks(ctx, sdn.NetworkQuery{})), "subnet": list(p.FindSubnets(ctx, sdn.SubnetQuery{})),
		"subnetpool": list(p.FindSubnetPools(ctx, sdn.SubnetPoolQuery{})), "port": list(p.FindPorts(ctx, sdn.PortQuery{})),
		"trunk": list(p.FindTrunks(ctx, sdn.TrunkQuery{})), "router": list(p.FindRouters(ctx, sdn.RouterQuery{})),
		"floatingip": list(p.FindFloatingIPs(ctx, sdn.FloatingIPQuery{})), "forward": list(p.FindForwards(ctx, sdn.ForwardQuery{})),
		"security_group": list(p.FindSecurityGroups(ctx, sdn.SecurityGroupQuery{})),
		"address_group":  list(p.FindAddressGroups(ctx, sdn.AddressGroupQuery{})),
		"qos_policy":     list(p.FindQoSPolicies(ctx, sdn.QoSPolicyQuery{})),
		"loadbalancer":   list(p.FindLoadBalancers(ctx, sdn.LoadBalancerQuery{})),
	}
	usage := map[sdn.ID]sdn.SubnetUsage{}
	for _, s := range must(sdn.All(p.FindSubnets(ctx, sdn.SubnetQuery{}))) {
		usage[s.ID] = must(p.SubnetUsage(ctx, s.ID))
	}
	all["usage"] = usage
	done(os.WriteFile(filepath.Join(out, "objects.json"), append(must(json.MarshalIndent(all, "", " ")), '\n'), 0o644))
	done(p.Close())
	zipped := must(os.Create(path + ".gz"))
	z := must(gzip.NewWriterLevel(zipped, gzip.BestCompression))
	plain := must(os.Open(path))
	must(io.Copy(z, plain))
	done(z.Close())
	done(zipped.Close())
}

func fill(ctx context.Context, p *local.Provider) {
	external := p.Capabilities().ExternalNetwork
	pool := must(p.EnsureSubnetPool(ctx, sdn.SubnetPoolSpec{Base: base("pool", "pool"), Prefixes: prefixes("10.64.0.0/16"), DefaultLen: 24}))
	spec := sdn.NetworkSpec{Base: base("network", "containers"), Subnets: []sdn.SubnetSpec{
		{Base: base("subnet", "v4"), Pool: pool.ID},
		{
			Base: base("subnet", "v6"), CIDR: netip.MustParsePrefix("fd00:64::/64"),
			Reserved: []netip.Addr{netip.MustParseAddr("fd00:64::99")},
		},
	}}
	n := must(p.EnsureNetwork(ctx, spec))
	r := must(p.EnsureRouter(ctx, sdn.RouterSpec{Base: base("router", "docker"), Gateway: &sdn.ExternalGateway{Network: external, SNAT: true}}))
	for _, s := range n.Subnets {
		done(p.AttachSubnet(ctx, r.ID, s, netip.Addr{}))
	}
	// The objects of a tenant, on a router of their own.
	demo := func(name string) sdn.Base {
		return sdn.Base{Name: name, Project: "demo", Description: "of demo", Tags: []string{"a", "b"}}
	}
	m := must(p.EnsureNetwork(ctx, sdn.NetworkSpec{Base: demo("tenant"), MTU: 1400, Subnets: []sdn.SubnetSpec{{
		Base: demo("tenant"), CIDR: netip.MustParsePrefix("10.0.0.0/24"),
		Ranges:     []sdn.AddressRange{{First: netip.MustParseAddr("10.0.0.10"), Last: netip.MustParseAddr("10.0.0.50")}},
		HostRoutes: []sdn.HostRoute{{Destination: netip.MustParsePrefix("10.9.0.0/16"), NextHop: netip.MustParseAddr("10.0.0.9")}},
	}}}))
	tenant := must(p.EnsureRouter(ctx, sdn.RouterSpec{Base: demo("router"), Gateway: &sdn.ExternalGateway{Network: external, SNAT: true}}))
	done(p.AttachSubnet(ctx, tenant.ID, m.Subnets[0], netip.Addr{}))
	addresses := must(p.ApplyAddressGroup(ctx, sdn.AddressGroupSpec{Base: demo("addresses"), Prefixes: prefixes("192.0.2.0/24", "2001:db8::/32")}))
	group := must(p.ApplySecurityGroup(ctx, sdn.SecurityGroupSpec{Base: demo("web"), Rules: []sdn.Rule{
		{Direction: sdn.Egress}, {Direction: sdn.Ingress, Protocol: sdn.TCP, Ports: sdn.PortRange{First: 80, Last: 81}, RemoteSet: addresses.ID},
	}}))
	other := must(p.ApplySecurityGroup(ctx, sdn.SecurityGroupSpec{Base: base("group", "other"), Rules: []sdn.Rule{
		{Direction: sdn.Ingress, RemoteGroup: group.ID}, {Direction: sdn.Egress, IPv6: true},
	}}))
	policy := must(p.ApplyQoSPolicy(ctx, sdn.QoSPolicySpec{Base: base("qos", "slow"), Shared: true, Limits: sdn.Limits{IngressKbps: 1000, EgressKbps: 2000}}))
	var specs []sdn.PortSpec
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		specs = append(specs, sdn.PortSpec{Base: base("port", name), Network: n.ID, Host: "this-host", DeviceID: "container-" + name, DeviceOwner: "kuryr:container"})
	}
	specs[1].Groups, specs[2].QoSPolicy = []sdn.ID{other.ID}, policy.ID
	ports := must(p.EnsurePorts(ctx, specs))
	done(p.DeletePorts(ctx, []sdn.ID{ports[3].ID})) // so that the free addresses have a hole
	tenants := must(p.EnsurePorts(ctx, []sdn.PortSpec{
		{Base: demo("server"), Network: m.ID, Host: "this-host", Groups: []sdn.ID{group.ID}, Profile: map[string]string{"slot": "0000:00:1f.0"}},
		{Base: demo("outside the range"), Network: m.ID, Addresses: []sdn.Address{{Addr: netip.MustParseAddr("10.0.0.200")}}},
		{Base: demo("subport"), Network: m.ID},
	}))
	must(p.EnsureTrunk(ctx, sdn.TrunkSpec{Base: base("trunk", "t"), Parent: ports[4].ID}))
	trunk := must(sdn.All(p.FindTrunks(ctx, sdn.TrunkQuery{})))[0]
	must(p.AttachSubports(ctx, trunk.ID, []sdn.Subport{{Port: tenants[2].ID, VLAN: 100}}))
	must(p.EnsureFloatingIP(ctx, sdn.FloatingIPSpec{Base: demo("floating"), Network: external, Target: sdn.Target{Port: tenants[0].ID}}))
	// Published ports of containers, as the front end for Docker makes them.
	all := must(p.EnsureFloatingIP(ctx, sdn.FloatingIPSpec{Base: base("publish", "endpoint/0.0.0.0"), Network: external, Address: netip.IPv4Unspecified()}))
	loopback := must(p.EnsureFloatingIP(ctx, sdn.FloatingIPSpec{
		Base: base("publish", "endpoint/127.0.0.1"), Network: external, Address: netip.MustParseAddr("127.0.0.1"), OfHost: true,
	}))
	forward := func(first, last, internal uint16, port sdn.ID) []sdn.Forward {
		return []sdn.Forward{{
			Protocol: sdn.TCP, External: sdn.PortRange{First: first, Last: last}, Target: sdn.Target{Port: port},
			Internal: sdn.PortRange{First: internal},
		}}
	}
	must(p.EnsureForwards(ctx, all.ID, forward(8080, 8090, 80, ports[0].ID)))
	must(p.EnsureForwards(ctx, loopback.ID, forward(9090, 9090, 443, ports[1].ID)))
	own := must(p.EnsureFloatingIP(ctx, sdn.FloatingIPSpec{Base: demo("forwards"), Network: external}))
	must(p.EnsureForwards(ctx, own.ID, forward(22, 22, 22, tenants[0].ID)))
	must(p.ApplyLoadBalancer(ctx, sdn.LoadBalancerSpec{
		Base: demo("balancer"), VIPs: []sdn.VIP{{Subnet: m.Subnets[0]}}, Listeners: []sdn.Listener{{
			Name: "web", Protocol: sdn.TCP, Port: 80, Pool: sdn.Pool{Members: []sdn.Member{
				{Name: "one", Addr: netip.MustParseAddrPort("10.0.0.10:8080"), Subnet: m.Subnets[0]},
				{Name: "two", Addr: netip.MustParseAddrPort("10.0.0.11:8080"), Subnet: m.Subnets[0], Weight: 5},
			}},
		}},
	}))
	done(p.SetQuota(ctx, "demo", map[sdn.Noun]int64{sdn.NounPort: 50}))
	name := "containers, renamed"
	must(p.UpdateNetwork(ctx, n.ID, sdn.NetworkPatch{Patch: sdn.Patch{Name: &name}}))
}
