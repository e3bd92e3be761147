package claim

import (
	"context"
	"log/slog"
	"reflect"
	"sync"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
)

// events take what the API tells of one kind of object into the index.
type events struct {
	set  func(client.Object)
	drop func(types.NamespacedName)
}

// store is what a Reflector fills. It keeps only names: the objects go to the index, which keeps what it needs of them.
type store struct {
	events
	reflector *cache.Reflector
	synced    chan struct{} // closed when all that there was at the beginning is in the index

	once  sync.Once
	known map[types.NamespacedName]struct{} // of the reflector's goroutine alone
}

// watched is a store of the objects that the selector selects, not yet filled.
func watched(c *Claimant, list client.ObjectList, selector client.ListOption, e events) *store {
	s := &store{events: e, synced: make(chan struct{}), known: map[types.NamespacedName]struct{}{}}
	options := func(o metav1.ListOptions) []client.ListOption {
		all := []client.ListOption{&client.ListOptions{Raw: &o, Limit: o.Limit, Continue: o.Continue}}
		if selector != nil {
			all = append(all, selector)
		}
		return all
	}
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			l := list.DeepCopyObject().(client.ObjectList)
			return l, c.Client.List(ctx, l, options(o)...)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return c.Client.Watch(ctx, list.DeepCopyObject().(client.ObjectList), options(o)...)
		},
	}
	s.reflector = cache.NewReflectorWithOptions(cache.ToListWatcherWithWatchListSemantics(lw, c.Client), nil, s, cache.ReflectorOptions{
		Backoff: c.backoff, TypeDescription: reflect.TypeOf(list).Elem().Name(),
	})
	return s
}

// run fills the store until ctx ends.
func (s *store) run(ctx context.Context, log *slog.Logger) {
	s.reflector.RunWithContext(klog.NewContext(ctx, logr.FromSlogHandler(log.Handler())))
}

func (s *store) put(o client.Object) {
	o.SetManagedFields(nil)
	s.known[client.ObjectKeyFromObject(o)] = struct{}{}
	s.set(o)
}

// Add takes in an object.
func (s *store) Add(o any) error { s.put(o.(client.Object)); return nil }

// Update takes in an object.
func (s *store) Update(o any) error { s.put(o.(client.Object)); return nil }

// Delete takes out an object.
func (s *store) Delete(o any) error {
	name := client.ObjectKeyFromObject(o.(client.Object))
	delete(s.known, name)
	s.drop(name)
	return nil
}

// Replace takes in all objects, and out those that are not among them.
func (s *store) Replace(all []any, _ string) error {
	before := s.known
	s.known = make(map[types.NamespacedName]struct{}, len(all))
	for _, o := range all {
		delete(before, client.ObjectKeyFromObject(o.(client.Object)))
		s.put(o.(client.Object))
	}
	for name := range before {
		s.drop(name)
	}
	s.once.Do(func() { close(s.synced) })
	return nil
}

// Resync has nothing to do: the index is level-triggered.
func (s *store) Resync() error { return nil }

func (c *Claimant) portEvents() events {
	return events{
		set: func(o client.Object) { c.seePort(o.(*v1.KuryrPort)) },
		drop: func(n types.NamespacedName) {
			c.mu.Lock()
			c.index.dropPort(n.Name)
			c.mu.Unlock()
			c.queue.Add(task{port: n.Name})
		},
	}
}

// seePort takes in a port, from a watch or from the answer to a write.
func (c *Claimant) seePort(o *v1.KuryrPort) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.offer(c.index.setPort(o))
	if p := c.index.ports[o.Name]; p != nil && c.index.differs(p) {
		c.queue.Add(task{port: o.Name})
	}
}

func (c *Claimant) poolEvents() events {
	return events{
		set: func(o client.Object) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.offer(c.index.setPool(o.(*v1.KuryrPortPool)))
		},
		drop: func(n types.NamespacedName) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.index.dropPool(n.Name)
		},
	}
}

func (c *Claimant) networkEvents() events {
	of := map[string]string{} // namespaces by the names of their KuryrNetworks
	return events{
		set: func(o client.Object) {
			n := o.(*v1.KuryrNetwork)
			of[n.Name] = n.Spec.Namespace
			c.mu.Lock()
			defer c.mu.Unlock()
			c.offer(c.index.setNetwork(n))
		},
		drop: func(n types.NamespacedName) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.index.dropNetwork(of[n.Name], n.Name)
			delete(of, n.Name)
		},
	}
}

func (c *Claimant) podEvents() events {
	return events{
		set: func(o client.Object) {
			c.mu.Lock()
			defer c.mu.Unlock()
			pod := o.(*corev1.Pod)
			t, gone := c.index.setPod(pod)
			c.offer(t)
			c.offer(topic{ofOwn, string(pod.UID)}) // should it wish for nothing any more
			c.podGone(gone)
			if c.index.misannotated(c.index.uids[pod.UID]) {
				c.queue.Add(task{pod: client.ObjectKeyFromObject(pod)})
			}
		},
		drop: func(n types.NamespacedName) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.podGone(c.index.dropPod(n))
		},
	}
}

// podGone looks after what a pod had that is not there any more. The lock is held.
func (c *Claimant) podGone(uid types.UID) {
	for k := range c.index.ofPod[uid] {
		c.queue.Add(task{gone: k})
	}
}

func (c *Claimant) nodeEvents() events {
	set := func(raven bool) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.index.raven = raven
	}
	return events{
		set: func(o client.Object) {
			if o.GetName() == c.Node {
				set(o.GetLabels()[v1.LabelClaimant] == v1.ClaimantRaven)
			}
		},
		drop: func(types.NamespacedName) {},
	}
}
