package raven

import (
	"context"
	"errors"
	"slices"
	"strings"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/pool"
	"github.com/kuryr/kuryr/sdn"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
)

// leave takes ports on their way out as far as they may go: the object is deleted first, its claimant labels it deleting, then it goes from the SDN, then its finalizer.
// Of a retired pool those leave that no pod has.
func (w *poolWork) leave(ctx context.Context, u use) error {
	var errs []error
	var doomed []*v1.KuryrPort
	for _, p := range w.ports {
		deleting := v1.PortStatus(p.Labels[v1.LabelPortStatus]) == v1.PortDeleting
		goes := u == unwanted || deleting || u == retired && stateOf(p) == pool.Available
		if goes || u == wanted && (w.forsaken(p) || w.useless(p)) {
			if err := w.giveUp(ctx, p); err != nil {
				errs = append(errs, err)
				continue
			}
		}
		if p.DeletionTimestamp.IsZero() {
			errs = append(errs, w.relabel(ctx, p))
			continue
		}
		if !deleting && w.unclaimable(p) {
			if err := w.mark(ctx, p, v1.PortDeleting); err != nil {
				errs = append(errs, client.IgnoreNotFound(err))
				continue
			}
			deleting = true
		}
		if deleting {
			doomed = append(doomed, p)
		}
	}
	return errors.Join(append(errs, w.deletePorts(ctx, doomed))...)
}

// forsaken tells of a port that was made for a pod which is gone. It is asked of the pod alone: a network that is not ready for a while takes no port of a pod that runs.
func (w *poolWork) forsaken(p *v1.KuryrPort) bool {
	return p.Spec.Dedicated != "" && w.live[p.Spec.Dedicated] == nil
}

// pod gives a pod that this is the pool of.
func (w *poolWork) pod(uid types.UID) *corev1.Pod {
	for _, p := range w.pods {
		if p.UID == uid {
			return p
		}
	}
	return nil
}

// unclaimable tells whether it is Raven who may say that no pod has the port, nor will: its node is gone with its pods, or has no daemon.
func (w *poolWork) unclaimable(p *v1.KuryrPort) bool {
	if w.node == nil {
		return w.alone || p.Spec.ForNode
	}
	return w.claims() && (p.Status.Pod == nil || w.live[p.Status.Pod.UID] == nil)
}

// giveUp deletes a port's object, which its finalizer keeps.
func (w *poolWork) giveUp(ctx context.Context, p *v1.KuryrPort) error {
	if !p.DeletionTimestamp.IsZero() {
		return nil
	}
	if err := w.Client.Delete(ctx, p, client.Preconditions{UID: &p.UID}); client.IgnoreNotFound(err) != nil {
		return err
	}
	now := metav1.NewTime(w.Now())
	p.DeletionTimestamp = &now
	return nil
}

// relabel has the labels by which a port is found be what its spec says.
func (w *poolWork) relabel(ctx context.Context, p *v1.KuryrPort) error {
	if p.Labels[v1.LabelNode] == v1.NodeLabel(p.Spec.Node) && p.Labels[v1.LabelPool] == p.Spec.Pool && controllerutil.ContainsFinalizer(p, v1.Finalizer) {
		return nil
	}
	return w.change(ctx, p, func() {
		if p.Labels == nil {
			p.Labels = map[string]string{}
		}
		p.Labels[v1.LabelNode], p.Labels[v1.LabelPool] = v1.NodeLabel(p.Spec.Node), p.Spec.Pool
		controllerutil.AddFinalizer(p, v1.Finalizer)
	})
}

func (w *poolWork) label(ctx context.Context, p *v1.KuryrPort, s v1.PortStatus) error {
	return w.change(ctx, p, func() {
		if p.Labels == nil {
			p.Labels = map[string]string{}
		}
		p.Labels[v1.LabelPortStatus] = string(s)
	})
}

// change patches what f changes of a port, if it is still as it was read.
func (w *poolWork) change(ctx context.Context, p *v1.KuryrPort, f func()) error {
	before := p.DeepCopy()
	f()
	if err := w.Client.Patch(ctx, p, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
		return err
	}
	if controllerutil.ContainsFinalizer(p, v1.Finalizer) { // else it may be gone
		w.memory.wrote(w.name, p, w.Now())
	}
	return nil
}

