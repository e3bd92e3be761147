package raven

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"time"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/pool"
	"github.com/kuryr/kuryr/kube/raven/core"
	"github.com/kuryr/kuryr/kube/raven/node"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
)

// pools has each pool have the ports that it is to have. One object owns all of their life: what is made, what leaves, and what is made for single pods.
type pools struct{ *Raven }

// Reconcile looks at one pool.
func (r pools) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	w, err := r.look(ctx, req.Name)
	if err != nil {
		return core.Result(0, err)
	}
	again, err := w.work(ctx)
	w.settle()
	if w.pool.UID == "" && len(w.ports) == 0 {
		w.memory.forget(w.name) // the last event of a pool that is gone has made it known again
	}
	if w.pool.UID == "" || w.removed {
		return core.Result(again, err)
	}
	if core.HasFailure(err) {
		reason := core.EventFailed
		if core.ReasonOf(err) == v1.ReasonExhausted {
			reason = core.EventShort
		}
		r.Warn(w.pool, reason, "Pool", "%s", core.Message(err))
	}
	later, failed := w.writeStatus(ctx, err)
	return core.Result(core.Sooner(again, later), errors.Join(err, client.IgnoreNotFound(failed)))
}

// poolWork is one look at one pool.
type poolWork struct {
	pools
	name    string
	pool    *v1.KuryrPortPool // without a UID: it is gone, and its ports are not
	before  v1.KuryrPortPoolStatus
	ports   []*v1.KuryrPort
	node    *corev1.Node              // nil: it is gone
	pods    []*corev1.Pod             // on the node, of the pool's namespaces, that have or are to have a port
	live    map[types.UID]*corev1.Pod // all pods on the node that have or are to have one
	away    map[types.UID]bool        // those of pods that have a port of another pool: of one that was theirs before their namespace wished other groups
	machine machine                   // that the node is, where ports are made or looked for
	mtu     int                       // of the network; 0 is the kernel's
	paths   []netip.Prefix            // that the node's own port leads to
	alone   bool                      // no pod at all is on the node
	removed bool                      // the finalizer is taken away
}

func (r pools) look(ctx context.Context, name string) (*poolWork, error) {
	w := &poolWork{pools: r, name: name, pool: &v1.KuryrPortPool{}}
	if err := r.Client.Get(ctx, types.NamespacedName{Name: name}, w.pool); client.IgnoreNotFound(err) != nil {
		return nil, err
	}
	w.before = *w.pool.Status.DeepCopy()
	ports, err := r.PortsOf(ctx, name)
	if err != nil {
		return nil, err
	}
	w.ports = r.memory.complete(name, ports, r.Now())
	node := w.pool.Spec.Node
	if node == "" && len(w.ports) > 0 {
		node = w.ports[0].Spec.Node
	}
	if node == "" {
		return w, nil
	}
	w.node = &corev1.Node{}
	if err := r.Client.Get(ctx, types.NamespacedName{Name: node}, w.node); apierrors.IsNotFound(err) {
		w.node = nil
	} else if err != nil {
		return nil, err
	}
	if err := w.lookAtPaths(ctx); err != nil {
		return nil, err
	}
	return w, w.lookAtPods(ctx, node)
}

// lookAtPods finds the pods that this is the pool of.
func (w *poolWork) lookAtPods(ctx context.Context, node string) error {
	pods, err := w.PodsOn(ctx, node)
	if err != nil {
		return err
	}
	w.alone, w.live = len(pods) == 0, map[types.UID]*corev1.Pod{}
	ours := map[string]bool{} // by namespace
	for i := range pods {
		p := &pods[i]
		if !core.Networked(p) {
			continue
		}
		w.live[p.UID] = p
		mine, known := ours[p.Namespace]
		if !known {
			n, err := w.NetworkOf(ctx, p.Namespace)
			if err != nil {
				return err
			}
			mine = n != nil && v1.PoolName(v1.PoolKey(n, node)) == w.name
			ours[p.Namespace] = mine
		}
		if mine {
			w.pods = append(w.pods, p)
		}
	}
	return w.lookAway(ctx)
}

