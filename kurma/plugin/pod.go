//go:build linux

package plugin

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/kurma/podnet"
)

// Pod is the networking pod: a container for each network of the configuration, and for each older
// generation of one that pods are still attached to. Its methods may be called concurrently.
type Pod struct {
	cfg     Config
	log     *slog.Logger
	runtime *ociRuntime
	cgroups *cgroups
	lock    *os.File
	plugins *reconcile.Kind[spec, record] // a row for each generation

	applying sync.Mutex // held by Apply

	mu          sync.Mutex
	generations map[Ref]*generation
	current     []Ref                  // in the configuration's order
	wanted      map[Ref]podnet.Network // what Apply has been asked for last, and is making current
	gone        map[Ref]chan struct{}
	closed      bool
	work        sync.WaitGroup
}

// ErrInUse says that another daemon has the same Config.Run.
var ErrInUse = errors.New("another kuryr kurma is running")

// New finds the runtime, makes the folders and registers the kind "plugin" in the store. Nothing is
// started: Apply does that. It makes this process the reaper of its descendants
// (PR_SET_CHILD_SUBREAPER), so that it learns how plugins end, and hides its memory from processes
// that enter containers (PR_SET_DUMPABLE).
func New(c Config) (*Pod, error) {
	c.CallLimit = cmp.Or(c.CallLimit, callLimit)
	c.StopLimit = cmp.Or(c.StopLimit, 2*time.Second)
	if c.Log == nil {
		c.Log = slog.Default()
	}
	for _, dir := range []*string{&c.State, &c.Run, &c.NetNS} {
		if err := os.MkdirAll(*dir, 0o700); err != nil {
			return nil, fmt.Errorf("networking pod: %w", err)
		}
		var err error
		if *dir, err = filepath.Abs(*dir); err == nil {
			*dir, err = filepath.EvalSymlinks(*dir)
		}
		if err != nil {
			return nil, fmt.Errorf("networking pod: %w", err)
		}
	}
	lock, err := claim(filepath.Join(c.Run, "lock"))
	if err != nil {
		return nil, err
	}
	p := &Pod{cfg: c, log: c.Log, lock: lock, generations: map[Ref]*generation{}, gone: map[Ref]chan struct{}{}}
	err = p.open()
	if err == nil {
		err = p.importFiles()
	}
	if err != nil {
		_ = lock.Close()
		return nil, err
	}
	return p, nil
}

// lockLimit is how long the lock of a killed daemon may be held by a process that it was starting.
const lockLimit = time.Second

// claim takes the lock that one process has at a time.
func claim(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("networking pod: %w", err)
	}
	locked := make(chan error, 1)
	go func() {
		err := unix.Flock(int(file.Fd()), unix.LOCK_EX)
		for errors.Is(err, unix.EINTR) {
			err = unix.Flock(int(file.Fd()), unix.LOCK_EX)
		}
		locked <- err
	}()
	timer := time.NewTimer(lockLimit)
	defer timer.Stop()
	select {
	case err := <-locked:
		if err != nil {
			_ = file.Close()
			return nil, fmt.Errorf("networking pod: %w", err)
		}
		return file, nil
	case <-timer.C:
		go func() { // no longer needed
			<-locked
			_ = file.Close()
		}()
		return nil, fmt.Errorf("%s: %w", filepath.Dir(path), ErrInUse)
	}
}

func (p *Pod) open() error {
	var err error
	if p.runtime, err = findRuntime(p.cfg.Runtime, filepath.Join(p.cfg.Run, "runtime")); err != nil {
		return err
	}
	for _, dir := range []string{p.runtime.root, p.containers(), p.cfg.State} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("networking pod: %w", err)
		}
	}
	if p.cgroups, err = openCgroups(p.cfg.Run, p.log); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become the reaper of plugins: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("hide from plugins: %w", err)
	}
	// What this process was started with open (a service manager's sockets, say) is no plugin's.
	if err := unix.CloseRange(3, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fmt.Errorf("close for plugins what is open here: %w", err)
	}
	p.plugins = reconcile.Register(p.cfg.Store, "plugin", target{p}, reconcile.Options[spec, record]{
		Timeout: fetchLimit, Confirm: true, Removed: p.removed,
	})
	if p.cfg.Metrics != nil {
		if err := p.cfg.Metrics.Register(Collector(p)); err != nil {
			return fmt.Errorf("metrics: %w", err)
		}
	}
	return nil
}

