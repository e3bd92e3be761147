//go:build linux

package plugin

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/kuryr/kuryr/internal/wholefile"
	"github.com/kuryr/kuryr/kurma/podnet"
	"golang.org/x/sys/unix"
)

// generation is one network as it was configured at one time, and its container. Its goroutine (run) alone starts and stops the container.
type generation struct {
	pod     *Pod
	ref     Ref
	network podnet.Network
	bundle  bundle

	end  context.CancelFunc // of run; what is to be done with the container then is in remove
	done chan struct{}      // run has ended

	mu       sync.Mutex
	current  bool // of the configuration
	remove   bool // the container is to go with run, else it stays for the next daemon
	state    State
	changed  chan struct{} // closed when the state changes
	reason   string
	retry    time.Time
	since    time.Time // of the state
	image    Image
	inside   *door // while running
	pid      int
	restarts int
	guests   sync.WaitGroup // calls in the container
}

// recorded is the container as the next daemon adopts it.
type recorded struct {
	PID   int    `json:"pid"`
	Start string `json:"start"`
	Boot  string `json:"boot"`
	Image Image  `json:"image"`
}

func (g *generation) environ() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.image.Env
}

// enter gives the way into the container while it runs. While it is starting, the caller waits. leave is called when the call has ended.
func (g *generation) enter(ctx context.Context) (d door, leave func(), err error) {
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
	g.state, g.since, g.reason, g.retry = state, time.Now(), "", time.Time{}
	if change != nil {
		change()
	}
	close(g.changed)
	g.changed = make(chan struct{})
}

// The pause before a plugin is started again, which doubles with each start that fails; one that has run for steady is taken for sound again.
const (
	firstPause = time.Second
	lastPause  = time.Minute
	steady     = time.Minute
)

