//go:build linux

package main

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/kuryr/kuryr/bind"
	"github.com/kuryr/kuryr/cmd/kuryr/internal/hostroutes"
	"github.com/kuryr/kuryr/docker"
	"github.com/kuryr/kuryr/docker/engine"
	"github.com/kuryr/kuryr/internal/config"
	"github.com/kuryr/kuryr/internal/hostports"
	"github.com/kuryr/kuryr/internal/metrics"
	"github.com/kuryr/kuryr/sdn"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
)

// front is Docker's front end with what it stands on.
type front struct {
	cfg     config.Config
	log     *slog.Logger
	driver  *docker.Driver
	binder  *bind.Binder
	held    *hostports.Holder
	engine  *engine.Client        // Docker itself; nil: it is never asked
	compare func(context.Context) // with Docker, until ctx ends
	pins    string                // folder of the namespaces that ports are plugged into; "" where they are in the host's
}

// newFront gives the daemon its front end.
func (d *daemon) newFront(ctx context.Context, back *backend, registry *prometheus.Registry) error {
	cfg, log := d.cfg, d.log
	if back.parts != nil && cfg.Provider != config.ProviderLocal {
		log.Warn("this serves the embedded SDN, whatever the configuration says; `kuryr docker` serves the SDN that it names", "provider", cfg.Provider)
	}
	provider, binder, err := d.plugging(ctx, back, registry)
	if err != nil {
		return err
	}
	f := &front{cfg: cfg, log: log, binder: binder, held: &hostports.Holder{}}
	if back.here {
		f.pins = namespaceDir(cfg)
	}
	var source engine.Source
	if cfg.Docker.API != "" {
		f.engine = engine.New(cfg.Docker.API, driverNames(cfg.Docker)...)
		source = f.engine
	}
	f.driver, err = docker.New(docker.Config{
		Provider: provider, Binder: binder, Host: cfg.Host, Scope: docker.Scope(cfg.Docker.CapabilityScope), ConnectivityScope: docker.Scope(cfg.Docker.ConnectivityScope),
		Pools4: autoPools(cfg.Docker.DefaultPools, cfg.Docker.DefaultPoolLen), Pools6: autoPools(cfg.Docker.DefaultPoolsV6, cfg.Docker.DefaultPoolLen6),
		HostRoutes: hostroutes.Prefixes, HostPorts: f.held, Logger: log, Registerer: registry,
		// A network of this machine's SDN is this machine's alone and gets its way out from it. One of an SDN elsewhere has what its users give it.
		Routed: back.here, DeleteEmptySubnets: cfg.Docker.DeleteEmptySubnets, WaitActive: cfg.Docker.WaitActive,
		ProcessExternalConnectivity: cfg.Docker.ProcessExternalConnectivity,
		StateDir:                    cfg.StateDir, RunDir: cfg.RunDir, Engine: source, ForgetAfter: cfg.Docker.ForgetAfter,
	})
	if err != nil {
		f.held.Close()
		return errors.Join(err, binder.Close())
	}
	f.compare = func(ctx context.Context) { f.watchDocker(ctx, d.engineCame) }
	d.front = f
	return nil
}

// plugging gives a front end the SDN as it sees it, and what plugs its ports.
func (d *daemon) plugging(ctx context.Context, back *backend, registry *prometheus.Registry) (sdn.Provider, *bind.Binder, error) {
	if d.seen == nil {
		provider, err := nestedIn(metrics.Observe(back.provider, registry), d.cfg)
		if err != nil {
			return nil, nil, err
		}
		if err := canNest(ctx, provider); err != nil {
			return nil, nil, err
		}
		d.seen = provider
	}
	of := d.cfg.Bind
	binder, err := bind.New(bind.Config{
		Logger: d.log, OVSDB: of.OVSDBSocket, IntegrationBridge: of.IntegrationBridge, Executables: of.Executables,
		LinkInterface: of.LinkInterface,
	})
	return d.seen, binder, err
}

// close lets go of what is not Docker's. It is called after all that begin started has ended.
func (f *front) close() {
	f.driver.Close()
	f.held.Close()
	if err := f.binder.Close(); err != nil {
		f.log.Warn("a part did not end well", "error", err)
	}
}

// begin lets Docker in. What it starts runs in work until ctx ends.
func (f *front) begin(ctx context.Context, work *errgroup.Group) error {
	work.Go(func() error { return f.binder.Run(ctx) })
	listeners, err := listenPlugin(ctx, f.cfg.Docker, f.log)
	if err != nil {
		return err
	}
	for _, l := range listeners {
		work.Go(func() error { return f.driver.Serve(ctx, l) })
	}
	work.Go(func() error { return f.driver.Run(ctx) })
	work.Go(func() error { collectLinks(ctx, f.binder, f.pins, f.log); return nil })
	work.Go(func() error { f.compare(ctx); return nil })
	return nil
}

// collectLinks deletes the links that a killed kuryr had put down and not yet deleted. pins is the folder of the namespaces that ports are plugged into, or "".
func collectLinks(ctx context.Context, binder *bind.Binder, folder string, log *slog.Logger) {
	paths := []string{""}
	var err error
	if folder != "" {
		var pins []fs.DirEntry
		if pins, err = os.ReadDir(folder); errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		for _, pin := range pins {
			paths = append(paths, filepath.Join(folder, pin.Name()))
		}
	}
	if err = errors.Join(err, binder.Collect(ctx, paths...)); err != nil && ctx.Err() == nil {
		log.Warn("links of unplugged ports are not all gone yet", "error", err)
	}
}

// frontSocket is the admin socket of a front end that is a process of its own beside `kuryr sdn`, which has the configuration's: kuryr-docker.sock and
// kuryr-node.sock beside kuryr.sock. With any other SDN it is the configuration's, but for the node's daemon, which stands beside Docker's driver.
func frontSocket(c config.Config, do duties) string {
	end := "-docker.sock"
	switch {
	case do.node:
		end = "-node.sock"
	case c.Provider != config.ProviderSDN:
		return c.Admin.Socket
	}
	return strings.TrimSuffix(c.Admin.Socket, ".sock") + end
}
