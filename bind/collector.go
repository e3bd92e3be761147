//go:build linux

package bind

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/kuryr/kuryr/internal/idlegate"
	"github.com/kuryr/kuryr/sdn"
	"golang.org/x/sys/unix"
)

// maxCollections is how many namespaces are collected at once; the kernel's waits
// overlap, so more than cores make sense.
const maxCollections = 8

// maxSeen bounds what graveyard remembers of namespaces; to forget them costs one
// needless message each.
const maxSeen = 4096

// graveyard deletes tombstones behind its users' backs. Deleting a link takes the kernel
// some 20 ms, and those of a group in one message take no longer than one alone, so what
// comes while a namespace is being collected waits for the next round.
type graveyard struct {
	host *host
	idle *idlegate.Gate
	log  *slog.Logger
	wake chan struct{}

	mu      sync.Mutex // of the maps; never held during a system call
	pending map[string]struct{}
	busy    map[string]struct{}
	seen    map[string]struct{} // namespaces this process has had a look at
}

func newGraveyard(h *host, idle *idlegate.Gate, log *slog.Logger) *graveyard {
	return &graveyard{
		host: h, idle: idle, log: log, wake: make(chan struct{}, 1),
		pending: make(map[string]struct{}), busy: make(map[string]struct{}), seen: make(map[string]struct{}),
	}
}

// bury makes l a tombstone: down, in the group of the dying, and off its name.
func (g *graveyard) bury(s *socket, l link, ns namespace, id sdn.ID) error {
	var b batch
	b.add("put down "+l.name, unix.RTM_SETLINK, 0, ifInfo(unix.AF_UNSPEC, l.index, 0, unix.IFF_UP))
	b.u32(unix.IFLA_GROUP, groupDying)
	b.text(unix.IFLA_IFALIAS, graveAlias+string(id))
	if err := s.do(&b); err != nil {
		if errors.Is(err, errNoLink) {
			return nil // its namespace's or its other end's removal was faster
		}
		return err
	}
	g.add(ns.path)
	failpoint.Here("bind.bury.down")

	// A message of its own, because kernels before 6.2 rename only what is down already.
	// Should it fail, then the next Plug of the port waits for the collection.
	var rename batch
	rename.add("rename "+l.name, unix.RTM_SETLINK, 0, ifInfo(unix.AF_UNSPEC, l.index, 0, 0))
	rename.text(unix.IFLA_IFNAME, graveName(l.index))
	if err := s.do(&rename); err != nil && !errors.Is(err, errNoLink) {
		g.log.Warn("tombstone keeps its name", "interface", l.name, "namespace", ns.String(), "error", err)
	}
	return nil
}

// add asks for the namespace at path ("": the host's) to be collected.
func (g *graveyard) add(path string) {
	g.mu.Lock()
	g.pending[path] = struct{}{}
	g.see(path)
	g.mu.Unlock()
	g.poke()
}

// look asks for a namespace that this process meets for the first time to be collected:
// an earlier one may have been killed there.
func (g *graveyard) look(path string) {
	g.mu.Lock()
	_, known := g.seen[path]
	if !known {
		g.pending[path] = struct{}{}
		g.see(path)
	}
	g.mu.Unlock()
	if !known {
		g.poke()
	}
}

func (g *graveyard) see(path string) {
	if len(g.seen) >= maxSeen {
		clear(g.seen)
	}
	g.seen[path] = struct{}{}
}

func (g *graveyard) poke() {
	select {
	case g.wake <- struct{}{}:
	default: // it is awake
	}
}

// run collects what is added, until ctx ends; then it collects the rest and returns.
func (g *graveyard) run(ctx context.Context) {
	var rounds sync.WaitGroup
	slots := make(chan struct{}, maxCollections)
	start := func() {
		for _, path := range g.take() {
			slots <- struct{}{}
			rounds.Go(func() {
				defer func() { <-slots }()
				g.idle.Wait(ctx)
				g.round(path)
			})
		}
	}
	for {
		select {
		case <-g.wake:
			start()
		case <-ctx.Done():
			rounds.Wait()
			start()
			rounds.Wait()
			return
		}
	}
}

// take moves the namespaces to be collected from pending to busy, but for those that are
// being collected.
func (g *graveyard) take() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	var paths []string
	for path := range g.pending {
		if _, busy := g.busy[path]; !busy {
			delete(g.pending, path)
			g.busy[path] = struct{}{}
			paths = append(paths, path)
		}
	}
	return paths
}

func (g *graveyard) round(path string) {
	if err := g.collect(path); err != nil {
		g.log.Warn("tombstones stay until the next unplug there", "namespace", path, "error", err)
	}
	g.mu.Lock()
	delete(g.busy, path)
	_, more := g.pending[path]
	g.mu.Unlock()
	if more {
		g.poke()
	}
}

// settle returns when every tombstone known of, and any in the namespace at path, has
// given back its names and its place on the bridge.
func (g *graveyard) settle(path string) error {
	paths := map[string]struct{}{path: {}}
	g.mu.Lock()
	for _, m := range []map[string]struct{}{g.pending, g.busy} {
		for p := range m {
			paths[p] = struct{}{}
		}
	}
	g.mu.Unlock()
	var failed error
	for p := range paths {
		switch err := g.collect(p); {
		case err == nil:
		case p == path:
			failed = err
		default: // not this caller's affair
			g.log.Warn("tombstones stay until the next unplug there", "namespace", p, "error", err)
		}
	}
	return failed
}

// collect deletes the tombstones in the namespace at path. Neither an absent namespace
// nor one without tombstones is an error.
func (g *graveyard) collect(path string) error {
	ns, err := g.host.openNamespace(path)
	if sdn.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer ns.close()
	return ns.within(func(s *socket) error {
		var b batch
		b.add("delete tombstones in "+ns.String(), unix.RTM_DELLINK, 0, ifInfo(unix.AF_UNSPEC, 0, 0, 0))
		b.u32(unix.IFLA_GROUP, groupDying)
		if err := s.do(&b); err != nil && !errors.Is(err, errNoLink) {
			return err
		}
		failpoint.Here("bind.collect.deleted")
		return nil
	})
}
