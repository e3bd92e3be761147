package engine

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"maps"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"
)

// List is what one engine has. It is complete: an engine that does not answer one of the
// questions in full, or that is another one at the end, gives an error instead.
//
// The engine answers one question after another. What it had from Began to the end is in the
// list, but for networks of a swarm without Swarm.Complete, and for endpoints that no
// container with IsUp has: Client.Endpoints lists all of a network.
type List struct {
	Began      time.Time // before the first question
	Engine     string    // identity of the engine, as Identity returns it
	Version    string    // of the engine, such as "20.10.24"
	Swarm      Swarm
	Networks   []Network
	Containers []Container
}

// Endpoints returns the endpoints of all containers.
func (l List) Endpoints() []Endpoint {
	var all []Endpoint
	for _, c := range l.Containers {
		all = append(all, c.Endpoints...)
	}
	return all
}

// Swarm is the engine's part in a swarm.
type Swarm struct {
	Member  bool // it is a node, or joins, or is locked: other nodes can have networks that it lacks
	Manager bool // it serves the swarm's API
	// Complete means that a list has the networks of the whole swarm: the engine is a manager,
	// and the swarm has a leader. A manager without leader leaves them out of its lists.
	Complete bool
}

// Network is a network of the engine.
type Network struct {
	ID      string // 64 hexadecimal digits, or 25 letters and digits for a network of a swarm
	Name    string
	Scope   string // "local", "global" or "swarm"
	Driver  string
	Options map[string]string // of the driver (docker network create -o)
	Subnets []Subnet
	Ours    bool // its driver is this plugin
	OurIPAM bool // its IPAM driver can be this plugin: it is none of the engine's own
}

// Subnet is a range of a network.
type Subnet struct {
	Range     netip.Prefix // masked
	Gateway   netip.Addr   // invalid: unknown; older engines tell only one that the user gave
	Auxiliary []netip.Addr // reserved by the user (--aux-address), ordered
}

// Container is a container in any state.
type Container struct {
	ID, Name  string
	State     string     // "created", "running", "paused", "restarting", "removing", "exited" or "dead"
	Networks  []string   // names of the networks that it is on, or will be when it starts
	Endpoints []Endpoint // ordered by the network's name; none unless the container IsUp
}

// IsUp reports whether the container has a network namespace with its endpoints.
func (c Container) IsUp() bool { return c.State == "running" || c.State == "paused" }

// Endpoint is the place of a container on a network.
type Endpoint struct {
	ID          string
	Network     string // id
	ContainerID string // "" if no container has the endpoint
	Container   string // name
	Addresses   []netip.Addr
}

// Details are what only the question for one container tells.
type Details struct {
	Error         string // of the last start
	RestartPolicy string // "", "no", "always", "on-failure" or "unless-stopped"
	Sandbox       string // path of the network namespace; stays after the container has ended
}

// Info describes the engine itself.
type Info struct {
	ID          string // of the installation; older engines keep it outside of their data root
	Version     string
	LiveRestore bool
	Swarm       Swarm
}

// Plugin is a managed plugin: one that the engine runs itself.
type Plugin struct {
	Name       string // with the version, such as "kuryr:latest"
	Enabled    bool
	Entrypoint []string
	Types      []string // interfaces, such as "docker.networkdriver/1.0"
}

// List asks for all that the engine has (GET /info, /networks, /containers/json). Every
// error means that there is no complete list.
func (c *Client) List(ctx context.Context) (List, error) {
	list := List{Began: time.Now()}
	before, err := c.Info(ctx)
	if err != nil {
		return List{}, err
	}
	if list.Networks, err = c.Networks(ctx); err != nil {
		return List{}, err
	}
	if list.Engine, err = identity(before, list.Networks); err != nil {
		return List{}, err
	}
	if list.Containers, err = c.Containers(ctx); err != nil {
		return List{}, err
	}
	engine, after, err := c.identify(ctx)
	if err != nil {
		return List{}, err
	}
	if engine != list.Engine || after.Swarm.Member != before.Swarm.Member {
		return List{}, errors.New(askPrefix + "it was replaced, or joined or left a swarm, while it was listed")
	}
	list.Version, list.Swarm = after.Version, after.Swarm
	list.Swarm.Complete = before.Swarm.Complete && after.Swarm.Complete
	return list, nil
}

