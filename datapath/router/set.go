//go:build linux

package router

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/kuryr/kuryr/datapath/lb"
	"github.com/kuryr/kuryr/datapath/nft"
	"github.com/kuryr/kuryr/datapath/securitygroup"
	"github.com/kuryr/kuryr/internal/failpoint"
	"golang.org/x/sys/unix"
)

// Change is the difference between the last applied and the wanted router.
// What it does not name stays.
type Change struct {
	Router string
	Shape  *Shape // the wanted one; nil: it stays
	// Groups and Sets are definitions that ports to be added need, or that have changed.
	// Those that the router knows at their revisions cost nothing.
	Groups    []securitygroup.Group
	Sets      []securitygroup.Set
	Ports     Parts[Port]
	Forwards  Parts[Forward]
	VIPs      Parts[VIP]
	Frontends Frontends
}

// Parts are values of one kind that go and that come. A part that changes does both: its
// old value goes and its new one comes. Removing what is absent, or what another value
// took the place of, is fine, and so is adding what is there. So a part whose last change
// failed is removed by all values that it may have.
type Parts[T any] struct{ Remove, Add []T }

// IsEmpty reports whether nothing goes or comes.
func (p Parts[T]) IsEmpty() bool { return len(p.Remove)+len(p.Add) == 0 }

// Frontends are where the router balances no more, and what it balances. All returns all
// of the latter: it is asked where this process has not told the router what it balances,
// and then takes the place of the rest.
type Frontends struct {
	Remove []lb.Key
	Set    []lb.Frontend
	All    func() ([]lb.Frontend, error)
}

// IsEmpty reports whether nothing changes.
func (f Frontends) IsEmpty() bool { return len(f.Remove)+len(f.Set) == 0 }

// IsEmpty reports whether nothing changes.
func (c Change) IsEmpty() bool {
	return c.Shape == nil && len(c.Groups)+len(c.Sets) == 0 && c.Ports.IsEmpty() && c.Forwards.IsEmpty() &&
		c.VIPs.IsEmpty() && c.Frontends.IsEmpty()
}

// comes reports whether there is anything that a router must have a namespace for.
func (c Change) comes() bool {
	return len(c.Groups)+len(c.Sets)+len(c.Ports.Add)+len(c.Forwards.Add)+len(c.VIPs.Add)+len(c.Frontends.Set) > 0
}

func (c Change) validate(options Options) error {
	if c.Shape != nil {
		if c.Shape.ID != c.Router {
			return fmt.Errorf("router %s: shape of %s", c.Router, c.Shape.ID)
		}
		if err := c.Shape.validate(options); err != nil {
			return err
		}
	}
	for _, p := range c.Ports.Add {
		if err := p.validate(); err != nil {
			return err
		}
	}
	for _, w := range c.Forwards.Add {
		if err := w.validate(); err != nil {
			return err
		}
	}
	return nil
}

// Set changes a router; nothing else does but Delete and Reconcile. A shape costs by that
// shape, everything else by what changes. A network that lies in another router is fetched
// from there with its ports, if the shape has it.
//
// The error is os.ErrNotExist if something comes to a router without a namespace,
// a forwarding to one without an uplink, or a port with a group that the router does not
// know; and ErrPublished if a port of the host leads elsewhere already. After an error the
// router has some of the change, and the same call, or one for a later change, completes it.
func (k *Kernel) Set(ctx context.Context, c Change) (result Result, err error) {
	if err := ctx.Err(); err != nil {
		return result, err
	}
	if err := c.validate(k.options); err != nil {
		return result, err
	}
	k.gate.RLock()
	defer k.gate.RUnlock()
	if c.Shape != nil {
		if result, err = k.setShape(ctx, k.feasible(*c.Shape)); err != nil {
			return result, err
		}
		c.Shape = nil
	}
	if c.IsEmpty() {
		return result, nil
	}
	if err := k.setParts(ctx, c); err != nil {
		return result, fmt.Errorf("router %s: %w", c.Router, err)
	}
	return result, nil
}

