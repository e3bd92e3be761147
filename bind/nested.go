//go:build linux

package bind

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"

	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/kuryr/kuryr/sdn"
	"golang.org/x/sys/unix"
)

// macvlanBridge is MACVLAN_MODE_BRIDGE of linux/if_link.h: links of one parent reach one another.
const macvlanBridge = 4

// nestedDriver plugs ports that are reached through the port of the virtual machine that
// this is: the container's interface is a macvlan or VLAN link on that port's, and has no
// host end. It goes with the container's namespace, or when it is unplugged.
type nestedDriver struct {
	host   *host
	reaper *reaper
	kind   string // of the link: sdn.VIFMacvlan or sdn.VIFVLAN, as the kernel calls them too
	parent string // the name of the link that the machine's own port is plugged as; "": the one with its MAC
}

// nestedLink is a link to be made.
type nestedLink struct {
	Interface
	kind string
	vlan int
	on   int32 // the parent's index
	kept []netip.Prefix
}

// Plug makes the link in one message, in its namespace.
func (d *nestedDriver) Plug(ctx context.Context, i Interface) (Result, error) {
	n := nestedLink{Interface: i, kind: d.kind}
	var err error
	if n.vlan, err = d.vlan(i.Port); err != nil {
		return Result{}, err
	}
	conf, err := i.setup()
	if err != nil {
		return Result{}, err
	}
	err = d.within("", func(near namespace, s *socket) error {
		if n.on, err = d.find(s, i.Port); err != nil {
			return err
		}
		far, err := d.host.openNamespace(i.Namespace)
		if err != nil {
			return err
		}
		defer far.close()
		f, err := far.socket() // the thread stays there
		if err != nil {
			return err
		}
		defer f.close()
		return d.plug(ctx, s, f, near, far, &n, conf)
	})
	if err != nil {
		return Result{}, err
	}
	d.reaper.look("")
	return Result{
		Name: i.Name, MAC: slices.Clone(i.Port.MAC), MTU: i.MTU, Namespace: i.Namespace, KeptRoutes: n.kept,
	}, nil
}

// plug runs on a visitor's thread, which is in far.
func (d *nestedDriver) plug(ctx context.Context, s, f *socket, near, far namespace, n *nestedLink, conf setup) error {
	if n.Namespace != "" {
		// So that the link is found there; where an engine moves it, the kernel does the same.
		if err := s.know(far.fd); err != nil {
			return err
		}
	}
	for range maxMakes {
		if err := ctx.Err(); err != nil {
			return err
		}
		err := s.do(n.message(far.fd))
		fresh := err == nil
		if fresh {
			failpoint.Here("bind.nested.created")
		} else if !errors.Is(err, unix.EEXIST) {
			return missingKind(err, n.kind)
		} else if stands, err := d.stands(f, near, far, *n); err != nil {
			return err
		} else if !stands {
			if err := d.reaper.flush(far.path); err != nil {
				return err
			}
			continue
		}
		if err = n.configure(f, conf, func() error { return d.reaper.flush(far.path) }); err != nil && fresh {
			if l, gone := f.link(0, n.Name); gone == nil {
				err = errors.Join(err, d.reaper.retire(f, l, far, n.Port.ID))
			}
		}
		return err
	}
	return taken(far, n.Name, "comes back whenever it is removed")
}

