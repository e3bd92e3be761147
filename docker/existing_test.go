package docker

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/kuryr/kuryr/sdn"
)

// theirs makes an unmanaged network, with a subnet of each range.
func (b *box) theirs(name string, ranges ...string) sdn.Network {
	b.t.Helper()
	n, err := b.provider.EnsureNetwork(b.t.Context(), sdn.NetworkSpec{
		Base: sdn.Base{Name: name, Description: "of " + name, Tags: []string{"blue"}},
	})
	b.must(err)
	for _, r := range ranges {
		_, err := b.provider.EnsureSubnet(b.t.Context(), sdn.SubnetSpec{
			Base: sdn.Base{Name: name + " " + r}, Network: n.ID, CIDR: netip.MustParsePrefix(r),
		})
		b.must(err)
	}
	n, err = b.provider.Network(b.t.Context(), n.ID)
	b.must(err)
	return n
}

// poolOf is the id of the one pool of ours of a range.
func (b *box) poolOf(cidr string) string {
	b.t.Helper()
	p, found, err := sdn.First(b.provider.FindSubnetPools(
		b.t.Context(), sdn.SubnetPoolQuery{Match: sdn.Match{Names: []string{"kuryrPool-" + cidr}}},
	))
	b.must(err)
	if !found {
		b.t.Fatalf("there is no pool of %s", cidr)
	}
	return string(p.ID)
}

func (b *box) subnetAt(n sdn.Network, cidr string) sdn.Subnet {
	b.t.Helper()
	s, found, err := sdn.First(b.provider.FindSubnets(b.t.Context(), sdn.SubnetQuery{
		Networks: []sdn.ID{n.ID}, CIDRs: []netip.Prefix{netip.MustParsePrefix(cidr)},
	}))
	b.must(err)
	if !found {
		b.t.Fatalf("network %s has no subnet %s", n.ID, cidr)
	}
	return s
}

// zun is a network as Zun makes one: the same options for both drivers, and the subnets' own ranges and gateways.
func (b *box) zun(n sdn.Network, v4, v6 string) *network {
	b.t.Helper()
	options := m{optNetUUID: string(n.ID), optNetShared: "False"}
	made := &network{options: options}
	for _, family := range []struct {
		cidr, stem string
		into       *[]*pool
	}{{v4, optSubnet, &made.v4}, {v6, optSubnet6, &made.v6}} {
		if family.cidr == "" {
			continue
		}
		s := b.subnetAt(n, family.cidr)
		options[family.stem+".uuid"] = string(s.ID)
		*family.into = []*pool{{cidr: family.cidr, gateway: s.Gateway.String()}}
	}
	for _, p := range append(slices.Clone(made.v4), made.v6...) {
		p.options = options
	}
	return made
}

// Zun's sequence: it leaves the network as it was, at any restart of the plugin in between.
func TestZun(t *testing.T) {
	t.Parallel()
	for _, restarts := range []bool{false, true} {
		b := newBox(t, unrouted)
		again := func() {
			if restarts {
				b.restart()
				b.reconcile()
			}
		}
		theirs := b.theirs("net", "10.50.0.0/24", "fd50::/64", "10.51.0.0/24")
		before := b.dump()
		n := b.create(b.zun(theirs, "10.50.0.0/24", "fd50::/64"))
		again()
		e := &endpoint{net: n}
		b.take(e)
		again()
		b.ok("NetworkDriver.CreateEndpoint", e.createBody())
		again()
		e.joined = b.ok("NetworkDriver.Join", e.joinBody())
		if e.joined["Gateway"] != "10.50.0.1" || e.joined["GatewayIPv6"] != "fd50::1" {
			t.Errorf("join %v", e.joined)
		}
		if p := b.portOf(e.id); p.Network != theirs.ID || len(p.Addresses) != 2 {
			t.Errorf("port %+v", p)
		}
		again()
		b.stop(e)
		again()
		b.release(n)
		again()
		b.ok("NetworkDriver.DeleteNetwork", m{"NetworkID": n.id})
		b.unchanged(before)
	}
}

