package docker

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/kuryr/kuryr/docker/engine"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/sdn"
)

// Engine is the part of an engine.Client that a comparison uses. No plugin call may wait for
// it.
type Engine interface {
	List(ctx context.Context) (engine.List, error)
	Endpoints(ctx context.Context, network string) ([]engine.Endpoint, error)
}

// The nouns of what can be forgotten, in the order in which it is removed.
const (
	NounPublication = "publication" // host ports of an endpoint that is not there
	NounEndpoint    = "endpoint"
	NounAddress     = "address" // taken, and of no endpoint
	NounNetwork     = "network"
	NounPool        = "pool"
)

// Forgotten is something that this front end keeps for an engine that does not know it.
type Forgotten struct {
	Noun string
	ID   sdn.ID // in the SDN
	Name string // the engine's id of a network or an endpoint, or an address, or a range
	Why  string
	// Kept is why it must not be removed without being asked for; "" where it may.
	Kept string
	// Engine is the engine that was seen to have it; "" where none was. It is told where that is why it is kept.
	Engine string
	// Connected tells that a container has the interface: it is never removed.
	Connected bool
	// NotBefore is when it may be removed at the earliest; zero where that is no matter.
	NotBefore time.Time
	Updated   time.Time // in the SDN

	revision  int64
	hidden    bool // a network that holds addresses for another driver's
	linked    bool // a network that existed before the engine's: its link is what is meant
	untouched bool // a network that no engine was seen to have: it goes only as it is
	untold    bool // a network that no engine was told of: it goes only while that is so
}

func (f Forgotten) String() string { return f.Noun + " " + f.Name + ": " + f.Why }

// key is the identity of a finding from one comparison to the next: what was changed between the two was not forgotten.
func (f Forgotten) key() string { return fmt.Sprintf("%s %s %s %d", f.Noun, f.ID, f.Name, f.revision) }

// Comparison is what came of comparing an engine with the SDN.
type Comparison struct {
	Engine    string // its id
	Forgotten []Forgotten
	Unknown   []engine.Network // of this driver by what the engine says, and not in the SDN
	// Running are the endpoints of containers that run on networks that both have, and their ports; a port without id is none.
	Running []Running

	seen []sdn.Network // the engine has them and they do not say so yet
	used []enginePool  // likewise

	told   []beginning // the engine has them: it was told
	absent []beginning // the SDN does not have them
}

// Running is an endpoint of a container that runs.
type Running struct {
	engine.Endpoint
	Port sdn.Port
}

// localID is the form of the ids of networks that are one engine's alone; a swarm's are shorter.
var localID = regexp.MustCompile(`^[0-9a-f]{64}$`)

// Forgotten compares what this front end keeps in the SDN with what the engine has, and changes nothing. The SDN is read first, so
// that what comes while the engine is asked is not missed in it. What an engine is just being given shows up too: only what is
// found again later is forgotten.
func (d *Driver) Forgotten(ctx context.Context, e Engine) (Comparison, error) {
	c := comparer{d: d, engine: e, inspected: map[string][]engine.Endpoint{}, left: d.begun.left()}
	if err := c.read(ctx); err != nil {
		return Comparison{}, err
	}
	var err error
	if c.view, err = e.List(ctx); err != nil {
		return Comparison{}, err
	}
	if c.view.Engine == "" {
		return Comparison{}, errors.New("list of an engine without identity")
	}
	c.view.Engine = identity.EngineName(c.view.Engine)
	c.index()
	for _, compare := range []func(context.Context) error{c.running, c.publications, c.endpoints, c.addresses, c.networks, c.pools, c.beginnings} {
		if err := compare(ctx); err != nil {
			return Comparison{}, err
		}
	}
	c.out.Engine = c.view.Engine
	return c.out, nil
}
