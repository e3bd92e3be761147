//go:build linux

package hostroutes

import (
	"context"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"

	"github.com/kuryr/kuryr/internal/nstest"
	"github.com/vishvananda/netlink"
)

func TestMain(m *testing.M) { os.Exit(nstest.Main(m)) }

func TestPrefixes(t *testing.T) {
	ns := nstest.New(t)
	nstest.Do(t, ns, func() {
		link := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "b0"}}
		must(t, netlink.LinkAdd(link))
		for _, a := range []string{"10.1.2.3/16", "fd00:1::5/64"} {
			addr, err := netlink.ParseAddr(a)
			must(t, err)
			must(t, netlink.AddrAdd(link, addr))
		}
		must(t, netlink.LinkSetUp(link))
		_, via, err := net.ParseCIDR("172.20.0.0/14")
		must(t, err)
		must(t, netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: via, Gw: net.ParseIP("10.1.0.1")}))
		must(t, netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: net.ParseIP("10.1.0.1")}))
		// What a rule leads to elsewhere, as a VPN's.
		_, vpn, err := net.ParseCIDR("100.80.0.0/16")
		must(t, err)
		must(t, netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: vpn, Table: 52}))
		got, err := Prefixes(context.Background())
		must(t, err)
		want := []netip.Prefix{
			netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("100.80.0.0/16"),
			netip.MustParsePrefix("172.20.0.0/14"), netip.MustParsePrefix("fd00:1::/64"),
		}
		if !slices.Equal(got, want) {
			t.Errorf("Prefixes = %v, want %v", got, want)
		}
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
