package neutron

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/neutron/neutrontest"
	"pgregory.net/rapid"
)

func pfx(s string) netip.Prefix { return netip.MustParsePrefix(s) }
func ip(s string) netip.Addr    { return netip.MustParseAddr(s) }

func prefixes(all ...string) (out []netip.Prefix) {
	for _, s := range all {
		out = append(out, pfx(s))
	}
	return out
}

func ranges(text string) (out []sdn.AddressRange) {
	for _, r := range strings.Fields(text) {
		first, last, _ := strings.Cut(r, "-")
		out = append(out, sdn.AddressRange{First: ip(first), Last: ip(last)})
	}
	return out
}

func TestAllocatable(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ cidr, gateway, ranges, reserved, want string }{
		{"10.0.0.0/24", "10.0.0.1", "", "", "10.0.0.2-10.0.0.254"},
		{"10.0.0.0/24", "10.0.0.100", "", "", "10.0.0.1-10.0.0.99 10.0.0.101-10.0.0.254"},
		{"10.0.0.0/24", "", "", "10.0.0.5 192.0.2.1 10.0.0.6", "10.0.0.1-10.0.0.4 10.0.0.7-10.0.0.254"},
		{"10.0.0.0/24", "10.0.0.1", "10.0.0.20-10.0.0.29 10.0.0.10-10.0.0.19", "10.0.0.10", "10.0.0.11-10.0.0.29"},
		{"10.0.0.0/24", "10.0.0.9", "10.0.0.9-10.0.0.9", "", ""},
		{"10.0.0.0/31", "", "", "", "10.0.0.0-10.0.0.1"},
		{"10.0.0.7/32", "", "", "", "10.0.0.7-10.0.0.7"},
		{"fd00::/64", "fd00::1", "", "", "fd00::2-fd00::ffff:ffff:ffff:ffff"},
		{"fd00::/120", "", "", "fd00::ff", "fd00::1-fd00::fe"},
		{"fd00::9/128", "", "", "", "fd00::9-fd00::9"},
	} {
		var gateway netip.Addr
		if c.gateway != "" {
			gateway = ip(c.gateway)
		}
		var reserved []netip.Addr
		for _, a := range strings.Fields(c.reserved) {
			reserved = append(reserved, ip(a))
		}
		got := allocatable(pfx(c.cidr), gateway, ranges(c.ranges), reserved)
		if want := ranges(c.want); !slices.Equal(got, want) {
			t.Errorf("of %s with gateway %s, ranges %s, reserved %s: %v, want %v", c.cidr, c.gateway, c.ranges, c.reserved, got, want)
		}
	}
}

// What is allocatable is exactly what is in a range, is not the gateway and is not reserved, in order and without gaps of nothing.
func TestAllocatableIsASet(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		cidr := pfx("10.0.0.0/28")
		at := func(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, byte(n)}) }
		draw := func(name string) int { return rapid.IntRange(0, 15).Draw(t, name) }
		var in []sdn.AddressRange
		for range rapid.IntRange(1, 3).Draw(t, "ranges") {
			a, b := draw("first"), draw("last")
			in = append(in, sdn.AddressRange{First: at(min(a, b)), Last: at(max(a, b))})
		}
		gateway, reserved := at(draw("gateway")), []netip.Addr{at(draw("reserved")), at(draw("reserved"))}
		out := allocatable(cidr, gateway, in, reserved)
		for n := range 16 {
			a := at(n)
			want := inRanges(in, a) && a != gateway && !slices.Contains(reserved, a)
			if got := inRanges(out, a); got != want {
				t.Fatalf("%v is allocatable: %v, want %v; of %v came %v", a, got, want, in, out)
			}
		}
		for i := 1; i < len(out); i++ {
			if !out[i-1].Last.Next().Less(out[i].First) {
				t.Fatalf("%v are not apart and in order", out)
			}
		}
	})
}

