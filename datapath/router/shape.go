//go:build linux

package router

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"

	"github.com/kuryr/kuryr/datapath/lb"
	"github.com/kuryr/kuryr/datapath/nft"
	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const defaultMTU = 1500

// What a router remembers of packets whose fragments it puts together.
const (
	fragmentBytes   = "33554432"
	fragmentSeconds = "5"
)

// routerSysctls are set before the first device is made, as devices copy "default".
var routerSysctls = []sysctl{
	{"ipv4/ip_forward", "1"}, // first: it resets others
	// Nearly all packets are for others: no socket is looked for before the route.
	{"ipv4/ip_early_demux", "0"},
	{"ipv4/conf/all/send_redirects", "0"},
	{"ipv4/conf/default/send_redirects", "0"},
	{"ipv4/conf/all/accept_redirects", "0"}, // a router is told its routes by nobody on its networks
	// Filters judge the address that a packet names, not others on a route it asks for.
	{"ipv4/conf/all/accept_source_route", "0"},
	{"ipv4/conf/default/accept_redirects", "0"},
	{"ipv6/conf/all/accept_redirects", "0"},
	{"ipv6/conf/default/accept_redirects", "0"},
	// Frames to the bridge group (01:80:c2:00:00:0x) come to the router past the guard:
	// nothing in them is for it.
	{"ipv4/conf/all/drop_unicast_in_l2_multicast", "1"},
	{"ipv6/conf/default/drop_unicast_in_l2_multicast", "1"},
	{"ipv4/conf/all/promote_secondaries", "1"},
	{"ipv6/conf/all/forwarding", "1"},
	{"ipv6/conf/default/forwarding", "1"},
	{"ipv6/conf/all/accept_ra", "0"},
	{"ipv6/conf/default/accept_ra", "0"},
	{"ipv6/conf/default/accept_dad", "0"},
	{"ipv6/conf/default/addr_gen_mode", "1"}, // ports get no address in the router
	// Fragments that are put together here come from a port, or from the host, which
	// sends them together. So few wait, and not long.
	{"ipv4/ipfrag_high_thresh", fragmentBytes},
	{"ipv4/ipfrag_time", fragmentSeconds},
	{"ipv6/ip6frag_high_thresh", fragmentBytes},
	{"ipv6/ip6frag_time", fragmentSeconds},
	{"netfilter/nf_conntrack_frag6_high_thresh", fragmentBytes},
	{"netfilter/nf_conntrack_frag6_timeout", fragmentSeconds},
	{"netfilter/nf_conntrack_tcp_timeout_time_wait", strconv.Itoa(closedFor)},
	{"bridge/bridge-nf-call-iptables", "0"},
	{"bridge/bridge-nf-call-ip6tables", "0"},
	{"bridge/bridge-nf-call-arptables", "0"},
}

// setShape makes the router's namespace as d says: bridges, uplink, translation, routes.
// Ports and forwardings stay as they are.
func (k *Kernel) setShape(ctx context.Context, d Shape) (Result, error) {
	result, err := k.applyShape(ctx, d)
	if err != nil {
		return result, fmt.Errorf("apply router %s: %w", d.ID, err)
	}
	return result, k.fetch(ctx, d)
}

func (k *Kernel) applyShape(ctx context.Context, d Shape) (Result, error) {
	defer k.lock(d.ID)()
	host, err := k.openHost()
	if err != nil {
		return Result{}, err
	}
	defer host.close()
	r := &run{ctx: ctx, router: d.ID}
	c, err := k.converge(r, host, d)
	for _, diff := range r.diffs {
		k.log.Debug("data path changed", "router", diff.Router, "object", diff.Object, "want", diff.Want, "have", diff.Have)
	}
	if c.space != nil {
		defer c.space.close()
	}
	if err != nil {
		return c.result, err
	}
	routes := k.convergeRoutes(r, c.space, d)
	if d.Uplink == nil {
		return c.result, routes
	}
	if !k.hostReady.Load() {
		if err := k.host.converge(r, host); err != nil {
			return c.result, errors.Join(routes, err)
		}
		k.hostReady.Store(true)
	}
	return c.result, errors.Join(routes, k.host.updateOrMend(r, host, nil, c.elements))
}

// claims is what a router has, or wants, outside its namespace.
type claims struct {
	space    *space // nil if there is no namespace yet
	result   Result
	elements []nft.Element // of the host's table
	proxies  []proxy
}

