package docker

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/kuryr/kuryr/internal/hostports"
	"github.com/kuryr/kuryr/sdn"
)

// HostPorts keeps ports of the host for the endpoints that have published them. *hostports.Holder is one, and says what the errors are.
type HostPorts interface {
	// Reserve keeps a port for an owner, who may have it already.
	Reserve(owner string, p hostports.Port) error
	// Restore is Reserve for what the SDN says the owner has.
	Restore(owner string, p hostports.Port) error
	// Release and ReleaseAll give ports back; those that the owner does not have are passed over.
	Release(owner string, ports ...hostports.Port)
	ReleaseAll(owner string)
	// Users names programs of the host that have a port.
	Users(p hostports.Port) []hostports.Program
}

// noHostPorts keeps nothing: whatever the SDN allows can be published.
type noHostPorts struct{}

// Reserve lets everybody have every port.
func (noHostPorts) Reserve(string, hostports.Port) error { return nil }

// Restore lets everybody have every port.
func (noHostPorts) Restore(string, hostports.Port) error { return nil }

// Release does nothing.
func (noHostPorts) Release(string, ...hostports.Port) {}

// ReleaseAll does nothing.
func (noHostPorts) ReleaseAll(string) {}

// Users knows nobody.
func (noHostPorts) Users(hostports.Port) []hostports.Program { return nil }

func hostPort(a netip.Addr, p sdn.Protocol, port uint16) hostports.Port {
	return hostports.Port{Protocol: p, Address: netip.AddrPortFrom(a, port)}
}

// hostText is a host's port as its user gave it.
func hostText(a netip.Addr, port uint16) string {
	if a.IsUnspecified() {
		return strconv.Itoa(int(port))
	}
	return netip.AddrPortFrom(a, port).String()
}

// reserve keeps a port of the host for the endpoint.
func (p *publisher) reserve(m portMap, a netip.Addr, host uint16) error {
	port := hostPort(a, m.Proto, host)
	if err := p.ports.Reserve(p.endpoint, port); err != nil {
		return err
	}
	p.kept[port] = true
	return nil
}

// has tells whether the SDN has a forwarding of the endpoint already, as in a repeat. Then nobody's program can be kept from being cut off any
// more, and the repeat changes nothing.
func (d *Driver) has(ctx context.Context, endpoint string, p hostports.Port) (bool, error) {
	there, err := d.published(ctx, endpoint)
	if err != nil {
		return false, err
	}
	for _, f := range there {
		if f.Address != p.Address.Addr() {
			continue
		}
		forwards, err := sdn.All(d.sdn.FindForwards(ctx, sdn.ForwardQuery{FloatingIPs: []sdn.ID{f.ID}}))
		if err != nil {
			return false, err
		}
		return slices.ContainsFunc(forwards, func(w sdn.Forward) bool { return w.Protocol == p.Protocol && w.External.First == p.Address.Port() }), nil
	}
	return false, nil
}

// refused says why a port of the host cannot be had.
func (p *publisher) refused(err error, m portMap, a netip.Addr, host uint16) error {
	text := fmt.Sprintf("%s/%s", hostText(a, host), protocol(m.Proto))
	switch {
	case errors.Is(err, hostports.ErrHeld):
		return refuse("host port %s is already allocated: %v", text, err)
	case errors.Is(err, hostports.ErrInUse):
		return refuse("host port %s is already allocated: %s", text, user(p.ports.Users(hostPort(a, m.Proto, host))))
	case errors.Is(err, hostports.ErrNoAddress):
		return refuse("port %d/%s cannot be published on %s: %v", m.Port, protocol(m.Proto), a, err)
	case errors.Is(err, hostports.ErrNoFiles):
		return refuse("host port %s cannot be published: %v", text, err)
	}
	return refuseFor(err, "host port %s cannot be published", text)
}

