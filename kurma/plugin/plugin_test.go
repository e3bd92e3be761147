//go:build linux

package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kuryr/kuryr/internal/netns"
	"github.com/kuryr/kuryr/internal/nstest"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/kurma/podnet"
)

func TestMain(m *testing.M) {
	if child := os.Getenv("KURYR_KURMA_CHILD"); child != "" {
		os.Exit(killed(child)) // of kill_test.go
	}
	os.Exit(nstest.Main(m))
}

// child is what a process that is to be killed is told.
type child struct {
	Config Config // without what cannot be written down
	Image  Image
	Before []string // entries that it begins with, all of which run
	After  []string // and that it changes to
	Step   string   // at which it dies: "ran", "removed", or "" at the end
}

// killed does what a child is told, and ends without taking anything away.
func killed(text string) int {
	must := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	var c child
	must(json.Unmarshal([]byte(text), &c))
	c.Config.Images = &host{image: c.Image}
	ran := make(chan Ref, 10)
	die := func(step string) {
		if step == c.Step {
			_ = unix.Kill(os.Getpid(), unix.SIGKILL)
			select {}
		}
	}
	c.Config.Ran = func(r Ref) { ran <- r; die("ran") }
	c.Config.Gone = func(Ref) { die("removed") }
	p, _, err := open(c.Config)
	must(err)
	for _, entries := range [][]string{c.Before, c.After} {
		all, err := podNetworks(entries...)
		must(err)
		must(p.Apply(context.Background(), all, nobody))
		for range entries { // none of them is in both
			<-ran
		}
	}
	p.work.Wait()
	die("")
	return 0
}

// open starts a networking pod and the store that it works with. stop ends both, after end.
func open(c Config) (p *Pod, stop func(end func() error) error, err error) {
	c.Store, err = reconcile.Open(reconcile.Config{
		Path: c.State + ".db", MinBackoff: 100 * time.Millisecond, Logger: c.Log,
	})
	if err != nil {
		return nil, nil, err
	}
	p, err = New(c)
	if err == nil {
		err = c.Store.Start(context.Background())
	}
	if err != nil {
		return nil, nil, errors.Join(err, c.Store.Close())
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { c.Store.Run(ctx) })
	return p, func(end func() error) error {
		cancel()
		running.Wait()
		return errors.Join(end(), c.Store.Close())
	}, nil
}

// program builds the plugin of the tests, once.
var program = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "kuryr-plugin")
	if err != nil {
		return "", err
	}
	build := exec.Command("go", "build", "-o", filepath.Join(dir, "plugin"), "./testdata/plugin")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return filepath.Join(dir, "plugin"), nil
})

// down removes all containers and closes the networking pod.
func down(p *Pod) error {
	var errs []error
	for r := range p.plugins.Rows() {
		errs = append(errs, p.plugins.Remove(context.Background(), r.Key))
	}
	return errors.Join(append(errs, p.Close())...)
}

// host is a machine with a runtime and one image.
type host struct {
	cfg   Config
	image Image
	pins  *netns.Store
}

func (h *host) Get(context.Context, string) (Image, error) { return h.image, nil }

// runtimes runs the test with each runtime that there is.
func runtimes(t *testing.T, test func(t *testing.T, h *host)) {
	for _, name := range []string{"crun", "runc"} {
		t.Run(name, func(t *testing.T) { test(t, newHost(t, name)) })
	}
}

