package engine

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/kuryr/kuryr/internal/ipprefix"
	"github.com/kuryr/kuryr/sdn"
	"pgregory.net/rapid"
)

// Stores makes empty stores of each kind. The bbolt one is not synced.
var Stores = map[string]func(testing.TB) Store{
	"memory": func(testing.TB) Store { return NewMemory() },
}

// onStores runs f on an empty store of each kind.
func onStores(t *testing.T, f func(*testing.T, Store)) {
	t.Helper()
	for name, empty := range Stores {
		t.Run(name, func(t *testing.T) { f(t, empty(t)) })
	}
}

// writing runs f in one transaction on an empty store of each kind.
func writing(t *testing.T, f func(*testing.T, Tx)) {
	t.Helper()
	onStores(t, func(t *testing.T, s Store) {
		w, err := s.Begin(t.Context())
		ok(t, err)
		defer w.Rollback()
		f(t, w)
	})
}

// drawSubnet makes up a subnet small enough for a model that lists its addresses.
func drawSubnet(r *rapid.T) sdn.Subnet {
	base := rapid.SampledFrom([]string{"10.0.0.0", "255.255.255.0", "0.0.0.0", "fd00::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ff00", "::ffff:ffff:ff00"}).Draw(r, "base")
	a := netip.MustParseAddr(base)
	p := netip.PrefixFrom(a, a.BitLen()-rapid.IntRange(0, 7).Draw(r, "host bits")).Masked()
	s := sdn.Subnet{Meta: sdn.Meta{ID: "s"}, CIDR: p}
	all := addressesOf(p)
	pick := rapid.SampledFrom(all)
	if rapid.Bool().Draw(r, "has gateway") {
		s.Gateway = pick.Draw(r, "gateway")
	}
	s.Reserved = rapid.SliceOfN(pick, 0, 3).Draw(r, "reserved")
	if rapid.Bool().Draw(r, "has ranges") {
		at := 0
		for at < len(all) && len(s.Ranges) < 3 {
			first := rapid.IntRange(at, len(all)-1).Draw(r, "first")
			last := rapid.IntRange(first, len(all)-1).Draw(r, "last")
			s.Ranges = append(s.Ranges, sdn.AddressRange{First: all[first], Last: all[last]})
			at = last + 1
		}
	}
	return s
}

func addressesOf(p netip.Prefix) []netip.Addr {
	var out []netip.Addr
	for a := p.Addr(); a.IsValid() && p.Contains(a); a = a.Next() {
		out = append(out, a)
	}
	return out
}

// modelFree lists what may be given out automatically, from the documentation of sdn.SubnetSpec, address by address.
func modelFree(s sdn.Subnet) map[netip.Addr]bool {
	free := map[netip.Addr]bool{}
	all := addressesOf(s.CIDR)
	for i, a := range all {
		hostBits := a.BitLen() - s.CIDR.Bits()
		edge := a.Is4() && hostBits >= 2 && (i == 0 || i == len(all)-1) || a.Is6() && hostBits >= 2 && i == 0
		inRange := len(s.Ranges) == 0
		for _, r := range s.Ranges {
			inRange = inRange || r.First.Compare(a) <= 0 && a.Compare(r.Last) <= 0
		}
		if inRange && !edge && a != s.Gateway && !slices.Contains(s.Reserved, a) {
			free[a] = true
		}
	}
	return free
}

