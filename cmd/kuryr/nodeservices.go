//go:build linux && kubernetes

package main

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"sync"
	"time"

	"github.com/kuryr/kuryr/cmd/kuryr/internal/admin"
	"github.com/kuryr/kuryr/datapath/firewall"
	"github.com/kuryr/kuryr/datapath/lb"
	"github.com/kuryr/kuryr/internal/backoff"
	"github.com/kuryr/kuryr/internal/config"
	"github.com/kuryr/kuryr/internal/metrics"
	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/proxy"
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// nodeServices is what the daemon of a cluster's node does of Services, where it is to.
type nodeServices struct {
	*proxy.Controller
	table *lb.Table
	host  *firewall.Host
	log   *slog.Logger
	leg   chan struct{} // closed when the node has had a port of its own
	once  sync.Once
}

func newNodeServices(cfg config.Config, api client.WithWatch, name string, registry prometheus.Registerer, log *slog.Logger) *nodeServices {
	table := balancing(cfg, log, count(metrics.NewBalancing(registry)))
	return &nodeServices{
		Controller: proxy.New(proxy.Config{
			Client: api, Node: name, Table: table, NodePorts: cfg.Node.NodePortAddresses, HealthListen: cfg.Node.HealthListen, Registerer: registry, Log: log,
			Rules: proxy.Rules{
				ClusterIPs:  cfg.Node.LoadBalancers == config.LoadBalancersNode,
				ExternalIPs: cfg.Node.ExternalIPs, LoadBalancerIPs: cfg.Node.LoadBalancerIPs,
			},
		}),
		table: table, host: legHost(cfg, log), log: log, leg: make(chan struct{}),
	}
}

// seeLeg takes in the node's own port; nil is none. Where Services are another's it does nothing.
func (s *nodeServices) seeLeg(port *v1.KuryrPortSpec) {
	if s == nil {
		return
	}
	s.SeeLeg(port != nil)
	if port != nil {
		s.once.Do(func() { close(s.leg) })
	}
}

// balances is closed when the kernel has all ClusterIPs, or as soon as these are another's.
func (s *nodeServices) balances() <-chan struct{} {
	if s != nil && s.Rules.ClusterIPs {
		return s.Restored()
	}
	now := make(chan struct{})
	close(now)
	return now
}

// run keeps Services in the kernel until ctx ends. The table stays, for the next process.
func (s *nodeServices) run(ctx context.Context) error {
	var working sync.WaitGroup
	working.Go(func() { s.pass(ctx) })
	working.Go(func() {
		select {
		case <-s.Restored(): // there is nothing to put back before
			s.stand(ctx)
		case <-ctx.Done():
		}
	})
	s.Run(ctx)
	working.Wait()
	return s.table.Close()
}

// stand puts the table back when somebody takes it away, and the guard, which mostly goes with it (`nft flush ruleset`).
func (s *nodeServices) stand(ctx context.Context) {
	wait := backoff.Backoff{Min: time.Second, Max: time.Minute}
	for {
		err := firewall.WatchTable(ctx, servicesTable, func() {
			s.log.WarnContext(ctx, "the table that balances Services may have been taken away; it is put back", "table", servicesTable)
			s.Mend()
			s.guard(ctx)
		})
		if err == nil {
			return
		}
		s.log.WarnContext(ctx, "nobody tells should the table that balances Services be taken away", "table", servicesTable, "err", err)
		if wait.Wait(ctx) != nil {
			return
		}
	}
}

// guard keeps the node's own port guarded, where there has been one.
func (s *nodeServices) guard(ctx context.Context) {
	select {
	case <-s.leg:
	default:
		return
	}
	if err := firewall.GuardLink(legInterface); err != nil {
		s.log.WarnContext(ctx, "the node's own port is not guarded: the node may pass on what is not of Services", "err", err)
	}
}

// pass lets packets pass between the node's own port and others: the kernel's switch, and doors through the host's firewall, which are kept open. A guard comes first: what is not of
// Services is not to pass.
func (s *nodeServices) pass(ctx context.Context) {
	select {
	case <-s.leg:
	case <-ctx.Done():
		return
	}
	wait := backoff.Backoff{Min: time.Second, Max: time.Minute}
	for {
		err := errors.Join(firewall.GuardLink(legInterface), s.host.EnableForwarding(ctx, true, false))
		if err6 := s.host.EnableForwarding(ctx, false, true); !errors.Is(err6, fs.ErrNotExist) {
			err = errors.Join(err, err6)
		}
		if err == nil {
			s.open(ctx)
			err = s.host.Watch(ctx)
		}
		if err == nil || ctx.Err() != nil {
			return
		}
		s.log.WarnContext(ctx, "the host may not pass packets of Services on; it is tried again", "err", err)
		if wait.Wait(ctx) != nil {
			return
		}
	}
}

// unwatched is how long at most doors are opened and not watched.
const unwatched = 30 * time.Second

// open opens the doors, and returns behind the first load: while anybody listens for changes of nftables the kernel writes an announcement of each element, which would be most of what that load costs.
func (s *nodeServices) open(ctx context.Context) {
	if _, err := s.host.OpenDoors(ctx); err != nil {
		s.log.WarnContext(ctx, "doors through firewalls are not all open; it is tried again", "err", err)
	}
	select {
	case <-s.Restored():
	case <-time.After(unwatched):
	case <-ctx.Done():
	}
}

// findings are what Services ask for and do not have on this node.
func (s *nodeServices) findings() (out []admin.Finding) {
	for _, p := range s.Problems() {
		out = append(out, admin.Finding{
			What: oneLine(errors.New(p)), Note: true,
			Remediation: "change the Service, or node.external_ips or node.load_balancer_ips of the node's daemon",
		})
	}
	return out
}

// differences are in what the kernel does not balance as it was told.
func (s *nodeServices) differences(ctx context.Context) (out []string, err error) {
	all, err := s.table.Check(ctx)
	for _, d := range all {
		out = append(out, "Services: "+d.String())
	}
	return out, err
}
