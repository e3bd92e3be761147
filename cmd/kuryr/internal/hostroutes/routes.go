//go:build linux

package hostroutes

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Route is a route of the main table.
type Route struct {
	To   netip.Prefix // of no length for a default route
	Link string       // "" for one that is by no link, or by several
}

// Routes gives all routes of the main table.
func Routes(ctx context.Context) ([]Route, error) {
	var all []Route
	names := map[int]string{}
	for family, none := range map[int]netip.Addr{
		unix.AF_INET: netip.IPv4Unspecified(), unix.AF_INET6: netip.IPv6Unspecified(),
	} {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		routes, err := dump(family, unix.RT_TABLE_MAIN)
		if err != nil {
			return nil, fmt.Errorf("host's routes: %w", err)
		}
		for _, r := range routes {
			to := netip.PrefixFrom(none, 0)
			if r.Dst != nil {
				addr, ok := netip.AddrFromSlice(r.Dst.IP)
				if !ok {
					continue
				}
				to = netip.PrefixFrom(addr.Unmap(), maskLen(r.Dst.Mask))
			}
			if _, known := names[r.LinkIndex]; !known && r.LinkIndex > 0 {
				if link, err := netlink.LinkByIndex(r.LinkIndex); err == nil {
					names[r.LinkIndex] = link.Attrs().Name
				}
			}
			all = append(all, Route{to, names[r.LinkIndex]})
		}
	}
	return all, nil
}
