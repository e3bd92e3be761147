//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"time"

	"github.com/kuryr/kuryr/bind"
	"github.com/kuryr/kuryr/docker"
	"github.com/kuryr/kuryr/internal/admin"
	"github.com/kuryr/kuryr/internal/config"
	"github.com/kuryr/kuryr/internal/hostports"
	"github.com/kuryr/kuryr/internal/hostroutes"
	"github.com/kuryr/kuryr/internal/logging"
	"github.com/kuryr/kuryr/internal/metrics"
	"github.com/kuryr/kuryr/internal/procsys"
	"github.com/kuryr/kuryr/internal/rootsock"
	"github.com/kuryr/kuryr/internal/sdnotify"
	"github.com/kuryr/kuryr/sdn/restapi"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
)

func (a *app) upCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "up", Short: "Run the SDN and Docker's network driver", Args: noArgs,
		Long: `Run the embedded SDN and the Docker front end in this process, until SIGTERM or SIGINT. No argument is needed. Networks and
containers stay as they are when it ends, and traffic goes on; "kuryr down" takes them out of the kernel.

Every key of the configuration can be set by a flag, or by an environment variable: docker.capability_scope is
--docker-capability-scope and KURYR_DOCKER_CAPABILITY_SCOPE.`,
		Example: "  kuryr up\n  kuryr up --log-level debug --metrics-listen 127.0.0.1:9464",
		RunE: func(c *cobra.Command, _ []string) error {
			return a.daemon(c, func(config.Config) opener { return providers[config.ProviderLocal] })
		},
	}
	addSettings(c, settingsOfUp()...)
	return c
}

// settingsOfUp are all but the choice of the SDN, which is the embedded one, and what is of others.
func settingsOfUp() []string {
	var keys []string
	for _, s := range config.Settings() {
		if s.Key != "provider" && !strings.HasPrefix(s.Key, "neutron.") && !strings.HasPrefix(s.Key, "bind.") {
			keys = append(keys, s.Key)
		}
	}
	return keys
}

// daemon reads the configuration and runs a daemon on the SDN that choose gives.
func (a *app) daemon(c *cobra.Command, choose func(config.Config) opener) error {
	cfg, err := a.load(c)
	if err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return fmt.Errorf("%s makes network namespaces and links: run it as root", c.CommandPath())
	}
	log, err := logging.New(a.err, cfg.Log.Level, cfg.Log.Format)
	if err != nil {
		return err
	}
	for _, name := range config.UnknownEnv(a.environ) {
		log.Warn("a variable of the environment begins with KURYR_ and sets nothing; is it misspelt?", "name", name)
	}
	for _, text := range cfg.Ignored {
		log.Warn("an option of the Python kuryr-libnetwork's configuration is passed over", "option", text)
	}
	return up(c.Context(), cfg, log, choose(cfg))
}

// up starts the parts in the order in which they need one another, serves until ctx ends or Down has been asked for, and
// leaves the kernel as it is.
func up(ctx context.Context, cfg config.Config, log *slog.Logger, open opener) (err error) {
	started := time.Now()
	log.Info("starting", "version", version, "host", cfg.Host, "state_dir", cfg.StateDir)
	if _, err := procsys.MakeWritable(); err != nil {
		return err
	}
	registry := metrics.New(version)
	back, err := open(ctx, cfg, log, registry)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, back.close()) }()
	if back.parts != nil && cfg.Provider != config.ProviderLocal {
		log.Warn("this serves the embedded SDN, whatever the configuration says; `kuryr docker` serves the SDN that it names", "provider", cfg.Provider)
	}

	provider, err := nestedIn(metrics.Observe(back.provider, registry), cfg)
	if err != nil {
		return err
	}
	if err := canNest(ctx, provider); err != nil {
		return err
	}
	if back.parts != nil { // asked at each scrape, which of an SDN elsewhere is too much
		registry.MustRegister(metrics.Objects(back.provider))
	}

	binder, err := bind.New(bind.Config{Logger: log, OVSDB: cfg.Bind.OVSDBSocket, IntegrationBridge: cfg.Bind.IntegrationBridge, Executables: cfg.Bind.Executables, LinkInterface: cfg.Bind.LinkInterface})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, binder.Close()) }()
	held := &hostports.Holder{}
	defer held.Close()
	driver, err := docker.New(docker.Config{
		Provider: provider, Binder: binder, Host: cfg.Host, Scope: docker.Scope(cfg.Docker.CapabilityScope), ConnectivityScope: docker.Scope(cfg.Docker.ConnectivityScope),
		Pools4: autoPools(cfg.Docker.DefaultPools, cfg.Docker.DefaultPoolLen), Pools6: autoPools(cfg.Docker.DefaultPoolsV6, cfg.Docker.DefaultPoolLen6),
		HostRoutes: hostroutes.Prefixes, HostPorts: held, Logger: log, Registerer: registry,
		// A network of the embedded SDN is this machine's alone and gets its way out from it. One of an SDN elsewhere has what its users give it.
		Routed: back.parts != nil, DeleteEmptySubnets: cfg.Docker.DeleteEmptySubnets, WaitActive: cfg.Docker.WaitActive,
		ProcessExternalConnectivity: cfg.Docker.ProcessExternalConnectivity,
		StateDir:                    cfg.StateDir, RunDir: cfg.RunDir,
	})
	if err != nil {
		return err
	}
	defer driver.Close()

	d := newDaemon(cfg, log, back, metrics.NewReconciles(registry), started)
	compare := d.remembers(driver, binder)
	working, stop := context.WithCancel(ctx)
	defer stop()
	work, working := errgroup.WithContext(working)
	d.stop = func() error { stop(); return work.Wait() }
	// The admin socket outlives the others, to tell what came of going down.
	answering, hush := context.WithCancel(context.WithoutCancel(ctx))
	defer hush()
	serving := admin.Config{Daemon: d, SDN: restapi.As(restapi.Caller{Role: restapi.Admin}, restapi.NewHandler(back.provider, restapi.Options{Logger: log})), Metrics: metrics.Handler(registry), Logger: log}
	answers, answering := errgroup.WithContext(answering)
	if err := listenAdmin(answering, answers, cfg, serving); err != nil {
		hush()
		return errors.Join(err, answers.Wait())
	}

	err = d.begin(working, work, driver, binder)
	if err == nil {
		work.Go(func() error { compare(working); return nil })
		log.Info("ready", "took", time.Since(started).Round(time.Millisecond), "plugin_socket", pluginAddresses(cfg.Docker), "admin_socket", cfg.Admin.Socket)
		select {
		case <-working.Done():
		case <-answering.Done():
		}
		_ = sdnotify.Send(sdnotify.Stopping)
	}
	err = errors.Join(err, d.stop())
	d.downing.Lock() // what Down has begun ends first
	hush()
	err = errors.Join(err, answers.Wait())
	log.Info("ended")
	return err
}

