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

// maxCollections is how many namespaces are collected concurrently; the kernel's waits
// overlap, so more than cores make sense.
const maxCollections = 8

// maxSeen bounds what the reaper remembers of namespaces; to forget them costs one
// needless message each.
const maxSeen = 4096

// reaper deletes retired links in the background. Deleting a link takes the kernel
// some 20 ms, and those of a group in one message take no longer than one alone, so what
// comes while a namespace is being collected waits for the next round.
type reaper struct {
	host *host
	idle *idlegate.Gate
	log  *slog.Logger
	wake chan struct{}

	mu      sync.Mutex // of the maps; never held during a system call
	pending map[string]struct{}
	busy    map[string]struct{}
	seen    map[string]struct{} // namespaces this process has had a look at
}

func newReaper(h *host, idle *idlegate.Gate, log *slog.Logger) *reaper {
	return &reaper{
		host: h, idle: idle, log: log, wake: make(chan struct{}, 1),
		pending: make(map[string]struct{}), busy: make(map[string]struct{}), seen: make(map[string]struct{}),
	}
}

// retire puts l down, into the group of retired links, and takes its name.
func (g *reaper) retire(s *socket, l link, ns namespace, id sdn.ID) error {
	var b batch
	b.add("put down "+l.name, unix.RTM_SETLINK, 0, ifInfo(unix.AF_UNSPEC, l.index, 0, unix.IFF_UP))
	b.u32(unix.IFLA_GROUP, groupDying)
	b.text(unix.IFLA_IFALIAS, retiredAlias+string(id))
	if err := s.do(&b); err != nil {
		if errors.Is(err, errNoLink) {
			return nil // its namespace's or its other end's removal was faster
		}
		return err
	}
	g.add(ns.path)
	failpoint.Here("bind.retire.down")

	// A message of its own, because kernels before 6.2 rename only what is down already.
	// Should it fail, then the next Plug of the port waits for the collection.
	var rename batch
	rename.add("rename "+l.name, unix.RTM_SETLINK, 0, ifInfo(unix.AF_UNSPEC, l.index, 0, 0))
	rename.text(unix.IFLA_IFNAME, retiredName(l.index))
	if err := s.do(&rename); err != nil && !errors.Is(err, errNoLink) {
		g.log.Warn("retired link keeps its name", "interface", l.name, "namespace", ns.String(), "err", err)
	}
	return nil
}

// add asks for the namespace at path ("": the host's) to be collected.
func (g *reaper) add(path string) {
	g.mu.Lock()
	g.pending[path] = struct{}{}
	g.see(path)
	g.mu.Unlock()
	g.poke()
}

// look asks for a namespace that this process meets for the first time to be collected:
// an earlier one may have been killed there.
func (g *reaper) look(path string) {
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

func (g *reaper) see(path string) {
	if len(g.seen) >= maxSeen {
		clear(g.seen)
	}
	g.seen[path] = struct{}{}
}

func (g *reaper) poke() {
	select {
	case g.wake <- struct{}{}:
	default: // it is awake
	}
}

// run collects what is added, until ctx ends; then it collects the rest and returns.
func (g *reaper) run(ctx context.Context) {
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
func (g *reaper) take() []string {
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

func (g *reaper) round(path string) {
	if err := g.collect(path); err != nil {
		g.log.Warn("retired links stay until the next unplug there", "namespace", path, "err", err)
	}
	g.mu.Lock()
	delete(g.busy, path)
	_, more := g.pending[path]
	g.mu.Unlock()
	if more {
		g.poke()
	}
}

// flush returns when every retired link known of, and any in the namespace at path, has
// given back its names and its place on the bridge.
func (g *reaper) flush(path string) error {
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
			g.log.Warn("retired links stay until the next unplug there", "namespace", p, "err", err)
		}
	}
	return failed
}

// collect deletes the retired links in the namespace at path. Neither an absent namespace
// nor one without retired links is an error.
func (g *reaper) collect(path string) error {
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
		b.add("delete retired links in "+ns.String(), unix.RTM_DELLINK, 0, ifInfo(unix.AF_UNSPEC, 0, 0, 0))
		b.u32(unix.IFLA_GROUP, groupDying)
		if err := s.do(&b); err != nil && !errors.Is(err, errNoLink) {
			return err
		}
		failpoint.Here("bind.collect.deleted")
		return nil
	})
}
