package engine

import (
	"context"
	"fmt"
	"iter"
	"net/netip"
	"slices"

	"github.com/kuryr/kuryr/internal/valid"
	"github.com/kuryr/kuryr/sdn"
)

// EnsureForwards adds forwardings to a floating IP, all or none.
func (e *Engine) EnsureForwards(ctx context.Context, floatingIP sdn.ID, wanted []sdn.Forward) (out []sdn.Forward, err error) {
	err = e.update(ctx, func(t *tx) error {
		out = nil
		fip, err := FloatingIPs.Need(t.Tx, floatingIP)
		if err != nil {
			return err
		}
		if fip.Target.Port != "" {
			return inUse("floating IP", floatingIP, "it is associated with a port")
		}
		targets := targets{}
		for i, want := range wanted {
			field := fmt.Sprintf("forwards[%d]", i)
			if want, err = normal(want, field); err != nil {
				return err
			}
			at, err := targets.resolve(t, want.Target, fip.Address, field)
			if err != nil {
				return err
			}
			r, err := t.ensureForward(fip, want, at, newMeta(sdn.Base{Project: fip.Project}), field)
			if err != nil {
				return err
			}
			out = append(out, r.Forward)
		}
		return t.putForwarded(fip)
	})
	return out, err
}

// UpdateForward makes a forwarding be this one: it goes and comes again with its id, in one transaction.
func (e *Engine) UpdateForward(ctx context.Context, floatingIP sdn.ID, want sdn.Forward) (out sdn.Forward, err error) {
	err = e.update(ctx, func(t *tx) error {
		old, err := Forwards.Get(t.Tx, want.ID)
		if err != nil {
			return err
		}
		if old == nil || old.FloatingIP != floatingIP {
			return sdn.NotFound("port forwarding", want.ID)
		}
		if err := t.dropForward(old); err != nil {
			return err
		}
		fip, err := FloatingIPs.Need(t.Tx, floatingIP)
		if err != nil {
			return err
		}
		if want, err = normal(want, "forward"); err != nil {
			return err
		}
		at, err := targets{}.resolve(t, want.Target, fip.Address, "forward")
		if err != nil {
			return err
		}
		r, err := t.ensureForward(fip, want, at, old.Meta, "forward")
		if err != nil {
			return err
		}
		if r.ID != old.ID {
			return sdn.Conflict(sdn.Exists, "port forwarding", "forward.external", "another forwarding is like this already")
		}
		out = r.Forward
		return t.putForwarded(fip)
	})
	return out, err
}

// normal gives a forwarding its full form.
func normal(f sdn.Forward, field string) (sdn.Forward, error) {
	if f.External.Last == 0 {
		f.External.Last = f.External.First
	}
	if f.Internal.Last == 0 {
		f.Internal.Last = f.Internal.First
	}
	switch {
	case !contains([]sdn.Protocol{sdn.TCP, sdn.UDP, sdn.SCTP}, f.Protocol):
		return f, sdn.Invalid("port forwarding", field+".protocol", "%d has no ports; it must be TCP, UDP or SCTP", f.Protocol)
	case f.External.First == 0 || f.External.Last < f.External.First:
		return f, sdn.Invalid("port forwarding", field+".external", "%d-%d is no range of ports", f.External.First, f.External.Last)
	case f.Internal.First == 0 || f.Internal.Last < f.Internal.First:
		return f, sdn.Invalid("port forwarding", field+".internal", "%d-%d is no range of ports", f.Internal.First, f.Internal.Last)
	case f.Internal.First != f.Internal.Last && f.Internal.Last-f.Internal.First != f.External.Last-f.External.First:
		return f, sdn.Invalid("port forwarding", field+".internal", "must be one port or as many as outside")
	}
	return f, valid.Text("port forwarding", field+".description", f.Description)
}

// targets are the targets of forwardings that a transaction has resolved, by what was asked for.
type targets map[asked]resolved

type asked struct {
	target sdn.Target
	ipv6   bool
}

// resolved is an address of a port, its subnet and the router in front of it.
type resolved struct {
	sdn.Target
	subnet, router sdn.ID
}

// resolve finds a target of a floating IP with the external address.
func (r targets) resolve(t *tx, target sdn.Target, external netip.Addr, field string) (resolved, error) {
	at := asked{target, external.Is6()}
	if known, ok := r[at]; ok {
		return known, nil
	}
	target, subnet, router, err := t.resolve(target, external)
	if err != nil {
		return resolved{}, err
	}
	if err := t.checkNoVIP(target.Port, field); err != nil {
		return resolved{}, err
	}
	r[at] = resolved{target, subnet, router.ID}
	return r[at], nil
}