// user tells who has a port. The engine's own drivers have a process, or the engine itself, listen at what they publish.
func user(programs []hostports.Program) string {
	var names []string
	for _, p := range programs {
		if strings.HasPrefix(p.Name, "docker-proxy") || strings.HasPrefix(p.Name, "dockerd") {
			return fmt.Sprintf("a container on another driver's network has published it, by %s", p)
		}
		names = append(names, p.String())
	}
	if names == nil {
		return hostports.ErrInUse.Error()
	}
	return hostports.ErrInUse.Error() + ": " + strings.Join(names, ", ")
}

// The floating IPs of an endpoint are found by their Keys: one for each family's every address, and one for each single address in slots
// that are numbered without a gap.

func (d *Driver) publishKey(endpoint string, v6 bool) sdn.Key {
	if v6 {
		return d.key(kindPublish, endpoint+"/6")
	}
	return d.key(kindPublish, endpoint+"/4")
}

func (d *Driver) slotKey(endpoint string, slot int) sdn.Key {
	return d.key(kindPublish, fmt.Sprintf("%s/at%d", endpoint, slot))
}

// slotsAtOnce is how many slots are looked up in one query.
const slotsAtOnce = 8

// published are the floating IPs of an endpoint, those in slots in their order and last.
func (d *Driver) published(ctx context.Context, endpoint string) ([]sdn.FloatingIP, error) {
	keys := []sdn.Key{d.publishKey(endpoint, false), d.publishKey(endpoint, true)}
	var all []sdn.FloatingIP
	for slot := 1; ; {
		for range slotsAtOnce {
			keys = append(keys, d.slotKey(endpoint, slot))
			slot++
		}
		found, err := sdn.All(d.sdn.FindFloatingIPs(ctx, sdn.FloatingIPQuery{Match: sdn.Match{Keys: keys}}))
		if err != nil {
			return nil, err
		}
		slices.SortFunc(found, func(a, b sdn.FloatingIP) int { return slices.Index(keys, a.Key) - slices.Index(keys, b.Key) })
		all = append(all, found...)
		if len(found) == 0 || found[len(found)-1].Key != keys[len(keys)-1] {
			return all, nil
		}
		keys = nil
	}
}

// restorePorts reserves anew what is published, after a restart. What a program has taken meanwhile is only told of: the container
// is reached all the same, and the program is not.
func (d *Driver) restorePorts(ctx context.Context) error {
	match := sdn.Match{Owner: d.sdn.Installation(), Kind: kindPublish}
	if can := d.sdn.Capabilities(); !can.Forwards || !can.HostAddresses {
		return nil
	}
	floating, err := sdn.All(d.sdn.FindFloatingIPs(ctx, sdn.FloatingIPQuery{Match: match}))
	if err != nil {
		return err
	}
	var errs []error
	for _, f := range floating {
		errs = append(errs, d.restoreFace(ctx, f))
	}
	return errors.Join(errs...)
}

func (d *Driver) restoreFace(ctx context.Context, f sdn.FloatingIP) error {
	endpoint, _, _ := strings.Cut(f.Key.Name, "/")
	unlock, err := d.locks.lock(ctx, "endpoint/"+endpoint)
	if err != nil {
		return err
	}
	defer unlock()
	forwards, err := sdn.All(d.sdn.FindForwards(ctx, sdn.ForwardQuery{FloatingIPs: []sdn.ID{f.ID}}))
	if err != nil {
		return err
	}
	for _, w := range forwards {
		for port := int(w.External.First); port <= int(w.External.Last); port++ {
			p := hostPort(f.Address, w.Protocol, uint16(port))
			if err := d.hostPorts.Restore(endpoint, p); err != nil {
				var users []hostports.Program
				if errors.Is(err, hostports.ErrInUse) { // finding out goes through all processes
					users = d.hostPorts.Users(p)
				}
				d.log.WarnContext(ctx, "a published port could not be reserved again", "endpoint", endpoint, "port", hostText(f.Address, uint16(port)),
					"protocol", protocol(w.Protocol), "error", err, "used_by", users)
			}
		}
	}
	return nil
}
