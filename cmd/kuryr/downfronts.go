//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kuryr/kuryr/cmd/kuryr/internal/admin"
	"github.com/kuryr/kuryr/cmd/kuryr/internal/api"
	"github.com/kuryr/kuryr/internal/backoff"
	"github.com/kuryr/kuryr/internal/config"
)

// runningFront is a front end that is a process of its own, beside that of the SDN.
type runningFront struct {
	name    string
	socket  string
	cluster bool // it is the daemon of a cluster's node, which refuses to stop
}

type runningFronts []runningFront

// runningFrontsOf looks for front ends beside the process that serves the admin socket.
func runningFrontsOf(ctx context.Context, cfg config.Config) (all runningFronts) {
	shared := cfg
	shared.Provider = config.ProviderSDN
	for _, f := range []runningFront{
		{name: "kuryr docker", socket: frontSocket(shared, duties{docker: true})},
		{name: "kuryr node", socket: frontSocket(shared, duties{node: true})},
	} {
		status, err := admin.NewClient(f.socket).Status(ctx)
		if !admin.IsNotRunning(err) {
			f.cluster = status.Cluster
			all = append(all, f)
		}
	}
	return all
}

// refuseOfCluster fails if one of the front ends is the daemon of a cluster's node, which would
// keep what is taken down: all with a purge, the node's own port without.
func (all runningFronts) refuseOfCluster(cfg config.Config, purge bool) error {
	for _, f := range all {
		if f.cluster && (purge || hasLeg(cfg)) {
			return errors.New("the daemon of a cluster's node runs: take Kuryr out of the cluster first")
		}
	}
	return nil
}

// stopBeside ends the front ends beside a process that Down is about to end, unless Down would
// refuse.
func (all runningFronts) stopBeside(ctx context.Context, c *admin.Client, force bool) ([]string, error) {
	if len(all) == 0 {
		return nil, nil
	}
	status, err := c.Status(ctx)
	if admin.IsNotRunning(err) || err == nil && status.StoreOnly {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if !force {
		hosts := url.Values{"binding:host_id": {status.Host}}
		ports, err := api.List(ctx, c.SDN(), api.Ports, hosts)
		if err != nil {
			return nil, err
		}
		ports = slices.DeleteFunc(ports, func(p api.Port) bool { return p.DeviceID == "" })
		if err := cutOff(len(ports)); err != nil {
			return nil, err
		}
	}
	return all.stop(ctx)
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
		if err := backoff.Sleep(ctx, 20*time.Millisecond); err != nil {
			return fmt.Errorf("wait for its end: %w", err)
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
		cfg.SDN.Socket, rpcSocket(cfg), cfg.Docker.Socket, cfg.Node.Socket, cfg.Kurma.Socket, cfg.Admin.Socket,
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
