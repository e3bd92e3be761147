package neutronapi

import (
	"context"
	"errors"
	"iter"
	"net/http"
	"net/netip"
	"strconv"
	"strings"

	"github.com/kuryr/kuryr/internal/ipproto"
	"github.com/kuryr/kuryr/sdn"
)

// mostForwarded is how many ports one port forwarding may have that is no administrator's: each is an entry of its own in the store and the kernel, and all others
// wait while they are written.
const mostForwarded = 4096

// serveForwards adds the port forwardings of floating IPs.
func (s *server) serveForwards() {
	s.serveWithin("/v2.0/floatingips/{floatingip}/port_forwardings", func(c *call) (*resource, error) {
		if !s.p.Capabilities().Forwards {
			return nil, noPath(nil, nil)
		}
		get := s.floatingIPs().own
		if c.reads() {
			get = s.floatingIPs().need
		}
		f, err := get(c, sdn.ID(c.PathValue("floatingip")))
		return s.forwards(f).resource(), err
	}, nil)
}

// forwards are the port forwardings of a floating IP. A change is the forwarding that is to be.
func (s *server) forwards(fip sdn.FloatingIP) tableOf[sdn.Forward] {
	type F = sdn.Forward
	all := func(ctx context.Context, ports []sdn.ID) iter.Seq2[F, error] {
		return s.p.FindForwards(ctx, sdn.ForwardQuery{FloatingIPs: []sdn.ID{fip.ID}, Ports: ports})
	}
	t := &table{
		member: "port_forwarding", collection: "port_forwardings", title: "port forwarding",
		meta:   via(func(f *F) sdn.Meta { return sdn.Meta{ID: f.ID, Base: sdn.Base{Project: fip.Project}} }),
		fields: forwardFields,
		get: got(func(ctx context.Context, id sdn.ID) (F, error) {
			for f, err := range all(ctx, nil) {
				if err != nil || f.ID == id {
					return f, err
				}
			}
			return F{}, sdn.NotFound("port forwarding", id)
		}),
		find: func(ctx context.Context, f *filter) iter.Seq2[any, error] {
			f.named = true
			return pointers(all(ctx, f.ids("internal_port_id")))
		},
		checkPost: hook(func(c *call, b *body, f *F) {
			b.project()
			s.checkForward(c, b, f)
		}),
		beforePut: hookOn(func(_ *call, _ *body, now, f *F) { *f = *now }),
		checkPut:  hookOn(func(c *call, b *body, _, f *F) { s.checkForward(c, b, f) }),
		create: createCall{made[F], func(ctx context.Context, asked any) (any, error) {
			f := *asked.(*F)
			return pointer(s.alone(ctx, fip, f, func() (F, error) {
				made, err := s.p.EnsureForwards(ctx, fip.ID, []F{f})
				if err != nil {
					return f, err
				}
				return made[0], nil
			}))
		}},
		update: updateCall{made[F], func(ctx context.Context, _ sdn.ID, change any) (any, error) {
			f := *change.(*F)
			changes, ok := s.p.(sdn.ForwardUpdate)
			if !ok {
				return pointer(f, sdn.Unsupported("port forwarding", "this SDN changes none: delete it and make another"))
			}
			return pointer(s.alone(ctx, fip, f, func() (F, error) { return changes.UpdateForward(ctx, fip.ID, f) }))
		}},
		remove: func(ctx context.Context, id sdn.ID) error { return s.p.DeleteForwards(ctx, fip.ID, []sdn.ID{id}) },
	}
	return tableOf[F]{t}
}

var (
	isForwarded = kindOf((*body).forwarded) // sdn.Protocol
	isPortRange = kindOf((*body).portRange) // sdn.PortRange
	isPort      = kindOf(func(b *body, name string) *sdn.PortRange {
		port := b.integer(name, 1, 65535)
		if port == nil {
			return nil
		}
		return &sdn.PortRange{First: uint16(*port), Last: uint16(*port)}
	})
)

