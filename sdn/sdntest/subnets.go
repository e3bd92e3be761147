package sdntest

import (
	"math"
	"net/netip"
	"slices"

	"github.com/kuryr/kuryr/sdn"
)

func (s *suite) subnet(spec sdn.SubnetSpec) sdn.Subnet {
	s.Helper()
	if spec.Key.IsZero() {
		spec.Base = s.base("subnet")
	}
	return must(s.p.EnsureSubnet(s.ctx, spec))(s)
}

var subnetTests = []test{
	{"ensure twice is once", func(s *suite) {
		n := s.network()
		spec := sdn.SubnetSpec{Base: s.base("subnet"), Network: n.ID, CIDR: prefix("10.2.0.0/24")}
		a, b := s.subnet(spec), s.subnet(spec)
		equal(s, "id", b.ID, a.ID)
		equal(s, "gateway", a.Gateway, addr("10.2.0.1"))
		equal(s, "number of subnets", len(must(s.p.Network(s.ctx, n.ID))(s).Subnets), 1)
	}},
	{"immutable", func(s *suite) {
		n, other := s.network(), s.network()
		spec := sdn.SubnetSpec{Base: s.base("subnet"), Network: n.ID, CIDR: prefix("10.2.0.0/24")}
		s.subnet(spec)
		moved := spec
		moved.CIDR = prefix("10.3.0.0/24")
		_, err := s.p.EnsureSubnet(s.ctx, moved)
		s.immutable(err, "cidr")
		moved = spec
		moved.Network = other.ID
		_, err = s.p.EnsureSubnet(s.ctx, moved)
		s.immutable(err, "network")
	}},
	{"ensure sets what differs", func(s *suite) {
		n := s.network()
		spec := sdn.SubnetSpec{Base: s.base("subnet"), Network: n.ID, CIDR: prefix("10.2.0.0/24")}
		s.subnet(spec)
		spec.Nameservers = []netip.Addr{addr("192.0.2.53")}
		spec.HostRoutes = []sdn.HostRoute{
			{Destination: prefix("10.99.0.0/16"), NextHop: addr("10.2.0.9")},
			{Destination: prefix("192.0.2.0/24"), NextHop: addr("0.0.0.0")}, // on the link
		}
		spec.Gateway = sdn.Gateway{Addr: addr("10.2.0.254")}
		got := s.subnet(spec)
		equal(s, "nameservers", slices.Equal(got.Nameservers, spec.Nameservers), true)
		equal(s, "host routes", slices.Equal(got.HostRoutes, spec.HostRoutes), true)
		equal(s, "gateway", got.Gateway, addr("10.2.0.254"))
		p := s.port(sdn.PortSpec{Network: n.ID, Addresses: []sdn.Address{{Addr: addr("10.2.0.1")}}})
		equal(s, "the old gateway's address is free", p.Addresses[0].Addr, addr("10.2.0.1"))
	}},
	{"invalid", func(s *suite) {
		n := s.network()
		for _, c := range []struct {
			field string
			spec  sdn.SubnetSpec
		}{
			{"cidr", sdn.SubnetSpec{CIDR: prefix("10.2.0.1/24")}},
			{"cidr", sdn.SubnetSpec{}},
			{"gateway", sdn.SubnetSpec{CIDR: prefix("10.2.0.0/24"), Gateway: sdn.Gateway{Addr: addr("10.3.0.1")}}},
			{"gateway", sdn.SubnetSpec{CIDR: prefix("10.2.0.0/24"), Gateway: sdn.Gateway{None: true, Addr: addr("10.2.0.1")}}},
			{"ranges", sdn.SubnetSpec{CIDR: prefix("10.2.0.0/24"), Ranges: []sdn.AddressRange{{First: addr("10.2.0.5"), Last: addr("10.2.1.5")}}}},
			{"ranges", sdn.SubnetSpec{CIDR: prefix("10.2.0.0/24"), Ranges: []sdn.AddressRange{{First: addr("10.2.0.9"), Last: addr("10.2.0.5")}}}},
			{"ranges", sdn.SubnetSpec{CIDR: prefix("10.2.0.0/24"), Ranges: []sdn.AddressRange{
				{First: addr("10.2.0.2"), Last: addr("10.2.0.9")}, {First: addr("10.2.0.9"), Last: addr("10.2.0.20")},
			}}},
			{"host_routes", sdn.SubnetSpec{CIDR: prefix("10.2.0.0/24"), HostRoutes: []sdn.HostRoute{{Destination: prefix("10.0.0.0/8"), NextHop: addr("fd00::1")}}}},
			{"host_routes", sdn.SubnetSpec{CIDR: prefix("10.2.0.0/24"), HostRoutes: []sdn.HostRoute{{Destination: prefix("10.0.0.0/8"), NextHop: addr("::")}}}},
			{"host_routes", sdn.SubnetSpec{CIDR: prefix("10.2.0.0/24"), HostRoutes: []sdn.HostRoute{{Destination: prefix("fd00::/8"), NextHop: addr("fd00::1")}}}},
		} {
			c.spec.Base, c.spec.Network = s.base("bad"), n.ID
			_, err := s.p.EnsureSubnet(s.ctx, c.spec)
			s.invalid(err, c.field)
		}
		equal(s, "number of subnets", len(must(s.p.Network(s.ctx, n.ID))(s).Subnets), 0)
	}},
	{"of an absent network", func(s *suite) {
		_, err := s.p.EnsureSubnet(s.ctx, sdn.SubnetSpec{Base: s.base("x"), Network: absent, CIDR: prefix("10.2.0.0/24")})
		s.notFound(err)
	}},
	{"overlap", func(s *suite) {
		n := s.network("10.2.0.0/24")
		for _, cidr := range []string{"10.2.0.0/24", "10.2.0.128/25", "10.0.0.0/8"} {
			_, err := s.p.EnsureSubnet(s.ctx, sdn.SubnetSpec{Base: s.base("x"), Network: n.ID, CIDR: prefix(cidr)})
			s.conflict(err, sdn.Exists)
		}
		s.network("10.2.0.0/24") // the same range on another network is free
	}},
	{"odd lengths", func(s *suite) {
		for _, c := range []struct {
			cidr    string
			gateway sdn.Gateway
			free    int64
		}{
			{"10.2.0.0/16", sdn.Gateway{}, 65533},
			{"10.2.0.0/29", sdn.Gateway{None: true}, 6},
			{"10.2.0.0/30", sdn.Gateway{}, 1},
			{"10.2.0.0/31", sdn.Gateway{None: true}, 2},
			{"10.2.0.0/31", sdn.Gateway{}, 1},
			{"10.2.0.7/32", sdn.Gateway{None: true}, 1},
			{"fd00:2::/64", sdn.Gateway{}, math.MaxInt64},
			{"fd00:2::/32", sdn.Gateway{}, math.MaxInt64},
			{"fd00:2::/120", sdn.Gateway{None: true}, 255},
			{"fd00:2::/127", sdn.Gateway{None: true}, 2},
			{"fd00:2::1/128", sdn.Gateway{None: true}, 1},
		} {
			n := s.network()
			sub, err := s.p.EnsureSubnet(s.ctx, sdn.SubnetSpec{Base: s.base("odd"), Network: n.ID, CIDR: prefix(c.cidr), Gateway: c.gateway})
			if sdn.IsUnsupported(err) {
				continue
			}
			s.ok(err)
			usage := must(s.p.SubnetUsage(s.ctx, sub.ID))(s)
			equal(s, "free of "+c.cidr, usage.Free, c.free)
			p := s.port(sdn.PortSpec{Network: n.ID})
			if a := p.Addresses[0].Addr; !sub.CIDR.Contains(a) || a == sub.Gateway {
				s.Errorf("%v was given out of %s", a, c.cidr)
			}
			if c.free < math.MaxInt64 {
				equal(s, "free of "+c.cidr+" with a port", must(s.p.SubnetUsage(s.ctx, sub.ID))(s).Free, c.free-1)
			}
			if c.free == 1 {
				_, err := s.tryPort(sdn.PortSpec{Network: n.ID})
				s.exhausted(err, sdn.NoAddresses)
			}
		}
	}},
	{"without ranges", func(s *suite) {
		n := s.network()
		subnet := s.subnet(sdn.SubnetSpec{Network: n.ID, CIDR: prefix("10.2.0.0/24"), WithoutRanges: true})
		refused := func() {
			s.Helper()
			equal(s, "without ranges", must(s.p.Subnet(s.ctx, subnet.ID))(s).WithoutRanges, true)
			_, err := s.tryPort(sdn.PortSpec{Network: n.ID})
			s.exhausted(err, sdn.NoAddresses)
		}
		refused()
		if s.can.ChooseAddress {
			s.port(sdn.PortSpec{Network: n.ID, Addresses: []sdn.Address{{Addr: addr("10.2.0.99")}}})
		}
		ranges := []sdn.AddressRange{{First: addr("10.2.0.100"), Last: addr("10.2.0.101")}}
		got := must(s.p.UpdateSubnet(s.ctx, subnet.ID, sdn.SubnetPatch{Ranges: &ranges}))(s)
		equal(s, "without ranges", got.WithoutRanges, false)
		s.port(sdn.PortSpec{Network: n.ID})
		must(s.p.UpdateSubnet(s.ctx, subnet.ID, sdn.SubnetPatch{WithoutRanges: true}))(s)
		refused()
		_, err := s.p.UpdateSubnet(s.ctx, subnet.ID, sdn.SubnetPatch{WithoutRanges: true, Ranges: &ranges})
		s.invalid(err, "ranges")
	}},
	{"ranges and reserved", func(s *suite) {
		n := s.network()
		sub := s.subnet(sdn.SubnetSpec{
			Network: n.ID, CIDR: prefix("10.2.0.0/24"), Gateway: sdn.Gateway{Addr: addr("10.2.0.11")},
			Ranges:   []sdn.AddressRange{{First: addr("10.2.0.20"), Last: addr("10.2.0.20")}, {First: addr("10.2.0.10"), Last: addr("10.2.0.13")}},
			Reserved: []netip.Addr{addr("10.2.0.12"), addr("192.0.2.1")},
		})
		equal(s, "usage", must(s.p.SubnetUsage(s.ctx, sub.ID))(s), sdn.SubnetUsage{Total: 3, Free: 3})
		got := map[netip.Addr]bool{}
		for range 3 {
			got[s.port(sdn.PortSpec{Network: n.ID}).Addresses[0].Addr] = true
		}
		for _, a := range []string{"10.2.0.10", "10.2.0.13", "10.2.0.20"} {
			equal(s, a+" was given out", got[addr(a)], true)
		}
		_, err := s.tryPort(sdn.PortSpec{Network: n.ID})
		s.exhausted(err, sdn.NoAddresses)
		if s.can.ChooseAddress {
			s.port(sdn.PortSpec{Network: n.ID, Addresses: []sdn.Address{{Addr: addr("10.2.0.99")}}}) // outside of the ranges
		}
		if s.can.ChooseAddress && s.can.KeepReserved {
			_, err = s.tryPort(sdn.PortSpec{Network: n.ID, Addresses: []sdn.Address{{Addr: addr("10.2.0.12")}}})
			s.conflict(err, sdn.AddressInUse)
			equal(s, "number of reserved addresses", len(must(s.p.Subnet(s.ctx, sub.ID))(s).Reserved), 2)
		}
		equal(s, "usage when full", must(s.p.SubnetUsage(s.ctx, sub.ID))(s), sdn.SubnetUsage{Total: 3, Used: 3})
		wider := []sdn.AddressRange{{First: addr("10.2.0.10"), Last: addr("10.2.0.14")}}
		s.ok(must(s.p.UpdateSubnet(s.ctx, sub.ID, sdn.SubnetPatch{Ranges: &wider, Reserved: &[]netip.Addr{}}))(s).Key.Validate())
		for range 2 {
			a := s.port(sdn.PortSpec{Network: n.ID}).Addresses[0].Addr
			if a != addr("10.2.0.12") && a != addr("10.2.0.14") {
				s.Errorf("%v was given out, which is not free", a)
			}
		}
		_, err = s.tryPort(sdn.PortSpec{Network: n.ID})
		s.exhausted(err, sdn.NoAddresses)
	}},
	{"a released address is not the next", func(s *suite) {
		n := s.network("10.2.0.0/24")
		p := s.port(sdn.PortSpec{Network: n.ID})
		s.ok(s.p.DeletePorts(s.ctx, []sdn.ID{p.ID}))
		q := s.port(sdn.PortSpec{Network: n.ID})
		if s.can.ChooseAddress { // for any SDN it is enough that it can be had again
			s.ok(s.p.DeletePorts(s.ctx, []sdn.ID{q.ID}))
			again := s.port(sdn.PortSpec{Network: n.ID, Addresses: []sdn.Address{{Addr: p.Addresses[0].Addr}}})
			equal(s, "address", again.Addresses[0].Addr, p.Addresses[0].Addr)
		}
	}},
	{"update", func(s *suite) {
		n := s.network("10.2.0.0/24")
		p := s.port(sdn.PortSpec{Network: n.ID, Addresses: []sdn.Address{{Addr: addr("10.2.0.9")}}})
		id := n.Subnets[0]
		_, err := s.p.UpdateSubnet(s.ctx, id, sdn.SubnetPatch{Gateway: &sdn.Gateway{Addr: p.Addresses[0].Addr}})
		s.conflict(err, sdn.AddressInUse)
		got := must(s.p.UpdateSubnet(s.ctx, id, sdn.SubnetPatch{Gateway: &sdn.Gateway{None: true}}))(s)
		equal(s, "there is a gateway", got.Gateway.IsValid(), false)
		for _, off := range []bool{true, false} {
			equal(s, "no DHCP", must(s.p.UpdateSubnet(s.ctx, id, sdn.SubnetPatch{NoDHCP: &off}))(s).NoDHCP, off)
		}
		_, err = s.p.UpdateSubnet(s.ctx, id, sdn.SubnetPatch{Ranges: &[]sdn.AddressRange{{First: addr("10.9.0.1"), Last: addr("10.9.0.2")}}})
		s.invalid(err, "ranges")
	}},
	{"delete", func(s *suite) {
		n := s.network("10.2.0.0/24", "10.3.0.0/24")
		p := s.port(sdn.PortSpec{Network: n.ID, Addresses: []sdn.Address{{Subnet: n.Subnets[0]}}})
		s.conflict(s.p.DeleteSubnet(s.ctx, n.Subnets[0]), sdn.InUse)
		s.ok(s.p.DeleteSubnet(s.ctx, n.Subnets[1]))
		s.ok(s.p.DeletePorts(s.ctx, []sdn.ID{p.ID}))
		s.ok(s.p.DeleteSubnet(s.ctx, n.Subnets[0]))
		s.ok(s.p.DeleteSubnet(s.ctx, n.Subnets[0]))
		equal(s, "number of subnets", len(must(s.p.Network(s.ctx, n.ID))(s).Subnets), 0)
	}},
	{"find", func(s *suite) {
		n := s.network("10.2.0.0/24", "fd00:2::/64")
		found := must(sdn.All(s.p.FindSubnets(s.ctx, sdn.SubnetQuery{Networks: []sdn.ID{n.ID}, CIDRs: []netip.Prefix{prefix("fd00:2::/64")}})))(s)
		equal(s, "number found", len(found), 1)
		equal(s, "CIDR", found[0].CIDR, prefix("fd00:2::/64"))
	}},
	{"service types", func(s *suite) {
		n := s.network()
		spec := sdn.SubnetSpec{
			Base: s.base("typed"), Network: n.ID, CIDR: prefix("10.3.0.0/24"), ServiceTypes: []string{"compute:x"},
		}
		typed, err := s.p.EnsureSubnet(s.ctx, spec)
		s.says("a subnet with service types", s.can.ServiceTypes, err)
		if !s.can.ServiceTypes {
			return
		}
		s.ok(err)
		equal(s, "service types", slices.Equal(typed.ServiceTypes, spec.ServiceTypes), true)
		equal(s, "again", slices.Equal(s.subnet(spec).ServiceTypes, spec.ServiceTypes), true)
		made := func(owner string, asked ...sdn.Address) sdn.Port {
			s.Helper()
			return s.port(sdn.PortSpec{Network: n.ID, DeviceOwner: owner, Addresses: asked})
		}
		refused := func(owner string, asked ...sdn.Address) error {
			s.Helper()
			_, err := s.tryPort(sdn.PortSpec{Network: n.ID, DeviceOwner: owner, Addresses: asked})
			return err
		}
		first := made("compute:x")
		equal(s, "subnet of the only one", first.Addresses[0].Subnet, typed.ID)
		s.exhausted(refused("compute:y"), sdn.NoAddresses)
		s.exhausted(refused(""), sdn.NoAddresses)
		open := s.subnet(sdn.SubnetSpec{Network: n.ID, CIDR: prefix("10.2.0.0/24")})
		equal(s, "subnet of another owner", made("compute:y").Addresses[0].Subnet, open.ID)
		equal(s, "subnet without an owner", made("").Addresses[0].Subnet, open.ID)
		equal(s, "subnet of the owner", made("compute:x").Addresses[0].Subnet, typed.ID)
		equal(s, "subnet asked for", made("compute:x", sdn.Address{Subnet: open.ID}).Addresses[0].Subnet, open.ID)
		s.invalid(refused("compute:y", sdn.Address{Subnet: typed.ID}), "")
		s.invalid(refused("compute:y", sdn.Address{Addr: addr("10.3.0.77")}), "")
		two := []string{"compute:y", "network:z"}
		mixed := must(s.p.UpdateSubnet(s.ctx, typed.ID, sdn.SubnetPatch{ServiceTypes: &two}))(s)
		equal(s, "number of service types", len(mixed.ServiceTypes), 2)
		kept := must(s.p.UpdatePort(s.ctx, first.ID, sdn.PortPatch{Addresses: &first.Addresses}))(s)
		equal(s, "the address of before", kept.Addresses[0], first.Addresses[0])
		equal(s, "subnet of the new owner", made("compute:y").Addresses[0].Subnet, typed.ID)
		equal(s, "subnet of the old owner", made("compute:x").Addresses[0].Subnet, open.ID)
		must(s.p.UpdateSubnet(s.ctx, typed.ID, sdn.SubnetPatch{ServiceTypes: &[]string{}}))(s)
		equal(s, "number of service types", len(must(s.p.Subnet(s.ctx, typed.ID))(s).ServiceTypes), 0)
		equal(s, "subnet for all", made("", sdn.Address{Subnet: typed.ID}).Addresses[0].Subnet, typed.ID)
	}},
	{"addresses made of the MAC", func(s *suite) {
		n := s.network("10.2.0.0/24")
		_, err := s.p.EnsureSubnet(s.ctx, sdn.SubnetSpec{Base: s.base("slaac"), Network: n.ID, CIDR: prefix("fd00:2::/64"), Mode: sdn.SLAAC})
		s.says("a SLAAC subnet", s.can.AddressModes, err)
		if !s.can.AddressModes {
			return
		}
		s.ok(err)
		p := s.port(sdn.PortSpec{Network: n.ID, Addresses: []sdn.Address{{Subnet: n.Subnets[0]}}})
		equal(s, "number of addresses", len(p.Addresses), 2)
	}},
}

