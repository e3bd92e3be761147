//go:build linux && kubernetes

package main

import (
	"errors"
	"log/slog"

	"github.com/kuryr/kuryr/bind"
	"github.com/kuryr/kuryr/internal/config"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/kube/agent/leg"
	"github.com/spf13/cobra"
)

// removeLeg takes the node's own port off the machine. The node's daemon, which would plug it again, must not run.
func (a *app) removeLeg(c *cobra.Command, cfg config.Config) (done []string, err error) {
	b, err := bind.New(binding(cfg, nil))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	store, err := reconcile.Open(reconcile.Config{Path: agentPath(cfg), Volatile: true, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	removed, err := leg.Remove(c.Context(), leg.Config{Binder: b, Store: store, Old: legDir(cfg)})
	if err != nil {
		return nil, err
	}
	if removed {
		done = []string{"the node's own port, " + leg.Interface + ", is out of the kernel"}
	}
	return done, b.Collect(c.Context(), "")
}
