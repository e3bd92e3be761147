package dockerapi

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"
)

// listTimeout is how long one listing may take: an engine of thousands of containers takes seconds.
const listTimeout = 30 * time.Second

// Client asks the engine at one socket.
type Client struct{ http *http.Client }

// New gives a client of the engine at the Unix socket. It connects with the first request.
func New(socket string) *Client {
	return &Client{http: &http.Client{Transport: &http.Transport{
		MaxIdleConns: 2, IdleConnTimeout: time.Minute,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}}}
}

// Close lets go of idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Info is the engine itself.
type Info struct {
	ID                 string
	Name               string
	ServerVersion      string
	DockerRootDir      string
	LiveRestoreEnabled bool
	Swarm              struct{ LocalNodeState string }
}

// InSwarm tells whether the engine is part of a swarm, or may be.
func (i Info) InSwarm() bool {
	return i.Swarm.LocalNodeState != "" && i.Swarm.LocalNodeState != "inactive"
}

// Network is a network. Endpoints are told only by Network, not by Networks.
type Network struct {
	ID, Name, Driver, Scope string
	IPAM                    struct {
		Driver string
		Config []struct{ Subnet string }
	}
	Containers map[string]NetworkEndpoint // by container, or "ep-" and the endpoint
}

// Ranges are the network's, of both families.
func (n Network) Ranges() []netip.Prefix {
	var all []netip.Prefix
	for _, c := range n.IPAM.Config {
		if p, err := netip.ParsePrefix(c.Subnet); err == nil {
			all = append(all, p.Masked())
		}
	}
	return all
}

// NetworkEndpoint is an endpoint as its network tells it.
type NetworkEndpoint struct{ EndpointID, IPv4Address, IPv6Address string }

// Addresses are those of the endpoint.
func (e NetworkEndpoint) Addresses() []netip.Addr { return addresses(e.IPv4Address, e.IPv6Address) }

// Container is a container in whatever state.
type Container struct {
	ID, State, Status string
	Names             []string
	NetworkSettings   struct{ Networks map[string]Attachment }
}

// Name is the container's, or the beginning of its id.
func (c Container) Name() string {
	if len(c.Names) > 0 {
		return strings.TrimPrefix(c.Names[0], "/")
	}
	return c.ID[:min(12, len(c.ID))]
}

// Attachment is a container's place on a network; without an endpoint while it does not run.
type Attachment struct {
	NetworkID, EndpointID        string
	IPAddress, GlobalIPv6Address string
}

// Addresses are those of the endpoint.
func (a Attachment) Addresses() []netip.Addr { return addresses(a.IPAddress, a.GlobalIPv6Address) }

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

// Details are what only asking for one container tells.
type Details struct {
	State      struct{ Status, Error string }
	HostConfig struct{ RestartPolicy struct{ Name string } }
}

// Plugin is a managed plugin: one that the engine runs itself.
type Plugin struct {
	Name    string // with the tag
	Enabled bool
	Config  struct {
		Entrypoint []string
		Interface  struct{ Types []string }
	}
}

// Plugins lists managed plugins, also disabled ones.
func (c *Client) Plugins(ctx context.Context) (out []Plugin, err error) {
	return out, c.list(ctx, "/plugins", &out)
}

// Info asks for the engine itself.
func (c *Client) Info(ctx context.Context) (out Info, err error) {
	return out, c.list(ctx, "/info", &out)
}

// Networks lists all networks.
func (c *Client) Networks(ctx context.Context) (out []Network, err error) {
	return out, c.list(ctx, "/networks", &out)
}

// Network asks for one network with its endpoints; false if there is none.
func (c *Client) Network(ctx context.Context, id string) (out Network, found bool, err error) {
	err = c.list(ctx, "/networks/"+url.PathEscape(id), &out)
	if isStatus(err, http.StatusNotFound) {
		return Network{}, false, nil
	}
	return out, err == nil, err
}

// Containers lists all containers, also those that do not run.
func (c *Client) Containers(ctx context.Context) (out []Container, err error) {
	return out, c.list(ctx, "/containers/json?all=1", &out)
}

// Details asks for one container; false if there is none.
func (c *Client) Details(ctx context.Context, id string) (out Details, found bool, err error) {
	err = c.list(ctx, "/containers/"+url.PathEscape(id)+"/json", &out)
	if isStatus(err, http.StatusNotFound) {
		return Details{}, false, nil
	}
	return out, err == nil, err
}

// Get asks for a path of the engine's API, such as /version.
func (c *Client) Get(ctx context.Context, path string, into any) error {
	return c.list(ctx, path, into)
}

func (c *Client) list(ctx context.Context, path string, into any) error {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	return get(ctx, c.http, path, into)
}
