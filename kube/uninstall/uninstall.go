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

	v1 "github.com/kuryr/kuryr/kube/api/v1"
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

// Remover takes Kuryr out of a cluster. What it has done stays done where it ends early, and doing it again goes on.
type Remover struct {
	API       client.WithWatch // with the types of Kubernetes, of its API extensions and of Kuryr
	Namespace string           // of Kuryr's own pods
	// Force goes on where pods still have ports, and where Raven does not take resources away within Patience: what those stand for stays in the SDN.
	Force    bool
	Patience time.Duration    // with Force: how long nodes, and each sort of resource, are waited for
	Now      func() time.Time // nil is time.Now
	Said     func(format string, args ...any)
}

// Remove takes Kuryr away in this order: container runtimes are told of no network any more; the resources go, with their definitions, while Raven and the daemons still work and
// take what they stand for from the SDN; then Raven and the daemons, and what else was installed. Where pods have ports, or nobody would take the resources away, it refuses
// before anything is changed, unless it is forced. What Raven has made for all of the cluster stays in the SDN: its router, subnet pools and security groups.
func (r Remover) Remove(ctx context.Context) error {
	if err := r.refuse(ctx); err != nil {
		return err
	}
	if err := r.clearNodes(ctx); err != nil {
		return err
	}
	for _, of := range resources {
		if err := r.removeDefinition(ctx, of.crd, of.list); err != nil {
			return err
		}
	}
	if err := r.removeRest(ctx, true); err != nil {
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
	return r.removeRest(ctx, false)
}

// refuse is an error where pods have ports, or Raven is not there to take resources from the SDN.
func (r Remover) refuse(ctx context.Context) error {
	bound, all, err := r.ports(ctx)
	if err != nil || r.Force {
		return err
	}
	if len(bound) > 0 {
		return fmt.Errorf("%d pods still have ports of Kuryr's, and would lose their network: %s; take them away first, or --force", len(bound), some(bound))
	}
	if all == 0 {
		return nil
	}
	var lease coordinationv1.Lease
	err = r.API.Get(ctx, client.ObjectKey{Namespace: r.Namespace, Name: controllerName}, &lease)
	if apierrors.IsNotFound(err) { // perhaps it runs without
		return nil
	}
	if err != nil {
		return err
	}
	if !Leads(lease.Spec, r.now()) {
		return fmt.Errorf("nobody holds the Lease %s/%s: Raven does not work, and it alone can take %d ports from the SDN; start it, or --force, which leaves them there", r.Namespace, controllerName, all)
	}
	return nil
}

// Leads tells whether the Lease of Raven has a holder that has renewed it in time, by a clock that may differ a little from the holder's.
func Leads(l coordinationv1.LeaseSpec, now time.Time) bool {
	if l.HolderIdentity == nil || *l.HolderIdentity == "" || l.RenewTime == nil || l.LeaseDurationSeconds == nil {
		return false
	}
	return now.Before(l.RenewTime.Add(2 * time.Duration(*l.LeaseDurationSeconds) * time.Second))
}

func (r Remover) now() time.Time {
	if r.Now == nil {
		return time.Now()
	}
	return r.Now()
}

// ports are the pods that have one, and how many there are.
func (r Remover) ports(ctx context.Context) (bound []string, all int, err error) {
	var ports v1.KuryrPortList
	if err := r.API.List(ctx, &ports); absent(err) {
		return nil, 0, nil
	} else if err != nil {
		return nil, 0, err
	}
	for _, p := range ports.Items {
		if pod := p.Status.Pod; pod != nil {
			bound = append(bound, pod.Namespace+"/"+pod.Name)
		}
	}
	slices.Sort(bound)
	return bound, len(ports.Items), nil
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

// removeRest deletes what of the manifests is no resource definition: first what runs, waiting for the end of its pods, and then all that it ran by.
func (r Remover) removeRest(ctx context.Context, runs bool) error {
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
		err := r.API.Delete(ctx, m.Object, client.PropagationPolicy(metav1.DeletePropagationBackground))
		if absent(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("%s %s: %w", kind, m.Object.GetName(), err)
		}
		r.Said("%s %s: deleted", kind, m.Object.GetName())
	}
	if !runs {
		return nil
	}
	var pods corev1.PodList
	return r.until(ctx, &pods, func() (bool, error) { return len(pods.Items) == 0, nil }, client.InNamespace(r.Namespace), partOf)
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
