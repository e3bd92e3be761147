//go:build linux && kubernetes

package main

import (
	"context"
	"errors"
	"io"
	"net/http"

	"github.com/kuryr/kuryr/cmd/kuryr/internal/admin"
	"github.com/kuryr/kuryr/internal/reconcile"
)

// errOfCluster is the answer to what only a process with an SDN or with Docker can be asked for.
var errOfCluster = errors.New("this is the daemon of a cluster's node, which has no SDN: ask Raven's, or kubectl")

// What the daemon of a cluster's node tells of itself, at kuryr-node.sock beside the admin socket. It has neither store nor SDN nor Docker.
var _ admin.Daemon = (*clusterNode)(nil)

// Unready is empty once CNI is served and the node's ports are known. A node whose ports an administrator has made Raven's to give has nothing to wait for: see idle.
func (n *clusterNode) Unready() []string {
	reasons := []string{} // in JSON a list, also when it is empty
	select {
	case <-n.allocator.Started():
		if !n.serving.Load() {
			reasons = append(reasons, "container runtimes are not told of the network yet")
		}
	default:
		reasons = append(reasons, "the API server has not told yet which ports the node has")
	}
	return reasons
}

// idle is why it gives no ports though it is ready.
func (n *clusterNode) idle(ctx context.Context) []admin.Finding {
	if len(n.Unready()) > 0 {
		return []admin.Finding{}
	}
	err := n.allocator.Ready(ctx, "", "")
	if err == nil {
		return []admin.Finding{}
	}
	return []admin.Finding{{What: "this daemon gives no ports: " + oneLine(err), Remediation: "take the label away, if it is to", Note: true}}
}

// findings are what stops, or may stop, what a node is for.
func (n *clusterNode) findings(ctx context.Context) []admin.Finding {
	out := append(n.idle(ctx), pendingFindings(n.server)...)
	if n.services != nil {
		out = append(out, n.services.findings()...)
	}
	return out
}

// Status counts the interfaces of containers as "attachment", and the ports of the node as "port".
func (n *clusterNode) Status(ctx context.Context) (admin.Status, error) {
	var attachments int64
	for r := range n.server.Rows() {
		if r.Phase == reconcile.Wanted {
			attachments++
		}
	}
	view := n.allocator.View()
	s := admin.Status{
		Version: version, Host: n.name, Started: n.started, Cluster: true, Reasons: n.Unready(), NodeSocket: n.cfg.Node.Socket,
		Objects: map[string]int64{
			"attachment": attachments, "port": int64(len(view.Ports)),
			"pool": int64(len(view.Pools)), "waiting pod": int64(view.Waiting),
		},
		Findings: n.findings(ctx), Unreached: []admin.Unreached{},
	}
	s.Ready = len(s.Reasons) == 0
	return s, nil
}

func (n *clusterNode) Reconcile(context.Context) (admin.Reconcile, error) {
	return admin.Reconcile{}, errOfCluster
}

func (n *clusterNode) Backup(context.Context, io.Writer) error { return errOfCluster }

func (n *clusterNode) Orphans(context.Context) (admin.Orphans, error) {
	return admin.Orphans{Off: "this process does not serve Docker", Orphans: []admin.Orphan{}, Unknown: []admin.UnknownNetwork{}, Broken: []admin.Broken{}}, nil
}

func (n *clusterNode) Purge(context.Context, admin.PurgeOptions) (admin.Repairs, error) {
	return admin.Repairs{}, errOfCluster
}

func (n *clusterNode) Repair(context.Context) (admin.Repairs, error) {
	return admin.Repairs{}, errOfCluster
}

func (n *clusterNode) Down(context.Context, admin.DownOptions) (admin.DownReport, error) {
	return admin.DownReport{}, errOfCluster
}

// Stop refuses: the cluster would start the daemon again.
func (n *clusterNode) Stop(context.Context) error { return errOfCluster }

// noSDN answers who asks the daemon for the SDN's API.
func noSDN(w http.ResponseWriter, _ *http.Request) {
	http.Error(w, errOfCluster.Error(), http.StatusNotFound)
}