// message makes the link in the namespace of the open file ns.
func (n nestedLink) message(ns int) *batch {
	var b batch
	b.add(
		"make "+n.kind+" link "+n.Name, unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL,
		ifInfo(unix.AF_UNSPEC, 0, 0, 0),
	)
	b.text(unix.IFLA_IFNAME, n.Name)
	b.u32(unix.IFLA_LINK, uint32(n.on))
	b.attr(unix.IFLA_ADDRESS, n.Port.MAC)
	b.u32(unix.IFLA_GROUP, groupPort)
	b.u32(unix.IFLA_NET_NS_FD, uint32(ns))
	if n.MTU > 0 {
		b.u32(unix.IFLA_MTU, uint32(n.MTU))
	}
	b.nest(unix.IFLA_LINKINFO, func() {
		b.attr(unix.IFLA_INFO_KIND, []byte(n.kind))
		b.nest(unix.IFLA_INFO_DATA, func() {
			if n.kind == sdn.VIFVLAN {
				b.attr(unix.IFLA_VLAN_ID, binary.NativeEndian.AppendUint16(nil, uint16(n.vlan)))
			} else {
				b.u32(unix.IFLA_MACVLAN_MODE, macvlanBridge)
			}
		})
	})
	return &b
}

// configure finishes the link; all of it may be repeated. In the message that makes a
// link the kernel ignores an alias.
func (n *nestedLink) configure(f *socket, conf setup, reap func() error) error {
	var b batch
	b.add("configure "+n.Name, unix.RTM_SETLINK, 0, ifInfo(unix.AF_UNSPEC, 0, 0, 0))
	b.text(unix.IFLA_IFNAME, n.Name)
	b.text(unix.IFLA_IFALIAS, Alias(n.Port.ID))
	if n.MTU > 0 {
		b.u32(unix.IFLA_MTU, uint32(n.MTU))
	}
	if err := f.do(&b); err != nil {
		return err
	}
	failpoint.Here("bind.nested.marked")
	if n.Namespace == "" {
		return nil // the rest is the engine's affair
	}
	var err error
	n.kept, err = configureContainer(f, n.Name, n.Port.MAC, n.MTU, conf, reap)
	return err
}

// stands reports whether the link that has the name is the wanted one. One of the
// port's that is not is put down. The error IsConflict where another link has the name,
// or the VLAN.
func (d *nestedDriver) stands(f *socket, near, far namespace, n nestedLink) (bool, error) {
	old, err := f.link(0, n.Name)
	switch {
	case errors.Is(err, errNoLink):
		return false, sdn.Conflict(
			sdn.Exists, "interface", "vif.details."+sdn.DetailVLAN,
			"another link has VLAN %d of the same parent", n.vlan,
		)
	case err != nil:
		return false, err
	case !d.belongs(old, n.Port.ID):
		return false, taken(far, n.Name, "belongs to something else")
	case old.group == groupDying:
		return false, nil
	}
	same, err := near.same(far)
	if err != nil {
		return false, err
	}
	if old.peer == n.on && old.peerHere == same && old.vlan == n.vlan && bytes.Equal(old.mac, n.Port.MAC) {
		return true, nil
	}
	return false, d.reaper.retire(f, old, far, n.Port.ID)
}

func (d *nestedDriver) belongs(l link, id sdn.ID) bool { return l.kind == d.kind && marked(l, id) }

// Unplug puts the link down, in the binder's namespace, where an engine brings it back
// to, or in whatever other it was moved to or made in.
func (d *nestedDriver) Unplug(_ context.Context, port sdn.Port) error {
	return d.within("", func(ns namespace, s *socket) error {
		l, nsid, err := d.locate(s, port.ID)
		switch {
		case err != nil:
			return err
		case l.index == 0:
			d.reaper.look("")
			return nil
		case nsid < 0:
			return d.reaper.retire(s, l, ns, port.ID)
		}
		var b batch
		b.add("delete "+l.name, unix.RTM_DELLINK, 0, ifInfo(unix.AF_UNSPEC, l.index, 0, 0))
		b.u32(unix.IFLA_TARGET_NETNSID, uint32(nsid))
		if err := s.do(&b); err != nil && !errors.Is(err, errNoLink) {
			return err
		}
		return nil
	})
}

// Connected reports whether the link has left the binder's namespace for another that lives.
func (d *nestedDriver) Connected(_ context.Context, port sdn.Port) (connected bool, err error) {
	err = d.within("", func(_ namespace, s *socket) error {
		l, nsid, err := d.locate(s, port.ID)
		connected = l.index != 0 && nsid >= 0 && l.flags&unix.IFF_UP != 0
		return err
	})
	return connected, err
}

