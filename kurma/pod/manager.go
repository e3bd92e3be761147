//go:build linux

package pod

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/kuryr/kuryr/internal/namedlock"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/vishvananda/netns"
)

// Namespaces are pinned network namespaces by name, as internal/netns.Store has them.
type Namespaces interface {
	Path(name string) string
	Create(name string) (ns netns.NsHandle, created bool, err error)
	Pin(name string, ns netns.NsHandle) error
	Handle(name string) (netns.NsHandle, error)
	Delete(name string) error
	List() ([]string, error)
}

// Config is what a Manager needs.
type Config struct {
	Path       string // of the journal, made if missing
	Namespaces Namespaces
	Plugins    Plugins
	Grants     Grants
	Logger     *slog.Logger          // nil: slog.Default
	Registerer prometheus.Registerer // nil: nothing is counted
}

// Manager attaches and detaches pods. Its methods may be called in parallel: calls for one pod follow one another, all others run at once.
type Manager struct {
	spaces  Namespaces
	plugins Plugins
	grants  atomic.Pointer[Grants]
	log     *slog.Logger
	metrics *calls
	journal *journal
	locks   namedlock.Locks // by UUID

	owes chan struct{} // a removal has failed
	wake chan struct{} // it may succeed now
	work sync.WaitGroup

	mu     sync.Mutex
	pods   map[string]*record // what the journal has; a record is never changed, but replaced
	used   map[Ref]int        // by attachments, also of those that are just being made
	spaced map[space]string   // whose pods' namespaces are pinned
	ended  bool
}

// errEnded says that the Manager does not take calls any more.
var errEnded = errors.New("kuryr kurma is ending")

// Open reads the journal. It changes nothing: Run undoes and finishes what was cut off. The error says if another process has the journal open.
func Open(c Config) (*Manager, error) {
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	j, pods, err := openJournal(c.Path)
	if err != nil {
		return nil, err
	}
	m := &Manager{
		spaces: c.Namespaces, plugins: c.Plugins, log: c.Logger, journal: j,
		owes: make(chan struct{}, 1), wake: make(chan struct{}, 1), pods: pods, used: map[Ref]int{}, spaced: map[space]string{},
	}
	for _, p := range pods {
		if p.Space != (space{}) {
			m.spaced[p.Space] = p.UUID
		}
		for _, a := range p.Attachments {
			m.used[a.Network]++
		}
	}
	m.metrics = newCalls(c.Registerer, m.count)
	m.SetGrants(c.Grants)
	return m, nil
}

// SetGrants replaces the grants for calls that come after it.
func (m *Manager) SetGrants(g Grants) { m.grants.Store(&g) }

// InUse tells whether a pod is on this generation of the network, or on its way to it or from it.
func (m *Manager) InUse(on Ref) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.used[on] > 0
}

// Attached counts the pods on a generation of a network.
func (m *Manager) Attached(on Ref) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.used[on]
}

// count counts the pods in a state.
func (m *Manager) count(s State) (n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.pods {
		if r.State == s {
			n++
		}
	}
	return n
}

// Close waits for calls under way until ctx ends, and closes the journal. Calls that come later fail. What has not ended is undone at the next start.
func (m *Manager) Close(ctx context.Context) error {
	m.mu.Lock()
	m.ended = true
	m.mu.Unlock()
	done := make(chan struct{})
	go func() { m.work.Wait(); close(done) }()
	select {
	case <-done:
		return m.journal.close()
	case <-ctx.Done():
		return context.Cause(ctx) // closing under their feet would be worse: the process ends anyway
	}
}

// begin admits a call.
func (m *Manager) begin() (end func(), err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ended {
		return nil, &Error{Internal, errEnded}
	}
	m.work.Add(1)
	return m.work.Done, nil
}
