package endpoint

import (
	"context"
	"net/netip"
	"slices"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/docker/ipam"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/sdn"
)

// FloatingSpec is the floating IP of an endpoint (api.OptFloatingIP), from Join to Leave. Join makes
// it and not ProgramExternalConnectivity, which only the endpoint of the default gateway gets.
type FloatingSpec struct {
	Target   sdn.Target
	Asked    string     // auto, an address, or an id; "": the row is of an endpoint without a row
	Existing sdn.ID     `json:",omitempty"` // the floating IP if it is an existing one
	External sdn.ID     `json:",omitempty"` // the external network of an own one
	Address  netip.Addr `json:",omitzero"`  // invalid: any
}

// FloatingLast is what became of it.
type FloatingLast struct {
	ID sdn.ID `json:",omitempty"` // of an own one
}

func (s *Service) float(ctx context.Context, id string, row endpointRow) error {
	asked, port := row.Spec.Floating, row.Last.Port
	if asked == "" || row.Spec.Publish == api.PublishFloatingIP {
		return nil
	}
	target, ok := floatingTarget(port.ID, port.Addresses, asked)
	if !ok {
		return api.Refuse("option %s: the endpoint has no address that %s can lead to", api.OptFloatingIP, asked)
	}
	leadsTo := func(f sdn.FloatingIP) bool { return f.Target.Port == port.ID }
	free := func(f sdn.FloatingIP) bool { return f.Target.Port == "" || leadsTo(f) }
	own := func(f sdn.FloatingIP) bool { return s.Names.Ours(f.Meta, identity.KindFloating) && free(f) }
	spec := FloatingSpec{Asked: asked, Target: target}
	var err error
	spec.Existing, spec.Address, err = s.chooseFloatingIP(ctx, asked, leadsTo, free, own)
	if err == nil && spec.Existing == "" {
		spec.External, err = s.externalOf(ctx, port, target)
	}
	if err != nil {
		return err
	}
	_, err = s.floating.Set(ctx, reconcile.Request[FloatingSpec]{
		Key: id, Spec: spec, Owners: s.plugOwners(id),
	})
	return explain(id, err)
}

// floatingTarget is the address of a port that a floating IP leads to: the first one of the family
// of the address that is asked for, otherwise of IPv4.
func floatingTarget(port sdn.ID, addresses []sdn.Address, asked string) (sdn.Target, bool) {
	address, err := netip.ParseAddr(asked)
	v6 := err == nil && address.Is6()
	for _, a := range addresses {
		if a.Addr.Is6() == v6 {
			return sdn.Target{Port: port, Addr: a.Addr}, true
		}
	}
	return sdn.Target{}, false
}

type floatTarget struct{ *Service }

func (s *Service) floatingKey(o reconcile.Object) sdn.Key {
	return s.Names.Key(identity.KindFloating, o.Key, o)
}

// Ensure implements reconcile.Target.
func (t floatTarget) Ensure(
	ctx context.Context, o reconcile.Object, f FloatingSpec, last FloatingLast,
) (FloatingLast, error) {
	if f.Existing != "" {
		return last, identity.Outcome(t.lead(ctx, f), false)
	}
	made, err := t.SDN.EnsureFloatingIP(ctx, sdn.FloatingIPSpec{
		Base: sdn.Base{Key: t.floatingKey(o)}, Network: f.External, Address: f.Address, Target: f.Target,
	})
	switch {
	case err == nil:
		last.ID = made.ID
	case sdn.ReasonOf(err) == sdn.AddressInUse:
		err = api.RefuseFor(err, "option %s: address %s is in use", api.OptFloatingIP, f.Asked)
	case sdn.IsDenied(err) && f.Asked != api.FloatingAuto:
		err = api.RefuseFor(err, "option %s: the SDN does not let Kuryr choose a floating IP's address: let "+
			"an administrator make it, and give its id", api.OptFloatingIP)
	}
	return last, identity.Outcome(err, false)
}

// lead leads an existing floating IP to the port, unless it leads to another.
func (t floatTarget) lead(ctx context.Context, f FloatingSpec) error {
	now, err := t.SDN.FloatingIP(ctx, f.Existing)
	if err != nil || now.Target == f.Target {
		return err
	}
	if now.Target.Port != "" && now.Target.Port != f.Target.Port {
		return floatingInUse(now.Address)
	}
	patch := sdn.FloatingIPPatch{Patch: sdn.Patch{IfRevision: now.Revision}, Target: &f.Target}
	_, err = t.SDN.UpdateFloatingIP(ctx, f.Existing, patch)
	if sdn.ReasonOf(err) == sdn.Stale {
		return api.RefuseFor(err, "option %s: floating IP %s was taken by another", api.OptFloatingIP, now.Address)
	}
	return err
}

