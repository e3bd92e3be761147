package raven

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/pool"
	"github.com/kuryr/kuryr/kube/vif"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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
	var g errgroup.Group
	g.SetLimit(objectsAtOnce)
	errs := make([]error, len(w.ports))
	for i, p := range w.ports {
		if p.Status.Pod != nil && w.live[p.Status.Pod.UID] == nil {
			g.Go(func() error { errs[i] = w.release(ctx, p); return nil })
		}
	}
	_ = g.Wait()
	given, _ := w.given()
	bound := make([]error, len(w.pods))
	used := map[*v1.KuryrPort]bool{}
	for i, pod := range w.pods {
		if port := given[pod.UID]; port != nil {
			used[port] = true
			g.Go(func() error { bound[i] = w.bindTo(ctx, port, pod); return nil })
		}
	}
	_ = g.Wait()
	for i, p := range w.ports {
		if promised(p) != "" && !used[p] {
			errs[i] = w.label(ctx, p, v1.PortAvailable)
		}
	}
	return errors.Join(append(errs, bound...)...)
}

// given is which port each pod of a node without a daemon has, or is to be given: its own, the one that was made for it, else a free one. Those without are for whom a port is still to be made.
func (w *poolWork) given() (given map[types.UID]*v1.KuryrPort, without []*corev1.Pod) {
	given = map[types.UID]*v1.KuryrPort{}
	promise := map[types.UID]*v1.KuryrPort{}
	var free []*v1.KuryrPort
	for _, p := range w.ports {
		switch {
		case p.Status.Pod != nil:
			given[p.Status.Pod.UID] = p
		case w.vain(p):
			free = append(free, p)
		case promised(p) != "":
			promise[promised(p)] = p
		case stateOf(p) != pool.Available:
		case p.Spec.Dedicated != "":
			promise[p.Spec.Dedicated] = p
		default:
			free = append(free, p)
		}
	}
	for _, pod := range w.pods {
		if given[pod.UID] != nil {
			continue
		}
		port, may := promise[pod.UID], !w.away[pod.UID] && pod.DeletionTimestamp.IsZero()
		switch {
		case port != nil && (may || port.Spec.Dedicated != ""):
		case !may || v1.HasWishes(pod.Annotations):
			continue
		case len(free) > 0:
			port, free = free[0], free[1:]
		default:
			without = append(without, pod)
			continue
		}
		given[pod.UID] = port
	}
	return given, without
}

// promised is the pod that a port was made for and has not been given to yet: it was made with the label bound, so that one write less is needed. A port whose status says something has
// been given since, and what a daemon has labelled has no promise.
func promised(p *v1.KuryrPort) types.UID {
	label := v1.PortStatus(p.Labels[v1.LabelPortStatus])
	if label != v1.PortBound || p.Status.Pod != nil || isWritten(p) || !p.DeletionTimestamp.IsZero() {
		return ""
	}
	return types.UID(p.Annotations[v1.AnnotationPromised])
}

// vain tells of a port that was made for a pod which is gone: it is free.
func (w *poolWork) vain(p *v1.KuryrPort) bool {
	uid := promised(p)
	return w.claims() && uid != "" && p.Spec.Dedicated == "" && w.live[uid] == nil
}

// promise has a port that is about to be told to Kubernetes be bound from the beginning, for a pod.
func promise(p *v1.KuryrPort, to types.UID) {
	p.Labels[v1.LabelPortStatus] = string(v1.PortBound)
	if p.Annotations == nil {
		p.Annotations = map[string]string{}
	}
	p.Annotations[v1.AnnotationPromised] = string(to)
}

// bindTo writes that the pod has the port: first its object, so that no other gets it, then the pod.
func (w *poolWork) bindTo(ctx context.Context, port *v1.KuryrPort, pod *corev1.Pod) error {
	if port.Status.Pod == nil {
		if !w.memory.give(pod.UID, w.name) {
			return apierrors.NewConflict(corev1.Resource("pods"), pod.Name, errTwoPools)
		}
		before := port.DeepCopy()
		port.Status.PortStatus, port.Status.Released = v1.PortBound, nil
		port.Status.Pod = &v1.PortPod{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, Interface: podInterface, Since: metav1.NewTime(w.Now())}
		if err := w.Client.Status().Patch(ctx, port, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
			port.Status = before.Status
			if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
				w.memory.taken(pod.UID, w.name)
			} else {
				w.memory.doubt(pod.UID, w.name)
			}
			return err
		}
		w.memory.wrote(w.name, port, w.Now()) // so that the pod gets no second one
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
	return client.IgnoreNotFound(w.Client.Status().Patch(ctx, pod, client.RawPatch(types.MergePatchType, patch)))
}

// release takes a port back from a pod that is gone: the label first, so that one killed between finds the pod that is gone still written there.
func (w *poolWork) release(ctx context.Context, port *v1.KuryrPort) error {
	if v1.PortStatus(port.Labels[v1.LabelPortStatus]) == v1.PortBound {
		if err := w.label(ctx, port, v1.PortAvailable); err != nil {
			return err
		}
	}
	before := port.DeepCopy()
	port.Status.SetAvailable(w.Now())
	if err := w.Client.Status().Patch(ctx, port, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
		port.Status = before.Status
		return err
	}
	w.memory.wrote(w.name, port, w.Now())
	w.memory.taken(before.Status.Pod.UID, w.name)
	return nil
}
