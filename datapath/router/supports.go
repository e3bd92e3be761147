//go:build linux

package router

import (
	"os"
	"sync"

	"github.com/kuryr/kuryr/datapath/nft"
	"github.com/kuryr/kuryr/datapath/securitygroup"
	kuryrns "github.com/kuryr/kuryr/internal/netns"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Support tells what this kernel can.
type Support struct {
	securitygroup.Support
	VLANs bool // subports
	SCTP  bool // connection tracking, and with it load balancers, know SCTP

	rates, connections bool // what the share table can limit for each port
}

// Supports tells what this kernel can: it is tried, once, in a network namespace that is
// thrown away, by which modules are loaded as they would be.
func (k *Kernel) Supports() Support { return supports() }

var supports = sync.OnceValue(func() (can Support) {
	_ = kuryrns.OnOwnThread(func() error { can = probe(); return nil })
	return can
})

// probe leaves its thread in the namespace.
func probe() (can Support) {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return can
	}
	ns, err := netns.GetFromPath("/proc/thread-self/ns/net")
	if err != nil {
		return can
	}
	defer ns.Close()
	if c, err := nft.Dial(int(ns)); err == nil {
		can.Support = securitygroup.In(c).Probe()
		_ = c.Close()
	}
	can.rates, can.connections = probeShares(ns)
	can.VLANs = vlanKind.probe(ns) == nil
	_, err = os.Stat("/proc/sys/net/netfilter/nf_conntrack_sctp_timeout_established")
	can.SCTP = err == nil
	return can
}

// probe makes a leg, in a namespace that is thrown away.
func (k legKind) probe(ns netns.NsHandle) error {
	fd, err := unix.FcntlInt(uintptr(ns), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return err
	}
	s, err := (&pool{}).openSpace(netns.NsHandle(fd))
	if err != nil {
		return err
	}
	defer s.close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "tapparent"
	if err := s.rt.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "container"}); err != nil {
		return err
	}
	attrs.Name = "br-probe"
	if err := s.rt.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
		return err
	}
	tap, err := s.rt.LinkByName("tapparent")
	if err != nil {
		return err
	}
	bridge, err := s.rt.LinkByName("br-probe")
	if err != nil {
		return err
	}
	return k.make(s, s, tap.Attrs().Index, bridge.Attrs().Index, Port{ID: "subport", Trunk: Trunk{
		Parent: "parent", VLAN: 1,
	}})
}
