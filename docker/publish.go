package docker

import (
	"context"
	"fmt"
	"hash/fnv"
	"net/netip"
	"slices"

	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/kuryr/kuryr/sdn"
)

// The ports that -P and -p without a host port choose from (moby: portallocator's fallback, and IANA's dynamic ports).
const firstDynamic, lastDynamic = 49153, 65535

// dynamicTries is how many taken ports are tried past before the choice is given up.
const dynamicTries = 256

// programExternal publishes the endpoint's ports: a floating IP that stands for every address of the host, one for each
// family, forwards them.
func (d *Driver) programExternal(ctx context.Context, r *programRequest) (any, error) {
	if len(r.endpoint.published) == 0 {
		return nothing{}, nil
	}
	for _, m := range r.endpoint.published {
		if host, _ := netip.ParseAddr(m.HostIP); host.IsValid() && !host.IsUnspecified() {
			return nil, refuse("port %d/%s cannot be published on %s alone: only on all addresses of the host", m.HostPort, protocol(m.Proto), host)
		}
	}
	can := d.sdn.Capabilities()
	if !can.Forwards || !can.HostAddresses || can.ExternalNetwork == "" {
		return nil, refuse("this SDN cannot publish ports on the host")
	}
	unlock, err := d.locks.lock(ctx, "endpoint/"+r.EndpointID)
	if err != nil {
		return nil, err
	}
	defer unlock()
	port, found, err := d.port(ctx, r.EndpointID)
	if err == nil && !found {
		err = refuse("there is no endpoint %s", r.EndpointID)
	}
	if err != nil {
		return nil, err
	}
	p, err := d.publisher(ctx, port, r, can)
	if err == nil {
		err = p.publish(ctx, r.endpoint.published)
	}
	if err != nil {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollback)
		defer cancel()
		if left := d.unpublish(undo, r.EndpointID); left != nil {
			d.log.ErrorContext(ctx, "published ports were left behind", "endpoint", r.EndpointID, "err", left)
		}
		return nil, err
	}
	return nothing{}, nil
}

// face is one family's side of a publication.
type face struct {
	floatingIP sdn.ID
	target     sdn.Target
	there      []sdn.Forward // before this call
}

// publisher makes the forwardings of one endpoint.
type publisher struct {
	sdn      sdn.Provider
	free     PortFree
	endpoint string
	faces    map[bool]*face // by whether IPv6
}

func (d *Driver) publishKey(endpoint string, v6 bool) sdn.Key {
	if v6 {
		return d.key(kindPublish, endpoint+"/6")
	}
	return d.key(kindPublish, endpoint+"/4")
}

// publisher makes the floating IPs that the ports asked for need.
func (d *Driver) publisher(ctx context.Context, port sdn.Port, r *programRequest, can sdn.Capabilities) (*publisher, error) {
	p := &publisher{sdn: d.sdn, free: d.portFree, endpoint: r.EndpointID, faces: map[bool]*face{}}
	for _, v6 := range []bool{false, true} {
		at := slices.IndexFunc(port.Addresses, func(a sdn.Address) bool { return a.Addr.Is6() == v6 })
		if at < 0 || v6 && !can.FloatingIPv6 || !slices.ContainsFunc(r.endpoint.published, func(m portMap) bool { return m.on(v6) }) {
			continue
		}
		everywhere := netip.IPv4Unspecified()
		if v6 {
			everywhere = netip.IPv6Unspecified()
		}
		floating, err := d.sdn.EnsureFloatingIP(ctx, sdn.FloatingIPSpec{
			Base: sdn.Base{Key: d.publishKey(r.EndpointID, v6)}, Network: can.ExternalNetwork, Address: everywhere,
		})
		if err != nil {
			return nil, err
		}
		failpoint.Here("docker.publish.address")
		p.faces[v6] = &face{floatingIP: floating.ID, target: sdn.Target{Port: port.ID, Addr: port.Addresses[at].Addr}}
	}
	for _, m := range r.endpoint.published {
		if reachable := m.on(false) && p.faces[false] != nil || m.on(true) && p.faces[true] != nil; !reachable {
			return nil, refuse("port %d/%s cannot be published on %q: the endpoint has no address of that family", m.Port, protocol(m.Proto), m.HostIP)
		}
	}
	for _, f := range p.faces {
		there, err := sdn.All(d.sdn.FindForwards(ctx, sdn.ForwardQuery{FloatingIPs: []sdn.ID{f.floatingIP}}))
		if err != nil {
			return nil, err
		}
		f.there = there
	}
	return p, nil
}

// on tells whether a port is to be published for a family: HostIP "" is both.
func (m portMap) on(v6 bool) bool {
	host, err := netip.ParseAddr(m.HostIP)
	return err != nil || host.Is6() == v6
}

// fixed tells whether the host port is given, not to be chosen.
func (m portMap) fixed() bool {
	return m.HostPort != 0 && (m.HostPortEnd == 0 || m.HostPortEnd == m.HostPort)
}

