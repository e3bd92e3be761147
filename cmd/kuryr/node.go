//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/kuryr/kuryr/bind"
	"github.com/kuryr/kuryr/cmd/kuryr/internal/admin"
	"github.com/kuryr/kuryr/internal/atomicfile"
	"github.com/kuryr/kuryr/internal/config"
	"github.com/kuryr/kuryr/internal/hostports"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/internal/rootsock"
	"github.com/kuryr/kuryr/kube/agent"
	"github.com/kuryr/kuryr/kube/cni"
	"github.com/kuryr/kuryr/sdn"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
)

func (a *app) nodeCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "node", Short: "Give containers of CNI runtimes (podman, containerd, cnitool) ports of the SDN", Args: noArgs,
		Long: `Run the daemon that kuryr-cni calls, on the SDN that the configuration names (provider), until SIGTERM or SIGINT. Containers stay as they are when it
ends. What is taken away while it does not run is taken from the SDN when it is back.

A network of CNI's is the SDN's network of that name, or the one that "network" in its conflist names. With node.conflist it writes such a list when it is
ready.

Where the variable NODE_NAME names a node of a Kubernetes cluster it is the daemon of that node: it has no SDN, and gives pods the ports that Raven
("kuryr controller") has made for the node. The settings of section kubernetes tell how the cluster is reached, where it is no pod of it.`,
		Example: "  kuryr node\n  kuryr node --node-conflist /etc/cni/net.d/10-kuryr.conflist --node-network blue",
		RunE: func(c *cobra.Command, _ []string) error {
			if name := a.getenv("NODE_NAME"); name != "" {
				return a.clusterNode(c, name)
			}
			return a.daemon(c, func(cfg config.Config) duties { return duties{open: providers[cfg.Provider], node: true} })
		},
	}
	addSettings(c, settingsBut("docker.", "controller.", "kurma.")...)
	return c
}

// nodeFront is the front end of CNI with what it stands on.
type nodeFront struct {
	cfg      config.Config
	log      *slog.Logger
	provider sdn.Provider
	binder   *bind.Binder
	held     *hostports.Holder
	registry *prometheus.Registry
	store    *reconcile.Store // nil until CNI is served
	server   atomic.Pointer[agent.Server]
	pins     string // folder of the namespaces that ports are plugged into; "" where they are in the host's
}

// agentPath is the file of the attachments' table.
func agentPath(c config.Config) string { return filepath.Join(c.RunDir, "agent.db") }

// openAgentStore opens the table of the attachments of this boot. One process at a time has it:
// the one that serves CNI.
func openAgentStore(c config.Config, registry *prometheus.Registry, log *slog.Logger) (*reconcile.Store, error) {
	return reconcile.Open(reconcile.Config{
		Path: agentPath(c), Volatile: true, Logger: log,
		Registerer: registry,
	})
}

// newNode gives the daemon its CNI server.
func (d *daemon) newNode(ctx context.Context, back *backend, registry *prometheus.Registry) error {
	provider, binder, err := d.plugging(ctx, back, registry)
	if err != nil {
		return err
	}
	f := &nodeFront{cfg: d.cfg, log: d.log, provider: provider, binder: binder, held: &hostports.Holder{}, registry: registry}
	if back.here {
		f.pins = namespaceDir(d.cfg)
	}
	d.node = f
	return nil
}

// waiting plugs for containers, which may send as soon as their ADD is answered.
func waiting(c config.Config, b *bind.Binder) bind.Waiting {
	return bind.Waiting{Binder: b, Timeout: c.Node.WaitActive}
}

// begin lets kuryr-cni in, and then tells container runtimes of it.
func (f *nodeFront) begin(ctx context.Context, work *errgroup.Group) error {
	l, err := rootsock.Listen(f.cfg.Node.Socket)
	if err != nil {
		return err
	}
	server, err := f.open(ctx)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	work.Go(func() error { return f.binder.Run(ctx) })
	work.Go(func() error { f.store.Run(ctx); return nil })
	work.Go(func() error { return server.Serve(ctx, l) })
	work.Go(func() error { collectLinks(ctx, f.binder, f.pins, f.log); return nil })
	return installConflist(f.cfg)
}