// fetchLimit bounds one attempt to start a plugin, whose image may be large.
const fetchLimit = time.Hour

func (p *Pod) containers() string { return filepath.Join(p.cfg.Run, "containers") }

// networkDir has the private volumes of a network, which survive a reboot.
func (p *Pod) networkDir(name string) string { return filepath.Join(p.cfg.State, name) }

// keyOf is the key of a generation's row.
func keyOf(r Ref) string { return r.Name + "/" + r.Generation }

func refOfKey(key string) (r Ref) {
	r.Name, r.Generation, _ = strings.Cut(key, "/")
	return r
}

func (p *Pod) bundle(r Ref) bundle {
	id := "kuryr-" + r.Name + "-" + r.Generation
	return bundle{id: id, dir: filepath.Join(p.containers(), id)}
}

// refOf names the generation of an entry. White space makes no other one.
func refOf(n podnet.Network) Ref {
	var text bytes.Buffer
	if json.Compact(&text, n.Raw) != nil {
		text.Write(n.Raw)
	}
	sum := sha256.Sum256(text.Bytes())
	return Ref{Name: n.Name, Generation: hex.EncodeToString(sum[:6])}
}

// Apply makes the networks those of the configuration, and returns before they run: Status reports
// how far each is. The container of an entry that has not changed runs on, also one that an
// earlier daemon has started. Generations that are no longer configured stay until Release if
// inUse reports that pods are attached to them, and are removed otherwise.
func (p *Pod) Apply(ctx context.Context, networks []podnet.Network, inUse func(Ref) bool) error {
	p.applying.Lock()
	defer p.applying.Unlock()
	wanted := map[Ref]podnet.Network{}
	var order []Ref
	for _, n := range networks {
		wanted[refOf(n)] = n
		order = append(order, refOf(n))
	}
	p.mu.Lock()
	p.wanted = wanted
	p.mu.Unlock()
	stored := p.stored()
	for _, ref := range order {
		if err := p.waitGone(ctx, ref); err != nil {
			return err
		}
		if err := p.begin(ref, wanted[ref]); err != nil {
			return err
		}
	}
	p.mu.Lock()
	p.current = order
	for ref, g := range p.generations {
		_, has := wanted[ref]
		g.mu.Lock()
		g.current = has
		g.mu.Unlock()
	}
	p.mu.Unlock()
	for ref, n := range stored { // also of earlier daemons
		if _, has := wanted[ref]; has {
			continue
		}
		if !inUse(ref) {
			p.retire(ref)
			continue
		}
		if err := p.waitGone(ctx, ref); err != nil {
			return err
		}
		if err := p.begin(ref, n); err != nil {
			return err
		}
	}
	return p.sweep(ctx)
}

// stored returns the generations that have rows. A row that this program cannot read stops no
// other network, and nothing of its network is removed.
func (p *Pod) stored() map[Ref]podnet.Network {
	all := map[Ref]podnet.Network{}
	for r := range p.plugins.Rows() {
		if r.Phase != reconcile.Wanted {
			continue
		}
		n, err := parseEntry([]byte(r.Spec.Entry))
		if err != nil || keyOf(refOf(n)) != r.Key {
			p.log.Error("network entry not understood", "row", r.Key, "err", err)
			continue
		}
		all[refOf(n)] = n
	}
	return all
}

func parseEntry(raw []byte) (podnet.Network, error) {
	networks, err := podnet.Parse(slices.Concat([]byte(`{"pod_networks":[`), raw, []byte("]}")))
	if err == nil && len(networks) != 1 {
		err = fmt.Errorf("%d entries, want one", len(networks))
	}
	if err != nil {
		return podnet.Network{}, err
	}
	return networks[0], nil
}