// deletePorts deletes ports in the SDN and takes their objects' finalizers away. One whose floating IP cannot be deleted stays, and no other for it.
func (w *poolWork) deletePorts(ctx context.Context, leaving []*v1.KuryrPort) error {
	var errs []error
	var doomed []*v1.KuryrPort
	for _, p := range leaving {
		if err := w.sink(ctx, p); err != nil {
			errs = append(errs, err)
			continue
		}
		doomed = append(doomed, p)
	}
	if len(doomed) == 0 {
		return errors.Join(errs...)
	}
	failed, err := w.eraseOwn(ctx, doomed)
	if err != nil {
		w.metrics.deleted.WithLabelValues("error").Add(float64(len(doomed)))
		return errors.Join(append(errs, err)...)
	}
	var g errgroup.Group
	g.SetLimit(objectsAtOnce)
	freed := make([]bool, len(doomed))
	for i, p := range doomed {
		if failed[i] != nil {
			w.metrics.deleted.WithLabelValues("error").Inc()
			continue
		}
		w.metrics.deleted.WithLabelValues("ok").Inc()
		g.Go(func() error {
			err := w.change(ctx, p, func() { controllerutil.RemoveFinalizer(p, v1.Finalizer) })
			freed[i] = client.IgnoreNotFound(err) == nil
			return client.IgnoreNotFound(err)
		})
	}
	err = g.Wait()
	w.ports = slices.DeleteFunc(w.ports, func(p *v1.KuryrPort) bool {
		at := slices.Index(doomed, p)
		return at >= 0 && freed[at]
	})
	return errors.Join(slices.Concat(errs, failed, []error{err})...)
}

// eraseOwn deletes the ports of objects in the SDN, and answers for each. An object says its port's
// id, but only a port with a Key of Raven's is deleted: an id that a user has written into an
// object by hand may be any port's.
func (w *poolWork) eraseOwn(ctx context.Context, leaving []*v1.KuryrPort) (failed []error, err error) {
	failed = make([]error, len(leaving))
	err = w.Call(ctx, func(ctx context.Context) error {
		q := sdn.PortQuery{Match: sdn.Match{Owner: w.SDN.Installation(), Kind: v1.KeyKindPort}}
		for _, p := range leaving {
			q.IDs = append(q.IDs, sdn.ID(p.Spec.ID))
			q.Projects = append(q.Projects, p.Spec.ProjectID) // all are the pool's
		}
		slices.Sort(q.Projects)
		if q.Projects = slices.Compact(q.Projects); slices.Contains(q.Projects, "") {
			q.Projects = nil // "" is the project of the SDN's credentials, which has another name there
		}
		own := map[sdn.ID]bool{}
		for port, err := range w.SDN.FindPorts(ctx, q) {
			if err != nil {
				return err
			}
			own[port.ID] = true
		}
		var ids []sdn.ID
		var of []int // by position in ids: that in leaving
		for i, p := range leaving {
			if own[sdn.ID(p.Spec.ID)] {
				ids, of = append(ids, sdn.ID(p.Spec.ID)), append(of, i)
			}
		}
		if len(ids) == 0 {
			return nil
		}
		err := w.erase(ctx, ids)
		var bulk *sdn.BulkError
		if !errors.As(err, &bulk) || len(bulk.Errs) != len(ids) {
			return err
		}
		for i, err := range bulk.Errs {
			failed[of[i]] = err
		}
		return nil
	})
	return failed, err
}

// objectsAtOnce bounds the calls of the API server for the objects of one pool.
const objectsAtOnce = 8

// disown deletes in the SDN what may have been made by pending keys. Each begins with the pool's
// name: one that does not is another pool's.
func (w *poolWork) disown(ctx context.Context, pending []v1.PendingPort) error {
	if len(pending) == 0 {
		return nil
	}
	q := sdn.PortQuery{}
	for _, p := range pending {
		if strings.HasPrefix(p.Key, w.name+".") {
			q.Keys = append(q.Keys, w.Key(v1.KeyKindPort, p.Key))
		}
	}
	if len(q.Keys) == 0 {
		return nil
	}
	return w.Call(ctx, func(ctx context.Context) error {
		var ids []sdn.ID
		for port, err := range w.SDN.FindPorts(ctx, q) {
			if err != nil {
				return err
			}
			if !slices.ContainsFunc(w.ports, func(p *v1.KuryrPort) bool { return p.Name == string(port.ID) }) {
				ids = append(ids, port.ID)
			}
		}
		if len(ids) == 0 {
			return nil
		}
		return w.erase(ctx, ids)
	})
}
