package publish

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"github.com/kuryr/kuryr/internal/hostports"
	"github.com/kuryr/kuryr/internal/ipproto"
	"github.com/kuryr/kuryr/internal/sortslice"
	"github.com/kuryr/kuryr/sdn"
)

// HostPorts keeps ports of the host for the endpoints that publish them. *hostports.Holder is one,
// and documents the errors.
type HostPorts interface {
	// Reserve keeps a port for an owner, which may have it already.
	Reserve(owner string, p hostports.Port) error
	// Restore is Reserve for a port that the SDN says the owner has.
	Restore(owner string, p hostports.Port) error
	// Release and ReleaseAll give ports back; those that the owner does not have are ignored.
	Release(owner string, ports ...hostports.Port)
	ReleaseAll(owner string)
	// Retain gives all ports of the owner back but these.
	Retain(owner string, ports ...hostports.Port)
	// Users names programs of the host that have a port.
	Users(p hostports.Port) []hostports.Program
}

// Endpoint is what ports are published of.
type Endpoint struct {
	ID      string
	Key     sdn.Key // of its publication
	Port    sdn.Port
	Binding netip.Addr // where ports without an address are published; invalid: everywhere
}

// Families reports of which families an endpoint has addresses that can be published.
func (e Endpoint) Families(can sdn.Capabilities) (four, six bool) {
	targets := e.targets(can)
	_, four = targets[false]
	_, six = targets[true]
	return four, six
}

// targets are an endpoint's first address of each family, by whether IPv6.
func (e Endpoint) targets(can sdn.Capabilities) map[bool]sdn.Target {
	targets := map[bool]sdn.Target{}
	for _, a := range e.Port.Addresses {
		if _, has := targets[a.Addr.Is6()]; !has && (a.Addr.Is4() || can.FloatingIPv6) {
			targets[a.Addr.Is6()] = sdn.Target{Port: e.Port.ID, Addr: a.Addr}
		}
	}
	return targets
}

// AtHost makes these be the ports that the endpoint publishes at the host's own addresses, and returns
// them: all, or the error says why not and the caller withdraws what is left. Of the families without,
// none is published.
func (h *Publisher) AtHost(
	ctx context.Context, e Endpoint, ports []Port, without map[bool]bool,
) ([]sdn.PublishedPort, error) {
	targets := e.targets(h.SDN.Capabilities())
	maps.DeleteFunc(targets, func(six bool, _ sdn.Target) bool { return without[six] })
	w := &atHost{Publisher: h, e: e, targets: targets}
	w.there = sync.OnceValues(func() ([]sdn.PublishedPort, error) {
		p, err := h.SDN.Publication(ctx, e.Key)
		return p.Ports, err
	})
	err := h.run(ctx, w, e.ID, ports)
	return w.published, err
}

// each yields the host ports of published ports one by one, with those of the container.
func each(ports []sdn.PublishedPort) func(func(hostports.Port, uint16) bool) {
	return func(yield func(hostports.Port, uint16) bool) {
		for _, p := range ports {
			for n := range int(max(p.External.Last, p.External.First)-p.External.First) + 1 {
				inside := p.Internal.First
				if p.Internal.Last > p.Internal.First {
					inside += uint16(n)
				}
				if !yield(hostPort(p.Host, p.Protocol, p.External.First+uint16(n)), inside) {
					return
				}
			}
		}
	}
}

// Withdraw ends all that an endpoint publishes, and then gives up its host ports.
func (h *Publisher) Withdraw(ctx context.Context, e Endpoint) error {
	if err := h.SDN.Unpublish(ctx, e.Key); err != nil {
		return err
	}
	if h.Ports != nil {
		h.Ports.ReleaseAll(e.ID)
	}
	return nil
}

// Restore reserves host ports that an endpoint publishes again, after a restart. A port that a
// program took since is logged: the container is reached all the same, and the program is not.
func (h *Publisher) Restore(ctx context.Context, endpoint string, ports []sdn.PublishedPort) {
	if h.Ports == nil {
		return
	}
	for p := range each(ports) {
		err := h.Ports.Restore(endpoint, p)
		if err == nil {
			continue
		}
		var users []hostports.Program
		if errors.Is(err, hostports.ErrInUse) { // the search goes through all processes
			users = h.Ports.Users(p)
		}
		h.Log.WarnContext(ctx, "published port not reserved again", "endpoint", endpoint, "err", err,
			"port", hostText(p.Address.Addr(), p.Address.Port()), "protocol", ipproto.Name(p.Protocol), "used_by", users)
	}
}

