//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/kuryr/kuryr/internal/config"
	"github.com/kuryr/kuryr/internal/logging"
	"github.com/kuryr/kuryr/internal/metrics"
	"github.com/kuryr/kuryr/internal/rootsock"
	"github.com/kuryr/kuryr/kurma/netplugin"
	"github.com/kuryr/kuryr/kurma/netplugin/call"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
)

func (a *app) kurmaPluginCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "plugin", Short: "Attach pods to the SDN's networks: the main executable of the image kuryr-netplugin", Args: noArgs, Hidden: true,
		Long: `Run what the plugin image kuryr-netplugin is: it answers /opt/network/add and /opt/network/del, until SIGTERM. The entry of pod_networks is read from standard input.

The SDN is the configuration's: Neutron, or the embedded SDN of a "kuryr up" or "kuryr sdn" that runs on this machine, whose sockets the container must see (/run/kuryr), as it must see the configuration (/etc/kuryr).`,
		Example: `  echo '{"name": "blue"}' | kuryr kurma plugin`,
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, err := a.load(c)
			if err != nil {
				return err
			}
			log, err := logging.New(a.err, cfg.Log.Level, cfg.Log.Format)
			if err != nil {
				return err
			}
			return kurmaPlugin(c.Context(), cfg, log, os.Stdin)
		},
	}
	addSettings(c, "state_dir", "run_dir", "log.level", "log.format")
	return c
}

// entryLimit is the most bytes that an entry of pod_networks may have.
const entryLimit = 1 << 20

// kurmaPlugin serves one network until ctx ends. An entry that no pod could be attached by ends it at once, so that who looks at the network sees why.
func kurmaPlugin(ctx context.Context, cfg config.Config, log *slog.Logger, in io.Reader) (err error) {
	entry, err := io.ReadAll(io.LimitReader(in, entryLimit))
	if err != nil {
		return fmt.Errorf("the entry: %w", err)
	}
	e, err := netplugin.ParseEntry(entry)
	if err != nil {
		return err
	}
	if cfg.Provider == config.ProviderLocal { // the store is that of another process, which serves it
		cfg.Provider = config.ProviderSDN
	}
	registry := metrics.New(version)
	back, err := providers[cfg.Provider](ctx, cfg, log, registry)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, back.close()) }()
	provider, binder, err := (&daemon{cfg: cfg, log: log}).plugging(ctx, back, registry)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, binder.Close()) }()
	l, err := rootsock.Listen(call.Socket)
	if err != nil {
		return err
	}
	work, ctx := errgroup.WithContext(ctx)
	plugin := netplugin.New(netplugin.Config{
		Provider: provider, Binder: waiting(cfg, binder), Host: cfg.Host, Logger: log,
	})
	work.Go(func() error { return binder.Run(ctx) })
	work.Go(func() error { return plugin.Serve(ctx, l) })
	pins := ""
	if back.here {
		pins = namespaceDir(cfg)
	}
	work.Go(func() error { collectLinks(ctx, binder, pins, log); return nil })
	log.Info("ready", "network", e.Network, "provider", cfg.Provider)
	return work.Wait()
}
