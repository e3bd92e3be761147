//go:build linux

package plugin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/kurma/podnet"
	"github.com/kuryr/kuryr/kurma/process"
)

// spec is a generation of a network as it was configured.
type spec struct {
	Entry string `json:"entry"` // of pod_networks, as it was written
}

// record is the container that runs for a generation, as the next daemon adopts it.
type record struct {
	process.ID
	Image Image `json:"image"`
}

// target starts and removes plugins' containers for the store.
type target struct{ *Pod }

// generation is what this process has of a row: how it is, and its container while that runs.
type generation struct {
	pod     *Pod
	ref     Ref
	network podnet.Network
	bundle  bundle
	ctx     context.Context // ends with the daemon, or before the row is deleted
	end     context.CancelFunc

	mu       sync.Mutex
	current  bool // of the configuration
	remove   bool // the container ends with ctx, otherwise it stays for the next daemon
	state    State
	changed  chan struct{} // closed when the state changes
	reason   string
	since    time.Time // of the state
	image    Image
	inside   *door // while running
	pid      int
	failures int            // since it has last run for a while
	restarts int            // all failures
	watched  chan struct{}  // closed when the last container's watch has ended; nil before the first
	guests   sync.WaitGroup // calls in the container
}

func (g *generation) environ() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.image.Env
}

// enter returns the way into the container while it runs. While it is starting, the caller waits,
// as long as a call may take. leave is called when the call has ended.
func (g *generation) enter(ctx context.Context) (d door, leave func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, g.pod.cfg.CallLimit)
	defer cancel()
	for {
		g.mu.Lock()
		state, changed, reason := g.state, g.changed, g.reason
		if state == Running {
			g.guests.Add(1)
			d := *g.inside
			g.mu.Unlock()
			return d, g.guests.Done, nil
		}
		g.mu.Unlock()
		if state != Starting {
			return door{}, nil, &NotRunningError{Network: g.ref.Name, State: state, Reason: reason}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return door{}, nil, &NotRunningError{Network: g.ref.Name, State: state, Reason: context.Cause(ctx).Error()}
		}
	}
}

func (g *generation) set(state State, change func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.state, g.since, g.reason = state, time.Now(), ""
	if change != nil {
		change()
	}
	close(g.changed)
	g.changed = make(chan struct{})
}

// steady is how long a plugin runs until earlier failures no longer count for its backoff.
const steady = time.Minute

// Ensure implements reconcile.Target. It adopts the container that an earlier daemon has left, or
// starts one. The store repeats it after a failure, and when the container has ended.
func (t target) Ensure(ctx context.Context, o reconcile.Object, _ spec, last record) (record, error) {
	g := t.generation(refOfKey(o.Key))
	if g == nil || g.isRunning() {
		return last, nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(g.ctx, cancel)()
	c, made, err := g.adopt(last)
	if c == nil && err == nil {
		c, made, err = g.begin(ctx)
	}
	if err != nil {
		if errors.Is(ctx.Err(), context.Canceled) {
			g.set(Stopped, nil)
		} else {
			g.fail(err)
		}
		g.tryClear()
		return record{}, err
	}
	t.log.Info("plugin running", "network", g.ref.Name, "generation", g.ref.Generation, "pid", made.PID)
	watched := make(chan struct{})
	g.set(Running, func() {
		g.image, g.inside, g.pid, g.watched = made.Image, &c.inside, made.PID, watched
	})
	go func() {
		defer close(watched)
		g.watch(c)
	}()
	if t.cfg.Ran != nil {
		t.cfg.Ran(g.ref)
	}
	return made, nil
}

// Delete implements reconcile.Target.
func (t target) Delete(ctx context.Context, o reconcile.Object, _ spec, _ record) error {
	ref := refOfKey(o.Key)
	if g := t.generation(ref); g != nil {
		g.stop(true)
	}
	return t.discard(ctx, t.bundle(ref))
}

func (g *generation) isRunning() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.state == Running
}

// fail counts a failure, after which the store waits before it calls Ensure again.
func (g *generation) fail(err error) (failures int) {
	g.set(Failed, func() {
		g.reason = err.Error()
		g.failures++
		g.restarts++
		failures = g.failures
	})
	return failures
}

// tryClear removes what is left of a container that has failed. The next start does what fails.
func (g *generation) tryClear() {
	if err := g.pod.clear(context.Background(), g.bundle); err != nil {
		g.pod.log.Warn("container not removed", "network", g.ref.Name, "err", err)
	}
}