// setParts changes all but the shape: what others need comes first. Frontends come before
// their VIPs, so that no connection is refused at an address that has just come.
func (k *Kernel) setParts(ctx context.Context, c Change) error {
	defer k.lock(c.Router)()
	s, err := k.openRouter(c.Router)
	if err != nil {
		return err
	}
	if s == nil {
		k.trunks.forget(c.Router, c.Ports.Remove)
		if c.comes() {
			return fmt.Errorf("no namespace: %w", os.ErrNotExist)
		}
		return nil
	}
	defer s.close()
	r := &run{ctx: ctx, router: c.Router}
	if len(c.Groups)+len(c.Sets) > 0 {
		if err := s.filtering(func(f *securitygroup.Filter) error { return f.UpdateGroups(c.Groups, c.Sets) }); err != nil {
			return err
		}
		failpoint.Here("router.groups.told")
	}
	if !c.Ports.IsEmpty() || !c.Forwards.IsEmpty() {
		if err := k.setPorts(r, s, c.Ports, c.Forwards); err != nil {
			return err
		}
	}
	if !c.Frontends.IsEmpty() {
		if err := k.setFrontends(r, s, c.Frontends); err != nil {
			return fmt.Errorf("load balancers: %w", err)
		}
	}
	return s.setVIPs(r, k.feasibleVIPs(c.VIPs.Remove), k.feasibleVIPs(c.VIPs.Add))
}

// setPorts changes what a router's tables have of ports and forwardings in one
// transaction: anti-spoofing, filter, and where published ports lead. The ports' links need
// not exist yet. A subport gets its link now, or when its parent gets its own.
func (k *Kernel) setPorts(r *run, s *space, ports Parts[Port], forwards Parts[Forward]) error {
	if err := k.leaveTrunks(r, s, ports.Remove, ports.Add); err != nil {
		return fmt.Errorf("subports: %w", err)
	}
	// What could not be added is not there.
	ports.Remove = slices.DeleteFunc(slices.Clone(ports.Remove), func(p Port) bool { return p.validate() != nil })
	changes := []elementChange{
		{table: guardTable(), needed: true, add: portsElements(ports.Add),
			remove: append(portsElements(ports.Remove), rangedElements(ports.Remove)...)},
		downPorts.change(ports), parents.change(ports),
	}
	change, forget, err := k.forwardInHost(r, s, forwards)
	if err != nil {
		return err
	}
	if err := s.changeTables(r, append(changes, change), ports); err != nil {
		return err
	}
	failpoint.Here("router.tables.changed")
	if err := forget(); err != nil {
		return err
	}
	k.collectLeftovers(r.ctx, s, r.router, ports.Remove)
	if err := k.joinTrunks(r, s, ports.Add); err != nil {
		return err
	}
	if err := s.announce(moved(ports.Remove, ports.Add)); err != nil {
		k.log.WarnContext(r.ctx, "neighbours may not know a port's MAC for a while", "router", r.router, "err", err)
	}
	return nil
}

// elementChange is what goes from a table's sets and what comes.
type elementChange struct {
	table
	needed      bool // the table is made if something comes and it is missing
	remove, add []nft.Element
}

// changeTables changes tables, and the filter of ports, in one transaction.
func (s *space) changeTables(r *run, changes []elementChange, ports Parts[Port]) (err error) {
	defer s.note(&err)
	err = s.commitTables(changes, ports, false)
	if !nft.IsAbsent(err) && !errors.Is(err, unix.EEXIST) {
		return err
	}
	// Something is not as it was thought to be: look, and do what differs.
	for i, c := range changes {
		if c.needed && len(c.add) > 0 {
			if err := c.converge(r, s); err != nil {
				return err
			}
		}
		if changes[i].remove, changes[i].add, err = c.differing(r.ctx, s, c.remove, c.add); err != nil {
			return err
		}
	}
	return s.commitTables(changes, ports, true)
}

func (s *space) commitTables(changes []elementChange, ports Parts[Port], look bool) error {
	x := nft.Begin(s.nft)
	for _, c := range changes {
		c.queue(x, c.remove, c.add)
	}
	err := securitygroup.In(s.nft).ChangePorts(x, filteredPorts(ports.Remove), filteredPorts(ports.Add), look)
	if err != nil {
		return err
	}
	return x.Commit()
}
