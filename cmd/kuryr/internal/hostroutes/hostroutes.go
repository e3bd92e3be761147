//go:build linux

// Package hostroutes tells which address ranges the host already leads somewhere, so that
// Kuryr takes none of them.
//
// It only reads, in the network namespace of the calling thread. It must not choose or
// change anything.
package hostroutes

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kuryr/kuryr/internal/sortslice"
)

// Prefixes gives the destinations of all routes but default routes, masked, sorted, each
// once; the networks that links are on are among them, and what other tables than the
// main one lead elsewhere by rules, as those of VPNs do. Multicast and link-local ranges
// are left out: every link has them.
func Prefixes(ctx context.Context) ([]netip.Prefix, error) {
	var all []netip.Prefix
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		routes, err := dump(family, unix.RT_TABLE_UNSPEC)
		if err != nil {
			return nil, fmt.Errorf("host's routes: %w", err)
		}
		for _, r := range routes {
			if r.Dst != nil && r.Table != unix.RT_TABLE_LOCAL {
				all = add(all, r.Dst.IP, r.Dst.Mask)
			}
		}
	}
	sortslice.Func(all, func(a, b netip.Prefix) int {
		if c := a.Addr().Compare(b.Addr()); c != 0 {
			return c
		}
		return a.Bits() - b.Bits()
	})
	return slices.Compact(all), nil
}

// dumpTries is how often a dump that the kernel calls inconsistent, because something
// changed while it was made, is repeated.
const dumpTries = 5

// dump gives the routes of a table, or of all. One that stays inconsistent lacks only
// what changed while it was read.
func dump(family, table int) ([]netlink.Route, error) {
	for try := 1; ; try++ {
		routes, err := netlink.RouteListFiltered(family, &netlink.Route{Table: table}, netlink.RT_FILTER_TABLE)
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			return routes, err
		}
		if try == dumpTries {
			return routes, nil
		}
	}
}

func add(all []netip.Prefix, ip, mask []byte) []netip.Prefix {
	addr, ok := netip.AddrFromSlice(ip)
	ones := maskLen(mask)
	if !ok || ones == 0 {
		return all
	}
	addr = addr.Unmap()
	if addr.IsLoopback() || addr.IsLinkLocalUnicast() || addr.IsMulticast() {
		return all
	}
	p, err := addr.Prefix(ones)
	if err != nil {
		return all
	}
	return append(all, p)
}

func maskLen(mask []byte) int {
	n := 0
	for _, b := range mask {
		for ; b&0x80 != 0; b <<= 1 {
			n++
		}
	}
	return n
}
