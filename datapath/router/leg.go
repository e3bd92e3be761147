//go:build linux

package router

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// A subport's leg is its link on its network's bridge: a VLAN link of the parent's tap,
// under the name that a port's own tap would have. The kernel gives it what the tap
// receives with the tag before it looks at the tap's own bridge, and sends what it is
// given by the tap with the tag. So all that is by the tap's name, the guard, the filter
// and the limits, is for a subport as for any port.
//
// The leg lies in its network's namespace, its tap in the parent's network's; a leg goes
// with its tap, and both may move without the other.

// groupFelled is the link group (IFLA_GROUP) of legs that are to be deleted, which the
// kernel does for a whole group at once: "kury" and one more than bind's.
const groupFelled uint32 = 0x6b75727a

// legKind is the kind of link that legs are. It is vlan, but for tests on kernels without.
type legKind struct {
	name string
	data func(info *nl.RtAttr, tap, vlan int) // writes what is of this kind alone
	vlan func(netlink.Link) int
}

var vlanKind = legKind{
	name: "vlan",
	data: func(info *nl.RtAttr, _, vlan int) {
		info.AddRtAttr(nl.IFLA_INFO_DATA, nil).AddRtAttr(nl.IFLA_VLAN_ID, nl.Uint16Attr(uint16(vlan)))
	},
	vlan: func(l netlink.Link) int {
		if v, is := l.(*netlink.Vlan); is {
			return v.VlanId
		}
		return 0
	},
}

// legAlias names the parent: with the VLAN it tells all of what a leg should be. It is
// written last, so a leg that has it is finished.
func legAlias(t Trunk) string { return aliasTrunk + t.Parent }

// describe says what a link is as a leg.
func (k legKind) describe(l netlink.Link) string {
	switch {
	case l == nil:
		return ""
	case l.Type() != k.name:
		return "a link of kind " + l.Type()
	case l.Attrs().Group == groupFelled || !strings.HasPrefix(l.Attrs().Alias, aliasTrunk):
		return "unfinished"
	}
	return fmt.Sprintf("VLAN %d of %s", k.vlan(l), TapName(strings.TrimPrefix(l.Attrs().Alias, aliasTrunk)))
}

// raise has a subport's leg stand in the namespace s, where its parent has a tap: in
// home, with the index. Without one it comes when that comes.
func (k legKind) raise(r *run, s, home *space, tap int, p Port) error {
	name, object := TapName(p.ID), "subport "+TapName(p.ID)
	want := fmt.Sprintf("VLAN %d of %s", p.Trunk.VLAN, TapName(p.Trunk.Parent))
	bridge, err := s.link(BridgeName(p.Network))
	if err != nil {
		return err
	}
	have, err := s.link(name)
	if err != nil {
		return err
	}
	if bridge == nil {
		return fmt.Errorf("%s: no bridge %s", object, BridgeName(p.Network))
	}
	if described := k.describe(have); described != want || have.Attrs().Alias != legAlias(p.Trunk) {
		return r.mend(object, want, described, func() error {
			if have != nil { // in our namespace, under our name, but another
				if err := ignore(s.rt.LinkDel(have), unix.ENODEV); err != nil {
					return err
				}
				failpoint.Here("router.leg.cleared")
			}
			if err := k.make(s, home, tap, bridge.Attrs().Index, p); err != nil {
				return err
			}
			failpoint.Here("router.leg.made")
			return finishLeg(s, name, legAlias(p.Trunk))
		})
	}
	if have.Attrs().MasterIndex != bridge.Attrs().Index {
		err := r.mend(object, "below "+BridgeName(p.Network), "not so", func() error {
			return s.rt.LinkSetMasterByIndex(have, bridge.Attrs().Index)
		})
		if err != nil {
			return err
		}
	}
	if have.Attrs().Flags&net.FlagUp == 0 {
		below, err := home.rt.LinkByIndex(tap)
		if err != nil || below.Attrs().Flags&net.FlagUp == 0 {
			return nil // the kernel puts a leg up with its tap
		}
		return r.mend(object, "up", "down", func() error { return finishLeg(s, name, legAlias(p.Trunk)) })
	}
	return nil
}

