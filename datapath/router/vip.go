//go:build linux

package router

import (
	"errors"
	"fmt"
	"net/netip"
	"os"

	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A VIP is a route of the router's namespace to itself, of which a namespace has room for
// any number at the cost of one each: the kernel answers ARP for it on every bridge, and
// refuses at once what the balancing, which comes before, did not take. It is no address
// of any link: nothing is sent from it. Neighbour discovery of IPv6 heeds no such route,
// so there a proxy neighbour on the VIP's own network answers.

// loopbackIndex is the loopback link's in every namespace.
const loopbackIndex = 1

// setVIPs has the namespace answer at addresses no more, and at others.
func (s *space) setVIPs(r *run, remove, add []VIP) error {
	if err := s.heedProxies(r, add); err != nil {
		return fmt.Errorf("VIPs: %w", err)
	}
	kept := map[netip.Addr]bool{}
	for _, v := range add {
		kept[v.Addr] = true
	}
	for _, v := range remove {
		if err := s.dropVIP(v, kept[v.Addr]); err != nil {
			return fmt.Errorf("VIP %s: %w", v.Addr, err)
		}
	}
	if len(remove) > 0 {
		failpoint.Here("router.vips.removed")
	}
	for _, v := range add {
		if err := s.addVIP(v); err != nil {
			return fmt.Errorf("VIP %s: %w", v.Addr, err)
		}
	}
	if len(add) > 0 {
		failpoint.Here("router.vips.added")
	}
	return nil
}

func vipRoute(a netip.Addr) *netlink.Route {
	route := &netlink.Route{
		Dst: ipNet(netip.PrefixFrom(a, a.BitLen())), LinkIndex: loopbackIndex, Table: unix.RT_TABLE_LOCAL,
		Type: unix.RTN_LOCAL, Protocol: protocol,
	}
	if a.Is4() {
		route.Scope = netlink.SCOPE_HOST
	}
	return route
}

// heedProxies has the kernel answer, at once, for the proxy neighbours of VIPs, on their
// bridges alone: were it all links' setting (ipv6 all.proxy_ndp), the kernel would look
// for a proxy neighbour of each packet it forwards, among those of all namespaces.
func (s *space) heedProxies(r *run, list []VIP) error {
	var need []sysctl
	seen := map[string]bool{}
	for _, v := range list {
		if v.Addr.Is4() || seen[v.Network] || v.Network == "" {
			continue
		}
		seen[v.Network] = true
		bridge := BridgeName(v.Network)
		need = append(
			need, sysctl{"ipv6/neigh/" + bridge + "/proxy_delay", "0"},
			sysctl{"ipv6/conf/" + bridge + "/proxy_ndp", "1"},
		)
	}
	if len(need) == 0 {
		return nil
	}
	return s.sysctls(r, need)
}

func (s *space) addVIP(v VIP) error {
	if err := s.rt.RouteReplace(vipRoute(v.Addr)); err != nil {
		return err
	}
	p, err := s.vipProxy(v)
	if err != nil || p == nil {
		return err
	}
	return s.changeProxy(unix.RTM_NEWNEIGH, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, *p)
}

// dropVIP leaves the route where the address stays a VIP.
func (s *space) dropVIP(v VIP, stays bool) error {
	p, err := s.vipProxy(v)
	if err == nil && p != nil {
		err = ignore(s.changeProxy(unix.RTM_DELNEIGH, 0, *p), unix.ENOENT)
	}
	if errors.Is(err, os.ErrNotExist) {
		err = nil // it went with the bridge
	}
	if err != nil || stays {
		return err
	}
	return ignore(s.rt.RouteDel(vipRoute(v.Addr)), unix.ESRCH)
}

// vipProxy is the neighbour entry of a VIP; nil where it needs none.
func (s *space) vipProxy(v VIP) (*proxy, error) {
	if v.Addr.Is4() || v.Network == "" {
		return nil, nil
	}
	bridge, err := s.link(BridgeName(v.Network))
	if err == nil && bridge == nil {
		err = fmt.Errorf("no bridge %s: %w", BridgeName(v.Network), os.ErrNotExist)
	}
	if err != nil {
		return nil, err
	}
	return &proxy{bridge.Attrs().Index, v.Addr}, nil
}

// compareVIPs is the router's part of a comparison of everything.
func (s *space) compareVIPs(r *run, want []VIP) error {
	if err := s.heedProxies(r, want); err != nil {
		return err
	}
	routes, err := s.vipRoutes()
	if err != nil {
		return err
	}
	proxies, err := s.proxies()
	if err != nil {
		return err
	}
	have, answered := map[netip.Addr]bool{}, map[proxy]bool{}
	for _, a := range routes {
		have[a] = true
	}
	for _, p := range proxies {
		answered[p] = true
	}
	for _, v := range want {
		p, err := s.vipProxy(v)
		if r.dry && errors.Is(err, os.ErrNotExist) {
			delete(have, v.Addr) // it hangs on its bridge, which is missing
			continue
		}
		if err != nil {
			return err
		}
		if !have[v.Addr] || p != nil && !answered[*p] {
			if err := r.mend("VIP "+v.Addr.String(), "present", "", func() error { return s.addVIP(v) }); err != nil {
				return err
			}
		}
		delete(have, v.Addr)
		if p != nil {
			delete(answered, *p)
		}
	}
	for a := range have {
		if err := r.mend(
			"VIP "+a.String(), "", "present", func() error { return s.dropVIP(VIP{Addr: a}, false) },
		); err != nil {
			return err
		}
	}
	for p := range answered {
		err := r.mend("proxy neighbour "+p.String(), "", "present", func() error {
			return ignore(s.changeProxy(unix.RTM_DELNEIGH, 0, p), unix.ENOENT)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// vipRoutes lists the VIPs that the namespace has.
func (s *space) vipRoutes() ([]netip.Addr, error) {
	var list []netip.Addr
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		routes, err := s.routesOf(family, unix.RT_TABLE_LOCAL, 0)
		if err != nil {
			return nil, err
		}
		for _, route := range routes {
			if route.Type == unix.RTN_LOCAL {
				list = append(list, prefixOf(route.Dst).Addr())
			}
		}
	}
	return list, nil
}
