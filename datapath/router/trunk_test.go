//go:build linux

package router

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/kuryr/kuryr/internal/nstest"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// The message that makes a leg says all of it: name, MAC, tap, the namespace and bridge
// it goes to, VLAN. And it does not put it up.
func TestLegMessage(t *testing.T) {
	t.Parallel()
	p := Port{
		ID: "0a1b2c3d-4e5f-4a6b-8c7d-9e0f1a2b3c4d", MAC: net.HardwareAddr{0x02, 1, 2, 3, 4, 5},
		Trunk: Trunk{VLAN: 300},
	}
	text := vlanKind.message(&space{}, 17, 4, 9, p).Serialize()
	head := nl.DeserializeIfInfomsg(text[unix.SizeofNlMsghdr:])
	if head.Flags != 0 || head.Change != 0 || head.Index != 0 {
		t.Errorf("the message is about %+v, want a new link that is down", head)
	}
	attrs := func(b []byte) map[uint16][]byte {
		t.Helper()
		list, err := nl.ParseRouteAttr(b)
		must(t, err)
		m := map[uint16][]byte{}
		for _, a := range list {
			m[a.Attr.Type] = a.Value
		}
		return m
	}
	top := attrs(text[unix.SizeofNlMsghdr+unix.SizeofIfInfomsg:])
	info := attrs(top[unix.IFLA_LINKINFO])
	data := attrs(info[nl.IFLA_INFO_DATA])
	for what, got := range map[string]bool{
		"name":         nl.BytesToString(top[unix.IFLA_IFNAME]) == "tap0a1b2c3d-4e",
		"MAC":          net.HardwareAddr(top[unix.IFLA_ADDRESS]).String() == "fe:01:02:03:04:05",
		"tap":          nl.NativeEndian().Uint32(top[unix.IFLA_LINK]) == 4,
		"namespace":    nl.NativeEndian().Uint32(top[unix.IFLA_NET_NS_FD]) == 17,
		"bridge":       nl.NativeEndian().Uint32(top[unix.IFLA_MASTER]) == 9,
		"kind":         string(info[nl.IFLA_INFO_KIND]) == "vlan",
		"VLAN":         len(data) == 1 && nl.NativeEndian().Uint16(data[nl.IFLA_VLAN_ID]) == 300,
		"nothing else": len(top) == 6,
	} {
		if !got {
			t.Errorf("%s: the message is %x", what, text)
		}
	}
	for mac, want := range map[string]string{
		"fe:00:00:00:00:01": "fa:00:00:00:00:01", "fa:16:3e:00:00:01": "fe:16:3e:00:00:01", "": "",
	} {
		own, _ := net.ParseMAC(mac)
		if got := legMAC(own).String(); got != want {
			t.Errorf("the leg of %q has MAC %q, want %q", mac, got, want)
		}
	}
}

// Only what is new in its namespace is heard of.
func TestAppeared(t *testing.T) {
	t.Parallel()
	message := func(change uint32, name string) []byte {
		head := nl.NewIfInfomsg(unix.AF_UNSPEC)
		head.Change = change
		return append(head.Serialize(), nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)).Serialize()...)
	}
	for _, c := range []struct {
		what    string
		kind    uint16
		message []byte
		want    string
	}{
		{"made", unix.RTM_NEWLINK, message(^uint32(0), "tapx"), "tapx"},
		{"changed", unix.RTM_NEWLINK, message(unix.IFF_UP, "tapx"), ""},
		{"deleted", unix.RTM_DELLINK, message(^uint32(0), "tapx"), ""},
		{"cut short", unix.RTM_NEWLINK, message(^uint32(0), "tapx")[:10], ""},
		{"without a name", unix.RTM_NEWLINK, message(^uint32(0), "tapx")[:unix.SizeofIfInfomsg], ""},
	} {
		if got := appeared(c.kind, c.message); got != c.want {
			t.Errorf("%s: %q, want %q", c.what, got, c.want)
		}
	}
}

