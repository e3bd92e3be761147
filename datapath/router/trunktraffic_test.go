//go:build linux

package router

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/kuryr/kuryr/datapath/securitygroup"
	"github.com/kuryr/kuryr/internal/nstest"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// untag makes of a parent's interface what the subport is in a namespace of its own, as a
// virtual machine in the container would have it.
func (w *world) untag(parent container, sub Port, network Bridge) container {
	w.t.Helper()
	c := container{ns: nstest.New(w.t), port: sub}
	w.sh(c.ns, "sysctl -qw net.ipv6.conf.default.accept_dad=0")
	var err error
	nstest.Do(w.t, parent.ns, func() {
		var link netlink.Link
		if link, err = netlink.LinkByName("eth0"); err == nil {
			err = netlink.LinkAdd(&netlink.Vlan{VlanId: sub.Trunk.VLAN,
				VlanProtocol: netlink.VLAN_PROTOCOL_8021Q, LinkAttrs: netlink.LinkAttrs{Name: "sub0",
					HardwareAddr: sub.MAC, ParentIndex: link.Attrs().Index, Namespace: netlink.NsFd(int(c.ns)), TxQLen: -1}})
		}
	})
	must(w.t, err)
	w.sh(c.ns, "ip link set sub0 name eth0") // a name that the parent's namespace has too is refused
	w.address(c, network)
	return c
}

// address gives eth0 the port's addresses, and the network's gateway.
func (w *world) address(c container, network Bridge) {
	w.t.Helper()
	w.sh(c.ns, "ip link set eth0 up")
	for _, a := range c.port.Addrs {
		for _, gw := range network.Addrs {
			if gw.Addr().Is4() == a.Is4() {
				w.sh(c.ns, fmt.Sprintf("ip addr add %s/%d dev eth0; ip route add default via %s", a, gw.Bits(), gw.Addr()))
			}
		}
	}
	nstest.WaitForAddresses(w.t, c.ns)
}

// tagged is a frame with a VLAN tag.
func tagged(frame []byte, vlan int) []byte {
	head := append(append([]byte{}, frame[:12]...), 0x81, 0, byte(vlan>>8), byte(vlan))
	return append(head, frame[12:]...)
}

func to(mac net.HardwareAddr, frame []byte) []byte {
	return append(append([]byte{}, mac...), frame[6:]...)
}

