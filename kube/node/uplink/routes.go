//go:build linux

package uplink

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
)

var noAddress netip.Addr

// route leads to a subnet by way of the router's address on the port's own.
type route struct {
	to  netip.Prefix
	via netip.Addr
}

// wanted gives the port that is to be plugged, nil for none, and the routes on it: to each subnet that its router has.
func (u *Uplink) wanted() (*v1.KuryrPortSpec, []route) {
	u.mu.Lock()
	defer u.mu.Unlock()
	var port *v1.KuryrPort
	for _, p := range u.ports {
		leaving := p.DeletionTimestamp != nil || p.Labels[v1.LabelPortStatus] == string(v1.PortDeleting)
		if !leaving && (port == nil || strings.Compare(p.Name, port.Name) < 0) {
			port = p
		}
	}
	if port == nil {
		return nil, nil
	}
	var own []netip.Prefix
	var gateways []netip.Addr
	for _, s := range port.Spec.Network.Subnets {
		if p, err := netip.ParsePrefix(s.CIDR); err == nil {
			own = append(own, p.Masked())
		}
		if g, err := netip.ParseAddr(s.Gateway); err == nil {
			gateways = append(gateways, g)
		}
	}
	router := ""
	for _, n := range u.networks {
		if n.Status.Network == port.Spec.Network.ID {
			router = n.Status.Router
		}
	}
	var routes []route
	for _, n := range u.networks {
		if n.Status.Router != router || router == "" {
			continue
		}
		for _, s := range n.Status.Subnets {
			to, err := netip.ParsePrefix(s.CIDR)
			if err != nil || slices.Contains(own, to.Masked()) {
				continue
			}
			at := slices.IndexFunc(gateways, func(g netip.Addr) bool { return g.Is4() == to.Addr().Is4() })
			if r := (route{to: to.Masked()}); at >= 0 {
				if r.via = gateways[at]; !slices.Contains(routes, r) {
					routes = append(routes, r)
				}
			}
		}
	}
	spec := *port.Spec.DeepCopy()
	return &spec, routes
}

// setRoutes has the routes on a link in the namespace at a path be those wanted. What the kernel itself has put there stays.
func setRoutes(namespace, name string, wanted []route) error {
	ns, err := netns.GetFromPath(namespace)
	if err != nil {
		return fmt.Errorf("the host's network namespace: %w", err)
	}
	defer ns.Close()
	h, err := netlink.NewHandleAt(ns)
	if err != nil {
		return err
	}
	defer h.Close()
	link, err := h.LinkByName(name)
	if err != nil {
		return fmt.Errorf("link %s: %w", name, err)
	}
	index := link.Attrs().Index
	there, err := h.RouteListFiltered(unix.AF_UNSPEC, &netlink.Route{LinkIndex: index}, netlink.RT_FILTER_OIF)
	if err != nil { // also where the dump was cut short: it is tried again
		return fmt.Errorf("routes of %s: %w", name, err)
	}
	missing := slices.Clone(wanted)
	for i := range there {
		if there[i].Protocol == unix.RTPROT_KERNEL || there[i].Dst == nil {
			continue
		}
		has := routeOf(there[i])
		if at := slices.Index(missing, has); at >= 0 {
			missing = slices.Delete(missing, at, at+1)
			continue
		}
		if err := h.RouteDel(&there[i]); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("take away the route to %s: %w", has.to, err)
		}
	}
	for _, r := range missing {
		to := &net.IPNet{IP: r.to.Addr().AsSlice(), Mask: net.CIDRMask(r.to.Bits(), r.to.Addr().BitLen())}
		if err := h.RouteReplace(&netlink.Route{LinkIndex: index, Dst: to, Gw: r.via.AsSlice(), Protocol: unix.RTPROT_STATIC}); err != nil {
			return fmt.Errorf("route to %s via %s: %w", r.to, r.via, err)
		}
	}
	return nil
}

func routeOf(r netlink.Route) route {
	to, _ := netip.AddrFromSlice(r.Dst.IP)
	via, _ := netip.AddrFromSlice(r.Gw)
	ones, _ := r.Dst.Mask.Size()
	return route{to: netip.PrefixFrom(to.Unmap(), ones), via: via.Unmap()}
}