// converge makes the namespace and the host's end of the uplink as d says, but for the
// routes. The caller holds the router's lock, closes the space and puts the claims'
// elements into the host's table; they are complete also with an error.
func (k *Kernel) converge(r *run, host *space, d Shape) (c claims, err error) {
	if d.Uplink != nil {
		for _, fl := range d.Uplink.Floating {
			c.elements = append(c.elements, floatingElement(fl.External))
		}
	}
	c.space, err = k.openRouter(d.ID)
	if err != nil {
		return c, err
	}
	if c.space == nil {
		err = r.mend("namespace "+d.ID, "present", "", func() error {
			ns, _, err := k.options.Namespaces.Create(d.ID)
			if err == nil {
				c.space, err = k.pool.openSpace(ns)
			}
			return err
		})
		if err != nil || c.space == nil {
			return c, err
		}
	}
	failpoint.Here("router.apply.namespace")
	if !r.dry {
		if err := k.introduce(host, c.space); err != nil {
			return c, err
		}
	}
	if err := c.space.sysctls(r, routerSysctls); err != nil {
		return c, fmt.Errorf("sysctls: %w", err)
	}
	if lo, err := c.space.rt.LinkByIndex(1); err != nil {
		return c, fmt.Errorf("loopback: %w", err)
	} else if lo.Attrs().Flags&net.FlagUp == 0 {
		if err := r.mend("link lo", "up", "down", func() error { return c.space.rt.LinkSetUp(lo) }); err != nil {
			return c, err
		}
	}
	failpoint.Here("router.apply.sysctls")
	if err := guardTable().converge(r, c.space); err != nil {
		return c, err
	}
	failpoint.Here("router.apply.guard")
	addrs, err := c.space.addrs()
	if err != nil {
		return c, err
	}
	if err := k.convergeBridges(r, c.space, d, addrs); err != nil {
		return c, err
	}
	failpoint.Here("router.apply.bridges")
	if d.Uplink == nil {
		if err := k.release(r, host, c.space, d.ID); err != nil {
			return c, err
		}
		if err := routerTable(false).remove(r, c.space); err != nil {
			return c, err
		}
	} else {
		t := routerTable(d.Uplink.SNAT)
		if err := t.converge(r, c.space); err != nil {
			return c, err
		}
		var names []string
		for _, v := range nft.Versions {
			names = append(names, setFloatingIn+v.String(), setFloatingOut+v.String())
		}
		if err := t.sync(r, c.space, d.Uplink.routerElements(), names...); err != nil {
			return c, err
		}
		failpoint.Here("router.apply.nat")
		if err := k.convergeUplink(r, host, d, addrs, &c); err != nil {
			return c, err
		}
	}
	failpoint.Here("router.apply.uplink")
	// Without an uplink or a load balancer nothing in the namespace tracks connections,
	// and this must not be the first to do so.
	if d.Uplink == nil {
		balances, err := balancing.exists(c.space)
		if err != nil || !balances {
			return c, errors.Join(err, c.space.removeShares(r))
		}
	}
	var prefixes []netip.Prefix
	for _, b := range d.Bridges {
		prefixes = append(prefixes, b.Addrs...)
	}
	return c, c.space.convergeShares(r, prefixes)
}

func (k *Kernel) convergeBridges(r *run, s *space, d Shape, addrs map[int][]string) error {
	bridges, err := s.links("bridge", 0)
	if err != nil {
		return err
	}
	have := map[string]netlink.Link{}
	for _, b := range bridges {
		have[b.Attrs().Name] = b
	}
	for _, b := range d.Bridges {
		name := BridgeName(b.Network)
		link := have[name]
		delete(have, name)
		if link, err = s.convergeBridge(r, b, link, addrs); err != nil {
			return err
		}
		if link == nil {
			continue
		}
		k.places.note(name, d.ID)
		if !r.dry && k.balancers.get(d.ID, s.key) != nil {
			if err := lb.LeadUp(s.rt, link); err != nil {
				return err
			}
		}
	}
	for name, link := range have {
		members, err := s.links("", link.Attrs().Index)
		if err != nil {
			return err
		}
		if len(members) > 0 {
			// Its network goes to another router, whose application will fetch it with these
			// ports; here it is a gateway no more.
			if err := s.syncAddrs(r, link, nil, addrs[link.Attrs().Index]); err != nil {
				return err
			}
			continue
		}
		if err := r.mend(
			"bridge "+name, "", "present", func() error { return ignore(s.rt.LinkDel(link), unix.ENODEV) },
		); err != nil {
			return err
		}
		if !r.dry {
			k.places.forget(name, d.ID)
		}
	}
	return nil
}

// convergeBridge returns the bridge; nil if it is missing and the run is dry.
func (s *space) convergeBridge(r *run, b Bridge, link netlink.Link, addrs map[int][]string) (netlink.Link, error) {
	name, mac := BridgeName(b.Network), stableMAC(b.Network)
	if link == nil {
		err := r.mend("bridge "+name, "present", "", func() error {
			other, err := s.link(name)
			if err != nil {
				return err
			}
			if other != nil { // in our namespace, under our name, but no bridge
				if err := s.rt.LinkDel(other); err != nil {
					return err
				}
			}
			if err := s.rt.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{
				Name: name, HardwareAddr: mac, TxQLen: -1,
			}}); err != nil {
				return err
			}
			failpoint.Here("router.bridge.made")
			link, err = s.link(name)
			return err
		})
		if err != nil || link == nil {
			return nil, err
		}
	}
	if err := s.guardLearning(r, link); err != nil {
		return nil, fmt.Errorf("bridge %s: %w", name, err)
	}
	if err := s.convergeLink(r, link, mac, b.MTU, aliasNetwork+b.Network); err != nil {
		return nil, err
	}
	want := b.Addrs
	for _, a := range b.Addrs {
		if a.Addr().Is6() {
			want = append(want[:len(want):len(want)], netip.PrefixFrom(linkLocal(mac), 64))
			break
		}
	}
	return link, s.syncAddrs(r, link, want, addrs[link.Attrs().Index])
}

