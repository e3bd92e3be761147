package raven

import (
	corev1 "k8s.io/api/core/v1"
)

// wired tells whether the pod is one that Kuryr gives a port: not on its host's network, and not at its end.
func wired(p *corev1.Pod) bool { return !p.Spec.HostNetwork && !finished(p) }

// finished tells whether the pod runs no more, be it still there: its address is free again.
func finished(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// StripPod takes from a pod what Raven does not look at, so that the cache of a large cluster stays small.
func StripPod(o any) (any, error) {
	p, ok := o.(*corev1.Pod)
	if !ok {
		return o, nil
	}
	p.ManagedFields, p.OwnerReferences, p.Labels = nil, nil, nil
	for name := range p.Annotations {
		if len(name) < len(annotationPrefix) || name[:len(annotationPrefix)] != annotationPrefix {
			delete(p.Annotations, name)
		}
	}
	p.Spec = corev1.PodSpec{NodeName: p.Spec.NodeName, HostNetwork: p.Spec.HostNetwork}
	p.Status = corev1.PodStatus{Phase: p.Status.Phase}
	return p, nil
}

const annotationPrefix = "openstack.org/"
