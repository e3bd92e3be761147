//go:build linux

package bind

import (
	"encoding/binary"
	"encoding/json"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kuryr/kuryr/internal/nstest"
	"github.com/kuryr/kuryr/sdn"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func u16(v uint16) []byte { return binary.NativeEndian.AppendUint16(nil, v) }

// card lays out in a folder what sysfs shows of a network card with two virtual
// functions, of which the second has the interface vf.
func card(t *testing.T, pf, vf string) string {
	t.Helper()
	sys := t.TempDir()
	devices := filepath.Join(sys, "bus/pci/devices")
	for _, folder := range []string{
		"0000:3b:00.0/net/" + pf, "0000:3b:02.0/net", "0000:3b:02.1/net/" + vf, "0000:00:1f.0",
	} {
		must(t, os.MkdirAll(filepath.Join(devices, folder), 0o755))
	}
	for link, to := range map[string]string{
		"0000:3b:02.0/physfn": "../0000:3b:00.0", "0000:3b:02.1/physfn": "../0000:3b:00.0",
		"0000:3b:00.0/virtfn0": "../0000:3b:02.0", "0000:3b:00.0/virtfn1": "../0000:3b:02.1",
	} {
		must(t, os.Symlink(to, filepath.Join(devices, link)))
	}
	return sys
}

func functionPort(slot string) sdn.Port {
	return sdn.Port{
		Meta: sdn.Meta{ID: "4f1b2c3d-5e6f-4a1b-8c2d-3e4f5a6b7c8d"},
		MAC:  net.HardwareAddr{0xfa, 0x16, 0x3e, 1, 2, 3}, VNICType: sdn.VNICDirect,
		Profile: map[string]json.RawMessage{sdn.ProfilePCISlot: sdn.ProfileString(slot)},
		VIF:     sdn.VIF{Type: "hw_veb", Details: map[string]string{sdn.DetailVLAN: "101"}},
	}
}

func TestFindFunction(t *testing.T) {
	t.Parallel()
	d := &functionDriver{sys: card(t, "pf0", "vf1")}
	got, err := d.find(functionPort("0000:3b:02.1"))
	if want := (function{
		slot: "0000:3b:02.1", physical: "pf0", number: 1, driven: true, name: "vf1",
	}); err != nil || got != want {
		t.Errorf("found %+v, %v, want %+v", got, err, want)
	}
	whole := functionPort("0000:3b:00.0")
	whole.VNICType = sdn.VNICDirectPhysical
	if got, err := d.find(whole); err != nil || got.name != "pf0" || got.physical != "" {
		t.Errorf("the whole card is %+v, %v", got, err)
	}
	for slot, want := range map[string]func(error) bool{
		"":                        sdn.IsInvalid,
		"../../../../etc":         sdn.IsInvalid,
		"0000:3b:02.1/../..":      sdn.IsInvalid,
		"0000:3b:0f.7":            sdn.IsNotFound,
		"0000:00:1f.0":            sdn.IsUnsupported, // no network card
		"0000:3b:00.0":            sdn.IsUnsupported, // the card itself
		"zzzz:3b:02.1":            sdn.IsInvalid,
		"0000:3b:02.1\n0000:00:0": sdn.IsInvalid,
	} {
		if _, err := d.find(functionPort(slot)); !want(err) {
			t.Errorf("slot %q: %v", slot, err)
		}
	}
}

// TestFunctionMessages: what the card is told, as linux/if_link.h has it.
func TestFunctionMessages(t *testing.T) {
	t.Parallel()
	fn := function{physical: "pf0", number: 1, name: "vf1"}
	wantMessage(t, "MAC and VLAN", fn.addressed(7, functionPort(""), 101), `
		60000000 1300 0100 00000000 00000000
		00000000 07000000 00000000 00000000
		4000 1600
		  3c00 0100
		    2800 0100 01000000 fa163e010203 0000000000000000000000000000000000000000000000000000
		    1000 0200 01000000 65000000 00000000
		`)
	wantMessage(t, "spoof check", fn.setting(7, unix.IFLA_VF_SPOOFCHK, true), `
		34000000 1300 0100 00000000 00000000
		00000000 07000000 00000000 00000000
		1400 1600
		  1000 0100
		    0c00 0400 01000000 01000000`)
	wantMessage(t, "trust", fn.setting(7, unix.IFLA_VF_TRUST, false), `
		34000000 1300 0100 00000000 00000000
		00000000 07000000 00000000 00000000
		1400 1600
		  1000 0100
		    0c00 0900 01000000 00000000`)
	wantMessage(t, "move", fn.move(8, Interface{Port: functionPort(""), MTU: 1400, Namespace: "/x", Name: "eth0"}, 9), `
		48000000 1300 0100 00000000 00000000
		00000000 08000000 00000000 01000000
		0a00 0100 fa163e010203 0000
		0800 0400 78050000
		0800 1c00 09000000
		0900 0300 6574683000 000000`)
}

// TestFunctionMAC: what the kernel says of a card that has a MAC for the second and the
// third of its functions.
func TestFunctionMAC(t *testing.T) {
	t.Parallel()
	wantMessage(t, "ask", function{physical: "pf0"}.asked(7), `
		28000000 1200 0100 00000000 00000000
		00000000 07000000 00000000 00000000
		0800 1d00 09000000`)
	var b batch
	b.add("a card", unix.RTM_NEWLINK, 0, ifInfo(unix.AF_UNSPEC, 7, 0, 0))
	b.text(unix.IFLA_IFNAME, "pf0")
	b.nest(unix.IFLA_VFINFO_LIST, func() {
		for number, mac := range []net.HardwareAddr{
			{0, 0, 0, 0, 0, 0}, {0xfa, 0x16, 0x3e, 1, 2, 3}, {0xfa, 0x16, 0x3e, 4, 5, 6},
		} {
			b.nest(unix.IFLA_VF_INFO, func() {
				value := binary.NativeEndian.AppendUint32(nil, uint32(number))
				b.attr(unix.IFLA_VF_MAC, append(append(value, mac...), make([]byte, maxLinkAddr-len(mac))...))
				b.attr(unix.IFLA_VF_VLAN, make([]byte, 12))
			})
		}
	})
	b.close()
	answer := b.buf[unix.SizeofNlMsghdr:]
	for number, want := range map[int]string{0: "", 1: "fa:16:3e:01:02:03", 2: "fa:16:3e:04:05:06", 3: ""} {
		if got := functionMAC(answer, number).String(); got != want {
			t.Errorf("function %d has %q, want %q", number, got, want)
		}
	}
	for n := range answer { // cut anywhere it says less, and nothing else
		if got := functionMAC(answer[:n], 1).String(); got != "" && got != "fa:16:3e:01:02:03" {
			t.Errorf("cut at %d: %q", n, got)
		}
	}
}

// A function is connected while its interface is in another namespace, not while it is
// here or there is none. The card, a veth, does not say whose it is.
func TestFunctionConnected(t *testing.T) {
	t.Parallel()
	host := nstest.New(t)
	sys := card(t, "pf0", "vf1")
	device := filepath.Join(sys, "bus/pci/devices/0000:3b:02.1")
	var b *Binder
	nstest.Do(t, host, func() {
		must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "pf0"}, PeerName: "vf1"}))
		var err error
		b, err = New(Config{Logger: slog.New(slog.DiscardHandler), Sys: sys})
		must(t, err)
	})
	t.Cleanup(func() { _ = b.Close() })
	for _, step := range []struct {
		what   string
		remove string
		want   bool
	}{
		{"its interface is here", "", false},
		{"its interface is elsewhere", "net/vf1", true},
		{"it has no interface, as one that a virtual machine has", "net", false},
		{"it is gone", "", false},
	} {
		if step.remove != "" {
			must(t, os.Remove(filepath.Join(device, step.remove)))
		}
		if step.what == "it is gone" {
			must(t, os.RemoveAll(device))
		}
		if got, err := b.Connected(t.Context(), functionPort("0000:3b:02.1")); err != nil || got != step.want {
			t.Errorf("%s: connected is %v, %v, want %v", step.what, got, err, step.want)
		}
	}
}

