//go:build linux && kubernetes

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/kuryr/kuryr/bind"
	"github.com/kuryr/kuryr/cmd/kuryr/internal/admin"
	"github.com/kuryr/kuryr/datapath/hostport"
	"github.com/kuryr/kuryr/internal/config"
	"github.com/kuryr/kuryr/internal/idlegate"
	"github.com/kuryr/kuryr/internal/logging"
	"github.com/kuryr/kuryr/internal/metrics"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/internal/rootsock"
	"github.com/kuryr/kuryr/kube/agent"
	"github.com/kuryr/kuryr/kube/agent/claim"
	"github.com/kuryr/kuryr/kube/agent/condition"
	"github.com/kuryr/kuryr/kube/agent/leg"
	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Where container runtimes find the network of a cluster, unless the configuration says otherwise.
const (
	clusterConflist = "/etc/cni/net.d/10-kuryr.conflist"
	clusterNetwork  = "kuryr"
)

// clusterNode is the daemon of one of a cluster's nodes, whose ports Raven makes. It has no SDN.
type clusterNode struct {
	name      string
	started   time.Time
	serving   atomic.Bool // container runtimes are told of the network
	cfg       config.Config
	log       *slog.Logger
	binder    *bind.Binder
	allocator *claim.Allocator
	keeper    *condition.Keeper
	leg       *leg.Leg
	store     *reconcile.Store
	server    *agent.Server
	services  *nodeServices // nil where Services are another's
	metrics   *prometheus.Registry
	ports     hostport.Table
}

// clusterNode reads the configuration and runs the daemon of the cluster's node with this name.
func (a *app) clusterNode(c *cobra.Command, name string) error {
	cfg, err := a.load(c)
	if err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return fmt.Errorf("%s makes links in network namespaces: run it as root", c.CommandPath())
	}
	log, err := logging.New(a.err, cfg.Log.Level, cfg.Log.Format)
	if err != nil {
		return err
	}
	kube, err := restConfig(cfg.Kubernetes)
	if err != nil {
		return err
	}
	kube.UserAgent = "kuryr-node/" + version
	return serveCluster(c.Context(), cfg, name, kube, log)
}

// serveCluster runs the daemon of the cluster's node with this name until ctx ends.
func serveCluster(ctx context.Context, cfg config.Config, name string, kube *rest.Config, log *slog.Logger) error {
	log.Info("starting", "version", version, "node", name, "api_server", kube.Host)
	if err := makeProcSysWritable(); err != nil {
		return err
	}
	if cfg.Node.Conflist == "" {
		cfg.Node.Conflist, cfg.Node.Network = clusterConflist, clusterNetwork
	}
	n, err := newClusterNode(cfg, name, kube, log)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	work, working := errgroup.WithContext(ctx)
	if err = n.begin(working, work); err == nil {
		work.Go(func() error { return n.open(working) })
		<-working.Done()
		_ = notify(notifyStopping)
	}
	stop() // where not all has begun
	err = errors.Join(err, work.Wait(), n.store.Close(), n.binder.Close())
	n.ports.Close()
	log.Info("ended")
	return err
}