func TestAddressingAgainstModel(t *testing.T) {
	t.Parallel()
	writing(t, func(t *testing.T, root Tx) {
		rapid.Check(t, func(r *rapid.T) {
			s := drawSubnet(r)
			if err := buildAddressing(root, &s, nil); err != nil {
				r.Fatal(err)
			}
			ad, err := openAddressing(root, &s)
			if err != nil {
				r.Fatal(err)
			}
			choices := modelFree(s)
			total := len(choices)
			taken := map[netip.Addr]bool{}
			check := func(err error) {
				if err != nil {
					r.Fatalf("subnet %+v: %v", s, err)
				}
			}
			all := addressesOf(s.CIDR)
			r.Repeat(map[string]func(*rapid.T){
				"take": func(r *rapid.T) {
					a, ok, err := ad.take()
					check(err)
					left := 0
					for c := range choices {
						if !taken[c] {
							left++
						}
					}
					if ok != (left > 0) {
						r.Fatalf("take: %v with %d free", ok, left)
					}
					if ok && (!choices[a] || taken[a]) {
						r.Fatalf("took %v, which is not free", a)
					}
					if ok {
						taken[a] = true
					}
				},
				"claim": func(r *rapid.T) {
					a := rapid.SampledFrom(all).Draw(r, "address")
					err := ad.claim(a)
					if taken[a] && choices[a] {
						if !errors.Is(err, errNotFree) {
							r.Fatalf("claimed %v twice: %v", a, err)
						}
						return
					}
					check(err)
					taken[a] = true
				},
				"release": func(r *rapid.T) {
					for a := range taken {
						check(ad.release(a))
						delete(taken, a)
						break
					}
				},
				"rebuild": func(r *rapid.T) {
					sorted := []netip.Addr{}
					for a := range taken {
						sorted = append(sorted, a)
					}
					slices.SortFunc(sorted, netip.Addr.Compare)
					check(buildAddressing(root, &s, sorted))
					ad, err = openAddressing(root, &s)
					check(err)
				},
				"": func(r *rapid.T) {
					used := 0
					for _, a := range all {
						free, err := ad.free.has(a)
						check(err)
						if free != (choices[a] && !taken[a]) {
							r.Fatalf("%v is free: %v", a, free)
						}
						if choices[a] && taken[a] {
							used++
						}
					}
					want := sdn.SubnetUsage{Total: int64(total), Used: int64(used), Free: int64(total - used)}
					if got := ad.usage(); got != want {
						r.Fatalf("usage %+v, want %+v", got, want)
					}
					if err := wellFormed(ad.free); err != nil {
						r.Fatal(err)
					}
				},
			})
		})
	})
}

// wellFormed checks that intervals are in order, apart, and as few as can be.
func wellFormed(s intervals) error {
	var last netip.Addr
	for k, v := range s.tx.Seek(s.free, nil) {
		iv, err := decodeInterval(k, v)
		if err != nil {
			return err
		}
		if last.IsValid() && (!last.Less(iv.first) || last.Next() == iv.first) {
			return fmt.Errorf("interval %v-%v touches the one before, which ends at %v", iv.first, iv.last, last)
		}
		last = iv.last
	}
	return nil
}

