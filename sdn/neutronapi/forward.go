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

// PortForwardings are served below the floating IP that they are of.
var PortForwardings = Resource[PortForwarding]{"port_forwarding", "port_forwardings"}

// PortForwarding is a port forwarding of a floating IP in Neutron's JSON.
type PortForwarding struct {
	ID                string  `json:"id"`
	Protocol          string  `json:"protocol"`
	ExternalPort      *uint16 `json:"external_port"` // null where it is a range
	ExternalPortRange string  `json:"external_port_range"`
	InternalPort      *uint16 `json:"internal_port"` // null where it is a range
	InternalPortRange string  `json:"internal_port_range"`
	InternalPortID    string  `json:"internal_port_id"`
	InternalIPAddress *string `json:"internal_ip_address"`
	Description       string  `json:"description"`
}

// EncodePortForwarding translates a port forwarding.
func EncodePortForwarding(f sdn.Forward) PortForwarding {
	out := PortForwarding{
		ID: string(f.ID), Protocol: ipproto.Name(f.Protocol), InternalPortID: string(f.Target.Port), InternalIPAddress: optionalAddr(f.Target.Addr),
		Description: f.Description,
	}
	out.ExternalPort, out.ExternalPortRange = encodeRange(f.External)
	out.InternalPort, out.InternalPortRange = encodeRange(f.Internal)
	return out
}

// mostForwarded is how many ports one port forwarding may have that is no administrator's: each is an entry of its own in the store and the kernel, and all others
// wait while they are written.
const mostForwarded = 4096

func encodeRange(r sdn.PortRange) (*uint16, string) {
	last := max(r.First, r.Last)
	text := strconv.Itoa(int(r.First)) + ":" + strconv.Itoa(int(last))
	if r.First == last {
		return &r.First, text
	}
	return nil, text
}

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

// forwards are the port forwardings of a floating IP.
func (s *server) forwards(fip sdn.FloatingIP) *definition[sdn.Forward, PortForwarding, sdn.Forward, sdn.Forward] {
	all := func(ctx context.Context, ports []sdn.ID) iter.Seq2[sdn.Forward, error] {
		return s.p.FindForwards(ctx, sdn.ForwardQuery{FloatingIPs: []sdn.ID{fip.ID}, Ports: ports})
	}
	get := func(ctx context.Context, id sdn.ID) (sdn.Forward, error) {
		for f, err := range all(ctx, nil) {
			if err != nil || f.ID == id {
				return f, err
			}
		}
		return sdn.Forward{}, sdn.NotFound("port forwarding", id)
	}
	return &definition[sdn.Forward, PortForwarding, sdn.Forward, sdn.Forward]{
		Resource: PortForwardings, title: "port forwarding",
		meta: func(f sdn.Forward) sdn.Meta { return sdn.Meta{ID: f.ID, Base: sdn.Base{Project: fip.Project}} },
		get:  get,
		find: func(ctx context.Context, f *filter) iter.Seq2[sdn.Forward, error] {
			f.named = true
			return all(ctx, f.ids("internal_port_id"))
		},
		encode: EncodePortForwarding,
		spec: func(c *call, b *body) sdn.Forward {
			b.project()
			return s.forward(c, b, sdn.Forward{})
		},
		patch: func(c *call, b *body, f sdn.Forward) sdn.Forward { return s.forward(c, b, f) },
		create: func(ctx context.Context, f sdn.Forward) (sdn.Forward, error) {
			return s.alone(ctx, fip, f, func() (sdn.Forward, error) {
				made, err := s.p.EnsureForwards(ctx, fip.ID, []sdn.Forward{f})
				if err != nil {
					return f, err
				}
				return made[0], nil
			})
		},
		update: func(ctx context.Context, _ sdn.ID, f sdn.Forward) (sdn.Forward, error) {
			changes, ok := s.p.(sdn.ForwardUpdate)
			if !ok {
				return f, sdn.Unsupported("port forwarding", "this SDN changes none: delete it and make another")
			}
			return s.alone(ctx, fip, f, func() (sdn.Forward, error) { return changes.UpdateForward(ctx, fip.ID, f) })
		},
		remove: func(ctx context.Context, id sdn.ID) error { return s.p.DeleteForwards(ctx, fip.ID, []sdn.ID{id}) },
	}
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
			_, range1 := encodeRange(have.External)
			_, range2 := encodeRange(f.External)
			return out, badOf("port_forwarding", "There is a port collision with the external_port_range. The following ranges collides: %s and %s", range1, range2)
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

// forward reads a port forwarding into what it is so far. Its port must be one that the caller sees.
func (s *server) forward(c *call, b *body, f sdn.Forward) sdn.Forward {
	f = b.forward(f)
	if b.err == nil {
		b.fail(s.checkInside(c, f.Target))
	}
	return f
}

// forward reads a port forwarding, and does not look at the port that it leads to.
func (b *body) forward(f sdn.Forward) sdn.Forward {
	b.readOnly("id")
	b.required("protocol", "internal_port_id")
	if value, given := b.take("protocol"); given {
		protocol, _, known := ipproto.Parse(show(value))
		if f.Protocol = protocol; !known || protocol != sdn.TCP && protocol != sdn.UDP && protocol != sdn.SCTP {
			b.fail(invalidInput("protocol: '%s' is not in ['tcp', 'udp', 'sctp']", show(value)))
		}
	}
	f.External = b.portRange("external_port", f.External)
	f.Internal = b.portRange("internal_port", f.Internal)
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
	port := b.id("internal_port_id")
	if port != nil && *port != f.Target.Port {
		f.Target = sdn.Target{Port: *port}
	}
	if !b.null("internal_ip_address") {
		if addr := b.addr("internal_ip_address"); addr != nil {
			f.Target.Addr = *addr
		}
	}
	return f
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

// portRange reads the port name, or the range name_range ("80:81"). What is not given stays.
func (b *body) portRange(name string, is sdn.PortRange) sdn.PortRange {
	if port := b.integer(name, 1, 65535); port != nil {
		is = sdn.PortRange{First: uint16(*port), Last: uint16(*port)}
	}
	text := b.text(name + "_range")
	if text == nil {
		return is
	}
	from, to, ranged := strings.Cut(*text, ":")
	if !ranged {
		to = from
	}
	first, errFirst := strconv.ParseUint(from, 10, 16)
	last, errLast := strconv.ParseUint(to, 10, 16)
	if errFirst != nil || errLast != nil || first == 0 || last < first {
		b.invalid(name+"_range", "'%s' is not a range of ports", *text)
	}
	return sdn.PortRange{First: uint16(first), Last: uint16(last)}
}
