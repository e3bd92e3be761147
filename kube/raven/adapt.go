package raven

import (
	"context"
	"errors"
	"fmt"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/raven/core"
	"github.com/kuryr/kuryr/sdn"
	"golang.org/x/sync/errgroup"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// adapt gives ports that pods have the security groups that their namespaces wish at this moment. Ports that no pod has are of the wish of their pool, and go with it. What a
// pod itself wishes stays as it was when its port was made.
func (w *poolWork) adapt(ctx context.Context) error {
	wishes := map[string][]string{} // by namespace; nil where nothing is known
	var g errgroup.Group
	g.SetLimit(objectsAtOnce)
	var errs []error
	for _, p := range w.ports {
		if p.Status.Pod == nil || v1.PortStatus(p.Labels[v1.LabelPortStatus]) == v1.PortDeleting {
			continue
		}
		pod := w.live[p.Status.Pod.UID] // of what the node says of the pod its UID alone is believed: it chooses no other namespace's groups
		if pod == nil {
			continue
		}
		groups, known := wishes[pod.Namespace]
		if !known {
			n, err := w.NetworkOf(ctx, pod.Namespace)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			if n != nil && n.Status.Network == p.Spec.Network.ID {
				groups = append([]string{}, n.Status.SecurityGroups...)
			}
			wishes[pod.Namespace] = groups
		}
		if groups == nil || core.SameSet(groups, p.Spec.SecurityGroups) {
			continue
		}
		if w.wishesGroups(p) {
			continue
		}
		g.Go(func() error { return w.regroup(ctx, p, groups) })
	}
	return errors.Join(append(errs, g.Wait())...)
}

// regroup changes a port's groups, in the SDN first: what is killed between is done again.
func (w *poolWork) regroup(ctx context.Context, p *v1.KuryrPort, groups []string) error {
	ids := make([]sdn.ID, 0, len(groups))
	for _, g := range groups {
		ids = append(ids, sdn.ID(g))
	}
	var port sdn.Port
	err := w.Call(ctx, func(ctx context.Context) (err error) {
		port, err = w.SDN.UpdatePort(ctx, sdn.ID(p.Spec.ID), sdn.PortPatch{Groups: &ids})
		return err
	})
	if err != nil {
		return fmt.Errorf("security groups of port %s: %w", p.Name, err)
	}
	return client.IgnoreNotFound(w.respec(ctx, p, func() { p.Spec.SecurityGroups = groupsOf(port) }))
}

// wishesGroups tells whether the port was made for a pod that wishes groups of its own. One of a pod that is gone stays as it is, and goes too.
func (w *poolWork) wishesGroups(p *v1.KuryrPort) bool {
	if p.Spec.Dedicated == "" {
		return false
	}
	pod := w.live[p.Spec.Dedicated]
	return pod == nil || len(core.SplitList(pod.Annotations[v1.AnnotationSecurityGroups])) > 0
}
