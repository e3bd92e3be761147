//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"

	"github.com/kuryr/kuryr/datapath/fabric"
	"github.com/kuryr/kuryr/datapath/host"
	"github.com/kuryr/kuryr/internal/config"
	"github.com/kuryr/kuryr/internal/hostroutes"
	"github.com/kuryr/kuryr/internal/netns"
	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/local"
)

// parts are the embedded SDN with what it stands on.
type parts struct {
	namespaces *netns.Store
	datapath   *datapath
	sdn        *local.Provider
}

func storePath(c config.Config) string    { return filepath.Join(c.StateDir, "kuryr.db") }
func namespaceDir(c config.Config) string { return filepath.Join(c.RunDir, "netns") }

// openParts opens everything and changes nothing in the kernel. The store's lock keeps a second process away.
func openParts(ctx context.Context, c config.Config, log *slog.Logger) (*parts, error) {
	namespaces, err := netns.Open(namespaceDir(c))
	if err != nil {
		return nil, err
	}
	// The store says which ranges the uplinks have, and is opened on a data path that knows how large packets can be. So it gets
	// one without ranges, which are put in before anything asks for more.
	bare, err := fabric.New(fabric.Config{Namespaces: namespaces, Logger: log})
	if err != nil {
		return nil, err
	}
	routed, err := hostroutes.Prefixes(ctx)
	if err != nil {
		return nil, errors.Join(err, bare.Close())
	}
	d := &datapath{Fabric: bare, log: log}
	d.host = host.New(host.Config{Dir: c.StateDir, Logger: log, TableLost: d.tableLost})
	provider, err := local.Open(ctx, local.Options{
		Path: storePath(c), Datapath: d, Host: c.Host, Logger: log,
		UplinkRanges: c.SDN.UplinkRanges, HostRoutes: routed, PortsPerNetwork: c.SDN.PortsPerNetwork,
	})
	if err != nil {
		return nil, errors.Join(err, bare.Close())
	}
	p := &parts{namespaces: namespaces, datapath: d, sdn: provider}
	ranges, err := uplinkRanges(ctx, provider)
	if err != nil {
		return nil, errors.Join(err, p.close())
	}
	v4, v6 := split(ranges)
	whole, err := fabric.New(fabric.Config{Namespaces: namespaces, Uplink4: v4, Uplink6: v6, Logger: log})
	if err != nil {
		return nil, errors.Join(err, p.close())
	}
	d.Fabric = whole
	return p, bare.Close()
}

// close lets go of everything. Traffic goes on.
func (p *parts) close() error {
	if p.sdn == nil {
		return p.datapath.Close()
	}
	return errors.Join(p.sdn.Close(), p.datapath.Close())
}

// uplinkRanges are the subnets of the built-in external network.
func uplinkRanges(ctx context.Context, p sdn.Provider) ([]netip.Prefix, error) {
	var ranges []netip.Prefix
	for s, err := range p.FindSubnets(ctx, sdn.SubnetQuery{Networks: []sdn.ID{p.Capabilities().ExternalNetwork}}) {
		if err != nil {
			return nil, fmt.Errorf("ranges of the uplinks: %w", err)
		}
		ranges = append(ranges, s.CIDR)
	}
	return ranges, nil
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
