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

// checkFloating refuses a floating IP that the endpoint cannot have, before anything is made. It
// returns the option, or "" if the floating IP leads to the port already: then it is left alone.
func (s *Service) checkFloating(ctx context.Context, ports []ipam.Held, o api.EndpointOptions) (string, error) {
	asked := o.FloatingIP
	if asked == "" {
		return "", nil
	}
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
	case err != nil:
		return nil, err
	case len(found) == 0 && notAddress != nil:
		return nil, api.Refuse("option %s: there is no floating IP %s", api.OptFloatingIP, asked)
	case len(found) == 0:
		return nil, nil
	case len(found) == 1:
		return &found[0], nil
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
	query := sdn.FloatingIPQuery{Match: sdn.Match{Keys: []sdn.Key{key}}}
	found, ok, err := sdn.First(s.SDN.FindFloatingIPs(ctx, query))
	if err != nil {
		return err
	}
	if !ok {
		return reconcile.ErrAbsent
	}
	return identity.IgnoreAbsent(s.SDN.DeleteFloatingIP(ctx, found.ID))
}
