//go:build linux

package pod

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/vishvananda/netns"

	"github.com/kuryr/kuryr/internal/keymutex"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/internal/sortslice"
	"github.com/kuryr/kuryr/kurma/process"
)

// Namespaces are pinned network namespaces by name, as internal/netns.Store has them.
type Namespaces interface {
	Path(name string) string
	Pin(name string, ns netns.NsHandle) error
	Handle(name string) (netns.NsHandle, error)
	Delete(name string) error
	List() ([]string, error)
}

// Config is what a Manager needs.
type Config struct {
	Store      *reconcile.Store // not started yet
	Namespaces Namespaces
	Plugins    Plugins
	Grants     Grants
	Logger     *slog.Logger          // nil is slog.Default
	Registerer prometheus.Registerer // nil: no metrics
}

// Manager attaches and detaches pods. Its methods may be called concurrently. Calls for one pod
// follow one another.
type Manager struct {
	spaces  Namespaces
	plugins Plugins
	grants  atomic.Pointer[Grants]
	log     *slog.Logger
	metrics *calls
	pods    *reconcile.Kind[spec, last]
	work    sync.WaitGroup // calls and watches
	locks   keymutex.Mutex // by UUID; a lock is taken before the store's

	mu     sync.Mutex
	opened map[string]netns.NsHandle // by UUID: namespaces of pods that are being added
	held   map[Ref]int               // by requests that have no row yet
	// watched has the containers' first processes, by UUID.
	watched map[string]*process.Process
}

// row is a pod in the store. Its key is the UUID.
type row = reconcile.Row[spec, last]

// New registers the kind "pod" in the store.
func New(c Config) *Manager {
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	m := &Manager{
		spaces: c.Namespaces, plugins: c.Plugins, log: c.Logger,
		opened: map[string]netns.NsHandle{}, held: map[Ref]int{}, watched: map[string]*process.Process{},
	}
	m.pods = reconcile.Register(c.Store, "pod", target{m}, reconcile.Options[spec, last]{
		Confirm: true, Start: m.start, Removed: m.removed,
	})
	m.metrics = newCalls(c.Registerer, m.count)
	m.SetGrants(c.Grants)
	return m
}

// Start watches the processes of containers, and unpins namespaces of pods that the store does
// not have, as after it was lost. It is called once, after the store was started.
func (m *Manager) Start(ctx context.Context) {
	for r := range m.pods.Rows() {
		if p := r.Spec.Process; p != nil && stateOf(r) == Ready && !m.watch(r.Key, *p) {
			m.work.Go(func() { m.removeEnded(r.Key) })
		}
	}
	names, err := m.spaces.List()
	if err != nil {
		m.log.ErrorContext(ctx, "cannot list pinned namespaces", "err", err)
	}
	for _, name := range names {
		_, ok := m.pods.Get(name)
		if id, err := ParseUUID(name); ok || err != nil || id != name {
			continue
		}
		m.log.InfoContext(ctx, "unpinning a namespace without a pod", "pod", name)
		if err := m.spaces.Delete(name); err != nil {
			m.log.ErrorContext(ctx, "cannot unpin a namespace", "pod", name, "err", err)
		}
	}
}

// Close ends the watch of processes, and waits for calls in progress. It is called before the
// networks are closed.
func (m *Manager) Close() {
	m.mu.Lock()
	for _, p := range m.watched {
		p.Close()
	}
	clear(m.watched)
	m.mu.Unlock()
	m.work.Wait()
}

// SetGrants replaces the grants for later calls.
func (m *Manager) SetGrants(g Grants) { m.grants.Store(&g) }

// Retry repeats what has failed, as when a network is available again.
func (m *Manager) Retry() { m.pods.Retry() }

// InUse reports whether a pod is on this generation of the network, or is being attached to it
// or detached from it.
func (m *Manager) InUse(on Ref) bool {
	m.mu.Lock()
	held := m.held[on]
	m.mu.Unlock()
	return held > 0 || m.Attached(on) > 0
}

// Attached returns the number of pods on a generation of a network.
func (m *Manager) Attached(on Ref) (n int) {
	for r := range m.pods.Rows() {
		if slices.ContainsFunc(r.Spec.Attachments, func(a Attachment) bool { return a.Network == on }) {
			n++
		}
	}
	return n
}

// count returns the number of pods in a state.
func (m *Manager) count(s State) (n int) {
	for r := range m.pods.Rows() {
		if stateOf(r) == s {
			n++
		}
	}
	return n
}

func stateOf(r row) State {
	switch {
	case r.Phase == reconcile.Deleting:
		return Removing
	case r.Done:
		return Ready
	}
	return Adding
}

// removed is called when a pod is gone.
func (m *Manager) removed(r row) {
	m.unwatch(r.Key)
	m.log.Info("pod removed", "pod", r.Key, "container", r.Spec.Container)
	for _, a := range r.Spec.Attachments {
		m.release(a.Network)
	}
}

// release tells the network if this generation is no longer in use.
func (m *Manager) release(on Ref) {
	if !m.InUse(on) {
		m.plugins.Release(on)
	}
}

// Get returns a pod. The error's reason is NotFound if there is none.
func (m *Manager) Get(uuid string) (Pod, error) {
	uuid, err := ParseUUID(uuid)
	if err != nil {
		return Pod{}, err
	}
	r, ok := m.pods.Get(uuid)
	if !ok {
		return Pod{}, notFound("pod %s: there is none", uuid)
	}
	return m.pod(r), nil
}

// List returns all pods, the oldest first.
func (m *Manager) List() []Pod {
	list := []Pod{}
	for r := range m.pods.Rows() {
		list = append(list, m.pod(r))
	}
	sortslice.Func(list, func(a, b Pod) int {
		if c := a.Created.Compare(b.Created); c != 0 {
			return c
		}
		return strings.Compare(a.UUID, b.UUID)
	})
	return list
}

// pod is a row as users see it.
func (m *Manager) pod(r row) Pod {
	return Pod{
		UUID: r.Key, State: stateOf(r), Namespace: m.spaces.Path(r.Key), Container: r.Spec.Container,
		Networks: r.Spec.Asked, Attachments: attachments(r.Spec, r.Last), Created: r.Spec.Created,
		Error: r.Last.Error,
	}
}
