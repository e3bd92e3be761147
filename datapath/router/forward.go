//go:build linux

package router

import (
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

// forwardInHost changes the host's half of forwardings, those of the host's addresses, and
// returns the router's half, and a function for when that is changed. A forwarding is
// its whole value: to change where a port leads, the old value goes and the new one comes.
func (k *Kernel) forwardInHost(
	r *run, s *space, forwards Parts[Forward],
) (here elementChange, forget func() error, err error) {
	here, forget = elementChange{table: routerTable(false)}, func() error { return nil }
	if forwards.IsEmpty() {
		return here, forget, nil
	}
	u, err := s.uplink()
	if err != nil {
		return here, nil, err
	}
	if u == nil {
		if len(forwards.Add) > 0 {
			err = fmt.Errorf("forwardings without an uplink: %w", os.ErrNotExist)
		}
		return here, forget, err
	}
	remove, add := k.feasibleForwards(forwards.Remove), k.feasibleForwards(forwards.Add)
	remove = slices.DeleteFunc(slices.Clone(remove), func(w Forward) bool { return w.validate() != nil }) // never added
	if err := u.carries(add); err != nil {
		return here, nil, err
	}
	host, err := k.openHost()
	if err != nil {
		return here, nil, err
	}
	defer host.close()
	var goneThere, there []nft.Element
	here.remove, goneThere = forwardElements(remove, u)
	here.add, there = forwardElements(add, u)
	// The host first: there a port may be another router's, and then nothing is changed.
	// Until the router knows the port too, it refuses.
	if err := k.host.updateOrMend(r, host, goneThere, there); err != nil {
		if errors.Is(err, unix.EEXIST) {
			err = fmt.Errorf("%w: %w", ErrPublished, err)
		}
		return here, nil, fmt.Errorf("forwardings in the host: %w", err)
	}
	failpoint.Here("router.forwards.host")
	removed := slices.DeleteFunc(slices.Clone(remove), func(w Forward) bool { return slices.Contains(add, w) })
	return here, func() error { return k.forgetForwards(s, removed, add, u) }, nil
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

// carries reports by an error which forwarding of the host has no address of its family
// behind it.
func (u *Uplink) carries(forwards []Forward) error {
	for _, w := range forwards {
		if w.ofHost() && !u.addr(w.Address.Is4()).IsValid() {
			return fmt.Errorf("forwarding of %s port %d: the uplink has no address of this family", w.Address, w.Port)
		}
	}
	return nil
}

// forwardElements gives the router's and the host's halves. The host has none of those that
// the uplink has no address for.
func forwardElements(list []Forward, u *Uplink) (router, host []nft.Element) {
	for _, w := range list {
		router = append(router, w.inRouter()...)
		if a := u.addr(w.Address.Is4()); w.ofHost() && a.IsValid() {
			host = append(host, w.inHost(a))
		}
	}
	return router, host
}

// uplink reads a router's uplink addresses; nil if it has none.
func (s *space) uplink() (*Uplink, error) {
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
