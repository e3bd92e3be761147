//go:build linux

package router

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/kuryr/kuryr/datapath/nft"
	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// convergeUplink makes the pair between router and host with all that hangs on it, and
// notes what the host's table is to hold for it.
func (k *Kernel) convergeUplink(r *run, host *space, d Shape, addrs map[int][]string, c *claims) error {
	u, s, name := d.Uplink, c.space, UplinkName(d.ID)
	inside, err := s.link(uplinkName)
	if err != nil {
		return err
	}
	outside, err := host.link(name)
	if err != nil {
		return err
	}
	if !paired(outside, inside) {
		err := r.mend("uplink "+name, "pair", "no pair", func() error {
			if err := makePair(r, host, s, d, inside); err != nil {
				return err
			}
			if inside, err = s.link(uplinkName); err != nil {
				return err
			}
			outside, err = host.link(name)
			return err
		})
		if err != nil || r.dry {
			return err
		}
		if !paired(outside, inside) {
			return fmt.Errorf("uplink %s vanished while it was made", name)
		}
		addrs = nil
	}
	failpoint.Here("router.uplink.made")
	if outside.Attrs().Alias == "" && !r.dry {
		// Only a link that is not finished: from here on it has no address but ours.
		// EAFNOSUPPORT: this kernel has no IPv6, or none on so small an MTU.
		if err := ignore(host.rt.LinkSetIP6AddrGenMode(outside, nl6AddrGenNone), unix.EAFNOSUPPORT); err != nil {
			return fmt.Errorf("address generation of %s: %w", name, err)
		}
	}
	own := []sysctl{{"ipv4/conf/" + name + "/route_localnet", "1"}, {"ipv6/conf/" + name + "/accept_ra", "0"}}
	if u.addr(false).IsValid() {
		// A host that switches IPv6 off by default does so for the links it knows of; this one is ours.
		own = append(own, sysctl{"ipv6/conf/" + name + "/disable_ipv6", "0"})
	}
	if err := host.sysctls(r, own); err != nil {
		return fmt.Errorf("sysctls of %s: %w", name, err)
	}
	if err := host.convergeLink(r, outside, nil, u.MTU, aliasRouter+d.ID); err != nil {
		return err
	}
	failpoint.Here("router.uplink.host")
	if err := s.convergeLink(r, inside, nil, u.MTU, aliasUplink+d.ID); err != nil {
		return err
	}
	if err := k.convergeUplinkAddrs(r, host, s, u, outside, inside, addrs); err != nil {
		return err
	}
	failpoint.Here("router.uplink.addresses")
	if err := k.convergeLoopback(r, host, u, outside); err != nil {
		return err
	}
	return k.convergeHostRoutes(r, host, u, outside, c)
}

const nl6AddrGenNone = 1 // IN6_ADDR_GEN_MODE_NONE

// paired reports whether two links of two namespaces are each other's peers.
func paired(outside, inside netlink.Link) bool {
	return outside != nil && inside != nil && outside.Type() == "veth" && inside.Type() == "veth" &&
		outside.Attrs().ParentIndex == inside.Attrs().Index && inside.Attrs().ParentIndex == outside.Attrs().Index
}

func makePair(r *run, host, s *space, d Shape, inside netlink.Link) error {
	if inside != nil {
		if err := ignore(s.rt.LinkDel(inside), unix.ENODEV); err != nil {
			return err
		}
	}
	mtu := d.Uplink.MTU
	if mtu == 0 {
		mtu = defaultMTU
	}
	name := UplinkName(d.ID)
	// The name may still belong to an earlier incarnation, whose namespace the kernel has
	// not cleaned up yet. Each turn either makes the link or deletes what stood in its way.
	for range 16 {
		if err := r.ctx.Err(); err != nil {
			return err
		}
		err := host.rt.LinkAdd(&netlink.Veth{
			LinkAttrs: netlink.LinkAttrs{Name: name, MTU: mtu, TxQLen: -1}, PeerName: uplinkName,
			PeerNamespace: netlink.NsFd(int(s.ns)), PeerMTU: uint32(mtu), PeerTxQLen: -1,
		})
		if !errors.Is(err, unix.EEXIST) {
			return err
		}
		old, err := host.link(name)
		if err != nil {
			return err
		}
		if old == nil {
			continue
		}
		if alias := old.Attrs().Alias; old.Type() != "veth" ||
			alias != "" && alias != aliasRouter+d.ID && alias != aliasDying+d.ID {
			return fmt.Errorf("the host has a foreign link %s (%s, alias %q)", name, old.Type(), alias)
		}
		if err := ignore(host.rt.LinkDel(old), unix.ENODEV); err != nil {
			return err
		}
	}
	return fmt.Errorf("link %s keeps existing: %w", name, unix.EEXIST)
}

