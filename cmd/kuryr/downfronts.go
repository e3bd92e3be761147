//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/kuryr/kuryr/internal/admin"
	"github.com/kuryr/kuryr/internal/config"
)

// runningFront is a front end that is a process of its own, beside that of the SDN.
type runningFront struct {
	name   string
	socket string
}

type runningFronts []runningFront

// runningFrontsOf looks for front ends beside the process that serves the admin socket. A
// node's daemon of a cluster is none: it refuses to stop, as the cluster would start it
// again.
func runningFrontsOf(ctx context.Context, cfg config.Config) (all runningFronts) {
	shared := cfg
	shared.Provider = config.ProviderSDN
	for _, f := range []runningFront{
		{"kuryr docker", frontSocket(shared, duties{docker: true})},
		{"kuryr node", frontSocket(shared, duties{node: true})},
	} {
		if _, err := admin.NewClient(f.socket).Status(ctx); !admin.IsNotRunning(err) {
			all = append(all, f)
		}
	}
	return all
}

// stop ends the front ends, and waits until they have.
func (all runningFronts) stop(ctx context.Context) (done []string, err error) {
	for _, f := range all {
		if e := f.stop(ctx); e != nil {
			err = errors.Join(err, fmt.Errorf("%s still runs (%s): %w", f.name, f.socket, e))
			continue
		}
		done = append(done, f.name+" has ended")
	}
	return done, err
}

// stopTime is how long a front end may take to end.
const stopTime = 20 * time.Second

func (f runningFront) stop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, stopTime)
	defer cancel()
	if err := admin.NewClient(f.socket).Stop(ctx); err != nil {
		return err
	}
	for answered(f.socket) {
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for its end: %w", ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
	return nil
}

// answered reports whether a process listens at a Unix socket.
func answered(socket string) bool {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}

// purge deletes what Kuryr's processes, which have ended, left on the host beside the store,
// and names what it leaves.
func purge(cfg config.Config) (done []string, err error) {
	if done, err = removeConflists(cfg); err != nil {
		return done, err
	}
	shared := cfg
	shared.Provider = config.ProviderSDN
	var others []string
	for _, socket := range []string{
		cfg.SDN.Socket, cfg.Docker.Socket, cfg.Node.Socket, cfg.Kurma.Socket, cfg.Admin.Socket,
		frontSocket(shared, duties{docker: true}), frontSocket(shared, duties{node: true}),
	} {
		info, err := os.Lstat(socket)
		switch {
		case err != nil || info.Mode().Type() != os.ModeSocket:
		case answered(socket):
			others = append(others, socket)
		default:
			if err := os.Remove(socket); err != nil {
				return done, err
			}
		}
	}
	if err := errors.Join(removeFiles(cfg), purgeServices(cfg)); err != nil {
		return done, err
	}
	for _, socket := range others {
		done = append(done, "a process still answers at "+socket+": stop it")
	}
	var left []string
	for _, dir := range []string{cfg.StateDir, cfg.RunDir} {
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			left = append(left, filepath.Join(dir, e.Name()))
		}
	}
	if len(left) > 0 {
		return append(done, "not deleted: "+strings.Join(left, ", ")), nil
	}
	return append(done, "all files of Kuryr are deleted"), nil
}
