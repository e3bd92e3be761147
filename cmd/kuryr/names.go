//go:build linux

package main

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/kuryr/kuryr/cmd/kuryr/internal/admin"
	"github.com/kuryr/kuryr/cmd/kuryr/internal/api"
	"github.com/kuryr/kuryr/cmd/kuryr/internal/table"
	"github.com/kuryr/kuryr/cmd/kuryr/internal/topology"
	"github.com/kuryr/kuryr/docker/engine"
	"github.com/spf13/cobra"
)

// userNames are the names that users have for things: Docker's networks and containers, and pods.
type userNames struct {
	docker     topology.Names
	containers []engine.Container
	pods       map[string]admin.PodPort // by the port's id
	networks   map[string]string        // names of Docker's networks by the SDN's id
}

// userNames asks Docker and the daemon of a cluster's node. What does not answer has no
// names.
func (a *app) userNames(c *cobra.Command, client *api.Client) userNames {
	n := userNames{networks: map[string]string{}}
	cfg, err := a.load(c)
	if err != nil {
		return n
	}
	n.pods = podsByPort(c.Context(), cfg)
	if n.docker, n.containers, err = a.askEngine(c); err != nil || len(n.docker.Networks) == 0 {
		return n
	}
	all, err := api.List(c.Context(), client, api.Networks, nil)
	if err != nil {
		return n
	}
	for _, network := range all {
		if name := n.network(network); name != "" {
			n.networks[network.ID] = name
		}
	}
	return n
}

// dockerIDChars is how many characters of an id Docker shows.
const dockerIDChars = 12

func (n userNames) network(e api.Network) string {
	if key := e.Key(); key.Kind == "docker-network" {
		return n.docker.Networks[key.Name]
	}
	return ""
}

func (n userNames) subnet(e api.Subnet) string { return n.networks[e.NetworkID] }

func (n userNames) router(e api.Router) string {
	switch key := e.Key(); key.Kind {
	case "docker-router":
		return n.docker.Networks[key.Name]
	case "docker-shared-router":
		return key.Name
	}
	return ""
}

func (n userNames) port(e api.Port) string {
	return cmp.Or(n.docker.Endpoints[e.DeviceID], n.pods[e.ID].Pod)
}

// portByID is the name of a port, otherwise its id.
func (n userNames) portByID(all []api.Port, id string) string {
	for _, p := range all {
		if p.ID == id {
			return cmp.Or(n.port(p), id)
		}
	}
	return id
}

// isDockerID reports whether word is an id of Docker's, or the part of it that Docker shows.
func isDockerID(id, word string) bool {
	return len(word) >= dockerIDChars && strings.HasPrefix(id, word)
}

// ofContainer reports whether a port is of the container with this id.
func (n userNames) ofContainer(e api.Port, word string) bool {
	if e.DeviceID == "" {
		return false
	}
	return isDockerID(e.DeviceID, word) || slices.ContainsFunc(n.containers, func(c engine.Container) bool {
		return isDockerID(c.ID, word) &&
			slices.ContainsFunc(c.Endpoints, func(at engine.Endpoint) bool { return at.ID == e.DeviceID })
	})
}

// warnings is a column of ranges that the host does not reach; there is none without one.
func warnings(o topology.Objects) []table.Column[api.Network] {
	unreached := topology.Unreached(o)
	if len(unreached) == 0 {
		return nil
	}
	return []table.Column[api.Network]{
		{Name: "warning", Value: func(n api.Network) string { return lines(unreached[n.ID]) }},
	}
}

// published are the columns of a floating IP: its address, the port that it leads to, and
// the ports of containers that are published at it.
func published(o topology.Objects, names userNames) []table.Column[api.FloatingIP] {
	return []table.Column[api.FloatingIP]{
		{Name: "address", Value: func(f api.FloatingIP) string {
			switch f.FloatingIPAddress {
			case "0.0.0.0":
				return "any IPv4 of the host"
			case "::":
				return "any IPv6 of the host"
			}
			return f.FloatingIPAddress
		}},
		{Name: "leads to", Value: func(f api.FloatingIP) string {
			if f.PortID != nil {
				return names.portByID(o.Ports, *f.PortID) + " " + api.Value(f.FixedIPAddress)
			}
			return linesOf(o.Forwards[f.ID], func(pf api.PortForwarding) string {
				return names.portByID(o.Ports, pf.InternalPortID) + " " + topology.Forward(pf)
			})
		}},
	}
}

// known are objects with the names that their users gave them.
func known(ctx context.Context, client *admin.Client, names userNames) (topology.Objects, error) {
	o, err := gather(ctx, client)
	o.Names = names.docker
	return o, err
}
