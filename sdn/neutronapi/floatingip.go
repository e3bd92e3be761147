package neutronapi

import (
	"context"
	"errors"
	"iter"
	"net/http"
	"net/netip"
	"strings"

	"github.com/kuryr/kuryr/sdn"
)

func floatingIPQuery(f *filter) sdn.FloatingIPQuery {
	return sdn.FloatingIPQuery{
		Match: f.match(), Networks: f.ids("floating_network_id"), Addresses: f.addrs("floating_ip_address"), Ports: f.ids("port_id"), Routers: f.ids("router_id"),
	}
}

func (s *server) floatingIPs() tableOf[sdn.FloatingIP] {
	type N = sdn.FloatingIP
	type S = sdn.FloatingIPSpec
	type P = sdn.FloatingIPPatch
	remove, removeIf := s.checked(sdn.NounFloatingIP, s.checkNoForwards, s.p.DeleteFloatingIP)
	t := &table{
		member: "floatingip", collection: "floatingips", title: "floating IP",
		meta: via(func(n *N) sdn.Meta { return n.Meta }), shows: neutronMeta, tags: true,
		base: via(func(x *S) *sdn.Base { return &x.Base }), patch: via(func(p *P) *sdn.Patch { return &p.Patch }),
		fields: []field{
			{name: "floating_network_id", is: isID, access: required, show: via(func(n *N) any { return string(n.Network) }),
				post: set(func(x *S) *sdn.ID { return &x.Network })},
			{name: "floating_ip_address", is: isAddr, access: adminPost, show: via(func(n *N) any { return n.Address.String() }),
				post: set(func(x *S) *netip.Addr { return &x.Address })},
			{name: "subnet_id", is: isID, post: set(func(x *S) *sdn.ID { return &x.Subnet })},
			{name: "port_id", access: hooked, show: via(func(n *N) any { return some(string(n.Target.Port)) })},
			{name: "fixed_ip_address", access: hooked, show: via(func(n *N) any { return optionalAddr(n.Target.Addr) })},
			{name: "router_id", show: via(func(n *N) any { return some(string(n.Router)) })},
			{name: "status", show: via(func(n *N) any {
				if n.Target.Port == "" {
					return string(sdn.PortDown)
				}
				return active
			})},
			// The floating IP stands for an address of the host, see sdn.FloatingIPSpec.
			{name: "kuryr:of_host", is: isBool, access: adminPost, post: set(func(x *S) *bool { return &x.OfHost })},
		},
		get: getCall{made[N], func(ctx context.Context, id sdn.ID) (any, error) { return pointer(s.p.FloatingIP(ctx, id)) }},
		find: func(ctx context.Context, f *filter) iter.Seq2[any, error] {
			return pointers(s.p.FindFloatingIPs(ctx, floatingIPQuery(f)))
		},
		beforePost: hook(func(_ *call, b *body, _ *S) { b.null("floating_ip_address") }),
		checkPost:  hook(s.checkFloatingIP),
		checkPut:   hookOn(func(c *call, b *body, _ *N, p *P) { p.Target = s.target(c, b) }),
		create:     createCall{made[S], func(ctx context.Context, x any) (any, error) { return pointer(s.createFloatingIP(ctx, *x.(*S))) }},
		update: updateCall{made[P], func(ctx context.Context, id sdn.ID, p any) (any, error) {
			return pointer(s.updateFloatingIP(ctx, id, *p.(*P)))
		}},
		remove:   remove,
		removeIf: removeIf,
	}
	return tableOf[N]{t}
}

func (s *server) checkFloatingIP(c *call, b *body, spec *sdn.FloatingIPSpec) {
	spec.Target = or(s.target(c, b))
	if b.err != nil {
		return
	}
	switch n, err := s.networks().need(c, spec.Network); {
	case err != nil:
		b.fail(err)
	case !n.External:
		b.fail(badOf("floatingip", "Network %s is not a valid external network", n.ID))
	}
}