// work does what is missing. What one step cannot do holds up no other that does not need it.
func (w *poolWork) work(ctx context.Context) (again time.Duration, err error) {
	use, err := w.use(ctx)
	if err != nil {
		return 0, err
	}
	left := errors.Join(w.leave(ctx, use), w.adapt(ctx))
	if use == unwanted || use == retired && len(w.ports) == 0 {
		return 0, errors.Join(left, w.remove(ctx))
	}
	if use == retired {
		err := w.disown(ctx, w.pool.Status.Pending)
		if err == nil {
			w.pool.Status.Pending = nil
		}
		return 0, errors.Join(left, err, w.claim(ctx))
	}
	if err := w.follow(ctx); err != nil {
		return 0, errors.Join(left, err)
	}
	wishes, refused := w.wishes(ctx)
	w.memory.wishes(w.name, len(wishes) > 0) // before the SDN is asked: a port that goes meanwhile brings this back
	again, calls, limit := w.decide(ctx)
	made := errors.Join(limit, w.make(ctx, wishes, calls))
	w.metrics.lacks(made)
	made = errors.Join(made, w.publish(ctx))
	asked, quota := w.followQuota(ctx, made)
	err = errors.Join(left, refused, made, quota, w.float(ctx), w.claim(ctx), w.lead(ctx), w.restore(ctx), w.audit(ctx))
	return core.Sooner(core.Sooner(again, asked), w.auditIn()), err
}

// use is what a pool is for.
type use string

const (
	wanted   use = "wanted"   // pods get ports of it
	retired  use = "retired"  // its network's namespaces wish other groups: no pod gets a port of it any more, and those that have one keep it
	unwanted use = "unwanted" // it goes, with all its ports
)

// use tells what the pool is for: it is wanted where its node is there, a namespace has it for its pods, and nobody has it deleted. One that is used no more and is empty goes.
func (w *poolWork) use(ctx context.Context) (use, error) {
	if w.pool.UID == "" || !w.pool.DeletionTimestamp.IsZero() || w.node == nil {
		return unwanted, nil
	}
	if w.pool.Spec.ForNode {
		w.mtu = w.ground.Nodes.Network.MTU
		if w.nodes.HasOwnPort(w.node) && v1.PoolName(w.nodes.PoolKey(w.node.Name)) == w.name {
			return wanted, nil
		}
		return unwanted, nil
	}
	user, err := w.OneNetwork(ctx, core.ByKind, core.KindOfPool(w.pool.Spec))
	if err != nil {
		return "", err
	}
	if user == nil || w.name != v1.PoolName(w.pool.Spec) { // one that somebody has made by another name is nobody's
		if other, err := w.OneNetwork(ctx, core.ByStaying, w.pool.Spec.Network); other != nil || err != nil {
			return retired, err
		}
		return unwanted, nil
	}
	w.mtu = user.Status.MTU
	if len(w.ports)+len(w.pool.Status.Pending)+len(w.pods) > 0 || w.pool.Spec.TTL == nil && w.pool.Spec.Minimum > 0 {
		return wanted, nil
	}
	return unwanted, nil
}

// remove has the pool go with all it has: w.leave has told the ports to.
func (w *poolWork) remove(ctx context.Context) error {
	if w.pool.UID == "" {
		return nil
	}
	if w.pool.DeletionTimestamp.IsZero() {
		if err := w.Client.Delete(ctx, w.pool, client.Preconditions{UID: &w.pool.UID}); client.IgnoreNotFound(err) != nil {
			return err
		}
		return core.Waiting("it is being deleted") // which brings this back
	}
	if err := w.disown(ctx, w.pool.Status.Pending); err != nil {
		return err
	}
	w.pool.Status.Pending = nil
	if len(w.ports) > 0 {
		return core.Waiting(fmt.Sprintf("%d of its ports are still there", len(w.ports)))
	}
	if len(w.before.Pending) > 0 { // what the SDN has no more is not to be looked for again
		if err := w.Client.Status().Update(ctx, w.pool); err != nil {
			return client.IgnoreNotFound(err)
		}
	}
	controllerutil.RemoveFinalizer(w.pool, v1.Finalizer)
	if err := w.Client.Update(ctx, w.pool); client.IgnoreNotFound(err) != nil {
		return err
	}
	w.removed = true
	w.memory.forget(w.name)
	return nil
}

// follow has the pool's policy be what configuration, namespaces and node say at this moment.
func (w *poolWork) follow(ctx context.Context) error {
	policy, err := node.OwnPort, error(nil)
	if !w.pool.Spec.ForNode {
		if policy, _, err = w.policyOf(ctx, w.pool); err != nil {
			return err
		}
	}
	if !setPolicy(&w.pool.Spec, policy) {
		return nil
	}
	status := w.pool.Status
	err = w.Client.Update(ctx, w.pool)
	w.pool.Status = status
	return err
}

