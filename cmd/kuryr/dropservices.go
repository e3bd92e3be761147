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

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/kuryr/kuryr/datapath/firewall"
	"github.com/kuryr/kuryr/datapath/lb"
	"github.com/kuryr/kuryr/datapath/nft"
	"github.com/kuryr/kuryr/internal/config"
)

// Of Services on a cluster's node: the table in the host's network namespace, and the node's own port.
const (
	servicesTable = "kuryr_lb"
	legInterface  = "kuryr-node0"
	routerLinks   = "kr" // what the names of links to the embedded SDN's routers begin with
)

// balancing is the table of Services in the host's network namespace. What comes by a link of the SDN is of clients inside: of pods, and of what else the SDN has. observe is told of its transactions; nil is fine.
func balancing(c config.Config, log *slog.Logger, observe func(lb.Transaction)) *lb.Table {
	return lb.New(lb.Config{Name: servicesTable, NodeAddrs: c.Node.NodePortAddresses, Inside: []string{routerLinks, legInterface}, Logger: log, Observe: observe})
}

// servicesDir is where the daemon of a cluster's node keeps what it has changed of the host for Services.
func servicesDir(c config.Config) string { return filepath.Join(c.StateDir, "services") }

// legHost is what the host needs so that packets pass between the node's own port and others. Where the SDN is of this machine its daemon does that, for its own links.
func legHost(c config.Config, log *slog.Logger) *firewall.Host {
	return firewall.New(firewall.Config{Dir: servicesDir(c), Link: legInterface, Logger: log})
}

// dropBalancing takes what balances Services out of the kernel, and says so. Where it is not there it says nothing. Connections that a client has go on until they end,
// since the kernel remembers where they lead; who comes anew is not balanced any more.
func dropBalancing(ctx context.Context, cfg config.Config, log *slog.Logger) (done []string, err error) {
	if there, err := hasTable(servicesTable); err != nil || !there {
		return nil, err
	}
	t := balancing(cfg, log, nil)
	if err := errors.Join(t.Remove(ctx), t.Close()); err != nil {
		return nil, fmt.Errorf("services: %w", err)
	}
	return []string{"what balances Services is out of the kernel"}, nil
}

// dropServices does what dropBalancing does, and restores what the host was changed for. If
// nothing was changed it reports nothing. The record of a forwarding switch that something
// else still needs stays, for "kuryr down --purge".
func dropServices(ctx context.Context, cfg config.Config, log *slog.Logger) (done []string, err error) {
	if done, err = dropBalancing(ctx, cfg, log); err != nil {
		return nil, err
	}
	guarded, err := hasTable(firewall.GuardTable)
	if err != nil {
		return done, err
	}
	// A host that forwarded before has no record, but doors.
	if _, err := os.Stat(servicesDir(cfg)); errors.Is(err, fs.ErrNotExist) && !guarded {
		return done, nil
	}
	h := legHost(cfg, log)
	if err := h.CloseDoors(ctx); err != nil {
		return done, fmt.Errorf("services: %w", err)
	}
	kept, err := h.RestoreForwarding(ctx)
	if err != nil {
		return done, fmt.Errorf("services: %w", err)
	}
	if err := firewall.UnguardLink(); err != nil { // last: by it the next attempt knows that there is something to do
		return done, fmt.Errorf("services: %w", err)
	}
	done = append(append(done, "the doors through the host's firewall are closed"), forwardingLines(kept)...)
	if len(kept) > 0 {
		return done, nil
	}
	return done, os.RemoveAll(servicesDir(cfg))
}

// purgeServices forgets what the host was changed for, and removes the state folder if
// nothing else is in it.
func purgeServices(cfg config.Config) error {
	if err := os.RemoveAll(servicesDir(cfg)); err != nil {
		return err
	}
	err := os.Remove(cfg.StateDir)
	if err == nil || errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EBUSY) {
		return nil
	}
	return err
}

// hasTable tells whether the namespace has an nftables table of a name, in any family.
func hasTable(name string) (bool, error) {
	c, err := nft.Dial(0)
	if err != nil {
		return false, err
	}
	defer func() { _ = c.Close() }()
	all, err := c.ListTables()
	if err != nil {
		return false, fmt.Errorf("nftables: %w", err)
	}
	for _, t := range all {
		if t.Name == name {
			return true, nil
		}
	}
	return false, nil
}

// dropNode takes what the daemon of a cluster's node did for Services off the machine, where it does not run. Where the node's own port cannot go, what balances goes all the same;
// the guard and the doors are for as long as the port is there.
func (a *app) dropNode(c *cobra.Command, cfg config.Config) ([]string, error) {
	done, err := a.dropLeg(c, cfg)
	drop := dropServices
	if err != nil {
		drop = dropBalancing
	}
	more, failed := drop(c.Context(), cfg, slog.New(slog.DiscardHandler))
	return append(done, more...), errors.Join(err, failed)
}

// downNode is dropNode for who takes Kuryr off the machine. While the node's daemon runs, which would bring it back, what there is of Services stays; with a port of its own it fails.
func (a *app) downNode(c *cobra.Command, cfg config.Config) ([]string, error) {
	if !nodeRuns(cfg) {
		return a.dropNode(c, cfg)
	}
	if hasLeg(cfg) {
		return nil, fmt.Errorf("the daemon of a cluster's node runs, and keeps %s: take Kuryr out of the cluster first", legInterface)
	}
	return nil, nil
}

// nodeRuns reports whether the daemon of a cluster's node runs on this machine.
func nodeRuns(cfg config.Config) bool { return answered(frontSocket(cfg, duties{node: true})) }
