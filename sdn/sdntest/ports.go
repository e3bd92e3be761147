package sdntest

import (
	"context"
	"encoding/json"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/kuryr/kuryr/sdn"
)

var portTests = []test{
	{"ensure twice is once", func(s *suite) {
		n := s.network("10.5.0.0/24", "fd00:5::/64")
		spec := sdn.PortSpec{Base: s.base("port"), Network: n.ID, DeviceID: "dev-" + s.run, DeviceOwner: sdn.OwnerContainer}
		a, b := s.port(spec), s.port(spec)
		equal(s, "id", b.ID, a.ID)
		equal(s, "MAC", b.MAC.String(), a.MAC.String())
		equal(s, "addresses are the same", slices.Equal(a.Addresses, b.Addresses), true)
		equal(s, "device", b.DeviceID, spec.DeviceID)
		equal(s, "owner", b.DeviceOwner, spec.DeviceOwner)
		equal(s, "number found", len(must(sdn.All(s.p.FindPorts(s.ctx, sdn.PortQuery{Match: sdn.Match{Keys: []sdn.Key{spec.Key}}})))(s)), 1)
	}},
	{"one address of each family", func(s *suite) {
		n := s.network("10.5.0.0/24", "fd00:5::/64", "10.6.0.0/24")
		p := s.port(sdn.PortSpec{Network: n.ID})
		equal(s, "number of addresses", len(p.Addresses), 2)
		families := map[bool]bool{}
		for _, a := range p.Addresses {
			families[a.Addr.Is4()] = true
		}
		equal(s, "number of families", len(families), 2)
		equal(s, "length of the MAC", len(p.MAC), 6)
		equal(s, "multicast bit of the MAC", p.MAC[0]&1, 0)
	}},
	{"profile", func(s *suite) {
		if !s.can.HostBinding {
			s.Skip("profiles are about binding, which this SDN keeps to itself")
		}
		n := s.network("10.5.0.0/24")
		p := s.port(sdn.PortSpec{
			Network: n.ID, Profile: map[string]json.RawMessage{"pci_slot": sdn.ProfileString("0000:03:10.1")},
		})
		equal(s, "profile", sdn.ProfileText(must(s.p.Port(s.ctx, p.ID))(s).Profile["pci_slot"]), "0000:03:10.1")
		other := map[string]json.RawMessage{
			"pci_slot": sdn.ProfileString("0000:03:10.2"), "more": json.RawMessage(`{"n":1,"yes":[true,null]}`),
		}
		must(s.p.UpdatePort(s.ctx, p.ID, sdn.PortPatch{Profile: &other}))(s)
		if got := must(s.p.Port(s.ctx, p.ID))(s).Profile; !sdn.SameProfile(got, other) {
			s.Errorf("after a change the profile is %v, want %v", got, other)
		}
	}},
	{"without addresses", func(s *suite) {
		n := s.network("10.5.0.0/24")
		equal(s, "number of addresses", len(s.port(sdn.PortSpec{Network: n.ID, WithoutAddresses: true}).Addresses), 0)
		equal(s, "number of addresses of an empty list", len(s.port(sdn.PortSpec{Network: n.ID, Addresses: []sdn.Address{}}).Addresses), 0)
		bare := s.network()
		equal(s, "number of addresses without a subnet", len(s.port(sdn.PortSpec{Network: bare.ID}).Addresses), 0)
		_, err := s.tryPort(sdn.PortSpec{Network: n.ID, WithoutAddresses: true, Addresses: []sdn.Address{{Subnet: n.Subnets[0]}}})
		s.invalid(err, "addresses")
	}},
	{"chosen addresses", func(s *suite) {
		if !s.can.ChooseAddress {
			s.Skip("this SDN lets nobody choose")
		}
		n := s.network("10.5.0.0/24", "fd00:5::/64")
		p := s.port(sdn.PortSpec{Network: n.ID, Addresses: []sdn.Address{{Addr: addr("fd00:5::77")}, {Subnet: n.Subnets[0], Addr: addr("10.5.0.77")}}})
		equal(s, "addresses are those asked for, in order", slices.Equal(addresses(p), []netip.Addr{addr("fd00:5::77"), addr("10.5.0.77")}), true)
		for _, c := range []struct {
			a      sdn.Address
			reason sdn.Reason
		}{
			{sdn.Address{Addr: addr("10.5.0.77")}, sdn.AddressInUse},
			{sdn.Address{Addr: addr("fd00:5::77")}, sdn.AddressInUse},
		} {
			_, err := s.tryPort(sdn.PortSpec{Network: n.ID, Addresses: []sdn.Address{c.a}})
			s.conflict(err, c.reason)
		}
		for _, a := range []sdn.Address{{}, {Addr: addr("10.99.0.1")}, {Subnet: n.Subnets[1], Addr: addr("10.5.0.8")}, {Addr: addr("10.5.0.255")}} {
			_, err := s.tryPort(sdn.PortSpec{Network: n.ID, Addresses: []sdn.Address{a}})
			s.invalid(err, "addresses[0]")
		}
		_, err := s.tryPort(sdn.PortSpec{Network: n.ID, Addresses: []sdn.Address{{Addr: addr("10.5.0.8")}, {Addr: addr("10.5.0.8")}}})
		s.invalid(err, "addresses")
		s.port(sdn.PortSpec{Network: n.ID, Addresses: []sdn.Address{{Addr: addr("10.5.0.8")}}}) // it was not lost
		// Last, as an SDN may choose any address.
		two := s.port(sdn.PortSpec{Network: n.ID, Addresses: []sdn.Address{{Subnet: n.Subnets[0]}, {Subnet: n.Subnets[0]}}})
		equal(s, "number of addresses of one subnet", len(two.Addresses), 2)
	}},
	{"chosen MAC", func(s *suite) {
		if !s.can.ChooseMAC {
			s.Skip("this SDN lets nobody choose")
		}
		n, other := s.network("10.5.0.0/24"), s.network()
		mac := net.HardwareAddr{0x02, 0, 0, 0, 0, 7}
		p := s.port(sdn.PortSpec{Network: n.ID, MAC: mac})
		equal(s, "MAC", p.MAC.String(), mac.String())
		_, err := s.tryPort(sdn.PortSpec{Network: n.ID, MAC: mac})
		s.conflict(err, sdn.MACInUse)
		s.port(sdn.PortSpec{Network: other.ID, MAC: mac})
		q := s.port(sdn.PortSpec{Network: n.ID})
		_, err = s.p.UpdatePort(s.ctx, q.ID, sdn.PortPatch{MAC: mac})
		s.conflict(err, sdn.MACInUse)
		changed := must(s.p.UpdatePort(s.ctx, q.ID, sdn.PortPatch{MAC: net.HardwareAddr{2, 0, 0, 0, 0, 8}}))(s)
		equal(s, "MAC after a change", changed.MAC.String(), "02:00:00:00:00:08")
		for _, bad := range []net.HardwareAddr{{1, 2, 3}, {3, 0, 0, 0, 0, 1}, {0xff, 0xff, 0xff, 0xff, 0xff, 0xff}} {
			_, err := s.tryPort(sdn.PortSpec{Network: n.ID, MAC: bad})
			s.invalid(err, "mac")
		}
		found := must(sdn.All(s.p.FindPorts(s.ctx, sdn.PortQuery{Networks: []sdn.ID{n.ID}, MACs: []net.HardwareAddr{mac}})))(s)
		equal(s, "number found by MAC", len(found), 1)
		equal(s, "found", found[0].ID, p.ID)
	}},
	{"immutable", func(s *suite) {
		n, other := s.network("10.5.0.0/24"), s.network()
		spec := sdn.PortSpec{Base: s.base("port"), Network: n.ID}
		s.port(spec)
		spec.Network = other.ID
		_, err := s.tryPort(spec)
		s.immutable(err, "network")
	}},
	{"ensure sets what differs", func(s *suite) {
		n := s.network("10.5.0.0/24")
		spec := sdn.PortSpec{Base: s.base("port"), Network: n.ID, DeviceID: "one"}
		a := s.port(spec)
		spec.DeviceID, spec.Name = "two", "renamed-"+s.run
		spec.AllowedPairs = []sdn.AllowedPair{{Prefix: prefix("10.5.0.129/25")}}
		b := s.port(spec)
		equal(s, "device", b.DeviceID, "two")
		equal(s, "name", b.Name, spec.Name)
		equal(s, "number of allowed pairs", len(b.AllowedPairs), 1)
		equal(s, "allowed pair", b.AllowedPairs[0].Prefix, prefix("10.5.0.129/25"))
		equal(s, "addresses stay", slices.Equal(a.Addresses, b.Addresses), true)
		if s.can.ChooseAddress {
			spec.Addresses = []sdn.Address{{Addr: addr("10.5.0.200")}}
			c := s.port(spec)
			equal(s, "addresses are those asked for", slices.Equal(addresses(c), []netip.Addr{addr("10.5.0.200")}), true)
			s.port(sdn.PortSpec{Network: n.ID, Addresses: []sdn.Address{{Addr: a.Addresses[0].Addr}}}) // the old one is free
		}
	}},
	{"update addresses", func(s *suite) {
		n := s.network("10.5.0.0/24", "fd00:5::/64")
		p := s.port(sdn.PortSpec{Network: n.ID, Addresses: []sdn.Address{{Subnet: n.Subnets[0]}}})
		kept := p.Addresses[0]
		more := must(s.p.UpdatePort(s.ctx, p.ID, sdn.PortPatch{Addresses: &[]sdn.Address{kept, {Subnet: n.Subnets[1]}}}))(s)
		equal(s, "number of addresses", len(more.Addresses), 2)
		equal(s, "the kept address", more.Addresses[0], kept)
		none := must(s.p.UpdatePort(s.ctx, p.ID, sdn.PortPatch{Addresses: &[]sdn.Address{}}))(s)
		equal(s, "number of addresses", len(none.Addresses), 0)
		equal(s, "used addresses", must(s.p.SubnetUsage(s.ctx, n.Subnets[0]))(s).Used, 0)
		s.ok(s.p.DeleteSubnet(s.ctx, n.Subnets[0]))
	}},
	{"a failed update changes nothing", func(s *suite) {
		if !s.can.ChooseAddress {
			s.Skip("this SDN lets nobody choose")
		}
		n := s.network("10.5.0.0/29")
		p, q := s.port(sdn.PortSpec{Network: n.ID}), s.port(sdn.PortSpec{Network: n.ID})
		before := must(s.p.SubnetUsage(s.ctx, n.Subnets[0]))(s)
		_, err := s.p.UpdatePort(s.ctx, p.ID, sdn.PortPatch{Addresses: &[]sdn.Address{{Subnet: n.Subnets[0]}, {Subnet: n.Subnets[0]}, q.Addresses[0]}, DeviceID: ptr("x")})
		s.conflict(err, sdn.AddressInUse)
		got := must(s.p.Port(s.ctx, p.ID))(s)
		equal(s, "addresses stay", slices.Equal(got.Addresses, p.Addresses), true)
		equal(s, "device", got.DeviceID, "")
		equal(s, "usage", must(s.p.SubnetUsage(s.ctx, n.Subnets[0]))(s), before)
	}},
	{"binding", func(s *suite) {
		if s.fixture.Host == "" || !s.can.HostBinding {
			s.Skip("there is no host to bind to")
		}
		n := s.network("10.5.0.0/24")
		p := s.port(sdn.PortSpec{Network: n.ID})
		equal(s, "VIF type without a host", p.VIF.Type, sdn.VIFUnbound)
		bound := must(s.p.UpdatePort(s.ctx, p.ID, sdn.PortPatch{Host: &s.fixture.Host}))(s)
		equal(s, "host", bound.Host, s.fixture.Host)
		if bound.VIF.Type == sdn.VIFUnbound || bound.VIF.Type == "" {
			s.Errorf("the VIF of a bound port is %+v", bound.VIF)
		}
		if d := bound.VIF.Details; bound.VIF.Type == sdn.VIFBridge && d[sdn.DetailBridge] == "" && d[sdn.DetailNamespace] != "" {
			s.Error("the VIF names a namespace, and no bridge in it")
		}
		again := must(s.p.UpdatePort(s.ctx, p.ID, sdn.PortPatch{Host: ptr("")}))(s)
		equal(s, "VIF type after unbinding", again.VIF.Type, sdn.VIFUnbound)
		spec := sdn.PortSpec{Network: n.ID, Host: "no-such-host.invalid"}
		if _, err := s.tryPort(spec); err == nil || sdn.FieldOf(err) != "host" {
			s.Errorf("bound to a host that does not exist: error %v, want one that names the host", err)
		}
	}},
	{"port security", func(s *suite) {
		n := s.network("10.5.0.0/24")
		p := s.port(sdn.PortSpec{Network: n.ID})
		equal(s, "no port security by default", p.NoPortSecurity, false)
		for _, off := range []bool{true, false} {
			got := must(s.p.UpdatePort(s.ctx, p.ID, sdn.PortPatch{NoPortSecurity: &off, Groups: &[]sdn.ID{}}))(s)
			equal(s, "no port security", got.NoPortSecurity, off)
		}
	}},
	{"delete at a revision", func(s *suite) {
		n := s.network("10.5.0.0/24")
		p := s.port(sdn.PortSpec{Network: n.ID})
		claimed := must(s.p.UpdatePort(s.ctx, p.ID, sdn.PortPatch{DeviceID: ptr("claimed")}))(s)
		s.conflict(s.p.DeletePort(s.ctx, p.ID, p.Revision), sdn.Stale)
		equal(s, "device", must(s.p.Port(s.ctx, p.ID))(s).DeviceID, "claimed")
		s.ok(s.p.DeletePort(s.ctx, p.ID, claimed.Revision))
		s.ok(s.p.DeletePort(s.ctx, p.ID, claimed.Revision)) // absent
		_, err := s.p.Port(s.ctx, p.ID)
		s.notFound(err)
		q := s.port(sdn.PortSpec{Network: n.ID})
		s.ok(s.p.DeletePort(s.ctx, q.ID, 0))
		equal(s, "used addresses", must(s.p.SubnetUsage(s.ctx, n.Subnets[0]))(s).Used, 0)
	}},
	{"waiting ends with the context", func(s *suite) {
		n := s.network("10.5.0.0/24")
		p := s.port(sdn.PortSpec{Network: n.ID})
		s.ok(s.p.WaitPorts(s.ctx, []sdn.ID{p.ID}, sdn.PortDown))
		ctx, cancel := context.WithTimeout(s.ctx, 50*time.Millisecond)
		defer cancel()
		if err := s.p.WaitPorts(ctx, []sdn.ID{p.ID}, sdn.PortActive); err == nil {
			s.Error("a port without a host is said to be active")
		}
	}},
	{"find", func(s *suite) {
		n := s.network("10.5.0.0/24", "fd00:5::/64")
		p := s.port(sdn.PortSpec{Network: n.ID, DeviceID: "dev-" + s.run, DeviceOwner: sdn.OwnerContainer})
		s.port(sdn.PortSpec{Network: n.ID})
		v4 := p.Addresses[slices.IndexFunc(p.Addresses, func(a sdn.Address) bool { return a.Addr.Is4() })]
		v6 := p.Addresses[slices.IndexFunc(p.Addresses, func(a sdn.Address) bool { return a.Addr.Is6() })]
		for name, q := range map[string]sdn.PortQuery{
			"id":            {Match: sdn.Match{IDs: []sdn.ID{p.ID, absent, p.ID}}},
			"key":           {Match: sdn.Match{Keys: []sdn.Key{p.Key}}},
			"device":        {Devices: []string{p.DeviceID}},
			"address":       {Subnets: []sdn.ID{v4.Subnet}, Addresses: []netip.Addr{v4.Addr}},
			"MAC":           {Networks: []sdn.ID{n.ID}, MACs: []net.HardwareAddr{p.MAC}},
			"network+owner": {Networks: []sdn.ID{n.ID}, DeviceOwners: []string{sdn.OwnerContainer}},
		} {
			found := must(sdn.All(s.p.FindPorts(s.ctx, q)))(s)
			if len(found) != 1 || found[0].ID != p.ID {
				s.Errorf("by %s found %d ports, want the one", name, len(found))
			}
		}
		equal(s, "number found by subnet", len(must(sdn.All(s.p.FindPorts(s.ctx, sdn.PortQuery{Subnets: []sdn.ID{v4.Subnet}})))(s)), 2)
		crossed := sdn.PortQuery{Subnets: []sdn.ID{v4.Subnet}, Addresses: []netip.Addr{v6.Addr}}
		equal(s, "number found by one address's subnet and another's address", len(must(sdn.All(s.p.FindPorts(s.ctx, crossed)))(s)), 0)
	}},
	{"find many", func(s *suite) {
		n := s.network("10.5.0.0/16")
		specs := make([]sdn.PortSpec, 300)
		for i := range specs {
			specs[i] = sdn.PortSpec{Base: s.base("port"), Network: n.ID, DeviceID: "many-" + s.run}
		}
		size := 300
		if s.can.MaxBulk < 300 { // a remote SDN: fewer will do
			size = 12
		}
		ports := must(s.p.EnsurePorts(s.ctx, specs[:size]))(s)
		for _, q := range []sdn.PortQuery{{Devices: []string{"many-" + s.run}}, {Networks: []sdn.ID{n.ID}}, {Subnets: n.Subnets}} {
			seen := map[sdn.ID]bool{}
			for p, err := range s.p.FindPorts(s.ctx, q) {
				s.ok(err)
				equal(s, "seen before", seen[p.ID], false)
				seen[p.ID] = true
			}
			equal(s, "number found", len(seen), size)
		}
		ids := make([]sdn.ID, size)
		for i, p := range ports {
			ids[i] = p.ID
		}
		s.ok(s.p.DeletePorts(s.ctx, ids))
		s.ok(s.p.DeletePorts(s.ctx, ids))
		equal(s, "used addresses", must(s.p.SubnetUsage(s.ctx, n.Subnets[0]))(s).Used, 0)
	}},
	{"invalid", func(s *suite) {
		n := s.network("10.5.0.0/24")
		_, err := s.tryPort(sdn.PortSpec{Network: absent})
		s.notFound(err)
		_, err = s.tryPort(sdn.PortSpec{Network: n.ID, Addresses: []sdn.Address{{Subnet: absent}}})
		s.notFound(err)
		_, err = s.tryPort(sdn.PortSpec{Network: n.ID, WithoutGroups: true, Groups: []sdn.ID{absent}})
		s.invalid(err, "groups")
		_, err = s.tryPort(sdn.PortSpec{Network: n.ID, AllowedPairs: []sdn.AllowedPair{{}}})
		s.invalid(err, "allowed_pairs[0]")
	}},
}

