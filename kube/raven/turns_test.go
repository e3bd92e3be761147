package raven

import (
	"context"
	"flag"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"reflect"
	"slices"
	"sync"
	"time"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/raven/core"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgotesting "k8s.io/client-go/testing"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// What has a reconciler look at an object is here what it is in a cluster: the changes that Raven's watches tell of, what a reconciler itself has said, and its failures, by a clock
// that the tests have. What comes first of what may come next is chosen by a seed, and so is the order of lists.

var (
	seedFlag  = flag.Uint64("seed", 1, "by which the order of what happens is chosen; 0 is another one each time")
	traceFlag = flag.Bool("turns", false, "log each turn")
)

// turns is whose turn it is next.
type turns struct {
	mu      sync.Mutex
	seed    uint64
	rand    *rand.Rand
	streams []*stream
	desks   []*desk
	caches  caches
	changes int // of all objects so far
}

// stream is what a watch has of one kind of object: each change, in order.
type stream struct {
	of      reflect.Type
	changes []change
}

// change is an object that comes (no old), changes, or goes (no new).
type change struct{ old, new client.Object }

// desk is what one controller has to look at, and when. As in controller-runtime's queue a request is there once, at its earliest time.
type desk struct {
	core.Queue // of which nothing is used
	core.Controller
	clock    func() time.Time
	trace    func(format string, args ...any)
	failures workqueue.TypedRateLimiter[reconcile.Request]
	order    []ctrl.Request // as they came
	due      map[ctrl.Request]time.Time
	retries  map[ctrl.Request]bool // those that are there since they failed
}

func (d *desk) Add(r ctrl.Request) { d.AddAfter(r, 0) }

func (d *desk) AddAfter(r ctrl.Request, in time.Duration) {
	at := d.clock().Add(in)
	if is, ok := d.due[r]; !ok {
		d.order = append(d.order, r)
	} else if is.Before(at) {
		return
	}
	d.due[r] = at
}

func (d *desk) NumRequeues(r ctrl.Request) int { return d.failures.NumRequeues(r) }

func (d *desk) AddRateLimited(r ctrl.Request) { d.AddAfter(r, d.failures.When(r)) }

// ready are the requests whose time has come.
func (d *desk) ready() (all []ctrl.Request) {
	for _, r := range d.order {
		if !d.due[r].After(d.clock()) {
			all = append(all, r)
		}
	}
	return all
}

// work has the reconciler look at one, and does with its answer what controller-runtime does.
func (d *desk) work(ctx context.Context, r ctrl.Request) error {
	d.order = slices.DeleteFunc(d.order, func(o ctrl.Request) bool { return o == r })
	delete(d.due, r)
	delete(d.retries, r)
	result, err := d.Reconciler.Reconcile(ctx, r)
	switch {
	case err != nil:
		d.retries[r] = true
		d.AddRateLimited(r)
	case result.RequeueAfter > 0:
		d.failures.Forget(r)
		d.AddAfter(r, result.RequeueAfter)
	default:
		d.failures.Forget(r)
	}
	d.trace("%s looks at %s: %+v, %v", d.Name, r, result, err)
	if err != nil {
		return fmt.Errorf("%s %s: %w", d.Name, r, err)
	}
	return nil
}

// tell has the watches of a change bring before the reconciler what it concerns.
func (d *desk) tell(ctx context.Context, t change, start bool) {
	for _, w := range d.Watches {
		if reflect.TypeOf(w.Of) != t.kind() {
			continue
		}
		switch {
		case t.old == nil:
			if e := (event.CreateEvent{Object: t.new, IsInInitialList: start}); w.When == nil || w.When.Create(e) {
				w.Handler.Create(ctx, e, d)
			}
		case t.new == nil:
			if e := (event.DeleteEvent{Object: t.old}); w.When == nil || w.When.Delete(e) {
				w.Handler.Delete(ctx, e, d)
			}
		default:
			if e := (event.UpdateEvent{ObjectOld: t.old, ObjectNew: t.new}); w.When == nil || w.When.Update(e) {
				w.Handler.Update(ctx, e, d)
			}
		}
	}
}

func (t change) kind() reflect.Type {
	if t.new != nil {
		return reflect.TypeOf(t.new)
	}
	return reflect.TypeOf(t.old)
}

// String names what has changed.
func (t change) String() string {
	switch {
	case t.old == nil:
		return fmt.Sprintf("%s %s comes", t.kind(), t.new.GetName())
	case t.new == nil:
		return fmt.Sprintf("%s %s goes", t.kind(), t.old.GetName())
	}
	return fmt.Sprintf("%s %s changes: version %s, generation %d, deleted %v", t.kind(), t.new.GetName(), t.new.GetResourceVersion(), t.new.GetGeneration(), t.new.GetDeletionTimestamp())
}

func (c *cluster) trace(format string, args ...any) {
	if *traceFlag {
		c.t.Logf(format, args...)
	}
}

// chance begins the order of a test's turns.
func (c *cluster) chance() {
	c.seed = *seedFlag
	if c.seed == 0 {
		c.seed = rand.Uint64()
	}
	name := fnv.New64()
	_, _ = name.Write([]byte(c.t.Name()))
	c.rand = rand.New(rand.NewPCG(c.seed, name.Sum64()))
	c.t.Cleanup(func() {
		if c.t.Failed() {
			c.t.Logf("the order was that of -seed %d", c.seed)
		}
	})
}

// happened keeps a change for those who watch.
func (c *cluster) happened(old, is client.Object) {
	t := change{old, is}
	c.turns.mu.Lock()
	defer c.turns.mu.Unlock()
	c.changes++
	at := slices.IndexFunc(c.streams, func(s *stream) bool { return s.of == t.kind() })
	if at < 0 {
		at = len(c.streams)
		c.streams = append(c.streams, &stream{of: t.kind()})
	}
	c.streams[at].changes = append(c.streams[at].changes, t)
}

// watch has a new Raven's controllers told of all that the caches have.
func (c *cluster) watch() {
	c.desks = nil
	for _, r := range c.raven.registrations() {
		d := &desk{
			Controller: r, clock: func() time.Time { return c.now }, trace: c.trace, failures: c.raven.options().RateLimiter,
			due: map[ctrl.Request]time.Time{}, retries: map[ctrl.Request]bool{},
		}
		c.desks = append(c.desks, d)
		if r.Enqueuer != nil {
			c.must(r.Enqueuer.Start(c.t.Context(), d))
		}
		told := map[reflect.Type]bool{}
		for _, w := range r.Watches {
			if of := reflect.TypeOf(w.Of); !told[of] {
				told[of] = true
				for _, o := range c.caches[of].List() {
					d.tell(c.t.Context(), change{nil, o.(client.Object)}, true)
				}
			}
		}
	}
}

// tell has Raven's caches and controllers told of the next change of a stream.
func (c *cluster) tell(s *stream) {
	t := s.changes[0]
	s.changes = s.changes[1:]
	if c.caches[t.kind()] == nil {
		return
	}
	c.must(c.caches.take(t))
	c.trace("%s", t)
	for _, d := range c.desks {
		d.tell(c.t.Context(), t, false)
	}
}

// tellAll has them told of all that has happened.
func (c *cluster) tellAll() {
	for _, s := range c.streams {
		for len(s.changes) > 0 {
			c.tell(s)
		}
	}
}

// reconcile has a controller process a request now.
func (c *cluster) reconcile(controller string, r ctrl.Request) (ctrl.Result, error) {
	c.t.Helper()
	i := slices.IndexFunc(c.desks, func(d *desk) bool { return d.Name == controller })
	return c.desks[i].Reconciler.Reconcile(c.t.Context(), r)
}

// enqueued returns the requests of a controller that a change brings, and nothing else has.
func (c *cluster) enqueued(controller string, t change) []ctrl.Request {
	c.t.Helper()
	i := slices.IndexFunc(c.desks, func(d *desk) bool { return d.Name == controller })
	d := *c.desks[i]
	d.order, d.due = nil, map[ctrl.Request]time.Time{}
	d.tell(c.t.Context(), t, false)
	return d.order
}

// step does one of the things that may come next: a change is told, or a reconciler looks at an object. It tells of a reconciler's failure, and whether there was anything to do.
func (c *cluster) step() (did bool, err error) {
	var could []func() error
	for _, s := range c.streams {
		if len(s.changes) > 0 {
			could = append(could, func() error { c.tell(s); return nil })
		}
	}
	for _, d := range c.desks {
		for _, r := range d.ready() {
			could = append(could, func() error { return d.work(c.t.Context(), r) })
		}
	}
	if len(could) == 0 {
		return false, nil
	}
	return true, could[c.rand.IntN(len(could))]()
}

// take has so many things done that may come next, and the nodes' daemons work when there is nothing.
func (c *cluster) take(n int) {
	for range n {
		if did, _ := c.step(); !did {
			c.daemons()
		}
	}
}

// mostSteps is more than anything here needs at one moment.
const mostSteps = 20_000

// round has Raven do all that it has to do at this moment. It tells what went wrong.
func (c *cluster) round() (errs []error) {
	c.t.Helper()
	for range mostSteps {
		did, err := c.step()
		if err != nil {
			errs = append(errs, err)
		}
		if !did || c.faults.dead {
			return errs
		}
	}
	c.t.Fatalf("Raven does not come to rest: %v\n%s", errs, c.picture())
	return nil
}

// patience is how long is waited for what a reconciler has asked for. What it does later than that, such as to give up what is idle, is for tests that let time pass.
const patience = 10 * time.Second

// settle has Raven and the nodes' daemons work until there is nothing to do, and nothing to be tried again.
func (c *cluster) settle() {
	c.t.Helper()
	var errs []error
	for range 300 {
		for before := -1; before != c.changes; {
			before = c.changes
			if failed := c.round(); len(failed) > 0 {
				errs = failed
			}
			if c.faults.dead {
				return
			}
			c.daemons()
		}
		next, ok := c.next()
		if !ok {
			return
		}
		c.now = next
	}
	c.t.Fatalf("no rest; the last errors: %v\n%s", errs, c.picture())
}

// next is when the next thing is to be done that settle waits for.
func (c *cluster) next() (at time.Time, ok bool) {
	for _, d := range c.desks {
		for r, due := range d.due {
			if (d.retries[r] || due.Sub(c.now) <= patience) && (!ok || due.Before(at)) {
				at, ok = due, true
			}
		}
	}
	return at, ok
}

// store is what the API server keeps objects in. It counts generations, and tells of each change.
type store struct {
	clientgotesting.ObjectTracker
	c *cluster
}

func (s store) Create(kind schema.GroupVersionResource, o runtime.Object, ns string, opts ...metav1.CreateOptions) error {
	if specOf(o) != nil {
		o.(client.Object).SetGeneration(1)
	}
	err := s.ObjectTracker.Create(kind, o, ns, opts...)
	if err == nil {
		s.c.happened(nil, s.c.stripped(o))
	}
	return err
}

func (s store) Update(kind schema.GroupVersionResource, o runtime.Object, ns string, opts ...metav1.UpdateOptions) error {
	return s.changed(kind, o, ns, func() error { return s.ObjectTracker.Update(kind, o, ns, opts...) })
}

func (s store) Patch(kind schema.GroupVersionResource, o runtime.Object, ns string, opts ...metav1.PatchOptions) error {
	return s.changed(kind, o, ns, func() error { return s.ObjectTracker.Patch(kind, o, ns, opts...) })
}

func (s store) changed(kind schema.GroupVersionResource, o runtime.Object, ns string, do func() error) error {
	is := o.(client.Object)
	was, err := s.Get(kind, ns, is.GetName())
	if err != nil {
		return err
	}
	old := was.(client.Object)
	is.SetGeneration(old.GetGeneration())
	if spec := specOf(is); spec != nil && (!equality.Semantic.DeepEqual(spec, specOf(old)) || is.GetDeletionTimestamp().IsZero() != old.GetDeletionTimestamp().IsZero()) {
		is.SetGeneration(old.GetGeneration() + 1)
	}
	if err := do(); err != nil {
		return err
	}
	s.c.happened(s.c.stripped(old), s.c.stripped(is))
	return nil
}

func (s store) Delete(kind schema.GroupVersionResource, ns, name string, opts ...metav1.DeleteOptions) error {
	was, err := s.Get(kind, ns, name)
	if err != nil {
		return err
	}
	if err := s.ObjectTracker.Delete(kind, ns, name, opts...); err != nil {
		return err
	}
	s.c.happened(s.c.stripped(was), nil)
	return nil
}

// specOf is the part of an object whose changes its generation counts; nil where it has none.
func specOf(o runtime.Object) any {
	switch o := o.(type) {
	case *v1.KuryrPort:
		return o.Spec
	case *v1.KuryrPortPool:
		return o.Spec
	case *v1.KuryrNetwork:
		return o.Spec
	case *v1.KuryrLoadBalancer:
		return o.Spec
	case *networkingv1.NetworkPolicy:
		return o.Spec
	}
	return nil
}