func TestPrefixesAgainstModel(t *testing.T) {
	t.Parallel()
	writing(t, func(t *testing.T, root Tx) {
		rapid.Check(t, func(r *rapid.T) {
			whole := netip.MustParsePrefix(rapid.SampledFrom([]string{"10.0.0.0/24", "255.255.255.0/24", "0.0.0.0/25", "fd00::/120"}).Draw(r, "pool"))
			free, err := makeIntervals(root, prefixIndexes, "pool")
			if err != nil {
				r.Fatal(err)
			}
			if err := free.join(whole.Addr(), ipprefix.Last(whole)); err != nil {
				r.Fatal(err)
			}
			var cut []netip.Prefix
			fits := func(p netip.Prefix) bool {
				return !slices.ContainsFunc(cut, p.Overlaps)
			}
			length := rapid.IntRange(whole.Bits(), whole.Addr().BitLen())
			r.Repeat(map[string]func(*rapid.T){
				"take": func(r *rapid.T) {
					bits := length.Draw(r, "length")
					p, ok, err := free.takePrefix(bits)
					if err != nil {
						r.Fatal(err)
					}
					possible := false
					for a := whole.Addr(); a.IsValid() && whole.Contains(a); a = ipprefix.Last(netip.PrefixFrom(a, bits)).Next() {
						possible = possible || fits(netip.PrefixFrom(a, bits))
					}
					if ok != possible {
						r.Fatalf("a /%d: %v, want %v", bits, ok, possible)
					}
					if ok {
						if p != p.Masked() || p.Bits() != bits || !whole.Contains(p.Addr()) || !fits(p) {
							r.Fatalf("took %v, beside %v", p, cut)
						}
						cut = append(cut, p)
					}
				},
				"cut": func(r *rapid.T) {
					bits := length.Draw(r, "length")
					a := rapid.SampledFrom(addressesOf(whole)).Draw(r, "address")
					p := netip.PrefixFrom(a, bits).Masked()
					err := free.cut(p.Addr(), ipprefix.Last(p))
					if (err == nil) != fits(p) {
						r.Fatalf("cut %v: %v, beside %v", p, err, cut)
					}
					if err == nil {
						cut = append(cut, p)
					}
				},
				"join": func(r *rapid.T) {
					if len(cut) == 0 {
						r.Skip("nothing is cut")
					}
					i := rapid.IntRange(0, len(cut)-1).Draw(r, "which")
					if err := free.join(cut[i].Addr(), ipprefix.Last(cut[i])); err != nil {
						r.Fatal(err)
					}
					if err := free.join(cut[i].Addr(), ipprefix.Last(cut[i])); err == nil {
						r.Fatal("given back twice")
					}
					cut = slices.Delete(cut, i, i+1)
				},
				"": func(r *rapid.T) {
					if err := wellFormed(free); err != nil {
						r.Fatal(err)
					}
				},
			})
		})
	})
}

func TestReleasedAddressRests(t *testing.T) {
	t.Parallel()
	writing(t, func(t *testing.T, root Tx) {
		s := sdn.Subnet{Meta: sdn.Meta{ID: "s"}, CIDR: netip.MustParsePrefix("10.0.0.0/29")}
		if err := buildAddressing(root, &s, nil); err != nil {
			t.Fatal(err)
		}
		ad, err := openAddressing(root, &s)
		if err != nil {
			t.Fatal(err)
		}
		held := netip.MustParseAddr("10.0.0.3") // so that there is more than one interval
		if err := ad.claim(held); err != nil {
			t.Fatal(err)
		}
		var order []string
		for range 7 {
			a, ok, err := ad.take()
			if err != nil || !ok {
				t.Fatal(ok, err)
			}
			order = append(order, a.String())
			if err := ad.release(a); err != nil {
				t.Fatal(err)
			}
		}
		want := "[10.0.0.1 10.0.0.2 10.0.0.4 10.0.0.5 10.0.0.6 10.0.0.1 10.0.0.2]"
		if got := fmt.Sprint(order); got != want {
			t.Errorf("took %s, want %s", got, want)
		}
	})
}

// TestFragmentedSubnetIsExhausted takes all of many single free addresses in one transaction, which
// empties all pages of bbolt.
func TestFragmentedSubnetIsExhausted(t *testing.T) {
	t.Parallel()
	onStores(t, func(t *testing.T, store Store) {
		s := sdn.Subnet{Meta: sdn.Meta{ID: "s"}, CIDR: netip.MustParsePrefix("10.0.0.0/20")}
		var taken []netip.Addr
		for a := s.CIDR.Addr().Next(); s.CIDR.Contains(a); a = a.Next().Next() {
			taken = append(taken, a)
		}
		w, err := store.Begin(t.Context())
		ok(t, err)
		ok(t, buildAddressing(w, &s, taken))
		ok(t, w.Commit())
		w, err = store.Begin(t.Context())
		ok(t, err)
		defer w.Rollback()
		ad, err := openAddressing(w, &s)
		ok(t, err)
		free := int(ad.usage().Free)
		for i := range free + 1 {
			if _, got, err := ad.take(); err != nil || got != (i < free) {
				t.Fatalf("address %d of %d: %v, %v", i, free, got, err)
			}
		}
	})
}

