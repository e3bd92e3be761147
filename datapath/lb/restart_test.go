//go:build linux

package lb

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/google/nftables"

	"github.com/kuryr/kuryr/sdn"

	"github.com/kuryr/kuryr/datapath/nft"
)

func closedPort(f Frontend) netip.AddrPort { return netip.AddrPortFrom(f.Endpoints[0].Addr(), 9) }

// Connections go on, and new ones are led, while processes come and go, tables of other
// layouts are replaced, and frontends change by their side.
func TestRestartsUnderLoad(t *testing.T) {
	w := newWorld(t)
	for _, p := range []string{"a", "b", "c"} {
		w.serve(p, 8080)
	}
	k4, k6, sticky := key(vip4, sdn.TCP), key(vip6, sdn.TCP), key("10.96.0.11", sdn.TCP)
	all := func(pods ...string) []Frontend {
		f := to(sticky, pods...)
		f.Affinity = time.Minute
		list := []Frontend{to(k4, pods...), to(k6, pods...), f}
		for i := range 300 {
			f := to(Key{netip.MustParseAddr("10.96.1.1"), sdn.TCP, uint16(i + 1)}, pods...)
			f.Affinity = time.Duration(i%3) * time.Second
			list = append(list, f)
		}
		return list
	}
	w.restore(all("a", "b", "c")...)
	live, err := w.dial("b", "tcp", at(vip4, 80))
	must(t, err)
	defer live.Close()
	first := w.say(live, 1)

	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	asked := make([]int, 4)
	for i, addr := range []string{at(vip4, 80), at(vip6, 80), at("10.96.0.11", 80), at(vip4, 80)} {
		running.Go(func() {
			from := []string{"out", "out", "a", "b"}[i]
			for ctx.Err() == nil {
				if got := w.ask(from, "tcp", addr); got[:1] == "!" {
					t.Errorf("%s from %s: %s", addr, from, got)
					return
				}
				asked[i]++
			}
		})
	}
	for round := range 12 {
		switch round % 4 {
		case 0: // another process
			must(t, w.table.Close())
			w.table = New(w.config())
		case 1: // a table that is damaged, or of another layout
			must(t, w.inside(func() error {
				c, err := nftables.New()
				if err != nil {
					return err
				}
				c.AddRule(&nftables.Rule{
					Table: w.table.kernel.table(nftables.TableFamilyINet),
					Chain: &nftables.Chain{Name: "postrouting", Table: w.table.kernel.table(
						nftables.TableFamilyINet,
					)},
					Exprs: nft.Accept,
				})
				return c.Flush()
			}))
			if diffs, err := w.table.Check(ctx); err != nil || len(diffs) != 1 {
				t.Errorf("a rule too many: %v, %v", diffs, err)
			}
		}
		pods := [][]string{{"a", "b", "c"}, {"b", "c"}, {"c"}, {"a", "c"}}[round/2%4]
		w.restore(all(pods...)...)
		for i := range 20 {
			w.set(to(k4, []string{"c", "a", "b"}[:1+i%3]...), to(k6, []string{"b", "a", "c"}[:1+i%3]...))
		}
		if got := w.say(live, 1); got != first {
			t.Errorf("the first connection says %q, and before %q", got, first)
		}
	}
	stop()
	running.Wait()
	w.whole()
	for i, n := range asked {
		if n < 20 {
			t.Errorf("client %d asked %d times only", i, n)
		}
	}
}

// Profiles that no frontend has any more do not pile up, and those that frontends have stay.
func TestIdleProfilesGo(t *testing.T) {
	w := newWorld(t)
	w.serve("a", 8080)
	w.restore(to(key(vip4, sdn.TCP), "a"))
	const many = idleAtMost + 20
	crowd := func(keep func(i int) time.Duration) (list []Frontend) {
		for i := range many {
			f := to(Key{netip.MustParseAddr("10.96.1.1"), sdn.TCP, uint16(i + 1)}, "a")
			f.Affinity = keep(i)
			list = append(list, f)
		}
		return list
	}
	none, sticky := func(int) time.Duration { return 0 }, to(key(vip6, sdn.TCP), "a")
	w.set(crowd(func(i int) time.Duration { return time.Duration(i+2) * time.Second })...)
	w.set(crowd(none)...)
	sticky.Affinity = 7 * time.Second // which none of IPv6 had: it is made now
	w.set(sticky)
	if have, err := w.table.kernel.read(t.Context()); err != nil || len(have.leads) > 10 || len(have.strays) > 0 {
		t.Errorf("%d profiles are left, strays %v, %v", len(have.leads), have.strays, err)
	}
	w.whole()
	w.answers("out", "tcp", at(vip4, 80), "a "+addrs["out"][0])
	w.answers("out", "tcp", at(vip6, 80), "a "+addrs["out"][1])
	again := crowd(none)[0]
	again.Affinity = 5 * time.Second
	w.set(again)
	w.answers("out", "tcp", "10.96.1.1:1", "a "+addrs["out"][0])
	w.whole()
}

