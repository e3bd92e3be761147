package docker

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"slices"

	"github.com/kuryr/kuryr/internal/hostports"
	"github.com/kuryr/kuryr/internal/portproxy"
	"github.com/kuryr/kuryr/sdn"
)

// On an SDN whose floating IPs cannot stand for the host's own addresses, ports are published on the host by a proxy in this process, which
// dials from the container's namespace. The container sees its own address as the client's.

// proxied is the publishing of one endpoint's ports by the proxy.
type proxied struct {
	d        *Driver
	endpoint string
	plugged  plugged
	refuser  *publisher // says why a port of the host cannot be had
}

// publishProxied publishes ports, or none of them. It writes down what it publishes.
func (d *Driver) publishProxied(ctx context.Context, endpoint string, known plugged, published []portMap) error {
	if known.Sandbox == "" {
		return refuse("endpoint %s has no container whose ports could be published", endpoint)
	}
	p := &proxied{d, endpoint, known, &publisher{sdn: d.sdn, ports: d.hostPorts, endpoint: endpoint}}
	err := p.all(published)
	if err != nil {
		d.stopProxied(ctx, endpoint)
		return err
	}
	known.Proxied = d.proxy.Forwards(endpoint)
	d.plugged.put(ctx, endpoint, known)
	return nil
}

// all publishes the ports with a given host port first, so that none of the others gets theirs.
func (p *proxied) all(published []portMap) error {
	for _, fixed := range []bool{true, false} {
		for _, m := range published {
			if m.fixed() != fixed {
				continue
			}
			publish := p.choose
			if fixed {
				publish = p.one
			}
			if err := publish(m); err != nil {
				return err
			}
		}
	}
	return nil
}

// one publishes a port at its given host port.
func (p *proxied) one(m portMap) error {
	_, at, err := p.start(m, m.HostPort)
	if err != nil {
		return p.refused(err, m, at, m.HostPort)
	}
	return nil
}

// choose publishes a port at a host port of a range that is free on every address, and at the same one in a repeat.
func (p *proxied) choose(m portMap) error {
	first, last := int(m.HostPort), int(m.HostPortEnd)
	if m.HostPort == 0 {
		first, last = firstDynamic, lastDynamic
	}
	for _, f := range p.plugged.Proxied {
		if host := int(f.Listen.Port()); f.Protocol == m.Proto && f.Target.Port() == m.Port && host >= first && host <= last {
			first, last = host, host
			break
		}
	}
	for host := range hostPortsFor(p.endpoint, m, first, last) {
		started, at, err := p.start(m, host)
		if err == nil {
			return nil
		}
		for _, f := range started {
			p.d.proxy.Stop(p.endpoint, f)
		}
		if !errors.Is(err, hostports.ErrHeld) && !errors.Is(err, hostports.ErrInUse) {
			return p.refused(err, m, at, host)
		}
	}
	return refuse("no host port from %d to %d is free for port %d/%s", first, last, m.Port, protocol(m.Proto))
}

// start publishes a port at one host port of each address of the host that it is to be published on, and tells what it started and which
// address failed. Where every address of the host is meant, a host without IPv6, or without IPv4, is no failure.
func (p *proxied) start(m portMap, host uint16) (started []portproxy.Forward, at netip.Addr, err error) {
	on, given := p.on(m)
	none := portproxy.ErrNoFamily
	for _, a := range on {
		f := portproxy.Forward{Protocol: m.Proto, Listen: netip.AddrPortFrom(a, host), Namespace: p.plugged.Sandbox}
		target, ok := p.target(a)
		if !ok {
			return started, a, refuse("port %d/%s cannot be published: the endpoint has no address", m.Port, protocol(m.Proto))
		}
		f.Target = netip.AddrPortFrom(target, m.Port)
		if p.d.proxy.Has(p.endpoint, f) {
			none = nil
			continue
		}
		err := p.d.proxy.Start(p.endpoint, f)
		if errors.Is(err, portproxy.ErrNoFamily) && !given {
			continue
		}
		if err != nil {
			return started, a, err
		}
		none = nil
		started = append(started, f)
	}
	return started, on[0], none
}