// run keeps the container running until ctx ends, and then stops it if it is to go.
func (g *generation) run(ctx context.Context) {
	defer close(g.done)
	log := g.pod.log.With("network", g.ref.Name, "generation", g.ref.Generation)
	pause := g.pod.cfg.FirstPause
	for {
		main, err := g.adopt()
		if main == nil {
			main, err = g.begin(ctx)
		}
		if err == nil {
			began := time.Now()
			log.Info("the plugin is running", "pid", main.process.pid)
			if g.pod.cfg.Ran != nil {
				g.pod.cfg.Ran(g.ref)
			}
			var how string
			how, err = g.watch(ctx, main)
			if err == nil {
				err = errors.New("its main executable " + how)
				if text, _ := tail(g.bundle.output(), 512); len(text) > 0 {
					err = fmt.Errorf("%w; it had said: %s", err, words(text))
				}
			}
			if time.Since(began) > steady {
				pause = g.pod.cfg.FirstPause
			}
		}
		if ctx.Err() != nil {
			if main == nil { // it was just being started
				_ = g.clear(context.WithoutCancel(ctx))
			}
			break
		}
		wait := jitter(pause)
		log.Error("the network has failed; its plugin is started again", "error", err, "in", wait.Round(time.Millisecond))
		g.set(Failed, func() { g.reason, g.retry = err.Error(), time.Now().Add(wait); g.restarts++ })
		if err := g.clear(context.WithoutCancel(ctx)); err != nil {
			log.Warn("something of a plugin's container is left", "error", err)
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
		pause = min(2*pause, lastPause)
		if ctx.Err() != nil {
			break
		}
	}
	g.mu.Lock()
	remove := g.remove
	g.mu.Unlock()
	if remove {
		if err := g.clear(context.WithoutCancel(ctx)); err != nil {
			log.Error("something of a plugin's container is left; the next start of kuryr kurma removes it", "error", err)
		}
	}
	g.set(Stopped, nil)
}

// jitter is d, less up to a half of it: what failed together is not tried again together.
func jitter(d time.Duration) time.Duration {
	var b [8]byte
	_, _ = rand.Read(b[:])
	return d - time.Duration(binary.LittleEndian.Uint64(b[:])%uint64(d/2+1))
}

// container is a running one.
type container struct {
	process *process
	inside  door
	output  *output
}

func (c *container) close() {
	c.inside.close()
	c.process.close()
	c.output.close()
}

// adopt takes over the container that an earlier daemon has left running; it is nil if there is none. What is not whole is removed.
func (g *generation) adopt() (*container, error) {
	if r, err := g.recorded(); err == nil {
		if p, err := openProcess(r.PID, r.Start); err == nil {
			c, err := g.attend(p)
			if err == nil {
				g.set(Running, func() { g.image, g.inside, g.pid = r.Image, &c.inside, r.PID })
			}
			return c, err
		}
	}
	return nil, g.clear(context.Background())
}

// attend opens what is needed of a running container.
func (g *generation) attend(p *process) (*container, error) {
	d, err := openDoor(p.pid)
	if err != nil {
		p.close()
		return nil, err
	}
	out, err := openOutput(g.bundle.fifo(), g.bundle.output())
	if err != nil {
		d.close()
		p.close()
		return nil, err
	}
	return &container{process: p, inside: d, output: out}, nil
}

// begin fetches the image and starts a container of it.
func (g *generation) begin(ctx context.Context) (*container, error) {
	g.set(Fetching, nil)
	img, err := g.pod.cfg.Images.Get(ctx, g.network.Image)
	if err != nil {
		return nil, fmt.Errorf("image %s: %w", g.network.Image, err)
	}
	g.set(Starting, func() { g.image = img })
	c, err := g.start(ctx, img)
	if err != nil {
		return nil, err
	}
	if err := g.setup(ctx, c, img); err != nil {
		how, dead := c.process.dies()
		c.close()
		if dead {
			return nil, g.ended(how)
		}
		return nil, err
	}
	// From here on it is one to adopt: what was killed before it was set up is started anew.
	if err := g.record(c.process, img); err != nil {
		c.close()
		return nil, err
	}
	failpoint.Here("kurma.plugin.start.recorded")
	g.set(Running, func() { g.inside, g.pid = &c.inside, c.process.pid })
	return c, nil
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
		d, err = openDoor(p.pid)
		if errors.Is(err, os.ErrNotExist) { // it has ended meanwhile
			how, err = p.wait()
			p.close()
			p = nil
		}
	}
	if err == nil && p == nil {
		out.close() // what it said before it ended
		return nil, g.ended(how)
	}
	if err != nil {
		if p != nil {
			p.close()
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

// record writes down what recorded reads.
func (g *generation) record(p *process, img Image) error {
	return wholefile.Write(g.bundle.stateFile(), 0o600, func(w io.Writer) error {
		return json.NewEncoder(w).Encode(recorded{PID: p.pid, Start: p.start, Boot: g.pod.boot, Image: img})
	})
}

// recorded is what an earlier daemon, of this boot, has left running.
func (g *generation) recorded() (r recorded, err error) {
	text, err := os.ReadFile(g.bundle.stateFile())
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	if err == nil && r.Boot != g.pod.boot {
		err = os.ErrNotExist
	}
	return r, err
}

// process is the one that the runtime has written down; it is nil if it has ended already.
func (b bundle) process() (p *process, how string, err error) {
	text, err := os.ReadFile(b.pidFile())
	if err != nil {
		return nil, "", fmt.Errorf("container: %w", err)
	}
	var pid int
	if _, err := fmt.Sscan(string(text), &pid); err != nil {
		return nil, "", fmt.Errorf("container: the runtime wrote %q for a process", words(text))
	}
	if p, err = openProcess(pid, ""); errors.Is(err, os.ErrNotExist) {
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

// watch returns when the container's main executable has ended, and says how, or when ctx does.
func (g *generation) watch(ctx context.Context, c *container) (how string, err error) {
	stop := context.AfterFunc(ctx, func() { _ = c.process.fd.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	how, err = c.process.wait()
	if ctx.Err() != nil {
		g.mu.Lock()
		remove := g.remove
		g.mu.Unlock()
		if remove {
			g.set(Stopped, func() { g.inside = nil })
			g.quit(c)
		}
	}
	// No new call enters; those that are in end with the container's processes, or on their own where the container stays.
	state := Failed
	if ctx.Err() != nil {
		state = Stopped
	}
	g.set(state, func() { g.inside, g.pid, g.reason = nil, 0, "its main executable "+how })
	g.guests.Wait()
	c.close()
	return how, err
}

// quit asks the main executable to end, and kills it if it does not.
func (g *generation) quit(c *container) {
	g.guests.Wait() // a del may be under way
	_ = c.process.fd.SetReadDeadline(time.Time{})
	_ = c.process.signal(unix.SIGTERM)
	timer := time.AfterFunc(g.pod.cfg.StopLimit, func() { _ = c.process.signal(unix.SIGKILL) })
	defer timer.Stop()
	_, _ = c.process.wait()
	failpoint.Here("kurma.plugin.stop.ended")
}

// clear removes the container, whatever of it there is. It is idempotent.
func (g *generation) clear(ctx context.Context) error { return g.pod.clear(ctx, g.bundle) }

func (p *Pod) clear(ctx context.Context, b bundle) error {
	if _, err := os.Stat(b.dir); errors.Is(err, os.ErrNotExist) {
		return nil // it is the last to go
	}
	_ = os.Remove(b.stateFile()) // nobody adopts it any more
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