// decide asks package pool, and does what costs no port: the answer is what is to be made.
func (w *poolWork) decide(ctx context.Context) (again time.Duration, calls []int, err error) {
	now := w.Now()
	v := pool.View{Policy: policyIn(w.pool.Spec), Room: w.budget.room(), Drained: w.pool.Annotations[v1.AnnotationDrained] == "true" && !w.pool.Spec.ForNode, Unused: len(w.pods) == 0, Now: now}
	idle := w.memory.idle(w.name, w.ports, now)
	has := map[types.UID]bool{}
	for _, p := range w.ports {
		if p.Status.Pod != nil {
			has[p.Status.Pod.UID] = true
		}
		has[promised(p)] = true
		if p.Spec.Dedicated == "" {
			state, since := stateOf(p), idle[p.Name]
			if w.vain(p) {
				state, since = pool.Available, p.CreationTimestamp.Time
			}
			v.Ports = append(v.Ports, pool.Port{ID: p.Name, State: state, Idle: since})
		}
	}
	for _, p := range w.pool.Status.Pending {
		if p.Pod == "" {
			v.Pending++
		}
	}
	for _, p := range w.pods {
		if p.DeletionTimestamp.IsZero() && !v1.HasWishes(p.Annotations) && !has[p.UID] && !w.away[p.UID] {
			v.Waiting++
		}
	}
	v.Minimum, err = w.filled(ctx, v)
	d := pool.Decide(v)
	for _, p := range w.ports {
		if slices.Contains(d.Delete, p.Name) {
			err = errors.Join(err, w.giveUp(ctx, p))
		}
	}
	if !d.Again.IsZero() {
		again = max(d.Again.Sub(now), time.Second)
	}
	if d.Limit != pool.NoLimit {
		if d.Limit == pool.AtCap && !w.budget.wait(w.name, v.Room) {
			w.wakePool(w.name) // there is more room meanwhile
		}
		err = errors.Join(err, core.Short{Limit: d.Limit, What: fmt.Sprintf("more ports are needed, and the %s is reached: %d pods wait", d.Limit, v.Waiting)})
	}
	return again, d.Make, err
}

// filled is what is to be available once, where somebody has asked for more than the minimum. When it is there the request is taken away.
func (w *poolWork) filled(ctx context.Context, v pool.View) (int, error) {
	text := w.pool.Annotations[v1.AnnotationFill]
	if text == "" {
		return v.Minimum, nil
	}
	n, err := strconv.Atoi(text)
	most := v.Maximum
	if most == 0 {
		most = pool.MaxPorts
	}
	if wanted := min(n, most); err == nil && !v.Drained {
		free := v.Pending
		for _, p := range v.Ports {
			if p.State == pool.Available {
				free++
			}
		}
		if free < wanted && (v.Maximum == 0 || len(v.Ports)+v.Pending < v.Maximum) {
			return max(v.Minimum, wanted), nil
		}
	}
	status := w.pool.Status
	before := w.pool.DeepCopy()
	delete(w.pool.Annotations, v1.AnnotationFill)
	err = w.Client.Patch(ctx, w.pool, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	w.pool.Status = status
	return v.Minimum, err
}

// stateOf is what a port's label and its deletion say.
func stateOf(p *v1.KuryrPort) pool.State {
	switch {
	case !p.DeletionTimestamp.IsZero() || v1.PortStatus(p.Labels[v1.LabelPortStatus]) == v1.PortDeleting:
		return pool.Leaving
	case v1.PortStatus(p.Labels[v1.LabelPortStatus]) == v1.PortBound || p.Status.Pod != nil:
		return pool.Bound
	}
	return pool.Available
}

// writeStatus writes what has changed. Where only the counts have, and they were written just before, later tells when it is time.
func (w *poolWork) writeStatus(ctx context.Context, err error) (later time.Duration, _ error) {
	s := &w.pool.Status
	s.Available, s.Bound = 0, 0
	for _, p := range w.ports {
		switch stateOf(p) {
		case pool.Available:
			s.Available++
		case pool.Bound:
			s.Bound++
		}
	}
	s.ObservedGeneration = w.pool.Generation
	core.SetReady(&s.Conditions, w.pool.Generation, err)
	if equality.Semantic.DeepEqual(w.before, *s) {
		return 0, nil
	}
	quiet := *s.DeepCopy()
	quiet.Available, quiet.Bound = w.before.Available, w.before.Bound
	if since := w.Now().Sub(w.memory.written(w.name)); equality.Semantic.DeepEqual(w.before, quiet) && since < core.CountsInterval {
		return core.CountsInterval - since, nil
	}
	w.memory.setWritten(w.name, w.Now())
	return 0, w.Client.Status().Update(ctx, w.pool)
}

// settle counts the pool's ports for the cap and the metrics, and wakes pools that wait for what it has given back.
func (w *poolWork) settle() {
	n := len(w.ports) + len(w.pool.Status.Pending)
	w.wakeCalled(w.budget.set(w.name, n))
	w.metrics.pool(w.name, w.ports, len(w.pool.Status.Pending))
}
