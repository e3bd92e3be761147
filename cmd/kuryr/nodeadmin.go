//go:build linux && kubernetes

package main

import (
	"context"
	"errors"
	"io"
	"net/http"

	"github.com/kuryr/kuryr/internal/admin"
)

// errOfCluster is the answer to what only a process with an SDN or with Docker can be asked for.
var errOfCluster = errors.New("this is the daemon of a cluster's node, which has no SDN: ask Raven's, or kubectl")

// What the daemon of a cluster's node tells of itself, at kuryr-node.sock beside the admin socket. It has neither store nor SDN nor Docker.
var _ admin.Daemon = (*clusterNode)(nil)

func (n *clusterNode) Unready() []string {
	reasons := []string{} // in JSON a list, also when it is empty
	if err := n.claimant.Ready(context.Background(), "", ""); err != nil {
		reasons = append(reasons, oneLine(err))
	} else if !n.serving.Load() {
		reasons = append(reasons, "container runtimes are not told of the network yet")
	}
	return reasons
}

// Status counts the interfaces of containers that have ports as "attachment".
func (n *clusterNode) Status(ctx context.Context) (admin.Status, error) {
	has, err := n.claimant.Attachments(ctx)
	if err != nil {
		return admin.Status{}, err
	}
	s := admin.Status{
		Version: version, Host: n.name, Started: n.started, Reasons: n.Unready(), NodeSocket: n.cfg.Node.Socket,
		Objects: map[string]int64{"attachment": int64(len(has))}, Findings: []admin.Finding{}, Unreached: []admin.Unreached{},
	}
	s.Ready = len(s.Reasons) == 0
	return s, nil
}

func (n *clusterNode) Reconcile(context.Context) (admin.Reconcile, error) {
	return admin.Reconcile{}, errOfCluster
}

func (n *clusterNode) Check(context.Context) (admin.Check, error) {
	return admin.Check{}, errOfCluster
}

func (n *clusterNode) Backup(context.Context, io.Writer) error { return errOfCluster }

func (n *clusterNode) Memory(context.Context) (admin.Memory, error) {
	return admin.Memory{Off: "this process does not serve Docker", Forgotten: []admin.Forgotten{}, Unknown: []admin.UnknownNetwork{}, Broken: []admin.Broken{}}, nil
}

func (n *clusterNode) Forget(context.Context, admin.ForgetOptions) (admin.Mended, error) {
	return admin.Mended{}, errOfCluster
}

func (n *clusterNode) Mend(context.Context) (admin.Mended, error) {
	return admin.Mended{}, errOfCluster
}

func (n *clusterNode) Down(context.Context, admin.DownOptions) (admin.DownReport, error) {
	return admin.DownReport{}, errOfCluster
}

// noSDN answers who asks the daemon for the SDN's API.
func noSDN(w http.ResponseWriter, _ *http.Request) {
	http.Error(w, errOfCluster.Error(), http.StatusNotFound)
}
