//go:build linux

package bind

import (
	"context"
	"errors"

	"github.com/kuryr/kuryr/sdn"
	"golang.org/x/sys/unix"
)

// Wire does for a host end that another program has made what Plug does for its own: it
// brings the link called HostName(port.ID), in the namespace that the VIF names, to the
// switch of its VIF type. Wired already: nil. Errors are Plug's; a link that is not there
// IsNotFound.
func (b *Binder) Wire(ctx context.Context, port sdn.Port) error {
	return b.wiring(ctx, port, func(d *vethDriver, s *socket, ns namespace) error {
		name := HostName(port.ID)
		index, err := s.index(name)
		if errors.Is(err, errNoLink) {
			return &sdn.Error{Kind: sdn.KindNotFound, Noun: "interface", ID: name, Detail: "not found in " + ns.String()}
		}
		if err != nil {
			return err
		}
		place, err := d.seat.find(ctx, s, ns, Interface{Port: port}, true)
		if err != nil {
			return err
		}
		var to batch
		to.add("put "+name+" on its bridge", unix.RTM_SETLINK, 0, ifInfo(unix.AF_UNSPEC, index, unix.IFF_UP, unix.IFF_UP))
		place.on(&to)
		if err := s.do(&to); err != nil {
			return err
		}
		return d.seat.join(ctx, port, false)
	})
}

// Unwire undoes Wire and leaves the link there. A link that is not wired, or absent, is no error.
func (b *Binder) Unwire(ctx context.Context, port sdn.Port) error {
	return b.wiring(ctx, port, func(d *vethDriver, s *socket, ns namespace) error {
		err := d.seat.leave(ctx, s, ns, port)
		index, missing := s.index(HostName(port.ID))
		if errors.Is(missing, errNoLink) {
			return err
		}
		if missing != nil {
			return errors.Join(err, missing)
		}
		var off batch
		off.add("take "+HostName(port.ID)+" off its bridge", unix.RTM_SETLINK, 0, ifInfo(unix.AF_UNSPEC, index, 0, 0))
		off.u32(unix.IFLA_MASTER, 0)
		return errors.Join(err, s.do(&off))
	})
}

// wiring runs do with the driver of the port and a socket in the port's namespace.
func (b *Binder) wiring(ctx context.Context, port sdn.Port, do func(*vethDriver, *socket, namespace) error) error {
	driver, err := b.driver(port)
	if err != nil {
		return err
	}
	if err := checkName("port", "id", HostName(port.ID)); err != nil || port.ID == "" {
		return sdn.Invalid("port", "id", "%q cannot be part of an interface name", port.ID)
	}
	var veth *vethDriver
	switch d := driver.(type) {
	case *vethDriver:
		veth = d
	case *ovsDriver:
		veth = &d.vethDriver
	default:
		return nil // nothing is on a switch
	}
	unlock, err := b.locks.Lock(ctx, string(port.ID))
	if err != nil {
		return err
	}
	defer unlock()
	ns, err := b.host.openNamespace(port.VIF.Details[sdn.DetailNamespace])
	if err != nil {
		return err
	}
	defer ns.close()
	return ns.within(func(s *socket) error { return do(veth, s, ns) })
}
