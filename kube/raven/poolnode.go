package raven

import (
	"context"
	"errors"
	"slices"
	"strings"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/raven/core"
	"github.com/kuryr/kuryr/kube/raven/node"
	"github.com/kuryr/kuryr/sdn"
	"k8s.io/apimachinery/pkg/api/equality"
)

// lookAtPaths finds what the node's own port leads to, where this is its pool.
func (w *poolWork) lookAtPaths(ctx context.Context) error {
	if !w.pool.Spec.ForNode || w.node == nil {
		return nil
	}
	paths, left, err := w.nodes.PathsOf(ctx, w.node)
	if err != nil {
		return err
	}
	if len(left) > 0 {
		w.Warn(w.node, core.EventRefused, "Node", "the node gets no route to what would cut it off: %s", strings.Join(left, ", "))
	}
	w.paths = paths
	return nil
}

// lead has the specs of the node's own ports say the routes that they are to have.
func (w *poolWork) lead(ctx context.Context) error {
	if !w.pool.Spec.ForNode {
		return nil
	}
	subnets, err := w.SubnetsOf(ctx, sdn.ID(w.pool.Spec.Network))
	if err != nil {
		return err
	}
	var errs []error
	for _, p := range w.ports {
		if !p.DeletionTimestamp.IsZero() {
			continue
		}
		is := slices.Clone(p.Spec.Network.Subnets)
		for i := range is {
			whole := portSubnet(subnets[sdn.ID(is[i].ID)], sdn.ID(is[i].ID))
			whole.IPs = is[i].IPs
			is[i] = whole
		}
		if is = node.WithRoutes(is, w.paths); !equality.Semantic.DeepEqual(is, p.Spec.Network.Subnets) || p.Labels[v1.LabelForNode] != "true" {
			errs = append(errs, w.respec(ctx, p, func() {
				if p.Labels == nil {
					p.Labels = map[string]string{}
				}
				p.Labels[v1.LabelForNode], p.Spec.Network.Subnets = "true", is
			}))
		}
	}
	return errors.Join(errs...)
}
