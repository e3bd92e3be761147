//go:build linux

package plugin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/kuryr/kuryr/internal/netns"
	"golang.org/x/sys/unix"
)

// ociRuntime is the program that makes containers.
type ociRuntime struct {
	path string
	crun bool
	root string // folder of its own state, which no other user of the runtime looks at
}

// runtimeLimit bounds one command of the runtime.
const runtimeLimit = 30 * time.Second

// findRuntime finds the runtime that is named, or one that there is.
func findRuntime(name, root string) (*ociRuntime, error) {
	names := []string{name}
	if name == "" {
		names = []string{"crun", "runc"}
	}
	var path string
	for _, n := range names {
		for _, candidate := range []string{n, filepath.Join("/usr/sbin", n), filepath.Join("/usr/local/sbin", n)} { // a user's PATH may lack what is root's
			if found, err := exec.LookPath(candidate); err == nil && path == "" {
				path = found
			}
		}
	}
	if path == "" {
		return nil, fmt.Errorf("kurma.runtime: no %s is in PATH", strings.Join(names, " and no "))
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("kurma.runtime: %w", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), runtimeLimit)
	defer cancel()
	out, err := exec.CommandContext(ctx, path, "--version").Output()
	if err != nil {
		return nil, fmt.Errorf("kurma.runtime: %s --version: %w", path, err)
	}
	switch program, _, _ := bytes.Cut(out, []byte(" ")); string(program) {
	case "crun":
		return &ociRuntime{path: path, crun: true, root: root}, nil
	case "runc":
		return &ociRuntime{path: path, root: root}, nil
	}
	return nil, fmt.Errorf("kurma.runtime: %s is neither crun nor runc: its version begins with %q", path, words(out))
}

// stdio is what a container's main executable begins with.
type stdio struct{ in, out *os.File }

// run starts a container in its bundle, and waits until its main executable has been started. It is a process of the group g.
func (r *ociRuntime) run(ctx context.Context, b bundle, g *group, io stdio) error {
	return r.command(ctx, b, func(cmd *exec.Cmd) {
		cmd.Stdin, cmd.Stdout, cmd.Stderr = io.in, io.out, io.out
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(g.file.Fd())
	}, b.mountRoot, "run", "--detach", "--bundle", b.dir, "--pid-file", b.pidFile(), b.id)
}

// remove kills and forgets a container. One that is not there, or only half made, is no error.
func (r *ociRuntime) remove(ctx context.Context, b bundle) error {
	if _, err := os.Stat(filepath.Join(r.root, b.id)); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err := r.command(ctx, b, nil, nil, "delete", "--force", b.id); err != nil {
		// One that was killed while it was made has no state that its runtime could read.
		if left := os.RemoveAll(filepath.Join(r.root, b.id)); left != nil {
			return errors.Join(err, left)
		}
	}
	return nil
}

// command runs the runtime in a mount namespace of its own, that prepare may mount in: so there is no mount to take away, whenever anybody is killed.
func (r *ociRuntime) command(ctx context.Context, b bundle, with func(*exec.Cmd), prepare func() error, args ...string) error {
	log := filepath.Join(b.dir, "runtime.log")
	if _, err := os.Stat(b.dir); err != nil {
		log = "/dev/null"
	}
	_ = os.Truncate(log, 0)
	global := []string{"--root", r.root, "--log", log, "--log-format", "json"}
	if r.crun {
		global = append(global, "--cgroup-manager=disabled") // it stays in the group that it is started in
	}
	ctx, cancel := context.WithTimeout(ctx, runtimeLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, r.path, append(global, args...)...)
	cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true}
	cmd.WaitDelay = time.Second
	if with != nil {
		with(cmd)
	}
	err := netns.OnOwnThread(func() error {
		if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
			return fmt.Errorf("mount namespace: %w", err)
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
			return fmt.Errorf("mount namespace: %w", err)
		}
		if r.crun {
			if err := oneCgroupVersion(); err != nil {
				return err
			}
		}
		if prepare != nil {
			if err := prepare(); err != nil {
				return err
			}
		}
		return cmd.Start()
	})
	if err == nil {
		err = cmd.Wait()
	}
	if err == nil {
		return nil
	}
	verb := filepath.Base(r.path) + " " + args[0]
	if text := lastError(log); text != "" {
		return fmt.Errorf("%s: %s", verb, text)
	}
	return fmt.Errorf("%s: %w", verb, err)
}

// oneCgroupVersion shows crun cgroup2 alone: it refuses a machine that has controllers in both versions, also where it is told to leave cgroups alone.
func oneCgroupVersion() error {
	const dir = "/sys/fs/cgroup"
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil || st.Type == unix.CGROUP2_SUPER_MAGIC {
		return nil // crun itself says what it lacks
	}
	if err := unix.Mount("cgroup2", dir, "cgroup2", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount cgroup2 for crun: %w", err)
	}
	return nil
}

// lastError is what a runtime has logged last, a JSON object a line.
func lastError(log string) string {
	text, err := tail(log, 16<<10)
	if err != nil {
		return ""
	}
	last := ""
	for line := range bytes.Lines(text) {
		var entry struct {
			Level string `json:"level"`
			Msg   string `json:"msg"`
		}
		if json.Unmarshal(line, &entry) == nil && entry.Msg != "" && (entry.Level == "error" || entry.Level == "fatal" || entry.Level == "") {
			last = entry.Msg
		}
	}
	return words([]byte(last))
}
