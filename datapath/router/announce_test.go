//go:build linux

package router

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/kuryr/kuryr/internal/nstest"
)

// A container that comes back with its addresses and another MAC is reached at once, by
// the router and by others that knew the old one.
func TestAnotherMAC(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, _ := twoRouters()
	a.Uplink.Reach = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24"), netip.MustParsePrefix("fd00:a::/64")}
	w.apply(a)
	hosts := []string{"10.0.0.5", "fd00:a::5"}
	peer, old := w.plug(a.ID, a.Bridges[0], "10.0.0.6", "fd00:a::6"), w.plug(a.ID, a.Bridges[0], hosts...)
	knowing := []netns.NsHandle{peer.ns, w.host}
	for _, from := range knowing {
		for _, to := range hosts {
			w.reaches(from, to, true)
		}
	}
	var err error
	nstest.Do(t, w.router(a.ID), func() {
		var link netlink.Link
		if link, err = netlink.LinkByName(TapName(old.port.ID)); err == nil {
			err = netlink.LinkDel(link)
		}
	})
	must(t, err)
	must(t, changePorts(context.Background(), w.f, a.ID, []Port{old.port}, nil))
	// So that nothing but the announcement can be what tells: an entry is good for long, and
	// the new container says nothing itself.
	for _, ns := range []netns.NsHandle{peer.ns, w.router(a.ID)} {
		for _, to := range hosts {
			w.sh(ns, fmt.Sprintf(
				"ip neigh replace %s lladdr %s nud reachable dev $(ip -o route get %s | sed 's/.* dev "+
					"\\([^ ]*\\).*/\\1/')",
				to, old.port.MAC, to,
			))
		}
	}
	again := w.plug(a.ID, a.Bridges[0], hosts...)
	if slices.Equal(again.port.MAC, old.port.MAC) {
		t.Fatal("the same MAC again")
	}
	for _, from := range knowing {
		for _, to := range hosts {
			w.reaches(from, to, true)
		}
	}
}

func TestMoved(t *testing.T) {
	t.Parallel()
	one, two := net.HardwareAddr{2, 0, 0, 0, 0, 1}, net.HardwareAddr{2, 0, 0, 0, 0, 2}
	port := func(mac net.HardwareAddr, addrs ...string) Port {
		p := Port{ID: "p", Network: "n", MAC: mac}
		for _, a := range addrs {
			p.Addrs = append(p.Addrs, netip.MustParseAddr(a))
		}
		return p
	}
	for _, c := range []struct {
		name        string
		remove, add []Port
		want        string
	}{
		{"new", nil, []Port{port(one, "10.0.0.5", "fd00::5")}, "[10.0.0.5 fd00::5]"},
		{"the same", []Port{port(one, "10.0.0.5")}, []Port{port(one, "10.0.0.5")}, "[]"},
		{"one more", []Port{port(one, "10.0.0.5")}, []Port{port(one, "10.0.0.5", "10.0.0.6")}, "[10.0.0.6]"},
		{"another MAC", []Port{port(one, "10.0.0.5")}, []Port{port(two, "10.0.0.5")}, "[10.0.0.5]"},
		{"gone", []Port{port(one, "10.0.0.5")}, nil, "[]"},
	} {
		got := []netip.Addr{}
		for _, p := range moved(c.remove, c.add) {
			got = append(got, p.Addrs...)
		}
		if fmt.Sprint(got) != c.want {
			t.Errorf("%s: %v, want %s", c.name, got, c.want)
		}
	}
}
