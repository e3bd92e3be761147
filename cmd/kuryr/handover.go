//go:build linux && !kubernetes

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/kuryr/kuryr/internal/config"
	"github.com/spf13/cobra"
)

// The commands that need the client libraries of Kubernetes. These are half of what a program with them would be, on the disk and in memory, and most of its start, also
// where no cluster is. So kuryr knows these commands, their flags and their help, and what they do is in kuryr-kubernetes: the same program, built with the tag kubernetes.

func (a *app) runController(c *cobra.Command) error                        { return a.handOver(c) }
func (a *app) clusterNode(c *cobra.Command, _ string) error                { return a.handOver(c) }
func (a *app) listPools(c *cobra.Command, _, _ string) error               { return a.handOver(c) }
func (a *app) showPool(c *cobra.Command, _, _ string) error                { return a.handOver(c) }
func (a *app) fillPool(c *cobra.Command, _ []string) error                 { return a.handOver(c) }
func (a *app) drainPool(c *cobra.Command, _ string) error                  { return a.handOver(c) }
func (a *app) installKubernetes(c *cobra.Command, _ kubernetesFlags) error { return a.handOver(c) }
func (a *app) doctorCluster(c *cobra.Command, _, _ string) error           { return a.handOver(c) }
func (a *app) uninstallKubernetes(c *cobra.Command, _ removalFlags) error  { return a.handOver(c) }

// removeLeg has that program go down once more, with all that is left.
func (a *app) removeLeg(c *cobra.Command, _ config.Config) ([]string, error) {
	return nil, a.handOver(c)
}

// kubernetesProgram is beside kuryr where it is installed.
const kubernetesProgram = "kuryr-kubernetes"

// handOver has that program go on as this process, with the same command line, environment and open files. It returns only where that cannot be.
func (a *app) handOver(c *cobra.Command) error {
	// A signal that has come has ended the context; one that comes now ends the process.
	signal.Reset(syscall.SIGTERM, os.Interrupt)
	if err := c.Context().Err(); err != nil {
		return err
	}
	err := execBeside(kubernetesProgram, os.Args, a.environ)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s is the work of %s, which is not installed beside kuryr: %w", c.CommandPath(), kubernetesProgram, err)
	}
	return err
}

// execBeside executes the program of this name as this process. The program is in the folder of
// the running program's file, also where that was started by a link. It has these arguments,
// the first its own name, and this environment. The function returns only with an error, which
// is [fs.ErrNotExist] where no such program is installed.
func execBeside(name string, argv, environ []string) error {
	self, err := os.Executable() // follows links
	if err != nil {
		return fmt.Errorf("where %s is: %w", name, err)
	}
	path := filepath.Join(filepath.Dir(self), name)
	return &os.PathError{Op: "exec", Path: path, Err: syscall.Exec(path, argv, environ)}
}
