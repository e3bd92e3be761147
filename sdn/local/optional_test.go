package local

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/kuryr/kuryr/sdn"
)

// Where one port of several fails, none is made or changed.
func TestAllPortsOrNone(t *testing.T) {
	t.Parallel()
	fake := newFake()
	p := open(t, Options{Datapath: fake})
	n, err := p.EnsureNetwork(t.Context(), sdn.NetworkSpec{Subnets: []sdn.SubnetSpec{{CIDR: prefix("10.0.0.0/29")}}}) // room for five
	ok(t, err)
	specs := make([]sdn.PortSpec, 6)
	for i := range specs {
		specs[i] = sdn.PortSpec{Base: sdn.Base{Project: "p", Key: sdn.Key{Owner: p.Installation(), Kind: "k", Name: string(rune('a' + i))}}, Network: n.ID, Host: testHost}
	}
	if _, err := p.EnsureAllPorts(t.Context(), specs); sdn.ReasonOf(err) != sdn.NoAddresses {
		t.Errorf("got error %v, want no addresses", err)
	}
	if found, err := sdn.All(p.FindPorts(t.Context(), sdn.PortQuery{})); err != nil || len(ofCallers(found)) != 0 {
		t.Errorf("%d ports were made, %v", len(found), err)
	}
	checkSum(t, p)
	made, err := p.EnsureAllPorts(t.Context(), specs[:5])
	ok(t, err)
	for i, port := range made {
		if port.Key != specs[i].Key || port.Status != sdn.PortActive {
			t.Errorf("port %d is %+v", i, port)
		}
	}
	// An existing one is not changed either.
	specs[0].Name = "renamed"
	if _, err := p.EnsureAllPorts(t.Context(), []sdn.PortSpec{specs[0], specs[5]}); sdn.ReasonOf(err) != sdn.NoAddresses {
		t.Errorf("got error %v, want no addresses", err)
	}
	if port, err := p.Port(t.Context(), made[0].ID); err != nil || port.Name != "" {
		t.Errorf("the port is named %q, %v", port.Name, err)
	}
	checkSum(t, p)
}