// Identity returns what identifies the engine: 16 hexadecimal digits, which stay the same as
// long as its data root does.
func (c *Client) Identity(ctx context.Context) (string, error) {
	id, _, err := c.identify(ctx)
	return id, err
}

func (c *Client) identify(ctx context.Context) (string, Info, error) {
	info, err := c.Info(ctx)
	if err != nil {
		return "", info, err
	}
	networks, err := c.networks(ctx, "?filters="+url.QueryEscape(`{"driver":["null"]}`))
	if err != nil {
		return "", info, err
	}
	id, err := identity(info, networks)
	return id, info, err
}

// identity makes an identity of the engine's id and that of its network "none". The engine's
// id alone does not do: older engines keep it outside of their data root. Every engine makes
// up the id of "none" with its data.
func identity(info Info, networks []Network) (string, error) {
	for _, n := range networks {
		if n.Driver == "null" && n.Name == "none" && n.ID != "" && info.ID != "" {
			sum := sha256.Sum256([]byte(info.ID + " " + n.ID))
			return hex.EncodeToString(sum[:8]), nil
		}
	}
	return "", errors.New(askPrefix + `it has no id or no network "none"`)
}

// Info asks for the engine itself (GET /info).
func (c *Client) Info(ctx context.Context) (Info, error) {
	var answer struct {
		ID, ServerVersion  string
		LiveRestoreEnabled bool
		Swarm              struct {
			LocalNodeState, Error string
			ControlAvailable      bool
		}
	}
	if err := c.Get(ctx, "/info", &answer); err != nil {
		return Info{}, err
	}
	swarm := answer.Swarm
	return Info{
		ID: answer.ID, Version: answer.ServerVersion, LiveRestore: answer.LiveRestoreEnabled,
		Swarm: Swarm{
			Member:   swarm.LocalNodeState != "" && swarm.LocalNodeState != "inactive",
			Manager:  swarm.ControlAvailable,
			Complete: swarm.ControlAvailable && swarm.Error == "",
		},
	}, nil
}

// networkAnswer is a network as the engine tells it. Only the question for one network tells
// its containers.
type networkAnswer struct {
	ID                  string `json:"Id"`
	Name, Scope, Driver string
	Options             map[string]string
	IPAM                struct {
		Driver string
		Config []struct {
			Subnet, Gateway    string
			AuxiliaryAddresses map[string]string
		}
	}
	Containers map[string]struct{ Name, EndpointID, IPv4Address, IPv6Address string }
}

// Networks asks for all networks (GET /networks).
func (c *Client) Networks(ctx context.Context) ([]Network, error) { return c.networks(ctx, "") }

func (c *Client) networks(ctx context.Context, query string) ([]Network, error) {
	var answers []networkAnswer
	if err := c.Get(ctx, "/networks"+query, &answers); err != nil {
		return nil, err
	}
	var all []Network
	for _, a := range answers {
		n := Network{
			ID: a.ID, Name: a.Name, Scope: a.Scope, Driver: a.Driver, Options: a.Options,
			Ours:    c.ours(a.Driver),
			OurIPAM: !slices.Contains([]string{"", "default", "null"}, a.IPAM.Driver),
		}
		for _, config := range a.IPAM.Config {
			s := Subnet{
				Range:     prefix(config.Subnet),
				Auxiliary: addresses(slices.Collect(maps.Values(config.AuxiliaryAddresses))...),
			}
			if !s.Range.IsValid() {
				continue
			}
			if gateway := addresses(config.Gateway); len(gateway) > 0 {
				s.Gateway = gateway[0]
			}
			slices.SortFunc(s.Auxiliary, netip.Addr.Compare)
			n.Subnets = append(n.Subnets, s)
		}
		all = append(all, n)
	}
	return all, nil
}

