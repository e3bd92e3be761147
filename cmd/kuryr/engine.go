//go:build linux

package main

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kuryr/kuryr/cmd/kuryr/internal/discovery"
	"github.com/kuryr/kuryr/cmd/kuryr/internal/doctor"
	"github.com/kuryr/kuryr/cmd/kuryr/internal/topology"
	"github.com/kuryr/kuryr/docker/engine"
	"github.com/kuryr/kuryr/internal/config"
	"github.com/spf13/cobra"
)

// driverNames are what Docker may call the plugin: by its socket, and, where a file leads there, as that file is called.
func driverNames(c config.Docker) []string {
	var names []string
	if c.Socket != "" {
		names = append(names, strings.TrimSuffix(filepath.Base(c.Socket), ".sock"))
	}
	if found := strings.HasPrefix(c.Socket, discovery.SocketDir+"/"); (!found || c.Listen != "") && !slices.Contains(names, discovery.Name) {
		names = append(names, discovery.Name)
	}
	return names
}

// engineTimeout bounds what a command waits for the names that the engine knows.
const engineTimeout = 2 * time.Second

// askEngine asks the engine at a socket for its containers, and for the names of endpoints
// and networks.
func askEngine(ctx context.Context, socket string) (topology.Names, []engine.Container, error) {
	ctx, cancel := context.WithTimeout(ctx, engineTimeout)
	defer cancel()
	api := engine.New(socket)
	defer api.Close()
	names := topology.Names{Endpoints: map[string]string{}, Networks: map[string]string{}}
	containers, err := api.Containers(ctx)
	if err != nil {
		return names, nil, err
	}
	for _, c := range containers {
		for _, e := range c.Endpoints {
			names.Endpoints[e.ID] = c.Name
		}
	}
	networks, err := api.Networks(ctx)
	for _, n := range networks {
		names.Networks[n.ID] = n.Name
	}
	return names, containers, err
}

// askEngine asks the engine that is configured. Without one it returns nothing.
func (a *app) askEngine(c *cobra.Command) (topology.Names, []engine.Container, error) {
	cfg, err := a.load(c)
	if err != nil {
		return topology.Names{}, nil, nil
	}
	socket := engine.Socket(a.getenv("DOCKER_HOST"), cfg.Docker.API)
	if socket == "" {
		return topology.Names{}, nil, nil
	}
	return askEngine(c.Context(), socket)
}

// managed finds Kuryr among the plugins that Docker runs itself: by what it runs, since it may have any name.
func managed(ctx context.Context, api *engine.Client) ([]doctor.Managed, error) {
	plugins, err := api.Plugins(ctx)
	var all []doctor.Managed
	for _, p := range plugins {
		if slices.Contains(p.Types, "docker.networkdriver/1.0") && slices.Equal(p.Entrypoint, entrypoint) {
			all = append(all, doctor.Managed{Name: p.Name, Enabled: p.Enabled})
		}
	}
	return all, err
}

// entrypoint is that of deploy/docker-plugin/config.json.
var entrypoint = []string{"/usr/bin/kuryr", "docker"}