// What is sent of a subnet: the gateway always, for Neutron's own choice for IPv6 is another, holes for what is reserved, no DHCP where there can be none.
func TestSubnetBody(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		spec sdn.SubnetSpec
		want string
	}{
		{sdn.SubnetSpec{CIDR: pfx("10.0.0.0/24")}, "cidr=10.0.0.0/24 gateway_ip=10.0.0.1 ip_version=4"},
		{sdn.SubnetSpec{CIDR: pfx("fd00::/64")}, "cidr=fd00::/64 gateway_ip=fd00::1 ip_version=6"},
		{sdn.SubnetSpec{CIDR: pfx("10.0.0.0/24"), Gateway: sdn.Gateway{None: true}, NoDHCP: true}, "cidr=10.0.0.0/24 enable_dhcp=false gateway_ip=<nil> ip_version=4"},
		{sdn.SubnetSpec{CIDR: pfx("fd00::/64"), Mode: sdn.SLAAC}, "cidr=fd00::/64 ip_version=6 ipv6_address_mode=slaac ipv6_ra_mode=slaac"},
		{sdn.SubnetSpec{CIDR: pfx("10.0.0.0/31"), Gateway: sdn.Gateway{None: true}}, "cidr=10.0.0.0/31 enable_dhcp=false gateway_ip=<nil> ip_version=4"},
		{sdn.SubnetSpec{CIDR: pfx("10.0.0.0/29"), Reserved: []netip.Addr{ip("10.0.0.3")}}, "allocation_pools=[{10.0.0.2 10.0.0.2} {10.0.0.4 10.0.0.6}] cidr=10.0.0.0/29 gateway_ip=10.0.0.1 ip_version=4"},
		{sdn.SubnetSpec{Pool: "p", PrefixLen: 26, Nameservers: []netip.Addr{ip("192.0.2.53")}}, "dns_nameservers=[192.0.2.53] prefixlen=26 subnetpool_id=p"},
		{
			sdn.SubnetSpec{CIDR: pfx("10.0.0.0/24"), HostRoutes: []sdn.HostRoute{{Destination: pfx("192.0.2.0/24"), NextHop: ip("0.0.0.0")}}},
			"cidr=10.0.0.0/24 gateway_ip=10.0.0.1 host_routes=[{192.0.2.0/24 0.0.0.0}] ip_version=4",
		},
	} {
		p, _ := onDouble(t, newDouble(), nil)
		var got []string
		for name, value := range p.subnetBody("n", c.spec) {
			if name != "description" && name != "project_id" && name != "network_id" {
				got = append(got, fmt.Sprintf("%s=%v", name, value))
			}
		}
		slices.Sort(got)
		if text := strings.Join(got, " "); text != c.want {
			t.Errorf("the body is\n  %s, want\n  %s", text, c.want)
		}
	}
}

// A gateway that moves gives its address back to the pool it was left out of, and is left out of it where it comes to.
func TestGatewayMoves(t *testing.T) {
	t.Parallel()
	d := newDouble()
	d.add("networks", map[string]any{"id": "n"})
	p, proxy := onDouble(t, d, nil)
	d.add("subnets", map[string]any{
		"id": "s", "network_id": "n", "cidr": "10.0.0.0/24", "gateway_ip": "10.0.0.1", "enable_dhcp": true,
		"allocation_pools": []any{map[string]any{"start": "10.0.0.2", "end": "10.0.0.254"}},
	})
	got, err := p.UpdateSubnet(t.Context(), "s", sdn.SubnetPatch{Gateway: &sdn.Gateway{Addr: ip("10.0.0.9")}})
	if err != nil {
		t.Fatal(err)
	}
	if want := ranges("10.0.0.1-10.0.0.8 10.0.0.10-10.0.0.254"); !slices.Equal(got.Ranges, want) || got.Gateway != ip("10.0.0.9") {
		t.Errorf("the gateway is %v, the ranges %v", got.Gateway, got.Ranges)
	}
	proxy.Say(neutrontest.Call{Method: "GET", Collection: "ports"}, 1, neutrontest.Answer{Status: 200, Body: `{"ports": [{"device_owner": "compute:kuryr"}]}`})
	_, err = p.UpdateSubnet(t.Context(), "s", sdn.SubnetPatch{Gateway: &sdn.Gateway{Addr: ip("10.0.0.20")}})
	if sdn.ReasonOf(err) != sdn.AddressInUse {
		t.Errorf("the error is %v", err)
	}
	for _, bad := range []sdn.Gateway{{Addr: ip("10.9.0.1")}, {None: true, Addr: ip("10.0.0.1")}} {
		if _, err := p.UpdateSubnet(t.Context(), "s", sdn.SubnetPatch{Gateway: &bad}); sdn.FieldOf(err) != "gateway" {
			t.Errorf("the error is %v", err)
		}
	}
}

