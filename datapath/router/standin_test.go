//go:build linux

package router

import (
	"encoding/binary"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
)

// standIn takes the place of VLAN links in tests of what happens when, for kernels
// without them. A VXLAN link too is made on a link of another namespace in one message,
// has a number that no second one may have, lies on a bridge and moves without its lower
// link, and goes when that goes. What it does not stand in for: frames with tags; that
// legs stay when a tap moves to another namespace; that they go up and down with it.
var standIn = legKind{
	name: "vxlan",
	data: func(info *nl.RtAttr, tap, vlan int) {
		data := info.AddRtAttr(nl.IFLA_INFO_DATA, nil)
		data.AddRtAttr(nl.IFLA_VXLAN_ID, nl.Uint32Attr(uint32(vlan)))
		data.AddRtAttr(nl.IFLA_VXLAN_LINK, nl.Uint32Attr(uint32(tap)))
		data.AddRtAttr(nl.IFLA_VXLAN_PORT, binary.BigEndian.AppendUint16(nil, 4789))
	},
	vlan: func(l netlink.Link) int {
		if v, is := l.(*netlink.Vxlan); is {
			return v.VxlanId
		}
		return 0
	},
}