var subnetPoolTests = []test{
	{"ensure twice is once", func(s *suite) {
		spec := sdn.SubnetPoolSpec{Base: s.base("pool"), Prefixes: []netip.Prefix{prefix("10.4.0.0/16")}, DefaultLen: 24}
		a := must(s.p.EnsureSubnetPool(s.ctx, spec))(s)
		b := must(s.p.EnsureSubnetPool(s.ctx, spec))(s)
		equal(s, "id", b.ID, a.ID)
		equal(s, "default length", b.DefaultLen, 24)
		s.ok(s.p.DeleteSubnetPool(s.ctx, a.ID))
		s.ok(s.p.DeleteSubnetPool(s.ctx, a.ID))
	}},
	{"cut", func(s *suite) {
		pool := must(s.p.EnsureSubnetPool(s.ctx, sdn.SubnetPoolSpec{Base: s.base("pool"), Prefixes: []netip.Prefix{prefix("10.4.0.0/22")}, DefaultLen: 24}))(s)
		n := s.network()
		seen := map[netip.Prefix]bool{}
		var last sdn.Subnet
		for range 4 {
			last = s.subnet(sdn.SubnetSpec{Network: n.ID, Pool: pool.ID})
			equal(s, "length", last.CIDR.Bits(), 24)
			equal(s, "cut before", seen[last.CIDR], false)
			seen[last.CIDR] = true
		}
		_, err := s.p.EnsureSubnet(s.ctx, sdn.SubnetSpec{Base: s.base("x"), Network: n.ID, Pool: pool.ID})
		s.exhausted(err, sdn.NoPrefixes)
		s.conflict(s.p.DeleteSubnetPool(s.ctx, pool.ID), sdn.InUse)
		s.ok(s.p.DeleteSubnet(s.ctx, last.ID))
		again := s.subnet(sdn.SubnetSpec{Network: n.ID, Pool: pool.ID, PrefixLen: 25})
		equal(s, "the prefix given back is cut again", last.CIDR.Overlaps(again.CIDR), true)
		found := must(sdn.All(s.p.FindSubnets(s.ctx, sdn.SubnetQuery{Pools: []sdn.ID{pool.ID}})))(s)
		equal(s, "number of subnets found by pool", len(found), 4)
		s.ok(s.p.DeleteNetwork(s.ctx, n.ID))
		s.ok(s.p.DeleteSubnetPool(s.ctx, pool.ID))
	}},
	{"cut this one", func(s *suite) {
		pool := must(s.p.EnsureSubnetPool(s.ctx, sdn.SubnetPoolSpec{Base: s.base("pool"), Prefixes: []netip.Prefix{prefix("fd04::/48")}, DefaultLen: 64}))(s)
		n, other := s.network(), s.network()
		sub := s.subnet(sdn.SubnetSpec{Network: n.ID, Pool: pool.ID, CIDR: prefix("fd04:0:0:9::/64")})
		equal(s, "pool", sub.Pool, pool.ID)
		_, err := s.p.EnsureSubnet(s.ctx, sdn.SubnetSpec{Base: s.base("x"), Network: other.ID, Pool: pool.ID, CIDR: prefix("fd04:0:0:9::/64")})
		s.conflict(err, sdn.Exists)
		_, err = s.p.EnsureSubnet(s.ctx, sdn.SubnetSpec{Base: s.base("x"), Network: other.ID, Pool: pool.ID, CIDR: prefix("fd05::/64")})
		s.invalid(err, "cidr")
		s.ok(s.p.DeleteNetwork(s.ctx, n.ID))
		s.ok(s.p.DeleteSubnetPool(s.ctx, pool.ID))
	}},
	{"invalid", func(s *suite) {
		for _, prefixes := range [][]netip.Prefix{nil, {prefix("10.0.0.0/8"), prefix("10.1.0.0/16")}, {prefix("10.0.0.0/8"), prefix("fd00::/48")}, {prefix("10.0.0.1/8")}} {
			_, err := s.p.EnsureSubnetPool(s.ctx, sdn.SubnetPoolSpec{Base: s.base("x"), Prefixes: prefixes})
			s.invalid(err, "prefixes")
		}
		_, err := s.p.EnsureSubnetPool(s.ctx, sdn.SubnetPoolSpec{Base: s.base("x"), Prefixes: []netip.Prefix{prefix("10.0.0.0/8")}, DefaultLen: 33})
		s.invalid(err, "")
	}},
	{"a project's quota of a pool", func(s *suite) {
		spec := sdn.SubnetPoolSpec{
			Base: s.base("pool"), Prefixes: []netip.Prefix{prefix("10.4.0.0/20")}, DefaultLen: 24, DefaultQuota: 512,
		}
		pool := must(s.p.EnsureSubnetPool(s.ctx, spec))(s)
		equal(s, "quota", pool.DefaultQuota, 512)
		n := s.network()
		cut := func(length int) error {
			_, err := s.p.EnsureSubnet(s.ctx, sdn.SubnetSpec{Base: s.base("x"), Network: n.ID, Pool: pool.ID, PrefixLen: length})
			return err
		}
		s.ok(cut(24))
		s.exhausted(cut(23), sdn.NoQuota)
		s.ok(cut(0))
		s.exhausted(cut(28), sdn.NoQuota)
		more := must(s.p.UpdateSubnetPool(s.ctx, pool.ID, sdn.SubnetPoolPatch{DefaultQuota: ptr(int64(528))}))(s)
		equal(s, "quota", more.DefaultQuota, 528)
		s.ok(cut(28))
		s.exhausted(cut(28), sdn.NoQuota)
		s.ok(s.p.DeleteNetwork(s.ctx, n.ID))
		s.ok(s.p.DeleteSubnetPool(s.ctx, pool.ID))
	}},
	{"the default pool", func(s *suite) {
		spec := sdn.SubnetPoolSpec{Base: s.base("pool"), Prefixes: []netip.Prefix{prefix("fd04::/48")}, Default: true}
		pool, err := s.p.EnsureSubnetPool(s.ctx, spec)
		if sdn.IsDenied(err) {
			return // the SDN leaves it to its administrators
		}
		s.ok(err)
		equal(s, "default", pool.Default, true)
		yes, no := true, false
		second := sdn.SubnetPoolSpec{Base: s.base("pool"), Prefixes: []netip.Prefix{prefix("fd05::/48")}, Default: true}
		_, err = s.p.EnsureSubnetPool(s.ctx, second)
		s.invalid(err, "")
		second.Default = false
		other := must(s.p.EnsureSubnetPool(s.ctx, second))(s)
		_, err = s.p.UpdateSubnetPool(s.ctx, other.ID, sdn.SubnetPoolPatch{Default: &yes})
		s.invalid(err, "")
		found := func() (ids []sdn.ID) {
			q := sdn.SubnetPoolQuery{Match: sdn.Match{IDs: []sdn.ID{pool.ID, other.ID}}, Default: &yes}
			for _, p := range must(sdn.All(s.p.FindSubnetPools(s.ctx, q)))(s) {
				ids = append(ids, p.ID)
			}
			return ids
		}
		equal(s, "it is found", slices.Equal(found(), []sdn.ID{pool.ID}), true)
		equal(s, "default", must(s.p.UpdateSubnetPool(s.ctx, pool.ID, sdn.SubnetPoolPatch{Default: &no}))(s).Default, false)
		equal(s, "default", must(s.p.UpdateSubnetPool(s.ctx, other.ID, sdn.SubnetPoolPatch{Default: &yes}))(s).Default, true)
		equal(s, "the other is found", slices.Equal(found(), []sdn.ID{other.ID}), true)
		for _, id := range []sdn.ID{pool.ID, other.ID} {
			s.ok(s.p.DeleteSubnetPool(s.ctx, id))
		}
	}},
	{"pools may overlap, and grow", func(s *suite) {
		ids := []sdn.ID{}
		for range 2 {
			pool := must(s.p.EnsureSubnetPool(s.ctx, sdn.SubnetPoolSpec{Base: s.base("pool"), Prefixes: []netip.Prefix{prefix("10.4.0.0/24")}}))(s)
			ids = append(ids, pool.ID)
		}
		grown := must(s.p.UpdateSubnetPool(s.ctx, ids[0], sdn.SubnetPoolPatch{Prefixes: &[]netip.Prefix{prefix("10.4.0.0/24"), prefix("10.5.0.0/24")}}))(s)
		equal(s, "number of prefixes", len(grown.Prefixes), 2)
		_, err := s.p.UpdateSubnetPool(s.ctx, ids[0], sdn.SubnetPoolPatch{Prefixes: &[]netip.Prefix{prefix("10.5.0.0/24")}})
		if err == nil {
			s.Error("a pool has shrunk")
		}
		bounded := must(s.p.UpdateSubnetPool(s.ctx, ids[0], sdn.SubnetPoolPatch{MinLen: ptr(20), DefaultLen: ptr(26), MaxLen: ptr(28)}))(s)
		equal(s, "lengths", [3]int{bounded.MinLen, bounded.DefaultLen, bounded.MaxLen}, [3]int{20, 26, 28})
		_, err = s.p.UpdateSubnetPool(s.ctx, ids[0], sdn.SubnetPoolPatch{MaxLen: ptr(25)})
		s.invalid(err, "") // the default length is longer
		n := s.network()
		_, err = s.p.EnsureSubnet(s.ctx, sdn.SubnetSpec{Base: s.base("x"), Network: n.ID, Pool: ids[0], PrefixLen: 29})
		s.invalid(err, "prefix_len")
		for _, id := range ids {
			s.ok(s.p.DeleteSubnetPool(s.ctx, id))
		}
	}},
}
