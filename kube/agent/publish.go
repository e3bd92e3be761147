//go:build linux

package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/kuryr/kuryr/internal/hostports"
	"github.com/kuryr/kuryr/sdn"
)

// publish leads ports of the host to the container's, all by one call. The host's ports are
// reserved first, so that none is taken from a program.
func (n *Network) publish(ctx context.Context, a Attachment, port sdn.Port) error {
	targets := map[bool]sdn.Target{} // by whether IPv6
	for _, at := range port.Addresses {
		if _, has := targets[at.Addr.Is6()]; !has && (at.Addr.Is4() || n.sdn.Capabilities().FloatingIPv6) {
			targets[at.Addr.Is6()] = sdn.Target{Port: port.ID, Addr: at.Addr}
		}
	}
	spec := sdn.PublicationSpec{Key: n.key(kindPublish, a)}
	for _, p := range a.Want.Published {
		on := faces(p, targets)
		if len(on) == 0 {
			return sdn.Invalid("port", "portMappings", "%s: the container has no address of this family", p.HostIP)
		}
		for _, host := range on {
			if err := n.reserve(a, p.Protocol, host, p.HostPort); err != nil {
				return err
			}
			spec.Ports = append(spec.Ports, sdn.PublishedPort{Host: host, Forward: sdn.Forward{
				Protocol: p.Protocol, External: sdn.PortRange{First: p.HostPort, Last: p.HostPort},
				Target: targets[host.Is6()], Internal: sdn.PortRange{First: p.Port, Last: p.Port},
			}})
		}
	}
	failpoint.Here("agent.network.reserved")
	if _, err := n.sdn.Publish(ctx, spec); err != nil {
		return err
	}
	failpoint.Here("agent.network.published")
	return nil
}

// faces returns the addresses of the host that a port is published on: the one that is named, or all of
// each family that the container has.
func faces(p Published, targets map[bool]sdn.Target) (on []netip.Addr) {
	if p.HostIP.IsValid() {
		if _, can := targets[p.HostIP.Is6()]; can {
			on = append(on, p.HostIP)
		}
		return on
	}
	for _, every := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		if _, can := targets[every.Is6()]; can {
			on = append(on, every)
		}
	}
	return on
}

// reserve keeps a port of the host.
func (n *Network) reserve(a Attachment, protocol sdn.Protocol, host netip.Addr, port uint16) error {
	at := netip.AddrPortFrom(host, port)
	err := n.ports.Reserve(device(a), hostports.Port{Protocol: protocol, Address: at})
	switch {
	case errors.Is(err, hostports.ErrHeld), errors.Is(err, hostports.ErrInUse):
		return &sdn.Error{
			Kind: sdn.KindConflict, Reason: sdn.Exists, Noun: "host port", ID: at.String(), Field: "portMappings", Err: err,
		}
	case err != nil:
		return fmt.Errorf("host port %s (portMappings): %w", at, err)
	}
	return nil
}

// unpublish ends what the attachment publishes, and then gives up the host's ports.
func (n *Network) unpublish(ctx context.Context, a Attachment) error {
	if !n.sdn.Capabilities().HostAddresses {
		return nil
	}
	if err := n.sdn.Unpublish(ctx, n.key(kindPublish, a)); err != nil {
		return err
	}
	n.ports.ReleaseAll(device(a))
	return nil
}

// restore reserves the host's ports that the attachment published before a restart.
func (n *Network) restore(ctx context.Context, a Attachment) error {
	there, err := n.sdn.Publication(ctx, n.key(kindPublish, a))
	if err != nil {
		return err
	}
	for _, p := range there.Ports {
		port := hostports.Port{Protocol: p.Protocol, Address: netip.AddrPortFrom(p.Host, p.External.First)}
		if err := n.ports.Restore(device(a), port); err != nil {
			n.log.WarnContext(ctx, "published port in use by a program of this host",
				"port", port.Address, "container", a.Container, "err", err)
		}
	}
	return nil
}