// publish makes the forwardings: those with a given host port in one step for each family, then the others one by one.
func (p *publisher) publish(ctx context.Context, published []portMap) error {
	for _, v6 := range []bool{false, true} {
		f := p.faces[v6]
		if f == nil {
			continue
		}
		var forwards []sdn.Forward
		for _, m := range published {
			if !m.fixed() || !m.on(v6) {
				continue
			}
			if err := p.free(ctx, m.Proto, v6, m.HostPort); err != nil {
				return refuse("host port %d/%s cannot be published: %v", m.HostPort, protocol(m.Proto), err)
			}
			forwards = append(forwards, f.forward(m, m.HostPort))
		}
		if err := p.add(ctx, f, forwards); err != nil {
			return err
		}
		failpoint.Here("docker.publish.fixed")
	}
	for _, m := range published {
		if m.fixed() {
			continue
		}
		if err := p.choose(ctx, m); err != nil {
			return err
		}
		failpoint.Here("docker.publish.chosen")
	}
	return nil
}

func (f *face) forward(m portMap, host uint16) sdn.Forward {
	return sdn.Forward{
		Protocol: m.Proto,
		External: sdn.PortRange{First: host, Last: host},
		Target:   f.target,
		Internal: sdn.PortRange{First: m.Port, Last: m.Port},
	}
}

// add makes forwardings, and finds out which one cannot be.
func (p *publisher) add(ctx context.Context, f *face, forwards []sdn.Forward) error {
	if len(forwards) == 0 {
		return nil
	}
	_, err := p.sdn.EnsureForwards(ctx, f.floatingIP, forwards)
	if sdn.ReasonOf(err) != sdn.Exists {
		return err
	}
	for _, forward := range forwards {
		if _, one := p.sdn.EnsureForwards(ctx, f.floatingIP, []sdn.Forward{forward}); sdn.ReasonOf(one) == sdn.Exists {
			return refuseFor(one, "host port %d/%s is already allocated: another endpoint has published it",
				forward.External.First, protocol(forward.Protocol))
		} else if one != nil {
			return one
		}
	}
	return nil
}

// choose publishes a port at a host port that is free for every family, and at the same one in a repeat.
func (p *publisher) choose(ctx context.Context, m portMap) error {
	first, last := int(m.HostPort), int(m.HostPortEnd)
	if m.HostPort == 0 {
		first, last = firstDynamic, lastDynamic
	}
	if p.published(m, first, last) {
		return nil
	}
	count := last - first + 1
	start := 0
	if m.HostPort == 0 {
		h := fnv.New32a()
		fmt.Fprintf(h, "%s %d %d", p.endpoint, m.Proto, m.Port)
		start = int(h.Sum32() % uint32(count))
	}
	for i := range min(count, dynamicTries) {
		free, err := p.try(ctx, m, uint16(first+(start+i)%count))
		if free || err != nil {
			return err
		}
	}
	return refuse("no host port from %d to %d is free for port %d/%s", first, last, m.Port, protocol(m.Proto))
}

// published tells whether every family has the port already, at a host port that was chosen before.
func (p *publisher) published(m portMap, first, last int) bool {
	for v6, f := range p.faces {
		if m.on(v6) && !slices.ContainsFunc(f.there, func(t sdn.Forward) bool {
			return t.Protocol == m.Proto && t.Internal.First == m.Port && int(t.External.First) >= first && int(t.External.First) <= last
		}) {
			return false
		}
	}
	return true
}

// try publishes at one host port for every family, or for none where one has it taken.
func (p *publisher) try(ctx context.Context, m portMap, host uint16) (bool, error) {
	var made []func() error
	for _, v6 := range []bool{false, true} {
		f := p.faces[v6]
		if f == nil || !m.on(v6) {
			continue
		}
		var forwards []sdn.Forward
		err := p.free(ctx, m.Proto, v6, host)
		taken := err != nil
		if !taken {
			forwards, err = p.sdn.EnsureForwards(ctx, f.floatingIP, []sdn.Forward{f.forward(m, host)})
			taken = sdn.ReasonOf(err) == sdn.Exists
		}
		if taken {
			for _, undo := range made {
				if err := undo(); err != nil {
					return false, err
				}
			}
			return false, nil
		}
		if err != nil {
			return false, err
		}
		made = append(made, func() error { return p.sdn.DeleteForwards(ctx, f.floatingIP, []sdn.ID{forwards[0].ID}) })
	}
	return true, nil
}

// revokeExternal takes back what was published.
func (d *Driver) revokeExternal(ctx context.Context, r *endpointRequest) (any, error) {
	unlock, err := d.locks.lock(ctx, "endpoint/"+r.EndpointID)
	if err != nil {
		return nil, err
	}
	defer unlock()
	return nothing{}, d.unpublish(ctx, r.EndpointID)
}

// unpublish deletes the floating IPs of an endpoint, with their forwardings.
func (d *Driver) unpublish(ctx context.Context, endpoint string) error {
	if !d.sdn.Capabilities().Forwards {
		return nil
	}
	keys := []sdn.Key{d.publishKey(endpoint, false), d.publishKey(endpoint, true)}
	floating, err := sdn.All(d.sdn.FindFloatingIPs(ctx, sdn.FloatingIPQuery{Match: sdn.Match{Keys: keys}}))
	if err != nil {
		return err
	}
	for _, f := range floating {
		if err := d.sdn.DeleteFloatingIP(ctx, f.ID); err != nil {
			return err
		}
		failpoint.Here("docker.unpublish.address")
	}
	return nil
}

func protocol(p sdn.Protocol) string {
	switch p {
	case sdn.TCP:
		return "tcp"
	case sdn.UDP:
		return "udp"
	case sdn.SCTP:
		return "sctp"
	}
	return fmt.Sprintf("protocol %d", p)
}
