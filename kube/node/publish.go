//go:build linux

package node

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strconv"

	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/kuryr/kuryr/internal/hostports"
	"github.com/kuryr/kuryr/sdn"
)

// maxFaces is how many addresses of the host one container can publish on. Their Keys are numbered, so that those there are can be asked for.
const maxFaces = 8

// faceKeys are the Keys of the floating IPs that stand for addresses of the host.
func (n *Network) faceKeys(a Attachment) []sdn.Key {
	keys := make([]sdn.Key, maxFaces)
	for i := range keys {
		keys[i] = n.key(kindPublish, a)
		keys[i].Name += "/" + strconv.Itoa(i)
	}
	return keys
}

// publish leads ports of the host to the container's: a floating IP for each address of the host (all of a family count as one), with the forwards of it.
// The host's ports are kept first, so that none is taken from a program.
func (n *Network) publish(ctx context.Context, a Attachment, port sdn.Port) error {
	targets := map[bool]sdn.Target{} // by whether IPv6
	for _, at := range port.Addresses {
		if _, has := targets[at.Addr.Is6()]; !has && (at.Addr.Is4() || n.sdn.Capabilities().FloatingIPv6) {
			targets[at.Addr.Is6()] = sdn.Target{Port: port.ID, Addr: at.Addr}
		}
	}
	var order []netip.Addr
	forwards := map[netip.Addr][]sdn.Forward{}
	for _, p := range a.Want.Published {
		on := faces(p, targets)
		if len(on) == 0 {
			return sdn.Invalid("port", "portMappings", "%s: the container has no address of this family", p.HostIP)
		}
		for _, host := range on {
			if err := n.reserve(a, p.Protocol, host, p.HostPort); err != nil {
				return err
			}
			if forwards[host] == nil {
				order = append(order, host)
			}
			forwards[host] = append(forwards[host], sdn.Forward{
				Protocol: p.Protocol, External: sdn.PortRange{First: p.HostPort, Last: p.HostPort},
				Target: targets[host.Is6()], Internal: sdn.PortRange{First: p.Port, Last: p.Port},
			})
		}
	}
	if len(order) > maxFaces {
		return sdn.Invalid("port", "portMappings", "name %d addresses of the host; at most %d are taken", len(order), maxFaces)
	}
	keys := n.faceKeys(a)
	for i, host := range order {
		f, err := n.sdn.EnsureFloatingIP(ctx, sdn.FloatingIPSpec{Base: sdn.Base{Key: keys[i]}, Network: n.sdn.Capabilities().ExternalNetwork, Address: host, OfHost: true})
		if err != nil {
			return err
		}
		failpoint.Here("node.network.floating")
		if _, err := n.sdn.EnsureForwards(ctx, f.ID, forwards[host]); err != nil {
			return err
		}
		failpoint.Here("node.network.forwarded")
	}
	return nil
}

// faces are the addresses of the host that a port is published on: the one that is named, or all of each family that the container has.
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
		return &sdn.Error{Kind: sdn.KindConflict, Reason: sdn.Exists, Noun: "host port", ID: at.String(), Field: "portMappings", Err: err}
	case err != nil:
		return fmt.Errorf("host port %s (portMappings): %w", at, err)
	}
	return nil
}

// unpublish takes the floating IPs of the attachment away, and then lets go of the host's ports.
func (n *Network) unpublish(ctx context.Context, a Attachment) error {
	if !n.sdn.Capabilities().HostAddresses {
		return nil
	}
	for f, err := range n.sdn.FindFloatingIPs(ctx, sdn.FloatingIPQuery{Match: sdn.Match{Keys: n.faceKeys(a)}}) {
		if err != nil {
			return err
		}
		if err := n.sdn.DeleteFloatingIP(ctx, f.ID); err != nil && !sdn.IsNotFound(err) {
			return err
		}
	}
	n.ports.ReleaseAll(device(a))
	return nil
}

// restore keeps the host's ports that the attachment has published since before.
func (n *Network) restore(ctx context.Context, a Attachment) error {
	for f, err := range n.sdn.FindFloatingIPs(ctx, sdn.FloatingIPQuery{Match: sdn.Match{Keys: n.faceKeys(a)}}) {
		if err != nil {
			return err
		}
		for forward, err := range n.sdn.FindForwards(ctx, sdn.ForwardQuery{FloatingIPs: []sdn.ID{f.ID}}) {
			if err != nil {
				return err
			}
			port := hostports.Port{Protocol: forward.Protocol, Address: netip.AddrPortFrom(f.Address, forward.External.First)}
			if err := n.ports.Restore(device(a), port); err != nil {
				n.log.WarnContext(ctx, "a program of this host has a port that a container has published", "port", port.Address, "container", a.Container, "error", err)
			}
		}
	}
	return nil
}
