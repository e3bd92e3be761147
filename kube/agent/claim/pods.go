package claim

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kuryr/kuryr/kube/agent"
	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/sdn"
)

// pod is what is kept of a pod.
type pod struct {
	name       types.NamespacedName
	uid        types.UID
	static     types.UID // the kubelet's UID of a static pod, whose mirror in the API has another
	alone      bool      // it waits for a port of its own
	ended      bool      // its containers have ended and are not started again
	leaving    bool      // it is being deleted
	annotation string
}

// setPod takes in a pod. It returns the earlier pod of the name, which is gone.
func (x *index) setPod(o *corev1.Pod) (t topic, gone *pod) {
	name := types.NamespacedName{Namespace: o.Namespace, Name: o.Name}
	if o.Spec.NodeName != x.node {
		return topic{}, nil
	}
	if old := x.pods[name]; old != nil && old.uid != o.UID {
		gone = old
		delete(x.uids, old.uid)
	}
	p := &pod{
		name: name, uid: o.UID, static: types.UID(o.Annotations[corev1.MirrorPodAnnotationKey]),
		alone:      v1.HasWishes(o.Annotations),
		ended:      o.Status.Phase == corev1.PodSucceeded || o.Status.Phase == corev1.PodFailed,
		leaving:    o.DeletionTimestamp != nil,
		annotation: o.Annotations[v1.AnnotationVIF],
	}
	x.pods[name], x.uids[o.UID] = p, p
	return topic{ofPod, name.String()}, gone
}

// dropPod forgets a pod and returns it; nil is none.
func (x *index) dropPod(name types.NamespacedName) *pod {
	p := x.pods[name]
	if p == nil {
		return nil
	}
	delete(x.pods, name)
	delete(x.uids, p.uid)
	return p
}

// isCalled reports whether a container runtime that names this UID means the pod.
func (p *pod) isCalled(uid types.UID) bool { return uid == p.uid || uid != "" && uid == p.static }

// podOf returns the pod of an attachment. The caller may wait for one that is not known.
func (x *index) podOf(a agent.Attachment) (*pod, error) {
	name := types.NamespacedName{Namespace: a.Pod.Namespace, Name: a.Pod.Name}
	p := x.pods[name]
	if p == nil {
		return nil, sdn.NotFound("pod", name)
	}
	if uid := types.UID(a.Pod.UID); uid != "" && !p.isCalled(uid) {
		return nil, sdn.Conflict(sdn.Stale, "pod", "K8S_POD_UID", "the pod %s has the UID %s, not %s", name, p.uid, uid)
	}
	return p, nil
}