// convergeLink mends what a message can set on a link and puts it up last. A nil MAC
// stays as it is.
func (s *space) convergeLink(r *run, link netlink.Link, mac net.HardwareAddr, mtu int, alias string) error {
	a := link.Attrs()
	object := "link " + a.Name
	if mac != nil && a.HardwareAddr.String() != mac.String() {
		if err := r.mend(
			object, mac.String(), a.HardwareAddr.String(),
			func() error { return s.rt.LinkSetHardwareAddr(link, mac) },
		); err != nil {
			return err
		}
	}
	if mtu == 0 {
		mtu = defaultMTU
	}
	if a.MTU != mtu {
		if err := r.mend(
			object, "mtu "+strconv.Itoa(mtu), "mtu "+strconv.Itoa(a.MTU),
			func() error { return s.rt.LinkSetMTU(link, mtu) },
		); err != nil {
			return err
		}
	}
	if a.Alias != alias {
		if err := r.mend(object, alias, a.Alias, func() error { return s.rt.LinkSetAlias(link, alias) }); err != nil {
			return err
		}
	}
	if a.Flags&net.FlagUp == 0 {
		return r.mend(object, "up", "down", func() error { return s.rt.LinkSetUp(link) })
	}
	return nil
}

// convergeRoutes makes the router's routes: its default ones and its static ones. One
// that the kernel refuses hinders no other; nor must its error hinder what else the
// caller does.
func (k *Kernel) convergeRoutes(r *run, s *space, d Shape) error {
	want := map[string]netlink.Route{}
	note := func(dst netip.Prefix, via netip.Addr, link int, flags int) {
		route := netlink.Route{Dst: ipNet(dst.Masked()), Gw: via.AsSlice(), LinkIndex: link, Protocol: protocol, Flags: flags}
		want[routeKey(route)] = route
	}
	if d.Uplink != nil {
		up, err := s.link(uplinkName)
		if err != nil {
			return err
		}
		if up != nil {
			if d.Uplink.addr(true).IsValid() {
				note(
					netip.PrefixFrom(netip.IPv4Unspecified(), 0), hostEnd(k.options.Uplink4), up.Attrs().Index,
					int(netlink.FLAG_ONLINK),
				)
			}
			if d.Uplink.addr(false).IsValid() {
				note(netip.PrefixFrom(netip.IPv6Unspecified(), 0), hostLinkLocal.Addr(), up.Attrs().Index, 0)
			}
		}
	}
	for _, route := range d.Routes {
		note(route.Destination, route.NextHop, 0, 0)
	}
	have, err := s.routes(0)
	if err != nil {
		return err
	}
	for _, route := range have {
		key := routeKey(route)
		if _, wanted := want[key]; wanted {
			delete(want, key)
			continue
		}
		if err := r.mend(
			"route "+key, "", "present", func() error { return ignore(s.rt.RouteDel(&route), unix.ESRCH) },
		); err != nil {
			return err
		}
	}
	var errs []error
	for key, route := range want {
		errs = append(errs, r.mend("route "+key, "present", "", func() error {
			return ignore(s.rt.RouteAdd(&route), unix.EEXIST)
		}))
	}
	return errors.Join(errs...)
}

func routeKey(r netlink.Route) string {
	if r.Gw == nil {
		return r.Dst.String()
	}
	return r.Dst.String() + " via " + r.Gw.String()
}

// Delete removes a router and everything in it, and what it had in the host. An
// absent one is no error. The caller does not wait for the kernel to take the links down.
func (k *Kernel) Delete(ctx context.Context, id string) error {
	k.gate.RLock()
	defer k.gate.RUnlock()
	defer k.lock(id)()
	host, err := k.openHost()
	if err != nil {
		return err
	}
	defer host.close()
	return k.deleteRouter(&run{ctx: ctx, router: id}, host, id)
}

func (k *Kernel) deleteRouter(r *run, host *space, id string) error {
	s, err := k.openRouter(id)
	if err != nil {
		return fmt.Errorf("delete router %s: %w", id, err)
	}
	if s != nil {
		defer func() {
			s.close()
			if !r.dry {
				k.pool.keep(func(key nsKey) bool { return key != s.key })
			}
		}()
	}
	if err := k.release(r, host, s, id); err != nil {
		return fmt.Errorf("delete router %s: %w", id, err)
	}
	failpoint.Here("router.delete.released")
	if !r.dry {
		k.balancers.forget(id)
	}
	err = r.mend("namespace "+id, "", "present", func() error { return k.options.Namespaces.Delete(id) })
	if err == nil && !r.dry {
		k.places.forgetRouter(id)
		k.trunks.forgetRouter(id)
		k.leftovers.forget(id)
	}
	return err
}
