package docker

import (
	"context"
	"net/netip"
	"strings"
	"testing"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/internal/ipprefix"
	"github.com/kuryr/kuryr/sdn"
	"pgregory.net/rapid"
)

// A chosen range is one of the pools', overlaps nothing, and is found as long as there is one, wherever the search begins.
func TestFreePrefix(t *testing.T) {
	t.Parallel()
	pools := []AutoPool{{netip.MustParsePrefix("10.0.0.0/21"), 24}, {netip.MustParsePrefix("10.1.0.0/22"), 25}}
	rapid.Check(t, func(r *rapid.T) {
		var routes, taken []netip.Prefix
		b := newBox(t, func(c *Config) {
			c.Pools4 = pools
			c.HostRoutes = func(context.Context) ([]netip.Prefix, error) { return routes, nil }
		})
		draw := func() netip.Prefix {
			a := netip.AddrFrom4([4]byte{10, rapid.Byte().Draw(r, "second") % 2, rapid.Byte().Draw(r, "third") % 16, rapid.Byte().Draw(r, "fourth")})
			return netip.PrefixFrom(a, rapid.IntRange(20, 32).Draw(r, "length")).Masked()
		}
		for range rapid.IntRange(0, 6).Draw(r, "routes") {
			routes = append(routes, draw())
		}
		for range rapid.IntRange(0, 12).Draw(r, "taken") {
			p := draw()
			if _, err := b.driver.makePool(t.Context(), b.driver.newPoolName(identity.PoolName{Space: localSpace, CIDR: p})); err != nil {
				r.Fatal(err)
			}
			taken = append(taken, p)
		}
		taken = append(taken, routes...)
		free := 0
		for _, pool := range pools {
			for p := netip.PrefixFrom(pool.Prefix.Addr(), pool.Len); pool.Prefix.Contains(p.Addr()); p = netip.PrefixFrom(ipprefix.Last(p).Next(), pool.Len) {
				if _, bad := overlapping(p, taken); !bad {
					free++
				}
			}
		}
		for range free {
			pool, err := b.driver.autoPool(t.Context(), &api.RequestPoolRequest{AddressSpace: localSpace})
			if err == nil {
				_, err = b.driver.sdn.SubnetPool(t.Context(), pool.ID)
			}
			if err != nil {
				r.Fatal(err)
			}
			if _, bad := overlapping(pool.CIDR, routes); bad || !cutFrom(pools, pool.CIDR) {
				r.Fatalf("%s was chosen, with routes %v", pool.CIDR, routes)
			}
		}
		if p, err := b.driver.freePrefix(t.Context(), pools, netip.Addr{}, routes); err == nil {
			r.Fatalf("%s is free beyond the %d there are", p, free)
		}
	})
}

// No pool overlaps another that is chosen, up to the end of the address space.
func TestFreePrefixAtTheEnd(t *testing.T) {
	t.Parallel()
	b := newBox(t, func(c *Config) { c.Pools4 = []AutoPool{{netip.MustParsePrefix("255.255.254.0/23"), 24}} })
	for _, want := range []string{"255.255.254.0/24", "255.255.255.0/24"} {
		pool, err := b.driver.autoPool(t.Context(), &api.RequestPoolRequest{AddressSpace: localSpace})
		if err != nil || pool.CIDR.String() != want {
			t.Errorf("%v %v, want %s", pool.CIDR, err, want)
		}
	}
	if pool, err := b.driver.autoPool(t.Context(), &api.RequestPoolRequest{AddressSpace: localSpace}); err == nil {
		t.Errorf("%s is given beyond the end", pool.CIDR)
	}
}

// Ranges come round: one that was given back is given again once all others were, and not before.
func TestAutoPoolComesRound(t *testing.T) {
	t.Parallel()
	b := newBox(t, func(c *Config) { c.Pools4 = []AutoPool{{netip.MustParsePrefix("10.0.0.0/22"), 24}} })
	choose := func() *network {
		n := &network{v4: []*pool{{}}}
		return b.create(n)
	}
	first, second := choose(), choose()
	b.remove(first)
	for _, want := range []string{"10.0.2.0/24", "10.0.3.0/24", "10.0.0.0/24"} {
		if n := choose(); n.v4[0].cidr != want {
			t.Errorf("%s was given, want %s", n.v4[0].cidr, want)
		}
	}
	b.remove(second)
	if n := choose(); n.v4[0].cidr != "10.0.1.0/24" {
		t.Errorf("%s was given, want the one that was given back", n.v4[0].cidr)
	}
	if found, err := sdn.All(b.provider.FindSubnetPools(t.Context(), sdn.SubnetPoolQuery{Overlaps: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}})); err != nil || len(found) != 4 {
		t.Errorf("%d pools overlap 10.0.0.0/8, %v; want 4", len(found), err)
	}
}

// TestPoolOfALength checks requests for a free range of a length, and that ranges of several
// lengths do not overlap.
func TestPoolOfALength(t *testing.T) {
	t.Parallel()
	b := newBox(t, func(c *Config) {
		c.Pools4 = []AutoPool{
			{netip.MustParsePrefix("10.0.0.0/24"), 26}, {netip.MustParsePrefix("10.1.0.0/22"), 24},
		}
		c.Pools6 = []AutoPool{{netip.MustParsePrefix("fd00::/48"), 64}}
	})
	ask := func(cidr string, v6 bool) m {
		return m{"AddressSpace": localSpace, "Pool": cidr, "V6": v6}
	}
	var given []string
	for _, c := range []struct{ ask, want string }{
		{"0.0.0.0/28", "10.0.0.0/28"},
		{"", "10.0.0.64/26"},
		{"0.0.0.0/25", "10.0.0.128/25"},
		{"0.0.0.0/23", "10.1.0.0/23"},
		{"", "10.1.2.0/24"},
		{"0.0.0.0/30", "10.1.3.0/30"},
		{"0.0.0.0/26", "10.1.3.64/26"},
		{"0.0.0.0/26", "10.1.3.128/26"},
		{"0.0.0.0/26", "10.1.3.192/26"},
		{"0.0.0.0/28", "10.0.0.16/28"},
		{"::/80", "fd00::/80"},
		{"::/48", ""},
		{"::/64", "fd00:0:0:1::/64"},
		{"0.0.0.0/22", ""},
	} {
		v6 := strings.HasPrefix(c.ask, "::")
		if c.want == "" {
			b.contains(b.fails("IpamDriver.RequestPool", ask(c.ask, v6)), "no automatic range is free")
			continue
		}
		p := &pool{cidr: c.ask}
		if b.requestPool(p, v6); p.cidr != c.want {
			t.Errorf("%q was given %s, want %s", c.ask, p.cidr, c.want)
		}
		given = append(given, p.id)
	}
	for _, id := range given {
		b.ok("IpamDriver.ReleasePool", m{"PoolID": id})
	}
	b.contains(b.fails("IpamDriver.RequestPool", ask("0.0.0.0/8", false)), "0.0.0.0/8", "docker.default_pools is a /22")
	b.contains(b.fails("IpamDriver.RequestPool", ask("::/47", true)), "::/47", "docker.default_pools_v6 is a /48")
	named := ask("0.0.0.0/24", false)
	named["Options"] = m{optPool + ".name": "theirs"}
	b.contains(b.fails("IpamDriver.RequestPool", named), optPool+".name", "0.0.0.0/24")
	b.remove(b.create(&network{v4: []*pool{{cidr: "0.0.0.0/26"}}, v6: []*pool{{cidr: "::/80"}}}))
	b.clean()
}
