package engine

import (
	"context"
	"iter"
	"net/netip"
	"slices"

	"github.com/kuryr/kuryr/internal/valid"
	"github.com/kuryr/kuryr/sdn"
)

func (e *Engine) showFloatingIP(_ Tx, r *FloatingIPRow) (sdn.FloatingIP, error) {
	e.fillMeta(&r.Meta)
	return r.FloatingIP, nil
}

// EnsureFloatingIP makes, finishes or adopts a floating IP.
func (e *Engine) EnsureFloatingIP(ctx context.Context, spec sdn.FloatingIPSpec) (out sdn.FloatingIP, err error) {
	if err := valid.Base("floating IP", spec.Base); err != nil {
		return out, err
	}
	if spec.Address.IsValid() {
		if err := valid.Addr("floating IP", "address", spec.Address); err != nil {
			return out, err
		}
		spec.OfHost = spec.OfHost || spec.Address.IsUnspecified()
	}
	switch {
	case spec.OfHost && (!spec.Address.IsValid() || spec.Address.IsMulticast()):
		return out, sdn.Invalid("floating IP", "address", "must be an address of the host")
	case spec.OfHost && spec.Subnet != "":
		return out, sdn.Invalid("floating IP", "subnet", "must be empty: an address of the host is of none")
	}
	err = e.update(ctx, func(t *tx) error {
		r, err := FloatingIPs.ensured(t, spec.Base)
		if err != nil {
			return err
		}
		if r == nil {
			r, err = t.makeFloatingIP(spec)
		} else {
			err = t.adoptFloatingIP(r, spec)
		}
		if err != nil {
			return err
		}
		out, err = e.showFloatingIP(t.Tx, r)
		e.disown(ctx, &out.Meta)
		return err
	})
	return out, err
}

func (t *tx) makeFloatingIP(spec sdn.FloatingIPSpec) (*FloatingIPRow, error) {
	n, err := Networks.Need(t.Tx, spec.Network)
	if err != nil {
		return nil, err
	}
	if !n.External {
		return nil, sdn.Invalid("floating IP", "network", "%s is no external network", spec.Network)
	}
	r := &FloatingIPRow{FloatingIP: sdn.FloatingIP{Meta: newMeta(spec.Base), Network: n.ID, Address: spec.Address}}
	if !spec.OfHost {
		asked := sdn.Address{Subnet: spec.Subnet, Addr: spec.Address}
		switch {
		case spec.Subnet != "":
			_, err = t.askedSubnet(n.ID, spec)
		case !spec.Address.IsValid():
			asked.Subnet, err = t.subnetOfFloating(n, spec.Target)
		}
		if err != nil {
			return nil, err
		}
		holder, err := t.ownPort(n, sdn.OwnerFloatingIP, r.ID, []sdn.Address{asked}, "")
		if err != nil {
			return nil, err
		}
		r.Holder, r.Address = holder.ID, holder.Addresses[0].Addr
	}
	if spec.Target != (sdn.Target{}) {
		if err := t.associate(r, spec.Target); err != nil {
			return nil, err
		}
	}
	return r, FloatingIPs.put(t, r)
}

// askedSubnet is the subnet that a floating IP is to be of: the external network's, with the
// address, where one is asked for.
func (t *tx) askedSubnet(network sdn.ID, spec sdn.FloatingIPSpec) (*subnetRow, error) {
	s, err := Subnets.Need(t.Tx, spec.Subnet)
	switch {
	case err != nil:
		return nil, err
	case s.Network != network:
		return nil, sdn.Invalid("floating IP", "subnet", "%s is not of network %s", s.ID, network)
	case !serves(s, sdn.OwnerFloatingIP):
		return nil, sdn.Invalid("floating IP", "subnet", "%s is not for ports of the device owner %q",
			s.ID, sdn.OwnerFloatingIP)
	case spec.Address.IsValid() && !s.CIDR.Contains(spec.Address):
		return nil, sdn.Invalid("floating IP", "address", "%v is not of subnet %v", spec.Address, s.CIDR)
	}
	return s, nil
}

