//go:build linux

package main

import (
	"context"
	"os"
	"path/filepath"

	"github.com/kuryr/kuryr/cmd/kuryr/internal/admin"
	"github.com/kuryr/kuryr/cmd/kuryr/internal/doctor"
	"github.com/kuryr/kuryr/internal/config"
	"github.com/kuryr/kuryr/kube/cni"
)

// pluginFolders are where container runtimes and the kubelet look for the plugin of CNI.
var pluginFolders = []string{"/opt/cni/bin", "/usr/libexec/kubernetes/kubelet-plugins/net/exec"}

// podDaemon is the daemon of a cluster's node, if there is or was one on this machine.
func podDaemon(cfg config.Config) (*admin.Client, bool) {
	socket := frontSocket(cfg, duties{node: true})
	_, err := os.Stat(socket)
	return admin.NewClient(socket), err == nil
}

// pods is what the daemon of a cluster's node tells.
func (e *examination) pods(ctx context.Context) doctor.PodFacts {
	daemon, there := podDaemon(e.cfg)
	f := doctor.PodFacts{There: there, Here: version}
	if !there {
		return f
	}
	status, err := daemon.Status(ctx)
	if f.Err = err; err != nil {
		return f
	}
	f.Version, f.Reasons = status.Version, status.Reasons
	for _, i := range status.Findings {
		f.Host = append(f.Host, doctor.Host{What: i.What, Remediation: i.Remediation, Note: i.Note})
	}
	check, err := daemon.Check(ctx)
	f.Differences, f.CheckErr = check.Differences, err
	all, err := daemon.Pods(ctx)
	if err != nil {
		f.CheckErr = err
		return f
	}
	f.Waiting = all.Waiting
	for _, p := range all.Pools {
		f.Pools = append(f.Pools, doctor.PodPool{Name: p.Name, Network: p.Network, Ports: p.Ports, Free: p.Free, Waiting: p.Waiting, Limit: p.Maximum, Why: p.Why})
	}
	f.Conflist, f.First = all.Conflist, doctor.FirstNetwork(all.Conflist)
	if own, err := os.Executable(); err == nil {
		var installed []string
		for _, folder := range pluginFolders {
			installed = append(installed, filepath.Join(folder, cni.Type))
		}
		f.Stale = doctor.StalePlugins(filepath.Join(filepath.Dir(own), "kuryr-cni"), installed...)
	}
	return f
}
