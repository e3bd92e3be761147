//go:build linux

package router

import (
	"errors"
	"net/netip"
	"os"
	"slices"

	"github.com/kuryr/kuryr/datapath/lb"
)

// kernelLacksIPv6 tells a kernel that was booted with ipv6.disable=1, or built without IPv6.
func kernelLacksIPv6() bool {
	_, err := os.Stat("/proc/sys/net/ipv6")
	return errors.Is(err, os.ErrNotExist)
}

// feasible is the router without what the kernel has no address family for: its IPv4 is
// not to suffer from that.
func (k *Kernel) feasible(d Shape) Shape {
	if !k.ipv4Only {
		return d
	}
	d.Bridges = slices.Clone(d.Bridges)
	for i := range d.Bridges {
		d.Bridges[i].Addrs = only4(d.Bridges[i].Addrs, netip.Prefix.Addr)
	}
	d.Routes = only4(d.Routes, func(r Route) netip.Addr { return r.NextHop })
	if d.Uplink == nil {
		return d
	}
	u := *d.Uplink
	d.Uplink = &u
	u.Addrs = only4(u.Addrs, func(a netip.Addr) netip.Addr { return a })
	u.Reach = only4(u.Reach, netip.Prefix.Addr)
	u.Floating = only4(u.Floating, func(fl Floating) netip.Addr { return fl.External })
	if len(u.Addrs) == 0 {
		d.Uplink = nil
	}
	return d
}

// feasibleForwards is feasible for forwardings.
func (k *Kernel) feasibleForwards(list []Forward) []Forward {
	if !k.ipv4Only {
		return list
	}
	return only4(list, func(w Forward) netip.Addr { return w.Address })
}

// feasibleVIPs is feasible for VIPs.
func (k *Kernel) feasibleVIPs(list []VIP) []VIP {
	if !k.ipv4Only {
		return list
	}
	return only4(list, func(v VIP) netip.Addr { return v.Addr })
}

// feasibleFrontends is feasible for what is balanced.
func (k *Kernel) feasibleFrontends(list []lb.Frontend) []lb.Frontend {
	if !k.ipv4Only {
		return list
	}
	return only4(list, func(w lb.Frontend) netip.Addr { return w.Addr })
}

func only4[T any](list []T, addr func(T) netip.Addr) []T {
	return slices.DeleteFunc(slices.Clone(list), func(e T) bool { return addr(e).Is6() })
}
