//go:build linux

package lb

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"

	"github.com/kuryr/kuryr/internal/nstest"
	"github.com/kuryr/kuryr/sdn"

	"github.com/kuryr/kuryr/datapath/nft"
)

// A UDP client that never pauses follows a frontend: to another endpoint, to none, to
// none at all, and to the first that comes.
func TestFlowsFollow(t *testing.T) {
	w := newWorld(t)
	w.serve("a", 8080)
	w.serve("c", 8080)
	w.restore()
	for _, vip := range []string{vip4, vip6, "0.0.0.0", "::"} {
		reached := map[string]string{"0.0.0.0": node4, "::": node6}[vip]
		if reached == "" {
			reached = vip
		}
		k := key(vip, sdn.UDP)
		c, err := w.dial("b", "udp", at(reached, 80))
		must(t, err)
		defer c.Close()
		says := func(want string) {
			t.Helper()
			got := w.say(c, 1)
			for end := time.Now().Add(w.wait); want != "!" && got[:1] == "!" && time.Now().Before(end); {
				got = w.say(c, 1) // the error may be an earlier one
			}
			if !strings.HasPrefix(got, want) {
				t.Errorf("%s: %q, want %q", vip, got, want)
			}
		}
		w.set(to(k, "a"))
		says("a ")
		w.set(to(k, "c"))
		says("c ")
		w.set(to(k, "a", "c"))
		says("c ") // whose endpoint stays is not disturbed
		w.set(to(k))
		says("!") // it is refused
		w.set(to(k, "a"))
		says("a ")
		w.remove(k)
		w.wait = 200 * time.Millisecond
		if strings.HasPrefix(w.say(c, 1), "a") {
			t.Errorf("%s: it leads on without a frontend", vip)
		}
		w.wait = nstest.Limit
		w.set(to(k, "c"))
		says("c ")
		w.remove(k)
	}
	w.whole()
}

// What passes through to a port that is a NodePort too is not the node's to forget.
func TestFlowsThroughStay(t *testing.T) {
	w := newWorld(t)
	w.serve("a", 80)
	w.serve("c", 8080)
	w.restore()
	for i, any := range []string{"0.0.0.0", "::"} {
		if got := w.ask("out", "udp", at(addrs["a"][i], 80)); got[:1] != "a" {
			t.Fatal(got)
		}
		passing := func() (n int) {
			must(t, w.table.kernel.flows.each(ask{
				nft.Versions[i], sdn.UDP, netip.AddrPortFrom(netip.MustParseAddr(addrs["a"][i]), 80),
			}, func(f flow) {
				if f.to.Addr().String() == addrs["a"][i] {
					n++
				}
			}))
			return n
		}
		w.set(to(key(any, sdn.UDP)))
		w.set(to(key(any, sdn.UDP), "c"))
		if n := passing(); n != 1 {
			t.Errorf("%s: %d flows through, want 1", any, n)
		}
	}
}

// A connection of TCP goes on to an endpoint that no new one is led to.
func TestConnectionsStay(t *testing.T) {
	w := newWorld(t)
	w.serve("a", 8080)
	w.serve("b", 8080)
	k := key(vip4, sdn.TCP)
	w.restore(to(k, "a"))
	c, err := w.dial("b", "tcp", at(vip4, 80))
	must(t, err)
	defer c.Close()
	for _, change := range []func(){
		func() { w.set(to(k, "b")) }, func() { w.set(to(k)) }, func() { w.remove(k) },
		func() { w.restore() },
	} {
		change()
		if got := w.say(c, 1); got != "a "+addrs["b"][0] {
			t.Errorf("it says %q", got)
		}
	}
}

// What a killed process had not come to forget its successor forgets, also of a frontend
// that neither knows any more.
func TestOwed(t *testing.T) {
	w := newWorld(t)
	w.serve("a", 8080)
	k := key(vip4, sdn.UDP)
	w.restore(to(k, "a"))
	c, err := w.dial("b", "udp", at(vip4, 80))
	must(t, err)
	defer c.Close()
	if got := w.say(c, 1); got[:1] != "a" {
		t.Fatal(got)
	}
	// All but the last step of an Apply.
	p := w.table.plan(nil, []Key{k})
	must(t, w.table.kernel.commit(context.Background(), &p.change))
	w.table.Close()
	next := New(w.config())
	w.table = next
	w.restore()
	w.wait = 200 * time.Millisecond
	if got := w.say(c, 1); got[:1] == "a" {
		t.Errorf("it is led on: %s", got)
	}
	w.whole()
	if have, err := next.kernel.read(context.Background()); err != nil || len(have.uncollected()) > 0 {
		t.Errorf("still uncollected: %v %v", have.uncollected(), err)
	}
}

