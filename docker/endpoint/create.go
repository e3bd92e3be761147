package endpoint

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/docker/ipam"
	"github.com/kuryr/kuryr/docker/network"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/sdn"
)

// Create answers CreateEndpoint: it binds the port that has the addresses to the endpoint and to
// this host. If another IPAM driver chose the addresses, there is none, and it makes one.
func (s *Service) Create(ctx context.Context, r *api.CreateEndpointRequest) (api.CreateEndpointResponse, error) {
	var none api.CreateEndpointResponse
	if had, ok := s.endpoints.Get(r.EndpointID); ok && had.Phase == reconcile.Deleting {
		if err := s.endpoints.Remove(ctx, r.EndpointID); err != nil {
			return none, err
		}
	}
	n, err := s.Networks.Find(ctx, r.NetworkID)
	if err != nil {
		return none, err
	}
	spec, err := s.resolve(ctx, n, r)
	if err != nil {
		return none, err
	}
	ports, err := s.usable(ctx, n, r)
	if err != nil {
		return none, err
	}
	if spec.Floating != "" {
		if spec.Floating, err = s.checkFloating(ctx, ports, spec.Floating); err != nil {
			return none, err
		}
	}
	port, err := s.choose(ctx, ports, r)
	if err != nil {
		return none, err
	}
	last, err := s.set(ctx, n, r, spec, port)
	for i := 0; err != nil && i < 2; i++ { // a MAC, and a port of this endpoint
		freed, failed := s.makeRoom(ctx, n, r, port, sdn.ReasonOf(err))
		if failed != nil {
			return none, failed
		}
		if !freed {
			break
		}
		last, err = s.set(ctx, n, r, spec, port)
	}
	if err != nil {
		return none, err
	}
	return api.CreateEndpointResponse{Interface: ungiven(last.Port, n.Subnets, r)}, nil
}

// usable returns the ports that have the addresses of a request, or that its option names. It
// deletes endpoints that the engine no longer has, and that have ports of their own with the
// addresses: of the releases of another IPAM driver Kuryr does not hear.
func (s *Service) usable(ctx context.Context, n network.View, r *api.CreateEndpointRequest) ([]ipam.Held, error) {
	for deleted := false; ; deleted = true {
		ports, err := s.requested(ctx, n, r)
		if err != nil {
			return nil, err
		}
		stale, err := s.checkPorts(ports, r)
		if len(stale) == 0 || deleted || err != nil {
			return ports, err
		}
		for _, p := range stale {
			used, err := s.dropUnused(ctx, identity.EndpointOf(p), p)
			if err != nil {
				return nil, err
			}
			if used {
				return nil, s.refuse(p, r, identity.InUse(p))
			}
		}
	}
}

// refuse notes that a request is refused because another has a port: the engine releases the
// addresses of the request next, which must not release those of the port. It returns the refusal.
func (s *Service) refuse(p sdn.Port, r *api.CreateEndpointRequest, refusal error) error {
	if s.Refused != nil {
		s.Refused(p.ID, r.Addresses)
	}
	return refusal
}

func (s *Service) requested(ctx context.Context, n network.View, r *api.CreateEndpointRequest) ([]ipam.Held, error) {
	o := r.Options
	if o.Port == "" {
		return s.Addresses.At(ctx, n.Subnets, r.Addresses)
	}
	port, err := s.SDN.Port(ctx, o.Port)
	switch {
	case sdn.IsNotFound(err):
		return nil, api.Refuse("option %s: there is no port %s", o.PortOption, api.Clip(string(o.Port), 60))
	case err != nil:
		return nil, err
	case port.Network != n.ID:
		return nil, api.Refuse("option %s: port %s is not of network %s", o.PortOption, port.ID, r.NetworkID)
	}
	for _, a := range r.Addresses {
		if !identity.HasAddress(port, a.Addr()) {
			return nil, api.Refuse("option %s: port %s has %s, not %s: give the container its addresses by "+
				"--ip and --ip6", o.PortOption, port.ID, identity.Addresses(port), a.Addr())
		}
	}
	return []ipam.Held{{Port: port, Existing: !s.IsOwn(port)}}, nil
}

