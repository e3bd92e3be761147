//go:build linux

package bind

import (
	"bytes"
	"encoding/hex"
	"log/slog"
	"net"
	"strings"
	"testing"

	"github.com/kuryr/kuryr/internal/nstest"
	"github.com/kuryr/kuryr/sdn"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

var machineMAC = net.HardwareAddr{0xfa, 0x16, 0x3e, 0xaa, 0xaa, 0x01}

// newMachine is a world whose host is a virtual machine: its interface ens3 is on the
// bridge of the network.
func newMachine(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	nstest.Do(t, w.host, func() {
		must(t, netlink.LinkAdd(&netlink.Veth{
			LinkAttrs: netlink.LinkAttrs{Name: "ens3", MTU: testMTU, HardwareAddr: machineMAC},
			PeerName:  "vm", PeerNamespace: netlink.NsFd(w.router),
		}))
		l, err := netlink.LinkByName("ens3")
		must(t, err)
		must(t, netlink.LinkSetUp(l))
	})
	nstest.Do(t, w.router, func() {
		l, err := netlink.LinkByName("vm")
		must(t, err)
		br, err := netlink.LinkByName("br0")
		must(t, err)
		must(t, netlink.LinkSetMaster(l, br))
		must(t, netlink.LinkSetMTU(l, testMTU))
		must(t, netlink.LinkSetUp(l))
	})
	return w
}

func (w *world) nestedPort(kind string) sdn.Port {
	p := w.port()
	p.VIF = sdn.VIF{Type: kind, Details: map[string]string{sdn.DetailParentMAC: machineMAC.String()}}
	if kind == sdn.VIFVLAN {
		p.VIF.Details[sdn.DetailVLAN] = "101"
	}
	return p
}

// engineMoves renames and moves a link as an engine does.
func (w *world) engineMoves(from, to netns.NsHandle, was, is string) {
	w.t.Helper()
	nstest.Do(w.t, from, func() {
		l, err := netlink.LinkByName(was)
		must(w.t, err)
		must(w.t, netlink.LinkSetDown(l))
		must(w.t, netlink.LinkSetName(l, is))
		must(w.t, netlink.LinkSetNsFd(l, int(to)))
	})
}

// TestMacvlan: containers of a virtual machine reach its network and one another through
// the machine's own interface.
func TestMacvlan(t *testing.T) {
	t.Parallel()
	w := newMachine(t)
	a, b := nstest.New(t), nstest.New(t)
	p, q := w.nestedPort(sdn.VIFMacvlan), w.nestedPort(sdn.VIFMacvlan)
	w.plug(w.in(p, a))
	w.plug(w.in(p, a)) // nothing changes
	w.plug(w.in(q, b))
	for _, to := range []string{"10.1.0.1", "fd00:1::1", q.Addresses[0].Addr.String(), q.Addresses[1].Addr.String()} {
		ping(t, a, to)
	}
	ping(t, w.router, p.Addresses[0].Addr.String())
	wantNames(t, w.host, "ens3")
	nstest.Do(t, a, func() {
		l, err := netlink.LinkByName("eth0")
		must(t, err)
		m, ok := l.(*netlink.Macvlan)
		if !ok || m.Mode != netlink.MACVLAN_MODE_BRIDGE || m.Attrs().MTU != testMTU ||
			m.Attrs().Alias != Alias(p.ID) || !bytes.Equal(m.Attrs().HardwareAddr, p.MAC) {
			t.Errorf("the link is %+v", l)
		}
	})
	w.wantConnected("plugged", p, true)

	// With another MAC it is made again.
	p.MAC = net.HardwareAddr{0xfa, 0x16, 0x3e, 1, 2, 3}
	w.plug(w.in(p, a))
	ping(t, a, "10.1.0.1")
	w.unplug(p)
	w.unplug(p)
	wantNames(t, a)
	w.wantConnected("unplugged", p, false)
	ping(t, b, "10.1.0.1")

	// A container that ends takes its link along.
	nstest.Do(t, b, func() {
		l, err := netlink.LinkByName("eth0")
		must(t, err)
		must(t, netlink.LinkDel(l))
	})
	w.wantConnected("after its container", q, false)
	w.unplug(q)
}

// TestMacvlanWaits: an engine takes the link from the binder's namespace, and brings it back.
func TestMacvlanWaits(t *testing.T) {
	t.Parallel()
	w := newMachine(t)
	a := nstest.New(t)
	p := w.nestedPort(sdn.VIFMacvlan)
	name := ContainerName(p.ID)
	r := w.plug(Interface{Port: p, MTU: testMTU})
	w.plug(Interface{Port: p, MTU: testMTU})
	if r.Name != name || r.HostName != "" {
		t.Errorf("the answer is %+v", r)
	}
	wantNames(t, w.host, "ens3", name)
	w.wantConnected("waiting", p, false)
	w.engineMoves(w.host, a, name, "eth0")
	nstest.Do(t, a, func() {
		l, err := netlink.LinkByName("eth0")
		must(t, err)
		must(t, netlink.LinkSetUp(l))
		addr, err := netlink.ParseAddr(p.Addresses[0].Addr.String() + "/16")
		must(t, err)
		must(t, netlink.AddrAdd(l, addr))
	})
	ping(t, a, "10.1.0.1")
	w.wantConnected("in the container", p, true)
	w.engineMoves(a, w.host, "eth0", name)
	w.wantConnected("back", p, false)
	w.unplug(p)
	must(t, w.b.Collect(t.Context(), ""))
	wantNames(t, w.host, "ens3")

	// One that is still in a container goes from there.
	w.plug(Interface{Port: p})
	w.engineMoves(w.host, a, name, "eth0")
	w.unplug(p)
	wantNames(t, a)
}

// TestNestedParent: the parent is told by its MAC, or by its name; a name that others
// have is theirs.
func TestNestedParent(t *testing.T) {
	t.Parallel()
	w := newMachine(t)
	a := nstest.New(t)
	p := w.nestedPort(sdn.VIFMacvlan)
	p.VIF.Details[sdn.DetailParentMAC] = "02:00:00:00:00:99"
	_, err := w.b.Plug(t.Context(), w.in(p, a))
	if !sdn.IsNotFound(err) || !strings.Contains(err.Error(), "02:00:00:00:00:99") {
		t.Errorf("without such a parent: %v", err)
	}
	named := func(link string) *Binder {
		var b *Binder
		nstest.Do(t, w.host, func() {
			var err error
			b, err = New(Config{Logger: slog.New(slog.DiscardHandler), LinkInterface: link})
			must(t, err)
		})
		t.Cleanup(func() { _ = b.Close() })
		return b
	}
	if _, err := named("ens9").Plug(t.Context(), w.in(p, a)); !sdn.IsNotFound(err) ||
		!strings.Contains(err.Error(), "ens9") {
		t.Errorf("a parent that is not there: %v", err)
	}
	_, err = named("ens3").Plug(t.Context(), w.in(p, a))
	must(t, err)
	ping(t, a, "10.1.0.1")
	w.unplug(p)

	b := nstest.New(t)
	nstest.Do(t, b, func() { must(t, netlink.LinkAdd(&netlink.Ifb{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}})) })
	if _, err := w.b.Plug(t.Context(), w.in(w.nestedPort(sdn.VIFMacvlan), b)); !sdn.IsConflict(err) {
		t.Errorf("another's name: %v", err)
	}
	wantNames(t, b, "eth0")
}

