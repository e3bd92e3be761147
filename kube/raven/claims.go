package raven

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/pool"
	"github.com/kuryr/kuryr/kube/vif"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// podInterface is the only interface that Raven gives a pod.
const podInterface = "eth0"

// claims tells whether Raven is the claimant of the node's ports: an administrator has said that no daemon runs there.
func (w *poolWork) claims() bool {
	return w.node != nil && w.node.Labels[v1.LabelClaimant] == v1.ClaimantRaven
}

// claim gives ports to the pods of a node without a daemon, and takes them back of those that are gone. What runs on the node finds its port by the pod's annotation.
func (w *poolWork) claim(ctx context.Context) error {
	if !w.claims() {
		return nil
	}
	var errs []error
	has := map[types.UID]*v1.KuryrPort{}
	var free []*v1.KuryrPort
	for _, p := range w.ports {
		if p.Status.Pod != nil && w.live[p.Status.Pod.UID] == nil {
			errs = append(errs, w.release(ctx, p))
		}
		switch {
		case p.Status.Pod != nil:
			has[p.Status.Pod.UID] = p
		case stateOf(p) == pool.Available && p.Spec.Dedicated != "":
			has[p.Spec.Dedicated] = p
		case stateOf(p) == pool.Available:
			free = append(free, p)
		}
	}
	for _, pod := range w.pods {
		port := has[pod.UID]
		if port == nil && !w.away[pod.UID] && !v1.HasWishes(pod.Annotations) && pod.DeletionTimestamp.IsZero() && len(free) > 0 {
			port, free = free[0], free[1:]
		}
		if port != nil {
			errs = append(errs, w.bindTo(ctx, port, pod))
		}
	}
	return errors.Join(errs...)
}

// bindTo writes that the pod has the port: first its object, so that no other gets it, then the pod.
func (w *poolWork) bindTo(ctx context.Context, port *v1.KuryrPort, pod *corev1.Pod) error {
	if port.Status.Pod == nil {
		before := port.DeepCopy()
		port.Status.PortStatus, port.Status.Released = v1.PortBound, nil
		port.Status.Pod = &v1.PortPod{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, Interface: podInterface, Since: metav1.NewTime(w.now())}
		if err := w.api.Status().Patch(ctx, port, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
			port.Status = before.Status
			return err
		}
		w.memory.wrote(w.name, port, w.now()) // so that the pod gets no second one
	}
	if v1.PortStatus(port.Labels[v1.LabelPortStatus]) != v1.PortBound {
		if err := w.label(ctx, port, v1.PortBound); err != nil {
			return err
		}
	}
	text, err := vif.Encode(map[string]string{podInterface: port.Name})
	if err != nil || pod.Annotations[v1.AnnotationVIF] == text {
		return err
	}
	// With the UID it is refused where another pod has the name meanwhile.
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID, "annotations": map[string]any{v1.AnnotationVIF: text}}})
	if err != nil {
		return fmt.Errorf("annotation of a pod: %w", err)
	}
	// By the subresource, which takes annotations too: so Raven needs no right to write pods' specs.
	return client.IgnoreNotFound(w.api.Status().Patch(ctx, pod, client.RawPatch(types.MergePatchType, patch)))
}

// release takes a port back from a pod that is gone.
func (w *poolWork) release(ctx context.Context, port *v1.KuryrPort) error {
	before := port.DeepCopy()
	port.Status.SetAvailable(w.now())
	if err := w.api.Status().Patch(ctx, port, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
		port.Status = before.Status
		return err
	}
	w.memory.wrote(w.name, port, w.now())
	return w.label(ctx, port, v1.PortAvailable)
}
