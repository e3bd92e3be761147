//go:build linux

package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/kuryr/kuryr/internal/config"
	"github.com/spf13/cobra"
)

// legDir is where the daemon of a cluster's node keeps which port is the node's own.
func legDir(c config.Config) string { return filepath.Join(c.StateDir, "leg") }

// dropLeg takes the own port of a cluster's node off the machine, and says so. Where none ever was it says nothing.
func (a *app) dropLeg(c *cobra.Command, cfg config.Config) ([]string, error) {
	if _, err := os.Stat(legDir(cfg)); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return a.removeLeg(c, cfg)
}
