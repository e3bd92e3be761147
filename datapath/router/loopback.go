//go:build linux

package router

import (
	"errors"
	"fmt"

	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/kuryr/kuryr/datapath/nft"
)

// What the host's ::1 sends to a published port leaves by an uplink with the uplink's
// address, and the answer is translated back to ::1 when it comes in. The kernel looks
// loopback destinations up for the link they came by alone, and knows ::1 on lo only:
// without a route of the uplink's own to ::1 it drops the answer. What comes from the
// wire for ::1 it drops before it looks.

var loopback6 = nft.V6.Loopback()

// loopbackMetric is above that of lo's own route, which everything else is to use.
const loopbackMetric = 2048

func loopbackRoute(link int) netlink.Route {
	return netlink.Route{
		Dst: ipNet(loopback6), LinkIndex: link, Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL,
		Priority: loopbackMetric, Protocol: protocol, Family: unix.AF_INET6,
	}
}

// convergeLoopback makes the route by which answers for ::1 come in by an uplink, or
// deletes it where the uplink has no IPv6.
func (k *Kernel) convergeLoopback(r *run, host *space, u *Uplink, link netlink.Link) error {
	route, want := loopbackRoute(link.Attrs().Index), u.addr(false).IsValid()
	// Appended: the kernel has one such route for every uplink, and would replace another's.
	add := func() error { return ignore(host.rt.RouteAppend(&route), unix.EEXIST) }
	remove := func() error { return ignore(host.rt.RouteDel(&route), unix.ESRCH, unix.ENOENT) }
	if k.ipv4Only {
		return nil
	}
	if r.hostLoopbacks == nil { // a change of one uplink does not read the routes of all
		change := remove
		if want {
			change = add
		}
		if err := change(); err != nil {
			return fmt.Errorf("route to ::1 by %s: %w", link.Attrs().Name, err)
		}
		failpoint.Here("router.uplink.loopback")
		return nil
	}
	have := r.hostLoopbacks[route.LinkIndex]
	object := "host route ::1 by " + link.Attrs().Name
	switch {
	case want && !have:
		return r.mend(object, "present", "", add)
	case !want && have:
		return r.mend(object, "", "present", remove)
	}
	return nil
}

// loopbacks tells which links have a route of ours to ::1.
func (s *space) loopbacks() (map[int]bool, error) {
	return dumped(func() (map[int]bool, error) {
		req := s.request(unix.RTM_GETROUTE, unix.NLM_F_DUMP)
		msg := &nl.RtMsg{}
		msg.Family, msg.Table, msg.Protocol, msg.Type = unix.AF_INET6, unix.RT_TABLE_LOCAL, protocol, unix.RTN_LOCAL
		req.AddData(msg)
		answers, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWROUTE)
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return nil, fmt.Errorf("list local routes: %w", err)
		}
		links := map[int]bool{}
		for _, answer := range answers {
			if head := nl.DeserializeRtMsg(answer); head.Protocol != protocol ||
				head.Family != unix.AF_INET6 || head.Table != unix.RT_TABLE_LOCAL {
				continue
			}
			route, err := deserializeRoute(answer)
			if err != nil {
				return nil, fmt.Errorf("list local routes: %w", err)
			}
			if prefixOf(route.Dst) == loopback6 {
				links[route.LinkIndex] = true
			}
		}
		return links, nil
	})
}

// sweepLoopbacks removes routes to ::1 of ours on links that are no uplinks of ours.
func (r *run) sweepLoopbacks(host *space, ours map[int]bool) error {
	have, err := host.loopbacks()
	if err != nil {
		return err
	}
	for link := range have {
		if ours[link] {
			continue
		}
		route := loopbackRoute(link)
		route.Priority = 0 // whatever it is
		err := r.mend(fmt.Sprintf("host route ::1 by link %d", link), "", "present", func() error {
			return ignore(host.rt.RouteDel(&route), unix.ESRCH, unix.ENOENT, unix.ENODEV)
		})
		if err != nil {
			return err
		}
	}
	return nil
}