// forwardFields are the attributes of port forwardings. A port and a range of ports say the same.
var forwardFields = []field{
	{name: "id", show: via(func(f *sdn.Forward) any { return string(f.ID) })},
	forwardField("protocol", required, isForwarded, func(f *sdn.Forward) any { return ipproto.Name(f.Protocol) },
		set(func(f *sdn.Forward) *sdn.Protocol { return &f.Protocol })),
	forwardField("external_port", 0, isPort, func(f *sdn.Forward) any { return single(f.External) }, setExternal),
	forwardField("external_port_range", 0, isPortRange, func(f *sdn.Forward) any { return rangeText(f.External) }, setExternal),
	forwardField("internal_port", 0, isPort, func(f *sdn.Forward) any { return single(f.Internal) }, setInternal),
	forwardField("internal_port_range", 0, isPortRange, func(f *sdn.Forward) any { return rangeText(f.Internal) }, setInternal),
	notVIP(forwardField("internal_port_id", required, isID, func(f *sdn.Forward) any { return string(f.Target.Port) },
		store(func(f *sdn.Forward, v any) {
			if port := v.(sdn.ID); port != f.Target.Port {
				f.Target = sdn.Target{Port: port}
			}
		}))),
	forwardField("internal_ip_address", 0, orNull(isAddr), func(f *sdn.Forward) any { return optionalAddr(f.Target.Addr) },
		set(func(f *sdn.Forward) *netip.Addr { return &f.Target.Addr })),
	forwardField("description", hooked, nil, func(f *sdn.Forward) any { return f.Description }, nil),
}

var (
	setExternal = set(func(f *sdn.Forward) *sdn.PortRange { return &f.External })
	setInternal = set(func(f *sdn.Forward) *sdn.PortRange { return &f.Internal })
)

// notVIP documents the port that nothing forwards to.
func notVIP(a field) field {
	a.taken = "a port that is no VIP"
	a.why = "packets are translated once: a whole floating IP leads to the VIP of a load balancer"
	return a
}

// forwardField is an attribute that POST and PUT store the same way.
func forwardField(
	name string, may access, is kind, show func(*sdn.Forward) any, store func(into, value any),
) field {
	return field{name: name, is: is, access: may, show: via(show), post: store, put: store}
}

// single shows a single port, and null for a range.
func single(r sdn.PortRange) any {
	if r.First != max(r.First, r.Last) {
		return nil
	}
	return int(r.First)
}

func rangeText(r sdn.PortRange) string {
	return strconv.Itoa(int(r.First)) + ":" + strconv.Itoa(int(max(r.First, r.Last)))
}

// alone makes a change to the forwardings of a floating IP while nobody else in this process does, and not where another forwarding has its outer ports:
// the contract takes one that is alike for the same, and Neutron for a second one.
func (s *server) alone(ctx context.Context, fip sdn.FloatingIP, f sdn.Forward, change func() (sdn.Forward, error)) (out sdn.Forward, err error) {
	unlock, err := s.locks.lock(ctx, "forwards of "+string(fip.ID))
	if err != nil {
		return out, err
	}
	defer unlock()
	for have, err := range s.p.FindForwards(ctx, sdn.ForwardQuery{FloatingIPs: []sdn.ID{fip.ID}}) {
		switch {
		case err != nil:
			return out, err
		case have.ID == f.ID || have.Protocol != f.Protocol:
		case have.External.First <= f.External.Last && f.External.First <= max(have.External.First, have.External.Last):
			return out, badOf("port_forwarding", "There is a port collision with the external_port_range. The following ranges collides: %s and %s",
				rangeText(have.External), rangeText(f.External))
		}
	}
	out, err = change()
	return out, refusedForward(fip, f, err)
}