// make makes the leg in one message, which the parent's namespace takes: there the kernel
// looks for the tap, and in the other for the bridge. It is down: the kernel puts a link
// up before it puts it below a bridge, and for that moment what comes by it would be the
// router's own.
func (k legKind) make(s, home *space, tap, bridge int, p Port) error {
	_, err := k.message(home, int(s.ns), tap, bridge, p).Execute(unix.NETLINK_ROUTE, 0)
	switch {
	case errors.Is(err, unix.EEXIST):
		return fmt.Errorf("another link has VLAN %d of %s: %w", p.Trunk.VLAN, TapName(p.Trunk.Parent), err)
	case errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("%w: %w", errNoVLANs, err)
	}
	return err
}

func (k legKind) message(home *space, ns, tap, bridge int, p Port) *nl.NetlinkRequest {
	req := home.request(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK)
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	req.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(TapName(p.ID))))
	if mac := legMAC(p.MAC); mac != nil {
		req.AddData(nl.NewRtAttr(unix.IFLA_ADDRESS, mac))
	}
	req.AddData(nl.NewRtAttr(unix.IFLA_LINK, nl.Uint32Attr(uint32(tap))))
	req.AddData(nl.NewRtAttr(unix.IFLA_NET_NS_FD, nl.Uint32Attr(uint32(ns))))
	req.AddData(nl.NewRtAttr(unix.IFLA_MASTER, nl.Uint32Attr(uint32(bridge))))
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated(k.name))
	k.data(info, tap, p.Trunk.VLAN)
	req.AddData(info)
	return req
}

// legMAC begins with fe, as the host ends do that package bind makes, so that it is no
// container's and no bridge without a fixed MAC takes it. nil is the tap's.
func legMAC(port net.HardwareAddr) net.HardwareAddr {
	if len(port) != 6 {
		return nil
	}
	mac := slices.Clone(port)
	if mac[0] = 0xfe; slices.Equal(mac, port) {
		mac[0] = 0xfa // the bridge would keep frames to its own ports' MACs
	}
	return mac
}

// finishLeg marks the leg as finished and puts it up, as a bridge's port that speaks for
// nobody. While its tap is down it stays so, and the kernel puts it up with that.
func finishLeg(s *space, name, alias string) error {
	req := s.request(unix.RTM_SETLINK, unix.NLM_F_ACK)
	head := nl.NewIfInfomsg(unix.AF_UNSPEC)
	head.Flags, head.Change = unix.IFF_UP|unix.IFF_NOARP, unix.IFF_UP|unix.IFF_NOARP
	req.AddData(head)
	req.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)))
	req.AddData(nl.NewRtAttr(unix.IFLA_IFALIAS, []byte(alias)))
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return ignore(err, unix.ENETDOWN)
}

// fell removes the legs of ports from the namespace s, all in one of the kernel's turns:
// each deletion of a link waits for what may still use it, which takes as long for one as
// for many. Absent is fine, and what is no leg is left alone.
func (k legKind) fell(r *run, s *space, ports []Port) error {
	var gone []netlink.Link
	for _, p := range ports {
		l, err := s.link(TapName(p.ID))
		if err != nil {
			return err
		}
		if l != nil && l.Type() == k.name {
			gone = append(gone, l)
		}
	}
	return k.fellLinks(r, s, gone)
}

func (k legKind) fellLinks(r *run, s *space, gone []netlink.Link) error {
	felled := false
	for _, l := range gone {
		err := r.mend("subport "+l.Attrs().Name, "", k.describe(l), func() error {
			felled = true
			req := s.request(unix.RTM_SETLINK, unix.NLM_F_ACK)
			head := nl.NewIfInfomsg(unix.AF_UNSPEC)
			head.Index, head.Change = int32(l.Attrs().Index), unix.IFF_UP
			req.AddData(head)
			req.AddData(nl.NewRtAttr(unix.IFLA_GROUP, nl.Uint32Attr(groupFelled)))
			_, err := req.Execute(unix.NETLINK_ROUTE, 0)
			return ignore(err, unix.ENODEV)
		})
		if err != nil {
			return err
		}
		if felled {
			failpoint.Here("router.leg.marked")
		}
	}
	if !felled {
		return nil
	}
	req := s.request(unix.RTM_DELLINK, unix.NLM_F_ACK)
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	req.AddData(nl.NewRtAttr(unix.IFLA_GROUP, nl.Uint32Attr(groupFelled)))
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	if err = ignore(err, unix.ENODEV); err != nil {
		return fmt.Errorf("delete link group %s: %w", strconv.FormatUint(uint64(groupFelled), 16), err)
	}
	failpoint.Here("router.leg.felled")
	return nil
}
