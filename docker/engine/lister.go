package engine

import (
	"context"
	"errors"
	"fmt"
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
		c.asked[network] = on
	}
	return reconcile.List{Engine: list.Engine, Content: c}, nil
}

// Content is a list with the endpoints on some of its networks. It does not change.
type Content struct {
	List
	networks map[string]Network
	running  map[string][]Endpoint // of containers that run, by network
	asked    map[string][]Endpoint // all on a network
}

func newContent(l List) *Content {
	c := &Content{
		List: l, networks: map[string]Network{},
		running: map[string][]Endpoint{}, asked: map[string][]Endpoint{},
	}
	for _, n := range l.Networks {
		c.networks[n.ID] = n
	}
	for _, e := range l.Endpoints() {
		c.running[e.Network] = append(c.running[e.Network], e)
	}
	return c
}

// Network returns a network by its id.
func (c *Content) Network(id string) (Network, bool) {
	n, ok := c.networks[id]
	return n, ok
}

// On returns the endpoints on a network, and whether these are all. If not, they are those of
// containers that run, and nothing may be concluded from the absence of another.
func (c *Content) On(network string) (endpoints []Endpoint, all bool) {
	if on, ok := c.asked[network]; ok {
		return slices.Concat(c.running[network], on), true
	}
	_, exists := c.networks[network]
	return c.running[network], !exists
}

// HasEndpoint reports whether the engine has an endpoint. It is true if that is unknown.
func (c *Content) HasEndpoint(network, id string) bool {
	on, all := c.On(network)
	return !all || slices.ContainsFunc(on, func(e Endpoint) bool { return e.ID == id })
}

// IsRunning reports whether a container that runs has an endpoint.
func (c *Content) IsRunning(network, id string) bool {
	return slices.ContainsFunc(c.running[network], func(e Endpoint) bool { return e.ID == id })
}
