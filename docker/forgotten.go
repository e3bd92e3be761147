package docker

import (
	"context"
	"fmt"
	"net/netip"
	"regexp"
	"time"

	"github.com/kuryr/kuryr/sdn"
)

// Engine is asked what a Docker engine has. It must not be asked on the path of a plugin call: the engine holds locks while it
// waits for its plugins.
type Engine interface {
	// Look tells all that the engine has, or fails: never a part of it.
	Look(ctx context.Context) (EngineView, error)
	// Endpoints are those that the engine has on one of its networks, also those that no container has any more; false for a
	// network that it has not.
	Endpoints(ctx context.Context, network string) ([]EngineEndpoint, bool, error)
}

// EngineView is what an engine has.
type EngineView struct {
	ID        string // tells engines apart, one with another data root among them; of at most 40 bytes, without commas
	Swarm     bool   // it is part of a swarm, so others know networks that it does not
	Networks  []EngineNetwork
	Endpoints []EngineEndpoint // of containers that run; others' are asked of their networks
}

// EngineNetwork is a network of an engine.
type EngineNetwork struct {
	ID, Name string
	Ours     bool // its driver is this plugin
	OurIPAM  bool // its IPAM driver may be this plugin
	Ranges   []netip.Prefix
}

// EngineEndpoint is an endpoint of an engine.
type EngineEndpoint struct {
	ID        string
	Network   string // its id; "" where it is asked for by that
	Container string // the container's name; "" where it is not told
	Addresses []netip.Addr
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
	Unknown   []EngineNetwork // of this driver by what the engine says, and not in the SDN
	// Running are the endpoints of containers that run on networks that both have, and their ports; a port without id is none.
	Running []Running

	seen []sdn.Network // the engine has them and they do not say so yet
	used []enginePool  // likewise

	told   []beginning // the engine has them: it was told
	absent []beginning // the SDN does not have them
}

// Running is an endpoint of a container that runs.
type Running struct {
	EngineEndpoint
	Port sdn.Port
}

// localID is the form of the ids of networks that are one engine's alone; a swarm's are shorter.
var localID = regexp.MustCompile(`^[0-9a-f]{64}$`)

// Forgotten compares what this front end keeps in the SDN with what the engine has, and changes nothing. The SDN is read first, so
// that what comes while the engine is asked is not missed in it. What an engine is just being given shows up too: only what is
// found again later is forgotten.
func (d *Driver) Forgotten(ctx context.Context, engine Engine) (Comparison, error) {
	c := comparer{d: d, engine: engine, inspected: map[string][]EngineEndpoint{}, left: d.begun.left()}
	if err := c.read(ctx); err != nil {
		return Comparison{}, err
	}
	var err error
	if c.view, err = engine.Look(ctx); err != nil {
		return Comparison{}, err
	}
	if c.view.ID == "" {
		return Comparison{}, fmt.Errorf("the engine does not tell who it is")
	}
	c.view.ID = engineName(c.view.ID)
	c.index()
	for _, compare := range []func(context.Context) error{c.running, c.publications, c.endpoints, c.addresses, c.networks, c.pools, c.beginnings} {
		if err := compare(ctx); err != nil {
			return Comparison{}, err
		}
	}
	c.out.Engine = c.view.ID
	return c.out, nil
}