// waitGone completes the removal of a generation that is wanted again. If that fails, the next
// container of the generation removes what is left of the last.
func (p *Pod) waitGone(ctx context.Context, ref Ref) error {
	p.mu.Lock()
	going := p.gone[ref]
	p.mu.Unlock()
	if going != nil {
		select {
		case <-going:
		case <-ctx.Done():
			return fmt.Errorf("network %s is ending: %w", ref.Name, context.Cause(ctx))
		}
	}
	r, ok := p.plugins.Get(keyOf(ref))
	if !ok || r.Phase != reconcile.Deleting {
		return nil
	}
	err := p.plugins.Remove(ctx, r.Key)
	if reconcile.IsPending(err) {
		p.log.Warn("container not removed", "network", ref.Name, "err", err)
		err = p.plugins.Forget(ctx, r.Key)
	}
	return err
}

// begin stores a generation and has it started, unless it is running or being started.
func (p *Pod) begin(ref Ref, n podnet.Network) error {
	g, err := p.add(ref, n)
	if g == nil || err != nil {
		return err
	}
	return p.plugins.Repeat(g.ctx, keyOf(ref), 0, nil) // without p.mu: Delete takes that
}

// add stores a generation; nil if it is there.
func (p *Pod) add(ref Ref, n podnet.Network) (*generation, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, errors.New("networking pod: it is ending")
	}
	if p.generations[ref] != nil {
		return nil, nil
	}
	ctx, end := context.WithCancel(context.Background())
	err := p.plugins.Import(ctx, []reconcile.Row[spec, record]{{
		Object: reconcile.Object{Key: keyOf(ref)}, Phase: reconcile.Wanted, Done: true,
		Spec: spec{string(n.Raw)},
	}})
	if err != nil {
		end()
		return nil, fmt.Errorf("network %s: %w", ref.Name, err)
	}
	g := &generation{
		pod: p, ref: ref, network: n, bundle: p.bundle(ref), ctx: ctx, end: end,
		changed: make(chan struct{}), state: Starting,
	}
	if r, ok := p.plugins.Get(keyOf(ref)); ok {
		g.image = r.Last.Image // so that it is in use before the container is adopted
	}
	p.generations[ref] = g
	return g, nil
}

// retire removes a generation, without waiting for it, unless it is of the configuration or of
// the one that is being applied.
func (p *Pod) retire(ref Ref) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, wanted := p.wanted[ref]
	if wanted || slices.Contains(p.current, ref) || p.closed || p.gone[ref] != nil {
		return
	}
	if g := p.generations[ref]; g != nil { // a start in progress ends
		g.mu.Lock()
		g.remove = true
		g.mu.Unlock()
		g.end()
	}
	gone := make(chan struct{})
	p.gone[ref] = gone
	p.work.Go(func() {
		if err := p.plugins.Remove(context.Background(), keyOf(ref)); err != nil {
			p.log.Error("container not removed", "network", ref.Name, "err", err)
		}
		p.mu.Lock()
		delete(p.gone, ref)
		p.mu.Unlock()
		close(gone)
	})
}

// removed is called when the row of a generation is gone. With the last generation of a network
// its volumes are removed.
func (p *Pod) removed(r reconcile.Row[spec, record]) {
	ref := refOfKey(r.Key)
	p.mu.Lock()
	delete(p.generations, ref)
	if len(p.unread(ref.Name)) == 0 && !p.hasRows(ref.Name) {
		p.removeDir(ref.Name)
	}
	p.mu.Unlock()
	p.log.Info("plugin removed", "network", ref.Name, "generation", ref.Generation)
	if p.cfg.Gone != nil {
		p.cfg.Gone(ref)
	}
}

func (p *Pod) hasRows(network string) bool {
	for r := range p.plugins.Rows() {
		if refOfKey(r.Key).Name == network {
			return true
		}
	}
	return false
}

// removeDir removes a network's volumes. The next sweep removes what cannot be removed now.
func (p *Pod) removeDir(network string) {
	if err := os.RemoveAll(p.networkDir(network)); err != nil {
		p.log.Error("volumes not removed", "network", network, "err", err)
	}
}

