package endpoint

import (
	"context"
	"net/netip"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/docker/identity"
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
	Address  netip.Addr `json:",omitzero"`  // of an own one; invalid: any
}

// FloatingLast is what became of it.
type FloatingLast struct {
	ID sdn.ID `json:",omitempty"` // of an own one
}

// float gives an endpoint the floating IP that it was asked to have.
func (s *Service) float(ctx context.Context, id string, row endpointRow) error {
	asked := row.Spec.Floating
	if asked == "" || row.Spec.Publish == api.PublishFloatingIP {
		return nil
	}
	spec, err := s.floatingSpec(ctx, row.Last.Port, asked)
	if err != nil {
		return err
	}
	_, err = s.floating.Set(ctx, reconcile.Request[FloatingSpec]{
		Key: id, Spec: spec, Owners: s.plugOwners(id),
	})
	return explain(id, err)
}

// floatingSpec finds what the option means.
func (s *Service) floatingSpec(ctx context.Context, port sdn.Port, asked string) (FloatingSpec, error) {
	spec := FloatingSpec{Asked: asked}
	var ok bool
	if spec.Target, ok = floatingTarget(port.ID, port.Addresses, asked); !ok {
		return spec, api.Refuse("option %s: the endpoint has no address that %s can lead to",
			api.OptFloatingIP, asked)
	}
	leadsTo := func(f sdn.FloatingIP) bool { return f.Target.Port == port.ID }
	free := func(f sdn.FloatingIP) bool { return f.Target.Port == "" || leadsTo(f) }
	own := func(f sdn.FloatingIP) bool { return s.Names.Ours(f.Meta, identity.KindFloating) && free(f) }
	existing, at, err := s.chooseFloatingIP(ctx, asked, leadsTo, free, own)
	if err != nil || existing != "" {
		spec.Existing = existing
		return spec, err
	}
	spec.Address = at
	spec.External, err = s.externalOf(ctx, port, spec.Target)
	return spec, err
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

// floatTarget gives floating IPs to endpoints.
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
	query := sdn.FloatingIPQuery{Ports: []sdn.ID{port.ID}}
	found, err := sdn.All(t.SDN.FindFloatingIPs(ctx, query))
	if err != nil {
		return err
	}
	own := t.floatingKey(o)
	for _, f := range found {
		switch {
		case f.Key == own:
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