// TestExistingRefused: wrong options are refused before anything is changed, and the
// error names the option.
func TestExistingRefused(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	one, two := b.theirs("one", "10.50.0.0/24", "fd50::/64"), b.theirs("two", "10.50.0.0/24")
	b.theirs("two", "10.52.0.0/24")
	in1, in2 := b.subnetAt(one, "10.50.0.0/24"), b.subnetAt(two, "10.50.0.0/24")
	unknown := "00000000-0000-4000-8000-000000000000"
	before := b.dump()
	ask := func(options m, pool string, v6 bool) m {
		return m{"AddressSpace": localSpace, "Pool": pool, "SubPool": "", "Options": options, "V6": v6}
	}
	for option, body := range map[string]m{
		optSubnet + ".uuid":  ask(m{optSubnet + ".uuid": unknown}, "10.50.0.0/24", false),
		optSubnet + ".name":  ask(m{optSubnet + ".name": "none"}, "10.50.0.0/24", false),
		"10.51.0.0/24":       ask(m{optSubnet + ".uuid": string(in1.ID)}, "10.51.0.0/24", false),
		"family":             ask(m{optSubnet6 + ".uuid": string(in1.ID)}, "", true),
		optNetName:           ask(m{optSubnet + ".uuid": string(in1.ID), optNetName: "two"}, "10.50.0.0/24", false),
		"is not in network":  ask(m{optSubnet + ".uuid": string(in1.ID), optNetUUID: string(two.ID)}, "10.50.0.0/24", false),
		optPool + ".uuid":    ask(m{optPool + ".uuid": unknown}, "10.50.0.0/24", false),
		optPool6 + ".name":   ask(m{optPool6 + ".name": "none"}, "fd00::/64", true),
		optSubnet6 + ".name": ask(m{optSubnet6 + ".name": "none"}, "fd00::/64", true),
	} {
		b.contains(b.fails("IpamDriver.RequestPool", body), option)
	}
	if now := b.dump(); now != before {
		t.Fatalf("before\n%s\nafter\n%s", before, now)
	}

	n := b.zun(one, "10.50.0.0/24", "")
	body := b.request(n)
	before = b.dump()
	for text, options := range map[string]m{
		optNetShared:         {optNetUUID: string(one.ID), optNetShared: "true"},
		optNetUUID:           {optNetUUID: unknown},
		optNetName:           {optNetName: "two"},
		"is not in network":  {optNetUUID: string(one.ID), optSubnet + ".uuid": string(in2.ID)},
		"was not asked for":  {optNetUUID: string(one.ID), optSubnet6 + ".uuid": string(b.subnetAt(one, "fd50::/64").ID)},
		"not requested from": {optNetUUID: string(two.ID)},
	} {
		body["Options"] = m{optGeneric: options}
		b.contains(b.fails("NetworkDriver.CreateNetwork", body), text)
		if now := b.dump(); now != before {
			t.Fatalf("%v: before\n%s\nafter\n%s", options, before, now)
		}
	}
	gateway := &network{v4: []*pool{{cidr: "10.50.0.0/24", gateway: "10.50.0.7"}}, options: m{optNetUUID: string(one.ID)}}
	b.contains(b.fails("NetworkDriver.CreateNetwork", b.request(gateway)), "--gateway")
}

// One network of the SDN's is two networks of an engine's, and another host's: none
// disturbs another, in whatever order they go. (The hosts are one installation, so that
// each sees what the others make.)
func TestExistingShared(t *testing.T) {
	t.Parallel()
	b := newBox(t, unrouted)
	other := boxOn(t, b.provider, func(c *Config) { c.Routed, c.Host = false, "crate" })
	theirs := b.theirs("net", "10.50.0.0/24")
	before := b.dump()
	one, two, far := b.create(b.zun(theirs, "10.50.0.0/24", "")),
		b.create(b.zun(theirs, "10.50.0.0/24", "")),
		other.create(other.zun(theirs, "10.50.0.0/24", ""))
	first, second := b.run(&endpoint{net: one}), b.run(&endpoint{net: two})
	b.stop(first)
	b.remove(one)
	b.restart()
	b.reconcile()
	b.stop(second)
	b.run(second)
	third := &endpoint{net: far}
	other.take(third)
	b.stop(second)
	b.remove(two)
	if v, err := b.driver.networks.Find(t.Context(), far.id); err == nil {
		t.Errorf("another host's network is found: %+v", v)
	}
	other.restart()
	other.giveBack(third)
	other.remove(far)
	other.idle()
	b.idle()
	b.unchanged(before)
}

