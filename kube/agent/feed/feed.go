package feed

import (
	"context"
	"log/slog"
	"reflect"
	"sync"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Events take what the API tells of one kind of object. They are called one after another, from one goroutine.
type Events struct {
	Set  func(client.Object) // it is there, or is otherwise than before; it is the callee's
	Drop func(types.NamespacedName)
}

// Config says what is watched.
type Config struct {
	Client client.WithWatch
	// List is an empty list of the kind.
	List client.ObjectList
	// Selector selects the objects; nil is all. It is for the API server: an object that comes otherwise is given nevertheless.
	Selector client.ListOption
	Events   Events
	Log      *slog.Logger
	// Backoff is between attempts while the API server is away; nil is from half a second to four, each up to twice as long.
	Backoff *wait.Backoff
}

// backoff ends sooner than client-go's, which leaves a node blind for half a minute after its API server has come back: its kubelet starts pods meanwhile, of which Kuryr has not heard.
func backoff() *wait.Backoff {
	return &wait.Backoff{Duration: 500 * time.Millisecond, Cap: 4 * time.Second, Steps: 10, Factor: 2, Jitter: 1}
}

// Feed is one watch.
type Feed struct {
	events    Events
	log       *slog.Logger
	reflector *cache.Reflector
	synced    chan struct{}

	once  sync.Once
	known map[types.NamespacedName]struct{} // of the reflector's goroutine alone
}

// New makes a Feed, which asks for nothing until Run.
func New(c Config) *Feed {
	if c.Backoff == nil {
		c.Backoff = backoff()
	}
	f := &Feed{events: c.Events, log: c.Log, synced: make(chan struct{}), known: map[types.NamespacedName]struct{}{}}
	options := func(o metav1.ListOptions) []client.ListOption {
		all := []client.ListOption{&client.ListOptions{Raw: &o, Limit: o.Limit, Continue: o.Continue}}
		if c.Selector != nil {
			all = append(all, c.Selector)
		}
		return all
	}
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			l := c.List.DeepCopyObject().(client.ObjectList)
			return l, c.Client.List(ctx, l, options(o)...)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return c.Client.Watch(ctx, c.List.DeepCopyObject().(client.ObjectList), options(o)...)
		},
	}
	f.reflector = cache.NewReflectorWithOptions(cache.ToListWatcherWithWatchListSemantics(lw, c.Client), nil, (*store)(f), cache.ReflectorOptions{
		Backoff: c.Backoff, TypeDescription: reflect.TypeOf(c.List).Elem().Name(),
	})
	return f
}

// Run watches until ctx ends. An API server that is away is waited for.
func (f *Feed) Run(ctx context.Context) {
	f.reflector.RunWithContext(klog.NewContext(ctx, logr.FromSlogHandler(f.log.Handler())))
}

// Synced is closed when all that there was at the beginning has been given.
func (f *Feed) Synced() <-chan struct{} { return f.synced }

// store is what client-go's Reflector fills. It keeps names alone.
type store Feed

func (s *store) put(o any) {
	object := o.(client.Object)
	object.SetManagedFields(nil)
	s.known[client.ObjectKeyFromObject(object)] = struct{}{}
	s.events.Set(object)
}

// Add gives an object.
func (s *store) Add(o any) error { s.put(o); return nil }

// Update gives an object.
func (s *store) Update(o any) error { s.put(o); return nil }

// Delete drops an object.
func (s *store) Delete(o any) error {
	name := client.ObjectKeyFromObject(o.(client.Object))
	delete(s.known, name)
	s.events.Drop(name)
	return nil
}

// Replace gives all objects, and drops those that are not among them.
func (s *store) Replace(all []any, _ string) error {
	before := s.known
	s.known = make(map[types.NamespacedName]struct{}, len(all))
	for _, o := range all {
		delete(before, client.ObjectKeyFromObject(o.(client.Object)))
		s.put(o)
	}
	for name := range before {
		s.events.Drop(name)
	}
	s.once.Do(func() { close(s.synced) })
	return nil
}

// Resync has nothing to do: nothing is kept here.
func (s *store) Resync() error { return nil }
