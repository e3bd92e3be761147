//go:build linux

package main

import (
	"net"
	"os"
	"path/filepath"

	"github.com/kuryr/kuryr/internal/config"
	"github.com/spf13/cobra"
)

// legDir is where earlier versions kept which port is the node's own.
func legDir(c config.Config) string { return filepath.Join(c.StateDir, "leg") }

// hasLeg reports whether the machine has the own port of a cluster's node.
func hasLeg(cfg config.Config) bool {
	if _, err := os.Stat(legDir(cfg)); err == nil {
		return true
	}
	_, err := net.InterfaceByName(legInterface)
	return err == nil
}

// dropLeg takes the own port of a cluster's node off the machine, and says so. Without one it says nothing.
func (a *app) dropLeg(c *cobra.Command, cfg config.Config) ([]string, error) {
	if !hasLeg(cfg) {
		return nil, nil
	}
	return a.removeLeg(c, cfg)
}
