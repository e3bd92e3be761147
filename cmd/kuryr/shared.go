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
	"strings"
	"time"

	"github.com/kuryr/kuryr/internal/atomicfile"
	"github.com/kuryr/kuryr/internal/config"
	"github.com/kuryr/kuryr/internal/metrics"
	"github.com/kuryr/kuryr/internal/valid"
	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/rpc"
	"github.com/prometheus/client_golang/prometheus"
)

// rpcSocket returns the socket where the embedded SDN serves its provider: sdn-rpc.sock
// beside sdn.sock.
func rpcSocket(c config.Config) string {
	return strings.TrimSuffix(c.SDN.Socket, ".sock") + "-rpc.sock"
}

// openShared opens the SDN of a `kuryr sdn` on this machine. Unless the configuration names
// the installation, it waits for the SDN until that has answered once.
func openShared(
	ctx context.Context, c config.Config, log *slog.Logger, r prometheus.Registerer,
) (*backend, error) {
	requests := metrics.NewRequests(r)
	o := rpc.Options{
		Installation: c.Installation, Neutron: c.SDN.Socket, Timeout: c.Neutron.Timeout, Logger: log,
		Observe: func(method string, status int, took time.Duration) {
			requests.Done("RPC", method, status, took)
		},
	}
	if c.Installation != "" {
		o.Known = &rpc.Peer{Installation: c.Installation, Capabilities: unmet}
	} else {
		var err error
		path := filepath.Join(c.StateDir, peerFile)
		if o.Known, err = keptPeer(path); err != nil {
			return nil, err
		}
		o.Learned = func(p rpc.Peer) {
			if err := keepPeer(path, p); err != nil {
				log.Warn("cannot store the SDN's capabilities", "path", path, "err", err)
			}
		}
	}
	p, err := rpc.Dial(ctx, rpcSocket(c), o)
	if err != nil {
		return nil, err
	}
	return &backend{provider: p, here: true}, nil
}

// unmet is what a `kuryr sdn` is expected to do until it has answered.
var unmet = sdn.Capabilities{
	ChooseMAC: true, ChooseAddress: true, HostBinding: true, TagsAtCreate: true,
	MaxTagLen: valid.MaxText, MaxNameLen: valid.MaxText, KeepReserved: true, SubnetPools: true,
	Routers: true, FloatingIPs: true, FloatingIPv6: true, PickFloatingIP: true,
	HostAddresses: true, HostReached: true, Forwards: true, ForwardRanges: true,
	SecurityGroups: true, GrouplessOpen: true, RemoteGroups: true, AddressGroups: true,
	QoS: true, Quotas: true, WatchPorts: true, Ordered: true,
}

// peerFile, in the state directory, keeps what the SDN said of itself. Earlier versions
// kept its installation alone, in formerPeerFile.
const (
	peerFile       = "sdn.json"
	formerPeerFile = "sdn-installation"
)

// keptPeer reads the file, nil where there is none.
func keptPeer(path string) (*rpc.Peer, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	p := &rpc.Peer{}
	if err := json.Unmarshal(text, p); err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return p, nil
}

func keepPeer(path string, p rpc.Peer) error {
	text, err := json.Marshal(p)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return atomicfile.WriteFile(path, text, 0o600)
}