// subnetOfFloating chooses where a floating IP without an address comes from: IPv4 if there is any,
// and if its target, where there is one, has such an address.
func (t *tx) subnetOfFloating(n *NetworkRow, target sdn.Target) (sdn.ID, error) {
	six := false
	if target.Port != "" {
		port, err := Ports.Need(t.Tx, target.Port)
		if err != nil {
			return "", err
		}
		six = !slices.ContainsFunc(port.Addresses, func(a sdn.Address) bool {
			return a.Addr.Is4() && (!target.Addr.IsValid() || a.Addr == target.Addr)
		})
	}
	candidates, err := t.candidates(n, sdn.OwnerFloatingIP)
	if err != nil {
		return "", err
	}
	var other sdn.ID
	for _, s := range candidates {
		if s.CIDR.Addr().Is6() == six {
			return s.ID, nil
		}
		other = s.ID
	}
	switch {
	case other == "":
		return "", sdn.Exhausted(sdn.NoAddresses, "network", "the external network has no subnet to take an address from")
	case six:
		return "", sdn.Invalid("floating IP", "target", "port %s has no such IPv4 address, and the external network no IPv6 subnet", target.Port)
	}
	return other, nil
}

func (t *tx) adoptFloatingIP(r *FloatingIPRow, spec sdn.FloatingIPSpec) error {
	if spec.Network != "" && spec.Network != r.Network {
		return immutable("floating IP", r.ID, "network", r.Network, spec.Network)
	}
	if spec.Subnet != "" {
		s, err := t.askedSubnet(r.Network, spec)
		if err != nil {
			return err
		}
		if !s.CIDR.Contains(r.Address) {
			return immutable("floating IP", r.ID, "subnet", r.Address, "one of "+s.CIDR.String())
		}
	}
	switch {
	case spec.Address.IsValid() && spec.Address != r.Address:
		return immutable("floating IP", r.ID, "address", r.Address, spec.Address)
	case spec.OfHost != r.OfHost():
		return immutable("floating IP", r.ID, "ofHost", r.OfHost(), spec.OfHost)
	}
	changed, err := adopt("floating IP", &r.Meta, spec.Base)
	if err != nil {
		return err
	}
	if spec.Target.Port != "" {
		target, _, _, err := t.resolve(spec.Target, r.Address)
		if err != nil {
			return err
		}
		if target != r.Target {
			if err := t.associate(r, target); err != nil {
				return err
			}
			changed = true
		}
	}
	if !changed {
		return nil
	}
	return FloatingIPs.put(t, r)
}

// resolve finds a target's address, its subnet, and the router that connects it with the outside.
// external is of the floating IP.
func (t *tx) resolve(target sdn.Target, external netip.Addr) (sdn.Target, sdn.ID, *RouterRow, error) {
	none := sdn.Target{}
	port, err := Ports.Need(t.Tx, target.Port)
	if err != nil {
		return none, "", nil, err
	}
	if port.Own && port.Balancer() == "" && port.DeviceOwner != sdn.OwnerRouterInterface {
		return none, "", nil, sdn.Invalid("floating IP", "target.port", "%s is the SDN's own", port.ID)
	}
	i := slices.IndexFunc(port.Addresses, func(a sdn.Address) bool {
		return a.Addr == target.Addr || !target.Addr.IsValid() && family(a.Addr) == family(external)
	})
	switch {
	case i < 0 && target.Addr.IsValid():
		return none, "", nil, sdn.Invalid("floating IP", "target.addr", "%v is no address of port %s", target.Addr, port.ID)
	case i < 0:
		return none, "", nil, sdn.Invalid("floating IP", "target.port", "port %s has no address of the family of %v", port.ID, external)
	case family(port.Addresses[i].Addr) != family(external):
		return none, "", nil, sdn.Invalid("floating IP", "target.addr", "%v is not of the family of %v", target.Addr, external)
	}
	a := port.Addresses[i]
	router, err := Routers.By(t.Tx, "subnet", string(a.Subnet))
	if err == nil && (router == nil || router.Gateway == nil) {
		err = &sdn.Error{Kind: sdn.KindNotFound, Noun: "router", Detail: "no router with a gateway connects the port's subnet with the outside"}
	}
	return sdn.Target{Port: port.ID, Addr: a.Addr}, a.Subnet, router, err
}