// sweep removes what belongs to no row, as after the store was lost: containers and volumes. What
// cannot be removed stops no network.
func (p *Pod) sweep(ctx context.Context) error {
	known := map[string]bool{}
	for r := range p.plugins.Rows() {
		known[p.bundle(refOfKey(r.Key)).id] = true
	}
	containers, err := os.ReadDir(p.containers())
	if err != nil {
		return fmt.Errorf("networking pod: %w", err)
	}
	networks, err := os.ReadDir(p.cfg.State)
	if err != nil {
		return fmt.Errorf("networking pod: %w", err)
	}
	for _, e := range containers {
		if known[e.Name()] {
			continue
		}
		b := bundle{id: e.Name(), dir: filepath.Join(p.containers(), e.Name())}
		if err := p.discard(ctx, b); err != nil {
			p.log.Error("container not removed", "container", b.id, "err", err)
		}
	}
	for _, e := range networks {
		if e.IsDir() && len(p.unread(e.Name())) == 0 && !p.hasRows(e.Name()) {
			p.removeDir(e.Name())
		}
	}
	return nil
}

func (p *Pod) generation(ref Ref) *generation {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.generations[ref]
}

// find is the generation that a call is for.
func (p *Pod) find(on Ref) (*generation, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, ref := range p.current {
		if on.Generation == "" && ref.Name == on.Name {
			on = ref
		}
	}
	if g := p.generations[on]; g != nil {
		return g, nil
	}
	return nil, fmt.Errorf("network %s: %w", on.Name, ErrUnknown)
}

// Release says that no pods are attached to a generation: one that is not of the configuration is
// removed. It is idempotent.
func (p *Pod) Release(on Ref) {
	if p.generation(on) != nil {
		p.retire(on)
	}
}

// Current is a network of the configuration and its generation.
type Current struct {
	Ref
	Network podnet.Network
}

// Current are the networks of the configuration, in its order, whether they run or not.
func (p *Pod) Current() []Current {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := []Current{}
	for _, ref := range p.current {
		if g := p.generations[ref]; g != nil {
			out = append(out, Current{ref, g.network})
		}
	}
	return out
}

// Status tells of all networks, those of the configuration first, in its order.
func (p *Pod) Status() []Status {
	p.mu.Lock()
	var all []*generation
	for _, ref := range p.current {
		if g := p.generations[ref]; g != nil {
			all = append(all, g)
		}
	}
	var older []*generation
	for ref, g := range p.generations {
		if !slices.Contains(p.current, ref) {
			older = append(older, g)
		}
	}
	p.mu.Unlock()
	slices.SortFunc(older, func(a, b *generation) int { return cmp.Compare(a.bundle.id, b.bundle.id) })
	out := []Status{}
	for _, g := range append(all, older...) {
		out = append(out, g.status())
	}
	return out
}

func (g *generation) status() Status {
	said, _ := tail(g.bundle.output(), 4<<10)
	g.mu.Lock()
	defer g.mu.Unlock()
	s := Status{
		Ref: g.ref, Image: g.network.Image, ImageID: g.image.ID, Default: g.network.Default,
		Current: g.current, State: g.state, Reason: g.reason, PID: g.pid, Since: g.since,
		Restarts: g.restarts, Output: strings.ToValidUTF8(string(said), "?"),
	}
	if g.state == Failed {
		s.Retry = g.pod.plugins.Due(keyOf(g.ref))
	}
	return s
}

// Close ends what this process does for the containers, which run on and are adopted after the next
// New and Apply. Calls in progress end first. Close is called after the store's Run has returned.
func (p *Pod) Close() error {
	p.applying.Lock()
	defer p.applying.Unlock()
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil
	}
	p.closed = true
	p.mu.Unlock()
	p.work.Wait() // for removals
	var ending sync.WaitGroup
	p.mu.Lock()
	for _, g := range p.generations {
		ending.Go(func() { g.stop(false) })
	}
	p.mu.Unlock()
	ending.Wait()
	p.cgroups.close() // stays while containers are in it
	if p.cfg.Metrics != nil {
		p.cfg.Metrics.Unregister(Collector(p))
	}
	return p.lock.Close()
}
