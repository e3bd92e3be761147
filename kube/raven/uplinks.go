package raven

import (
	"context"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
)

// uplinked tells whether nodes have ports of their own on the network of a namespace.
func (r *Raven) uplinked(namespace string) bool {
	return namespace != "" && namespace == r.cfg.UplinkNamespace
}

// wantsUplink tells whether a node is to have a port of its own: it is there, and has a daemon that would plug it.
func wantsUplink(n *corev1.Node) bool {
	return n != nil && n.DeletionTimestamp.IsZero() && n.Labels[v1.LabelClaimant] != v1.ClaimantRaven
}

// nodeUplinked tells whether a node is to have a port of its own on the network of a namespace.
func (r *Raven) nodeUplinked(ctx context.Context, namespace, node string) (bool, error) {
	if !r.uplinked(namespace) {
		return false, nil
	}
	var n corev1.Node
	if err := r.api.Get(ctx, types.NamespacedName{Name: node}, &n); apierrors.IsNotFound(err) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	return wantsUplink(&n), nil
}

// uplinkOf is the request for a node's own port.
func (r *Raven) uplinkOf(node string) []ctrl.Request {
	if r.cfg.UplinkNamespace == "" {
		return nil
	}
	return []ctrl.Request{request(r.cfg.UplinkNamespace, node)}
}

// uplinks are the requests for the ports of all nodes.
func (r *Raven) uplinks(ctx context.Context) (all []ctrl.Request) {
	var nodes corev1.NodeList
	if err := r.api.List(ctx, &nodes); err != nil {
		r.log.ErrorContext(ctx, "nodes that are to have a port of their own", "error", err)
	}
	for i := range nodes.Items {
		all = append(all, r.uplinkOf(nodes.Items[i].Name)...)
	}
	return all
}

// wishUplink adds the wish for the node's own port where the pool is to have it and has it not. The port is dedicated to the node as others are to a pod.
func (w *poolWork) wishUplink(all map[string]wished) {
	if !w.uplink {
		return
	}
	for _, p := range w.ports {
		if p.Spec.Dedicated == w.node.UID {
			return
		}
	}
	all[w.name+podInKey+string(w.node.UID)] = wished{pod: w.node.UID, name: "node/" + w.node.Name, uplink: true}
}