var bulkTests = []test{
	{"by position", func(s *suite) {
		n := s.network("10.6.0.0/24")
		specs := make([]sdn.PortSpec, 7)
		for i := range specs {
			specs[i] = sdn.PortSpec{Base: s.base("port"), Network: n.ID}
		}
		ports := must(s.p.EnsurePorts(s.ctx, specs))(s)
		equal(s, "number of ports", len(ports), len(specs))
		seen, names := map[netip.Addr]bool{}, map[string]bool{}
		for i, p := range ports {
			equal(s, "key", p.Key, specs[i].Key)
			equal(s, "the part of the id that interface names carry is another's", names[p.ID.Short()], false)
			names[p.ID.Short()] = true
			equal(s, "address given twice", seen[p.Addresses[0].Addr], false)
			seen[p.Addresses[0].Addr] = true
		}
		again := must(s.p.EnsurePorts(s.ctx, specs))(s)
		for i := range again {
			equal(s, "id", again[i].ID, ports[i].ID)
		}
		s.dropAll(ports)
	}},
	{"none", func(s *suite) {
		equal(s, "number of ports", len(must(s.p.EnsurePorts(s.ctx, nil))(s)), 0)
	}},
	{"one bad of three", func(s *suite) {
		n := s.network("10.6.0.0/24")
		specs := []sdn.PortSpec{
			{Base: s.base("a"), Network: n.ID}, {Base: s.base("b"), Network: n.ID, Addresses: []sdn.Address{{Addr: addr("10.66.0.1")}}}, {Base: s.base("c"), Network: n.ID},
		}
		ports, err := s.p.EnsurePorts(s.ctx, specs)
		s.invalid(err, "addresses[0]")
		equal(s, "number of answers", len(ports), 3)
		errs := bulkErrors(err)
		equal(s, "number of errors", len(errs), 3)
		if len(errs) == 3 {
			equal(s, "the good ones have no error", errs[0] == nil && errs[2] == nil, true)
			s.invalid(errs[1], "addresses[0]")
		}
		equal(s, "the bad one has no id", ports[1].ID, "")
		for i, spec := range specs {
			found := must(sdn.All(s.p.FindPorts(s.ctx, sdn.PortQuery{Match: sdn.Match{Keys: []sdn.Key{spec.Key}}})))(s)
			equal(s, "exists as was answered", len(found) == 1, i != 1)
		}
		equal(s, "used addresses", must(s.p.SubnetUsage(s.ctx, n.Subnets[0]))(s).Used, 2)
		specs[1].Addresses = nil
		mended := must(s.p.EnsurePorts(s.ctx, specs))(s)
		equal(s, "id after the repeat", mended[0].ID, ports[0].ID)
		s.dropAll(mended)
	}},
	{"exhaustion loses no address", func(s *suite) {
		n := s.network("10.6.0.0/29", "fd00:6::/64") // 5 IPv4 addresses
		specs := make([]sdn.PortSpec, 7)
		for i := range specs {
			specs[i] = sdn.PortSpec{Base: s.base("port"), Network: n.ID}
		}
		ports, err := s.p.EnsurePorts(s.ctx, specs)
		s.exhausted(err, sdn.NoAddresses)
		made := 0
		for _, p := range ports {
			if p.ID != "" {
				made++
			}
		}
		equal(s, "ports made", made, 5)
		equal(s, "used IPv6 addresses", must(s.p.SubnetUsage(s.ctx, n.Subnets[1]))(s).Used, 5)
		s.dropAll(ports)
		equal(s, "used IPv4 addresses", must(s.p.SubnetUsage(s.ctx, n.Subnets[0]))(s).Used, 0)
		again := must(s.p.EnsurePorts(s.ctx, specs[:5]))(s)
		s.dropAll(again)
	}},
	{"two for one address", func(s *suite) {
		if !s.can.ChooseAddress {
			s.Skip("this SDN lets nobody choose")
		}
		n := s.network("10.6.0.0/24")
		want := []sdn.Address{{Addr: addr("10.6.0.9")}}
		ports, err := s.p.EnsurePorts(s.ctx, []sdn.PortSpec{{Base: s.base("a"), Network: n.ID, Addresses: want}, {Base: s.base("b"), Network: n.ID, Addresses: want}})
		s.conflict(err, sdn.AddressInUse)
		equal(s, "one of them has it", ports[0].ID != "" != (ports[1].ID != ""), true)
		s.dropAll(ports)
	}},
	{"one of three cannot be deleted", func(s *suite) {
		if !s.can.Routers {
			s.Skip("this SDN has no ports of its own to try it on")
		}
		n := s.network("10.6.0.0/24")
		r := s.router(nil)
		s.attach(r.ID, n.Subnets[0])
		leg := must(s.p.Router(s.ctx, r.ID))(s).Interfaces[0].Port
		if leg == "" {
			s.Skip("the legs of this SDN are no ports")
		}
		a, b := s.port(sdn.PortSpec{Network: n.ID}), s.port(sdn.PortSpec{Network: n.ID})
		err := s.p.DeletePorts(s.ctx, []sdn.ID{a.ID, leg, b.ID})
		s.conflict(err, sdn.InUse)
		errs := bulkErrors(err)
		equal(s, "number of errors", len(errs), 3)
		if len(errs) == 3 {
			equal(s, "the others have no error", errs[0] == nil && errs[2] == nil, true)
		}
		for _, id := range []sdn.ID{a.ID, b.ID} {
			_, err := s.p.Port(s.ctx, id)
			s.notFound(err)
		}
		must(s.p.Port(s.ctx, leg))(s)
	}},
	{"full network", func(s *suite) {
		if s.can.PortsPerNetwork == 0 || s.can.PortsPerNetwork > 2000 || s.can.MaxBulk < s.can.PortsPerNetwork {
			s.Skip("this SDN's networks are never full, or filling one takes too long")
		}
		n := s.network("10.6.0.0/16")
		specs := make([]sdn.PortSpec, s.can.PortsPerNetwork+1)
		for i := range specs {
			specs[i] = sdn.PortSpec{Base: s.base("port"), Network: n.ID}
		}
		ports, err := s.p.EnsurePorts(s.ctx, specs)
		s.exhausted(err, sdn.NoPorts)
		equal(s, "the last one was made", ports[s.can.PortsPerNetwork].ID != "", false)
		s.ok(s.p.DeletePorts(s.ctx, []sdn.ID{ports[0].ID}))
		last := must(s.p.EnsurePorts(s.ctx, specs[s.can.PortsPerNetwork:]))(s)
		s.dropAll(append(ports, last...))
	}},
}

func (s *suite) dropAll(ports []sdn.Port) {
	s.Helper()
	var ids []sdn.ID
	for _, p := range ports {
		ids = append(ids, p.ID)
	}
	s.ok(s.p.DeletePorts(s.ctx, ids))
}
