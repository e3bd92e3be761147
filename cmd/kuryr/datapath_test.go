//go:build linux

package main

import (
	"net/netip"
	"testing"

	"github.com/kuryr/kuryr/datapath/router"
)

func TestFamilies(t *testing.T) {
	t.Parallel()
	domain := func(uplink bool, addrs ...string) router.Shape {
		d := router.Shape{Bridges: []router.Bridge{{}}}
		if uplink {
			d.Uplink = &router.Uplink{}
		}
		for _, a := range addrs {
			d.Bridges[0].Addrs = append(d.Bridges[0].Addrs, netip.MustParsePrefix(a))
		}
		return d
	}
	for name, tc := range map[string]struct {
		domains []router.Shape
		v4, v6  bool
	}{
		"nothing":        {nil, false, false},
		"no way out":     {[]router.Shape{domain(false, "10.0.0.1/24", "fd00::1/64")}, false, false},
		"IPv4":           {[]router.Shape{domain(true, "10.0.0.1/24")}, true, false},
		"IPv6":           {[]router.Shape{domain(true, "fd00::1/64")}, false, true},
		"one of each":    {[]router.Shape{domain(true, "10.0.0.1/24"), domain(true, "fd00::1/64")}, true, true},
		"only some ways": {[]router.Shape{domain(true, "10.0.0.1/24"), domain(false, "fd00::1/64")}, true, false},
	} {
		if v4, v6 := families(tc.domains); v4 != tc.v4 || v6 != tc.v6 {
			t.Errorf("%s: %v, %v; want %v, %v", name, v4, v6, tc.v4, tc.v6)
		}
	}
}