func (k *Kernel) convergeUplinkAddrs(
	r *run, host, s *space, u *Uplink, outside, inside netlink.Link, addrs map[int][]string,
) error {
	var ours, theirs []netip.Prefix
	if a := u.addr(true); a.IsValid() {
		ours = append(ours, netip.PrefixFrom(hostEnd(k.options.Uplink4), 32))
		theirs = append(theirs, netip.PrefixFrom(a, 32))
	}
	if a := u.addr(false); a.IsValid() {
		// The global one is for what the host itself sends to containers: they cannot answer to
		// a link-local address.
		ours = append(ours, hostLinkLocal, netip.PrefixFrom(hostEnd(k.options.Uplink6), 128))
		theirs = append(theirs, routerLinkLocal, netip.PrefixFrom(a, 128))
	}
	if r.hostAddrs != nil {
		if err := host.syncAddrs(r, outside, ours, r.hostAddrs[outside.Attrs().Index]); err != nil {
			return err
		}
	} else {
		// All of the host's addresses are not read for one link; adding what is there already
		// costs one message.
		for _, p := range ours {
			if err := host.addAddr(outside, p); err != nil {
				return fmt.Errorf("address %s on %s: %w", p, outside.Attrs().Name, err)
			}
		}
	}
	have := addrs[inside.Attrs().Index]
	if !r.dry {
		// While up0 has its old address, a killed run can still be told which of the host's
		// elements were this router's.
		if err := k.readdress(r, host, s, have, u); err != nil {
			return err
		}
	}
	return s.syncAddrs(r, inside, theirs, have)
}

// readdress makes the host's published ports that led to an address in have lead to u's.
func (k *Kernel) readdress(r *run, host, s *space, have []string, u *Uplink) error {
	for _, text := range have {
		p, err := netip.ParsePrefix(text)
		if err != nil || p.Addr().IsLinkLocalUnicast() {
			continue
		}
		next := u.addr(p.Addr().Is4())
		if next == p.Addr() {
			continue
		}
		origins, err := routerTable(false).elements(s, setOrigin+nft.VersionOf(p.Addr()).String())
		if err != nil {
			return err
		}
		var remove, add []nft.Element
		var stale []flow
		for _, e := range origins {
			w, ok := forwardFrom(e)
			if !ok {
				continue
			}
			remove = append(remove, w.inHost(p.Addr()))
			if w.Protocol == unix.IPPROTO_UDP {
				stale = append(stale, w.hostFlow(p.Addr()))
			}
			if next.IsValid() {
				add = append(add, w.inHost(next))
			}
		}
		if err := k.host.updateOrMend(r, host, remove, add); err != nil {
			return fmt.Errorf("published ports of %s: %w", p.Addr(), err)
		}
		if err := host.forgetFlows(p.Addr().Is4(), stale); err != nil {
			return err
		}
	}
	return nil
}