// needVLANs skips where the kernel has none.
func needVLANs(t testing.TB) {
	t.Helper()
	nstest.Require(t)
	if !supports().VLANs {
		t.Skip("this kernel makes no links of kind vlan: modprobe 8021q, or a kernel with CONFIG_VLAN_8021Q")
	}
}

// eachKind runs a test with VLAN links, where the kernel has them, and with what stands
// in for them.
func eachKind(t *testing.T, test func(t *testing.T, w *world)) {
	for _, k := range []legKind{vlanKind, standIn} {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			if k.name == vlanKind.name {
				needVLANs(t)
			}
			w := newWorld(t)
			w.f.legs = k
			test(t, w)
		})
	}
}

// tap makes what package bind makes of a port, on its network's bridge in the router.
func (w *world) tap(router string, p Port) container {
	w.t.Helper()
	c := container{ns: nstest.New(w.t), port: p}
	w.sh(c.ns, "sysctl -qw net.ipv6.conf.default.accept_dad=0")
	var err error
	nstest.Do(w.t, w.router(router), func() {
		err = netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{
			Name: TapName(p.ID), MTU: 1500, TxQLen: -1,
		}, PeerName: "eth0", PeerHardwareAddr: p.MAC,
			PeerMTU: 1500, PeerNamespace: netlink.NsFd(int(c.ns))})
	})
	must(w.t, err)
	w.sh(w.router(router), fmt.Sprintf("ip link set %s master %s up", TapName(p.ID), BridgeName(p.Network)))
	w.sh(c.ns, "ip link set eth0 up")
	return c
}

func (w *world) untap(router string, p Port) {
	w.t.Helper()
	w.sh(w.router(router), "ip link del "+TapName(p.ID))
}

