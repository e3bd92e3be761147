//go:build linux && kubernetes

package main

import (
	"errors"
	"os"

	"github.com/kuryr/kuryr/bind"
	"github.com/kuryr/kuryr/internal/config"
	"github.com/kuryr/kuryr/kube/node/leg"
	"github.com/spf13/cobra"
)

// removeLeg takes the node's own port off the machine, with the folder that tells of it. The node's daemon, which would plug it again, must not run.
func (a *app) removeLeg(c *cobra.Command, cfg config.Config) (done []string, err error) {
	b, err := bind.New(binding(cfg, nil))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	removed, err := leg.Remove(c.Context(), legDir(cfg), b)
	if err != nil {
		return nil, err
	}
	if removed {
		done = []string{"the node's own port, " + leg.Interface + ", is out of the kernel"}
	}
	return done, errors.Join(b.Collect(c.Context(), ""), os.Remove(legDir(cfg)))
}