// convergeHostRoutes makes the host's routes into the router: to its uplink addresses,
// its floating addresses, and to the networks that the host may reach.
func (k *Kernel) convergeHostRoutes(r *run, host *space, u *Uplink, link netlink.Link, c *claims) error {
	index := link.Attrs().Index
	list, err := host.routes(index)
	if err != nil {
		return err
	}
	have := map[string]netlink.Route{}
	for _, route := range list {
		have[routeKey(route)] = route
	}
	direct := func(a netip.Addr) netlink.Route {
		return netlink.Route{
			Dst: ipNet(netip.PrefixFrom(a, a.BitLen())), LinkIndex: index, Scope: netlink.SCOPE_LINK,
			Protocol: protocol,
		}
	}
	via := func(p netip.Prefix) netlink.Route {
		return netlink.Route{
			Dst: ipNet(p.Masked()), Gw: u.addr(p.Addr().Is4()).AsSlice(), LinkIndex: index,
			Flags: int(netlink.FLAG_ONLINK), Protocol: protocol,
		}
	}
	ensure := func(route netlink.Route) error {
		key := routeKey(route)
		if _, ok := have[key]; ok {
			delete(have, key)
			return nil
		}
		// Replace: a floating address may just have moved here from another router.
		return r.mend("host route "+key, "present", "", func() error { return host.rt.RouteReplace(&route) })
	}
	for _, a := range u.Addrs {
		if err := ensure(direct(a)); err != nil {
			return err
		}
	}
	failpoint.Here("router.uplink.route")
	for _, fl := range u.Floating {
		if err := k.alone(
			func() error { return ensure(via(netip.PrefixFrom(fl.External, fl.External.BitLen()))) },
		); err != nil {
			return err
		}
	}
	failpoint.Here("router.uplink.floating")
	if err := k.convergeProxies(r, host, u, c); err != nil {
		return err
	}
	for _, p := range u.Reach {
		if !u.addr(p.Addr().Is4()).IsValid() {
			c.result.Unreached = append(c.result.Unreached, Unreached{p, "the uplink has no address of this family"})
			continue
		}
		route := via(p)
		if _, ok := have[routeKey(route)]; ok {
			delete(have, routeKey(route))
			continue
		}
		reason, err := k.takeRange(r, host, p, route)
		if err != nil {
			return err
		}
		if reason != "" {
			c.result.Unreached = append(c.result.Unreached, Unreached{p, reason})
		}
	}
	for key, route := range have {
		err := r.mend("host route "+key, "", "present", func() error { return k.dropHostRoute(r, host, route) })
		if err != nil {
			return err
		}
	}
	return nil
}

// alone runs f while no other router takes a floating address or lets go of one.
func (k *Kernel) alone(do func() error) error {
	k.reach.Lock()
	defer k.reach.Unlock()
	return do()
}

// dropHostRoute removes a route into a router. A floating address's goes last, as it is
// what tells of the rest.
func (k *Kernel) dropHostRoute(r *run, host *space, route netlink.Route) error {
	dst := prefixOf(route.Dst)
	if route.Gw == nil || !dst.IsSingleIP() {
		return ignore(host.rt.RouteDel(&route), unix.ESRCH)
	}
	return k.alone(func() error {
		// Another router may have taken the address since the routes were listed: its route
		// then stands in this one's place, and the rest is that router's too.
		list, err := host.routes(route.LinkIndex)
		if err != nil ||
			!slices.ContainsFunc(
				list, func(have netlink.Route) bool { return routeKey(have) == routeKey(route) },
			) {
			return err
		}
		if err := k.host.updateOrMend(r, host, []nft.Element{floatingElement(dst.Addr())}, nil); err != nil {
			return err
		}
		if err := k.dropProxy(r, host, dst.Addr()); err != nil {
			return err
		}
		failpoint.Here("router.floating.unannounced")
		return ignore(host.rt.RouteDel(&route), unix.ESRCH)
	})
}