// leg waits until the subport's link is on the bridge in the router, if want, or is not there.
func (w *world) leg(when, router string, p Port, want bool) {
	w.t.Helper()
	var seen string
	for end := time.Now().Add(nstest.Limit); time.Now().Before(end); {
		seen, _ = w.try(w.router(router), "ip -o -d link show "+TapName(p.ID))
		there := strings.Contains(seen, "master "+BridgeName(p.Network)) &&
			strings.Contains(seen, ",UP") && strings.Contains(seen, "alias "+aliasTrunk+p.Trunk.Parent) &&
			strings.Contains(seen, fmt.Sprintf("id %d ", p.Trunk.VLAN)) && strings.Contains(seen, "NOARP")
		if there == want && (want || strings.Contains(seen, "does not exist")) {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	w.t.Fatalf("%s: the subport's link is there: %v, but want %v: %s", when, !want, want, seen)
}

// noneDiffers is mustMatch, but for what the host has of routers with uplinks.
func (w *world) noneDiffers(state State) {
	w.t.Helper()
	diffs, err := w.f.Diff(context.Background(), state)
	must(w.t, err)
	for _, d := range diffs {
		if d.Router != "" {
			w.t.Errorf("differs: %s", d)
		}
	}
}

// lone is a network without a router, and its router.
func lone(addrs ...string) (Shape, Bridge) {
	d := Shape{ID: newID()}
	b := bridge(addrs...)
	// less than what stands in for a VLAN link has: bridges that have no MTU of their own
	// take the least
	b.Network, b.MTU = d.ID, 1400
	d.Bridges = []Bridge{b}
	return d, b
}

func aPort(network Bridge, n byte, addrs ...string) Port {
	p := Port{ID: newID(), Network: network.Network, MAC: net.HardwareAddr{0x02, 0xca, 0xfe, 0, 0, n}, Guard: true}
	for _, a := range addrs {
		p.Addrs = append(p.Addrs, netip.MustParseAddr(a))
	}
	return p
}

func subportOf(p, parent Port, vlan int) Port {
	p.Trunk = Trunk{Parent: parent.ID, Network: parent.Network, VLAN: vlan}
	return p
}

func (w *world) update(router string, remove, add []Port) {
	w.t.Helper()
	must(w.t, changePorts(context.Background(), w.f, router, remove, add))
}

// A subport's link is there while its parent's is, whichever is asked for first, in
// whatever routers they are.
func TestLegsFollowTaps(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, w *world) {
		home, parents := lone("10.1.0.1/24")
		other, others := lone("10.2.0.1/24")
		w.apply(home)
		w.apply(other)
		parent := aPort(parents, 1, "10.1.0.5")
		here, there := subportOf(aPort(parents, 2, "10.1.0.6"), parent, 11),
			subportOf(aPort(others, 3, "10.2.0.6"), parent, 12)
		w.update(home.ID, nil, []Port{parent, here})
		w.update(other.ID, nil, []Port{there})
		w.leg("without a parent", home.ID, here, false)
		w.leg("without a parent", other.ID, there, false)
		for _, when := range []string{"the parent is plugged", "and once more"} {
			c := w.tap(home.ID, parent)
			w.leg(when, home.ID, here, true)
			w.leg(when, other.ID, there, true)
			_ = c
			w.untap(home.ID, parent)
			w.leg("the parent is unplugged", home.ID, here, false)
			w.leg("the parent is unplugged", other.ID, there, false)
		}
		w.tap(home.ID, parent)
		w.leg("again", other.ID, there, true)
		state := State{Shapes: []Shape{home, other}, Ports: map[string][]Port{home.ID: {parent, here}, other.ID: {there}}}
		w.noneDiffers(state)

		later := subportOf(aPort(others, 4, "10.2.0.7"), parent, 13)
		w.update(other.ID, nil, []Port{later})
		w.leg("a subport comes later", other.ID, later, true)
		w.update(other.ID, nil, []Port{later})
		w.update(other.ID, []Port{there, later}, nil)
		w.leg("removed", other.ID, there, false)
		w.leg("removed", other.ID, later, false)
		w.update(other.ID, []Port{there, later}, nil)
		w.leg("the others stay", home.ID, here, true)

		changed := here
		changed.Trunk.VLAN = 14
		w.update(home.ID, []Port{here}, []Port{changed})
		w.leg("another VLAN", home.ID, changed, true)
		plain := changed
		plain.Trunk = Trunk{}
		w.update(home.ID, []Port{changed}, []Port{plain})
		w.leg("a subport no more", home.ID, changed, false)
		w.untap(home.ID, parent)
		w.tap(home.ID, parent)
		w.update(other.ID, nil, []Port{there}) // by whose link we know that what is not there would be
		w.leg("in the end", other.ID, there, true)
		w.leg("in the end", home.ID, changed, false)
		must(t, w.f.Delete(context.Background(), other.ID))
		if left := w.f.trunks.on(TapName(parent.ID)); len(left) > 0 {
			t.Errorf("of subports in a deleted router %v are remembered", left)
		}
	})
}

// Networks move with what is on them: a subport's with its link, and a parent's with the
// tap that subports' links are of.
func TestLegsMove(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, w *world) {
		home, parents := lone("10.1.0.1/24")
		other, others := lone("10.2.0.1/24")
		router := Shape{ID: newID(), Bridges: []Bridge{bridge("10.3.0.1/24")}}
		parent := aPort(parents, 1, "10.1.0.5")
		parent.Parent = true
		sub := subportOf(aPort(others, 3, "10.2.0.6"), parent, 12)
		for _, d := range []Shape{home, other, router} {
			w.apply(d)
		}
		w.update(home.ID, nil, []Port{parent})
		w.tap(home.ID, parent)
		w.update(other.ID, nil, []Port{sub})
		w.leg("first", other.ID, sub, true)

		first := router
		router.Bridges = append(router.Bridges[:1:1], others)
		w.apply(router)
		w.leg("its network is on a router", router.ID, sub, true)
		told := func(from, to string, ports ...Port) {
			// as the provider does, for the guard moves with links, which subports need not have
			w.update(from, ports, nil)
			w.update(to, nil, ports)
		}
		told(other.ID, router.ID, sub)
		must(t, w.f.Delete(context.Background(), other.ID))
		w.leg("its old router is gone", router.ID, sub, true)

		router.Bridges = append(router.Bridges, parents)
		w.apply(router)
		must(t, w.f.Delete(context.Background(), home.ID))
		w.leg("the parent's network too", router.ID, sub, true)
		w.noneDiffers(State{Shapes: []Shape{router}, Ports: map[string][]Port{router.ID: {parent, sub}}})

		router = first
		w.apply(router)
		w.apply(home)
		w.apply(other)
		told(router.ID, other.ID, sub)
		w.leg("apart again", other.ID, sub, true)
		w.untap(home.ID, parent)
		w.leg("apart, and unplugged", other.ID, sub, false)
		w.tap(home.ID, parent)
		w.leg("apart, and plugged again", other.ID, sub, true)
		w.noneDiffers(State{Shapes: []Shape{router, home, other}, Ports: map[string][]Port{
			home.ID: {parent}, other.ID: {sub},
		}})
	})
}

