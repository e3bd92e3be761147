//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"time"

	"github.com/kuryr/kuryr/cmd/kuryr/internal/admin"
	"github.com/kuryr/kuryr/internal/backoff"
	"github.com/kuryr/kuryr/internal/config"
	"github.com/kuryr/kuryr/internal/logging"
	"github.com/kuryr/kuryr/internal/metrics"
	"github.com/kuryr/kuryr/internal/rootsock"
	"github.com/kuryr/kuryr/sdn"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
)

func (a *app) upCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "up", Short: "Run the SDN and the front ends of Docker and CNI", Args: noArgs,
		Long: `Run the embedded SDN and the front ends of Docker and CNI in this process, until SIGTERM or SIGINT. No argument is needed. Networks and
containers stay as they are when it ends, and traffic goes on; "kuryr down" takes them out of the kernel.

Every key of the configuration can be set by a flag, or by an environment variable: docker.capability_scope is
--docker-capability-scope and KURYR_DOCKER_CAPABILITY_SCOPE.`,
		Example: "  kuryr up\n  kuryr up --log-level debug --metrics-listen 127.0.0.1:9464",
		RunE: func(c *cobra.Command, _ []string) error {
			return a.daemon(c, func(cfg config.Config) duties {
				return duties{open: openLocal, docker: true, node: servesCNI(cfg)}
			})
		},
	}
	addSettings(c, settingsOfUp()...)
	return c
}

// settingsOfUp are all but the choice of the SDN, which is the embedded one, and what is of others.
func settingsOfUp() []string {
	keys := settingsBut("neutron.", "bind.", "node.", "kubernetes.", "controller.", "kurma.")
	keys = slices.DeleteFunc(keys, func(key string) bool { return key == "provider" })
	return append(keys, "node.socket", "node.conflist", "node.network")
}

// servesCNI reports whether a daemon with Docker's front end has CNI's too. With an SDN
// that other processes reach, that is a process of its own.
func servesCNI(c config.Config) bool { return c.Provider == config.ProviderLocal }

// duties are what a daemon does. Where the SDN is embedded it serves its API besides.
type duties struct {
	open      opener
	docker    bool // it is Docker's network driver
	node      bool // it is the CNI server of container runtimes
	storeOnly bool // it touches nothing of the kernel's
	plain     bool // its API at sdn.listen is without TLS
}

// daemon reads the configuration and runs a daemon with the duties that choose gives.
func (a *app) daemon(c *cobra.Command, choose func(config.Config) duties) error {
	cfg, err := a.load(c)
	if err != nil {
		return err
	}
	do := choose(cfg)
	if os.Geteuid() != 0 && !do.storeOnly {
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
	return up(c.Context(), cfg, log, do)
}

// up starts the parts in the order in which they need one another, serves until ctx ends or Down has been asked for, and
// leaves the kernel as it is.
func up(ctx context.Context, cfg config.Config, log *slog.Logger, do duties) (err error) {
	started := time.Now()
	log.Info("starting", "version", version, "host", cfg.Host, "state_dir", cfg.StateDir)
	if !do.storeOnly {
		if err := makeProcSysWritable(); err != nil {
			return err
		}
	}
	registry := metrics.New(version)
	back, err := do.open(ctx, cfg, log, registry)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, back.close()) }()
	if back.parts != nil { // asked at each scrape, which of an SDN elsewhere is too much
		registry.MustRegister(metrics.Objects(back.provider))
	} else {
		cfg.Admin.Socket = frontSocket(cfg, do)
	}
	d := newDaemon(cfg, log, back, metrics.NewReconciles(registry), started)
	if do.docker {
		if err := d.newFront(ctx, back, registry); err != nil {
			return err
		}
		defer d.front.close()
	}
	if do.node {
		if err := d.newNode(ctx, back, registry); err != nil {
			return err
		}
		defer d.node.close()
	}
	api, err := newAPI(cfg, back, do.plain, metrics.NewAPI(registry), log)
	if err != nil {
		return err
	}

	working, stop := context.WithCancel(ctx)
	defer stop()
	work, working := errgroup.WithContext(working)
	d.stop = func() error {
		stop()
		err := work.Wait()
		if back.parts != nil { // changes of the kernel whose callers gave up
			back.parts.sdn.Quiesce()
		}
		return err
	}
	// The admin socket outlives the others, to tell what came of going down.
	answering, hush := context.WithCancel(context.WithoutCancel(ctx))
	defer hush()
	serving := admin.Config{Daemon: d, SDN: api.root, Metrics: metrics.Handler(registry), Logger: log}
	if d.front != nil {
		serving.Intents = d.front.driver.Intents
	}
	answers, answering := errgroup.WithContext(answering)
	if err := listenAdmin(answering, answers, cfg, serving); err != nil {
		hush()
		return errors.Join(err, answers.Wait())
	}

	err = d.begin(working, work, api)
	if err == nil {
		work.Go(func() error { d.announce(working); return nil })
		select {
		case <-working.Done():
		case <-answering.Done():
		}
		_ = notify(notifyStopping)
	}
	err = errors.Join(err, d.stop())
	d.downing.Lock() // what Down has begun ends first
	hush()
	err = errors.Join(err, answers.Wait())
	log.Info("ended")
	return err
}

