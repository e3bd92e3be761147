//go:build linux

package main

import (
	"context"
	"errors"
	"log/slog"

	"github.com/kuryr/kuryr/datapath/lb"
	"github.com/kuryr/kuryr/internal/config"
	"github.com/kuryr/kuryr/internal/metrics"
	"github.com/kuryr/kuryr/sdn"
	"github.com/prometheus/client_golang/prometheus"
)

// backend is an SDN that has been opened for a daemon.
type backend struct {
	provider sdn.Provider
	parts    *parts // of the embedded SDN, of which this process is the data path too; nil for an SDN that runs by itself
	here     bool   // it is this machine's SDN, in this process or in another
}

// opener opens an SDN as the configuration says. What it counts it registers.
type opener func(ctx context.Context, c config.Config, log *slog.Logger, r prometheus.Registerer) (*backend, error)

// providers are the SDNs, by the setting `provider`. A new one is a line here, and its name in the setting's choices.
var providers = map[string]opener{
	config.ProviderLocal:   openLocal,
	config.ProviderSDN:     openShared,
	config.ProviderNeutron: openNeutron,
}

func openLocal(ctx context.Context, c config.Config, log *slog.Logger, r prometheus.Registerer) (*backend, error) {
	p, err := openParts(ctx, c, log, count(metrics.NewBalancing(r)))
	if err != nil {
		return nil, err
	}
	return &backend{provider: p.sdn, parts: p, here: true}, nil
}

// count has m count what a kernel is told of load balancers.
func count(m *metrics.Balancing) func(lb.Transaction) {
	return func(t lb.Transaction) { m.Done(t.Elements, t.Took, t.Err) }
}

// openStoreOnly opens the embedded SDN without the kernel.
func openStoreOnly(ctx context.Context, c config.Config, log *slog.Logger, _ prometheus.Registerer) (*backend, error) {
	p, err := openStore(ctx, c, log)
	if err != nil {
		return nil, err
	}
	return &backend{provider: p.sdn, parts: p, here: true}, nil
}

// close lets go of the SDN. Traffic goes on.
func (b *backend) close() error {
	if b.parts != nil {
		return b.parts.close()
	}
	return b.provider.Close()
}

// errByItself is the answer to what only the embedded SDN can be asked for.
var errByItself = errors.New("the SDN runs by itself: it has no store and no kernel state here")
