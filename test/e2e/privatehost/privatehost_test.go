//go:build e2e

package privatehost_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

func TestMain(m *testing.M) {
	privatehost.Init()
	os.Exit(m.Run())
}

// links are those of the machine's own namespace that are named as those of private hosts.
func links(t *testing.T) map[string]bool {
	t.Helper()
	all, err := netlink.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, l := range all {
		if n := l.Attrs().Name; n == privatehost.Uplink || strings.HasPrefix(n, "docker") || strings.HasPrefix(n, "veth") {
			found[n] = true
		}
	}
	return found
}

// traces wants the machine to show nothing of a host that was closed. Other tests run beside this one, and their
// links may be there for a moment.
func traces(t *testing.T, dir string, before map[string]bool) {
	t.Helper()
	var left []string
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		if left = trace(t, dir, before); len(left) == 0 {
			return
		}
	}
	t.Errorf("left on the machine:\n%s", strings.Join(left, "\n"))
}

// trace is what the machine shows of a private host in its own namespaces: what bears the host's folder, and links
// that were not there before.
func trace(t *testing.T, dir string, before map[string]bool) []string {
	t.Helper()
	var found []string
	for name := range links(t) {
		if !before[name] {
			found = append(found, "link "+name)
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, dir) {
			found = append(found, "mount "+line)
		}
	}
	commands, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, c := range commands {
		for _, file := range []string{c, filepath.Join(filepath.Dir(c), "environ")} {
			if text, err := os.ReadFile(file); err == nil && strings.Contains(string(text), dir) {
				found = append(found, "process "+file)
			}
		}
	}
	groups, _ := filepath.Glob("/sys/fs/cgroup/*/kuryr-e2e-" + filepath.Base(dir))
	for _, g := range groups {
		found = append(found, "control group "+g)
	}
	if _, err := os.Stat(dir); err == nil {
		found = append(found, "folder "+dir)
	}
	return found
}

func TestPrivateHost(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	links := links(t)
	h, err := privatehost.New(ctx, privatehost.Options{Docker: true})
	if err != nil {
		t.Fatal(err)
	}
	closed := false
	defer func() {
		if !closed {
			t.Log(h.Logs(30))
			h.Close()
		}
	}()
	want := func(r privatehost.Result) {
		t.Helper()
		if !r.OK() {
			t.Fatal(r)
		}
	}
	before, err := h.Snapshot(ctx)
	if err != nil {
		t.Fatal(err)
	}
	out := privatehost.NeighbourIPv4.Addr().String()
	want(h.Exec(ctx, "ping", "-c1", "-W10", out))
	want(h.Exec(ctx, "ping", "-c1", "-W10", privatehost.NeighbourIPv6.Addr().String()))
	want(h.Outside(ctx, "ping", "-c1", "-W10", privatehost.HostIPv4.Addr().String()))
	want(h.Docker(ctx, "network", "create", "own"))
	want(h.Docker(
		ctx, "run", "-d", "--init=false", "--network", "own", "--restart", "always", "--name",
		"stays", "busybox", "sleep", "1000",
	))
	want(h.Docker(ctx, "exec", "stays", "ping", "-c1", "-W10", out))
	after, err := h.Snapshot(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if diff := strings.Join(
		before.Diff(after, privatehost.Links, privatehost.Firewall), "\n",
	); !strings.Contains(diff, "+ links: veth") ||
		!strings.Contains(diff, "MASQUERADE") && !strings.Contains(diff, "masquerade") {
		t.Errorf("the difference does not show Docker's network:\n%s", diff)
	}
	if r := h.Exec(ctx, "false"); r.Code != 1 {
		t.Errorf("exit status of false: %s", r)
	}

	if err := h.Reboot(ctx); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		r := h.Docker(ctx, "exec", "stays", "ping", "-c1", "-W10", out)
		if r.OK() {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the container did not come back after a reboot: %s", r)
		}
	}
	if err := h.StopDocker(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := h.StartDocker(ctx); err != nil {
		t.Fatal(err)
	}
	want(h.Docker(ctx, "rm", "-f", "stays"))
	// Orphans are reaped: no process of the host is left dead.
	want(h.Exec(ctx, "sh", "-c", "(sleep 0.1 &)"))
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		r := h.Exec(ctx, "ps", "-eo", "stat,args")
		if !strings.Contains(r.Stdout, "\nZ") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("dead processes stay: %s", r)
		}
	}
	dir := h.Dir()
	h.Close()
	closed = true
	traces(t, dir, links)
}

// TestEngineNumbers starts an engine whose predecessor was killed and whose numbers other processes have by now.
func TestEngineNumbers(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	h := privatehost.Start(t, privatehost.Options{Docker: true})
	for _, file := range []string{"/run/docker.pid", "/run/docker/containerd/containerd.pid"} {
		if _, err := os.Stat(h.Path(file)); err != nil {
			t.Fatal("the engine does not write the file any more: ", err)
		}
	}
	if err := h.StopDocker(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"/run/docker.pid", "/run/docker/containerd/containerd.pid"} {
		if err := os.WriteFile(h.Path(file), []byte("1"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := h.StartDocker(ctx); err != nil {
		t.Fatal(err)
	}
}

// A host ends also where nobody stopped what runs outside it.
func TestOutsideNotStopped(t *testing.T) {
	t.Parallel()
	h, err := privatehost.New(t.Context(), privatehost.Options{})
	if err != nil {
		t.Fatal(err)
	}
	stop, err := h.StartOutside(context.Background(), "sleep", "1000")
	if err != nil {
		t.Error(err)
	}
	closed := make(chan struct{})
	go func() {
		h.Close()
		close(closed)
	}()
	select {
	case <-closed:
	case <-time.After(30 * time.Second):
		t.Error("the host does not end")
		stop()
		<-closed
	}
	stop() // late, and no harm
}

func TestKeptHost(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	links := links(t)
	dir := filepath.Join(t.TempDir(), "kept")
	h, err := privatehost.New(ctx, privatehost.Options{Dir: dir, Keep: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Detach(); err != nil {
		t.Fatal(err)
	}
	again, err := privatehost.Attach(dir)
	if err != nil {
		t.Fatal(err)
	}
	if r := again.Exec(ctx, "hostname"); r.Out() != "host" {
		t.Errorf("a kept host does not run commands: %s", r)
	}
	if err := privatehost.End(dir); err != nil {
		t.Fatal(err)
	}
	traces(t, dir, links)
	if err := privatehost.End(dir); err == nil {
		t.Error("a host that is not there was ended")
	}
}