// container is a running one.
type container struct {
	process *process.Process
	inside  door
	output  *output
}

func (c *container) close() {
	c.inside.close()
	c.process.Close()
	c.output.close()
}

// adopt takes over the container that an earlier daemon of this boot has left running; it is nil if
// there is none. The remains of others are removed.
func (g *generation) adopt(last record) (*container, record, error) {
	if last.PID != 0 {
		if p, err := last.Open(); err == nil {
			c, err := g.attend(p)
			return c, last, err
		}
	}
	return nil, record{}, g.pod.clear(context.Background(), g.bundle)
}

// attend opens what is needed of a running container.
func (g *generation) attend(p *process.Process) (*container, error) {
	d, err := openDoor(p.PID)
	if err != nil {
		p.Close()
		return nil, err
	}
	out, err := openOutput(g.bundle.fifo(), g.bundle.output())
	if err != nil {
		d.close()
		p.Close()
		return nil, err
	}
	return &container{process: p, inside: d, output: out}, nil
}

// begin fetches the image and starts a container of it.
func (g *generation) begin(ctx context.Context) (*container, record, error) {
	g.set(Fetching, nil)
	img, err := g.pod.cfg.Images.Get(ctx, g.network.Image)
	if err != nil {
		return nil, record{}, fmt.Errorf("image %s: %w", g.network.Image, err)
	}
	g.set(Starting, func() { g.image = img })
	c, err := g.start(ctx, img)
	if err != nil {
		return nil, record{}, err
	}
	// Until it is set up and its record is stored, the next daemon starts another one.
	if err := g.setup(ctx, c, img); err != nil {
		how, dead := dies(c.process)
		c.close()
		if dead {
			err = g.ended(how)
		}
		return nil, record{}, err
	}
	return c, record{c.process.ID, img}, nil
}

func (g *generation) start(ctx context.Context, img Image) (*container, error) {
	if len(img.Exec) == 0 {
		return nil, fmt.Errorf("image %s: it has no main executable", g.network.Image)
	}
	b := g.bundle
	b.lower = img.Rootfs
	mounts, err := g.pod.mountsFor(g.ref.Name, img)
	if err != nil {
		return nil, err
	}
	if err := b.write(img, mounts); err != nil {
		return nil, err
	}
	failpoint.Here("kurma.plugin.start.bundled")
	in, err := sealed(g.network.Raw)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	out, err := openOutput(b.fifo(), b.output())
	if err != nil {
		return nil, err
	}
	fail := func(err error) (*container, error) {
		out.close()
		return nil, err
	}
	// Another open file than the one that is read from here: that one does not block.
	end, err := os.OpenFile(b.fifo(), os.O_RDWR, 0)
	if err != nil {
		return fail(fmt.Errorf("output: %w", err))
	}
	defer end.Close()
	_ = end.Fd() // it blocks, as programs expect
	processes, err := g.pod.cgroups.make(g.group())
	if err != nil {
		return fail(err)
	}
	defer processes.file.Close()
	failpoint.Here("kurma.plugin.start.grouped")
	if err := g.pod.runtime.run(ctx, b, processes, stdio{in, end}); err != nil {
		return fail(err)
	}
	failpoint.Here("kurma.plugin.start.ran")
	p, how, err := b.process()
	if err != nil {
		return fail(err)
	}
	var d door
	if p != nil {
		d, err = openDoor(p.PID)
		if errors.Is(err, os.ErrNotExist) { // it has ended since
			how, err = ends(p)
			p.Close()
			p = nil
		}
	}
	if err == nil && p == nil {
		out.close() // what it said before it ended
		return nil, g.ended(how)
	}
	if err != nil {
		if p != nil {
			p.Close()
		}
		return fail(err)
	}
	return &container{process: p, inside: d, output: out}, nil
}

// ended is the error of a main executable that ended before it was set up.
func (g *generation) ended(how string) error {
	said, _ := tail(g.bundle.output(), 512)
	return fmt.Errorf("its main executable %s; it had said: %s", how, words(said))
}

// process is the one that the runtime has written down; it is nil if it has ended already.
func (b bundle) process() (p *process.Process, how string, err error) {
	text, err := os.ReadFile(b.pidFile())
	if err != nil {
		return nil, "", fmt.Errorf("container: %w", err)
	}
	var pid int
	if _, err := fmt.Sscan(string(text), &pid); err != nil {
		return nil, "", fmt.Errorf("container: the runtime wrote %q for a process", words(text))
	}
	id, err := process.Of(pid)
	if err == nil {
		p, err = id.Open()
	}
	if errors.Is(err, os.ErrNotExist) {
		return nil, reap(pid), nil
	}
	return p, "", err
}

