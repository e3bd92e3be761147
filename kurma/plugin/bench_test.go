//go:build linux

package plugin

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/kuryr/kuryr/internal/netns"
	"github.com/kuryr/kuryr/internal/nstest"
)

// BenchmarkAdd compares an add in a plugin's container with the same program executed directly, and with the runtime's own exec.
func BenchmarkAdd(b *testing.B) {
	nstest.Require(b)
	for _, name := range []string{"crun", "runc"} {
		if _, err := findRuntime(name, ""); err != nil {
			continue
		}
		b.Run(name, func(b *testing.B) { benchmark(b, name) })
	}
}

func benchmark(b *testing.B, runtime string) {
	dir, err := os.MkdirTemp("/run", "kurma")
	if err != nil {
		b.Fatal(err)
	}
	built, err := program()
	if err != nil {
		b.Fatal(err)
	}
	rootfs := filepath.Join(dir, "image")
	if err := os.MkdirAll(filepath.Join(rootfs, "opt/network"), 0o755); err != nil {
		b.Fatal(err)
	}
	text, err := os.ReadFile(built)
	if err != nil {
		b.Fatal(err)
	}
	for _, name := range []string{"plugin", "opt/network/add"} {
		if err := os.WriteFile(filepath.Join(rootfs, name), text, 0o755); err != nil {
			b.Fatal(err)
		}
	}
	pins, err := netns.Open(filepath.Join(dir, "netns"))
	if err != nil {
		b.Fatal(err)
	}
	ns, _, err := pins.Create("a")
	if err != nil {
		b.Fatal(err)
	}
	defer ns.Close()
	ran := make(chan Ref, 1)
	p, stop, err := open(Config{
		Runtime: runtime, State: filepath.Join(dir, "state"), Run: filepath.Join(dir, "pod"), NetNS: filepath.Join(dir, "netns"),
		Images: &host{image: Image{Rootfs: rootfs, Exec: []string{"/plugin"}}}, Log: slog.New(slog.DiscardHandler), Ran: func(r Ref) { ran <- r },
	})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = stop(func() error { return down(p) }) }()
	e := entry("one", "", "{}")
	all, err := podNetworks(e)
	if err != nil {
		b.Fatal(err)
	}
	if err := p.Apply(context.Background(), all, nobody); err != nil {
		b.Fatal(err)
	}
	ref := <-ran
	b.Run("direct", func(b *testing.B) {
		for b.Loop() {
			cmd := exec.Command("/opt/network/add", "/x", "y", "z")
			cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: rootfs}
			cmd.Dir, cmd.Stdin = "/", bytes.NewReader([]byte(e))
			if _, err := cmd.Output(); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("add", func(b *testing.B) {
		for b.Loop() {
			if _, err := p.Add(b.Context(), ref, Call{Pod: "u", Namespace: pins.Path("a"), Interface: "eth0"}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("runtime-exec", func(b *testing.B) {
		if p.runtime.crun {
			if err := oneCgroupVersion(); err != nil { // of this throw-away mount namespace
				b.Fatal(err)
			}
			defer func() { _ = syscall.Unmount("/sys/fs/cgroup", 0) }()
		}
		for b.Loop() {
			args := []string{"--root", p.runtime.root}
			if p.runtime.crun {
				args = append(args, "--cgroup-manager=disabled")
			}
			cmd := exec.Command(p.runtime.path, append(args, "exec", p.bundle(ref).id, "/opt/network/add", "/x", "y", "z")...)
			cmd.Stdin = bytes.NewReader([]byte(e))
			if out, err := cmd.CombinedOutput(); err != nil {
				b.Fatalf("%v: %s", err, out)
			}
		}
	})
}
