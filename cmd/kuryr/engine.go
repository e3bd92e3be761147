//go:build linux

package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kuryr/kuryr/docker"
	"github.com/kuryr/kuryr/internal/config"
	"github.com/kuryr/kuryr/internal/discovery"
	"github.com/kuryr/kuryr/internal/dockerapi"
	"github.com/kuryr/kuryr/internal/doctor"
)

// engine is the Docker engine as its front end compares with it. It is the docker.Engine.
type engine struct {
	api   *dockerapi.Client
	names []string // of this plugin
}

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

// is tells whether a driver's name in Docker is this plugin's; a managed plugin's has a version and may have a folder.
func (e engine) is(driver string) bool {
	name, _, _ := strings.Cut(driver, ":")
	return slices.ContainsFunc(e.names, func(own string) bool { return name == own || strings.HasSuffix(name, "/"+own) })
}

// identity tells engines apart. The id alone does not: older engines keep it outside of their data. Every engine has a network
// "none", whose id it makes up with its data.
func identity(info dockerapi.Info, networks []dockerapi.Network) (string, error) {
	for _, n := range networks {
		if n.Driver == "null" && n.Name == "none" && n.ID != "" && info.ID != "" {
			sum := sha256.Sum256([]byte(info.ID + " " + n.ID))
			return hex.EncodeToString(sum[:8]), nil
		}
	}
	return "", errors.New("the Docker engine does not tell who it is, or not all its networks")
}

// whoIs asks for the engine's identity.
func (e engine) whoIs(ctx context.Context) (string, dockerapi.Info, []dockerapi.Network, error) {
	info, err := e.api.Info(ctx)
	if err != nil {
		return "", info, nil, err
	}
	networks, err := e.api.Networks(ctx)
	if err != nil {
		return "", info, nil, err
	}
	id, err := identity(info, networks)
	return id, info, networks, err
}

// Look asks for everything.
func (e engine) Look(ctx context.Context) (docker.EngineView, error) {
	id, info, networks, err := e.whoIs(ctx)
	if err != nil {
		return docker.EngineView{}, err
	}
	containers, err := e.api.Containers(ctx)
	if err != nil {
		return docker.EngineView{}, err
	}
	view := docker.EngineView{ID: id, Swarm: info.InSwarm()}
	for _, n := range networks {
		foreign := n.IPAM.Driver == "" || n.IPAM.Driver == "default" || n.IPAM.Driver == "null"
		view.Networks = append(view.Networks, docker.EngineNetwork{
			ID: n.ID, Name: n.Name, Ours: e.is(n.Driver), OurIPAM: !foreign, Ranges: n.Ranges(),
		})
	}
	for _, c := range containers {
		if c.State != "running" && c.State != "paused" {
			continue // what it had when it ran may be told still: its network knows better
		}
		for _, a := range c.NetworkSettings.Networks {
			if a.EndpointID != "" {
				view.Endpoints = append(view.Endpoints, docker.EngineEndpoint{
					ID: a.EndpointID, Network: a.NetworkID, Container: c.Name(), Addresses: a.Addresses(),
				})
			}
		}
	}
	return view, nil
}

// Endpoints asks for those of one network.
func (e engine) Endpoints(ctx context.Context, network string) ([]docker.EngineEndpoint, bool, error) {
	n, found, err := e.api.Network(ctx, network)
	var all []docker.EngineEndpoint
	for _, there := range n.Containers {
		all = append(all, docker.EngineEndpoint{ID: there.EndpointID, Addresses: there.Addresses()})
	}
	return all, found, err
}

// managed finds Kuryr among the plugins that Docker runs itself: by what it runs, since it may have any name.
func (e engine) managed(ctx context.Context) ([]doctor.Managed, error) {
	plugins, err := e.api.Plugins(ctx)
	var all []doctor.Managed
	for _, p := range plugins {
		if slices.Contains(p.Config.Interface.Types, "docker.networkdriver/1.0") && slices.Equal(p.Config.Entrypoint, entrypoint) {
			all = append(all, doctor.Managed{Name: p.Name, Enabled: p.Enabled})
		}
	}
	return all, err
}

// entrypoint is that of deploy/docker-plugin/config.json.
var entrypoint = []string{"/usr/bin/kuryr", "docker"}