// associate leads r to target. The caller writes r.
func (t *tx) associate(r *FloatingIPRow, target sdn.Target) error {
	if r.OfHost() {
		return sdn.Invalid("floating IP", "target", "the host's address %v carries port forwardings only", r.Address)
	}
	if r.Forwards > 0 {
		return inUse("floating IP", r.ID, "it has port forwardings")
	}
	target, subnet, router, err := t.resolve(target, r.Address)
	if err != nil {
		return err
	}
	port, err := Ports.Need(t.Tx, target.Port)
	if err != nil {
		return err
	}
	if holder := FloatingIPs.ID(t.Tx, "target", AddrKey(target.Port, target.Addr)); holder != "" && holder != r.ID {
		return sdn.Conflict(sdn.Exists, "floating IP", "target", "%v has another floating IP", target.Addr)
	}
	r.Target, r.Subnet, r.Router, r.Balancer = target, subnet, router.ID, port.Balancer()
	return nil
}

// dissociate leads r nowhere. The caller writes r.
func dissociate(r *FloatingIPRow) {
	r.Target, r.Subnet, r.Router, r.Balancer = sdn.Target{}, "", "", ""
}

// FloatingIP gets a floating IP.
func (e *Engine) FloatingIP(ctx context.Context, id sdn.ID) (sdn.FloatingIP, error) {
	return get(ctx, e, FloatingIPs, id, e.showFloatingIP)
}

// FindFloatingIPs streams floating IPs.
func (e *Engine) FindFloatingIPs(ctx context.Context, q sdn.FloatingIPQuery) iter.Seq2[sdn.FloatingIP, error] {
	scans, err := e.scansOf(ctx, FloatingIPs.Noun, q.Match, byEach("port", q.Ports), byEach("router", q.Routers),
		byEach("network", q.Networks), byProject(q.Match))
	if err != nil {
		return broken[sdn.FloatingIP](err)
	}
	return search(ctx, e, FloatingIPs, scans, e.showFloatingIP, q.Matches)
}

// UpdateFloatingIP changes a floating IP.
func (e *Engine) UpdateFloatingIP(ctx context.Context, id sdn.ID, change sdn.FloatingIPPatch) (out sdn.FloatingIP, err error) {
	if err := valid.Patch("floating IP", change.Patch); err != nil {
		return out, err
	}
	err = e.update(ctx, func(t *tx) error {
		r, err := FloatingIPs.Need(t.Tx, id)
		if err != nil {
			return err
		}
		if err := FloatingIPs.patch(t, &r.Meta, change.Patch); err != nil {
			return err
		}
		switch {
		case change.Target == nil:
		case *change.Target == (sdn.Target{}) && r.Forwards > 0:
			// Forwardings are no association: there is none to end.
		case *change.Target == (sdn.Target{}):
			dissociate(r)
		default:
			if err := t.associate(r, *change.Target); err != nil {
				return err
			}
		}
		if err := FloatingIPs.put(t, r); err != nil {
			return err
		}
		out, err = e.showFloatingIP(t.Tx, r)
		e.disown(ctx, &out.Meta)
		return err
	})
	return out, err
}

// DeleteFloatingIP deletes a floating IP with its forwardings.
func (e *Engine) DeleteFloatingIP(ctx context.Context, id sdn.ID) error {
	return e.release(ctx, func(t *tx) error { return t.deleteFloatingIP(id) })
}

func (t *tx) deleteFloatingIP(id sdn.ID) error {
	r, err := FloatingIPs.Get(t.Tx, id)
	if err != nil || r == nil {
		return err
	}
	rows, err := Forwards.All(t.Tx, "floatingip", string(id))
	if err != nil {
		return err
	}
	for _, f := range rows {
		if err := Forwards.del(t, f.Meta.ID); err != nil {
			return err
		}
	}
	if err := t.dropOwnPort(r.Holder); err != nil {
		return err
	}
	return FloatingIPs.del(t, id)
}
