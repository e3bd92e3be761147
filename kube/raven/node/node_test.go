package node

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/kuryr/kuryr/sdn"
	"pgregory.net/rapid"
)

// A range without holes has all addresses that no hole has, and no other.
func TestWithout(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var holes []netip.Prefix
		for range rapid.IntRange(0, 5).Draw(t, "holes") {
			a := netip.AddrFrom4([4]byte{10, 0, 0, rapid.Byte().Draw(t, "hole")})
			holes = append(holes, netip.PrefixFrom(a, rapid.IntRange(24, 32).Draw(t, "bits")).Masked())
		}
		left := without(netip.MustParsePrefix("10.0.0.0/23"), holes)
		for i := range 512 {
			a := netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})
			has := func(p netip.Prefix) bool { return p.Contains(a) }
			if slices.ContainsFunc(left, has) == slices.ContainsFunc(holes, has) {
				t.Fatalf("%v without %v is %v: %s", "10.0.0.0/23", holes, left, a)
			}
		}
	})
	got := without(netip.MustParsePrefix("::/0"), []netip.Prefix{netip.MustParsePrefix("8000::/1")})
	if len(got) != 1 || got[0].String() != "::/1" {
		t.Errorf("%v", got)
	}
}

// The room is the ranges' in equal parts, and what one does not need another has.
func TestSpread(t *testing.T) {
	t.Parallel()
	var four, six, hops []netip.Addr
	for i := range 20 {
		four = append(four, netip.AddrFrom4([4]byte{10, 95, 0, byte(i + 10)}))
	}
	for i := range 20 {
		six = append(six, netip.MustParseAddr(fmt.Sprintf("fd00:95::%x", i+16)))
	}
	hops = slices.Concat(four, six)
	ranges := []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00:96::/112")}
	now := sdn.HostRoute{Destination: ranges[0], NextHop: four[19]}
	for name, of := range map[string]struct {
		hops        []netip.Addr
		now         map[sdn.HostRoute]bool
		room        int
		four, six   int
		left        int
		first, last netip.Addr // hops of IPv4
	}{
		"room for all": {hops, nil, 40, 20, 20, 0, four[0], four[19]},
		"halves":       {hops, nil, 30, 15, 15, 10, four[0], four[14]},
		"few of one":   {slices.Concat(four, six[:2]), nil, 15, 13, 2, 7, four[0], four[12]},
		"what is now":  {hops, map[sdn.HostRoute]bool{now: true}, 4, 2, 2, 36, four[19], four[0]},
		"one of each":  {hops, nil, 2, 1, 1, 38, four[0], four[0]},
	} {
		routes, left := spread(ranges, of.hops, of.now, of.room)
		var by4, by6 []netip.Addr
		for _, route := range routes {
			if route.NextHop.Is4() != route.Destination.Addr().Is4() {
				t.Errorf("%s: %v", name, route)
			}
			if route.NextHop.Is4() {
				by4 = append(by4, route.NextHop)
			} else {
				by6 = append(by6, route.NextHop)
			}
		}
		other := len(by4) > 0 && (by4[0] != of.first || by4[len(by4)-1] != of.last)
		if len(by4) != of.four || len(by6) != of.six || left != of.left || other {
			t.Errorf("%s: %v and %v, left %d", name, by4, by6, left)
		}
	}
}