// begin makes the kernel follow the store, where the SDN is embedded, and then lets Docker in. What it starts runs in work until ctx ends.
func (d *daemon) begin(ctx context.Context, work *errgroup.Group, driver *docker.Driver, binder *bind.Binder) error {
	if d.parts != nil {
		d.beginEmbedded(ctx, work)
	}
	work.Go(func() error { return binder.Run(ctx) })

	listeners, err := listenPlugin(ctx, d.cfg.Docker, d.log)
	if err != nil {
		return err
	}
	for _, l := range listeners {
		work.Go(func() error { return driver.Serve(ctx, l) })
	}
	work.Go(func() error { return driver.Run(ctx) })
	work.Go(func() error { collect(ctx, binder, d.parts, d.log); return nil })

	d.serving.Store(true)
	if err := sdnotify.Send(sdnotify.Ready); err != nil {
		d.log.Warn("the service manager was not told that kuryr is ready", "error", err)
	}
	return nil
}

// beginEmbedded makes the kernel follow the store and keeps it so.
func (d *daemon) beginEmbedded(ctx context.Context, work *errgroup.Group) {
	// What the kernel refuses now is tried again behind the caller's back: the rest can be served meanwhile.
	retry := d.reconcileAtStart(ctx)
	work.Go(func() error { retry(ctx); return nil })
	if _, err := d.parts.datapath.host.OpenDoors(ctx); err != nil {
		d.log.Warn("doors through the host's firewall are not all open; they are tried again", "error", err)
	}
	if findings, err := d.findings(ctx); err == nil {
		for _, f := range findings {
			d.log.Warn("the host stands in the way", "what", f.What, "mend", f.Mend)
		}
	}
	d.parts.datapath.onLoss(func(ctx context.Context) { _, _ = d.Reconcile(ctx) })
	work.Go(func() error {
		if err := d.parts.datapath.host.Watch(ctx); err != nil {
			d.log.Error("changes of the host's firewall are not noticed; restart kuryr after each", "error", err)
		}
		return nil
	})
	work.Go(func() error { return d.parts.sdn.Run(ctx) })
}

// listenAdmin serves the admin socket, and monitoring's address if there is one.
func listenAdmin(ctx context.Context, group *errgroup.Group, cfg config.Config, c admin.Config) error {
	l, err := rootsock.Listen(cfg.Admin.Socket)
	if err != nil {
		return fmt.Errorf("admin socket: %w", err)
	}
	group.Go(func() error { return admin.Serve(ctx, l, admin.Handler(c)) })
	if cfg.Metrics.Listen == "" {
		return nil
	}
	public, err := new(net.ListenConfig).Listen(ctx, "tcp", cfg.Metrics.Listen)
	if err != nil {
		return fmt.Errorf("metrics.listen: %w", err)
	}
	group.Go(func() error { return admin.Serve(ctx, public, admin.PublicHandler(c)) })
	return nil
}

// collect deletes the links that a killed kuryr had put down and not yet deleted.
func collect(ctx context.Context, binder *bind.Binder, p *parts, log *slog.Logger) {
	paths := []string{""}
	var err error
	if p != nil {
		var names []string
		names, err = p.namespaces.List()
		for _, name := range names {
			paths = append(paths, p.namespaces.Path(name))
		}
	}
	if err = errors.Join(err, binder.Collect(ctx, paths...)); err != nil && ctx.Err() == nil {
		log.Warn("links of unplugged ports are not all gone yet", "error", err)
	}
}
