package endpoint

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/docker/publish"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/sdn"
)

// Program answers ProgramExternalConnectivity: it opens the ports that the container exposes, and
// publishes others: at the host's own addresses if the SDN can, by a floating IP if that was asked
// for, or by a proxy.
//
// A host port of an endpoint that no container has is taken from it: an engine that restarts
// while Kuryr is not running forgets its endpoints, and starts the containers again with the same
// ports.
func (s *Service) Program(ctx context.Context, r *api.ProgramRequest) (done api.Empty, err error) {
	s.noteConnected(ctx, r.EndpointID)
	can := s.SDN.Capabilities()
	if len(r.Options.PortMap) == 0 && (len(r.Options.Exposed) == 0 || !s.ExposedGroups || !can.SecurityGroups) {
		return done, nil
	}
	row, err := s.find(ctx, r.EndpointID, r.NetworkID)
	if err != nil {
		return done, err
	}
	spec, err := s.publication(ctx, row, r.Options)
	if err != nil || len(spec.Ports)+len(spec.Exposed) == 0 {
		return done, err
	}
	err = s.publish(ctx, r.EndpointID, spec)
	if refused := (*api.Refusal)(nil); !errors.As(err, &refused) {
		return done, explain(r.EndpointID, err)
	}
	deleted, failed := s.withdrawUnused(ctx, r.EndpointID, spec.Ports)
	if failed != nil {
		s.Log.WarnContext(ctx, "unused publications not deleted", "endpoint", r.EndpointID, "err", failed)
	}
	if !deleted {
		return done, err
	}
	return done, explain(r.EndpointID, s.publish(ctx, r.EndpointID, spec))
}

// noteConnected ends the start of an endpoint whose container has the interface. Engine 20.10
// moves the interface after this call.
func (s *Service) noteConnected(ctx context.Context, id string) {
	row, known := s.endpoints.Get(id)
	if !known || !isStarting(row) {
		return
	}
	if connected, err := s.connected(ctx, row.Last.Port); err == nil && connected {
		s.endStart(id)
	}
}

func (s *Service) publish(ctx context.Context, id string, spec PublicationSpec) error {
	owners := s.plugOwners(id)
	if _, ok := s.plugs.Get(id); !ok { // an endpoint may publish without an interface
		owners = s.owner(id)
	}
	_, err := s.publications.Set(ctx, reconcile.Request[PublicationSpec]{Key: id, Spec: spec, Owners: owners})
	if err != nil {
		return err
	}
	if failed := s.WriteRecord(id); failed != nil {
		s.Log.WarnContext(ctx, "record for the previous version not written", "endpoint", id, "err", failed)
	}
	return nil
}

func (s *Service) publication(
	ctx context.Context, row endpointRow, o api.EndpointOptions,
) (PublicationSpec, error) {
	can, port := s.SDN.Capabilities(), row.Last.Port
	spec := PublicationSpec{
		Port: port.ID, Addresses: port.Addresses, Binding: row.Spec.Binding, Ports: toPublish(o.PortMap),
	}
	if s.isGrouped(row) {
		spec.Exposed = append(spec.Exposed, o.Exposed...)
	}
	if plug, ok := s.plugs.Get(row.Key); ok {
		spec.Sandbox = plug.Spec.Sandbox
	}
	switch {
	case len(spec.Ports) == 0:
		spec.Mode = modeNone
	case can.HostAddresses:
		spec.Mode = modeHost
		if !can.Forwards || can.ExternalNetwork == "" {
			return spec, api.Refuse("this SDN cannot publish ports on the host")
		}
		return s.divideFamilies(ctx, row.Key, spec)
	case row.Spec.Publish == api.PublishFloatingIP:
		spec.Mode = modeFloating
		return s.forwarder(ctx, row, spec)
	default:
		spec.Mode = modeProxy
		if spec.Sandbox == "" {
			return spec, api.Refuse("endpoint %s has no container whose ports could be published", row.Key)
		}
	}
	return spec, nil
}

// isGrouped reports whether the exposed ports of an endpoint are opened by a security group. An
// existing port is filtered as its user said, and one without port security is not filtered. The
// first group of a port to which everything is open would close the rest.
func (s *Service) isGrouped(row endpointRow) bool {
	can, port := s.SDN.Capabilities(), row.Last.Port
	return s.ExposedGroups && can.SecurityGroups && !row.Spec.Existing && !port.NoPortSecurity &&
		(!can.GrouplessOpen || len(port.Groups) > 0)
}

func toPublish(maps []api.PortMapping) []publish.Port {
	var ports []publish.Port
	for _, m := range maps {
		ports = append(ports, publish.Port{
			Protocol: m.Proto, Port: m.Port, Host: m.HostIP,
			First: m.HostPorts.First, Last: m.HostPorts.Last,
		})
	}
	return ports
}

