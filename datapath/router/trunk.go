//go:build linux

package router

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

var errNoVLANs = errors.New("the kernel makes no VLAN links: its module 8021q is missing (CONFIG_VLAN_8021Q)")

const maxVLAN = 4094

func (t Trunk) validate() error {
	if len(t.Parent) < shortID || len(t.Network) < shortID || t.VLAN > maxVLAN || t.VLAN < 1 {
		return fmt.Errorf(
			"VLAN %d of port %q of network %q: want 1 to %d and two UUIDs", t.VLAN, t.Parent, t.Network,
			maxVLAN,
		)
	}
	return nil
}

// Subport reports whether the port is reached through another.
func (p Port) Subport() bool { return p.Trunk != Trunk{} }

// trunks remembers the subports, since the kernel does not know of a leg whose tap is not
// there yet.
type trunks struct {
	mu    sync.Mutex
	legs  map[string]leg                 // by port
	under map[string]map[string]struct{} // tap of the parent: ports
}

// leg is a subport and the router that it is in.
type leg struct {
	Port
	router string
}

// note remembers the subports among ports.
func (t *trunks) note(router string, ports []Port) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range ports {
		t.drop(p.ID)
		if !p.Subport() {
			continue
		}
		if t.legs == nil {
			t.legs, t.under = map[string]leg{}, map[string]map[string]struct{}{}
		}
		t.legs[p.ID] = leg{p, router}
		tap := TapName(p.Trunk.Parent)
		if t.under[tap] == nil {
			t.under[tap] = map[string]struct{}{}
		}
		t.under[tap][p.ID] = struct{}{}
	}
}

func (t *trunks) drop(port string) {
	old, known := t.legs[port]
	if !known {
		return
	}
	tap := TapName(old.Trunk.Parent)
	delete(t.legs, port)
	if delete(t.under[tap], port); len(t.under[tap]) == 0 {
		delete(t.under, tap)
	}
}

// forget forgets ports of a router; those that went to another stay.
func (t *trunks) forget(router string, ports []Port) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range ports {
		if t.legs[p.ID].router == router {
			t.drop(p.ID)
		}
	}
}

func (t *trunks) forgetRouter(router string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, l := range t.legs {
		if l.router == router {
			t.drop(id)
		}
	}
}

// moved has the subports of a network be in another router, and gives the taps that they
// are on: who began to make their legs where they were is to begin anew.
func (t *trunks) moved(bridge, from, to string) (taps []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, l := range t.legs {
		if l.router == from && BridgeName(l.Network) == bridge {
			l.router = to
			t.legs[id] = l
			taps = append(taps, TapName(l.Trunk.Parent))
		}
	}
	return taps
}

// replace forgets all but the subports of state.
func (t *trunks) replace(state map[string][]Port) {
	t.mu.Lock()
	t.legs, t.under = nil, nil
	t.mu.Unlock()
	for router, ports := range state {
		t.note(router, ports)
	}
}

// on are the subports of a tap, by router.
func (t *trunks) on(tap string) map[string][]Port {
	t.mu.Lock()
	defer t.mu.Unlock()
	byDomain := map[string][]Port{}
	for id := range t.under[tap] {
		l := t.legs[id]
		byDomain[l.router] = append(byDomain[l.router], l.Port)
	}
	return byDomain
}

// carries reports whether a link is the tap of a subport's parent.
func (t *trunks) carries(tap string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.under[tap]) > 0
}

// taps are those of all parents.
func (t *trunks) taps() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Collect(maps.Keys(t.under))
}

// legless tells that subports are left out on this kernel.
func (k *Kernel) legless() bool { return k.legs.name == vlanKind.name && !supports().VLANs }

func subports(ports []Port) []Port {
	return slices.DeleteFunc(slices.Clone(ports), func(p Port) bool { return !p.Subport() })
}