// Delete implements reconcile.Target. An own floating IP is deleted, an existing one leads nowhere
// again. What the row has decides, as in publicationTarget.Delete.
func (t floatTarget) Delete(
	ctx context.Context, o reconcile.Object, f FloatingSpec, last FloatingLast,
) error {
	if f.Asked == "" {
		if err := t.SDN.Ping(ctx); err != nil {
			return err
		}
		if !t.SDN.Capabilities().FloatingIPs {
			return reconcile.ErrAbsent
		}
		port, found, err := t.LookUp(ctx, o.Key)
		if err != nil {
			return err
		}
		if found {
			return t.deleteUnknown(ctx, o, port)
		}
	}
	switch {
	case f.Existing != "":
		return absent(t.letGo(ctx, f))
	case last.ID != "":
		return absent(t.SDN.DeleteFloatingIP(ctx, last.ID))
	}
	return absent(t.deleteOwnFloatingIP(ctx, t.floatingKey(o)))
}

// letGo ends what lead did.
func (t floatTarget) letGo(ctx context.Context, f FloatingSpec) error {
	now, err := t.SDN.FloatingIP(ctx, f.Existing)
	if err != nil || now.Target.Port != f.Target.Port {
		return identity.IgnoreAbsent(err)
	}
	patch := sdn.FloatingIPPatch{Patch: sdn.Patch{IfRevision: now.Revision}, Target: &sdn.Target{}}
	_, err = t.SDN.UpdateFloatingIP(ctx, f.Existing, patch)
	return identity.IgnoreAbsent(err)
}

// deleteUnknown deletes the floating IP of an endpoint without a row. Its port's tag names it.
func (t floatTarget) deleteUnknown(ctx context.Context, o reconcile.Object, port sdn.Port) error {
	asked := firstValue(port.Tags, identity.TagFloating)
	if asked == "" || port.Host != t.Host {
		return reconcile.ErrAbsent
	}
	found, err := sdn.All(t.SDN.FindFloatingIPs(ctx, sdn.FloatingIPQuery{Ports: []sdn.ID{port.ID}}))
	if err != nil {
		return err
	}
	for _, f := range found {
		switch {
		case f.Key == t.floatingKey(o):
			err = t.SDN.DeleteFloatingIP(ctx, f.ID)
		case f.Key.IsZero() && (asked == string(f.ID) || asked == f.Address.String()):
			err = t.letGo(ctx, FloatingSpec{Existing: f.ID, Target: f.Target})
		}
		if identity.IgnoreAbsent(err) != nil {
			return err
		}
	}
	return nil
}

// checkFloating refuses a floating IP that the endpoint cannot have, before anything is made. It
// returns the option, or "" if the floating IP leads to the port already: then it is left alone.
func (s *Service) checkFloating(ctx context.Context, ports []ipam.Held, asked string) (string, error) {
	if can := s.SDN.Capabilities(); !can.FloatingIPs || !can.Routers {
		return "", api.Refuse("option %s: this SDN has no floating IPs", api.OptFloatingIP)
	}
	if asked == api.FloatingAuto {
		return asked, nil
	}
	leadsTo := func(f sdn.FloatingIP) int {
		return slices.IndexFunc(ports, func(h ipam.Held) bool { return h.Port.ID == f.Target.Port })
	}
	found, err := s.floatingIP(ctx, asked, func(f sdn.FloatingIP) bool { return leadsTo(f) >= 0 })
	switch {
	case err != nil:
		return "", err
	case found == nil || found.Target.Port == "" && found.Key.IsZero():
		return asked, nil
	}
	at := leadsTo(*found)
	if at < 0 {
		return "", floatingInUse(found.Address)
	}
	if found.Key.IsZero() && !slices.Contains(ports[at].Port.Tags, identity.TagFloating+asked) {
		return "", nil
	}
	return asked, nil
}