// setup runs the executable of older images that have it, unless it is their main one.
func (g *generation) setup(ctx context.Context, c *container, img Image) error {
	if path.Clean(img.Exec[0]) == execSetup {
		return nil
	}
	root, err := os.OpenRoot(img.Rootfs)
	if err != nil {
		return fmt.Errorf("image: %w", err)
	}
	defer root.Close()
	// It may be a link, which leads elsewhere here than in the container.
	if _, err := root.Lstat(strings.TrimPrefix(execSetup, "/")); err != nil {
		return nil
	}
	_, err = g.execute(ctx, c.inside, "setup", execSetup)
	return err
}

// group is the name of the cgroup that the container is started in.
func (g *generation) group() string { return "main-" + g.bundle.id }

// watch waits for the end of the container's main executable, and has the store start it again; or
// for the end of the generation's context.
func (g *generation) watch(c *container) {
	began := time.Now()
	stop := context.AfterFunc(g.ctx, func() { c.process.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	how, err := ends(c.process)
	ending := g.ctx.Err() != nil
	state, reason := Failed, "its main executable "+how
	if ending {
		g.mu.Lock()
		remove := g.remove
		g.mu.Unlock()
		state, reason = Stopped, ""
		if remove {
			g.set(Stopped, func() { g.inside = nil })
			g.quit(c)
		}
	}
	// No new call enters. Those in progress end with the container, or on their own if it stays.
	g.set(state, func() { g.inside, g.pid, g.reason = nil, 0, reason })
	g.guests.Wait()
	c.close()
	if ending {
		return
	}
	if err == nil {
		err = errors.New(reason)
		if text, _ := tail(g.bundle.output(), 512); len(text) > 0 {
			err = fmt.Errorf("%w; it had said: %s", err, words(text))
		}
	}
	if time.Since(began) > steady {
		g.mu.Lock()
		g.failures = 0
		g.mu.Unlock()
	}
	g.pod.log.Error("plugin failed", "network", g.ref.Name, "generation", g.ref.Generation, "err", err)
	failures := g.fail(err)
	g.tryClear()
	_ = g.pod.plugins.Repeat(g.ctx, keyOf(g.ref), failures, err) // unless the context has ended
}

// stop ends the watch of the container, which stays if remove is false. No Ensure is in progress.
func (g *generation) stop(remove bool) {
	g.mu.Lock()
	g.remove = g.remove || remove
	watched := g.watched
	g.mu.Unlock()
	g.end()
	if watched != nil {
		<-watched
	}
}

// quit asks the main executable to end, and kills it if it does not.
func (g *generation) quit(c *container) {
	g.guests.Wait() // a del may be in progress
	c.process.SetDeadline(time.Time{})
	_ = c.process.Signal(unix.SIGTERM)
	timer := time.AfterFunc(g.pod.cfg.StopLimit, func() { _ = c.process.Signal(unix.SIGKILL) })
	defer timer.Stop()
	_ = c.process.Wait()
	failpoint.Here("kurma.plugin.stop.ended")
}

// clear removes the container, whatever of it there is. It is idempotent.
func (p *Pod) clear(ctx context.Context, b bundle) error {
	if _, err := os.Stat(b.dir); errors.Is(err, os.ErrNotExist) {
		return nil // it is the last to go
	}
	// A runtime that a killed daemon has left at work comes first.
	processes := p.cgroups.find("main-" + b.id)
	if err := processes.kill(); err != nil {
		return err
	}
	if err := p.runtime.remove(ctx, b); err != nil {
		return err
	}
	failpoint.Here("kurma.plugin.clear.deleted")
	if _, err := os.Stat(processes.path); err == nil {
		if err := processes.end(ctx); err != nil {
			return err
		}
	}
	failpoint.Here("kurma.plugin.clear.ungrouped")
	_ = os.Remove(b.pidFile())
	for _, name := range []string{"upper", "work", "rootfs", "config.json", "runtime.log"} {
		if err := os.RemoveAll(filepath.Join(b.dir, name)); err != nil {
			return err
		}
	}
	return nil
}

// discard removes what clear keeps too: what the plugin has written.
func (p *Pod) discard(ctx context.Context, b bundle) error {
	if err := p.clear(ctx, b); err != nil {
		return err
	}
	failpoint.Here("kurma.plugin.discard.cleared")
	return os.RemoveAll(b.dir)
}
