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
	"io"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/kuryr/kuryr/internal/wholefile"
	"github.com/kuryr/kuryr/kurma/podnet"
	"golang.org/x/sys/unix"
)

// Pod is the networking pod: a container for each network of the configuration, and for each older generation of one that pods are attached to yet. Its
// methods may be called in parallel.
type Pod struct {
	cfg     Config
	log     *slog.Logger
	runtime *ociRuntime
	cgroups *cgroups
	boot    string
	lock    *os.File

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

// New finds the runtime and makes the folders. Nothing is started: Apply does that. It makes this process the reaper of its descendants (PR_SET_CHILD_SUBREAPER), so
// that it learns how plugins end, and hides its memory from processes that enter containers (PR_SET_DUMPABLE).
func New(c Config) (*Pod, error) {
	c.CallLimit = cmp.Or(c.CallLimit, callLimit)
	c.StopLimit = cmp.Or(c.StopLimit, 2*time.Second)
	c.FirstPause = cmp.Or(c.FirstPause, firstPause)
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
	if err := p.open(); err != nil {
		_ = lock.Close()
		return nil, err
	}
	return p, nil
}

// lockLimit is how long a daemon that has been killed may be survived by what it was just starting, which has its lock until it is started.
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
		go func() { // nobody wants it any more when it comes
			<-locked
			_ = file.Close()
		}()
		return nil, fmt.Errorf("%s: %w", filepath.Dir(path), ErrInUse)
	}
}

func (p *Pod) open() error {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return fmt.Errorf("networking pod: %w", err)
	}
	p.boot = strings.TrimSpace(string(boot))
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
	if p.cfg.Metrics != nil {
		if err := p.cfg.Metrics.Register(Collector(p)); err != nil {
			return fmt.Errorf("metrics: %w", err)
		}
	}
	return nil
}

func (p *Pod) containers() string { return filepath.Join(p.cfg.Run, "containers") }

// networkDir holds what of a network survives a reboot: the entries of its generations, and its private volumes.
func (p *Pod) networkDir(name string) string { return filepath.Join(p.cfg.State, name) }

func (p *Pod) entryFile(r Ref) string {
	return filepath.Join(p.networkDir(r.Name), "generations", r.Generation+".json")
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

// Apply makes the networks those of the configuration. A network whose entry has not changed is not touched: its container, also one of an earlier
// daemon's, runs on. What is new is started behind the caller's back: Status tells how far it is. Of what is not in the configuration any more, the generations that
// inUse tells pods to be attached to stay until Release, and the rest goes. What a killed daemon has left half made is removed or finished.
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
	noted, err := p.noted()
	if err != nil {
		return err
	}
	for _, ref := range order {
		if err := p.settle(ctx, ref); err != nil {
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
	// Those of earlier daemons, or of this one's earlier configurations.
	for ref, n := range noted {
		if _, has := wanted[ref]; has {
			continue
		}
		if inUse(ref) {
			if err := p.settle(ctx, ref); err != nil {
				return err
			}
			if err := p.begin(ref, n); err != nil {
				return err
			}
			continue
		}
		p.retire(ref)
	}
	return p.sweep(ctx)
}

// noted are the generations whose entries are on the disk. One that this program does not understand stops no other network, and is left as it is.
func (p *Pod) noted() (map[Ref]podnet.Network, error) {
	found, err := filepath.Glob(filepath.Join(p.cfg.State, "*", "generations", "*.json"))
	if err != nil {
		return nil, fmt.Errorf("networking pod: %w", err)
	}
	all := map[Ref]podnet.Network{}
	for _, path := range found {
		raw, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("networking pod: %w", err)
		}
		networks, err := podnet.Parse(slices.Concat([]byte(`{"pod_networks":[`), raw, []byte("]}")))
		if err != nil || len(networks) != 1 || p.entryFile(refOf(networks[0])) != path {
			p.log.Error("the entry of an earlier configuration is not what Kuryr wrote; nothing of its network is removed", "file", path, "error", cmp.Or(err, errors.New("it is of another network")))
			continue
		}
		all[refOf(networks[0])] = networks[0]
	}
	return all, nil
}

// settle waits for a generation that is just going, which is wanted again.
func (p *Pod) settle(ctx context.Context, ref Ref) error {
	p.mu.Lock()
	going := p.gone[ref]
	p.mu.Unlock()
	if going == nil {
		return nil
	}
	select {
	case <-going:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("network %s is ending: %w", ref.Name, context.Cause(ctx))
	}
}

// begin has a generation run, unless it does.
func (p *Pod) begin(ref Ref, n podnet.Network) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return errors.New("networking pod: it is ending")
	}
	if p.generations[ref] != nil {
		return nil
	}
	path := p.entryFile(ref)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return fmt.Errorf("network %s: %w", ref.Name, err)
		}
		err := wholefile.Write(path, 0o600, func(w io.Writer) error {
			_, err := w.Write(n.Raw)
			return err
		})
		if err != nil {
			return fmt.Errorf("network %s: %w", ref.Name, err)
		}
	}
	failpoint.Here("kurma.plugin.apply.noted")
	ctx, end := context.WithCancel(context.Background())
	g := &generation{pod: p, ref: ref, network: n, bundle: p.bundle(ref), end: end, done: make(chan struct{}), changed: make(chan struct{}), state: Starting}
	if left, err := g.recorded(); err == nil {
		g.image = left.Image // of a container that is to be adopted: Status tells of it at once, lest the image be taken for one that nobody needs
	}
	p.generations[ref] = g
	go g.run(ctx)
	return nil
}