// On one bridge large answers come as fragments, and errors are about what the client sent.
func TestOneBridge(t *testing.T) {
	w := newWorld(t)
	w.serve("b", 8080)
	w.restore()
	for i, vip := range []string{vip4, vip6} {
		w.set(to(key(vip, sdn.UDP), "b"))
		c, err := w.dial("a", "udp", at(vip, 80))
		must(t, err)
		defer c.Close()
		for _, size := range []int{1, 5000, 40000} {
			if got := w.say(c, size); !strings.HasPrefix(got, "b "+addrs["a"][i]) || len(got) < size {
				t.Errorf("%s: asked for %d bytes, got %.20q…, %d bytes", vip, size, got, len(got))
			}
		}
		// Past the balancer all is as without it.
		direct, err := w.dial("a", "udp", at(addrs["b"][i], 8080))
		must(t, err)
		defer direct.Close()
		if got := w.say(direct, 5000); len(got) < 5000 {
			t.Errorf("%s itself: %.20q", addrs["b"][i], got)
		}
		w.answers("a", "tcp", at(addrs["b"][i], 8080), "b "+addrs["a"][i])

		closed := to(key(vip, sdn.UDP), "b")
		closed.Port = 81
		closed.Endpoints[0] = closedPort(closed)
		w.set(closed)
		if got := w.ask("a", "udp", at(vip, 81)); !strings.Contains(got, "refused") {
			t.Errorf("%s: nobody is at the endpoint, and the client gets %q", vip, got)
		}
		closed.Protocol = sdn.TCP
		w.set(closed)
		if got := w.ask("a", "tcp", at(vip, 81)); !strings.Contains(got, "refused") {
			t.Errorf("%s: nobody is at the endpoint, and the client gets %q", vip, got)
		}
	}
}

// inZone has flows to a port be in another zone of connection tracking, as Open vSwitch does.
func (w *world) inZone(port uint16) {
	w.t.Helper()
	must(w.t, w.inside(func() error {
		c, err := nftables.New()
		if err != nil {
			return err
		}
		t := c.AddTable(&nftables.Table{Name: "zones", Family: nftables.TableFamilyINet})
		pre := c.AddChain(&nftables.Chain{
			Name: "prerouting", Table: t, Type: nftables.ChainTypeFilter,
			Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityRaw,
		})
		for _, side := range []uint32{0, 2} { // source and destination
			c.AddRule(&nftables.Rule{Table: t, Chain: pre,
				Exprs: nft.Join(nft.Field(nft.TransportHeader, side, byte(port>>8), byte(port)), nft.Exprs{
					&expr.Immediate{Register: nft.Reg(0), Data: binaryutil.NativeEndian.PutUint16(7)},
					&expr.Ct{Key: expr.CtKeyZONE, Register: nft.Reg(0), SourceRegister: true},
				})})
		}
		return c.Flush()
	}))
}

// Of all flows the kernel brings those that are asked for, as they are, and one that is
// deleted is gone. Those of other zones are not ours.
func TestConntrack(t *testing.T) {
	w := newWorld(t)
	w.serve("a", 8080)
	w.serve("a", 8081)
	w.serve("a", 8082)
	w.restore(to(key(vip4, sdn.UDP), "a"), to(key(vip6, sdn.UDP), "a"))
	w.inZone(8082)
	for i, vip := range []string{vip4, vip6} {
		v, pod := nft.Versions[i], netip.MustParseAddr(addrs["a"][i])
		for _, addr := range []string{
			at(vip, 80), at(addrs["a"][i], 8080), at(addrs["a"][i], 8081), at(addrs["a"][i], 8082),
		} {
			if got := w.ask("out", "udp", addr); got[:1] != "a" {
				t.Fatal(got)
			}
		}
		flows := func(a ask) (list []flow) {
			t.Helper()
			must(t, w.table.kernel.flows.each(a, func(f flow) { list = append(list, f) }))
			return list
		}
		if n := len(flows(ask{Version: v, protocol: sdn.UDP})); n != 3 {
			t.Errorf("IPv%s: %d flows in all, want 3", v, n)
		}
		vipPort := netip.AddrPortFrom(netip.MustParseAddr(vip), 80)
		list := flows(ask{v, sdn.UDP, vipPort})
		if len(list) != 1 {
			t.Fatalf("IPv%s: %d flows to the VIP, want 1", v, len(list))
		}
		client := netip.AddrPortFrom(netip.MustParseAddr(addrs["out"][i]), list[0].client.Port())
		if f := list[0]; f.to != vipPort || f.answerer != netip.AddrPortFrom(pod, 8080) ||
			f.client != client || f.answered != client || f.protocol != sdn.UDP {
			t.Errorf("IPv%s: %+v", v, f)
		}
		must(t, w.table.kernel.flows.forget(v, list))
		must(t, w.table.kernel.flows.forget(v, list))
		if n := len(flows(ask{v, sdn.UDP, vipPort})); n != 0 {
			t.Errorf("IPv%s: %d flows to the VIP after it was deleted", v, n)
		}
		if n := len(flows(ask{v, sdn.UDP, netip.AddrPortFrom(unspecified(v), 8081)})); n != 1 {
			t.Errorf("IPv%s: %d flows to the port, want 1", v, n)
		}
	}
}
