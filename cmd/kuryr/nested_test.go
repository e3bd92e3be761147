//go:build linux

package main

import (
	"net"
	"testing"

	"github.com/kuryr/kuryr/internal/config"
	"github.com/kuryr/kuryr/internal/nstest"
	"github.com/kuryr/kuryr/sdn/nested"
	"github.com/vishvananda/netlink"
)

// TestPeerB13NestedMode: the setting, and nothing else, makes the SDN one that is seen from a virtual machine.
func TestPeerB13NestedMode(t *testing.T) {
	for mode, want := range map[string]bool{"": false, "macvlan": true, "vlan": true} {
		p, err := nestedIn(nil, config.Config{Host: "vm", Bind: config.Bind{Nested: mode}})
		if _, is := p.(*nested.Provider); err != nil || is != want {
			t.Errorf("bind.nested %q gives %T, %v", mode, p, err)
		}
	}
	nstest.Do(t, nstest.New(t), func() {
		mac := net.HardwareAddr{2, 0, 0, 0, 0, 1}
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "ens3", HardwareAddr: mac}, PeerName: "ens4"}); err != nil {
			t.Fatal(err)
		}
		if macs, err := linkMACs("ens3"); err != nil || len(macs) != 1 || macs[0].String() != mac.String() {
			t.Errorf("ens3 has %v, %v", macs, err)
		}
		if macs, err := linkMACs(""); err != nil || len(macs) != 2 {
			t.Errorf("all interfaces have %v, %v", macs, err)
		}
		if _, err := linkMACs("ens9"); err == nil {
			t.Error("there is an ens9")
		}
	})
}