// A process that knows nothing makes what is missing, takes away what is not wanted,
// mends what is wrong, and from then on hears of taps.
func TestLegsReconcile(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, w *world) {
		ctx := context.Background()
		home, parents := lone("10.1.0.1/24")
		other, others := lone("10.2.0.1/24")
		gone, lost := lone("10.4.0.1/24")
		parent, second := aPort(parents, 1, "10.1.0.5"), aPort(parents, 2, "10.1.0.9")
		parent.Parent = true
		for _, d := range []Shape{home, other, gone} {
			w.apply(d)
		}
		for _, p := range []Port{parent, second} {
			w.update(home.ID, nil, []Port{p})
			w.tap(home.ID, p)
		}
		kept, removed := subportOf(aPort(others, 3, "10.2.0.6"), parent, 12),
			subportOf(aPort(others, 4, "10.2.0.7"), parent, 13)
		wrong := subportOf(aPort(others, 5, "10.2.0.8"), parent, 14)
		// of a router that is not wanted, with the VLAN of one that is
		holder := subportOf(aPort(lost, 6, "10.4.0.6"), parent, 15)
		w.update(other.ID, nil, []Port{kept, removed, wrong})
		w.update(gone.ID, nil, []Port{holder})
		for _, p := range []Port{kept, removed, wrong} {
			w.leg("first", other.ID, p, true)
		}
		w.leg("first", gone.ID, holder, true)
		index := func() string { return strings.Fields(w.sh(w.router(other.ID), "ip -o link show "+TapName(kept.ID)))[0] }
		was := index()

		righted := subportOf(wrong, second, 16)
		late := subportOf(aPort(others, 7, "10.2.0.9"), parent, 15)
		veth := subportOf(aPort(others, 8, "10.2.0.10"), second, 17)
		w.sh(w.router(other.ID), fmt.Sprintf("ip link add %s type veth peer name other0", TapName(veth.ID)))
		state := State{Shapes: []Shape{home, other}, Ports: map[string][]Port{
			home.ID: {parent, second}, other.ID: {kept, righted, late, veth},
		}}
		var f *Kernel
		var err error
		nstest.Do(t, w.host, func() { f, err = New(w.f.options) })
		must(t, err)
		defer f.Close()
		f.legs = w.f.legs
		diffs, err := f.Diff(ctx, state)
		must(t, err)
		differs := fmt.Sprint(diffs)
		for _, want := range []Port{removed, righted, late, veth} {
			if !strings.Contains(differs, TapName(want.ID)) {
				t.Errorf("%s is not among the differences %s", TapName(want.ID), differs)
			}
		}
		if strings.Contains(differs, TapName(kept.ID)) {
			t.Errorf("%s is right, but differs: %s", TapName(kept.ID), differs)
		}
		_, err = f.Reconcile(ctx, state)
		must(t, err)
		for _, p := range []Port{kept, righted, late, veth} {
			w.leg("reconciled", other.ID, p, true)
		}
		w.leg("reconciled", other.ID, removed, false)
		if index() != was {
			t.Error("a link that was right was made anew")
		}
		diffs, err = f.Diff(ctx, state)
		if err != nil || len(diffs) > 0 {
			t.Errorf("after the reconcile: %v, %v", diffs, err)
		}
		w.untap(home.ID, second)
		w.leg("unplugged", other.ID, righted, false)
		w.tap(home.ID, second)
		w.leg("plugged after the reconcile", other.ID, righted, true)
		must(t, f.Down(ctx))
	})
}

