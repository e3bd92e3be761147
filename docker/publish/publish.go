// Package publish publishes transport ports of containers: at the host's own addresses, at a
// floating IP, or by a proxy of this process.
//
// It chooses host ports, reserves them before anything is published, and hands all ports of an
// endpoint over by one call: all are published or none. Its refusals are those of docker/api. It must
// not know Docker's requests, and it stores nothing.
package publish

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"net/netip"
	"strconv"
	"strings"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/docker/publish/portproxy"
	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/kuryr/kuryr/internal/hostports"
	"github.com/kuryr/kuryr/internal/ipproto"
	"github.com/kuryr/kuryr/sdn"
)

// firstDynamic and lastDynamic are the host ports to choose from where none is asked for (moby:
// portallocator's fallback, IANA's dynamic ports).
const firstDynamic, lastDynamic = 49153, 65535

// Publisher publishes ports of endpoints.
type Publisher struct {
	SDN   sdn.Provider
	Ports HostPorts // nil: any port that the SDN allows
	Proxy *portproxy.Proxy
	Log   *slog.Logger
}

// Users names programs of the host that have a port.
func (h *Publisher) Users(p hostports.Port) []hostports.Program {
	if h.Ports == nil {
		return nil
	}
	return h.Ports.Users(p)
}

func (h *Publisher) run(ctx context.Context, w way, endpoint string, ports []Port) error {
	c := &chooser{way: w, endpoint: endpoint, users: h.Users}
	return c.run(ctx, ports)
}

// Port is a port to publish.
type Port struct {
	Protocol sdn.Protocol
	Port     uint16     // of the container
	Host     netip.Addr // the host's address; invalid: all, or where the network binds
	// First and Last are the host ports to choose from. 0 stands for any dynamic one.
	First, Last uint16
}

func (p Port) isFixed() bool { return p.First != 0 && p.Last <= p.First }

func (p Port) String() string { return fmt.Sprintf("%d/%s", p.Port, ipproto.Name(p.Protocol)) }

// Meets reports whether an address of the host is, or counts as, one that the port names.
func (p Port) Meets(a netip.Addr) bool {
	unspecified := p.Host.IsUnspecified() || a.IsUnspecified()
	return !p.Host.IsValid() || p.Host == a || p.Host.Is6() == a.Is6() && unspecified
}

// Wants reports whether the port asks for a host port that is published.
func (p Port) Wants(host netip.Addr, protocol sdn.Protocol, published sdn.PortRange) bool {
	return p.First != 0 && p.Protocol == protocol && p.Meets(host) &&
		published.First <= max(p.First, p.Last) && published.Last >= p.First
}

// choice is a port with the host port that was chosen for it.
type choice struct {
	Port
	on   []netip.Addr // addresses of the host
	host uint16
}

// way is how the ports of one endpoint are published.
type way interface {
	// addresses lists the host's addresses at which to publish a port.
	addresses(Port) []netip.Addr
	// before returns a host port at which the endpoint publishes the port already, and that the
	// filter lets be; 0: none.
	before(ctx context.Context, c choice, free func(host uint16) bool) (uint16, error)
	// reserve keeps a host port at all addresses or at none. Its errors are *notFree.
	reserve(context.Context, choice) error
	release(choice)
	// publish publishes all or none. The error of a port that another has is a *taken.
	publish(context.Context, []choice) error
}

// notFree is why a host port cannot be reserved.
type notFree struct {
	at  netip.Addr
	err error // of hostports or portproxy
}

func (e *notFree) Error() string { return e.err.Error() }
func (e *notFree) Unwrap() error { return e.err }

// taken is a host port that is not this host's to reserve, and that the SDN has given to another.
type taken struct {
	choice int
	at     netip.Addr
	err    error
}

func (e *taken) Error() string { return e.err.Error() }
func (e *taken) Unwrap() error { return e.err }

// slot is a port of an address of the host.
type slot struct {
	protocol sdn.Protocol
	at       netip.AddrPort
}

// chooser chooses the host ports of one endpoint.
type chooser struct {
	way
	endpoint string
	users    func(hostports.Port) []hostports.Program
	choices  []choice
	used     map[slot]bool // by the choices
	tried    []int         // by choice: how many candidates
}

// run chooses host ports and publishes all ports.
func (c *chooser) run(ctx context.Context, ports []Port) error {
	c.choices, c.tried, c.used = make([]choice, len(ports)), make([]int, len(ports)), map[slot]bool{}
	for i, p := range ports {
		c.choices[i] = choice{Port: p, on: c.addresses(p)}
		if len(c.choices[i].on) == 0 {
			text := ""
			if p.Host.IsValid() {
				text = p.Host.String()
			}
			return api.Refuse("port %v cannot be published on %q: the endpoint has no address of that family", p, text)
		}
	}
	// Given ports first, so that none of them is chosen for another.
	for _, fixed := range []bool{true, false} {
		for i := range c.choices {
			if c.choices[i].isFixed() != fixed {
				continue
			}
			if err := c.choose(ctx, i); err != nil {
				return err
			}
		}
	}
	failpoint.Here("docker.publish.reserved")
	for {
		err := c.publish(ctx, c.choices)
		conflict := (*taken)(nil)
		if !errors.As(err, &conflict) {
			failpoint.Here("docker.publish.done")
			return err
		}
		if err := c.another(ctx, conflict); err != nil {
			return err
		}
	}
}

