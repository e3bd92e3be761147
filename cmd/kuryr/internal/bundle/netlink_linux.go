package bundle

import (
	"fmt"
	"io"
	"net"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// most is as many of each as are told of one namespace.
const most = 20_000

// Namespace tells links, addresses, routes, rules and neighbours of a network namespace.
func Namespace(w io.Writer, ns netns.NsHandle) error {
	h, err := netlink.NewHandleAt(ns)
	if err != nil {
		return err
	}
	defer h.Close()
	links, err := h.LinkList()
	if err != nil {
		return fmt.Errorf("links: %w", err)
	}
	names := map[int]string{}
	say := func(format string, args ...any) { _, _ = fmt.Fprintf(w, format+"\n", args...) }
	for _, l := range links {
		a := l.Attrs()
		names[a.Index] = a.Name
	}
	say("# links")
	for _, l := range links {
		a := l.Attrs()
		say("%d %s %s flags %s state %s mtu %d mac %s master %q parent %d netns %d group %#x alias %q",
			a.Index, a.Name, l.Type(), a.Flags, a.OperState, a.MTU,
			a.HardwareAddr, names[a.MasterIndex], a.ParentIndex, a.NetNsID, a.Group, a.Alias)
	}
	say("\n# addresses")
	addrs, err := h.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("addresses: %w", err)
	}
	for _, a := range addrs[:min(len(addrs), most)] {
		say("%s %s scope %d flags %#x", names[a.LinkIndex], a.IPNet, a.Scope, a.Flags)
	}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		if err := routing(h, names, family, say); err != nil {
			return err
		}
	}
	say("\n# neighbours")
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6, unix.AF_BRIDGE} {
		list, err := h.NeighList(0, family)
		if err != nil {
			return fmt.Errorf("neighbours: %w", err)
		}
		for _, n := range list[:min(len(list), most)] {
			say(
				"%s %s lladdr %s state %#x flags %#x vlan %d", names[n.LinkIndex], n.IP, n.HardwareAddr,
				n.State, n.Flags, n.Vlan,
			)
		}
	}
	return nil
}

func routing(h *netlink.Handle, names map[int]string, family int, say func(string, ...any)) error {
	version := map[int]int{netlink.FAMILY_V4: 4, netlink.FAMILY_V6: 6}[family]
	say("\n# routes, IPv%d", version)
	routes, err := h.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return fmt.Errorf("routes: %w", err)
	}
	for _, r := range routes[:min(len(routes), most)] {
		dst := "default"
		if r.Dst != nil {
			dst = r.Dst.String()
		}
		say("table %d %s via %s dev %s src %s type %d proto %d scope %d metric %d mtu %d flags %#x",
			r.Table, dst, address(r.Gw), names[r.LinkIndex], address(r.Src), r.Type, r.Protocol,
			r.Scope, r.Priority, r.MTU, r.Flags)
	}
	say("\n# rules, IPv%d", version)
	rules, err := h.RuleList(family)
	if err != nil {
		return fmt.Errorf("rules: %w", err)
	}
	for _, r := range rules[:min(len(rules), most)] {
		say("%d %s table %d mark %#x iif %q oif %q", r.Priority, r.String(), r.Table, r.Mark, r.IifName, r.OifName)
	}
	return nil
}

func address(ip net.IP) string {
	if len(ip) == 0 {
		return "-"
	}
	return ip.String()
}