// Where one network, subnet or subnet pool of several fails, none is made or changed.
func TestAllNetworksOrNone(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	p := open(t, Options{Datapath: newFake()})
	keyed := func(name string) sdn.Base {
		return sdn.Base{Key: sdn.Key{Owner: p.Installation(), Kind: "k", Name: name}}
	}
	net := func(name string, cidrs ...string) sdn.NetworkSpec {
		spec := sdn.NetworkSpec{Base: keyed(name)}
		for _, cidr := range cidrs {
			spec.Subnets = append(spec.Subnets, sdn.SubnetSpec{Base: keyed(name + cidr), CIDR: prefix(cidr)})
		}
		return spec
	}
	if made, err := p.EnsureAllNetworks(ctx, []sdn.NetworkSpec{net("a", "10.0.0.0/24"), net("b", "10.0.0.0/24", "10.0.0.0/25")}); made != nil || !sdn.IsConflict(err) {
		t.Errorf("networks with one that cannot be: %v, %v", made, err)
	}
	if left, err := sdn.All(p.FindNetworks(ctx, sdn.NetworkQuery{Match: sdn.Match{Keys: []sdn.Key{keyed("a").Key}}})); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	made, err := p.EnsureAllNetworks(ctx, []sdn.NetworkSpec{net("a", "10.0.0.0/24"), net("b", "10.0.0.0/24")})
	ok(t, err)
	if len(made) != 2 || made[0].Key.Name != "a" || made[1].Key.Name != "b" || len(made[0].Subnets) != 1 || made[1].MTU == 0 {
		t.Errorf("made: %+v", made)
	}
	again, err := p.EnsureAllNetworks(ctx, []sdn.NetworkSpec{net("b", "10.0.0.0/24"), net("c")})
	if err != nil || again[0].ID != made[1].ID {
		t.Errorf("again: %+v, %v", again, err)
	}
	sub := func(name, cidr string) sdn.SubnetSpec {
		return sdn.SubnetSpec{Base: keyed(name), Network: made[0].ID, CIDR: prefix(cidr)}
	}
	if _, err := p.EnsureAllSubnets(ctx, []sdn.SubnetSpec{sub("c", "10.1.0.0/24"), sub("d", "10.1.0.128/25")}); !sdn.IsConflict(err) {
		t.Errorf("subnets that overlap: %v", err)
	}
	if got, err := p.Network(ctx, made[0].ID); err != nil || len(got.Subnets) != 1 {
		t.Errorf("the network has %v, %v", got.Subnets, err)
	}
	subnets, err := p.EnsureAllSubnets(ctx, []sdn.SubnetSpec{sub("c", "10.1.0.0/24"), sub("d", "fd00::/64")})
	if err != nil || len(subnets) != 2 || subnets[1].CIDR != prefix("fd00::/64") {
		t.Errorf("subnets: %+v, %v", subnets, err)
	}
	pool := func(name string, least int) sdn.SubnetPoolSpec {
		return sdn.SubnetPoolSpec{Base: keyed(name), Prefixes: []netip.Prefix{prefix("10.0.0.0/8")}, DefaultLen: 24, MinLen: least}
	}
	if _, err := p.EnsureAllSubnetPools(ctx, []sdn.SubnetPoolSpec{pool("x", 0), pool("y", 40)}); !sdn.IsInvalid(err) {
		t.Errorf("a pool with prefixes of 40 bits: %v", err)
	}
	if left, err := sdn.All(p.FindSubnetPools(ctx, sdn.SubnetPoolQuery{})); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	if pools, err := p.EnsureAllSubnetPools(ctx, []sdn.SubnetPoolSpec{pool("x", 0), pool("y", 12)}); err != nil || len(pools) != 2 || pools[1].MinLen != 12 {
		t.Errorf("pools: %+v, %v", pools, err)
	}
	checkSum(t, p)
}

// A trunk is made with its subports, or not at all; one that is there gets those that it lacks, or none of them.
func TestTrunkWithSubports(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	p := open(t, Options{Datapath: newFake()})
	_, other, ports := trunked(t, p, testHost, 3)
	parent := ports[0].ID
	there := testHost
	_, err := p.UpdatePort(ctx, parent, sdn.PortPatch{Host: &there})
	ok(t, err)
	spec := sdn.TrunkSpec{Base: sdn.Base{Key: sdn.Key{Owner: p.Installation(), Kind: "k", Name: "t"}}, Parent: parent}
	want := []sdn.Subport{{Port: ports[1].ID, VLAN: 5}}
	if made, err := p.EnsureTrunkWith(ctx, spec, append(want, sdn.Subport{Port: other.Parent, VLAN: 6})); made.ID != "" || sdn.ReasonOf(err) != sdn.Exists {
		t.Errorf("with the parent of another: %+v, %v", made, err)
	}
	if left, err := sdn.All(p.FindTrunks(ctx, sdn.TrunkQuery{Parents: []sdn.ID{parent}})); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	checkSum(t, p)
	made, err := p.EnsureTrunkWith(ctx, spec, want)
	if err != nil || !slices.Equal(made.Subports, want) {
		t.Errorf("made: %+v, %v", made, err)
	}
	if got, err := p.Trunk(ctx, made.ID); err != nil || got.Revision != made.Revision || !slices.Equal(got.Subports, want) {
		t.Errorf("got %+v, %v; made was %+v", got, err, made)
	}
	if port, err := p.Port(ctx, ports[1].ID); err != nil || port.Host != testHost || port.DeviceOwner != sdn.OwnerSubport {
		t.Errorf("the subport is %+v, %v", port, err)
	}
	want = append(want, sdn.Subport{Port: ports[2].ID, VLAN: 7})
	if again, err := p.EnsureTrunkWith(ctx, spec, want); err != nil || again.ID != made.ID || !slices.Equal(again.Subports, want) {
		t.Errorf("again: %+v, %v", again, err)
	}
	checkSum(t, p)
}

