//go:build linux

package bind

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/kuryr/kuryr/sdn"
	"pgregory.net/rapid"
)

func TestNames(t *testing.T) {
	t.Parallel()
	const id = sdn.ID("4f1b2c3d-5e6f-4a1b-8c2d-3e4f5a6b7c8d")
	for got, want := range map[string]string{
		HostName(id):      "tap4f1b2c3d-5e",
		ContainerName(id): "t_c4f1b2c3d-5e",
		Alias(id):         "kuryr:port:4f1b2c3d-5e6f-4a1b-8c2d-3e4f5a6b7c8d",
	} {
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	if back, ok := PortOf(Alias(id)); !ok || back != id {
		t.Errorf("alias gives %q, %v", back, ok)
	}
	for _, alias := range []string{"", "kuryr:port:", retiredAlias + string(id), "other"} {
		if id, ok := PortOf(alias); ok {
			t.Errorf("alias %q gives %q", alias, id)
		}
	}
	for name, valid := range map[string]bool{
		"eth0": true, "a": true, "a-b_c.d@e": true, "abcdefghijklmno": true,
		"": false, "abcdefghijklmnop": false, ".": false, "..": false, "lo": false, "a/b": false, "a:b": false, "a b": false,
		"eth%d": false, "a\n": false, "a\x00": false, "a\x7f": false,
	} {
		if err := checkName("interface", "name", name); (err == nil) != valid || err != nil && !sdn.IsInvalid(err) {
			t.Errorf("name %q: %v", name, err)
		}
	}
}

// TestRetiredNames: every index gives a name of its own that fits.
func TestRetiredNames(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		a, b := rapid.Int32Range(1, 1<<31-1).Draw(t, "a"), rapid.Int32Range(1, 1<<31-1).Draw(t, "b")
		if err := checkName("interface", "name", retiredName(a)); err != nil {
			t.Fatal(err)
		}
		if (a == b) != (retiredName(a) == retiredName(b)) {
			t.Fatalf("%d and %d are %s and %s", a, b, retiredName(a), retiredName(b))
		}
	})
}

