package core

import corev1 "k8s.io/api/core/v1"

// Networked reports whether a pod gets a port: it is not on its host's network, and has
// not finished.
func Networked(p *corev1.Pod) bool { return !p.Spec.HostNetwork && !Finished(p) }

// Finished reports whether a pod has ended, so that its address is free.
func Finished(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// StripPod removes what Raven does not read from a pod, so that the cache of a large
// cluster stays small.
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
