//go:build linux && kubernetes

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/kuryr/kuryr/internal/backoff"
	"github.com/kuryr/kuryr/internal/config"
	"github.com/kuryr/kuryr/internal/logging"
	"github.com/kuryr/kuryr/internal/metrics"
	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/pool"
	"github.com/kuryr/kuryr/kube/raven"
	"github.com/kuryr/kuryr/kube/raven/core"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

// runController reads the configuration and runs Raven.
func (a *app) runController(c *cobra.Command) error {
	cfg, err := a.loadRaven(c)
	if err != nil {
		return err
	}
	log, err := logging.New(a.err, cfg.Log.Level, cfg.Log.Format)
	if err != nil {
		return err
	}
	for _, name := range config.UnknownEnv(a.environ) {
		log.Warn("a variable of the environment begins with KURYR_ and sets nothing; is it misspelt?", "name", name)
	}
	for _, text := range cfg.Ignored {
		log.Warn("an option of kuryr-kubernetes' configuration is passed over", "option", text)
	}
	return a.control(c.Context(), cfg, log)
}

// control runs the controller until ctx ends, or it leads no more.
func (a *app) control(ctx context.Context, cfg config.Config, log *slog.Logger) (err error) {
	ctrl.SetLogger(logr.FromSlogHandler(quieter{log.Handler()}))
	started := time.Now()
	kube, err := restConfig(cfg.Kubernetes)
	if err != nil {
		return err
	}
	cluster, err := awaitCluster(ctx, kube, clusterTimeout, log)
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return err
	}
	if cfg.Installation == "" && cfg.Provider == config.ProviderNeutron {
		cfg.Installation = cluster
	}
	registry := ctrlmetrics.Registry
	back, err := providers[cfg.Provider](ctx, cfg, log, registry)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, back.close()) }()
	m, err := newManager(cfg, kube)
	if err != nil {
		return err
	}
	wanted := ravenConfig(cfg)
	if err := raven.AddIndexes(ctx, m.GetFieldIndexer(), wanted.Services); err != nil {
		return err
	}
	wanted.Provider, wanted.Live, wanted.Logger, wanted.Registerer = metrics.Observe(back.provider, registry), m.GetAPIReader(), log, registry
	r, err := raven.New(wanted, m.GetClient(), m.GetEventRecorder("kuryr-controller"))
	if err != nil {
		return err
	}
	if err := r.Add(m); err != nil {
		return err
	}
	log.Info("starting", "version", version, "provider", cfg.Provider, "api_server", kube.Host, "took", time.Since(started).Round(time.Millisecond))
	err = m.Start(ctx)
	log.Info("ended")
	return err
}

func ravenConfig(cfg config.Config) raven.Config {
	c := cfg.Controller
	out := raven.Config{
		Router: c.Router, PublicNetwork: c.PublicNetwork, SubnetPools: c.SubnetPools, ServiceRanges: c.ServiceRanges, VIPSubnets: c.VIPSubnets, Services: sdnServices(cfg), NamespaceVIPs: c.VIPPlacement == config.VIPPlacementNamespace, NodeBalanced: c.Services && c.LoadBalancers == config.LoadBalancersNode, NodeRanges: c.NodeRanges, NodePortsNetwork: c.NodePortsNetwork, Network: c.Network, Subnets: c.Subnets,
		SecurityGroups: c.SecurityGroups, UnderlayIsolation: c.UnderlayIsolation, NodeNetworks: c.NodeNetworks, Nested: c.Nested, NodeSubnets: c.WorkerNodesSubnets, MaxPorts: c.MaxPorts, Calls: c.Calls, Workers: c.Workers, Audit: c.Audit,
		Pool: pool.Policy{Minimum: c.PoolMinimum, Maximum: c.PoolMaximum, Batch: c.PoolBatch, TTL: c.PoolTTL},
	}
	for _, p := range c.PodRanges {
		out.Ranges = append(out.Ranges, raven.Range{Prefix: p, Len: prefixLen(p, c)})
	}
	return out
}

// sdnServices tells whether Services are load balancers of the SDN.
func sdnServices(cfg config.Config) bool {
	return cfg.Controller.Services && cfg.Controller.LoadBalancers == config.LoadBalancersSDN
}

func prefixLen(p netip.Prefix, c config.Controller) int {
	if p.Addr().Is6() {
		return c.PodPrefixLenV6
	}
	return c.PodPrefixLen
}