// raiseLegs has the legs of a router's subports stand whose parents have taps. The caller
// holds the router's lock, and s is its namespace.
func (k *Kernel) raiseLegs(r *run, s *space, ports []Port) error {
	byParent := map[Trunk][]Port{}
	for _, p := range subports(ports) {
		parent := Trunk{Parent: p.Trunk.Parent, Network: p.Trunk.Network}
		byParent[parent] = append(byParent[parent], p)
	}
	var errs []error
	for parent, list := range byParent {
		errs = append(errs, k.withTap(parent, func(home *space, tap int) error {
			var errs []error
			for _, p := range list {
				if err := k.legs.raise(r, s, home, tap, p); err != nil {
					errs = append(errs, fmt.Errorf("subport %s of %s: %w", p.ID, p.Trunk.Parent, err))
				}
			}
			return errors.Join(errs...)
		}))
	}
	return errors.Join(errs...)
}

// withTap calls do with the tap of a parent and the namespace it is in, if there is one.
// While the parent's network moves it may be in two, and the tap in either.
func (k *Kernel) withTap(parent Trunk, do func(home *space, tap int) error) error {
	routers, err := k.others(BridgeName(parent.Network), "")
	if err != nil {
		return err
	}
	for _, router := range routers {
		home, err := k.openRouter(router)
		if err != nil {
			return err
		}
		if home == nil {
			continue
		}
		tap, err := home.link(TapName(parent.Parent))
		if err == nil && tap != nil {
			err = do(home, tap.Attrs().Index)
			if errors.Is(err, unix.ENODEV) && home.lacks(TapName(parent.Parent)) {
				// its container ended meanwhile: legs go with their tap
				err = nil
			}
		}
		home.close()
		if err != nil || tap != nil {
			return err
		}
	}
	return nil
}

// joinTrunks gives the subports among a router's ports their legs, now or when their
// parents' taps appear.
func (k *Kernel) joinTrunks(r *run, s *space, add []Port) error {
	k.trunks.note(r.router, add)
	if len(subports(add)) == 0 || k.legless() {
		return nil
	}
	if err := k.watchTaps(); err != nil { // from here on no tap appears unheard
		return err
	}
	return k.raiseLegs(r, s, add)
}

// leaveTrunks takes the legs of ports away that are subports no more.
func (k *Kernel) leaveTrunks(r *run, s *space, remove, add []Port) error {
	k.trunks.forget(r.router, remove)
	gone := slices.DeleteFunc(subports(remove), func(p Port) bool {
		return slices.ContainsFunc(add, func(q Port) bool { return q.ID == p.ID && q.Trunk == p.Trunk })
	})
	return k.legs.fell(r, s, gone)
}

// compareLegs has the legs of all subports stand whose parents have taps, and takes away
// those in routers that are not wanted: they would keep their VLANs from others until
// their router goes, which is last. Those of unwanted ports are gone by now, as all links
// of such ports are.
func (k *Kernel) compareLegs(r *run, state State, wanted map[string]bool) error {
	any := false
	for _, ports := range state.Ports {
		any = any || len(subports(ports)) > 0
	}
	if !r.dry {
		k.trunks.replace(state.Ports)
	}
	if !any {
		return nil
	}
	if k.legless() {
		k.log.WarnContext(r.ctx, "subports are not reached", "err", errNoVLANs)
		return nil
	}
	if !r.dry {
		if err := k.watchTaps(); err != nil {
			return err
		}
	}
	routers, err := k.options.Namespaces.List()
	if err != nil {
		return err
	}
	inEach := func(want bool, do func(r *run, s *space) error) error {
		var errs []error
		for _, id := range routers {
			if wanted[id] != want {
				continue
			}
			s, err := k.openRouter(id)
			if s != nil {
				own := r.in(id)
				err = do(own, s)
				r.join(own)
				s.close()
			}
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	}
	err = inEach(false, func(r *run, s *space) error {
		legs, err := s.links(k.legs.name, 0)
		if err != nil {
			return err
		}
		return k.legs.fellLinks(r, s, slices.DeleteFunc(legs, func(l netlink.Link) bool {
			return !strings.HasPrefix(l.Attrs().Name, tapPrefix)
		}))
	})
	return errors.Join(err, inEach(true, func(r *run, s *space) error { return k.raiseLegs(r, s, state.Ports[r.router]) }))
}