// ofCallers leaves out the SDN's own ports.
func ofCallers(ports []sdn.Port) []sdn.Port {
	return slices.DeleteFunc(ports, func(p sdn.Port) bool { return p.DeviceOwner == sdn.OwnerRouterInterface })
}

// A caller's port becomes a router's leg with all its addresses; it goes with the last of them.
func TestPortBecomesLeg(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	fake := newFake()
	p := open(t, Options{Datapath: fake})
	n, err := p.EnsureNetwork(ctx, sdn.NetworkSpec{Subnets: []sdn.SubnetSpec{{CIDR: prefix("10.0.0.0/24")}, {CIDR: prefix("fd00::/64")}}})
	ok(t, err)
	r, err := p.EnsureRouter(ctx, sdn.RouterSpec{})
	ok(t, err)
	g, err := p.ApplySecurityGroup(ctx, sdn.SecurityGroupSpec{})
	ok(t, err)
	four, six := netip.MustParseAddr("10.0.0.9"), netip.MustParseAddr("fd00::9")
	other, err := p.EnsurePorts(ctx, []sdn.PortSpec{{Network: n.ID, Host: testHost}})
	ok(t, err)
	made, err := p.EnsurePorts(ctx, []sdn.PortSpec{
		{Base: sdn.Base{Name: "leg", Project: "p"}, Network: n.ID, Addresses: []sdn.Address{{Addr: four}, {Addr: six}}, Groups: []sdn.ID{g.ID}},
		{Network: n.ID, DeviceID: "somebody"},
		{Network: n.ID, Host: testHost},
		{Network: n.ID, WithoutAddresses: true},
		{Network: n.ID},
	})
	ok(t, err)
	for _, i := range []int{1, 2} {
		if err := p.AttachPort(ctx, r.ID, made[i].ID); sdn.ReasonOf(err) != sdn.InUse {
			t.Errorf("port %d: got error %v, want in use", i, err)
		}
	}
	if err := p.AttachPort(ctx, r.ID, made[3].ID); !sdn.IsInvalid(err) {
		t.Errorf("without addresses: %v", err)
	}
	for _, ids := range [][2]sdn.ID{{r.ID, "absent"}, {"absent", made[0].ID}} {
		if err := p.AttachPort(ctx, ids[0], ids[1]); !sdn.IsNotFound(err) {
			t.Errorf("of the absent: %v", err)
		}
	}
	for range 2 {
		ok(t, p.AttachPort(ctx, r.ID, made[0].ID))
	}
	checkSum(t, p)
	r, err = p.Router(ctx, r.ID)
	ok(t, err)
	want := []sdn.RouterInterface{{Subnet: n.Subnets[0], Addr: four, Port: made[0].ID}, {Subnet: n.Subnets[1], Addr: six, Port: made[0].ID}}
	if !slices.Equal(r.Interfaces, want) {
		t.Errorf("the legs are %+v, want %+v", r.Interfaces, want)
	}
	leg, err := p.Port(ctx, made[0].ID)
	if err != nil || leg.DeviceOwner != sdn.OwnerRouterInterface || leg.DeviceID != string(r.ID) || leg.Name != "leg" || len(leg.Groups) != 0 || !leg.NoPortSecurity {
		t.Errorf("the leg's port is %+v, %v", leg, err)
	}
	if u, err := p.Usage(ctx, "p"); err != nil || u[sdn.NounPort].Used != 0 {
		t.Errorf("the leg counts: %+v, %v", u, err)
	}
	if port, err := p.Port(ctx, other[0].ID); err != nil || port.VIF.Details[sdn.DetailNamespace] != "/fake/"+string(r.ID) {
		t.Errorf("the network's other port is at %v, %v", port.VIF, err)
	}
	if err := p.DeletePort(ctx, leg.ID, 0); sdn.ReasonOf(err) != sdn.InUse {
		t.Errorf("the leg's port deleted: %v", err)
	}
	ok(t, p.DeleteSecurityGroup(ctx, g.ID))
	if err := p.AttachPort(ctx, r.ID, made[4].ID); sdn.ReasonOf(err) != sdn.Exists {
		t.Errorf("a second leg on a subnet: %v", err)
	}
	ok(t, p.DetachSubnet(ctx, r.ID, n.Subnets[0]))
	if leg, err := p.Port(ctx, leg.ID); err != nil || len(leg.Addresses) != 1 || leg.Addresses[0].Addr != six {
		t.Errorf("after one subnet the leg's port is %+v, %v", leg, err)
	}
	checkSum(t, p)
	ok(t, p.DetachSubnet(ctx, r.ID, n.Subnets[1]))
	if _, err := p.Port(ctx, leg.ID); !sdn.IsNotFound(err) {
		t.Errorf("after both subnets: %v", err)
	}
	checkSum(t, p)
	// All of a leg goes at once, or nothing of it.
	both, err := p.EnsurePorts(ctx, []sdn.PortSpec{{Network: n.ID, Addresses: []sdn.Address{{Addr: four}, {Addr: six}}}})
	ok(t, err)
	ok(t, p.AttachPort(ctx, r.ID, both[0].ID))
	for _, hop := range []string{"10.0.0.0", "10.0.0.255"} {
		refused := []sdn.HostRoute{{Destination: prefix("10.9.0.0/16"), NextHop: netip.MustParseAddr(hop)}}
		_, err := p.UpdateRouter(ctx, r.ID, sdn.RouterPatch{Routes: &refused})
		if !sdn.IsInvalid(err) || sdn.FieldOf(err) != "routes[0].next_hop" {
			t.Errorf("a route by %s: %v", hop, err)
		}
	}
	routes := []sdn.HostRoute{{Destination: prefix("fd01::/64"), NextHop: netip.MustParseAddr("fd00::7")}}
	_, err = p.UpdateRouter(ctx, r.ID, sdn.RouterPatch{Routes: &routes})
	ok(t, err)
	if err := p.DetachPort(ctx, r.ID, both[0].ID); sdn.ReasonOf(err) != sdn.InUse {
		t.Errorf("a leg that a route needs: %v", err)
	}
	if r, err := p.Router(ctx, r.ID); err != nil || len(r.Interfaces) != 2 {
		t.Errorf("after a refusal the legs are %+v, %v", r.Interfaces, err)
	}
	checkSum(t, p)
	_, err = p.UpdateRouter(ctx, r.ID, sdn.RouterPatch{Routes: &[]sdn.HostRoute{}})
	ok(t, err)
	for range 2 {
		ok(t, p.DetachPort(ctx, r.ID, both[0].ID))
	}
	if _, err := p.Port(ctx, both[0].ID); !sdn.IsNotFound(err) {
		t.Errorf("after the leg went its port: %v", err)
	}
	checkSum(t, p)
	again, err := p.EnsurePorts(ctx, []sdn.PortSpec{{Network: n.ID, Addresses: []sdn.Address{{Addr: four}}}})
	ok(t, err)
	ok(t, p.DeletePorts(ctx, []sdn.ID{other[0].ID, made[1].ID, made[2].ID, made[3].ID, made[4].ID, again[0].ID}))
	ok(t, p.DeleteNetwork(ctx, n.ID))
	if u, err := p.Usage(ctx, ""); err != nil || u[sdn.NounPort].Used != 0 {
		t.Errorf("at the end usage is %+v, %v", u, err)
	}
}