// retire ends a generation and removes all of it, behind the caller's back, unless it is of the configuration or just becoming that.
func (p *Pod) retire(ref Ref) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, wanted := p.wanted[ref]; wanted || slices.Contains(p.current, ref) || p.closed || p.gone[ref] != nil {
		return
	}
	g := p.generations[ref]
	gone := make(chan struct{})
	p.gone[ref] = gone
	p.work.Go(func() {
		defer func() {
			p.mu.Lock()
			delete(p.gone, ref)
			delete(p.generations, ref)
			p.mu.Unlock()
			close(gone)
			if p.cfg.Gone != nil {
				p.cfg.Gone(ref)
			}
		}()
		if g != nil {
			g.stop(true)
		}
		if err := p.erase(ref); err != nil {
			p.log.Error("something of a network that is not configured any more is left; the next reload or start removes it", "network", ref.Name, "error", err)
			return
		}
		p.log.Info("a network's plugin is gone", "network", ref.Name, "generation", ref.Generation)
	})
}

// stop ends what runs for the generation; the container stays where remove is false.
func (g *generation) stop(remove bool) {
	g.mu.Lock()
	g.remove = g.remove || remove
	g.mu.Unlock()
	g.end()
	<-g.done
}

// erase removes what is left of a generation that has ended, and, with the last, of its network.
func (p *Pod) erase(ref Ref) error {
	if err := p.discard(context.Background(), p.bundle(ref)); err != nil {
		return err
	}
	if err := os.Remove(p.entryFile(ref)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	failpoint.Here("kurma.plugin.erase.forgotten")
	p.mu.Lock() // nobody begins one of the same name now
	defer p.mu.Unlock()
	if left, err := os.ReadDir(filepath.Dir(p.entryFile(ref))); err != nil && !errors.Is(err, fs.ErrNotExist) || len(left) > 0 {
		return err
	}
	return os.RemoveAll(p.networkDir(ref.Name))
}

// sweep removes what belongs to no generation: containers and volumes whose entry a killed daemon had removed already. What cannot be removed stops no network.
func (p *Pod) sweep(ctx context.Context) error {
	known := map[string]bool{}
	names := map[string]bool{}
	p.mu.Lock()
	for ref := range p.generations {
		known[p.bundle(ref).id], names[ref.Name] = true, true
	}
	for ref := range p.gone {
		known[p.bundle(ref).id], names[ref.Name] = true, true
	}
	p.mu.Unlock()
	containers, err := os.ReadDir(p.containers())
	if err != nil {
		return fmt.Errorf("networking pod: %w", err)
	}
	left := func(what string, err error) {
		if err != nil {
			p.log.Error("something of a network that is not configured any more is left; the next reload or start removes it", "what", what, "error", err)
		}
	}
	for _, e := range containers {
		if !known[e.Name()] {
			left(e.Name(), p.discard(ctx, bundle{id: e.Name(), dir: filepath.Join(p.containers(), e.Name())}))
		}
	}
	networks, err := os.ReadDir(p.cfg.State)
	if err != nil {
		return fmt.Errorf("networking pod: %w", err)
	}
	for _, e := range networks {
		entries, err := filepath.Glob(p.entryFile(Ref{Name: e.Name(), Generation: "*"}))
		if !names[e.Name()] && e.IsDir() && err == nil && len(entries) == 0 { // with entries it is of a network that noted does not understand
			left(e.Name(), os.RemoveAll(p.networkDir(e.Name())))
		}
	}
	return nil
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

// Release tells that no pod is attached to a generation any more: one that is not of the configuration ends. It is idempotent.
func (p *Pod) Release(on Ref) {
	p.mu.Lock()
	known := p.generations[on] != nil
	p.mu.Unlock()
	if known {
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
	return Status{
		Ref: g.ref, Image: g.network.Image, ImageID: g.image.ID, Default: g.network.Default, Current: g.current, State: g.state, Reason: g.reason, Retry: g.retry,
		PID: g.pid, Since: g.since, Restarts: g.restarts, Output: strings.ToValidUTF8(string(said), "?"),
	}
}

// Close ends what this process does for the containers, which run on and are taken over by the next New and Apply. Calls in progress end first.
func (p *Pod) Close() error { return p.finish(false) }

// Down ends and removes all containers. What is to be attached when the networks are configured again, is as if they had been restarted.
func (p *Pod) Down() error { return p.finish(true) }

func (p *Pod) finish(remove bool) error {
	p.applying.Lock()
	defer p.applying.Unlock()
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil
	}
	p.closed = true
	all := p.generations
	p.mu.Unlock()
	p.work.Wait() // what is retired
	var ending sync.WaitGroup
	p.mu.Lock()
	for _, g := range all {
		ending.Go(func() { g.stop(remove) })
	}
	p.mu.Unlock()
	ending.Wait()
	var failed []error
	if remove {
		for ref := range all {
			failed = append(failed, p.discard(context.Background(), p.bundle(ref)))
		}
	}
	p.cgroups.close() // stays while containers are in it
	if p.cfg.Metrics != nil {
		p.cfg.Metrics.Unregister(Collector(p))
	}
	return errors.Join(append(failed, p.lock.Close())...)
}
