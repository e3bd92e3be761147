//go:build linux

package router

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/kuryr/kuryr/datapath/nft"
	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// places knows in which domains a network's bridge is: in one, or in two while its ports
// are moving. It is read from the kernel once per process.
type places struct {
	mu     sync.Mutex
	loaded bool
	of     map[string][]string // bridge: domains
}

func (p *places) note(bridge, domain string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.add(bridge, domain)
}

func (p *places) add(bridge, domain string) {
	if p.of == nil {
		p.of = map[string][]string{}
	}
	if !slices.Contains(p.of[bridge], domain) {
		p.of[bridge] = append(p.of[bridge], domain)
	}
}

func (p *places) forget(bridge, domain string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.of[bridge] = slices.DeleteFunc(p.of[bridge], func(d string) bool { return d == domain })
	if len(p.of[bridge]) == 0 {
		delete(p.of, bridge)
	}
}

func (p *places) forgetDomain(domain string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for bridge, domains := range p.of {
		if domains = slices.DeleteFunc(domains, func(d string) bool { return d == domain }); len(domains) == 0 {
			delete(p.of, bridge)
		} else {
			p.of[bridge] = domains
		}
	}
}

// others are the domains beside this one that have the bridge.
func (f *Fabric) others(bridge, domain string) ([]string, error) {
	f.places.mu.Lock()
	defer f.places.mu.Unlock()
	if !f.places.loaded {
		if err := f.loadPlaces(); err != nil {
			return nil, err
		}
		f.places.loaded = true
	}
	return slices.DeleteFunc(slices.Clone(f.places.of[bridge]), func(d string) bool { return d == domain }), nil
}

// loadPlaces looks into every namespace; the caller holds the lock of places.
func (f *Fabric) loadPlaces() error {
	pinned := map[nsKey]bool{}
	host, err := keyOf(f.hostNS)
	if err != nil {
		return err
	}
	pinned[host] = true
	domains, err := f.config.Namespaces.List()
	if err != nil {
		return err
	}
	for _, domain := range domains {
		s, err := f.openDomain(domain)
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
			f.places.add(b.Attrs().Name, domain)
		}
	}
	f.pool.keep(func(key nsKey) bool { return pinned[key] }) // a pin may have been taken away by others
	return nil
}

// fetch moves the domain's networks here from wherever else they are.
func (f *Fabric) fetch(ctx context.Context, d Domain) error {
	for _, b := range d.Bridges {
		bridge := BridgeName(b.Network)
		others, err := f.others(bridge, d.ID)
		if err != nil {
			return err
		}
		for _, from := range others {
			release := f.lock(from, d.ID)
			err := f.migrate(&run{ctx: ctx, domain: d.ID}, bridge, from, d.ID)
			release()
			if err != nil {
				return fmt.Errorf("move network %s from %s to %s: %w", b.Network, from, d.ID, err)
			}
		}
	}
	return nil
}

// migrate moves a bridge's ports, and what the guard knows of them, to the bridge of the
// same name in another domain, and deletes the emptied one. Killed on the way, it is
// finished by the next call, as the old bridge goes last.
func (f *Fabric) migrate(r *run, bridge, from, to string) error {
	old, err := f.openDomain(from)
	if err != nil {
		return err
	}
	if old == nil {
		f.places.forget(bridge, from)
		return nil
	}
	defer old.close()
	source, err := old.link(bridge)
	if err != nil {
		return err
	}
	if source == nil {
		f.places.forget(bridge, from)
		return nil
	}
	return r.mend("bridge "+bridge, "in domain "+to, "in domain "+from, func() error {
		s, err := f.openDomain(to)
		if err != nil {
			return err
		}
		if s == nil {
			return fmt.Errorf("domain %s has no namespace", to)
		}
		defer s.close()
		target, err := s.link(bridge)
		if err != nil {
			return err
		}
		if target == nil {
			return fmt.Errorf("domain %s has no bridge %s", to, bridge)
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
		if err := guardTable().updateOrMend(r, s, nil, known); err != nil {
			return err
		}
		failpoint.Here("router.migrate.guarded")
		if err := moveShields(r, old, s, names); err != nil {
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
		f.watch.tell(f.trunks.moved(bridge, from, to)...)
		if err := guardTable().updateOrMend(r, old, known, nil); err != nil {
			return err
		}
		failpoint.Here("router.migrate.unguarded")
		if err := ignore(old.rt.LinkDel(source), unix.ENODEV); err != nil {
			return err
		}
		f.places.forget(bridge, from)
		f.log.Info("network moved to another domain", "bridge", bridge, "from", from, "to", to, "ports", len(taps))
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