// takeRange adds the host's route to a network behind a router, unless the host already
// knows a way to some of it; then it returns why not.
func (k *Kernel) takeRange(r *run, host *space, p netip.Prefix, route netlink.Route) (string, error) {
	k.reach.Lock()
	defer k.reach.Unlock()
	family := netlink.FAMILY_V6
	if p.Addr().Is4() {
		family = netlink.FAMILY_V4
	}
	routes, err := dump(func() ([]netlink.Route, error) { return host.rt.RouteList(nil, family) })
	if err != nil {
		return "", fmt.Errorf("list routes: %w", err)
	}
	for _, other := range routes {
		if isDefault(other) || !prefixOf(other.Dst).Overlaps(p) {
			continue
		}
		if other.LinkIndex == route.LinkIndex && other.Protocol == protocol {
			continue // our own, from before: a floating address inside, or the next hop has changed
		}
		owner := "link " + strconv.Itoa(other.LinkIndex)
		if link, err := host.rt.LinkByIndex(other.LinkIndex); err == nil {
			owner = link.Attrs().Name
		}
		return fmt.Sprintf("overlaps the host's route %s by %s", other.Dst, owner), nil
	}
	return "", r.mend("host route "+routeKey(route), "present", "", func() error { return host.rt.RouteReplace(&route) })
}

// release takes a router's things out of the host: published ports, floating addresses,
// the link. s is nil if the namespace is gone.
func (k *Kernel) release(r *run, host, s *space, id string) error {
	if s != nil {
		inside, err := s.link(uplinkName)
		if err != nil {
			return err
		}
		if inside != nil && !r.dry {
			addrs, err := s.addrs()
			if err != nil {
				return err
			}
			if err := k.readdress(r, host, s, addrs[inside.Attrs().Index], &Uplink{}); err != nil {
				return err
			}
		}
	}
	failpoint.Here("router.release.published")
	if len(id) < shortID {
		return nil // such a router never had an uplink
	}
	link, err := host.link(UplinkName(id))
	if err != nil || link == nil {
		return err
	}
	if alias := link.Attrs().Alias; alias != aliasRouter+id && alias != aliasDying+id {
		if alias != "" || s == nil {
			return nil // not ours, or a half-made one whose other end goes with the namespace
		}
		inside, err := s.link(uplinkName)
		if err != nil || !paired(link, inside) {
			return err
		}
	}
	return r.mend("uplink "+link.Attrs().Name, "", "present", func() error { return k.bury(r, host, link, id) })
}

// bury takes a link out of use at once and leaves its deletion, which takes 20 ms, to a
// goroutine. The name is free when bury returns.
func (k *Kernel) bury(r *run, host *space, link netlink.Link, id string) error {
	routes, err := host.routes(link.Attrs().Index)
	if err != nil {
		return err
	}
	for _, route := range routes {
		if err := k.dropHostRoute(r, host, route); err != nil {
			return err
		}
	}
	if err := host.rt.LinkSetAlias(link, aliasDying+id); err != nil {
		return ignore(err, unix.ENODEV)
	}
	failpoint.Here("router.bury.marked")
	if err := host.rt.LinkSetDown(link); err != nil {
		return ignore(err, unix.ENODEV)
	}
	if err := host.rt.LinkSetName(link, dyingPrefix+strconv.Itoa(link.Attrs().Index)); err != nil {
		return ignore(err, unix.ENODEV)
	}
	failpoint.Here("router.bury.renamed")
	own, err := k.openHost()
	if err != nil {
		return err
	}
	k.collector.Go(func() {
		defer own.close()
		if err := ignore(own.rt.LinkDel(link), unix.ENODEV); err != nil {
			k.log.Warn("link of a removed router not deleted", "router", id, "err", err)
		}
	})
	return nil
}

func prefixOf(n *net.IPNet) netip.Prefix {
	a, _ := netip.AddrFromSlice(n.IP)
	ones, _ := n.Mask.Size()
	return netip.PrefixFrom(a.Unmap(), ones)
}

// isUplink tells our links in the host's namespace, dying ones included.
func isUplink(l netlink.Link) bool {
	a := l.Attrs()
	return (strings.HasPrefix(a.Name, uplinkPrefix) || strings.HasPrefix(a.Name, dyingPrefix)) &&
		slices.ContainsFunc([]string{aliasRouter, aliasDying}, func(p string) bool { return strings.HasPrefix(a.Alias, p) })
}