// Several prefixes of a subnet pool are one value, in whatever order Neutron keeps them, and a pool grows but does not shrink.
func TestPoolPrefixes(t *testing.T) {
	t.Parallel()
	d := newDouble()
	p, proxy := onDouble(t, d, nil)
	all := prefixes("10.3.0.0/16", "10.1.0.0/16", "10.2.0.0/16")
	spec := sdn.SubnetPoolSpec{Base: sdn.Base{Key: testKey("pool")}, Prefixes: all[:2]}
	if _, err := p.EnsureSubnetPool(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	put := neutrontest.Call{Method: "PUT", Collection: "subnetpools"}
	rand.Shuffle(2, func(i, j int) { spec.Prefixes[i], spec.Prefixes[j] = spec.Prefixes[j], spec.Prefixes[i] })
	if _, err := p.EnsureSubnetPool(t.Context(), spec); err != nil || proxy.Count(put) != 0 {
		t.Errorf("the same prefixes were changed %d times, error %v", proxy.Count(put), err)
	}
	spec.Prefixes = all
	if got, err := p.EnsureSubnetPool(t.Context(), spec); err != nil || len(got.Prefixes) != 3 {
		t.Errorf("the prefixes are %v, error %v", got.Prefixes, err)
	}
	spec.Prefixes = all[:1]
	if _, err := p.EnsureSubnetPool(t.Context(), spec); sdn.ReasonOf(err) != sdn.Immutable || sdn.FieldOf(err) != "prefixes" {
		t.Errorf("the error is %v", err)
	}
	found, err := sdn.All(p.FindSubnetPools(t.Context(), sdn.SubnetPoolQuery{Overlaps: prefixes("10.2.3.0/24")}))
	if err != nil || len(found) != 1 {
		t.Errorf("%d pools overlap, error %v", len(found), err)
	}
	found, err = sdn.All(p.FindSubnetPools(t.Context(), sdn.SubnetPoolQuery{Overlaps: prefixes("172.16.0.0/12")}))
	if err != nil || len(found) != 0 {
		t.Errorf("%d pools overlap, error %v", len(found), err)
	}
}

// What another does to the ranges while the gateway is changed stays.
func TestGatewayMovesWhileRangesChange(t *testing.T) {
	t.Parallel()
	d := newDouble()
	d.add("networks", map[string]any{"id": "n"})
	d.add("subnets", map[string]any{
		"id": "s", "network_id": "n", "cidr": "10.0.0.0/24", "gateway_ip": "10.0.0.1", "enable_dhcp": true,
		"allocation_pools": []any{map[string]any{"start": "10.0.0.2", "end": "10.0.0.254"}},
	})
	changed := false
	d.refuse = func(r *http.Request) (int, string) {
		if r.Method == http.MethodPut && !changed {
			changed = true
			d.objects["subnets"][0]["allocation_pools"] = []any{map[string]any{"start": "10.0.0.100", "end": "10.0.0.200"}}
			d.objects["subnets"][0]["revision_number"] = 7.0
		}
		return 0, ""
	}
	p, _ := onDouble(t, d, nil)
	got, err := p.UpdateSubnet(t.Context(), "s", sdn.SubnetPatch{Gateway: &sdn.Gateway{Addr: ip("10.0.0.254")}})
	if err != nil || !slices.Equal(got.Ranges, ranges("10.0.0.100-10.0.0.200")) || got.Gateway != ip("10.0.0.254") {
		t.Errorf("the gateway is %v, the ranges %v, error %v", got.Gateway, got.Ranges, err)
	}
}

// kuryr-libnetwork sent enable_dhcp as a text, and IPv6 subnets without a mode: Neutron is told the truth value, and a mode only where one is wanted.
func TestPeerB16SubnetBody(t *testing.T) {
	t.Parallel()
	d := newDouble()
	d.add("networks", map[string]any{"id": "n"})
	p, _ := onDouble(t, d, nil)
	for i, c := range []struct {
		spec sdn.SubnetSpec
		mode any
	}{
		{sdn.SubnetSpec{CIDR: pfx("fd00::/64"), NoDHCP: true}, nil},
		{sdn.SubnetSpec{CIDR: pfx("fd01::/64"), Mode: sdn.SLAAC}, "slaac"},
	} {
		c.spec.Network = "n"
		if _, err := p.EnsureSubnet(t.Context(), c.spec); err != nil {
			t.Fatal(err)
		}
		body := d.bodies[i]
		if off, said := body["enable_dhcp"]; said != c.spec.NoDHCP || said && off != false {
			t.Errorf("%v: enable_dhcp is %#v", c.spec.CIDR, off)
		}
		if body["ipv6_address_mode"] != c.mode || body["ipv6_ra_mode"] != c.mode {
			t.Errorf("%v: the modes are %v and %v, want %v", c.spec.CIDR, body["ipv6_address_mode"], body["ipv6_ra_mode"], c.mode)
		}
	}
}