// refusedForward says in Neutron's words why a forwarding cannot be.
func refusedForward(fip sdn.FloatingIP, f sdn.Forward, err error) error {
	var e *sdn.Error
	if !errors.As(err, &e) {
		return err
	}
	const bad = "port_forwarding"
	switch {
	case e.Kind == sdn.KindNotFound && e.Noun == "router":
		return badOf(bad, "External network %s is not reachable from the subnet of the port. Cannot set Port forwarding for port %s with Floating IP %s", fip.Network, f.Target.Port, fip.ID)
	case e.Reason == sdn.InUse && strings.HasSuffix(e.Field, "target"):
		return badOf(bad, "The Floating IP %s had been set on another router, the internal Neutron port %s can not reach it", fip.ID, f.Target.Port)
	case e.Reason == sdn.InUse:
		return refuse(http.StatusConflict, "FloatingIPPortAlreadyAssociated", "Cannot associate floating IP %s (%s) with port %s, as it is associated with a port already.", fip.Address, fip.ID, f.Target.Port)
	case e.Reason == sdn.Exists:
		return badOf(bad, "There is a port collision with the external_port_range: %s", e.Detail)
	}
	return err
}

// checkForward checks a port forwarding. Its port must be one that the caller sees.
func (s *server) checkForward(c *call, b *body, f *sdn.Forward) {
	b.checkForward(f)
	if b.err == nil {
		b.fail(s.checkInside(c, f.Target))
	}
}

// checkForward checks a port forwarding, but not the port that it leads to.
func (b *body) checkForward(f *sdn.Forward) {
	if b.err == nil && (f.External.First == 0 || f.Internal.First == 0) {
		b.fail(badOf("port_forwarding", "an external port and an internal port, or a range of them, are needed"))
	}
	if inside := f.Internal.Last - f.Internal.First; b.err == nil && inside > 0 && inside != f.External.Last-f.External.First {
		b.fail(badOf("port_forwarding", "Invalid ranges of internal and/or external ports. The relation between internal and external ports must be N-N or 1-N"))
	}
	if width := int(f.External.Last) - int(f.External.First) + 1; width > mostForwarded && !b.caller.admin() {
		b.fail(badOf("port_forwarding", "The range has %d external ports, and at most %d are forwarded by one", width, mostForwarded))
	}
	if words := b.description(f.Description); words != nil {
		f.Description = *words
	}
}

// forwarded reads the protocol of a port forwarding.
func (b *body) forwarded(name string) *sdn.Protocol {
	value, _ := b.take(name)
	protocol, _, known := ipproto.Parse(show(value))
	if !known || protocol != sdn.TCP && protocol != sdn.UDP && protocol != sdn.SCTP {
		b.fail(invalidInput("protocol: '%s' is not in ['tcp', 'udp', 'sctp']", show(value)))
	}
	return &protocol
}

// checkInside wants a target to be a port that the caller sees, and to have the address.
func (s *server) checkInside(c *call, target sdn.Target) error {
	port, err := s.ports().need(c, target.Port)
	if err != nil {
		return err
	}
	if !c.owns(port.Meta) {
		return badOf("port_forwarding", "Port %s is owned by a different tenant", port.ID)
	}
	for _, a := range port.Addresses {
		if a.Addr == target.Addr || target.Addr == (netip.Addr{}) {
			return nil
		}
	}
	return badOf("port_forwarding", "Requested internal IP address %v is not suitable for internal neutron port %s", target.Addr, port.ID)
}

// portRange reads a range of ports ("80:81"), or one port.
func (b *body) portRange(name string) *sdn.PortRange {
	text := b.text(name)
	if text == nil {
		return nil
	}
	from, to, ranged := strings.Cut(*text, ":")
	if !ranged {
		to = from
	}
	first, errFirst := strconv.ParseUint(from, 10, 16)
	last, errLast := strconv.ParseUint(to, 10, 16)
	if errFirst != nil || errLast != nil || first == 0 || last < first {
		b.invalid(name, "'%s' is not a range of ports", *text)
	}
	return &sdn.PortRange{First: uint16(first), Last: uint16(last)}
}
