//go:build linux

package main

import (
	"bytes"
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/kuryr/kuryr/cmd/kuryr/internal/admin"
	"github.com/kuryr/kuryr/internal/nstest"
	"golang.org/x/sys/unix"
)

// asProgram, in its environment, makes the test binary the program that it tests.
const asProgram = "KURYR_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	os.Exit(nstest.Main(m))
}

// buffer is what commands write to while others read.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// kuryr runs a command line and gives its exit code, output and complaints.
func kuryr(ctx context.Context, env []string, args ...string) (code int, out, err string) {
	var stdout, stderr buffer
	a := &app{out: &stdout, err: &stderr, environ: env}
	code = a.run(ctx, append([]string{}, args...)) // without any, not those of the test binary
	return code, stdout.String(), stderr.String()
}

// machine is where a kuryr runs: folders of its own.
type machine struct {
	dir    string
	env    []string
	socket string
	plugin string
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "kuryr-test-") // short: a socket's path has little room
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = unix.Unmount(filepath.Join(dir, "run", "netns"), unix.MNT_DETACH) // with the namespaces pinned below it
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	m := &machine{dir: dir, socket: filepath.Join(dir, "run", "kuryr.sock"), plugin: filepath.Join(dir, "plugins", "kuryr.sock")}
	m.env = []string{
		"KURYR_STATE_DIR=" + m.path("state"), "KURYR_RUN_DIR=" + m.path("run"), "KURYR_DOCKER_SOCKET=" + m.plugin,
		"KURYR_DOCKER_API=" + m.path("docker.sock"), "KURYR_HOST=testhost",
	}
	return m
}

func (m *machine) path(name string) string { return filepath.Join(m.dir, name) }

func (m *machine) run(t *testing.T, args ...string) (code int, out, err string) {
	t.Helper()
	return kuryr(t.Context(), m.env, args...)
}

// must runs a command line that has to succeed.
func (m *machine) must(t *testing.T, args ...string) string {
	t.Helper()
	code, out, complaints := m.run(t, args...)
	if code != exitOK {
		t.Fatalf("kuryr %s: exit %d: %s%s", strings.Join(args, " "), code, out, complaints)
	}
	return out
}

// up starts `kuryr up` and waits until it tells the service manager that it is ready. The function returned ends it as SIGTERM
// does and gives its exit code; ended gives that of one that ends by itself.
func (m *machine) up(t *testing.T) (stop, ended func() int) {
	t.Helper()
	return m.start(t, func(ctx context.Context, a *app) int { return a.run(ctx, []string{"up"}) })
}

// start is up for any daemon.
func (m *machine) start(t *testing.T, daemon func(context.Context, *app) int) (stop, ended func() int) {
	t.Helper()
	notify := m.path("notify")
	_ = os.Remove(notify)
	manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: notify, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer manager.Close()
	t.Setenv("NOTIFY_SOCKET", notify)
	ctx, cancel := context.WithCancel(context.Background())
	var stderr buffer
	done := make(chan int, 1)
	go func() {
		a := &app{out: &stderr, err: &stderr, environ: m.env}
		done <- daemon(ctx, a)
		_ = manager.Close() // wakes the one who waits for what does not come
	}()
	buf := make([]byte, 64)
	n, err := manager.Read(buf)
	if err != nil || string(buf[:n]) != "READY=1" {
		cancel()
		t.Fatalf("not ready: %q, %v\n%s", buf[:n], err, stderr.String())
	}
	var once sync.Once
	code := 0
	ended = func() int {
		once.Do(func() { code = <-done })
		if t.Failed() || code != 0 {
			t.Logf("kuryr said:\n%s", stderr.String())
		}
		return code
	}
	stop = func() int { cancel(); return ended() }
	t.Cleanup(func() { stop() })
	return stop, ended
}

func TestRoutersAreCalledByTheirNetworks(t *testing.T) {
	t.Parallel()
	all := []admin.Unreached{{Router: "kuryr-router-0123"}, {Router: "kuryr-router-shared"}, {Router: "mine"}}
	nameRouters(all, map[string]string{"0123": "blue", "": "none"})
	if got := all[0].Router + "," + all[1].Router + "," + all[2].Router; got != "of blue,kuryr-router-shared,mine" {
		t.Errorf("routers %s", got)
	}
}