func TestSetup(t *testing.T) {
	t.Parallel()
	addr, cidr := netip.MustParseAddr, netip.MustParsePrefix
	host := func(to, via string) sdn.HostRoute { return sdn.HostRoute{Destination: cidr(to), NextHop: addr(via)} }
	subnets := []sdn.Subnet{
		{
			Meta: sdn.Meta{ID: "a"}, CIDR: cidr("10.0.0.0/24"), Gateway: addr("10.0.0.1"),
			HostRoutes: []sdn.HostRoute{
				host("192.0.2.0/24", "10.0.0.9"), host("0.0.0.0/0", "10.0.0.8"),
				host("169.254.169.254/32", "0.0.0.0"),
			},
		},
		{
			Meta: sdn.Meta{ID: "b"}, CIDR: cidr("10.0.1.0/24"), Gateway: addr("10.0.1.1"),
			HostRoutes: []sdn.HostRoute{host("192.0.2.0/24", "10.0.1.9")},
		},
		{Meta: sdn.Meta{ID: "outside"}, CIDR: cidr("10.0.2.0/24"), Gateway: addr("172.16.0.1")},
		{Meta: sdn.Meta{ID: "none"}, CIDR: cidr("10.0.3.0/24"), HostRoutes: []sdn.HostRoute{host("0.0.0.0/0", "10.0.3.8")}},
		{Meta: sdn.Meta{ID: "six"}, CIDR: cidr("fd00::/64"), Gateway: addr("fe80::1")},
		{Meta: sdn.Meta{ID: "mixed"}, CIDR: cidr("10.0.4.0/24"), Gateway: addr("fd00::1")},
		{
			Meta: sdn.Meta{ID: "mixedroute"}, CIDR: cidr("10.0.5.0/24"),
			HostRoutes: []sdn.HostRoute{host("fd00::/64", "10.0.5.1")},
		},
	}
	cases := map[string]struct {
		addrs []sdn.Address
		want  string // addresses, then routes; "!" for onlink
		field string
	}{
		"no address": {nil, "", ""},
		"one": {
			[]sdn.Address{{Subnet: "a", Addr: addr("10.0.0.5")}},
			"10.0.0.5/24 0.0.0.0/0>10.0.0.1 192.0.2.0/24>10.0.0.9 169.254.169.254/32>0.0.0.0", "",
		},
		"two of one": {
			[]sdn.Address{{Subnet: "b", Addr: addr("10.0.1.5")}, {Subnet: "b", Addr: addr("10.0.1.6")}},
			"10.0.1.5/24 10.0.1.6/24 0.0.0.0/0>10.0.1.1 192.0.2.0/24>10.0.1.9", "",
		},
		"first counts": {
			[]sdn.Address{{Subnet: "b", Addr: addr("10.0.1.5")}, {Subnet: "a", Addr: addr("10.0.0.5")}},
			"10.0.1.5/24 10.0.0.5/24 0.0.0.0/0>10.0.1.1 192.0.2.0/24>10.0.1.9 169.254.169.254/32>0.0.0.0",
			"",
		},
		"is the gateway": {[]sdn.Address{{Subnet: "b", Addr: addr("10.0.1.1")}}, "10.0.1.1/24 192.0.2.0/24>10.0.1.9", ""},
		"gateway outside": {
			[]sdn.Address{{Subnet: "outside", Addr: addr("10.0.2.5")}}, "10.0.2.5/24 0.0.0.0/0>172.16.0.1!",
			"",
		},
		"default by route": {[]sdn.Address{{Subnet: "none", Addr: addr("10.0.3.5")}}, "10.0.3.5/24 0.0.0.0/0>10.0.3.8", ""},
		"both families": {
			[]sdn.Address{{Subnet: "six", Addr: addr("fd00::5")}, {Subnet: "b", Addr: addr("10.0.1.5")}},
			"fd00::5/64 10.0.1.5/24 ::/0>fe80::1 0.0.0.0/0>10.0.1.1 192.0.2.0/24>10.0.1.9", "",
		},
		"unknown subnet":    {[]sdn.Address{{Subnet: "z", Addr: addr("10.0.1.1")}}, "", "subnets"},
		"other family":      {[]sdn.Address{{Subnet: "a", Addr: addr("fd00::5")}}, "", "addresses"},
		"no addr":           {[]sdn.Address{{Subnet: "a"}}, "", "addresses"},
		"gateway's family":  {[]sdn.Address{{Subnet: "mixed", Addr: addr("10.0.4.5")}}, "", "gateway"},
		"host route family": {[]sdn.Address{{Subnet: "mixedroute", Addr: addr("10.0.5.5")}}, "", "host_routes"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conf, err := newSetup(sdn.Port{Addresses: c.addrs}, subnets)
			if sdn.FieldOf(err) != c.field || (err != nil) != (c.field != "") {
				t.Fatalf("error is %v, want one about %q", err, c.field)
			}
			var got []string
			for _, a := range conf.addrs {
				got = append(got, a.String())
			}
			for _, r := range conf.routes {
				got = append(got, fmt.Sprintf("%s>%s%s", r.to, r.via, map[bool]string{true: "!"}[r.onlink]))
			}
			if s := strings.Join(got, " "); s != c.want {
				t.Errorf("setup is %q, want %q", s, c.want)
			}
		})
	}
}

func TestBroadcast(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p := netip.PrefixFrom(
			netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, rapid.Uint32().Draw(t, "addr")))),
			rapid.IntRange(1, 30).Draw(t, "bits"),
		)
		last, _ := netip.AddrFromSlice(broadcast(p))
		if !p.Contains(last) || p.Contains(last.Next()) {
			t.Fatalf("broadcast of %s is %s", p, last)
		}
	})
}

func TestLinkLocal(t *testing.T) {
	t.Parallel()
	if got := linkLocal([]byte{0xfa, 0x16, 0x3e, 1, 2, 3}); got != netip.MustParseAddr("fe80::f816:3eff:fe01:203") {
		t.Errorf("link-local address is %s", got)
	}
}

func FuzzParseLink(f *testing.F) {
	var b batch
	b.add("", 0, 0, ifInfo(0, 7, 1, 0))
	b.text(3, "tap0")
	b.nest(18, func() { b.attr(1, []byte("veth")) })
	b.close()
	f.Add(b.buf[16:])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		if l, err := parseLink(b); err == nil && len(b) < sizeIfInfo {
			t.Errorf("%v of %d bytes", l, len(b))
		}
		_ = ackError(b, 0x200)
	})
}