// announce logs that the daemon is ready, as soon as its SDN answers.
func (d *daemon) announce(ctx context.Context) {
	if d.parts == nil && !d.awaitSDN(ctx) {
		return
	}
	took := time.Since(d.started).Round(time.Millisecond)
	attrs := append([]any{"took", took, "admin_socket", d.cfg.Admin.Socket}, d.addresses()...)
	d.log.Info("ready", attrs...)
}

// awaitSDN waits until the SDN answers. It reports whether ctx goes on.
func (d *daemon) awaitSDN(ctx context.Context) bool {
	ctx = sdn.Unawaited(ctx)
	wait := backoff.Backoff{Min: time.Second, Max: 30 * time.Second}
	for logged := false; ; logged = true {
		err := d.sdn.Ping(ctx)
		if err == nil {
			return true
		}
		what := "waiting for kuryr sdn"
		if d.cfg.Provider == config.ProviderNeutron {
			what = "waiting for Neutron"
		}
		if !logged && ctx.Err() == nil {
			d.log.Info(what, append(d.addresses(), "err", err)...)
		}
		if wait.Wait(ctx) != nil {
			return false
		}
	}
}

// begin makes the kernel follow the store, where the SDN is embedded, and then lets clients in. What it starts runs in work until ctx ends.
func (d *daemon) begin(ctx context.Context, work *errgroup.Group, api *apiServer) error {
	if d.parts != nil {
		d.beginEmbedded(ctx, work)
		if err := api.listen(ctx, work); err != nil {
			return err
		}
		d.api = api.addresses
	}
	if d.front != nil {
		if err := d.front.begin(ctx, work); err != nil {
			return err
		}
	}
	if d.node != nil {
		if err := d.beginNode(ctx, work); err != nil {
			return err
		}
	}
	d.serving.Store(true)
	if err := notify(notifyReady); err != nil {
		d.log.Warn("the service manager was not told that kuryr is ready", "error", err)
	}
	return nil
}

// takeoverPause is how often a process on standby tries to take the CNI socket.
const takeoverPause = 2 * time.Second

// beginNode serves CNI. Where another process holds its socket, Docker's front end goes on without.
// The front end of CNI alone then stands by: `kuryr up`, whose SDN it uses, serves the same networks.
func (d *daemon) beginNode(ctx context.Context, work *errgroup.Group) error {
	err := d.node.begin(ctx, work)
	standby := d.front == nil && d.cfg.Provider == config.ProviderSDN
	if !errors.Is(err, rootsock.ErrInUse) || d.front == nil && !standby {
		return err
	}
	d.log.Warn("CNI socket in use", "node_socket", d.cfg.Node.Socket, "standby", standby, "err", err)
	d.noCNI.Store(true)
	if !standby {
		return nil
	}
	work.Go(func() error { return d.takeCNI(ctx, work) })
	return installConflist(d.cfg)
}

// takeCNI serves CNI as soon as no other process holds its socket.
func (d *daemon) takeCNI(ctx context.Context, work *errgroup.Group) error {
	for {
		if backoff.Sleep(ctx, takeoverPause) != nil {
			return nil
		}
		err := d.node.begin(ctx, work)
		if errors.Is(err, rootsock.ErrInUse) {
			continue
		}
		if err == nil {
			d.noCNI.Store(false)
			d.log.Info("CNI socket taken over", "node_socket", d.cfg.Node.Socket)
		}
		return err
	}
}

// beginEmbedded makes the kernel follow the store and keeps it so.
func (d *daemon) beginEmbedded(ctx context.Context, work *errgroup.Group) {
	if d.parts.datapath == nil {
		work.Go(func() error { return d.parts.sdn.Run(ctx) })
		return
	}
	// What the kernel refuses now is tried again behind the caller's back: the rest can be served meanwhile.
	retry := d.reconcileAtStart(ctx)
	work.Go(func() error { retry(ctx); return nil })
	if _, err := d.parts.datapath.host.OpenDoors(ctx); err != nil {
		d.log.Warn("doors through the host's firewall are not all open; they are tried again", "error", err)
	}
	if findings, err := d.findings(ctx); err == nil {
		for _, f := range findings {
			d.log.Warn("the host stands in the way", "what", f.What, "remediation", f.Remediation)
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
