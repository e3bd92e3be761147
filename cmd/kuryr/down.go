//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/kuryr/kuryr/cmd/kuryr/internal/admin"
	"github.com/kuryr/kuryr/datapath/firewall"
	"github.com/kuryr/kuryr/datapath/router"
	"github.com/kuryr/kuryr/docker"
	"github.com/kuryr/kuryr/internal/atomicfile"
	"github.com/kuryr/kuryr/internal/config"
	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/kuryr/kuryr/internal/logging"
	"github.com/kuryr/kuryr/internal/netns"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/kube/cni"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

func (a *app) downCommand() *cobra.Command {
	var o admin.DownOptions
	c := &cobra.Command{
		Use: "down", Short: "Take everything of Kuryr's out of the kernel", Args: noArgs,
		Long: `End the running kuryr and take everything of Kuryr's out of the kernel: namespaces, links, rules, doors through the host's firewall. The
store stays, so that the next "kuryr up" makes all networks again. While containers are plugged it refuses, because they would be cut
off; --force goes on.

--purge also ends "kuryr docker" and "kuryr node", where they are processes of their own, removes the CNI network
configurations that they wrote, deletes the store, with all networks, and copies of it that "kuryr sdn restore" has kept,
and restores the host's forwarding switch. A switch that something else needs by now, such as Docker's bridges, stays on, and the command says so.`,
		Example: "  kuryr down\n  kuryr down --purge",
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, err := a.load(c)
			if err != nil {
				return err
			}
			fronts := runningFrontsOf(c.Context(), cfg)
			if err := fronts.refuseOfCluster(cfg, o.Purge); err != nil {
				return err
			}
			client := admin.NewClient(cfg.Admin.Socket)
			var ended []string // before what they work on is deleted
			if o.Purge {
				if ended, err = fronts.stopBeside(c.Context(), client, o.Force); err != nil {
					return err
				}
			}
			report, err := client.Down(c.Context(), o)
			if admin.IsNotRunning(err) {
				var log *slog.Logger
				if log, err = logging.New(a.err, max(cfg.Log.Level, slog.LevelWarn), cfg.Log.Format); err != nil {
					return err
				}
				stop := func() (err error) {
					if o.Purge {
						ended, err = fronts.stop(c.Context())
					}
					return err
				}
				report, err = downAlone(c.Context(), cfg, log, o, stop)
			}
			report.Done = append(ended, report.Done...)
			add := func(done []string, more error) {
				report.Done = append(report.Done, done...)
				err = errors.Join(err, more)
			}
			if err == nil {
				add(a.downNode(c, cfg))
			}
			switch {
			case err != nil:
			case o.Purge:
				add(purge(cfg))
			default:
				for _, f := range fronts {
					report.Done = append(report.Done, f.name+" still runs")
				}
			}
			report.Done = append(report.Done, sweepTraces("")...)
			for _, line := range report.Done {
				_, _ = fmt.Fprintln(a.out, line)
			}
			return err
		},
	}
	c.Flags().BoolVar(&o.Force, "force", false, "also while containers are plugged, which are cut off")
	c.Flags().BoolVar(&o.Purge, "purge", false, "also restore the host's forwarding switch and delete the store")
	addSettings(c, "state_dir", "run_dir")
	return c
}