// Two subports cannot have one VLAN of a parent: the second is refused by name, comes
// when the first is gone, and harms none.
func TestLegRefused(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, w *world) {
		home, parents := lone("10.1.0.1/24")
		other, others := lone("10.2.0.1/24")
		w.apply(home)
		w.apply(other)
		parent := aPort(parents, 1, "10.1.0.5")
		w.tap(home.ID, parent)
		first, second := subportOf(aPort(parents, 2, "10.1.0.6"), parent, 12),
			subportOf(aPort(others, 3, "10.2.0.6"), parent, 12)
		third := subportOf(aPort(others, 4, "10.2.0.7"), parent, 13)
		w.update(home.ID, nil, []Port{first})
		err := changePorts(context.Background(), w.f, other.ID, nil, []Port{second, third})
		if err == nil || !strings.Contains(err.Error(), "VLAN 12 of "+TapName(parent.ID)) ||
			!strings.Contains(err.Error(), second.ID) {
			t.Errorf("a VLAN given twice: %v", err)
		}
		w.leg("its neighbour is refused", other.ID, third, true)
		w.update(home.ID, []Port{first}, nil)
		w.update(other.ID, nil, []Port{second, third})
		w.leg("the VLAN is free", other.ID, second, true)
		for _, bad := range []Trunk{
			{Parent: parent.ID, Network: parents.Network},
			{Parent: parent.ID, Network: parents.Network, VLAN: 4095}, {Parent: parent.ID, VLAN: 5},
			{VLAN: 5},
		} {
			p := third
			p.Trunk = bad
			if err := changePorts(context.Background(), w.f, other.ID, nil, []Port{p}); err == nil {
				t.Errorf("trunk %+v is taken", bad)
			}
		}
	})
}

// Where the kernel has no VLANs subports are left out, and nothing else fails.
func TestLegless(t *testing.T) {
	t.Parallel()
	nstest.Require(t)
	if supports().VLANs {
		t.Skip("this kernel makes links of kind vlan")
	}
	w := newWorld(t)
	home, parents := lone("10.1.0.1/24")
	w.apply(home)
	parent := aPort(parents, 1, "10.1.0.5")
	sub := subportOf(aPort(parents, 2, "10.1.0.6"), parent, 12)
	w.tap(home.ID, parent)
	w.update(home.ID, nil, []Port{parent, sub})
	w.noneDiffers(State{Shapes: []Shape{home}, Ports: map[string][]Port{home.ID: {parent, sub}}})
	nstest.Do(t, nstest.New(t), func() {
		host, err := w.f.openHost()
		must(t, err)
		defer host.close()
		s, err := w.f.openRouter(home.ID)
		must(t, err)
		defer s.close()
		err = vlanKind.raise(&run{ctx: context.Background()}, s, s, 1, sub)
		if err == nil || !strings.Contains(err.Error(), "8021q") {
			t.Errorf("a link that cannot be made: %v", err)
		}
	})
}

// A container may end, and its tap go, between Kuryr's look for the tap and what it then
// does with it: that is no failure. Others are.
func TestTapGoesMeanwhile(t *testing.T) {
	nstest.Require(t)
	t.Parallel()
	w := newWorld(t)
	d, network := lone("10.0.5.1/24")
	w.apply(d)
	parent := aPort(network, 1, "10.0.5.5")
	of := Trunk{Parent: parent.ID, Network: network.Network}
	for goes, want := range map[bool]error{false: unix.ENODEV, true: nil} {
		w.tap(d.ID, parent)
		got := w.f.withTap(of, func(*space, int) error {
			if goes {
				w.untap(d.ID, parent)
			}
			return unix.ENODEV
		})
		if !goes {
			w.untap(d.ID, parent)
		}
		if !errors.Is(got, want) {
			t.Errorf("the tap goes: %v: error %v, want %v", goes, got, want)
		}
	}
}