// checkPorts refuses ports that the endpoint cannot have. It returns those of endpoints that may
// be deleted.
func (s *Service) checkPorts(ports []ipam.Held, r *api.CreateEndpointRequest) (stale []sdn.Port, err error) {
	for _, held := range ports {
		p := held.Port
		switch {
		case held.Existing:
			if other, ok := s.endpoints.Get(identity.EndpointOf(p)); ok && other.Key != r.EndpointID && !isStarting(other) {
				stale = append(stale, p)
				continue
			}
			if err := identity.Usable(p, s.Host, r.EndpointID); err != nil {
				return nil, s.refuse(p, r, err)
			}
		case identity.Elsewhere(p, s.Host):
			return nil, s.refuse(p, r, api.Refuse("address %s is in use: its port is bound to host %s",
				identity.Addresses(p), api.Clip(p.Host, 100)))
		case p.DeviceID == "" || p.DeviceID == r.EndpointID:
		case p.Key.Kind == identity.KindEndpoint && p.Host == s.Host:
			if other, ok := s.endpoints.Get(p.DeviceID); ok && isStarting(other) {
				return nil, s.refuse(p, r, identity.InUse(p))
			}
			stale = append(stale, p)
		default:
			return nil, s.refuse(p, r, identity.InUse(p))
		}
	}
	return stale, nil
}

// choose returns the port of the endpoint: one of those that were requested, or all of them as
// one. The zero Held is none.
func (s *Service) choose(ctx context.Context, ports []ipam.Held, r *api.CreateEndpointRequest) (ipam.Held, error) {
	if len(ports) == 0 {
		return ipam.Held{}, nil
	}
	if len(ports) == 1 {
		return ports[0], nil
	}
	if i := slices.IndexFunc(ports, func(h ipam.Held) bool { return h.Existing }); i >= 0 {
		p := ports[i].Port
		return ipam.Held{}, api.Refuse("the addresses are of several ports, of which %s is not Kuryr's: give "+
			"all that are wanted of it by --ip and --ip6, or its MAC by --mac-address: it has %s",
			p.ID, identity.Addresses(p))
	}
	// A port that the endpoint has already is the one that stays.
	if i := slices.IndexFunc(ports, func(h ipam.Held) bool { return h.Port.DeviceID == r.EndpointID }); i > 0 {
		ports[0], ports[i] = ports[i], ports[0]
	}
	return s.Addresses.Merge(ctx, ports)
}

func (s *Service) set(
	ctx context.Context, n network.View, r *api.CreateEndpointRequest, spec Spec, port ipam.Held,
) (Last, error) {
	q := reconcile.Request[Spec]{Key: r.EndpointID, Owners: owners(n.Ref, port.Ref)}
	switch {
	case port.Port.ID == "":
		q.Claims = ownClaims(n, r)
		if len(n.Subnets) == 0 && len(r.Addresses) > 0 {
			return Last{}, api.Refuse("network %s has no range that %s is in", r.NetworkID, r.Addresses[0].Addr())
		}
	case port.Port.Key.Kind == identity.KindEndpoint && port.Port.DeviceID == r.EndpointID:
		q.Claims = ownClaims(n, r) // a repeat of the call
	default:
		spec.Port, spec.Existing = port.Port.ID, port.Existing
		spec.Address, spec.Shared = port.Ref, port.Shared
		q.Claims = []string{boundTo(port.Port.ID)}
	}
	if port.Existing {
		if err := s.checkAttach(port.Port, r); err != nil {
			return Last{}, err
		}
	}
	q.Spec = spec
	// The target need not read the port. The revision in it guards the change.
	last, err := s.endpoints.Set(context.WithValue(ctx, known{}, port.Port), q)
	switch {
	case !reconcile.IsConflict(err) && !reconcile.IsOwnerGone(err):
		return last, err
	case port.Port.ID == "":
		return last, s.conflict(err, r)
	}
	return last, s.refuse(port.Port, r, s.conflict(err, r))
}

