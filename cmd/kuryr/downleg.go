//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/kuryr/kuryr/bind"
	"github.com/kuryr/kuryr/internal/admin"
	"github.com/kuryr/kuryr/internal/config"
	"github.com/kuryr/kuryr/kube/node/leg"
)

// dropLeg takes the own port of a cluster's node off the machine, and says so. While the node's daemon runs, which would plug it again, it fails. Where there is none it says nothing.
func dropLeg(ctx context.Context, cfg config.Config) (done []string, err error) {
	if _, err := os.Stat(legDir(cfg)); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if _, err := admin.NewClient(frontSocket(cfg, duties{node: true})).Status(ctx); !admin.IsNotRunning(err) {
		return nil, fmt.Errorf("the daemon of a cluster's node runs, and keeps %s: take Kuryr out of the cluster first", leg.Interface)
	}
	b, err := bind.New(binding(cfg, nil))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	removed, err := leg.Remove(ctx, legDir(cfg), b)
	if err != nil || !removed {
		return nil, err
	}
	return []string{"the node's own port, " + leg.Interface + ", is out of the kernel"}, b.Collect(ctx, "")
}