// ensureForward adds a forwarding in its full form, which gets the meta if it is new. The caller
// writes fip by putForwarded.
func (t *tx) ensureForward(
	fip *FloatingIPRow, want sdn.Forward, at resolved, meta sdn.Meta, field string,
) (*ForwardRow, error) {
	want.Target = at.Target
	same, err := t.checkTuples(fip, want, field)
	if err != nil {
		return nil, err
	}
	if same != nil {
		Forwards.touch(t, same)
		return same, nil
	}
	if fip.Router != "" && fip.Router != at.router {
		return nil, sdn.Conflict(sdn.InUse, "floating IP", field+".target", "its other forwardings go through another router")
	}
	want.ID = meta.ID
	r := &ForwardRow{
		Forward: want, Meta: meta, FloatingIP: fip.ID, Address: fip.Address, Subnet: at.subnet, Router: at.router,
	}
	if fip.OfHost() {
		if err := t.chooseVia(r, field); err != nil {
			return nil, err
		}
	}
	if err := Forwards.put(t, r); err != nil {
		return nil, err
	}
	fip.Forwards++
	fip.Router = at.router
	return r, nil
}

// putForwarded writes a floating IP whose forwardings may have changed in number.
func (t *tx) putForwarded(fip *FloatingIPRow) error {
	stored, err := FloatingIPs.Need(t.Tx, fip.ID)
	if err != nil || stored.Forwards == fip.Forwards && stored.Router == fip.Router {
		return err
	}
	return FloatingIPs.put(t, fip)
}

// checkTuples looks for who has the external ports already. One that is alike in everything is returned; any other is a
// conflict, and the unspecified address counts as every address of its family.
func (t *tx) checkTuples(fip *FloatingIPRow, want sdn.Forward, field string) (*ForwardRow, error) {
	for port := int(want.External.First); port <= int(want.External.Last); port++ {
		id := Forwards.ID(t.Tx, "tuple", Tuple(want.Protocol, uint16(port), fip.Address, true))
		if id != "" {
			r, err := Forwards.Need(t.Tx, id)
			if err != nil {
				return nil, err
			}
			if r.FloatingIP == fip.ID && alike(r.Forward, want) {
				return r, nil
			}
		}
		if id == "" && t.overlapping(fip, want.Protocol, uint16(port)) || id != "" {
			return nil, sdn.Conflict(sdn.Exists, "port forwarding", field+".external", "port %d of %v is forwarded already", port, fip.Address)
		}
	}
	return nil, nil
}

// overlapping tells whether another address that counts as the floating IP's, or that its address
// counts as, has the port.
func (t *tx) overlapping(fip *FloatingIPRow, p sdn.Protocol, port uint16) bool {
	if !fip.Address.IsUnspecified() {
		any := netip.IPv6Unspecified()
		if fip.Address.Is4() {
			any = netip.IPv4Unspecified()
		}
		return Forwards.ID(t.Tx, "tuple", Tuple(p, port, any, true)) != ""
	}
	return anyWith(t.Tx, Forwards.indexTable("tuple"), Tuple(p, port, fip.Address, false))
}

func showForward(_ Tx, r *ForwardRow) (sdn.Forward, error) { return r.Forward, nil }

// FindForwards streams port forwardings.
func (e *Engine) FindForwards(ctx context.Context, q sdn.ForwardQuery) iter.Seq2[sdn.Forward, error] {
	// The floating IP is not in what is shown, so where a query names both, it is looked up by it
	// and the ports are compared.
	scans, err := e.scansOf(ctx, Forwards.Noun, sdn.Match{}, byEach("floatingip", q.FloatingIPs), byEach("port", q.Ports))
	if err != nil {
		return broken[sdn.Forward](err)
	}
	return search(ctx, e, Forwards, scans, showForward, func(f sdn.Forward) bool {
		return len(q.Ports) == 0 || slices.Contains(q.Ports, f.Target.Port)
	})
}

// DeleteForwards deletes forwardings of a floating IP.
func (e *Engine) DeleteForwards(ctx context.Context, floatingIP sdn.ID, ids []sdn.ID) error {
	return e.release(ctx, func(t *tx) error {
		for _, id := range ids {
			r, err := Forwards.Get(t.Tx, id)
			if err != nil {
				return err
			}
			if r != nil && r.FloatingIP == floatingIP {
				if err := t.dropForward(r); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// dropForward deletes a forwarding; the last one frees the floating IP from its router.
func (t *tx) dropForward(r *ForwardRow) error {
	fip, err := FloatingIPs.Need(t.Tx, r.FloatingIP)
	if err != nil {
		return err
	}
	if fip.Forwards--; fip.Forwards == 0 {
		fip.Router = ""
	}
	if err := FloatingIPs.put(t, fip); err != nil {
		return err
	}
	return Forwards.del(t, r.Meta.ID)
}

func (t *tx) dropForwardsTo(port sdn.ID) error {
	rows, err := Forwards.All(t.Tx, "port", string(port))
	if err != nil {
		return err
	}
	for _, r := range rows {
		if err := t.dropForward(r); err != nil {
			return err
		}
	}
	return nil
}