func TestUsable(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ cidr, first, last, automatic string }{
		{"10.0.0.0/24", "10.0.0.1", "10.0.0.254", "10.0.0.1"},
		{"10.0.0.0/30", "10.0.0.1", "10.0.0.2", "10.0.0.1"},
		{"10.0.0.0/31", "10.0.0.0", "10.0.0.1", "10.0.0.0"},
		{"10.0.0.9/32", "10.0.0.9", "10.0.0.9", "10.0.0.9"},
		{"fd00::/64", "fd00::", "fd00::ffff:ffff:ffff:ffff", "fd00::1"},
		{"fd00::/127", "fd00::", "fd00::1", "fd00::"},
		{"fd00::9/128", "fd00::9", "fd00::9", "fd00::9"},
	} {
		p := netip.MustParsePrefix(c.cidr)
		if got := usable(p); got.first.String() != c.first || got.last.String() != c.last {
			t.Errorf("usable(%s) = %v-%v, want %s-%s", c.cidr, got.first, got.last, c.first, c.last)
		}
		if got := automatic(p).first.String(); got != c.automatic {
			t.Errorf("automatic(%s) begins at %s, want %s", c.cidr, got, c.automatic)
		}
	}
}

// allocating prepares a subnet with that many live addresses, and a tenth as many single free ones
// among them. What it returns gives a random live address back and takes another, a transaction
// each.
func allocating(b *testing.B, live int) (round func()) {
	store := Stores["bbolt"](b)
	s := sdn.Subnet{Meta: sdn.Meta{ID: "s"}, CIDR: netip.MustParsePrefix("10.0.0.0/8")}
	taken := make([]netip.Addr, 0, live)
	for a := s.CIDR.Addr().Next(); len(taken) < live; a = a.Next() {
		if a.As4()[3]%11 != 5 {
			taken = append(taken, a)
		}
	}
	update := func(f func(tx Tx) error) {
		w, err := store.Begin(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		defer w.Rollback()
		if err := errors.Join(f(w), w.Commit()); err != nil {
			b.Fatal(err)
		}
	}
	update(func(tx Tx) error { return buildAddressing(tx, &s, taken) })
	change := func(f func(ad addressing) error) {
		update(func(tx Tx) error {
			ad, err := openAddressing(tx, &s)
			if err != nil {
				return err
			}
			return f(ad)
		})
	}
	random := rand.New(rand.NewPCG(1, 2))
	return func() {
		i := random.IntN(len(taken))
		change(func(ad addressing) error { return ad.release(taken[i]) })
		change(func(ad addressing) error {
			a, ok, err := ad.take()
			if err == nil && !ok {
				err = errNotFree
			}
			taken[i] = a
			return err
		})
	}
}

func BenchmarkAllocate(b *testing.B) {
	for _, live := range []int{1e3, 1e6} {
		b.Run(fmt.Sprintf("live=%d", live), func(b *testing.B) {
			round := allocating(b, live)
			for b.Loop() {
				round()
			}
		})
	}
}

// BenchmarkAllocateRatio reports what a round costs at a million live addresses, as a ratio to a
// thousand: of medians, taken in turn.
func BenchmarkAllocateRatio(b *testing.B) {
	rounds := []func(){allocating(b, 1e3), allocating(b, 1e6)}
	var took [2][]time.Duration
	for b.Loop() {
		for i, round := range rounds {
			for range 50 {
				start := time.Now()
				round()
				took[i] = append(took[i], time.Since(start))
			}
		}
	}
	slices.Sort(took[0])
	slices.Sort(took[1])
	b.ReportMetric(float64(took[1][len(took[1])/2])/float64(took[0][len(took[0])/2]), "ratio")
	b.ReportMetric(0, "ns/op")
}
