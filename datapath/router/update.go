//go:build linux

package router

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"

	"github.com/kuryr/kuryr/datapath/nft"
	"github.com/kuryr/kuryr/internal/failpoint"
	"golang.org/x/sys/unix"
)

// ErrPublished says that a port of the host already leads elsewhere.
var ErrPublished = errors.New("published by another router or to another container")

// UpdatePorts tells the guard and the filter of a router about ports; the ports' links
// need not exist yet. A subport gets its link, at once or when its parent gets its own.
// Adding what is there and removing what is absent is fine. The error is os.ErrNotExist
// if the router has no namespace, or its filter does not know a port's groups, and ports
// are to be added.
func (k *Kernel) UpdatePorts(ctx context.Context, router string, remove, add []Port) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	gone, err := portsElements(remove)
	if err != nil {
		return err
	}
	gone = append(gone, rangedElements(remove)...)
	fresh, err := portsElements(add)
	if err != nil {
		return err
	}
	k.gate.RLock()
	defer k.gate.RUnlock()
	defer k.lock(router)()
	s, err := k.openRouter(router)
	if err != nil {
		return err
	}
	if s == nil {
		k.trunks.forget(router, remove)
		if len(add) > 0 {
			return fmt.Errorf("ports of router %s: %w", router, os.ErrNotExist)
		}
		return nil
	}
	defer s.close()
	r := &run{ctx: ctx, router: router}
	if err := k.leaveTrunks(r, s, remove, add); err != nil {
		return fmt.Errorf("subports of router %s: %w", router, err)
	}
	// The filter first: what the guard does not know cannot send.
	forgetFiltered, err := s.filterPorts(router, remove, add)
	if err != nil {
		return err
	}
	failpoint.Here("router.ports.filtered")
	if err := guardTable().updateOrMend(r, s, gone, fresh); err != nil {
		return fmt.Errorf("ports of router %s: %w", router, err)
	}
	failpoint.Here("router.ports.guarded")
	if err := shieldPorts(r, s, remove, add); err != nil {
		return fmt.Errorf("parents of subports in router %s: %w", router, err)
	}
	if err := forgetFiltered(); err != nil {
		return err
	}
	k.collectLeftovers(ctx, s, router, remove)
	if err := k.joinTrunks(r, s, add); err != nil {
		return err
	}
	if err := s.announce(moved(remove, add)); err != nil {
		k.log.WarnContext(ctx, "neighbours may not know a port's MAC for a while", "router", router, "err", err)
	}
	return nil
}

// UpdateForwards changes a router's forwardings, and the host's part of those that
// concern addresses of the host. A forwarding is its whole value: to change where a port
// leads, remove the old value and add the new one. Adding what is there and removing what
// is absent is fine. The errors are os.ErrNotExist if the router has no uplink, and
// ErrPublished if a port to be added, or a value to be removed, is another's.
func (k *Kernel) UpdateForwards(ctx context.Context, router string, remove, add []Forward) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	for _, list := range [][]Forward{remove, add} {
		for _, w := range list {
			if err := w.validate(); err != nil {
				return err
			}
		}
	}
	remove, add = k.feasibleForwards(remove), k.feasibleForwards(add)
	k.gate.RLock()
	defer k.gate.RUnlock()
	defer k.lock(router)()
	s, err := k.openRouter(router)
	if err != nil {
		return err
	}
	if s != nil {
		defer s.close()
	}
	u, err := s.uplink()
	if err != nil {
		return err
	}
	if u == nil {
		if len(add) > 0 {
			return fmt.Errorf("forwardings of router %s: no uplink: %w", router, os.ErrNotExist)
		}
		return nil
	}
	host, err := k.openHost()
	if err != nil {
		return err
	}
	defer host.close()
	r := &run{ctx: ctx, router: router}
	goneHere, goneThere, err := forwardElements(remove, u)
	if err != nil {
		return err
	}
	here, there, err := forwardElements(add, u)
	if err != nil {
		return err
	}
	// The host first: there a port may be another router's, and then nothing is changed.
	// Until the router knows the port too, it refuses.
	if err := k.host.updateOrMend(r, host, goneThere, there); err != nil {
		return fmt.Errorf("forwardings of router %s in the host: %w", router, published(err))
	}
	failpoint.Here("router.forwards.host")
	if err := routerTable(false).update(s, goneHere, here); err != nil {
		return fmt.Errorf("forwardings of router %s: %w", router, published(err))
	}
	failpoint.Here("router.forwards.router")
	return forgetForwards(
		host, s,
		slices.DeleteFunc(slices.Clone(remove), func(w Forward) bool { return slices.Contains(add, w) }),
		add, u,
	)
}

func published(err error) error {
	if errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("%w: %w", ErrPublished, err)
	}
	return err
}

func (w Forward) validate() error {
	switch {
	case !w.Address.IsValid() || !w.To.IsValid() || w.Address.Is4() != w.To.Addr().Is4():
		return fmt.Errorf("forwarding of %s to %s: want two addresses of one family", w.Address, w.To)
	case w.Protocol != unix.IPPROTO_TCP && w.Protocol != unix.IPPROTO_UDP && w.Protocol != unix.IPPROTO_SCTP:
		return fmt.Errorf(
			"forwarding of %s to %s: protocol %d: want 6 (TCP), 17 (UDP) or 132 (SCTP)", w.Address, w.To,
			w.Protocol,
		)
	case w.Via != 0 && (w.Address.IsMulticast() || w.Address.Zone() != ""):
		return fmt.Errorf("forwarding of %s to %s: want an address that a host can have", w.Address, w.To)
	case w.Port == 0 || w.To.Port() == 0:
		return fmt.Errorf("forwarding of %s to %s: port 0", w.Address, w.To)
	}
	return nil
}

// forwardElements gives the router's and the host's halves.
func forwardElements(list []Forward, u *Uplink) (router, host []nft.Element, err error) {
	for _, w := range list {
		router = append(router, w.inRouter()...)
		if !w.ofHost() {
			continue
		}
		a := u.addr(w.Address.Is4())
		if !a.IsValid() {
			return nil, nil, fmt.Errorf("forwarding of %s port %d: the uplink has no address of this family", w.Address, w.Port)
		}
		host = append(host, w.inHost(a))
	}
	return router, host, nil
}

// uplink reads a router's uplink addresses; nil if it has none.
func (s *space) uplink() (*Uplink, error) {
	if s == nil {
		return nil, nil
	}
	link, err := s.link(uplinkName)
	if err != nil || link == nil {
		return nil, err
	}
	addrs, err := s.addrs()
	if err != nil {
		return nil, err
	}
	u := &Uplink{}
	for _, text := range addrs[link.Attrs().Index] {
		if p, err := netip.ParsePrefix(text); err == nil && !p.Addr().IsLinkLocalUnicast() {
			u.Addrs = append(u.Addrs, p.Addr())
		}
	}
	return u, nil
}