// A range that the network does not have is added to it, and taken from it again.
func TestExistingAddsSubnet(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	theirs := b.theirs("net", "10.50.0.0/24")
	before := b.dump()
	n := b.create(&network{v4: []*pool{{cidr: "10.60.0.0/24"}}, options: m{optNetUUID: string(theirs.ID)}})
	e := b.run(&endpoint{net: n})
	if p := b.portOf(e.id); p.Network != theirs.ID ||
		!netip.MustParsePrefix("10.60.0.0/24").Contains(p.Addresses[0].Addr) {
		t.Errorf("port %+v", p)
	}
	b.fails("NetworkDriver.CreateNetwork", b.request(
		&network{v4: []*pool{{cidr: "10.50.0.0/25"}}, options: m{optNetUUID: string(theirs.ID)}},
	))
	b.ok("IpamDriver.ReleasePool", m{"PoolID": b.poolOf("10.50.0.0/25")})
	// The container is forgotten, as an engine that was killed does.
	b.binder.unplugAll()
	b.release(n)
	b.ok("NetworkDriver.DeleteNetwork", m{"NetworkID": n.id})
	b.unchanged(before)
}

// The engine may release the ranges and never delete the network: a restart does it.
func TestExistingLeftBehind(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	theirs := b.theirs("net", "10.50.0.0/24")
	before := b.dump()
	for _, n := range []*network{b.zun(theirs, "10.50.0.0/24", ""), {
		v4: []*pool{{cidr: "10.60.0.0/24"}}, options: m{optNetUUID: string(theirs.ID)},
	}} {
		b.create(n)
		b.reconcile()
		b.stop(b.run(&endpoint{net: n}))
		b.release(n)
		b.restart()
		b.reconcile()
		b.unchanged(before)
	}
}

// Its owner deletes the network: the engine's goes all the same.
func TestExistingGone(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	theirs := b.theirs("net", "10.50.0.0/24")
	n := b.create(b.zun(theirs, "10.50.0.0/24", ""))
	b.must(b.provider.DeleteNetwork(t.Context(), theirs.ID))
	b.contains(
		b.fails("IpamDriver.RequestAddress", m{
			"PoolID": n.v4[0].id, "Address": "", "Options": m{optMAC: "02:00:00:00:00:07"},
		}),
		n.v4[0].id,
	)
	b.remove(n)
	b.clean()
}

// Subnets are cut from an operator's pool where that is asked for; it stays.
func TestExistingPool(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	operators, err := b.provider.EnsureSubnetPool(t.Context(), sdn.SubnetPoolSpec{Base: sdn.Base{Name: "operators"},
		Prefixes: []netip.Prefix{netip.MustParsePrefix("10.32.0.0/12")}, DefaultLen: 24})
	b.must(err)
	before := b.dump()
	for _, options := range []m{{optPool + ".uuid": string(operators.ID)}, {optPool + ".name": "operators"}} {
		b.contains(
			b.fails("IpamDriver.RequestPool", m{
				"AddressSpace": localSpace, "Pool": "10.99.0.0/24", "SubPool": "",
				"Options": options, "V6": false,
			}),
			"10.99.0.0/24",
		)
		n := b.create(&network{v4: []*pool{{cidr: "10.33.0.0/24", options: options}}, options: options})
		if s := b.subnetAt(b.networkOf(n), "10.33.0.0/24"); s.Pool != operators.ID {
			t.Errorf("the subnet is %+v", s)
		}
		b.restart()
		b.stop(b.run(&endpoint{net: n}))
		b.restart()
		b.remove(n)
		b.unchanged(before)
	}
	lone := &network{v4: []*pool{{cidr: "10.33.0.0/24"}}, options: m{optPool + ".name": "operators"}}
	b.contains(b.fails("NetworkDriver.CreateNetwork", b.request(lone)), "--ipam-opt")
}