// However many endpoints go, frontends change.
func TestNoRoomForEndpointsThatWent(t *testing.T) {
	w := newWorld(t)
	w.serve("b", 8080)
	k := key(vip4, sdn.TCP)
	w.restore(to(k, "a", "b", "c"))
	must(t, w.inside(func() error { // the set made again, with room for one
		c, err := nftables.New()
		if err != nil {
			return err
		}
		bridge := w.table.kernel.table(nftables.TableFamilyBridge)
		for _, name := range []string{"prerouting", "endpoint4"} {
			c.FlushChain(&nftables.Chain{Name: name, Table: bridge})
		}
		for _, s := range bridgeSets() {
			if s.Name == left(nft.V4) {
				s.Table, s.Size = bridge, 1
				c.DelSet(&s)
				if err := c.AddSet(&s, nil); err != nil {
					return err
				}
			}
		}
		return c.Flush()
	}))
	w.set(to(k, "b"))
	w.answers("out", "tcp", at(vip4, 80), "b "+addrs["out"][0])
	w.restore(to(k, "b"))
	w.whole()
}

// A caller that gave up while others were at work changes nothing, and costs the next one no
// reading of the kernel.
func TestApplyTooLate(t *testing.T) {
	w := newWorld(t)
	w.restore()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	w.table.mu.Lock()
	go func() { done <- w.table.Apply(ctx, []Frontend{to(key(vip4, sdn.TCP), "a")}, nil) }()
	<-time.After(20 * time.Millisecond)
	cancel()
	w.table.mu.Unlock()
	if err := <-done; !errors.Is(err, context.Canceled) || !w.table.known || len(w.table.frontends) > 0 {
		t.Errorf("%v, known %v, %d frontends", err, w.table.known, len(w.table.frontends))
	}
}

// Whatever is applied in whatever order, the kernel has what was told, and nothing else.
func TestRandom(t *testing.T) {
	w := newWorld(t)
	w.restore()
	random := rand.New(rand.NewPCG(1, uint64(time.Now().UnixNano())))
	ctx := context.Background()
	told := map[Key]Frontend{}
	pick := func() Key {
		a := []string{"10.96.0.1", "10.96.0.2", "fd96::1", "0.0.0.0", "::"}[random.IntN(5)]
		return Key{
			netip.MustParseAddr(a), []sdn.Protocol{sdn.TCP, sdn.UDP, sdn.SCTP}[random.IntN(3)],
			uint16(1 + random.IntN(3)),
		}
	}
	for step := range 21 {
		var set []Frontend
		var remove []Key
		seen := map[Key]bool{}
		for range 1 + random.IntN(4) {
			k := pick()
			if seen[k] {
				continue
			}
			seen[k] = true
			if random.IntN(4) == 0 {
				remove = append(remove, k)
				continue
			}
			f := Frontend{
				Key: k, Affinity: time.Duration(max(0, random.IntN(4)-1)) * time.Hour,
				Masquerade: random.IntN(3) == 0, Empty: Empty(random.IntN(2)),
			}
			for range random.IntN(6) {
				a := "10.0.1.%d"
				if k.Addr.Is6() {
					a = "fd00:1::%d"
				}
				f.Endpoints = append(f.Endpoints, netip.AddrPortFrom(
					netip.MustParseAddr(fmt.Sprintf(a, 1+random.IntN(5))), uint16(1+random.IntN(2)),
				))
			}
			if n := random.IntN(1 + len(f.Endpoints)); n > 0 && random.IntN(2) == 0 {
				f.Draining, f.Endpoints = f.Endpoints[:n], f.Endpoints[n-1:] // one is both
			}
			for range max(0, random.IntN(4)-1) {
				f.Sources = append(
					f.Sources,
					prefixes(
						fmt.Sprintf("10.%d.0.0/%d", random.IntN(4), 8+random.IntN(17)),
						fmt.Sprintf("fd00:%d::/%d", random.IntN(4), 16+random.IntN(100)), k.Addr,
					)...,
				)
			}
			set = append(set, f)
		}
		switch random.IntN(10) {
		case 0: // another process, which is told all
			must(t, w.table.Close())
			w.table = New(w.config())
			var all []Frontend
			for _, f := range told {
				all = append(all, f)
			}
			must(t, w.table.Restore(ctx, all))
		case 1: // another program removes the table
			must(t, w.inside(func() error {
				c, err := nftables.New()
				if err != nil {
					return err
				}
				c.AddTable(w.table.kernel.table(nftables.TableFamilyINet)) // that it is torn already is fine
				c.DelTable(w.table.kernel.table(nftables.TableFamilyINet))
				return c.Flush()
			}))
			if len(set)+len(remove) == 0 {
				continue
			}
		}
		must(t, w.table.Apply(ctx, set, remove))
		for _, k := range remove {
			delete(told, k)
		}
		for _, f := range set {
			told[f.Key] = f
		}
		if step%4 == 0 {
			var all []Frontend
			for _, f := range told {
				all = append(all, f)
			}
			must(t, w.table.Restore(ctx, all)) // for where nothing changed of what was removed
		}
		diffs, err := w.table.Check(ctx)
		must(t, err)
		if step%4 == 0 && len(diffs) > 0 {
			t.Fatalf("step %d: %v", step, diffs)
		}
		// Another process finds nothing to change.
		have, err := w.table.kernel.read(ctx)
		must(t, err)
		if _, p := w.table.compare(have, told); step%4 == 0 && !p.empty() {
			t.Fatalf("step %d: another process would change %+v", step, p.change)
		}
	}
}