// on lists the addresses of the host that a port is to be published on, and whether they were given.
func (p *proxied) on(m portMap) ([]netip.Addr, bool) {
	if host, err := netip.ParseAddr(m.HostIP); err == nil {
		return []netip.Addr{host}, true
	}
	if host := binding(p.plugged.Port); host.IsValid() {
		return []netip.Addr{host}, true
	}
	return []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()}, false
}

// target is the endpoint's address that is dialled for an address of the host: of the same family if it has one.
func (p *proxied) target(host netip.Addr) (netip.Addr, bool) {
	var other netip.Addr
	for _, a := range p.plugged.Port.Addresses {
		if a.Addr.Is6() == host.Is6() {
			return a.Addr, true
		}
		if !other.IsValid() {
			other = a.Addr
		}
	}
	return other, other.IsValid()
}

// refused says why a port cannot be published.
func (p *proxied) refused(err error, m portMap, a netip.Addr, host uint16) error {
	if refused := (*refusal)(nil); errors.As(err, &refused) {
		return err
	}
	if errors.Is(err, portproxy.ErrProtocol) || errors.Is(err, portproxy.ErrNoFamily) {
		return refuse("port %d/%s cannot be published: %v", m.Port, protocol(m.Proto), err)
	}
	return p.refuser.refused(err, m, a, host)
}

// stopProxied ends what the proxy publishes of an endpoint. The caller holds the endpoint's lock.
func (d *Driver) stopProxied(ctx context.Context, endpoint string) {
	d.proxy.StopAll(endpoint)
	if r, known := d.plugged.get(endpoint); known && len(r.Proxied) > 0 {
		r.Proxied = nil
		d.plugged.put(ctx, endpoint, r)
	}
}

// restoreProxied publishes again what an earlier process published of the containers that are there.
func (d *Driver) restoreProxied(ctx context.Context) {
	for _, endpoint := range d.plugged.endpoints() {
		r, _ := d.plugged.get(endpoint)
		if len(r.Proxied) == 0 {
			continue
		}
		if _, err := os.Stat(r.Sandbox); err != nil { // the container is gone, and its engine will tell
			d.stopProxied(ctx, endpoint)
			continue
		}
		for _, f := range r.Proxied {
			if err := d.proxy.Start(endpoint, f); err != nil {
				d.log.WarnContext(ctx, "a published port could not be published again", "endpoint", endpoint, "listen", f.Listen, "protocol", protocol(f.Protocol),
					"err", err, "used_by", d.hostPorts.Users(hostports.Port{Protocol: f.Protocol, Address: f.Listen}))
			}
		}
	}
}

// dropForgottenProxied takes the host ports that the request names from endpoints that no container has. It tells whether there were any.
func (d *Driver) dropForgottenProxied(ctx context.Context, r *programRequest) (dropped bool, err error) {
	for _, endpoint := range d.plugged.endpoints() {
		other, _ := d.plugged.get(endpoint)
		inTheWay := slices.ContainsFunc(other.Proxied, func(f portproxy.Forward) bool {
			external := sdn.PortRange{First: f.Listen.Port(), Last: f.Listen.Port()}
			return slices.ContainsFunc(r.endpoint.published, func(m portMap) bool {
				return m.meets(f.Listen.Addr()) && m.wants(sdn.Forward{Protocol: f.Protocol, External: external})
			})
		})
		if endpoint == r.EndpointID || !inTheWay {
			continue
		}
		one, err := d.dropForgottenPublication(ctx, endpoint)
		if err != nil {
			return dropped, err
		}
		dropped = dropped || one
	}
	return dropped, nil
}
