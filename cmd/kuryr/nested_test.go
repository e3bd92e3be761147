//go:build linux

package main

import (
	"context"
	"net"
	"strings"
	"testing"

	"github.com/kuryr/kuryr/internal/config"
	"github.com/kuryr/kuryr/internal/nstest"
	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/neutron"
	"github.com/vishvananda/netlink"
)

// tagless is an SDN without tags, which may be away.
type tagless struct {
	sdn.Provider
	away error
}

func (t tagless) Ping(context.Context) error     { return t.away }
func (t tagless) Capabilities() sdn.Capabilities { return sdn.Capabilities{} }

// Without tags nested ports cannot be kept apart: Kuryr does not begin, unless the SDN is away, so that nobody knows.
func TestNestedWithoutTags(t *testing.T) {
	in := func(mode string, away error) error {
		p, err := nestedIn(tagless{away: away}, config.Config{Host: "vm", Bind: config.Bind{Nested: mode}})
		if err != nil {
			t.Fatal(err)
		}
		return canNest(t.Context(), p)
	}
	for _, mode := range []string{"macvlan", "vlan"} {
		if err := in(mode, nil); err == nil || !strings.Contains(err.Error(), "bind.nested") || !strings.Contains(err.Error(), "standard-attr-tag") {
			t.Errorf("%s: %v", mode, err)
		}
		if err := in(mode, sdn.Unavailable(nil, "Neutron", "away")); err != nil {
			t.Errorf("%s, while the SDN is away: %v", mode, err)
		}
	}
	if err := in("", nil); err != nil {
		t.Errorf("not nested: %v", err)
	}
}

// TestPeerB13NestedMode: the setting, and nothing else, makes the SDN one that is seen from a virtual machine.
func TestPeerB13NestedMode(t *testing.T) {
	for mode, want := range map[string]bool{"": false, "macvlan": true, "vlan": true} {
		p, err := nestedIn(nil, config.Config{Host: "vm", Bind: config.Bind{Nested: mode}})
		if _, is := p.(*neutron.Nested); err != nil || is != want {
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