// atHost is the way at the host's own addresses.
type atHost struct {
	*Publisher
	e       Endpoint
	targets map[bool]sdn.Target // by whether IPv6
	there   func() ([]sdn.PublishedPort, error)
	// published are the ports that the SDN publishes.
	published []sdn.PublishedPort
}

func (w *atHost) addresses(p Port) []netip.Addr {
	host := p.Host
	if !host.IsValid() {
		host = w.e.Binding
	}
	on := []netip.Addr{host}
	if !host.IsValid() {
		on = []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()}
	}
	return slices.DeleteFunc(on, func(a netip.Addr) bool {
		_, has := w.targets[a.Is6()]
		return !has
	})
}

func (w *atHost) before(_ context.Context, c choice, free func(uint16) bool) (uint16, error) {
	there, err := w.there()
	if err != nil {
		return 0, err
	}
	found := map[uint16]int{} // at how many of the addresses
	for p, inside := range each(there) {
		if inside != c.Port.Port || p.Protocol != c.Protocol || !slices.Contains(c.on, p.Address.Addr()) {
			continue
		}
		host := p.Address.Port()
		if found[host]++; found[host] == len(c.on) && free(host) {
			return host, nil
		}
	}
	return 0, nil
}

func (w *atHost) reserve(_ context.Context, c choice) error {
	if w.Ports == nil {
		return nil
	}
	for n, a := range c.on {
		p := hostPort(a, c.Protocol, c.host)
		err := w.Ports.Reserve(w.e.ID, p)
		if errors.Is(err, hostports.ErrInUse) && w.has(p) {
			continue // the program that has it is cut off already
		}
		if err != nil {
			w.release(choice{Port: c.Port, host: c.host, on: c.on[:n]})
			return &notFree{a, err}
		}
	}
	return nil
}

func (w *atHost) has(port hostports.Port) bool {
	there, _ := w.there()
	for p := range each(there) {
		if p == port {
			return true
		}
	}
	return false
}

func (w *atHost) release(c choice) {
	if w.Ports == nil {
		return
	}
	for _, a := range c.on {
		w.Ports.Release(w.e.ID, hostPort(a, c.Protocol, c.host))
	}
}

// publish publishes neighbours as one range. If the SDN refuses a range, it is asked for each port,
// so that it names the one.
func (w *atHost) publish(ctx context.Context, choices []choice) error {
	var err error
	for _, ranges := range []bool{true, false} {
		var ports []sdn.PublishedPort
		var of []int // the choice of each port
		ports, of = w.forwards(choices, ranges)
		if _, err = w.SDN.Publish(ctx, sdn.PublicationSpec{Key: w.e.Key, Ports: ports}); err == nil {
			if w.Ports != nil {
				var kept []hostports.Port
				for p := range each(ports) {
					kept = append(kept, p)
				}
				w.Ports.Retain(w.e.ID, kept...)
			}
			w.published = ports
			return nil
		}
		at, ok := position(sdn.FieldOf(err))
		if sdn.ReasonOf(err) != sdn.Exists || !ok || at >= len(ports) {
			return err
		}
		if ports[at].External.Last == ports[at].External.First {
			return &taken{choice: of[at], at: ports[at].Host, err: err}
		}
	}
	return err
}

// forwards are the ports of all choices at all their addresses, and of which choice each is the
// first.
func (w *atHost) forwards(choices []choice, ranges bool) (ports []sdn.PublishedPort, of []int) {
	type single struct {
		choice int
		at     netip.Addr
	}
	var singles []single
	for i, c := range choices {
		for _, a := range c.on {
			singles = append(singles, single{i, a})
		}
	}
	sortslice.Stable(singles, func(x, y single) int {
		a, b := choices[x.choice], choices[y.choice]
		return cmp.Or(x.at.Compare(y.at), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.host, b.host))
	})
	for _, s := range singles {
		c := choices[s.choice]
		if n := len(ports) - 1; ranges && n >= 0 && follows(ports[n], s.at, c) {
			ports[n].External.Last, ports[n].Internal.Last = c.host, c.Port.Port
			continue
		}
		ports = append(ports, sdn.PublishedPort{Host: s.at, Forward: sdn.Forward{
			Protocol: c.Protocol, External: sdn.PortRange{First: c.host, Last: c.host},
			Target: w.targets[s.at.Is6()], Internal: sdn.PortRange{First: c.Port.Port, Last: c.Port.Port},
		}})
		of = append(of, s.choice)
	}
	return ports, of
}

// follows reports whether a choice is the next port of a range, inside as outside.
func follows(p sdn.PublishedPort, at netip.Addr, c choice) bool {
	return p.Host == at && p.Protocol == c.Protocol && p.External.Last+1 == c.host && p.Internal.Last+1 == c.Port.Port &&
		c.host != 0 && c.Port.Port != 0
}