// TestVLAN: where the kernel has VLAN links containers get one; this says what is missing
// where it has none.
func TestVLAN(t *testing.T) {
	t.Parallel()
	w := newMachine(t)
	a := nstest.New(t)
	p := w.nestedPort(sdn.VIFVLAN)
	_, err := w.b.Plug(t.Context(), w.in(p, a))
	if sdn.IsUnsupported(err) {
		if !strings.Contains(err.Error(), "8021q") {
			t.Errorf("the error does not name the module: %v", err)
		}
		wantNames(t, a)
		w.unplug(p)
		return
	}
	must(t, err)
	nstest.Do(t, a, func() {
		l, err := netlink.LinkByName("eth0")
		must(t, err)
		if v, ok := l.(*netlink.Vlan); !ok || v.VlanId != 101 {
			t.Errorf("the link is %+v", l)
		}
	})
	w.plug(w.in(p, a))
	w.unplug(p)
	must(t, w.b.Collect(t.Context(), path(a)))
	wantNames(t, a)
}

// TestPeerB15VLANOfThePort: the VLAN is what the port says, and no other.
func TestPeerB15VLANOfThePort(t *testing.T) {
	t.Parallel()
	w := newMachine(t)
	a := nstest.New(t)
	p := w.nestedPort(sdn.VIFVLAN)
	for _, bad := range []string{"", "0", "4095", "x"} {
		p.VIF.Details[sdn.DetailVLAN] = bad
		if _, err := w.b.Plug(t.Context(), w.in(p, a)); !sdn.IsInvalid(err) || sdn.FieldOf(err) != "vif.details.vlan" {
			t.Errorf("VLAN %q: %v", bad, err)
		}
	}
}

