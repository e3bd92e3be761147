// Package uninstall takes Kuryr out of a Kubernetes cluster, in the order in which each part still has what it needs to go: the nodes' network for container runtimes, the resources
// while Raven runs, what runs, and what it ran by.
//
// It owns that order and the pods that clear nodes. It must not ask an SDN: what Kuryr's resources stand for Raven takes away, and what stays where it is forced it names.
package uninstall

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kuryr/kuryr/kube/install"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// partOf is the label of all that is Kuryr's.
var partOf = client.MatchingLabels{"app.kubernetes.io/part-of": "kuryr"}

// controllerName is what Raven's Deployment and its Lease are called.
const controllerName = "kuryr-controller"

// nodeName is what the nodes' DaemonSet is called.
const nodeName = "kuryr-node"

// Remover takes Kuryr out of a cluster. What it has done stays done where it ends early, and doing it again goes on.
type Remover struct {
	API       client.WithWatch // with the types of Kubernetes, of its API extensions and of Kuryr
	Namespace string           // of Kuryr's own pods
	// Force goes on where pods still have ports, and where Raven does not take resources away within Patience: what those stand for stays in the SDN.
	Force    bool
	Patience time.Duration    // with Force: how long nodes, pods and each sort of resource are waited for since the last of them went
	Now      func() time.Time // the API server's time, which tells whether Raven's Lease is held; nil is time.Now
	Said     func(format string, args ...any)
}

// Remove takes Kuryr away in this order: container runtimes are told of no network any more; the resources go, with their definitions, while Raven and the daemons still work and
// take what they stand for from the SDN; then Raven and the daemons; then what these had in the kernels of nodes; and what else was installed. Where pods have ports, or nobody would take the resources away, it refuses
// before anything is changed, unless it is forced; for pods it looks once more when no node can give them ports any longer. What Raven has made for all of the cluster stays in the SDN: its router, subnet pools and security groups.
func (r Remover) Remove(ctx context.Context) error {
	if err := r.refuse(ctx); err != nil {
		return err
	}
	if err := r.clearNodes(ctx); err != nil {
		return err
	}
	if err := r.idle(ctx); err != nil { // a pod may have come meanwhile
		return err
	}
	for _, of := range resources {
		if err := r.drain(ctx, of); err != nil {
			return err
		}
	}
	if !r.Force { // else what is left is abandoned first
		for _, of := range resources {
			if err := r.release(ctx, of); err != nil {
				return err
			}
		}
	}
	if err := r.removeRunning(ctx); err != nil {
		return err
	}
	if err := r.sweepNodes(ctx); err != nil {
		return err
	}
	if err := r.settleNodes(ctx); err != nil {
		return err
	}
	if r.Force {
		if err := r.abandon(ctx); err != nil {
			return err
		}
	}
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: r.Namespace, Name: controllerName}}
	if err := r.API.Delete(ctx, lease); client.IgnoreNotFound(err) != nil {
		return err
	}
	return r.remove(ctx, false)
}

// absent tells of an object that is not there, or of a kind that is not.
func absent(err error) bool { return apierrors.IsNotFound(err) || meta.IsNoMatchError(err) }

// some are the first of these, for people.
func some(names []string) string {
	const few = 5
	if len(names) <= few {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:few], ", "), len(names)-few)
}

// removeRunning deletes what runs, and waits for the end of its pods. That of a pod on a node that is away never comes.
func (r Remover) removeRunning(ctx context.Context) error {
	if err := r.hold(ctx, true); err != nil { // sweepNodes lets it go
		return err
	}
	if err := r.remove(ctx, true); err != nil {
		return err
	}
	waiting, fewer, stop := r.patience(ctx)
	defer stop()
	var pods corev1.PodList
	err := r.until(waiting, &pods, func() (bool, error) {
		fewer(len(pods.Items))
		return len(pods.Items) == 0, nil
	}, client.InNamespace(r.Namespace), partOf)
	if err == nil {
		return nil
	}
	var left []string
	for _, p := range pods.Items {
		left = append(left, fmt.Sprintf("%s (node %s)", p.Name, p.Spec.NodeName))
	}
	if r.gaveUp(ctx, waiting) {
		r.Said("pods %s: they have not ended, and go when their node is back or is deleted", some(left))
		return nil
	}
	return fmt.Errorf("the pods %s have not ended (is the kubelet there?); --force goes on without: %w", some(left), err)
}

// remove deletes what of the manifests is no resource definition: what runs, or all that it ran by.
func (r Remover) remove(ctx context.Context, runs bool) error {
	manifests, err := r.installed()
	if err != nil {
		return err
	}
	for _, m := range slices.Backward(manifests) {
		kind := m.Object.GetKind()
		if running := kind == "Deployment" || kind == "DaemonSet"; running != runs || kind == "CustomResourceDefinition" {
			continue
		}
		if kind == "Namespace" {
			if mine, err := r.madeNamespace(ctx); err != nil || !mine {
				return err
			}
		}
		policy := metav1.DeletePropagationBackground
		if kind == "DaemonSet" { // its pods go while its object is kept
			policy = metav1.DeletePropagationForeground
		}
		err := r.API.Delete(ctx, m.Object, client.PropagationPolicy(policy))
		if absent(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("%s %s: %w", kind, m.Object.GetName(), err)
		}
		r.Said("%s %s: deleted", kind, m.Object.GetName())
	}
	return nil
}

// madeNamespace tells whether the manifests have made the namespace: then it goes with all that is in it.
func (r Remover) madeNamespace(ctx context.Context) (bool, error) {
	var ns corev1.Namespace
	if err := r.API.Get(ctx, client.ObjectKey{Name: r.Namespace}, &ns); err != nil {
		return false, client.IgnoreNotFound(err)
	}
	if ns.Labels["app.kubernetes.io/part-of"] == "kuryr" {
		return true, nil
	}
	r.Said("Namespace %s: it was not made by Kuryr, and stays", r.Namespace)
	return false, nil
}

// installed is all that any installation may have, in the order of its installing.
func (r Remover) installed() ([]install.Manifest, error) {
	values, err := install.Defaults()
	if err != nil {
		return nil, err
	}
	values["createNamespace"] = true // and provider: embedded has all that neutron has
	return install.Render(install.Release{Namespace: r.Namespace, Values: values})
}
