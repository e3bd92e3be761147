//go:build e2e

// Package faults_test gives a running Kuryr what goes wrong on real machines: a slow
// disk, a full one, one that fails, a full /run, a read-only file system, callers that
// flood its sockets, daemons that stop, start and wait in the wrong order. Each test has
// a private host with a real Docker engine. It must not look into Kuryr but through its
// commands and sockets.
//
// Every test boots a host of its own: after a fault of the disk Kuryr keeps unconfirmed
// ports for longer than a test can wait, so the host is not as it was.
package faults_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

var kuryr string

func TestMain(m *testing.M) {
	kuryr = privatehost.Program("../../../bin/kuryr", "make build")
	os.Exit(m.Run())
}

// limit bounds a command; what waits longer has failed.
const limit = 2 * time.Minute

type rig struct {
	*privatehost.Host
	t *testing.T
}

// newRig starts a host; before is run in it before Kuryr starts.
func newRig(t *testing.T, before ...string) rig {
	t.Helper()
	t.Parallel()
	r := rig{privatehost.Start(t, privatehost.Options{Docker: true, Kuryr: kuryr, KuryrLater: true}), t}
	for _, script := range before {
		r.must("sh", "-c", script)
	}
	r.start()
	return r
}

func (r rig) start() {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	if err := r.StartKuryr(ctx, nil, nil); err != nil {
		r.t.Fatal(err)
	}
}

func (r rig) restartDocker(sig syscall.Signal) {
	r.t.Helper()
	_ = r.StopDocker(sig)
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	if err := r.StartDocker(ctx); err != nil {
		r.t.Fatal(err)
	}
}

func (r rig) sh(argv ...string) privatehost.Result {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return r.Exec(ctx, argv...)
}

func (r rig) must(argv ...string) string {
	r.t.Helper()
	res := r.sh(argv...)
	if !res.OK() {
		r.t.Fatal(res)
	}
	return res.Out()
}

func (r rig) docker(args ...string) string {
	r.t.Helper()
	return r.must(append([]string{"docker"}, args...)...)
}

// refused runs a docker command that must fail with a message that holds all words.
func (r rig) refused(words []string, args ...string) {
	r.t.Helper()
	res := r.sh(append([]string{"docker"}, args...)...)
	if res.OK() {
		r.t.Errorf("docker %s succeeded", strings.Join(args, " "))
		return
	}
	for _, w := range words {
		if !strings.Contains(res.Stderr, w) {
			r.t.Errorf("docker %s: the message does not say %q:\n%s", strings.Join(args, " "), w, res.Stderr)
		}
	}
}

func create(name, subnet string) []string {
	return []string{"network", "create", "-d", "kuryr", "--ipam-driver", "kuryr", "--subnet", subnet, name}
}

// run starts a container and returns its process and its address on the network.
func (r rig) run(name, network string, args ...string) (pid, address string) {
	r.t.Helper()
	r.docker(
		append(
			append(
				[]string{"run", "-d", "--name", name, "--network", network, "--stop-timeout", "0"},
				args...,
			),
			"busybox", "sleep", "1000000",
		)...,
	)
	return r.look(name)
}

func (r rig) look(name string) (pid, address string) {
	r.t.Helper()
	text := r.docker("inspect", "-f", "{{.State.Pid}} {{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}", name)
	pid, address, _ = strings.Cut(text, " ")
	return pid, address
}

// pings checks that the container of the process reaches an address.
func (r rig) pings(pid, to string) {
	r.t.Helper()
	if res := r.sh(
		"nsenter", "-t", pid, "-n", "--", "ping", "-n", "-c", "2", "-i", "0.2", "-W", "10", to,
	); !strings.Contains(res.Stdout, "bytes from") {
		r.t.Errorf("no ping: %s", res)
	}
}

// check asks whether store and kernel agree; links are deleted behind the callers' backs, so it may take a moment.
func (r rig) check(when string) {
	r.t.Helper()
	r.eventually(when+": store and kernel differ", func() string {
		if res := r.sh(kuryr, "sdn", "check"); !res.OK() {
			return res.String()
		}
		return ""
	})
}

// eventually tries until ok is empty.
func (r rig) eventually(what string, try func() string) {
	r.t.Helper()
	said := ""
	for deadline := time.Now().Add(limit); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		if said = try(); said == "" {
			return
		}
	}
	r.t.Errorf("%s: %s", what, said)
}

// restart ends Kuryr by SIGKILL and starts it anew, which verifies every page of the store.
func (r rig) restart() {
	r.t.Helper()
	if err := r.KillKuryr(syscall.SIGKILL); err != nil {
		r.t.Fatal(err)
	}
	r.start()
}

// empty removes everything and checks that Kuryr has nothing left.
func (r rig) empty() {
	r.t.Helper()
	r.must("sh", "-c", "docker ps -aq | xargs -r docker rm -f")
	const networks = "docker network ls -q --filter driver=kuryr | xargs -r docker network rm"
	if res := r.sh("sh", "-c", networks); strings.Contains(res.Stderr, "has active endpoints") {
		// Docker 20.10 may lose count of a network's endpoints when many go at once, and counts them again when it starts.
		r.restartDocker(syscall.SIGTERM)
		r.must("sh", "-c", networks)
	} else if !res.OK() {
		r.t.Error(res)
	}
	for _, noun := range []string{"subnetpool", "router", "floatingip"} {
		r.eventually("something stays", func() string {
			if left := r.must(kuryr, noun, "list", "-o", "json"); left != "[]" {
				return noun + ": " + left
			}
			return ""
		})
	}
	r.check("with everything removed")
}

// inject has system calls of Kuryr fail or take long, in strace's words, until stop is called.
func (r rig) inject(what string) (stop func()) {
	r.t.Helper()
	calls, _, _ := strings.Cut(what, ":")
	cmd := exec.Command(
		"strace", "-f", "-qq", "-o", "/dev/null", "-e", "signal=none", "-e", "trace="+calls, "-e",
		"inject="+what, "-p", fmt.Sprint(r.KuryrPid()),
	)
	var said bytes.Buffer
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		r.t.Fatalf("%v (package strace)", err)
	}
	gone := make(chan struct{})
	go func() { _ = cmd.Wait(); close(gone) }()
	stop = func() {
		_ = cmd.Process.Signal(syscall.SIGINT)
		<-gone
	}
	r.t.Cleanup(stop)
	// It holds all threads when it is the tracer of each.
	tasks := fmt.Sprintf("/proc/%d/task/*/status", r.KuryrPid())
	tracer := fmt.Sprintf("TracerPid:\t%d\n", cmd.Process.Pid)
	for {
		files, _ := filepath.Glob(tasks)
		held := 0
		for _, file := range files {
			if text, err := os.ReadFile(file); err != nil || strings.Contains(string(text), tracer) {
				held++
			}
		}
		if held > 0 && held == len(files) {
			return stop
		}
		select {
		case <-gone:
			r.t.Fatalf("strace ended: %s", said.String())
		case <-time.After(20 * time.Millisecond):
		}
	}
}