// What a parent's interface sends and gets with a tag is a port of the subport's network,
// guarded and filtered as one; what has none is the parent's.
func TestTrunkTraffic(t *testing.T) {
	t.Parallel()
	needVLANs(t)
	w := newWorld(t)
	ctx := context.Background()
	home, parents := lone("10.1.0.1/24")
	b, c := bridge("10.2.0.1/24", "fd00:b::1/64"), bridge("10.3.0.1/24")
	router := Shape{ID: newID(), Bridges: []Bridge{b, c}}
	w.apply(home)
	w.apply(router)
	neighbour := w.plug(home.ID, parents, "10.1.0.9")
	peer, far := w.plug(router.ID, b, "10.2.0.9", "fd00:b::9"), w.plug(router.ID, c, "10.3.0.9")

	parent := aPort(parents, 1, "10.1.0.5")
	parent.Parent = true
	one := subportOf(aPort(b, 2, "10.2.0.6", "fd00:b::6"), parent, 11)
	two := subportOf(aPort(parents, 3, "10.1.0.6"), parent, 12)
	w.update(home.ID, nil, []Port{parent, two})
	w.update(router.ID, nil, []Port{one})
	plug := func() (p, first, second container) {
		p = w.tap(home.ID, parent)
		w.address(p, parents)
		w.leg("plugged", router.ID, one, true)
		w.leg("plugged", home.ID, two, true)
		return p, w.untag(p, one, b), w.untag(p, two, parents)
	}
	everything := func(when string, p, first, second container) {
		t.Helper()
		for _, way := range []struct {
			what string
			from container
			to   string
			want bool
		}{
			{"a neighbour of the subport", first, "10.2.0.9", true},
			{"the subport, from a neighbour", peer, "10.2.0.6", true},
			{"the subport, IPv6", peer, "fd00:b::6", true},
			{"another network of the router", first, "10.3.0.9", true},
			{"the subport, from another network", far, "10.2.0.6", true},
			{"the parent's network", first, "10.1.0.9", false},
			{"a neighbour of the parent", p, "10.1.0.9", true},
			{"the subport's network", p, "10.2.0.9", false},
			{"the parent, from the subport in its network", second, "10.1.0.5", true},
			{"the subport in the parent's network", neighbour, "10.1.0.6", true},
		} {
			limit := 2 * time.Second
			if way.want {
				limit = nstest.Limit
			}
			if got := nstest.Ping(t, way.from.ns, way.to, limit); got != way.want {
				t.Errorf("%s: %s is reached: %v, want %v", when, way.what, got, way.want)
			}
		}
	}
	p, first, second := plug()
	everything("at first", p, first, second)

	out, in := newWire(t, first.ns), newWire(t, peer.ns)
	own, evil := first.port.MAC, net.HardwareAddr{0x02, 0xba, 0xd0, 0, 0, 1}
	marker := udp4(own, "10.2.0.6", 9)
	for _, f := range []struct {
		what  string
		frame []byte
		pass  bool
	}{
		{"its own", udp4(own, "10.2.0.6", 1000), true},
		{"another's address", udp4(own, "10.2.0.7", 1000), false},
		{"another's MAC", udp4(evil, "10.2.0.6", 1000), false},
		{"the parent's", udp4(p.port.MAC, "10.1.0.5", 1000), false},
		{"a second tag", tagged(udp4(own, "10.2.0.6", 1000), 7), false},
	} {
		if got := in.sees(f.frame, marker, f.pass, out.sends(f.frame, marker)); got != f.pass {
			t.Errorf("%s passes: %v, want %v", f.what, got, f.pass)
		}
	}

	// A neighbour of the parent without guard may send tags, but none of the parent's
	// subports gets them, and nobody gets the parent's own.
	loose := neighbour.port
	loose.Guard = false
	w.update(home.ID, []Port{neighbour.port}, []Port{loose})
	other := w.plug(home.ID, parents, "10.1.0.10")
	out, in = newWire(t, neighbour.ns), newWire(t, first.ns)
	intruder := to(own, udp4(loose.MAC, "10.2.0.66", 1000))
	// The marker comes by the subport's own network, a little later.
	knock := func(marker []byte, through *wire, want bool) bool {
		return in.sees(intruder, marker, want, func() {
			out.send(tagged(intruder, 11))
			through.send(marker)
		})
	}
	mark := to(own, udp4(peer.port.MAC, "10.2.0.9", 9))
	if knock(mark, newWire(t, peer.ns), false) {
		t.Error("a frame with a tag came from the parent's network to the subport")
	}
	bare := parent
	bare.Parent = false
	w.update(home.ID, []Port{parent}, []Port{bare})
	if !knock(mark, newWire(t, peer.ns), true) {
		t.Error("the frame does not come where nothing keeps it from the parent: so the test above shows nothing")
	}
	w.update(home.ID, []Port{bare}, []Port{parent})
	if knock(mark, newWire(t, peer.ns), false) {
		t.Error("a frame with a tag came to the subport once more")
	}
	w.update(home.ID, []Port{loose}, []Port{neighbour.port})
	out, in = newWire(t, p.ns), newWire(t, other.ns)
	lost, mark := udp4(p.port.MAC, "10.1.0.5", 1000), udp4(p.port.MAC, "10.1.0.5", 9)
	if in.sees(lost, mark, false, out.sends(tagged(lost, 99), mark)) {
		t.Error("a VLAN of no subport came into the parent's network")
	}

	// security groups
	group := securitygroup.Group{ID: "one", Revision: 1, Rules: []securitygroup.Rule{
		{ID: "out", Direction: securitygroup.Egress},
	}}
	must(t, define(ctx, w.f, router.ID, []securitygroup.Group{group}, nil))
	filtered := one
	filtered.Groups = []string{"one"}
	w.update(router.ID, []Port{one}, []Port{filtered})
	w.reaches(first.ns, "10.2.0.9", true)
	w.reaches(peer.ns, "10.2.0.6", false)
	group.Revision, group.Rules = 2, append(group.Rules, securitygroup.Rule{ID: "in", Protocol: unix.IPPROTO_ICMP})
	must(t, define(ctx, w.f, router.ID, []securitygroup.Group{group}, nil))
	w.reaches(peer.ns, "10.2.0.6", true)
	w.update(router.ID, []Port{filtered}, []Port{one})

	// limits
	limited := one
	limited.Limits = securitygroup.Limits{EgressKbps: 1, EgressBurst: 1}
	w.update(router.ID, []Port{one}, []Port{limited})
	if out, err := w.try(first.ns, "ping -n -c 100 -i 0.001 -W 1 -s 8000 10.2.0.9"); err == nil && !lossy(out) {
		t.Errorf("a limited subport sends all it likes: %s", out)
	}
	w.update(router.ID, []Port{limited}, []Port{one})

	w.untap(home.ID, parent)
	w.leg("unplugged", router.ID, one, false)
	p, first, second = plug()
	everything("plugged again", p, first, second)

	// The parent's tap goes down and up, and to another namespace and back.
	w.sh(w.router(home.ID), "ip link set "+TapName(parent.ID)+" down; ip link set "+TapName(parent.ID)+" up")
	everything("down and up", p, first, second)
	together := router
	together.Bridges = append(together.Bridges[:2:2], parents)
	w.apply(together)
	must(t, w.f.Delete(ctx, home.ID))
	w.leg("moved", router.ID, two, true)
	w.reaches(peer.ns, "10.2.0.6", true)
	w.reaches(neighbour.ns, "10.1.0.6", true)
	w.reaches(first.ns, "10.1.0.9", true) // by the router now
	w.apply(router)
	w.apply(home)
	everything("apart again", p, first, second)
}

// lossy reports whether ping lost packets.
func lossy(out string) bool {
	var sent, got int
	for line := range strings.Lines(out) {
		if n, _ := fmt.Sscanf(line, "%d packets transmitted, %d received", &sent, &got); n == 2 {
			return got < sent
		}
	}
	return true
}