// downAlone goes down where no kuryr is running. It calls stop before it changes anything.
func downAlone(
	ctx context.Context, cfg config.Config, log *slog.Logger, o admin.DownOptions, stop func() error,
) (report admin.DownReport, err error) {
	var p *parts
	if _, missing := os.Stat(storePath(cfg)); errors.Is(missing, fs.ErrNotExist) {
		p, err = openBare(cfg, log)
	} else {
		p, err = openParts(ctx, cfg, log, nil)
	}
	if err != nil {
		return report, err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	if err := refuseWhilePlugged(ctx, p, cfg.Host, o.Force); err != nil {
		return report, err
	}
	if err := stop(); err != nil {
		return report, err
	}
	return teardown(ctx, p, cfg, o.Purge)
}

// openBare opens what there is to take down where there is no store.
func openBare(cfg config.Config, log *slog.Logger) (*parts, error) {
	namespaces, err := netns.Open(namespaceDir(cfg))
	if err != nil {
		return nil, err
	}
	f, err := router.New(router.Options{Namespaces: namespaces, Logger: log})
	if err != nil {
		return nil, err
	}
	return &parts{namespaces: namespaces, datapath: &datapath{Kernel: f, host: firewall.New(firewall.Config{Dir: cfg.StateDir, Logger: log}), log: log}}, nil
}

func refuseWhilePlugged(ctx context.Context, p *parts, host string, force bool) error {
	if force || p.sdn == nil {
		return nil
	}
	n, err := plugged(ctx, p.sdn, host)
	if err != nil {
		return err
	}
	return cutOff(n)
}

// cutOff is the refusal to cut off n ports.
func cutOff(n int) error {
	if n > 0 {
		return fmt.Errorf("%s of containers would be cut off: stop them first, or use --force", plural(n, "port"))
	}
	return nil
}

// teardown takes everything out of the kernel. Nothing else may be at work. Killed at any point, the next call finishes.
func teardown(ctx context.Context, p *parts, cfg config.Config, purge bool) (admin.DownReport, error) {
	var report admin.DownReport
	done := func(line string) { report.Done = append(report.Done, line) }
	if err := p.datapath.host.CloseDoors(ctx); err != nil {
		return report, fmt.Errorf("close the doors through the host's firewall: %w", err)
	}
	failpoint.Here("kuryr.down.doors")
	if err := p.datapath.Down(ctx); err != nil {
		return report, fmt.Errorf("take the networks out of the kernel: %w", err)
	}
	failpoint.Here("kuryr.down.kernel")
	done("namespaces, links and rules are out of the kernel")
	if !purge {
		done("the store stays in " + storePath(cfg) + "; `kuryr up` makes its networks again")
		return report, nil
	}
	var leaving []string
	if !nodeRuns(cfg) {
		leaving = append(leaving, legInterface) // downNode removes it
	}
	kept, err := p.datapath.host.RestoreForwarding(ctx, leaving...)
	if err != nil {
		return report, fmt.Errorf("restore the host's forwarding switch: %w", err)
	}
	for _, line := range forwardingLines(kept) {
		done(line)
	}
	failpoint.Here("kuryr.down.forwarding")
	if err := removeFiles(cfg); err != nil {
		return report, err
	}
	done("the store is deleted")
	return report, nil
}

// forwardingLines tell what became of the host's forwarding switches.
func forwardingLines(kept []firewall.Kept) []string {
	if len(kept) == 0 {
		return []string{"the host's forwarding switch is as it was"}
	}
	var lines []string
	for _, k := range kept {
		lines = append(lines, k.String())
	}
	return lines
}

// removeFiles deletes what Kuryr has made in its folders, and these if nothing else is in them. The store goes last, since it
// tells the next call that there is something to finish.
func removeFiles(cfg config.Config) error {
	if err := unix.Unmount(namespaceDir(cfg), unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("unmount %s: %w", namespaceDir(cfg), err)
	}
	stores, err := filepath.Glob(storePath(cfg) + "*")
	if err != nil {
		return err
	}
	stores = append(stores, reconcile.Files(docker.DatabasePath(cfg.StateDir))...)
	if err := os.RemoveAll(filepath.Join(cfg.StateDir, "cni")); err != nil { // pending cleanup
		return fmt.Errorf("delete: %w", err)
	}
	files := []string{namespaceDir(cfg), cfg.Admin.Socket}
	for _, name := range []string{keyFile, revokedFile, peerFile, formerPeerFile} {
		files = append(files, filepath.Join(cfg.StateDir, name))
	}
	folders := docker.Folders(cfg.StateDir, cfg.RunDir)
	if peer(cfg.Node.Socket) == 0 { // a killed daemon leaves it, and another one needs the records
		tables, err := filepath.Glob(agentPath(cfg) + "*")
		if err != nil {
			return err
		}
		files = append(append(files, cfg.Node.Socket), tables...)
		state := filepath.Join(cfg.StateDir, "cni")
		folders = append(folders, cni.PendingDELs(state).Dir(), cni.StaticBindings(state).Dir(), state)
	}
	for _, dir := range append(folders, cfg.StateDir) {
		if err := atomicfile.Clean(dir); err != nil {
			return fmt.Errorf("delete: %w", err)
		}
	}
	for _, dir := range folders {
		written, err := filepath.Glob(filepath.Join(dir, "*.json"))
		if err != nil {
			return err
		}
		files = append(append(files, written...), dir)
	}
	files = append(append(files, cfg.RunDir, filepath.Join(cfg.StateDir, "host.json")), stores...)
	for _, path := range append(files, cfg.StateDir) {
		err := os.Remove(path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("delete: %w", err)
		}
		failpoint.Here("kuryr.down.file")
	}
	return nil
}