// locate finds the port's link: in the namespace of s, where nsid is negative, or in one
// that it knows. The index is 0 where there is none.
func (d *nestedDriver) locate(s *socket, id sdn.ID) (l link, nsid int32, err error) {
	if l, err = s.link(0, ContainerName(id)); err == nil && d.belongs(l, id) && l.group != groupDying {
		return l, -1, nil
	}
	if err != nil && !errors.Is(err, errNoLink) {
		return link{}, 0, err
	}
	ids, err := s.nsids()
	if err != nil {
		return link{}, 0, err
	}
	for _, nsid := range append([]int32{-1}, ids...) {
		links, err := s.links(nsid, d.kind)
		if errors.Is(err, unix.EINVAL) && nsid >= 0 {
			continue // the namespace has ended
		}
		if err != nil {
			return link{}, 0, err
		}
		for _, l := range links {
			if l.kind == d.kind && l.alias == Alias(id) {
				return l, nsid, nil
			}
		}
	}
	return link{}, 0, nil
}

// find gives the index of the parent.
func (d *nestedDriver) find(s *socket, port sdn.Port) (int32, error) {
	if d.parent != "" {
		index, err := s.index(d.parent)
		if errors.Is(err, errNoLink) {
			return 0, &sdn.Error{
				Kind: sdn.KindNotFound, Noun: "interface", ID: d.parent,
				Detail: "this machine has no interface of the name that bind.link_interface gives",
			}
		}
		return index, err
	}
	mac, err := net.ParseMAC(port.VIF.Details[sdn.DetailParentMAC])
	if err != nil {
		return 0, sdn.Invalid(
			"port", "vif.details."+sdn.DetailParentMAC, "%q is no MAC",
			port.VIF.Details[sdn.DetailParentMAC],
		)
	}
	links, err := s.links(-1, "")
	if err != nil {
		return 0, err
	}
	for _, l := range links {
		if bytes.Equal(l.mac, mac) && l.kind != sdn.VIFVLAN && l.kind != sdn.VIFMacvlan {
			return l.index, nil
		}
	}
	return 0, &sdn.Error{Kind: sdn.KindNotFound, Noun: "interface",
		Detail: fmt.Sprintf("no interface of this machine has MAC %s, which its own port in the SDN "+
			"has; bind.link_interface can name it", mac)}
}

// vlan is the port's VLAN, 0 for the kind that has none.
func (d *nestedDriver) vlan(port sdn.Port) (int, error) {
	if d.kind != sdn.VIFVLAN {
		return 0, nil
	}
	text := port.VIF.Details[sdn.DetailVLAN]
	vlan, err := strconv.Atoi(text)
	if err != nil || vlan < 1 || vlan > 4094 {
		return 0, sdn.Invalid("port", "vif.details."+sdn.DetailVLAN, "%q is no VLAN from 1 to 4094", text)
	}
	return vlan, nil
}

// within runs do on a visitor's thread, with a socket in the namespace.
func (d *nestedDriver) within(path string, do func(ns namespace, s *socket) error) error {
	ns, err := d.host.openNamespace(path)
	if err != nil {
		return err
	}
	defer ns.close()
	return ns.within(func(s *socket) error { return do(ns, s) })
}

// missingKind says which module makes links of a kind that the kernel does not know.
func missingKind(err error, kind string) error {
	if !errors.Is(err, unix.EOPNOTSUPP) {
		return err
	}
	module := map[string]string{sdn.VIFMacvlan: "macvlan", sdn.VIFVLAN: "8021q"}[kind]
	return sdn.Unsupported(
		"interface", "the kernel of this machine cannot make %s links: its module %s is missing (%v)",
		kind, module, err,
	)
}