// open makes the CNI server on its table.
func (f *nodeFront) open(ctx context.Context) (*agent.Server, error) {
	var err error
	if f.store, err = openAgentStore(f.cfg, f.registry, f.log); err != nil {
		return nil, err
	}
	server, err := agent.New(agent.Config{
		Source: agent.NewNetwork(agent.NetworkConfig{
			Provider: f.provider, Host: f.cfg.Host, HostPorts: f.held, Logger: f.log,
		}),
		Binder: waiting(f.cfg, f.binder), Store: f.store,
		State: filepath.Join(f.cfg.StateDir, "cni"), Logger: f.log, Registerer: f.registry,
	})
	if err != nil {
		return nil, err
	}
	f.server.Store(server)
	return server, f.store.Start(ctx)
}

// findings are about what containers left.
func (f *nodeFront) findings() []admin.Finding {
	if f == nil || f.server.Load() == nil {
		return []admin.Finding{}
	}
	return pendingFindings(f.server.Load())
}

func pendingFindings(s *agent.Server) []admin.Finding {
	n := s.Pending()
	if n == 0 {
		return []admin.Finding{}
	}
	return []admin.Finding{{
		What:        fmt.Sprintf("the deletion of %d interfaces of containers has failed and is repeated", n),
		Remediation: "see the log for the reason, such as an SDN or a switch that is unavailable",
	}}
}

// close lets go of what is not the kernel's or the SDN's. It is called after all that begin started has ended.
func (f *nodeFront) close() {
	f.held.Close()
	err := f.binder.Close()
	if f.store != nil {
		err = errors.Join(err, f.store.Close())
	}
	if err != nil {
		f.log.Warn("a part did not end well", "error", err)
	}
}

// capabilities are what runtimes are told of. Where the SDN or the node lacks one it is refused, and not passed over in silence.
var capabilities = []string{"ips", "mac", "bandwidth", "portMappings"}

// conflist is the list by which runtimes find the network.
func conflist(c config.Config) ([]byte, error) {
	can := map[string]bool{}
	for _, name := range capabilities {
		can[name] = true
	}
	plugin := map[string]any{"type": cni.Type, "capabilities": can}
	if c.Node.Socket != cni.DefaultSocket {
		plugin["socket"] = c.Node.Socket
	}
	if state := filepath.Join(c.StateDir, "cni"); state != cni.DefaultState {
		plugin["state"] = state
	}
	data, err := json.MarshalIndent(map[string]any{
		// Runtimes of before 1.1.0 read the first alone, and refuse what is newer than they are.
		"cniVersion": "1.0.0", "cniVersions": []string{"0.4.0", "1.0.0", "1.1.0"}, "name": c.Node.Network, "plugins": []any{plugin},
	}, "", "  ")
	return append(data, '\n'), err
}

// noteFile has the path of each conflist that was written, a line each. "kuryr down --purge"
// removes them.
func noteFile(c config.Config) string { return filepath.Join(c.StateDir, "conflists") }

// noteConflist adds the conflist's path to the note, before the conflist is written.
func noteConflist(c config.Config) error {
	text, err := os.ReadFile(noteFile(c))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	line := c.Node.Conflist + "\n"
	if slices.Contains(slices.Collect(strings.Lines(string(text))), line) {
		return nil
	}
	if err := os.MkdirAll(c.StateDir, 0o700); err != nil {
		return err
	}
	return atomicfile.WriteFile(noteFile(c), append(text, line...), 0o600)
}

// removeConflists removes the conflists that were written, and those alone that are still
// Kuryr's.
func removeConflists(c config.Config) (done []string, err error) {
	text, err := os.ReadFile(noteFile(c))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(text)) {
		path := strings.TrimSuffix(line, "\n")
		data, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return done, err
		}
		var list struct {
			Plugins []struct {
				Type string `json:"type"`
			} `json:"plugins"`
		}
		if json.Unmarshal(data, &list) != nil || len(list.Plugins) == 0 || list.Plugins[0].Type != cni.Type {
			done = append(done, path+" is not Kuryr's any more, and stays")
			continue
		}
		if err := os.Remove(path); err != nil {
			return done, err
		}
		done = append(done, "the network configuration "+path+" is deleted")
	}
	return done, os.Remove(noteFile(c))
}

// installConflist writes the list, whole or not at all, where the configuration wants one and it is not there already.
func installConflist(c config.Config) error {
	path := c.Node.Conflist
	if path == "" {
		return nil
	}
	data, err := conflist(c)
	if err != nil {
		return err
	}
	there, err := os.ReadFile(path)
	if err == nil && string(there) == string(data) {
		return noteConflist(c)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := errors.Join(noteConflist(c), os.MkdirAll(filepath.Dir(path), 0o755)); err != nil {
		return err
	}
	return atomicfile.WriteFile(path, data, 0o644)
}
