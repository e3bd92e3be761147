//go:build linux && kubernetes

package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/kuryr/kuryr/bind"
	"github.com/kuryr/kuryr/internal/config"
	"github.com/kuryr/kuryr/kube/node/leg"
	"github.com/spf13/cobra"
)

// removeLeg takes the node's own port off the machine, with the folder that tells of it. While the node's daemon runs, which would plug it again, it fails.
func (a *app) removeLeg(c *cobra.Command, cfg config.Config) (done []string, err error) {
	if nodeRuns(c, cfg) {
		return nil, fmt.Errorf("the daemon of a cluster's node runs, and keeps %s: take Kuryr out of the cluster first", leg.Interface)
	}
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