// choose chooses and reserves the host port of a choice: the given one, the one it has already, or
// the next candidate.
func (c *chooser) choose(ctx context.Context, i int) error {
	choice := &c.choices[i]
	if choice.isFixed() {
		choice.host = choice.First
	} else {
		first, last := choice.candidates()
		free := func(host uint16) bool {
			at := *choice
			at.host = host
			return int(host) >= first && int(host) <= last && !c.uses(at)
		}
		var err error
		if choice.host, err = c.before(ctx, *choice, free); err != nil {
			return err
		}
		if choice.host == 0 {
			return c.next(ctx, i)
		}
	}
	if err := c.reserve(ctx, *choice); err != nil {
		return c.refused(*choice, err)
	}
	c.use(*choice, true)
	return nil
}

func (p Port) candidates() (first, last int) {
	if p.First == 0 {
		return firstDynamic, lastDynamic
	}
	return int(p.First), int(p.Last)
}

// next reserves the next candidate of a choice that is free.
func (c *chooser) next(ctx context.Context, i int) error {
	choice := &c.choices[i]
	first, last := choice.candidates()
	start := 0
	if choice.First == 0 {
		// The search begins where other endpoints rarely begin.
		h := fnv.New32a()
		fmt.Fprintf(h, "%s %d %d", c.endpoint, choice.Protocol, choice.Port.Port)
		start = int(h.Sum32() % uint32(last-first+1))
	}
	for count := last - first + 1; c.tried[i] < count; {
		choice.host = uint16(first + (start+c.tried[i])%count)
		c.tried[i]++
		if c.uses(*choice) {
			continue
		}
		err := c.reserve(ctx, *choice)
		if err == nil {
			c.use(*choice, true)
			return nil
		}
		if !errors.Is(err, hostports.ErrHeld) && !errors.Is(err, hostports.ErrInUse) {
			return c.refused(*choice, err)
		}
	}
	return api.Refuse("no host port from %d to %d is free for port %v", first, last, choice.Port)
}

// another chooses another host port instead of one that is another's.
func (c *chooser) another(ctx context.Context, conflict *taken) error {
	choice := c.choices[conflict.choice]
	if choice.isFixed() {
		return api.RefuseFor(conflict.err, "host port %s/%s is already allocated: another endpoint has published it",
			hostText(conflict.at, choice.host), ipproto.Name(choice.Protocol))
	}
	c.release(choice)
	c.use(choice, false)
	return c.next(ctx, conflict.choice)
}

func (c *chooser) use(choice choice, used bool) {
	for _, a := range choice.on {
		s := slot{choice.Protocol, netip.AddrPortFrom(a, choice.host)}
		if used {
			c.used[s] = true
		} else {
			delete(c.used, s)
		}
	}
}

func (c *chooser) uses(choice choice) bool {
	for _, a := range choice.on {
		if c.used[slot{choice.Protocol, netip.AddrPortFrom(a, choice.host)}] {
			return true
		}
	}
	return false
}

func (c *chooser) refused(choice choice, err error) error {
	free := (*notFree)(nil)
	if !errors.As(err, &free) {
		return err
	}
	text := fmt.Sprintf("%s/%s", hostText(free.at, choice.host), ipproto.Name(choice.Protocol))
	switch {
	case errors.Is(err, hostports.ErrHeld):
		return api.Refuse("host port %s is already allocated: %v", text, err)
	case errors.Is(err, hostports.ErrInUse):
		users := c.users(hostPort(free.at, choice.Protocol, choice.host))
		return api.Refuse("host port %s is already allocated: %s", text, user(users))
	case errors.Is(err, hostports.ErrNoAddress):
		return api.Refuse("port %v cannot be published on %s: %v", choice.Port, free.at, err)
	case errors.Is(err, portproxy.ErrProtocol), errors.Is(err, portproxy.ErrNoFamily):
		return api.Refuse("port %v cannot be published: %v", choice.Port, err)
	case errors.Is(err, hostports.ErrNoFiles):
		return api.Refuse("host port %s cannot be published: %v", text, err)
	}
	return api.RefuseFor(free.err, "host port %s cannot be published", text)
}

// user names the program that has a port. The engine's own drivers have docker-proxy, or the
// engine itself, listen at what they publish.
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

func hostPort(a netip.Addr, p sdn.Protocol, port uint16) hostports.Port {
	return hostports.Port{Protocol: p, Address: netip.AddrPortFrom(a, port)}
}

// hostText is a port of the host as its user named it.
func hostText(a netip.Addr, port uint16) string {
	if a.IsUnspecified() {
		return strconv.Itoa(int(port))
	}
	return netip.AddrPortFrom(a, port).String()
}

// position reads the index from a field such as "ports[3].external".
func position(field string) (at int, ok bool) {
	_, rest, _ := strings.Cut(field, "[")
	text, _, ok := strings.Cut(rest, "]")
	at, err := strconv.Atoi(text)
	return at, ok && err == nil
}