// makeRoom frees what the SDN says is in use, and reports whether it did: the MAC of a port that no
// endpoint uses, or the port that an earlier call for the same endpoint asked for in vain, and that the
// SDN has made just now.
func (s *Service) makeRoom(
	ctx context.Context, n network.View, r *api.CreateEndpointRequest, port ipam.Held, taken sdn.Reason,
) (bool, error) {
	if taken == sdn.MACInUse && s.YieldMAC != nil {
		if yielded, err := s.YieldMAC(ctx, n.ID, r.MAC); yielded || err != nil {
			return yielded, err
		}
	}
	if port.Port.ID != "" || taken != sdn.MACInUse && taken != sdn.AddressInUse {
		return false, nil
	}
	ports, err := s.requested(ctx, n, r)
	if err != nil {
		return false, err
	}
	for _, h := range ports {
		if !h.Existing && h.Port.Key.Kind == identity.KindEndpoint && h.Port.DeviceID == r.EndpointID {
			return true, s.SDN.DeletePorts(ctx, []sdn.ID{h.Port.ID})
		}
	}
	return false, nil
}

func owners(refs ...string) []string {
	return slices.DeleteFunc(refs, func(ref string) bool { return ref == "" })
}

// The prefixes of claims.
const (
	claimBound = "bound/"
	claimMAC   = "mac/"
)

// boundTo is the claim on a port.
func boundTo(port sdn.ID) string { return claimBound + string(port) }

// ownClaims are the resources of an endpoint with a port of its own.
func ownClaims(n network.View, r *api.CreateEndpointRequest) []string {
	var claims []string
	if r.MAC != nil {
		claims = append(claims, claimMAC+string(n.ID)+"/"+r.MAC.String())
	}
	for _, a := range r.Addresses {
		claims = append(claims, "address/"+string(n.ID)+"/"+a.Addr().String())
	}
	return claims
}

func (s *Service) conflict(err error, r *api.CreateEndpointRequest) error {
	held, isConflict := errors.AsType[*reconcile.ConflictError](err)
	switch {
	case !isConflict:
		return api.RefuseFor(err, "the network or the address of the endpoint is being deleted")
	case strings.HasPrefix(held.Resource, claimBound):
		return api.RefuseFor(err, "port %s is in use by another endpoint", strings.TrimPrefix(held.Resource, claimBound))
	case strings.HasPrefix(held.Resource, claimMAC):
		return api.RefuseFor(err, "MAC %s is in use by another endpoint of the network", r.MAC)
	}
	var list sdn.Port
	for _, a := range r.Addresses {
		list.Addresses = append(list.Addresses, sdn.Address{Addr: a.Addr()})
	}
	return api.RefuseFor(err, "address %s is in use by another endpoint", identity.Addresses(list))
}

// explain puts an error of an endpoint's parts, which only a deletion can be in the way of, into
// words.
func explain(id string, err error) error {
	var (
		refused *api.Refusal
		plug    *PlugError
		fromSDN *sdn.Error
	)
	switch {
	case errors.As(err, &refused), errors.As(err, &plug), errors.As(err, &fromSDN),
		errors.Is(err, context.DeadlineExceeded):
		return err
	case reconcile.IsOwnerGone(err):
		return api.RefuseFor(err, "endpoint %s is being deleted", id)
	case reconcile.IsPending(err):
		return api.RefuseFor(err, "an earlier cleanup of endpoint %s is not complete", id)
	}
	return err
}

// ungiven returns what the engine left open of the interface. Without an IPAM driver it gives no
// addresses, and the container gets those of its port.
func ungiven(port sdn.Port, subnets []sdn.Subnet, r *api.CreateEndpointRequest) api.EndpointInterface {
	var i api.EndpointInterface
	if !r.MACGiven {
		i.MacAddress = port.MAC.String()
	}
	if len(r.Addresses) > 0 {
		return i
	}
	for _, a := range port.Addresses {
		at := slices.IndexFunc(subnets, func(s sdn.Subnet) bool { return s.ID == a.Subnet })
		if at < 0 {
			continue
		}
		field := &i.Address
		if a.Addr.Is6() {
			field = &i.AddressIPv6
		}
		if *field == "" {
			*field = netip.PrefixFrom(a.Addr, subnets[at].CIDR.Bits()).String()
		}
	}
	return i
}