// Endpoints asks for all endpoints on a network (GET /networks/{id}), also those of
// containers that ended and of none. IsNotFound tells that the engine does not have the
// network.
func (c *Client) Endpoints(ctx context.Context, network string) ([]Endpoint, error) {
	path := "/networks/" + url.PathEscape(network)
	var answer networkAnswer
	if err := c.Get(ctx, path, &answer); err != nil {
		return nil, err
	}
	if answer.ID != network { // one with this name, or whose id begins so
		return nil, askError(path, &statusError{status: http.StatusNotFound})
	}
	var all []Endpoint
	for _, id := range slices.Sorted(maps.Keys(answer.Containers)) {
		there := answer.Containers[id]
		e := Endpoint{
			ID: there.EndpointID, Network: network, Container: there.Name,
			Addresses: addresses(there.IPv4Address, there.IPv6Address),
		}
		if id != "ep-"+e.ID {
			e.ContainerID = id
		}
		all = append(all, e)
	}
	return all, nil
}

// Containers asks for all containers in any state (GET /containers/json?all=1). The host
// ports of their endpoints are not in the answer: the engine tells them only for its own
// drivers.
func (c *Client) Containers(ctx context.Context) ([]Container, error) {
	var answers []struct {
		ID              string `json:"Id"`
		State           string
		Names           []string
		NetworkSettings struct {
			Networks map[string]struct {
				NetworkID, EndpointID, IPAddress, GlobalIPv6Address string
			}
		}
	}
	if err := c.Get(ctx, "/containers/json?all=1", &answers); err != nil {
		return nil, err
	}
	var all []Container
	for _, a := range answers {
		on := a.NetworkSettings.Networks
		container := Container{
			ID: a.ID, Name: a.ID[:min(12, len(a.ID))], State: a.State,
			Networks: slices.Sorted(maps.Keys(on)),
		}
		if len(a.Names) > 0 {
			container.Name = strings.TrimPrefix(a.Names[0], "/")
		}
		for _, name := range container.Networks {
			at := on[name]
			if at.EndpointID == "" || !container.IsUp() {
				continue // the engine can still tell the endpoint that an ended container had
			}
			container.Endpoints = append(container.Endpoints, Endpoint{
				ID: at.EndpointID, Network: at.NetworkID,
				ContainerID: container.ID, Container: container.Name,
				Addresses: addresses(at.IPAddress, at.GlobalIPv6Address),
			})
		}
		all = append(all, container)
	}
	return all, nil
}

// Details asks for one container by its id (GET /containers/{id}/json). IsNotFound tells that
// there is none.
func (c *Client) Details(ctx context.Context, container string) (Details, error) {
	var answer struct {
		State           struct{ Error string }
		HostConfig      struct{ RestartPolicy struct{ Name string } }
		NetworkSettings struct{ SandboxKey string }
	}
	err := c.Get(ctx, "/containers/"+url.PathEscape(container)+"/json", &answer)
	return Details{
		Error: answer.State.Error, RestartPolicy: answer.HostConfig.RestartPolicy.Name,
		Sandbox: answer.NetworkSettings.SandboxKey,
	}, err
}

// Plugins asks for managed plugins, also disabled ones (GET /plugins).
func (c *Client) Plugins(ctx context.Context) ([]Plugin, error) {
	var answers []struct {
		Name    string
		Enabled bool
		Config  struct {
			Entrypoint []string
			Interface  struct{ Types []string }
		}
	}
	err := c.Get(ctx, "/plugins", &answers)
	var all []Plugin
	for _, a := range answers {
		all = append(all, Plugin{a.Name, a.Enabled, a.Config.Entrypoint, a.Config.Interface.Types})
	}
	return all, err
}

// prefix returns the masked prefix of a text, invalid if it is none.
func prefix(text string) netip.Prefix {
	p, _ := netip.ParsePrefix(text)
	return p.Masked()
}

// addresses returns the addresses of texts, which may have a prefix length or be empty.
func addresses(texts ...string) []netip.Addr {
	var all []netip.Addr
	for _, t := range texts {
		t, _, _ = strings.Cut(t, "/")
		if a, err := netip.ParseAddr(t); err == nil {
			all = append(all, a)
		}
	}
	return all
}
