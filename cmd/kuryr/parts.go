//go:build linux

package main

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"path/filepath"

	"github.com/kuryr/kuryr/cmd/kuryr/internal/hostroutes"
	"github.com/kuryr/kuryr/datapath/firewall"
	"github.com/kuryr/kuryr/datapath/lb"
	"github.com/kuryr/kuryr/datapath/router"
	"github.com/kuryr/kuryr/internal/config"
	"github.com/kuryr/kuryr/internal/netns"
	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/local"
)

// parts are the embedded SDN with what it stands on.
type parts struct {
	namespaces *netns.Store
	datapath   *datapath       // nil where there is the store alone
	sdn        *local.Provider // nil where there is no store and only the kernel is to be cleared
}

func storePath(c config.Config) string    { return filepath.Join(c.StateDir, "kuryr.db") }
func namespaceDir(c config.Config) string { return filepath.Join(c.RunDir, "netns") }

// openParts opens everything and changes nothing in the kernel. The store's lock keeps a second process away. balanced is told of each
// change of load balancers in the kernel; nil is fine.
func openParts(ctx context.Context, c config.Config, log *slog.Logger, balanced func(lb.Transaction)) (*parts, error) {
	namespaces, err := netns.Open(namespaceDir(c))
	if err != nil {
		return nil, err
	}
	routed, err := hostroutes.Prefixes(ctx)
	if err != nil {
		return nil, err
	}
	d := &datapath{log: log}
	d.host = firewall.New(firewall.Config{Dir: c.StateDir, Logger: log, TableLost: d.tableLost})
	provider, err := local.Open(ctx, local.Options{
		Path: storePath(c), Host: c.Host, Logger: log,
		UplinkRanges: c.SDN.UplinkRanges, HostRoutes: routed, PortsPerNetwork: c.SDN.PortsPerNetwork,
		NewDatapath: func(uplink4, uplink6 netip.Prefix) (_ local.Datapath, err error) {
			d.Kernel, err = router.New(router.Options{Namespaces: namespaces, Uplink4: uplink4, Uplink6: uplink6, Logger: log, Balanced: balanced})
			return d, err
		},
	})
	if err != nil {
		if d.Kernel != nil {
			err = errors.Join(err, d.Kernel.Close())
		}
		return nil, err
	}
	return &parts{namespaces: namespaces, datapath: d, sdn: provider}, nil
}

// openStore opens the store alone, of which the kernel is told nothing.
func openStore(ctx context.Context, c config.Config, log *slog.Logger) (*parts, error) {
	provider, err := local.Open(ctx, local.Options{
		Path: storePath(c), Host: c.Host, Logger: log, UplinkRanges: c.SDN.UplinkRanges, PortsPerNetwork: c.SDN.PortsPerNetwork,
	})
	if err != nil {
		return nil, err
	}
	return &parts{sdn: provider}, nil
}

// close lets go of everything. Traffic goes on.
func (p *parts) close() error {
	switch {
	case p.datapath == nil:
		return p.sdn.Close()
	case p.sdn == nil:
		return p.datapath.Close()
	}
	return errors.Join(p.sdn.Close(), p.datapath.Close())
}

// plugged counts the ports of containers that are bound to this machine.
func plugged(ctx context.Context, p sdn.Provider, host string) (int, error) {
	n := 0
	for port, err := range p.FindPorts(ctx, sdn.PortQuery{Hosts: []string{host}}) {
		if err != nil {
			return 0, err
		}
		if port.DeviceID != "" {
			n++
		}
	}
	return n, nil
}
