//go:build linux

package router

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/kuryr/kuryr/datapath/nft"
	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// places knows in which routers a network's bridge is: in one, or in two while its ports
// are moving. It is read from the kernel once per process.
type places struct {
	mu     sync.Mutex
	loaded bool
	of     map[string][]string // bridge: routers
}

func (p *places) note(bridge, router string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.add(bridge, router)
}

func (p *places) add(bridge, router string) {
	if p.of == nil {
		p.of = map[string][]string{}
	}
	if !slices.Contains(p.of[bridge], router) {
		p.of[bridge] = append(p.of[bridge], router)
	}
}

func (p *places) forget(bridge, router string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.of[bridge] = slices.DeleteFunc(p.of[bridge], func(d string) bool { return d == router })
	if len(p.of[bridge]) == 0 {
		delete(p.of, bridge)
	}
}

func (p *places) forgetRouter(router string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for bridge, routers := range p.of {
		if routers = slices.DeleteFunc(routers, func(d string) bool { return d == router }); len(routers) == 0 {
			delete(p.of, bridge)
		} else {
			p.of[bridge] = routers
		}
	}
}

// others are the routers beside this one that have the bridge.
func (k *Kernel) others(bridge, router string) ([]string, error) {
	k.places.mu.Lock()
	defer k.places.mu.Unlock()
	if !k.places.loaded {
		if err := k.loadPlaces(); err != nil {
			return nil, err
		}
		k.places.loaded = true
	}
	return slices.DeleteFunc(slices.Clone(k.places.of[bridge]), func(d string) bool { return d == router }), nil
}

// loadPlaces looks into every namespace; the caller holds the lock of places.
func (k *Kernel) loadPlaces() error {
	pinned := map[nsKey]bool{}
	host, err := keyOf(k.hostNS)
	if err != nil {
		return err
	}
	pinned[host] = true
	routers, err := k.options.Namespaces.List()
	if err != nil {
		return err
	}
	for _, router := range routers {
		s, err := k.openRouter(router)
		if err != nil {
			return err
		}
		if s == nil {
			continue
		}
		pinned[s.key] = true
		bridges, err := s.links("bridge", 0)
		s.close()
		if err != nil {
			return err
		}
		for _, b := range bridges {
			k.places.add(b.Attrs().Name, router)
		}
	}
	k.pool.keep(func(key nsKey) bool { return pinned[key] }) // a pin may have been taken away by others
	return nil
}

// fetch moves the router's networks here from wherever else they are.
func (k *Kernel) fetch(ctx context.Context, d Shape) error {
	for _, b := range d.Bridges {
		bridge := BridgeName(b.Network)
		others, err := k.others(bridge, d.ID)
		if err != nil {
			return err
		}
		for _, from := range others {
			release := k.lock(from, d.ID)
			err := k.migrate(&run{ctx: ctx, router: d.ID}, bridge, from, d.ID)
			release()
			if err != nil {
				return fmt.Errorf("move network %s from %s to %s: %w", b.Network, from, d.ID, err)
			}
		}
	}
	return nil
}

// migrate moves a bridge's ports, and what the guard knows of them, to the bridge of the
// same name in another router, and deletes the emptied one. Killed on the way, it is
// finished by the next call, as the old bridge goes last.
func (k *Kernel) migrate(r *run, bridge, from, to string) error {
	old, err := k.openRouter(from)
	if err != nil {
		return err
	}
	if old == nil {
		k.places.forget(bridge, from)
		return nil
	}
	defer old.close()
	source, err := old.link(bridge)
	if err != nil {
		return err
	}
	if source == nil {
		k.places.forget(bridge, from)
		return nil
	}
	return r.mend("bridge "+bridge, "in router "+to, "in router "+from, func() error {
		s, err := k.openRouter(to)
		if err != nil {
			return err
		}
		if s == nil {
			return fmt.Errorf("router %s has no namespace", to)
		}
		defer s.close()
		target, err := s.link(bridge)
		if err != nil {
			return err
		}
		if target == nil {
			return fmt.Errorf("router %s has no bridge %s", to, bridge)
		}
		taps, err := old.links("", source.Attrs().Index)
		if err != nil {
			return err
		}
		known, err := guardTable().elements(old)
		if err != nil {
			return err
		}
		names := map[string]bool{}
		for _, tap := range taps {
			names[nft.Link(tap.Attrs().Name)] = true
		}
		known = slices.DeleteFunc(known, func(e nft.Element) bool { return !names[e.Key[:unix.IFNAMSIZ]] })
		if err := s.moveFilter(r, old, taps); err != nil {
			return err
		}
		failpoint.Here("router.migrate.filtered")
		leaveDown, err := downPorts.move(r, old, s, names)
		if err != nil {
			return err
		}
		if err := guardTable().updateOrMend(r, s, nil, known); err != nil {
			return err
		}
		failpoint.Here("router.migrate.guarded")
		leaveParents, err := parents.move(r, old, s, names)
		if err != nil {
			return err
		}
		for _, tap := range taps {
			if err := r.ctx.Err(); err != nil {
				return err
			}
			if err := old.moveTo(tap, s, target); err != nil {
				return fmt.Errorf("%s: %w", tap.Attrs().Name, err)
			}
			failpoint.Here("router.migrate.moved")
		}
		k.watch.tell(k.trunks.moved(bridge, from, to)...)
		if err := guardTable().updateOrMend(r, old, known, nil); err != nil {
			return err
		}
		if err := errors.Join(leaveDown(), leaveParents()); err != nil {
			return err
		}
		failpoint.Here("router.migrate.unguarded")
		if err := ignore(old.rt.LinkDel(source), unix.ENODEV); err != nil {
			return err
		}
		k.places.forget(bridge, from)
		k.log.Info("network moved to another router", "bridge", bridge, "from", from, "to", to, "ports", len(taps))
		return nil
	})
}

// moveTo moves a link into another namespace, below a bridge there, and up: one message,
// so a link never lies there without its bridge.
func (s *space) moveTo(link netlink.Link, to *space, master netlink.Link) error {
	req := s.request(unix.RTM_SETLINK, unix.NLM_F_ACK)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(link.Attrs().Index)
	msg.Flags, msg.Change = unix.IFF_UP, unix.IFF_UP
	req.AddData(msg)
	req.AddData(nl.NewRtAttr(unix.IFLA_NET_NS_FD, nl.Uint32Attr(uint32(to.ns))))
	req.AddData(nl.NewRtAttr(unix.IFLA_MASTER, nl.Uint32Attr(uint32(master.Attrs().Index))))
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return ignore(err, unix.ENETDOWN) // a subport's link is put up with its parent's tap
}
