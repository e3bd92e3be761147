package raven

import (
	"context"
	"errors"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/pool"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

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
		if p.Status.Pod != nil && w.pod(p.Status.Pod.UID) == nil {
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
		if port == nil && !v1.HasWishes(pod.Annotations) && pod.DeletionTimestamp.IsZero() && len(free) > 0 {
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
		port.Status.PortStatus = v1.PortBound
		port.Status.Pod = &v1.PortPod{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, Interface: "eth0", Since: metav1.NewTime(w.now())}
		if err := w.api.Status().Patch(ctx, port, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
			port.Status = before.Status
			return err
		}
	}
	if v1.PortStatus(port.Labels[v1.LabelPortStatus]) != v1.PortBound {
		if err := w.label(ctx, port, v1.PortBound); err != nil {
			return err
		}
	}
	text := vifAnnotation("eth0", port.Name)
	if pod.Annotations[v1.AnnotationVIF] == text {
		return nil
	}
	before := pod.DeepCopy()
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	pod.Annotations[v1.AnnotationVIF] = text
	return client.IgnoreNotFound(w.api.Patch(ctx, pod, client.MergeFrom(before)))
}

// release takes a port back from a pod that is gone.
func (w *poolWork) release(ctx context.Context, port *v1.KuryrPort) error {
	before := port.DeepCopy()
	port.Status.PortStatus, port.Status.Pod = v1.PortAvailable, nil
	if err := w.api.Status().Patch(ctx, port, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
		port.Status = before.Status
		return err
	}
	return w.label(ctx, port, v1.PortAvailable)
}

// vifAnnotation is the spec's form of a pod's annotation: where its interface's port is found.
func vifAnnotation(interfaceName, port string) string {
	return `{"` + interfaceName + `": {"versioned_object.data": {"selfLink": "/apis/openstack.org/v1/kuryrports/` + port +
		`"}}, "versioned_object.name": "KuryrPortCRD", "versioned_object.version": "1.0"}`
}