// checkAttach refuses what cannot be done to an existing port, before anything is changed.
func (s *Service) checkAttach(port sdn.Port, r *api.CreateEndpointRequest) error {
	if option := changesPort(r.Options); option != "" {
		return api.Refuse("port %s is not Kuryr's and stays as its user made it: leave out %s", port.ID, option)
	}
	can := s.SDN.Capabilities()
	if port.Host == "" && !can.HostBinding {
		return s.unbindable(port, nil)
	}
	if r.MAC != nil && !bytes.Equal(r.MAC, port.MAC) && (!can.ChooseMAC || port.Host != "") {
		return fixedMAC(port, nil)
	}
	return nil
}

// changesPort returns an option that changes more of a port than its owner; "" if there is none.
func changesPort(o api.EndpointOptions) string {
	switch {
	case o.Groups != nil:
		return api.OptGroups
	case o.QoSPolicy != "":
		return api.OptQoSPolicy
	case o.NoPortSecurity != nil:
		return api.OptPortSecurity
	case o.Allowed != nil:
		return api.OptAllowed
	}
	return ""
}

// resolve returns the spec of a request, with the objects of the SDN that its options name. The
// security groups and the way to publish are those of the network if the request has none.
func (s *Service) resolve(ctx context.Context, n network.View, r *api.CreateEndpointRequest) (Spec, error) {
	o := r.Options
	e := Spec{
		Network: r.NetworkID, SDNNetwork: n.ID, Addresses: r.Addresses,
		Subnets: lasting(n.Subnets), MTU: n.MTU, Internal: !n.Options.Routed(),
		Ifname: o.Ifname, Allowed: o.Allowed, Floating: o.FloatingIP, Publish: o.Publish,
		Exposed: o.Exposed, Binding: n.Options.HostBinding, MAC: r.MAC.String(), Started: startTime(),
	}
	if had, ok := s.endpoints.Get(r.EndpointID); ok && had.Phase == reconcile.Wanted {
		e.Started = had.Spec.Started
	}
	if len(e.Exposed) == 0 {
		e.Exposed = nil
	}
	if e.Publish == "" {
		e.Publish = n.Options.Publish
	}
	unguarded := n.NoPortSecurity
	if o.NoPortSecurity != nil {
		unguarded = *o.NoPortSecurity
		guarded := !unguarded
		e.Guarded = &guarded
		e.NoGroups = unguarded && s.SDN.Capabilities().SecurityGroups
	}
	if err := s.check(n, e); err != nil {
		return e, err
	}
	names, option := o.Groups, "option "+api.OptGroups
	if names == nil && o.Port == "" && !unguarded {
		names, option = n.Options.Groups, "option "+api.OptGroups+" of the network"
	}
	var err error
	if e.Groups, err = network.Groups(ctx, s.SDN, names, n.Project, option); err != nil {
		return e, err
	}
	if o.QoSPolicy != "" {
		e.Policy, err = network.Policy(ctx, s.SDN, o.QoSPolicy, n.Project, "option "+api.OptQoSPolicy)
	}
	return e, err
}

// check refuses addresses without the prefix lengths of their subnets: a container would take strangers
// for neighbours, or neighbours for strangers. It refuses options that are kept in tags, on an SDN
// without tags. The default way to publish needs none.
func (s *Service) check(n network.View, e Spec) error {
	for _, a := range e.Addresses {
		at := slices.IndexFunc(n.Subnets, func(s sdn.Subnet) bool { return s.CIDR.Contains(a.Addr()) })
		if at < 0 || n.Subnets[at].CIDR.Bits() == a.Bits() {
			continue
		}
		field := "Interface.Address"
		if a.Addr().Is6() {
			field = "Interface.AddressIPv6"
		}
		return api.Refuse("%s: %s must have the prefix length of its subnet %s", field, a, n.Subnets[at].CIDR)
	}
	if s.SDN.Capabilities().HasTags() {
		return nil
	}
	o := e.options()
	if o.Publish == api.PublishProxy {
		o.Publish = ""
	}
	return identity.CheckStored(identity.EndpointOptionTags(o), nil)
}

// lasting returns subnets without what changes while they are used.
func lasting(subnets []sdn.Subnet) []sdn.Subnet {
	var list []sdn.Subnet
	for _, s := range subnets {
		s.Meta = sdn.Meta{ID: s.ID}
		list = append(list, s)
	}
	return list
}
