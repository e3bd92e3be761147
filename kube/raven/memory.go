package raven

import (
	"maps"
	"slices"
	"sync"
	"time"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/pool"
	"github.com/kuryr/kuryr/kube/raven/core"
	"k8s.io/apimachinery/pkg/types"
)

// memory is what Raven knows of pools and Kubernetes does not. All of it may be lost: then ports are idle since their status says so, and a count is written once more.
type memory struct {
	mu    sync.Mutex
	pools map[string]*remembered
	// wishful are the pools with pods that wait for ports of their own, perhaps by an address that another port has.
	wishful map[string]bool
	// givers are the pools that pods are given ports of, by the pods' UIDs, on nodes without a daemon.
	givers map[types.UID]giver
}

type remembered struct {
	idle    map[string]time.Time // since when ports are available; nil before the first look
	fresh   map[string]freshPort // made or changed, and not yet seen so in the cache
	written time.Time            // the pool's status
	audited time.Time
	asked   map[types.UID]bool // pods without a port: see lookLive
	// suspected says that the SDN may have what Kubernetes has not, or the reverse.
	suspected bool
}

// freshPort is a port as Raven has just written it. The cache, which is told of pools and of ports by two streams, may show the pool without pending ports before it shows the
// ports; and a port that the cache still shows as free is not to be given to a second pod, nor one with its old groups to be changed once more.
type freshPort struct {
	port    *v1.KuryrPort
	written time.Time
}

func (m *memory) of(name string) *remembered {
	if m.pools == nil {
		m.pools = map[string]*remembered{}
	}
	if m.pools[name] == nil {
		m.pools[name] = &remembered{fresh: map[string]freshPort{}}
	}
	return m.pools[name]
}

func (m *memory) forget(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.pools, name)
	delete(m.wishful, name)
}

// wrote notes a port just made or changed.
func (m *memory) wrote(name string, p *v1.KuryrPort, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.of(name).fresh[p.Name] = freshPort{p.DeepCopy(), now}
}

// vanished notes that a port is gone.
func (m *memory) vanished(name, port string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if k := m.pools[name]; k != nil {
		delete(k.fresh, port)
		delete(k.idle, port)
	}
}

// complete gives the ports that the cache shows, as they were last written, and those that it does not show yet. They are the caller's to change.
func (m *memory) complete(name string, cached []v1.KuryrPort, now time.Time) []*v1.KuryrPort {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []*v1.KuryrPort
	k := m.of(name)
	for id, f := range k.fresh {
		at := slices.IndexFunc(cached, func(p v1.KuryrPort) bool { return p.Name == id })
		if now.Sub(f.written) > core.StaleAfter || at >= 0 && !core.Older(&cached[at], f.port) {
			delete(k.fresh, id)
			continue
		}
		all = append(all, f.port.DeepCopy())
	}
	for i := range cached {
		if _, newer := k.fresh[cached[i].Name]; !newer {
			all = append(all, cached[i].DeepCopy())
		}
	}
	return all
}

// idle tells since when the ports that are available have been so. At the first look that is what their status says, so that time goes on where another Raven had the pool;
// later it is what was seen here, whatever clock the nodes have.
func (m *memory) idle(name string, ports []*v1.KuryrPort, now time.Time) map[string]time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	k := m.of(name)
	idle := map[string]time.Time{}
	for _, p := range ports {
		if stateOf(p) != pool.Available {
			continue
		}
		since, ok := k.idle[p.Name]
		if k.idle == nil {
			since, ok = p.AvailableSince()
		}
		if !ok || since.After(now) {
			since = now
		}
		idle[p.Name] = since
	}
	k.idle = idle
	return maps.Clone(idle) // vanished changes the other
}

func (m *memory) written(name string) time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.of(name).written
}

func (m *memory) setWritten(name string, at time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.of(name).written = at
}

func (m *memory) audited(name string) time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.of(name).audited
}

func (m *memory) setAudited(name string, at time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.of(name).audited = at
}

// suspects has the pool's ports compared with the SDN's as soon as may be; suspect tells so once.
func (m *memory) suspects(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.of(name).suspected = true
}

func (m *memory) suspect(name string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	k := m.of(name)
	was := k.suspected
	k.suspected = false
	return was
}

// wishes notes whether pods of the pool wait for ports of their own.
func (m *memory) wishes(name string, waits bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !waits {
		delete(m.wishful, name)
		return
	}
	if m.wishful == nil {
		m.wishful = map[string]bool{}
	}
	m.wishful[name] = true
}

// wishing are the pools of which some do.
func (m *memory) wishing() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Keys(m.wishful))
}
