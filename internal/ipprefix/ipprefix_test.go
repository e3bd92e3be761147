package ipprefix

import (
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// Of prefixes each is in exactly one of those that are kept, and none of these overlaps
// another; the list that was given stays.
func TestWidest(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		list := []netip.Prefix{{}}
		for range rapid.IntRange(0, 20).Draw(rt, "count") {
			b := rapid.SliceOfN(rapid.ByteRange(0, 3), 4, 4).Draw(rt, "address")
			list = append(list, netip.PrefixFrom(netip.AddrFrom4([4]byte(b)), rapid.IntRange(0, 32).Draw(rt, "bits")),
				netip.PrefixFrom(netip.AddrFrom16([16]byte{15: b[0], 14: b[1]}), rapid.IntRange(110, 128).Draw(rt, "bits")))
		}
		before := slices.Clone(list)
		kept := Widest(list)
		if !slices.Equal(list, before) {
			rt.Fatalf("the list has become %v", list)
		}
		for _, p := range slices.Concat(list[1:], kept) {
			in := slices.IndexFunc(kept, func(k netip.Prefix) bool { return k.Bits() <= p.Bits() && k.Contains(p.Addr()) })
			if in < 0 || slices.ContainsFunc(kept[in+1:], p.Overlaps) {
				rt.Errorf("%s of %v: kept %v", p, list, kept)
			}
		}
	})
}

func TestLast(t *testing.T) {
	t.Parallel()
	for p, want := range map[string]string{
		"10.0.0.0/24": "10.0.0.255", "10.0.0.77/30": "10.0.0.79", "10.0.0.1/32": "10.0.0.1", "0.0.0.0/0": "255.255.255.255",
		"fd00::/64": "fd00::ffff:ffff:ffff:ffff", "::1/128": "::1",
	} {
		if got := Last(netip.MustParsePrefix(p)); got != netip.MustParseAddr(want) {
			t.Errorf("the last of %s is %s, want %s", p, got, want)
		}
	}
}