// divideFamilies divides the families among the endpoints of one container. An engine may choose
// an endpoint of one family as the gateway of that family, and one of both for the other. It asks
// both to publish all ports, and tells the second nothing of the first. So an endpoint of both
// families leaves a family to the endpoint of that family alone.
func (s *Service) divideFamilies(ctx context.Context, id string, spec PublicationSpec) (PublicationSpec, error) {
	if spec.Sandbox == "" {
		return spec, nil
	}
	four, six := s.families(spec)
	for other := range s.publications.Rows() {
		if other.Key == id || other.Spec.Sandbox != spec.Sandbox || other.Phase != reconcile.Wanted {
			continue
		}
		otherFour, otherSix := s.families(other.Spec)
		switch {
		case four && six && otherFour != otherSix && len(other.Last.Ports) > 0:
			spec = spec.without(otherSix)
		case four != six && otherFour && otherSix:
			yielded := other.Spec.without(six)
			yielded.Ports = slices.DeleteFunc(slices.Clone(yielded.Ports), func(p publish.Port) bool {
				return p.Host.IsValid() && p.Host.Is6() == six
			})
			if err := s.publish(ctx, other.Key, yielded); err != nil {
				return spec, err
			}
		}
	}
	return spec, nil
}

func (s *Service) families(spec PublicationSpec) (four, six bool) {
	return s.published("", sdn.Key{}, spec).Families(s.SDN.Capabilities())
}

// withdrawUnused withdraws host ports that others ask for from endpoints that no container has. It
// reports whether there were any.
func (s *Service) withdrawUnused(ctx context.Context, id string, wanted []publish.Port) (deleted bool, err error) {
	for other := range s.publications.Rows() {
		if other.Key == id || !other.Last.meets(wanted) {
			continue
		}
		ends := other.Phase == reconcile.Deleting
		err := s.publications.RemoveTreeIf(ctx, other.Key, func(ctx context.Context, r publicationRow) (bool, error) {
			if !r.Last.meets(wanted) {
				return false, nil // it publishes others by now
			}
			unused, err := s.isUnused(ctx, r.Key)
			if ends = unused && err == nil; ends {
				s.Log.WarnContext(ctx, "host ports of unused endpoint withdrawn", "endpoint", r.Key)
			}
			return ends, err
		})
		if err != nil {
			return deleted, err
		}
		deleted = deleted || ends
	}
	return deleted, nil
}

// isUnused reports whether no container has an endpoint, and the engine is not starting it. A
// publication that was imported may have no other rows: then the SDN is asked for its port.
func (s *Service) isUnused(ctx context.Context, id string) (bool, error) {
	if row, known := s.endpoints.Get(id); known && isStarting(row) {
		return false, nil
	}
	port := s.knownPort(id)
	if port.ID == "" {
		found, ok, err := s.LookUp(ctx, id)
		if err != nil || !ok {
			return err == nil, err
		}
		if found.Host != s.Host {
			return false, nil
		}
		port = found
	}
	connected, err := s.connected(ctx, port)
	return !connected && err == nil, err
}

// meets reports whether one of the ports wants what is published.
func (l PublicationLast) meets(wanted []publish.Port) bool {
	return slices.ContainsFunc(wanted, func(p publish.Port) bool {
		for _, f := range l.Ports {
			if p.Wants(f.Host, f.Protocol, f.External) {
				return true
			}
		}
		for _, f := range l.Proxied {
			host := sdn.PortRange{First: f.Listen.Port(), Last: f.Listen.Port()}
			if p.Wants(f.Listen.Addr(), f.Protocol, host) {
				return true
			}
		}
		return false
	})
}

// forwarder chooses the floating IP that publishes: the endpoint's own, or the existing one that
// api.OptFloatingIP names, which may forward to other endpoints too and stays.
func (s *Service) forwarder(
	ctx context.Context, row endpointRow, spec PublicationSpec,
) (PublicationSpec, error) {
	const option = api.OptPublish + "=" + api.PublishFloatingIP
	can := s.SDN.Capabilities()
	if !can.FloatingIPs || !can.Forwards {
		return spec, api.Refuse("option %s: this SDN has no floating IPs that forward ports", option)
	}
	target, ok := floatingTarget(spec.Port, spec.Addresses, "")
	if !ok {
		return spec, api.Refuse("option %s: the endpoint has no IPv4 address", option)
	}
	had, _ := s.publications.Get(row.Key)
	own := func(f sdn.FloatingIP) bool { return s.forwardsTo(f, row.Key) }
	meant := func(f sdn.FloatingIP) bool { return own(f) || f.ID == had.Spec.Existing }
	free := func(f sdn.FloatingIP) bool { return f.Target.Port == "" }
	var err error
	spec.Existing, spec.At, err = s.chooseFloatingIP(ctx, row.Spec.Floating, meant, free, own)
	if err != nil || spec.Existing != "" {
		return spec, err
	}
	spec.External, err = s.externalOf(ctx, row.Last.Port, target)
	return spec, err
}

// forwardsTo reports whether a floating IP was made to forward to an endpoint.
func (s *Service) forwardsTo(f sdn.FloatingIP, id string) bool {
	name := strings.ReplaceAll("/"+f.Key.Name, "~", "/") // an incarnation follows
	return s.Names.Ours(f.Meta, identity.KindPublish) && strings.Contains(name, "/"+id+"/")
}
