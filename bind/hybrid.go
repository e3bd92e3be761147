//go:build linux

package bind

import (
	"errors"
	"fmt"

	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/kuryr/kuryr/sdn"
	"golang.org/x/sys/unix"
)

// What begins the names of a hybrid port's links, as Neutron's agent looks for them; the
// first 11 characters of the port's id follow. The host end is on the Linux bridge, where
// the agent's iptables rules see its packets, and so is one end of the pair that leads to
// the switch.
const (
	hybridBridge    = "qbr"
	hybridBridgeEnd = "qvb"
	hybridSwitchEnd = "qvo"
)

// findHybrid finds, or makes, the links between the host end and the switch. It gives the
// bridge's index.
func (o *ovsSeat) findHybrid(s *socket, ns namespace, i Interface, make bool) (bridge int32, err error) {
	id := i.Port.ID
	if !make {
		bridge, err = s.index(hybridBridge + id.Short())
		if errors.Is(err, errNoLink) {
			return 0, sdn.NotFound("bridge", hybridBridge+id.Short())
		}
		return bridge, err
	}
	if bridge, err = o.makeHybrid(s, ns, i); sdn.IsConflict(err) {
		// A port that was just unplugged may still hold a name.
		if err = o.reaper.flush(ns.path); err == nil {
			bridge, err = o.makeHybrid(s, ns, i)
		}
	}
	if err == nil {
		return bridge, nil
	}
	if _, gone := s.index(HostName(id)); errors.Is(gone, errNoLink) {
		// otherwise it is plugged, and stays as well as it can
		err = errors.Join(err, o.retireHybrid(s, ns, id))
	}
	return 0, err
}

// makeHybrid makes what is missing; all of it may be repeated. The error IsConflict where
// a name is taken, perhaps by a retired link.
func (o *ovsSeat) makeHybrid(s *socket, ns namespace, i Interface) (index int32, err error) {
	id := i.Port.ID
	name := hybridBridge + id.Short()
	err = makeBridge(s, name,
		func(b *batch) { b.u32(unix.IFLA_GROUP, groupPort) },
		// Only the switch may snoop: a bridge of two ports would only lose groups.
		func(b *batch) { b.attr(unix.IFLA_BR_MCAST_SNOOPING, []byte{0}) })
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return 0, err
	}
	bridge, err := own(s, ns, name, "bridge", id)
	if err != nil {
		return 0, err
	}
	if err := linkUp(s, bridge.index, name, Alias(id)); err != nil {
		return 0, err
	}
	failpoint.Here("bind.hybrid.bridged")
	return bridge.index, o.makeHybridPair(s, ns, i, bridge.index)
}

// makeHybridPair makes the pair that leads from the Linux bridge to the switch, or finds it.
func (o *ovsSeat) makeHybridPair(s *socket, ns namespace, i Interface, bridge int32) error {
	id := i.Port.ID
	near, far := hybridBridgeEnd+id.Short(), hybridSwitchEnd+id.Short()
	var b batch
	mtu := func() {
		if i.MTU > 0 {
			b.u32(unix.IFLA_MTU, uint32(i.MTU))
		}
	}
	b.add("make veth pair "+near, unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL, ifInfo(unix.AF_UNSPEC, 0, 0, 0))
	b.text(unix.IFLA_IFNAME, near)
	b.u32(unix.IFLA_MASTER, uint32(bridge))
	b.u32(unix.IFLA_GROUP, groupPort)
	mtu()
	b.nest(unix.IFLA_LINKINFO, func() {
		b.attr(unix.IFLA_INFO_KIND, []byte("veth"))
		b.nest(unix.IFLA_INFO_DATA, func() {
			b.nest(vethInfoPeer, func() {
				b.buf = append(b.buf, ifInfo(unix.AF_UNSPEC, 0, 0, 0)...)
				b.text(unix.IFLA_IFNAME, far)
				b.u32(unix.IFLA_GROUP, groupPort)
				mtu()
			})
		})
	})
	made := s.do(&b)
	if made != nil && !errors.Is(made, unix.EEXIST) {
		return made
	}
	for _, name := range []string{near, far} {
		l, err := own(s, ns, name, "veth", id)
		if err != nil {
			return err
		}
		var b batch
		b.add("configure "+name, unix.RTM_SETLINK, 0, ifInfo(unix.AF_UNSPEC, l.index, 0, 0))
		if name == near {
			b.u32(unix.IFLA_MASTER, uint32(bridge))
		}
		if i.MTU > 0 {
			b.u32(unix.IFLA_MTU, uint32(i.MTU))
		}
		if err := s.do(&b); err != nil {
			return err
		}
		if err := linkUp(s, l.index, name, Alias(id)); err != nil {
			return err
		}
	}
	failpoint.Here("bind.hybrid.paired")
	return nil
}

// own finds a link of the port's. The error IsConflict for one that is another's or on its way out.
func own(s *socket, ns namespace, name, kind string, id sdn.ID) (link, error) {
	l, err := s.link(0, name)
	switch {
	case errors.Is(err, errNoLink): // its other end's name was in the way of making it
		return link{}, taken(ns, name, "or its other end's is in use")
	case err != nil:
		return link{}, fmt.Errorf("link %s: %w", name, err)
	case l.kind != kind || !marked(l, id):
		return link{}, taken(ns, name, "belongs to something else")
	case l.group == groupDying:
		return link{}, taken(ns, name, "is being removed")
	}
	return l, nil
}

// retireHybrid puts the links down that are the port's.
func (o *ovsSeat) retireHybrid(s *socket, ns namespace, id sdn.ID) error {
	var failed error
	for _, prefix := range []string{hybridSwitchEnd, hybridBridgeEnd, hybridBridge} {
		kind := "veth"
		if prefix == hybridBridge {
			kind = "bridge"
		}
		l, err := s.link(0, prefix+id.Short())
		switch {
		case errors.Is(err, errNoLink) || err == nil && (l.kind != kind || !marked(l, id)):
		case err != nil:
			failed = errors.Join(failed, err)
		default:
			failed = errors.Join(failed, o.reaper.retire(s, l, ns, id))
			failpoint.Here("bind.hybrid.retired")
		}
	}
	return failed
}
