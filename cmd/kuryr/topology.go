//go:build linux

package main

import (
	"context"
	"fmt"
	"io"

	"github.com/kuryr/kuryr/internal/admin"
	"github.com/kuryr/kuryr/internal/dockerapi"
	"github.com/kuryr/kuryr/internal/topology"
	"github.com/kuryr/kuryr/sdn/restapi"
	"github.com/spf13/cobra"
)

func (a *app) topologyCommand() *cobra.Command {
	var format, file string
	c := &cobra.Command{
		Use: "topology", Short: "Draw routers, networks, ports and containers", Args: noArgs,
		Long: `Draw routers with their uplinks, the networks on them, and the ports with their containers: as a tree for the terminal, or as an
SVG picture. The names of containers and of Docker's networks come from the Docker engine (DOCKER_HOST, or docker.api in the
configuration); where it does not answer, ids stand in their place.`,
		Example: "  kuryr topology\n  kuryr topology --format svg -o networks.svg",
		RunE: func(c *cobra.Command, _ []string) error {
			if format != "tree" && format != "svg" {
				return usageError{fmt.Errorf("--format %q: want tree or svg", format)}
			}
			client, err := a.client(c)
			if err != nil {
				return err
			}
			objects, err := gather(c.Context(), client)
			if err != nil {
				return err
			}
			objects.Names = a.dockerNames(c)
			g := topology.Build(objects)
			draw := g.Tree
			if format == "svg" {
				draw = g.SVG
			}
			if file == "" || file == "-" {
				return draw(a.out)
			}
			return writeFile(file, func(w io.Writer) error { return draw(w) })
		},
	}
	c.Flags().StringVar(&format, "format", "tree", "`form` of the picture: tree or svg")
	complete(c, "format", "tree", "svg")
	c.Flags().StringVarP(&file, "output", "o", "", "write to this `file`")
	return c
}

// gather asks for everything that is drawn.
func gather(ctx context.Context, client *admin.Client) (o topology.Objects, err error) {
	status, err := client.Status(ctx)
	if err != nil {
		return o, err
	}
	o.Host = status.Host
	api := client.SDN()
	for _, ask := range []func() error{
		func() (err error) { o.Networks, err = restapi.List(ctx, api, restapi.Networks, nil); return },
		func() (err error) { o.Subnets, err = restapi.List(ctx, api, restapi.Subnets, nil); return },
		func() (err error) { o.Ports, err = restapi.List(ctx, api, restapi.Ports, nil); return },
		func() (err error) { o.Routers, err = restapi.List(ctx, api, restapi.Routers, nil); return },
		func() (err error) { o.FloatingIPs, err = restapi.List(ctx, api, restapi.FloatingIPs, nil); return },
	} {
		if err := ask(); err != nil {
			return o, err
		}
	}
	o.Forwards = map[string][]restapi.PortForwarding{}
	for _, f := range o.FloatingIPs {
		if f.PortID != nil { // one that is associated has no forwardings
			continue
		}
		if o.Forwards[f.ID], err = api.PortForwardings(ctx, f.ID); err != nil {
			return o, err
		}
	}
	return o, nil
}

// dockerNames asks the engine; without an answer the drawing does without.
func (a *app) dockerNames(c *cobra.Command) dockerapi.Names {
	cfg, err := a.load(c)
	if err != nil {
		return dockerapi.Names{}
	}
	socket := dockerapi.Socket(a.getenv("DOCKER_HOST"), cfg.Docker.API)
	if socket == "" {
		return dockerapi.Names{}
	}
	names, err := dockerapi.Ask(c.Context(), socket)
	if err != nil {
		_, _ = fmt.Fprintln(a.err, "kuryr: names of containers are missing: "+oneLine(err))
	}
	return names
}