// chooseFloatingIP returns the existing floating IP that an option means, which must be free, or "" and
// the address of an own one; invalid: any. Of several with the address it chooses the one that is
// meant.
func (s *Service) chooseFloatingIP(
	ctx context.Context, asked string, meant, free, own func(sdn.FloatingIP) bool,
) (existing sdn.ID, at netip.Addr, err error) {
	if asked == "" || asked == api.FloatingAuto {
		return "", at, nil
	}
	found, err := s.floatingIP(ctx, asked, meant)
	switch {
	case err != nil:
		return "", at, err
	case found == nil:
		at, _ = netip.ParseAddr(asked)
		return "", at, nil
	case found.Key.IsZero() && free(*found):
		return found.ID, found.Address, nil
	case !own(*found):
		return "", at, floatingInUse(found.Address)
	}
	return "", found.Address, nil
}

func floatingInUse(a netip.Addr) error {
	return api.Refuse("option %s: floating IP %s is in use", api.OptFloatingIP, a)
}

// floatingIP returns the floating IP that an address or an id means, nil if none has the address.
// External networks with overlapping ranges may have several with an address. Then the one is meant
// for which has is true, and without exactly one there is a refusal.
func (s *Service) floatingIP(
	ctx context.Context, asked string, has func(sdn.FloatingIP) bool,
) (*sdn.FloatingIP, error) {
	found, err := s.floatingIPs(ctx, asked)
	_, notAddress := netip.ParseAddr(asked)
	switch {
	case err == nil && len(found) == 1:
		return &found[0], nil
	case err == nil && len(found) == 0 && notAddress != nil:
		return nil, api.Refuse("option %s: there is no floating IP %s", api.OptFloatingIP, asked)
	case err != nil || len(found) == 0:
		return nil, err
	}
	if i := slices.IndexFunc(found, has); i >= 0 && !slices.ContainsFunc(found[i+1:], has) {
		return &found[i], nil
	}
	return nil, api.Refuse("option %s: several floating IPs have the address %s, such as %s and %s: give the "+
		"id of the one that is meant", api.OptFloatingIP, asked, found[0].ID, found[1].ID)
}

// floatingIPs returns all floating IPs that an address or an id means.
func (s *Service) floatingIPs(ctx context.Context, asked string) ([]sdn.FloatingIP, error) {
	query := sdn.FloatingIPQuery{Match: sdn.Match{IDs: []sdn.ID{sdn.ID(asked)}}}
	if address, err := netip.ParseAddr(asked); err == nil {
		query = sdn.FloatingIPQuery{Addresses: []netip.Addr{address}}
	}
	return sdn.All(s.SDN.FindFloatingIPs(ctx, query))
}

// externalOf returns the external network that the router of an address leads to.
func (s *Service) externalOf(ctx context.Context, port sdn.Port, target sdn.Target) (sdn.ID, error) {
	for _, a := range port.Addresses {
		if a.Addr != target.Addr {
			continue
		}
		for router, err := range s.SDN.FindRouters(ctx, sdn.RouterQuery{Subnets: []sdn.ID{a.Subnet}}) {
			if err != nil {
				return "", err
			}
			if router.Gateway != nil && router.Gateway.Network != "" {
				return router.Gateway.Network, nil
			}
		}
	}
	return "", api.Refuse("option %s: no router leads from the network to the outside", api.OptFloatingIP)
}

// existingForwarder returns the existing floating IP that may forward to a port, by its tags; "" if
// there is none. Of several that have the address it is the one that does.
func (s *Service) existingForwarder(ctx context.Context, port sdn.Port) (sdn.ID, error) {
	asked := firstValue(port.Tags, identity.TagPublishAt)
	if asked == "" {
		return "", nil
	}
	found, err := s.floatingIPs(ctx, asked)
	if err != nil {
		return "", err
	}
	found = slices.DeleteFunc(found, func(f sdn.FloatingIP) bool { return !f.Key.IsZero() })
	if len(found) == 1 {
		return found[0].ID, nil
	}
	for _, f := range found {
		query := sdn.ForwardQuery{FloatingIPs: []sdn.ID{f.ID}, Ports: []sdn.ID{port.ID}}
		if _, forwards, err := sdn.First(s.SDN.FindForwards(ctx, query)); err != nil || forwards {
			return f.ID, err
		}
	}
	return "", nil
}

// deleteOwnFloatingIP deletes the floating IP with a Key. It returns reconcile.ErrAbsent if there is
// none.
func (s *Service) deleteOwnFloatingIP(ctx context.Context, key sdn.Key) error {
	found, ok, err := sdn.First(s.SDN.FindFloatingIPs(ctx, sdn.FloatingIPQuery{Match: identity.ByKey(key)}))
	if err != nil {
		return err
	}
	if !ok {
		return reconcile.ErrAbsent
	}
	return identity.IgnoreAbsent(s.SDN.DeleteFloatingIP(ctx, found.ID))
}
