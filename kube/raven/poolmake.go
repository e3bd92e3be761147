package raven

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/pool"
	"github.com/kuryr/kuryr/kube/raven/core"
	"github.com/kuryr/kuryr/sdn"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// make makes ports: those that wishes ask for, and for the pool so many in each of calls. Their keys are written first. What is pending from before is finished with them.
func (w *poolWork) make(ctx context.Context, specs map[string]wished, calls []int) error {
	if len(specs)+len(calls)+len(w.pool.Status.Pending) > 0 || w.misplaced() {
		if err := w.nest(ctx); err != nil {
			return err
		}
	}
	var errs []error
	groups := w.leftOver(ctx, specs, &errs)
	fresh, lacking := 0, 0
	for _, key := range sortedKeys(specs) {
		if w.pending(key) >= 0 {
			continue
		}
		if w.budget.take(w.name, 1) == 0 {
			lacking++
			continue
		}
		w.pool.Status.Pending = append(w.pool.Status.Pending, v1.PendingPort{Key: key, Pod: specs[key].pod})
		fresh++
		groups = append(groups, []string{key})
	}
	for _, n := range calls {
		var keys []string
		may := w.budget.take(w.name, n)
		lacking += n - may
		for range may {
			key := w.name + "." + strings.ToLower(rand.Text()[:12])
			keys = append(keys, key)
			w.pool.Status.Pending = append(w.pool.Status.Pending, v1.PendingPort{Key: key})
		}
		if fresh += len(keys); len(keys) > 0 {
			groups = append(groups, keys)
		}
	}
	if lacking > 0 {
		errs = append(errs, core.Short{Limit: pool.AtCap, What: fmt.Sprintf("%d more ports are needed, and the %s is reached", lacking, pool.AtCap)})
	}
	if fresh > 0 {
		if err := w.Client.Status().Update(ctx, w.pool); err != nil {
			w.pool.Status.Pending = w.before.Pending // nothing was asked of the SDN
			return errors.Join(append(errs, err)...)
		}
		w.before = *w.pool.Status.DeepCopy()
	}
	for _, keys := range groups {
		errs = append(errs, w.ensure(ctx, keys, specs))
	}
	return errors.Join(errs...)
}

// leftOver are the keys that are pending from before, to be finished in one call. Those of pods that are gone are taken back instead.
func (w *poolWork) leftOver(ctx context.Context, specs map[string]wished, errs *[]error) [][]string {
	var keys []string
	var dead []v1.PendingPort
	for _, p := range w.pool.Status.Pending {
		_, wished := specs[p.Key]
		if p.Pod != "" && !wished {
			dead = append(dead, p)
			continue
		}
		keys = append(keys, p.Key)
	}
	if err := w.disown(ctx, dead); err != nil {
		*errs = append(*errs, err)
	} else {
		w.settled(dead...)
	}
	if len(keys) == 0 {
		return nil
	}
	return [][]string{keys}
}

// pending is the place of a key among those that are; less than 0 for none.
func (w *poolWork) pending(key string) int {
	return slices.IndexFunc(w.pool.Status.Pending, func(p v1.PendingPort) bool { return p.Key == key })
}

// settled takes entries away. They are written as gone at the end of the work.
func (w *poolWork) settled(done ...v1.PendingPort) {
	w.pool.Status.Pending = slices.DeleteFunc(w.pool.Status.Pending, func(p v1.PendingPort) bool {
		return slices.ContainsFunc(done, func(d v1.PendingPort) bool { return d.Key == p.Key })
	})
}

