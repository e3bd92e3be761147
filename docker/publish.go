package docker

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"iter"
	"net/netip"
	"slices"

	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/kuryr/kuryr/internal/hostports"
	"github.com/kuryr/kuryr/sdn"
)

// The ports that -P and -p without a host port choose from (moby: portallocator's fallback, and IANA's dynamic ports).
const firstDynamic, lastDynamic = 49153, 65535

// programExternal lets in what the endpoint's container exposes, and publishes its ports: at the host's own addresses where the SDN can do that,
// else by a floating IP where that was asked for, else by a proxy.
func (d *Driver) programExternal(ctx context.Context, r *programRequest) (any, error) {
	can := d.sdn.Capabilities()
	if len(r.endpoint.published) == 0 && (len(r.endpoint.exposed) == 0 || !d.external || !can.SecurityGroups) {
		return nothing{}, nil
	}
	unlock, err := d.locks.lock(ctx, "endpoint/"+r.EndpointID)
	if err != nil {
		return nil, err
	}
	defer unlock()
	known, err := d.plugOf(ctx, r.EndpointID, r.NetworkID)
	if err != nil {
		return nil, err
	}
	if err = d.expose(ctx, r.EndpointID, &known, r.endpoint.exposed); err == nil && len(r.endpoint.published) > 0 {
		switch {
		case can.HostAddresses:
			err = d.publishAtHost(ctx, r, known.Port)
		case forwards(known.Port):
			err = d.publishForwarded(ctx, r.EndpointID, known, r.endpoint.published)
		default:
			err = d.publishProxied(ctx, r.EndpointID, known, r.endpoint.published)
		}
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

// publishAtHost publishes ports by floating IPs that stand for the addresses of the host: one for each address that they are published on, all of a
// family or one, forwards them. The host's ports are reserved before anything is stored.
func (d *Driver) publishAtHost(ctx context.Context, r *programRequest, port sdn.Port) error {
	can := d.sdn.Capabilities()
	if !can.Forwards || can.ExternalNetwork == "" {
		return refuse("this SDN cannot publish ports on the host")
	}
	p := &publisher{sdn: d.sdn, ports: d.hostPorts, endpoint: r.EndpointID, targets: targets(port, can), binding: binding(port), faces: map[netip.Addr]*face{}, kept: map[hostports.Port]bool{}}
	return d.publish(ctx, p, r.endpoint.published, can.ExternalNetwork)
}

// binding is the address of the host that the port's network was told to publish on, where a published port names none; invalid: everywhere.
func binding(port sdn.Port) netip.Addr {
	for _, text := range tagValues(port.Tags, tagBinding) {
		if a, err := netip.ParseAddr(text); err == nil {
			return a
		}
	}
	return netip.Addr{}
}

// targets are what can be published of a port: its first address of each family, by whether IPv6.
func targets(port sdn.Port, can sdn.Capabilities) map[bool]sdn.Target {
	list := map[bool]sdn.Target{}
	for _, a := range port.Addresses {
		if _, has := list[a.Addr.Is6()]; !has && (a.Addr.Is4() || can.FloatingIPv6) {
			list[a.Addr.Is6()] = sdn.Target{Port: port.ID, Addr: a.Addr}
		}
	}
	return list
}

// publisher makes the forwardings of one endpoint.
type publisher struct {
	sdn      sdn.Provider
	ports    HostPorts
	endpoint string
	targets  map[bool]sdn.Target  // by whether IPv6
	binding  netip.Addr           // where ports without an address of the host are published; invalid: everywhere
	faces    map[netip.Addr]*face // by address of the host; the unspecified ones are all of a family
	order    []netip.Addr         // of faces
	kept     map[hostports.Port]bool
}

// face is what is published on one address of the host, or on all of a family.
type face struct {
	address    netip.Addr
	floatingIP sdn.ID
	target     sdn.Target
	there      []sdn.Forward // before this call
}

// on lists the addresses of the host that a port is to be published on: HostIP "" is every one of both families, or where the network binds.
func (p *publisher) on(m portMap) []netip.Addr {
	host, err := netip.ParseAddr(m.HostIP)
	if err != nil && p.binding.IsValid() {
		host, err = p.binding, nil
	}
	if err == nil {
		if _, can := p.targets[host.Is6()]; can {
			return []netip.Addr{host}
		}
		return nil
	}
	var list []netip.Addr
	for _, every := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		if _, can := p.targets[every.Is6()]; can {
			list = append(list, every)
		}
	}
	return list
}

// fixed tells whether the host port is given, not to be chosen.
func (m portMap) fixed() bool {
	return m.HostPort != 0 && (m.HostPortEnd == 0 || m.HostPortEnd == m.HostPort)
}

// publish makes the forwardings: those with a given host port in one step for each address, then the others one by one.
func (d *Driver) publish(ctx context.Context, p *publisher, published []portMap, external sdn.ID) error {
	for _, m := range published {
		on := p.on(m)
		if len(on) == 0 {
			return refuse("port %d/%s cannot be published on %q: the endpoint has no address of that family", m.Port, protocol(m.Proto), m.HostIP)
		}
		for _, a := range on {
			if !slices.Contains(p.order, a) {
				p.order = append(p.order, a)
			}
			if m.fixed() {
				if err := d.reserveFixed(ctx, p, m, a); err != nil {
					return err
				}
			}
		}
	}
	failpoint.Here("docker.publish.reserved")
	if err := d.openFaces(ctx, p, external); err != nil {
		return err
	}
	return p.forwardAll(ctx, published)
}

// forwardAll makes the forwardings of faces that are there: those with a given host port in one step for each address, then the others one by one.
func (p *publisher) forwardAll(ctx context.Context, published []portMap) error {
	for _, a := range p.order {
		var forwards []sdn.Forward
		for _, m := range published {
			if m.fixed() && slices.Contains(p.on(m), a) {
				forwards = append(forwards, p.faces[a].forward(m, m.HostPort))
			}
		}
		if err := p.add(ctx, p.faces[a], forwards); err != nil {
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

// reserveFixed keeps a given host port for the endpoint.
func (d *Driver) reserveFixed(ctx context.Context, p *publisher, m portMap, a netip.Addr) error {
	err := p.reserve(m, a, m.HostPort)
	if errors.Is(err, hostports.ErrInUse) {
		if there, herr := d.has(ctx, p.endpoint, hostPort(a, m.Proto, m.HostPort)); there || herr != nil {
			return herr
		}
	}
	if err != nil {
		return p.refused(err, m, a, m.HostPort)
	}
	return nil
}

// openFaces makes the floating IPs that are missing.
func (d *Driver) openFaces(ctx context.Context, p *publisher, external sdn.ID) error {
	var there []sdn.FloatingIP // in slots
	if slices.ContainsFunc(p.order, func(a netip.Addr) bool { return !a.IsUnspecified() }) {
		var err error
		if there, err = d.published(ctx, p.endpoint); err != nil {
			return err
		}
		there = slices.DeleteFunc(there, func(f sdn.FloatingIP) bool { return f.Address.IsUnspecified() })
	}
	slots := len(there)
	for _, a := range p.order {
		f := &face{address: a, target: p.targets[a.Is6()]}
		p.faces[a] = f
		if at := slices.IndexFunc(there, func(have sdn.FloatingIP) bool { return have.Address == a }); at >= 0 {
			f.floatingIP = there[at].ID
		} else {
			key := d.publishKey(p.endpoint, a.Is6())
			if !a.IsUnspecified() {
				slots++
				key = d.slotKey(p.endpoint, slots)
			}
			made, err := d.sdn.EnsureFloatingIP(ctx, sdn.FloatingIPSpec{Base: sdn.Base{Key: key}, Network: external, Address: a, OfHost: true})
			if err != nil {
				return err
			}
			f.floatingIP = made.ID
			failpoint.Here("docker.publish.address")
		}
		var err error
		if f.there, err = sdn.All(d.sdn.FindForwards(ctx, sdn.ForwardQuery{FloatingIPs: []sdn.ID{f.floatingIP}})); err != nil {
			return err
		}
		for _, t := range f.there {
			p.kept[hostPort(a, t.Protocol, t.External.First)] = true
		}
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
			return refuseFor(one, "host port %s/%s is already allocated: another endpoint has published it", hostText(f.address, forward.External.First), protocol(forward.Protocol))
		} else if one != nil {
			return one
		}
	}
	return nil
}

// choose publishes a port at a host port that is free on every address, and at the same one in a repeat.
func (p *publisher) choose(ctx context.Context, m portMap) error {
	first, last := int(m.HostPort), int(m.HostPortEnd)
	if m.HostPort == 0 {
		first, last = firstDynamic, lastDynamic
	}
	if host, chosen := p.chosen(m, first, last); chosen {
		for _, a := range p.on(m) {
			if err := p.reserve(m, a, host); err != nil && !errors.Is(err, hostports.ErrInUse) { // it leads to the container all the same
				return p.refused(err, m, a, host)
			}
		}
		return nil
	}
	for host := range hostPortsFor(p.endpoint, m, first, last) {
		if p.forwardsToOther(m, host) {
			continue
		}
		if free, err := p.try(ctx, m, host); free || err != nil {
			return err
		}
	}
	return refuse("no host port from %d to %d is free for port %d/%s", first, last, m.Port, protocol(m.Proto))
}

// hostPortsFor are the host ports of a range that are tried for a port of an endpoint: where none was asked for from one on that seldom is another's.
func hostPortsFor(endpoint string, m portMap, first, last int) iter.Seq[uint16] {
	count := last - first + 1
	start := 0
	if m.HostPort == 0 {
		h := fnv.New32a()
		fmt.Fprintf(h, "%s %d %d", endpoint, m.Proto, m.Port)
		start = int(h.Sum32() % uint32(count))
	}
	return func(yield func(uint16) bool) {
		for i := range count {
			if !yield(uint16(first + (start+i)%count)) {
				return
			}
		}
	}
}

// forwardsToOther reports whether another endpoint is known to have a host port. It saves a call
// of the SDN for each port that is taken.
func (p *publisher) forwardsToOther(m portMap, host uint16) bool {
	for _, a := range p.on(m) {
		f := p.faces[a]
		taken := func(t sdn.Forward) bool {
			return t.Protocol == m.Proto && t.External.First <= host && host <= t.External.Last &&
				t.Target.Port != f.target.Port
		}
		if slices.ContainsFunc(f.there, taken) {
			return true
		}
	}
	return false
}

// chosen tells which host port every address has had for the port since before this call.
func (p *publisher) chosen(m portMap, first, last int) (uint16, bool) {
	on := p.on(m)
	at := func(a netip.Addr, host uint16) bool {
		return slices.ContainsFunc(p.faces[a].there, func(t sdn.Forward) bool {
			return t.Protocol == m.Proto && t.Internal.First == m.Port && t.External.First == host &&
				t.Target.Port == p.faces[a].target.Port
		})
	}
	for _, t := range p.faces[on[0]].there {
		host := t.External.First
		if int(host) >= first && int(host) <= last && !slices.ContainsFunc(on, func(a netip.Addr) bool { return !at(a, host) }) {
			return host, true
		}
	}
	return 0, false
}

// try publishes at one host port on every address, or on none where one has it taken.
func (p *publisher) try(ctx context.Context, m portMap, host uint16) (free bool, err error) {
	var undo []func() error
	defer func() {
		if free {
			return
		}
		for _, u := range slices.Backward(undo) {
			err = errors.Join(err, u())
		}
	}()
	for _, a := range p.on(m) {
		f, port := p.faces[a], hostPort(a, m.Proto, host)
		mine := p.kept[port]
		switch err := p.ports.Reserve(p.endpoint, port); {
		case errors.Is(err, hostports.ErrHeld), errors.Is(err, hostports.ErrInUse):
			return false, nil
		case err != nil:
			return false, p.refused(err, m, a, host)
		}
		if !mine {
			undo = append(undo, func() error { p.ports.Release(p.endpoint, port); return nil })
		}
		forwards, err := p.sdn.EnsureForwards(ctx, f.floatingIP, []sdn.Forward{f.forward(m, host)})
		if sdn.ReasonOf(err) == sdn.Exists {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		undo = append(undo, func() error { return p.sdn.DeleteForwards(ctx, f.floatingIP, []sdn.ID{forwards[0].ID}) })
	}
	for _, a := range p.on(m) {
		p.kept[hostPort(a, m.Proto, host)] = true
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

// unpublish ends what the proxy publishes of an endpoint, takes its security group away, deletes its floating IPs, with their forwardings, and then
// lets go of the host's ports. Where a record says that nothing was made of it in the SDN, that is not asked.
func (d *Driver) unpublish(ctx context.Context, endpoint string) error {
	d.stopProxied(ctx, endpoint)
	if err := d.unexpose(ctx, endpoint); err != nil {
		return err
	}
	can := d.sdn.Capabilities()
	r, known := d.plugged.get(endpoint)
	if !can.Forwards || !can.HostAddresses && known && !r.Floating {
		return nil
	}
	if !can.HostAddresses {
		if err := d.dropForwarded(ctx, endpoint); err != nil {
			return err
		}
	}
	floating, err := d.published(ctx, endpoint)
	if err != nil {
		return err
	}
	// The last first: those that are left have the first slots, so they are found again.
	for _, f := range slices.Backward(floating) {
		if err := d.sdn.DeleteFloatingIP(ctx, f.ID); err != nil {
			return err
		}
		failpoint.Here("docker.unpublish.address")
	}
	d.hostPorts.ReleaseAll(endpoint)
	if r.Floating {
		r.Floating, r.Forwarder = false, ""
		d.plugged.put(ctx, endpoint, r)
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