func newClusterNode(cfg config.Config, name string, kube *rest.Config, log *slog.Logger) (*clusterNode, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), discoveryv1.AddToScheme(scheme), v1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	api, err := client.NewWithWatch(kube, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("kubernetes: %w", err)
	}
	n := &clusterNode{name: name, started: time.Now(), cfg: cfg, log: log, keeper: condition.New(api, name, log), metrics: metrics.New(version)}
	if cfg.Node.Services {
		n.services = newNodeServices(cfg, api, name, n.metrics, log)
		there, err := hasTable(servicesTable)
		if err != nil {
			return nil, err
		}
		if there {
			n.keeper.Set(false, condition.ReasonAgain, "kuryr node does not know the node's ports yet; Services are balanced as before")
		}
	}
	var calls idlegate.Gate
	n.allocator, err = claim.Open(claim.Config{
		Client: api, Node: name, Network: cfg.Node.Network, Journal: filepath.Join(cfg.RunDir, "claims"), Log: log,
		HostPorts: &n.ports, Own: n.see, Idle: &calls,
	})
	if err != nil {
		return nil, err
	}
	how := binding(cfg, log)
	how.Idle = &calls
	n.binder, err = bind.New(how)
	if err != nil {
		return nil, err
	}
	n.store, err = openAgentStore(cfg, n.metrics, log)
	if err != nil {
		return nil, errors.Join(err, n.binder.Close())
	}
	n.leg, err = leg.Open(leg.Config{
		Client: api, Node: name, Binder: n.binder, Store: n.store, Old: legDir(cfg), Plugged: n.services.seeLeg, Log: log,
	})
	if err != nil {
		return nil, errors.Join(err, n.store.Close(), n.binder.Close())
	}
	n.services.seeLeg(n.leg.Has())
	n.server, err = agent.New(agent.Config{
		Source: n.allocator, Binder: waiting(cfg, n.binder), Store: n.store,
		State: filepath.Join(cfg.StateDir, "cni"), Idle: &calls, Logger: log, Registerer: n.metrics,
	})
	if err == nil {
		err = n.store.Start(context.Background())
	}
	if err != nil {
		return nil, errors.Join(err, n.store.Close(), n.binder.Close())
	}
	return n, nil
}

// see takes in the Node, which one part watches for all.
func (n *clusterNode) see(o *corev1.Node) {
	n.keeper.See(o)
	if n.services != nil {
		n.services.SeeNode(o)
	}
}

// binding is how ports are plugged on this machine.
func binding(c config.Config, log *slog.Logger) bind.Config {
	return bind.Config{Logger: log, OVSDB: c.Bind.OVSDBSocket, IntegrationBridge: c.Bind.IntegrationBridge, Executables: c.Bind.Executables, LinkInterface: c.Bind.LinkInterface}
}

// begin lets the kuryr command in, and kuryr-cni, whose DELs need no API server. What it starts runs in work until ctx ends.
func (n *clusterNode) begin(ctx context.Context, work *errgroup.Group) error {
	cfg := n.cfg
	cfg.Admin.Socket = frontSocket(cfg, duties{node: true})
	err := listenAdmin(ctx, work, cfg, admin.Config{Daemon: n, SDN: http.HandlerFunc(noSDN), Metrics: metrics.Handler(n.metrics), Pods: n.pods, Logger: n.log})
	if err != nil {
		return err
	}
	l, err := rootsock.Listen(n.cfg.Node.Socket)
	if err != nil {
		return err
	}
	work.Go(func() error { return n.binder.Run(ctx) })
	work.Go(func() error { n.store.Run(ctx); return nil })
	work.Go(func() error { return n.allocator.Run(ctx) })
	work.Go(func() error { n.keeper.Run(ctx); return nil })
	work.Go(func() error { n.leg.Run(ctx); return nil })
	if n.services != nil {
		work.Go(func() error { return n.services.run(ctx) })
	} else if done, err := dropServices(ctx, cfg, n.log); err != nil {
		n.log.Warn("what Kuryr did of Services before is not all taken away", "err", err)
	} else if len(done) > 0 {
		n.log.Info("Services are another's now", "done", done)
	}
	work.Go(func() error { return n.server.Serve(ctx, l) })
	work.Go(func() error { collectLinks(ctx, n.binder, namespaceDir(n.cfg), n.log); return nil })
	return nil
}

// open tells container runtimes and the cluster of the network, as soon as the node's ports are known and ClusterIPs lead where they are to: a node that is ready is one by which others' packets for these go, too.
func (n *clusterNode) open(ctx context.Context) error {
	for _, known := range []<-chan struct{}{n.allocator.Started(), n.services.balances()} {
		select {
		case <-known:
		case <-ctx.Done():
			return nil
		}
	}
	if err := installConflist(n.cfg); err != nil {
		return err
	}
	n.serving.Store(true)
	n.keeper.Set(true, condition.ReasonReady, "kuryr node gives pods their ports")
	if err := notify(notifyReady); err != nil {
		n.log.Warn("the service manager was not told that kuryr is ready", "error", err)
	}
	n.log.Info("ready", "took", time.Since(n.started).Round(time.Millisecond), "node_socket", n.cfg.Node.Socket, "conflist", n.cfg.Node.Conflist)
	return nil
}