// target reads where a floating IP is to lead: nil where nothing is said, the zero one for nowhere. The port must be one that the caller sees, and of one that
// has several addresses it must be said which.
func (s *server) target(c *call, b *body) *sdn.Target {
	said := b.has("port_id")
	target := sdn.Target{Port: or(b.id("port_id"))}
	if !b.null("fixed_ip_address") {
		target.Addr = or(b.addr("fixed_ip_address"))
	}
	switch {
	case b.err != nil:
		return nil
	case target.Port == "" && target.Addr.IsValid():
		b.fail(badOf("floatingip", "fixed_ip_address cannot be specified without a port_id"))
		return nil
	case target.Port == "" && said:
		return &target
	case target.Port == "":
		return nil
	}
	port, err := s.ports().need(c, target.Port)
	if err != nil {
		b.fail(err)
		return nil
	}
	if !c.owns(port.Meta) {
		b.fail(badOf("floatingip", "Cannot process floating IP association with Port %s, since that port is owned by a different tenant", port.ID))
	}
	has, several := false, 0
	for _, a := range port.Addresses {
		has = has || a.Addr == target.Addr
		if a.Addr.Is4() {
			several++
		}
	}
	switch {
	case target.Addr.IsValid() && !has:
		b.fail(badOf("floatingip", "Port %s does not have fixed ip %s", port.ID, target.Addr))
	case !target.Addr.IsValid() && several > 1:
		b.fail(badOf("floatingip", "Port %s has multiple fixed IPv4 addresses.  Must provide a specific IPv4 address when assigning a floating IP", port.ID))
	}
	return &target
}

func (s *server) createFloatingIP(ctx context.Context, spec sdn.FloatingIPSpec) (sdn.FloatingIP, error) {
	if spec.Subnet != "" {
		if err := s.checkSubnetOf(ctx, spec); err != nil {
			return sdn.FloatingIP{}, err
		}
	}
	f, err := s.p.EnsureFloatingIP(ctx, spec)
	return f, unreachable(err, spec.Target)
}

// checkSubnetOf refuses a subnet that a floating IP cannot be of, in Neutron's words.
func (s *server) checkSubnetOf(ctx context.Context, spec sdn.FloatingIPSpec) error {
	subnet, err := s.p.Subnet(ctx, spec.Subnet)
	switch {
	case err != nil:
		return err
	case subnet.Network != spec.Network:
		return invalidInput("Failed to create port on network %s, because fixed_ips included invalid subnet %s", spec.Network, spec.Subnet)
	case spec.Address.IsValid() && !subnet.CIDR.Contains(spec.Address):
		return refuse(http.StatusBadRequest, "InvalidIpForSubnet", "IP address %s is not a valid IP for the specified subnet.", spec.Address)
	}
	return nil
}

func (s *server) updateFloatingIP(ctx context.Context, id sdn.ID, p sdn.FloatingIPPatch) (sdn.FloatingIP, error) {
	f, err := s.p.UpdateFloatingIP(ctx, id, p)
	if p.Target == nil {
		return f, err
	}
	var e *sdn.Error
	if errors.As(err, &e) && e.Reason == sdn.InUse {
		err = errForwards(id)
	}
	return f, unreachable(err, *p.Target)
}

// checkNoForwards refuses to delete a floating IP that has forwardings, as Neutron does.
func (s *server) checkNoForwards(ctx context.Context, id sdn.ID) error {
	_, forwards, err := sdn.First(s.p.FindForwards(ctx, sdn.ForwardQuery{FloatingIPs: []sdn.ID{id}}))
	switch {
	case err != nil && !sdn.IsUnsupported(err):
		return err
	case forwards:
		return errForwards(id)
	}
	return nil
}

func errForwards(id sdn.ID) error {
	return refuse(http.StatusConflict, "FipInUseByPortForwarding", "Floating IP %s in use by Port Forwarding resources.", id)
}

// unreachable says in Neutron's words that a floating IP cannot lead to where it is to.
func unreachable(err error, target sdn.Target) error {
	var e *sdn.Error
	switch {
	case !errors.As(err, &e):
	case e.Kind == sdn.KindInvalid && strings.HasPrefix(e.Field, "target"):
		return badOf("floatingip", "Cannot add floating IP to port %s: %s", target.Port, e.Detail)
	case e.Kind == sdn.KindNotFound && e.Noun == "router":
		return refuse(http.StatusNotFound, "ExternalGatewayForFloatingIPNotFound",
			"The external network is not reachable from the subnet of the port.  Therefore, cannot associate Port %s with a Floating IP.", target.Port)
	}
	return err
}