// ensure has the SDN have the ports of keys, and Kubernetes the objects of them.
func (w *poolWork) ensure(ctx context.Context, keys []string, wishes map[string]wished) error {
	specs := make([]sdn.PortSpec, len(keys))
	for i, key := range keys {
		specs[i] = w.portSpec(key, wishes[key])
	}
	var ports []sdn.Port
	err := w.Call(ctx, func(ctx context.Context) (err error) { ports, err = w.SDN.EnsurePorts(ctx, specs); return err })
	failed := make([]error, len(keys))
	if err != nil {
		var bulk *sdn.BulkError
		if !errors.As(err, &bulk) || len(bulk.Errs) != len(keys) || len(ports) != len(keys) {
			w.metrics.made.WithLabelValues(kindOf(err)).Add(float64(len(keys)))
			return errors.Join(err, w.networkLost(ctx, err))
		}
		failed = slices.Clone(bulk.Errs)
	}
	count := func() {
		for _, err := range failed {
			w.metrics.made.WithLabelValues(kindOf(err)).Inc()
		}
	}
	subnets, err := w.ownSubnets(ctx)
	if err != nil {
		count()
		return errors.Join(append(failed, err)...)
	}
	unerased := w.eraseIncomplete(ctx, ports, failed, subnets)
	if err := w.join(ctx, ports, failed); err != nil {
		return errors.Join(append(failed, unerased, err)...)
	}
	for i := range ports {
		if failed[i] == nil { // as it stays pending, it is asked for again, and bound anew
			failed[i] = unpluggable(ports[i], specs[i].Host)
		}
	}
	count()
	var waiting []*corev1.Pod
	if w.claims() {
		_, waiting = w.given()
	}
	var g errgroup.Group
	g.SetLimit(objectsAtOnce)
	objects, finished := make([]*v1.KuryrPort, len(keys)), make([]v1.PendingPort, len(keys))
	for i, key := range keys {
		if failed[i] != nil {
			if !core.Passing(failed[i]) { // it is not there, and will not come
				finished[i].Key = key
			}
			w.complain(wishes[key], failed[i])
			continue
		}
		object := w.object(ports[i], subnets, wishes[key])
		switch {
		case !w.claims():
		case object.Spec.Dedicated != "":
			promise(object, object.Spec.Dedicated)
		case len(waiting) > 0 && !object.Spec.ForNode:
			promise(object, waiting[0].UID)
			waiting = waiting[1:]
		}
		g.Go(func() error {
			if err := w.Client.Create(ctx, object); err != nil && !apierrors.IsAlreadyExists(err) {
				return err
			}
			objects[i], finished[i].Key = object, key
			return nil
		})
	}
	err = g.Wait()
	for _, o := range objects {
		if o != nil && !slices.ContainsFunc(w.ports, func(p *v1.KuryrPort) bool { return p.Name == o.Name }) {
			w.ports = append(w.ports, o)
			w.memory.wrote(w.name, o, w.Now())
		}
	}
	w.settled(finished...)
	return errors.Join(append(failed, unerased, err, w.networkLost(ctx, errors.Join(failed...)))...)
}

// networkLost has the pool's network looked at again where the SDN has it no more, or a subnet of it. What else is not there, as a group that a pod wishes, is that port's trouble alone.
func (w *poolWork) networkLost(ctx context.Context, err error) error {
	at := slices.IndexFunc(core.Errors(err), func(e error) bool {
		var lost *sdn.Error
		return errors.As(e, &lost) && lost.Kind == sdn.KindNotFound && (lost.Noun == "network" || lost.Noun == "subnet")
	})
	if at < 0 {
		return nil
	}
	err = core.Errors(err)[at]
	networks, failed := w.NetworksBy(ctx, core.ByNetwork, w.pool.Spec.Network)
	errs := []error{failed}
	for i := range networks {
		core.SetReady(&networks[i].Status.Conditions, networks[i].Generation, core.Waiting("it is looked for in the SDN: "+err.Error()))
		errs = append(errs, w.Client.Status().Update(ctx, &networks[i]))
	}
	return errors.Join(errs...)
}

// kindOf names an error for metrics.
func kindOf(err error) string {
	var e *sdn.Error
	switch {
	case err == nil:
		return "ok"
	case errors.As(err, &e):
		return string(e.Kind)
	}
	return "other"
}