// TestFunctionWithoutHardware: an interface whose driver has no virtual functions stands
// for the card. All but what only such a driver can do is done.
func TestFunctionWithoutHardware(t *testing.T) {
	t.Parallel()
	host, a := nstest.New(t), nstest.New(t)
	sys := card(t, "pf0", "vf1")
	var b *Binder
	nstest.Do(t, host, func() {
		must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "pf0"}, PeerName: "vf1"}))
		var err error
		b, err = New(Config{Logger: slog.New(slog.DiscardHandler), Sys: sys})
		must(t, err)
	})
	t.Cleanup(func() { _ = b.Close() })
	port := functionPort("0000:3b:02.1")
	_, err := b.Plug(t.Context(), Interface{Port: port, MTU: 1400})
	if !sdn.IsUnsupported(err) || !strings.Contains(err.Error(), "pf0") ||
		!strings.Contains(err.Error(), "virtual functions") {
		t.Errorf("a card without virtual functions: %v", err)
	}
	if err := b.Unplug(t.Context(), functionPort("0000:3b:0f.7")); err != nil {
		t.Errorf("unplug of a function that is gone: %v", err)
	}

	// A whole card needs no program to tell.
	port = functionPort("0000:3b:00.0")
	port.VNICType = sdn.VNICDirectPhysical
	r, err := b.Plug(t.Context(), Interface{Port: port, MTU: 1400})
	if err != nil || r.Name != "pf0" {
		t.Fatalf("waiting for an engine: %+v, %v", r, err)
	}
	if connected, err := b.Connected(t.Context(), port); err != nil || connected {
		t.Errorf("connected is %v, %v", connected, err)
	}
	if _, err = b.Plug(t.Context(), Interface{Port: port, MTU: 1400, Namespace: path(a), Name: "eth0"}); err != nil {
		t.Fatal(err)
	}
	nstest.Do(t, a, func() {
		l, err := netlink.LinkByName("eth0")
		must(t, err)
		if at := l.Attrs(); at.MTU != 1400 || at.HardwareAddr.String() != port.MAC.String() || at.Flags&net.FlagUp == 0 {
			t.Errorf("the interface is %+v", at)
		}
	})
	must(t, os.Remove(filepath.Join(sys, "bus/pci/devices/0000:3b:00.0/net/pf0"))) // as sysfs shows it then
	if connected, err := b.Connected(t.Context(), port); err != nil || !connected {
		t.Errorf("connected is %v, %v", connected, err)
	}
	if _, err = b.Plug(t.Context(), Interface{Port: port, MTU: 1400, Namespace: path(a), Name: "eth0"}); err != nil {
		t.Errorf("plugged again: %v", err)
	}
	if err := b.Unplug(t.Context(), port); err != nil {
		t.Error(err)
	}
}