// A leader that cannot renew its Lease has ended before another may take it: it tries for renewDeadline, then to let it go, by a request that has half of that, and has its work end.
const (
	leaseDuration = 15 * time.Second
	renewDeadline = 6 * time.Second
	retryPeriod   = 2 * time.Second
	endingTime    = 4 * time.Second
)

// newManager makes what runs the controller: caches, the Lease, and one endpoint for metrics and health.
func newManager(cfg config.Config, kube *rest.Config) (ctrl.Manager, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	listen := cfg.Controller.Listen
	if listen == "" {
		listen = "0"
	}
	ready := &readiness{}
	m, err := ctrl.NewManager(kube, ctrl.Options{
		Scheme: scheme,
		Cache: cache.Options{
			DefaultTransform: cache.TransformStripManagedFields(),
			ByObject:         cached(cfg),
		},
		LeaderElection: cfg.Controller.LeaderElection, LeaderElectionID: "kuryr-controller", LeaderElectionNamespace: cfg.Controller.Namespace, LeaderElectionReleaseOnCancel: true,
		LeaseDuration: new(leaseDuration), RenewDeadline: new(renewDeadline), RetryPeriod: new(retryPeriod), GracefulShutdownTimeout: new(endingTime),
		HealthProbeBindAddress: "0",
		Metrics: metricsserver.Options{BindAddress: listen, ExtraHandlers: map[string]http.Handler{
			"/healthz": healthz.CheckHandler{Checker: healthz.Ping},
			"/readyz":  healthz.CheckHandler{Checker: ready.check},
		}},
	})
	if err != nil {
		return nil, err
	}
	ready.cache = m.GetCache()
	return m, nil
}

// cached is what the caches have otherwise than whole.
func cached(cfg config.Config) map[client.Object]cache.ByObject {
	slices := cache.ByObject{Transform: raven.StripSlice}
	if !sdnServices(cfg) { // the API servers' are all that is looked at
		slices.Namespaces = map[string]cache.Config{metav1.NamespaceDefault: {}}
	}
	return map[client.Object]cache.ByObject{&corev1.Pod{}: {Transform: core.StripPod}, &discoveryv1.EndpointSlice{}: slices}
}

// readiness says that the replica could lead: it sees the cluster.
type readiness struct{ cache cache.Cache }

func (r *readiness) check(req *http.Request) error {
	ctx, cancel := context.WithTimeout(req.Context(), time.Second)
	defer cancel()
	if !r.cache.WaitForCacheSync(ctx) {
		return errors.New("the API server has not told yet what there is")
	}
	return nil
}

// clusterTimeout bounds one request for the cluster's identity.
const clusterTimeout = 10 * time.Second

// awaitCluster waits until the API server answers: without it the caches have no kinds. It returns
// the UID of the namespace kube-system, which differs between clusters and not between replicas. It
// marks Raven's objects in an SDN of several clusters. It fails where waiting does not help, such as
// with an unknown authority or without the rights.
func awaitCluster(ctx context.Context, kube *rest.Config, timeout time.Duration, log *slog.Logger) (string, error) {
	kube = rest.CopyConfig(kube)
	kube.Timeout = timeout
	c, err := client.New(kube, client.Options{})
	if err != nil {
		return "", fmt.Errorf("kubernetes: %w", err)
	}
	wait := backoff.Backoff{Min: time.Second, Max: 5 * time.Second}
	for {
		var ns corev1.Namespace
		err := c.Get(ctx, types.NamespacedName{Name: metav1.NamespaceSystem}, &ns)
		if err == nil {
			return strings.ToLower(string(ns.UID)), nil
		}
		if ctx.Err() == nil && !core.Passing(err) {
			return "", fmt.Errorf("kubernetes: %w", err)
		}
		pause := wait.Next()
		log.WarnContext(ctx, "cannot reach the API server yet", "err", oneLine(err), "retry_in", pause)
		if backoff.Sleep(ctx, pause) != nil {
			return "", fmt.Errorf("kubernetes: %w", err)
		}
	}
}

// quieter has what controller-runtime tells of its own start logged for debugging only.
type quieter struct{ slog.Handler }

func (q quieter) Enabled(ctx context.Context, l slog.Level) bool {
	if l == slog.LevelInfo {
		l = slog.LevelDebug
	}
	return q.Handler.Enabled(ctx, l)
}

func (q quieter) WithAttrs(attrs []slog.Attr) slog.Handler {
	return quieter{q.Handler.WithAttrs(attrs)}
}

func (q quieter) WithGroup(name string) slog.Handler { return quieter{q.Handler.WithGroup(name)} }
