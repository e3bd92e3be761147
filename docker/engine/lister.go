package engine

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"

	"github.com/kuryr/kuryr/internal/reconcile"
)

// Source is the part of a Client that a Lister uses.
type Source interface {
	List(ctx context.Context) (List, error)
	Endpoints(ctx context.Context, network string) ([]Endpoint, error)
}

// Lister lists an engine for a store, which compares its rows with the list. It implements
// reconcile.Engine; the Content of its lists is a *Content.
//
// The list of an engine has the endpoints of containers that run. Those of others are asked for by
// network, so a Lister asks for the networks that the rows it lacks are on.
type Lister struct {
	source   Source
	unlisted []func(*Content) []string
}

// NewLister returns a Lister of an engine.
func NewLister(s Source) *Lister { return &Lister{source: s} }

// Attach adds a function that returns the networks of rows that a list lacks. These may have
// endpoints that no running container has. It is called before the first List.
func (l *Lister) Attach(unlisted func(*Content) []string) {
	l.unlisted = append(l.unlisted, unlisted)
}

// List returns a complete list of the engine.
func (l *Lister) List(ctx context.Context) (reconcile.List, error) {
	list, err := l.source.List(ctx)
	if err != nil {
		return reconcile.List{}, err
	}
	if list.Engine == "" {
		return reconcile.List{}, errors.New("list of an engine without identity")
	}
	c := newContent(list)
	var ask []string
	for _, unlisted := range l.unlisted {
		ask = append(ask, unlisted(c)...)
	}
	slices.Sort(ask)
	for _, network := range slices.Compact(ask) {
		if _, ok := c.networks[network]; !ok {
			continue
		}
		on, err := l.source.Endpoints(ctx, network)
		if err != nil && !IsNotFound(err) {
			return reconcile.List{}, fmt.Errorf("endpoints on network %s: %w", network, err)
		}
		c.asked[network] = newEndpoints()
		for _, e := range on {
			c.asked[network].add(e)
		}
	}
	return reconcile.List{Engine: list.Engine, Content: c}, nil
}

// Content is a list with the endpoints on some of its networks. It does not change.
type Content struct {
	List
	networks map[string]Network
	ranges   map[netip.Prefix][]string // networks with an IPAM driver that can be this plugin
	running  map[string]*endpoints     // of containers that run, by network
	asked    map[string]*endpoints     // all on a network
	ids      map[string]bool           // of all endpoints of containers that run
}

// endpoints are those on a network, as its rows ask for them.
type endpoints struct {
	ids       map[string]bool
	addresses map[netip.Addr]bool
}

func (e *endpoints) add(o Endpoint) {
	e.ids[o.ID] = true
	for _, a := range o.Addresses {
		e.addresses[a] = true
	}
}

func newEndpoints() *endpoints {
	return &endpoints{ids: map[string]bool{}, addresses: map[netip.Addr]bool{}}
}

func newContent(l List) *Content {
	c := &Content{
		List: l, networks: map[string]Network{}, ranges: map[netip.Prefix][]string{},
		running: map[string]*endpoints{}, asked: map[string]*endpoints{}, ids: map[string]bool{},
	}
	for _, n := range l.Networks {
		c.networks[n.ID] = n
		for _, sub := range n.Subnets {
			if n.OurIPAM && !slices.Contains(c.ranges[sub.Range], n.ID) {
				c.ranges[sub.Range] = append(c.ranges[sub.Range], n.ID)
			}
		}
	}
	for _, o := range l.Containers {
		for _, e := range o.Endpoints {
			if c.running[e.Network] == nil {
				c.running[e.Network] = newEndpoints()
			}
			c.running[e.Network].add(e)
			c.ids[e.ID] = true
		}
	}
	return c
}

// InRange returns the networks that have a range, and whose IPAM driver can be this plugin.
func (c *Content) InRange(cidr netip.Prefix) []string { return c.ranges[cidr] }

// Network returns a network by its id.
func (c *Content) Network(id string) (Network, bool) {
	n, ok := c.networks[id]
	return n, ok
}

// localID is the form of the ids of networks that one engine alone has. A swarm's are shorter.
var localID = regexp.MustCompile(`^[0-9a-f]{64}$`)

// IsLocal reports whether one engine alone can have a network with this id.
func IsLocal(id string) bool { return localID.MatchString(id) }

// IsShared reports whether other nodes of the engine's swarm can have a network.
func (l List) IsShared(id string) bool { return l.Swarm.Member && !IsLocal(id) }

// All reports whether the list has all endpoints on a network. If not, it has those of containers
// that run, and nothing may be concluded from the absence of another.
func (c *Content) All(network string) bool {
	_, exists := c.networks[network]
	return c.asked[network] != nil || !exists
}

// HasEndpoint reports whether the engine has an endpoint. It is true if that is unknown.
func (c *Content) HasEndpoint(network, id string) bool {
	if on := c.asked[network]; on != nil && on.ids[id] {
		return true
	}
	return c.IsRunning(network, id) || !c.All(network)
}

// HasAddress reports whether an endpoint on a network has an address.
func (c *Content) HasAddress(network string, addr netip.Addr) bool {
	for _, on := range []*endpoints{c.running[network], c.asked[network]} {
		if on != nil && on.addresses[addr] {
			return true
		}
	}
	return false
}

// IsRunning reports whether a container that runs has an endpoint.
func (c *Content) IsRunning(network, id string) bool {
	on := c.running[network]
	return on != nil && on.ids[id]
}

// Runs reports whether a container that runs has an endpoint, on any network.
func (c *Content) Runs(id string) bool { return c.ids[id] }
