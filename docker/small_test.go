package docker

import (
	"context"
	"math/rand/v2"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/kuryr/kuryr/sdn"
)

func drawPrefix(r *rapid.T, name string, v6 bool) netip.Prefix {
	size := 4
	if v6 {
		size = 16
	}
	a, _ := netip.AddrFromSlice(rapid.SliceOfN(rapid.Byte(), size, size).Draw(r, name))
	if a.Is4In6() {
		a = a.Unmap()
	}
	return netip.PrefixFrom(a, rapid.IntRange(1, a.BitLen()).Draw(r, name+" length")).Masked()
}

func TestWithin(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ sub, cidr, want string }{
		{"10.0.8.0/24", "10.0.0.0/16", "10.0.8.0-10.0.8.255"},
		{"10.0.0.0/24", "10.0.0.0/16", "10.0.0.1-10.0.0.255"},
		{"10.0.255.0/24", "10.0.0.0/16", "10.0.255.0-10.0.255.254"},
		{"10.0.0.0/24", "10.0.0.0/24", "10.0.0.1-10.0.0.254"},
		{"10.0.0.0/31", "10.0.0.0/31", "10.0.0.0-10.0.0.1"},
		{"10.0.0.0/32", "10.0.0.0/24", ""},
		{"fd00::/80", "fd00::/64", "fd00::1-fd00::ffff:ffff:ffff"},
		{"fd00::ff00/120", "fd00::/112", "fd00::ff00-fd00::ffff"},
	} {
		got := ""
		if r := within(netip.MustParsePrefix(c.sub), netip.MustParsePrefix(c.cidr)); len(r) == 1 {
			got = r[0].First.String() + "-" + r[0].Last.String()
		}
		if got != c.want {
			t.Errorf("%s in %s: %s, want %s", c.sub, c.cidr, got, c.want)
		}
	}
}

// Every Key fits where an SDN keeps it, for the longest ids an engine may send.
func TestKeysFit(t *testing.T) {
	t.Parallel()
	owner := strings.Repeat("f", 36)
	id := strings.Repeat("x", 128)
	rapid.Check(t, func(r *rapid.T) {
		v6 := rapid.Bool().Draw(r, "IPv6")
		name := newPoolName("0123abcd", poolName{space: rapid.StringMatching(`[a-z_]{0,24}`).Draw(r, "space"), cidr: drawPrefix(r, "range", v6), sub: drawPrefix(r, "sub", v6)})
		switch rapid.IntRange(0, 2).Draw(r, "of") {
		case 1:
			name.sub, name.ofSubnet = netip.Prefix{}, sdn.ID(uuid.NewString())
		case 2:
			name.sub, name.ofPool = netip.Prefix{}, sdn.ID(uuid.NewString())
		}
		if back, ok := parsePoolName(name.String()); !ok || back != name {
			r.Fatalf("%q was read as %+v", name, back)
		}
		for _, k := range []sdn.Key{
			{Owner: owner, Kind: kindPool, Name: name.String()},
			{Owner: owner, Kind: kindSubnet, Name: id + "/4.9"},
			{Owner: owner, Kind: kindEndpoint, Name: id},
			{Owner: owner, Kind: kindPublish, Name: id + "/6"},
			{Owner: owner, Kind: kindRouter, Name: id},
			{Owner: owner, Kind: kindLink, Name: "0123abcd/" + id},
		} {
			if err := k.Validate(); err != nil {
				r.Fatal(err)
			}
		}
	})
}

func TestLocks(t *testing.T) {
	t.Parallel()
	var l locks
	var wg sync.WaitGroup
	counts := make([]int, 4)
	for range 200 {
		wg.Go(func() {
			i, j := rand.IntN(len(counts)), rand.IntN(len(counts))
			unlock, err := l.lock(t.Context(), string(rune('a'+i)), string(rune('a'+j)))
			if err != nil {
				t.Error(err)
				return
			}
			counts[i]++
			counts[j]++
			unlock()
		})
	}
	wg.Wait()
	sum := 0
	for _, n := range counts {
		sum += n
	}
	if sum != 400 || l.named.Held() != 0 {
		t.Errorf("%d counted, %d locks left", sum, l.named.Held())
	}
	unlock, err := l.lock(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.lock(ended, "A", "a"); err == nil {
		t.Error("a held lock was taken")
	}
	unlock()
	if l.named.Held() != 0 {
		t.Errorf("locks left: %v", l.named.Held())
	}
}
