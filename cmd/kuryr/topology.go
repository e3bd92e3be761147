//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/kuryr/kuryr/cmd/kuryr/internal/admin"
	"github.com/kuryr/kuryr/cmd/kuryr/internal/api"
	"github.com/kuryr/kuryr/cmd/kuryr/internal/table"
	"github.com/kuryr/kuryr/cmd/kuryr/internal/topology"
	"github.com/kuryr/kuryr/docker/engine"
	"github.com/spf13/cobra"
)

// topologyForms are the forms of output.
var topologyForms = []string{"tree", "json", "yaml", "svg", "dot"}

func (a *app) topologyCommand() *cobra.Command {
	var form, file string
	var force bool
	c := &cobra.Command{
		Use: "topology", Short: "Draw routers, networks, ports and containers", Args: noArgs,
		Long: `Draw routers with their uplinks, the networks on them, and the ports with their containers: as a tree for the
terminal, as an SVG picture, for Graphviz (dot), or as JSON or YAML for programs. The names of containers and of
Docker's networks come from the Docker engine (DOCKER_HOST, or docker.api in the configuration). Without an answer,
ids stand in their place.`,
		Example: `  kuryr topology
  kuryr topology -o svg --file networks.svg
  kuryr topology -o dot | dot -Tpdf >networks.pdf`,
		RunE: func(c *cobra.Command, _ []string) error {
			if !slices.Contains(topologyForms, form) {
				return usageError{fmt.Errorf("--output %q: want %s; --file names a file", form, strings.Join(topologyForms, ", "))}
			}
			client, err := a.client(c)
			if err != nil {
				return err
			}
			objects, err := gather(c.Context(), client)
			if err != nil {
				return err
			}
			objects.Names, _ = a.engineNames(c)
			if cfg, err := a.load(c); err == nil {
				objects.Pods = map[string]string{}
				for id, p := range podsByPort(c.Context(), cfg) {
					objects.Pods[id] = p.Pod
				}
			}
			g := topology.Build(objects)
			draw := map[string]func(io.Writer) error{
				"tree": g.Tree, "svg": g.SVG, "dot": g.DOT,
				"json": func(w io.Writer) error { return table.Show(w, table.JSON, g, nil) },
				"yaml": func(w io.Writer) error { return table.Show(w, table.YAML, g, nil) },
			}[form]
			if file == "" || file == "-" {
				return draw(a.out)
			}
			return a.writeNew(file, force, draw)
		},
	}
	c.Flags().StringVarP(&form, "output", "o", "tree", "`form` of the output: "+strings.Join(topologyForms, ", "))
	complete(c, "output", topologyForms...)
	c.Flags().StringVar(&file, "file", "", "write to this `file`")
	_ = c.MarkFlagFilename("file")
	addForce(c, &force)
	return c
}

// gather asks for everything that is drawn.
func gather(ctx context.Context, client *admin.Client) (o topology.Objects, err error) {
	status, err := client.Status(ctx)
	if err != nil {
		return o, err
	}
	o.Host = status.Host
	c := client.SDN()
	for _, ask := range []func() error{
		func() (err error) { o.Networks, err = api.List(ctx, c, api.Networks, nil); return },
		func() (err error) { o.Subnets, err = api.List(ctx, c, api.Subnets, nil); return },
		func() (err error) { o.Ports, err = api.List(ctx, c, api.Ports, nil); return },
		func() (err error) { o.Routers, err = api.List(ctx, c, api.Routers, nil); return },
		func() (err error) {
			o.FloatingIPs, err = api.List(ctx, c, api.FloatingIPs, nil)
			return
		},
	} {
		if err := ask(); err != nil {
			return o, err
		}
	}
	o.Forwards = map[string][]api.PortForwarding{}
	for _, f := range o.FloatingIPs {
		if f.PortID != nil { // one that is associated has no forwardings
			continue
		}
		if o.Forwards[f.ID], err = c.PortForwardings(ctx, f.ID); err != nil {
			return o, err
		}
	}
	return o, nil
}

// engineNames is askEngine for a drawing, which does without names that are missing.
func (a *app) engineNames(c *cobra.Command) (topology.Names, []engine.Container) {
	names, containers, err := a.askEngine(c)
	if err != nil {
		_, _ = fmt.Fprintln(a.err, "kuryr: names of containers are missing: "+oneLine(err))
	}
	return names, containers
}
