//go:build linux

package securitygroup

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/kuryr/kuryr/datapath/nft"
	"github.com/kuryr/kuryr/internal/nstest"
)

// BenchmarkRemoveHost removes a host of an address group with 10,000 of them and adds it again,
// in turns in the interval set that versions before hostSet have, and in the hash set. It
// reports the medians of the removals, and their ratio.
func BenchmarkRemoveHost(b *testing.B) {
	const count = 10000
	var hosts Set
	hosts.ID = "hosts"
	for n := range count {
		a := netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)})
		hosts.Prefixes = append(hosts.Prefixes, netip.PrefixFrom(a, 32))
	}
	c, err := nft.Dial(int(nstest.New(b)))
	must(b, err)
	b.Cleanup(func() { _ = c.Close() })
	x := nft.Begin(c)
	x.AddTable(filter)
	for _, s := range addressSets(hosts.ID) {
		x.AddSet(filter, s)
	}
	x.AddSet(filter, nft.RangeSet(earlierSet(hosts.ID, nft.V4), nft.V4))
	now := hosts.elements()
	var before []nft.Element
	for _, p := range hosts.Prefixes {
		before = append(before, prefixElement(earlierSet, hosts.ID, p))
	}
	x.AddElements(filter, slices.Concat(now, before))
	must(b, x.Commit())
	change := func(queue func(*nft.Transaction)) time.Duration {
		x := nft.Begin(c)
		queue(x)
		began := time.Now()
		must(b, x.Commit())
		return time.Since(began)
	}
	took := map[bool][]time.Duration{}
	for n := 0; b.Loop(); n++ {
		i := n * 7919 % count
		for hashed, list := range map[bool][]nft.Element{true: now, false: before} {
			one := list[i : i+1]
			took[hashed] = append(took[hashed],
				change(func(x *nft.Transaction) { x.DeleteElements(filter, one) }))
			change(func(x *nft.Transaction) { x.AddElements(filter, one) })
		}
	}
	median := func(hashed bool) float64 {
		slices.Sort(took[hashed])
		return took[hashed][len(took[hashed])/2].Seconds()
	}
	b.ReportMetric(median(false)*1000, "ms/interval")
	b.ReportMetric(median(true)*1000, "ms/hash")
	b.ReportMetric(median(true)/median(false), "ratio")
}