// A thousand endpoints in any order share the connections, and one that comes or goes is
// a few elements.
func TestThousandEndpoints(t *testing.T) {
	w := newWorld(t)
	w.serve("a", 8080)
	f := to(key(vip4, sdn.TCP), "a")
	for i := range 999 {
		f.Endpoints = append(f.Endpoints, netip.AddrPortFrom(f.Endpoints[0].Addr(), uint16(20000+i)))
	}
	w.restore(f)
	rand.Shuffle(len(f.Endpoints), func(i, j int) { f.Endpoints[i], f.Endpoints[j] = f.Endpoints[j], f.Endpoints[i] })
	if p := w.table.plan(map[Key]Frontend{f.Key: f}, nil); !p.empty() {
		t.Errorf("another order is a change: %d elements", len(p.add)+len(p.remove))
	}
	f.Endpoints = f.Endpoints[1:]
	p := w.table.plan(map[Key]Frontend{f.Key: f}, nil)
	if n := len(p.add) + len(p.remove); n > 10 {
		t.Errorf("one that goes is %d elements", n)
	}
	w.set(f)
	for i := range f.Endpoints {
		f.Endpoints[i] = netip.AddrPortFrom(f.Endpoints[i].Addr(), 8080) // one endpoint, in as many slots
	}
	w.set(f)
	for range 20 {
		w.answers("out", "tcp", at(vip4, 80), "a "+addrs["out"][0])
	}
	w.whole()
}

// The kernel spreads its hash tables over more memory behind the back of who fills them,
// and concurrent listings are not whole. Another process finds what was told
// all the same, and nothing to change.
func TestReadWhileItGrows(t *testing.T) {
	w := newWorld(t)
	var all []Frontend
	for i := range 1500 {
		f := to(Key{netip.MustParseAddr("10.96.1.1"), sdn.TCP, uint16(i + 1)}, "a", "b")
		all = append(all, f)
	}
	for range 2 {
		w.restore(all...)
		next := New(w.config())
		must(t, next.Restore(context.Background(), all))
		if have, err := next.kernel.read(context.Background()); err != nil {
			t.Error(err)
		} else if want, err := byKey(Config{}, all); err != nil {
			t.Error(err)
		} else if _, p := next.compare(have, want); !p.empty() {
			t.Errorf("to be added: %d, to be removed: %d", len(p.add), len(p.remove))
		}
		must(t, next.Remove(context.Background()))
		w.table = New(w.config())
	}
}