// TestNestedMessages: the messages that make links, as the kernel's headers have them.
func TestNestedMessages(t *testing.T) {
	t.Parallel()
	n := nestedLink{
		Interface: Interface{
			Port: sdn.Port{MAC: net.HardwareAddr{0xfa, 0x16, 0x3e, 1, 2, 3}}, Name: "eth0", MTU: 1400,
		},
		kind: sdn.VIFVLAN, vlan: 101, on: 7,
	}
	wantMessage(t, "vlan", n.message(9), `
		70000000 1000 0106 00000000 00000000
		00000000 00000000 00000000 00000000
		0900 0300 6574683000 000000
		0800 0500 07000000
		0a00 0100 fa163e010203 0000
		0800 1b00 7972756b
		0800 1c00 09000000
		0800 0400 78050000
		1800 1200
		  0800 0100 766c616e
		  0c00 0200
		    0600 0100 6500 0000`)
	n.kind, n.vlan, n.MTU = sdn.VIFMacvlan, 0, 0
	wantMessage(t, "macvlan", n.message(9), `
		6c000000 1000 0106 00000000 00000000
		00000000 00000000 00000000 00000000
		0900 0300 6574683000 000000
		0800 0500 07000000
		0a00 0100 fa163e010203 0000
		0800 1b00 7972756b
		0800 1c00 09000000
		1c00 1200
		  0b00 0100 6d6163766c616e 00
		  0c00 0200
		    0800 0100 04000000`)
	var answer batch
	answer.buf = ifInfo(unix.AF_UNSPEC, 5, 0, 0)
	answer.nest(unix.IFLA_LINKINFO, func() {
		answer.attr(unix.IFLA_INFO_KIND, []byte("vlan\x00"))
		answer.nest(unix.IFLA_INFO_DATA, func() { answer.attr(unix.IFLA_VLAN_ID, []byte{101, 0}) })
	})
	if l, err := parseLink(answer.buf); err != nil || l.kind != sdn.VIFVLAN || l.vlan != 101 {
		t.Errorf("read back it is %+v, %v", l, err)
	}
}

// wantMessage compares a batch with bytes as a little-endian machine has them.
func wantMessage(t *testing.T, what string, b *batch, want string) {
	t.Helper()
	if !bytes.Equal([]byte{1, 0}, u16(1)) {
		t.Skip("the bytes written down here are of a little-endian machine")
	}
	b.close()
	if got := hex.EncodeToString(b.buf); got != strings.Join(strings.Fields(want), "") {
		t.Errorf("%s: the message is\n%s\nwant\n%s", what, got, strings.Join(strings.Fields(want), ""))
	}
}
