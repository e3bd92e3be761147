//go:build linux

package bind

import (
	"context"
	"errors"

	"github.com/kuryr/kuryr/sdn"
	"golang.org/x/sys/unix"
)

// State is how the interface of a port stands.
type State string

// The states of an interface.
const (
	Absent State = "absent" // there is none
	Loose  State = "loose"  // its host end is down, or not where it belongs
	Whole  State = "whole"
)

// attacher is a Driver that can tell how an interface stands, and put its host end where
// it belongs.
type attacher interface {
	State(ctx context.Context, port sdn.Port) (State, error)
	Attach(ctx context.Context, port sdn.Port) error
}

// State tells how the interface of a port stands. A driver that cannot tell says that it is whole.
func (b *Binder) State(ctx context.Context, port sdn.Port) (State, error) {
	if nowhere(port) {
		return Absent, nil
	}
	d, err := b.driver(port)
	if err != nil {
		return "", err
	}
	a, ok := d.(attacher)
	if !ok {
		return Whole, nil
	}
	return a.State(ctx, port)
}

// Attach puts the host end of a port's interface where it belongs, without touching the
// container's end. An interface that is absent IsNotFound.
func (b *Binder) Attach(ctx context.Context, port sdn.Port) error {
	unlock, err := b.locks.Lock(ctx, string(port.ID))
	if err != nil {
		return err
	}
	defer unlock()
	d, err := b.driver(port)
	if err != nil {
		return err
	}
	if a, ok := d.(attacher); ok {
		return a.Attach(ctx, port)
	}
	return nil
}

// State looks at the host end, and asks the switch.
func (d *vethDriver) State(ctx context.Context, port sdn.Port) (state State, err error) {
	state = Absent
	err = d.atHostEnd(ctx, port, func(_ *socket, l link, p place) error {
		state = Loose
		if (p.bridge != 0 && l.master != p.bridge) || l.flags&unix.IFF_UP == 0 {
			return nil
		}
		joined, err := d.seat.joined(ctx, port)
		if joined {
			state = Whole
		}
		return err
	})
	if sdn.IsNotFound(err) {
		return Absent, nil
	}
	return state, err
}

// Attach puts the host end on its bridge and up, and tells the switch.
func (d *vethDriver) Attach(ctx context.Context, port sdn.Port) error {
	return d.atHostEnd(ctx, port, func(s *socket, l link, p place) error {
		flags := p.flags()
		var b batch
		b.add("attach "+l.name, unix.RTM_SETLINK, 0, ifInfo(unix.AF_UNSPEC, l.index, flags, flags))
		p.on(&b)
		b.u32(unix.IFLA_GROUP, groupPort)
		if err := s.do(&b); err != nil {
			return err
		}
		return d.seat.join(ctx, port, false)
	})
}

// atHostEnd does something with a port's host end, which IsNotFound if it or its bridge
// is not there.
func (d *vethDriver) atHostEnd(ctx context.Context, port sdn.Port, do func(s *socket, l link, p place) error) error {
	ns, err := d.host.openNamespace(port.VIF.Details[sdn.DetailNamespace])
	if err != nil {
		return err
	}
	defer ns.close()
	return ns.within(func(s *socket) error {
		l, err := s.link(0, HostName(port.ID))
		if errors.Is(err, errNoLink) || err == nil && (!belongsTo(l, port.ID) || l.alias == retiredAlias+string(port.ID)) {
			return sdn.NotFound("interface", HostName(port.ID))
		}
		if err != nil {
			return err
		}
		p, err := d.seat.find(ctx, s, ns, Interface{Port: port}, false)
		if err != nil {
			return err
		}
		return do(s, l, p)
	})
}
