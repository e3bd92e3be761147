//go:build linux

package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/kuryr/kuryr/bind"
	"github.com/kuryr/kuryr/kube/cni"
	"github.com/kuryr/kuryr/sdn"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// check compares an attachment with what its ADD left: the port, the interface's MAC, MTU, addresses and
// routes, and its host end.
func (s *Server) check(ctx context.Context, c cni.Call, conf cni.Config) error {
	args, err := cni.ParseArgs(c.Args)
	if err != nil {
		return err
	}
	a, err := attachment(c, conf, args)
	if err != nil {
		return err
	}
	if err := checkNamespace(c.Namespace); err != nil {
		return err
	}
	unlock, err := s.lock(ctx, a)
	if err != nil {
		return err
	}
	defer unlock()
	w, err := s.find(ctx, a)
	if sdn.IsNotFound(err) {
		return cni.Differs.Errorf("container %s has no port for %s", a.Container, a.Interface)
	}
	if err != nil {
		return err
	}
	want := plugged(a, w).Result()
	if err := asBefore(want, conf, a.Interface); err != nil {
		return err
	}
	state, err := s.binder.State(ctx, w.Port)
	if err != nil {
		return err
	}
	if state != bind.Whole {
		return cni.Differs.Errorf("the host end of port %s is %s", w.Port.ID, state)
	}
	wrong, err := inspect(a.Namespace, a.Interface, want)
	if err != nil {
		return err
	}
	if len(wrong) > 0 {
		return cni.Differs.Errorf("interface %s: %s", a.Interface, strings.Join(wrong, "; "))
	}
	return nil
}

// find returns the port of an attachment, by its static binding or by the Source.
func (s *Server) find(ctx context.Context, a Attachment) (Wiring, error) {
	bound, there, err := s.static.Find(a.Container, a.Interface)
	if err != nil || there {
		return Wiring{Port: bound.Port, MTU: bound.MTU, Subnets: bound.Subnets}, err
	}
	return s.source.Find(ctx, a)
}

// asBefore compares ADD's result, to which later plugins may have added, with the port. It removes
// the routes from want that ADD did not list because another interface had them.
func asBefore(want *types100.Result, conf cni.Config, iface string) error {
	before, err := conf.Previous()
	if err != nil || before == nil {
		return err
	}
	for _, ip := range want.IPs {
		if !slices.ContainsFunc(before.IPs, func(b *types100.IPConfig) bool {
			return b.Address.String() == ip.Address.String()
		}) {
			return cni.Differs.Errorf("prevResult: the port of %s has %s, which ADD has not told", iface, ip.Address.String())
		}
	}
	told := map[string]bool{}
	for _, r := range before.Routes {
		told[r.Dst.String()] = true
	}
	want.Routes = slices.DeleteFunc(want.Routes, func(r *types.Route) bool { return !told[r.Dst.String()] })
	return nil
}

// inspect returns how the interface in the namespace differs from the result.
func inspect(path, name string, want *types100.Result) (wrong []string, err error) {
	ns, err := netns.GetFromPath(path)
	if err != nil {
		return nil, cni.UnknownContainer.Errorf("CNI_NETNS: %s: %v", path, err)
	}
	defer ns.Close()
	h, err := netlink.NewHandleAt(ns)
	if err != nil {
		return nil, fmt.Errorf("network namespace %s: %w", path, err)
	}
	defer h.Close()
	link, err := h.LinkByName(name)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return []string{"it is not there"}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("interface %s in %s: %w", name, path, err)
	}
	attrs, told := link.Attrs(), want.Interfaces[len(want.Interfaces)-1]
	if attrs.HardwareAddr.String() != told.Mac {
		wrong = append(wrong, fmt.Sprintf("its MAC is %s, not %s", attrs.HardwareAddr, told.Mac))
	}
	if told.Mtu != 0 && attrs.MTU != told.Mtu {
		wrong = append(wrong, fmt.Sprintf("its MTU is %d, not %d", attrs.MTU, told.Mtu))
	}
	if attrs.Flags&net.FlagUp == 0 {
		wrong = append(wrong, "it is down")
	}
	addrs, err := h.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("addresses of %s: %w", name, err)
	}
	for _, ip := range want.IPs {
		if !slices.ContainsFunc(addrs, func(a netlink.Addr) bool { return a.IPNet.String() == ip.Address.String() }) {
			wrong = append(wrong, "it lacks the address "+ip.Address.String())
		}
	}
	missing, err := missingRoutes(h, link, want)
	return append(wrong, missing...), err
}

// missingRoutes returns the routes of the result that do not lead through the interface.
func missingRoutes(h *netlink.Handle, link netlink.Link, want *types100.Result) (missing []string, err error) {
	through := &netlink.Route{LinkIndex: link.Attrs().Index}
	routes, err := h.RouteListFiltered(netlink.FAMILY_ALL, through, netlink.RT_FILTER_OIF)
	if err != nil {
		return nil, fmt.Errorf("routes of %s: %w", link.Attrs().Name, err)
	}
	for _, r := range want.Routes {
		if !slices.ContainsFunc(routes, func(have netlink.Route) bool {
			return have.Dst != nil && have.Dst.String() == r.Dst.String() && (r.GW == nil || have.Gw.Equal(r.GW))
		}) {
			missing = append(missing, fmt.Sprintf("it lacks the route to %s by way of %s", r.Dst.String(), r.GW))
		}
	}
	return missing, nil
}