func newHost(t *testing.T, runtime string) *host {
	t.Helper()
	nstest.Require(t)
	nstest.RootsFiles(t)
	if _, err := findRuntime(runtime, ""); err != nil {
		t.Skip("needs an OCI runtime: ", err)
	}
	h := &host{}
	dir := t.TempDir()
	rootfs := filepath.Join(dir, "image")
	for _, d := range []string{"opt/network", "proc", "dev", "sys", "etc"} {
		if err := os.MkdirAll(filepath.Join(rootfs, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	built, err := program()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Link(built, filepath.Join(rootfs, "plugin")); err != nil {
		t.Fatal(err)
	}
	for _, verb := range []string{"add", "del"} {
		if err := os.Symlink("../../plugin", filepath.Join(rootfs, "opt/network", verb)); err != nil {
			t.Fatal(err)
		}
	}
	h.image = Image{ID: "sha512-1", Rootfs: rootfs, Exec: []string{"/plugin"}, Env: []string{"COLOUR=blue"}, Mounts: []string{"/volume"}}
	run, err := os.MkdirTemp("/run", "kurma")
	if err != nil {
		t.Fatal(err)
	}
	if h.pins, err = netns.Open(filepath.Join(run, "netns")); err != nil {
		t.Fatal(err)
	}
	h.cfg = Config{
		Runtime: runtime, State: filepath.Join(dir, "state"), Run: filepath.Join(run, "pod"), NetNS: filepath.Join(run, "netns"), Images: h,
		Log: slog.New(slog.NewTextHandler(t.Output(), nil)), StopLimit: 2 * time.Second,
	}
	return h
}

// withSetup makes the image one of the older ones, by a link that leads somewhere only in the container.
func (h *host) withSetup(t *testing.T) {
	t.Helper()
	if err := os.Symlink("/plugin", filepath.Join(h.image.Rootfs, execSetup)); err != nil {
		t.Fatal(err)
	}
}

// open starts the networking pod, which ends with the test and must leave nothing.
func (h *host) open(t *testing.T) *Pod {
	t.Helper()
	p, stop, err := open(h.cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := stop(func() error { return down(p) }); err != nil {
			t.Error(err)
		}
	})
	return p
}

// nothingLeft looks for what a networking pod that is down may have left.
func (h *host) nothingLeft(t *testing.T, p *Pod) {
	t.Helper()
	for _, dir := range []string{p.containers(), p.runtime.root} {
		if entries, _ := os.ReadDir(dir); len(entries) > 0 {
			t.Errorf("%s has %v", dir, entries)
		}
	}
	if entries, _ := filepath.Glob(filepath.Join(p.cgroups.dir, "*-*")); len(entries) > 0 {
		t.Errorf("cgroups are left: %v", entries)
	}
	if mounts, _ := os.ReadFile("/proc/self/mountinfo"); strings.Contains(string(mounts), p.cfg.Run) {
		t.Errorf("mounts are left: %s", mounts)
	}
}

func networks(t *testing.T, entries ...string) []podnet.Network {
	t.Helper()
	all, err := podNetworks(entries...)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func podNetworks(entries ...string) ([]podnet.Network, error) {
	return podnet.Parse([]byte(`{"pod_networks":[` + strings.Join(entries, ",") + `]}`))
}

func entry(name, do, text string) string {
	out, _ := json.Marshal(map[string]string{"name": name, "aci": "file:///image", "do": do, "text": text})
	return string(out)
}

func nobody(Ref) bool { return false }

func (h *host) apply(t *testing.T, p *Pod, inUse func(Ref) bool, entries ...string) {
	t.Helper()
	if err := p.Apply(t.Context(), networks(t, entries...), inUse); err != nil {
		t.Fatal(err)
	}
}

// until waits for a network to be in a state.
func until(t *testing.T, p *Pod, name string, is func(Status) bool) Status {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	poll := time.NewTicker(5 * time.Millisecond) // the time of a retry has no event
	defer poll.Stop()
	for {
		p.mu.Lock()
		var g *generation
		for ref, other := range p.generations {
			if ref.Name == name && (g == nil || other.current) {
				g = other
			}
		}
		p.mu.Unlock()
		if g == nil {
			t.Fatalf("no network %s", name)
		}
		s := g.status()
		if is(s) {
			return s
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			t.Fatalf("network is %+v", s)
		}
	}
}

func running(s Status) bool { return s.State == Running }

// stored waits until the store has the process of a container that runs, and returns its row.
func stored(t *testing.T, p *Pod, s Status) reconcile.Row[spec, record] {
	t.Helper()
	for begun := time.Now(); ; time.Sleep(time.Millisecond) {
		if r, ok := p.plugins.Get(keyOf(s.Ref)); ok && r.Last.PID == s.PID {
			return r
		}
		if time.Since(begun) > time.Minute {
			t.Fatal("the container is not stored")
		}
	}
}

func (h *host) callOf(t *testing.T, name string) Call {
	t.Helper()
	ns, _, err := h.pins.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	_ = ns.Close()
	t.Cleanup(func() { _ = h.pins.Delete(name) })
	return Call{Pod: "146d7cef-fbf6-41da-a2f8-eba218597f9c", Namespace: h.pins.Path(name), Interface: "eth0"}
}

// linger tells how many of the plugin's children that outlive calls there are in its container.
func lingering(t *testing.T) (pids []int) {
	t.Helper()
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range lines {
		if text, _ := os.ReadFile(path); string(text) == "/plugin\x00linger\x00" {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			pids = append(pids, pid)
		}
	}
	return pids
}

func TestCalls(t *testing.T) {
	runtimes(t, func(t *testing.T, h *host) {
		p := h.open(t)
		before := len(lingering(t))
		four := `{"ip4":{"ip":"10.1.0.2/24","gateway":"10.1.0.1","routes":[{"dst":"0.0.0.0/0"}]},"dns":{"nameservers":["10.1.0.1"]}}`
		h.apply(t, p, nobody, entry("good", "", four), entry("probe", "probe", ""), entry("hang", "hang", ""), entry("orphan", "orphan", four),
			entry("cni", "fail", `{"code":11,"msg":"try again","details":"later"}`), entry("text", "fail", "no addresses"), entry("flood", "flood", ""), entry("silent", "", ""))
		for _, s := range p.Status() {
			until(t, p, s.Name, running)
		}
		c := h.callOf(t, "late") // a namespace that is younger than the containers
		r, err := p.Add(t.Context(), Ref{Name: "good"}, c)
		if err != nil {
			t.Fatal(err)
		}
		if len(r.IPs) != 1 || r.IPs[0].Address.String() != "10.1.0.2/24" || r.CNIVersion != "1.1.0" || r.DNS.Nameservers[0] != "10.1.0.1" {
			t.Errorf("result %+v", r)
		}
		if err := p.Del(t.Context(), Ref{Name: "good"}, c); err != nil {
			t.Error(err)
		}
		for name, want := range map[string]string{
			"cni": "network cni: add: try again; later (code 11)", "text": "network text: add: no addresses; and on stderr",
			"flood": "network flood: add: its answer is larger than 1048576 bytes", "silent": "network silent: add: it answered nothing, where a result is wanted",
			"nowhere": "network nowhere: there is no such network",
		} {
			if _, err := p.Add(t.Context(), Ref{Name: name}, c); err == nil || err.Error() != want {
				t.Errorf("%s: %v", name, err)
			}
		}
		if _, err := p.Add(t.Context(), Ref{Name: "orphan"}, c); err != nil {
			t.Errorf("orphan: %v", err)
		}
		p.cfg.CallLimit = 3 * time.Second // of this call alone; it begins in much less
		const hung = "network hang: add: it did not end within 3s, and was killed with all its children; " +
			"it had said: working on it"
		if _, err := p.Add(t.Context(), Ref{Name: "hang"}, c); err == nil || err.Error() != hung {
			t.Errorf("hang: %v", err)
		}
		p.cfg.CallLimit = callLimit
		if left := lingering(t); len(left) != before {
			t.Errorf("children are left: %v", left)
		}
		probe(t, p, c)
		if _, err := p.Add(t.Context(), Ref{Name: "good"}, Call{Namespace: "/etc/passwd"}); err == nil {
			t.Error("a namespace elsewhere was taken")
		}
		if err := down(p); err != nil {
			t.Error(err)
		}
		h.nothingLeft(t, p)
	})
}

// probe sees what a call sees.
func probe(t *testing.T, p *Pod, c Call) {
	t.Helper()
	for round := range 2 {
		c.Interface = ""
		_, err := p.Add(t.Context(), Ref{Name: "probe"}, c)
		var failure *CallError
		if !errors.As(err, &failure) || failure.Code != 1 {
			t.Fatalf("probe: %v", err)
		}
		var saw struct {
			Args                                          []string
			Env                                           []string
			Stdin, CapEff, CapBnd, CapPrm                 string
			UID, PID                                      int
			Namespace, Setns, Forward, Kernel, Root, Kept bool
		}
		text := failure.Message[strings.Index(failure.Message, "{") : strings.LastIndex(failure.Message, "}")+1]
		if err := json.Unmarshal([]byte(text), &saw); err != nil {
			t.Fatalf("%v: %s", err, failure.Message)
		}
		if want := []string{"/opt/network/add", "/var/lib/kurma/netns/late", c.Pod, ""}; fmt.Sprint(saw.Args) != fmt.Sprint(want) || len(saw.Args) != 4 {
			t.Errorf("args %q", saw.Args)
		}
		if saw.Stdin != entry("probe", "probe", "") {
			t.Errorf("stdin %q", saw.Stdin)
		}
		if saw.UID != 0 || saw.PID < 2 || !saw.Namespace || !saw.Setns || !saw.Forward || saw.Kernel || !saw.Root || saw.Kept != (round == 1) {
			t.Errorf("%+v", saw)
		}
		if !strings.Contains(strings.Join(saw.Env, " "), "PATH=") || !strings.Contains(strings.Join(saw.Env, " "), "COLOUR=blue") {
			t.Errorf("env %q", saw.Env)
		}
		var bits uint64
		for _, c := range keptBits {
			bits |= 1 << c
		}
		for _, set := range []string{saw.CapEff, saw.CapBnd, saw.CapPrm} {
			if got, err := strconv.ParseUint(set, 16, 64); err != nil || got&^bits != 0 || got&(1<<unix.CAP_NET_ADMIN) == 0 {
				t.Errorf("capabilities %s, want of %x", set, bits)
			}
		}
	}
}

func TestMainEnds(t *testing.T) {
	runtimes(t, func(t *testing.T, h *host) {
		h.withSetup(t)
		p := h.open(t)
		h.apply(t, p, nobody, entry("good", "", "{}"), strings.Replace(entry("bad", "", "{}"), "{", `{"main":"exit",`, 1))
		// One that ends before its runtime has quite gone is not a child of this process yet: how it ended is told the next time.
		failed := until(t, p, "bad", func(s Status) bool {
			return s.State == Failed && s.Restarts > 1 && !s.Retry.IsZero() && !strings.HasPrefix(s.Reason, "its main executable has ended;")
		})
		if !strings.Contains(failed.Reason, "has exited with status 7; it had said:") || !strings.Contains(failed.Reason, "cannot go on") {
			t.Errorf("reason %q", failed.Reason)
		}
		if failed.Retry.IsZero() || !strings.Contains(failed.Output, "main has read") {
			t.Errorf("%+v", failed)
		}
		s := until(t, p, "good", running)
		stored(t, p, s)
		// The container is not started again while the lock of its row is held.
		whileHeld := func(context.Context, reconcile.Row[spec, record]) (bool, error) {
			if err := unix.Kill(s.PID, unix.SIGUSR1); err != nil {
				t.Fatal(err)
			}
			failed := until(t, p, "good", func(s Status) bool { return s.State == Failed && s.Restarts == 1 })
			const want = "its main executable has exited with status 5; it had said: main has read"
			if !strings.HasPrefix(failed.Reason, want) {
				t.Errorf("reason %q", failed.Reason)
			}
			_, err := p.Add(t.Context(), Ref{Name: "good"}, h.callOf(t, "a"))
			var not *NotRunningError
			if !errors.As(err, &not) || not.State != Failed || !strings.Contains(err.Error(), "status 5") {
				t.Errorf("refused with %v", err)
			}
			return false, nil
		}
		if err := p.plugins.RemoveTreeIf(t.Context(), keyOf(s.Ref), whileHeld); err != nil {
			t.Fatal(err)
		}
		again := until(t, p, "good", running)
		if again.PID == s.PID {
			t.Error("the same process")
		}
		if _, err := p.Add(t.Context(), Ref{Name: "good"}, h.callOf(t, "a")); err != nil {
			t.Error(err)
		}
	})
}

func TestAdopt(t *testing.T) {
	runtimes(t, func(t *testing.T, h *host) {
		h.withSetup(t)
		first, stop, err := open(h.cfg)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := New(h.cfg); !errors.Is(err, ErrInUse) {
			t.Errorf("two at once: %v", err)
		}
		one, two := entry("one", "", "{}"), entry("two", "", "{}")
		h.apply(t, first, nobody, one, two)
		pid, other := until(t, first, "one", running).PID, until(t, first, "two", running).PID
		if _, err := os.Stat(filepath.Join(first.bundle(first.Current()[0].Ref).dir, "upper", "set-up")); err != nil {
			t.Errorf("it runs and was not set up: %v", err)
		}
		if err := stop(first.Close); err != nil {
			t.Fatal(err)
		}
		if err := unix.Kill(other, unix.SIGKILL); err != nil { // while nobody looks
			t.Fatal(err)
		}
		_, _ = unix.Wait4(other, nil, 0, nil)
		p := h.open(t)
		found := networks(t, one)[0]
		if err := p.begin(refOf(found), found); err != nil {
			t.Fatal(err)
		}
		if all := p.Status(); len(all) != 1 || all[0].ImageID != "sha512-1" {
			t.Errorf("the image that is in use is not known: %+v", all)
		}
		h.apply(t, p, nobody, one, two)
		if s := until(t, p, "one", running); s.PID != pid || s.ImageID != "sha512-1" {
			t.Errorf("not adopted: %+v, want process %d", s, pid)
		}
		until(t, p, "two", running)
		for _, name := range []string{"one", "two"} {
			if _, err := p.Add(t.Context(), Ref{Name: name}, h.callOf(t, name)); err != nil {
				t.Error(err)
			}
		}
		// What has been adopted is watched too.
		if err := unix.Kill(pid, unix.SIGUSR1); err != nil {
			t.Fatal(err)
		}
		until(t, p, "one", func(s Status) bool { return s.State == Running && s.PID != pid })
	})
}

func TestReload(t *testing.T) {
	h := newHost(t, "")
	p := h.open(t)
	one := entry("one", "", "{}")
	h.apply(t, p, nobody, one, entry("two", "", `{"dns":{"domain":"old"}}`))
	pid := until(t, p, "one", running).PID
	old := until(t, p, "two", running).Ref
	h.apply(t, p, func(r Ref) bool { return r == old }, one, entry("two", "", `{"dns":{"domain":"new"}}`))
	if s := until(t, p, "two", running); s.Ref == old {
		t.Errorf("%+v is the old generation", s)
	}
	if s := until(t, p, "one", running); s.PID != pid {
		t.Error("a network that had not changed was restarted")
	}
	for ref, want := range map[Ref]string{old: "old", {Name: "two"}: "new"} {
		if r, err := p.Add(t.Context(), ref, h.callOf(t, "a")); err != nil || r.DNS.Domain != want {
			t.Errorf("%v: %+v, %v", ref, r, err)
		}
	}
	p.Release(p.Current()[0].Ref) // one of the configuration stays
	p.Release(old)
	p.Release(old)
	h.apply(t, p, nobody, one) // two leaves the configuration
	p.work.Wait()
	if all := p.Status(); len(all) != 1 || all[0].PID != pid {
		t.Errorf("%+v", all)
	}
	if _, err := p.Add(t.Context(), old, h.callOf(t, "a")); !errors.Is(err, ErrUnknown) {
		t.Errorf("%v", err)
	}
	if left, _ := os.ReadDir(p.cfg.State); len(left) != 1 {
		t.Errorf("state has %v", left)
	}
}

// noticed tells when somebody begins to wait for its end.
type noticed struct {
	context.Context
	waits chan struct{}
}

func (n noticed) Done() <-chan struct{} {
	n.waits <- struct{}{}
	return n.Context.Done()
}

// The last pod leaves an older generation while a reload makes that the configuration's again.
func TestReloadBack(t *testing.T) {
	h := newHost(t, "")
	p := h.open(t)
	one, two := entry("one", "", "{}"), entry("two", "", "{}")
	h.apply(t, p, nobody, one)
	old := until(t, p, "one", running)
	h.apply(t, p, func(r Ref) bool { return r == old.Ref })
	going, second := make(chan struct{}), refOf(networks(t, two)[0])
	p.gone[second] = going
	ctx, applied := noticed{t.Context(), make(chan struct{}, 100)}, make(chan error, 1)
	go func() { applied <- p.Apply(ctx, networks(t, one, two), nobody) }()
	<-ctx.waits // for two to be gone; one is done
	p.Release(old.Ref)
	p.mu.Lock()
	delete(p.gone, second)
	p.mu.Unlock()
	close(going)
	if err := <-applied; err != nil {
		t.Fatal(err)
	}
	p.work.Wait()
	if s := until(t, p, "one", running); s.Ref != old.Ref || s.PID != old.PID {
		t.Errorf("%+v, want it untouched: %+v", s, old)
	}
}

func TestRuntimeFails(t *testing.T) {
	runtimes(t, func(t *testing.T, h *host) {
		h.image.Exec = []string{"/nothing"}
		p := h.open(t)
		h.apply(t, p, nobody, entry("one", "", "{}"))
		s := until(t, p, "one", func(s Status) bool { return s.State == Failed })
		if !strings.Contains(s.Reason, "run") || !strings.Contains(s.Reason, "no such file") && !strings.Contains(s.Reason, "not found") {
			t.Errorf("reason %q", s.Reason)
		}
		_, err := p.Add(t.Context(), Ref{Name: "one"}, h.callOf(t, "a"))
		var not *NotRunningError
		if !errors.As(err, &not) {
			t.Errorf("%v", err)
		}
	})
}

func TestNoAddInImage(t *testing.T) {
	h := newHost(t, "")
	if err := os.Remove(filepath.Join(h.image.Rootfs, execAdd)); err != nil {
		t.Fatal(err)
	}
	p := h.open(t)
	h.apply(t, p, nobody, entry("one", "", "{}"))
	until(t, p, "one", running)
	_, err := p.Add(t.Context(), Ref{Name: "one"}, h.callOf(t, "a"))
	if want := "network one: add: cannot execute /opt/network/add: no such file or directory"; err == nil || err.Error() != want {
		t.Errorf("%v", err)
	}
}

func TestFortyAtOnce(t *testing.T) {
	h := newHost(t, "")
	p := h.open(t)
	h.apply(t, p, nobody, entry("one", "", "{}"))
	until(t, p, "one", running)
	c := h.callOf(t, "a")
	var all sync.WaitGroup
	for range 40 {
		all.Go(func() {
			if _, err := p.Add(t.Context(), Ref{Name: "one"}, c); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
}
