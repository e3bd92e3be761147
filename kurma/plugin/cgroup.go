//go:build linux

package plugin

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/kuryr/kuryr/internal/mounts"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// cgroups are groups of processes below a folder of our own in a cgroup2 hierarchy (cgroup(7); Documentation/admin-guide/cgroup-v2.rst). No controller is
// enabled in them: they serve to find, and to kill, every descendant of a process, whatever that has done to get away.
type cgroups struct{ dir string }

// openCgroups takes the machine's cgroup2 hierarchy, also where it is mounted beside those of version 1, and mounts it for itself where it is not mounted.
// Groups that an earlier process has left for calls are killed; one that cannot be removed is of no network that is to run, and is logged.
func openCgroups(run string, log *slog.Logger) (*cgroups, error) {
	point, err := cgroup2Mount()
	if err != nil {
		return nil, err
	}
	if point == "" {
		point = filepath.Join(run, "cgroup")
		if err := os.MkdirAll(point, 0o700); err != nil {
			return nil, fmt.Errorf("cgroup2: %w", err)
		}
		if err := unix.Mount("kuryr", point, "cgroup2", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
			return nil, fmt.Errorf("mount cgroup2, without which calls could not be killed with their children: %w", err)
		}
	}
	var st unix.Stat_t
	if err := unix.Stat(run, &st); err != nil {
		return nil, fmt.Errorf("cgroup: %w", err)
	}
	// Two daemons of one machine have different folders, whose paths may be the same where they have mounts of their own.
	sum := sha256.Sum256(fmt.Appendf(nil, "%d %d %s", st.Dev, st.Ino, run))
	c := &cgroups{dir: filepath.Join(point, "kuryr-kurma-"+hex.EncodeToString(sum[:6]))}
	if err := os.Mkdir(c.dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("cgroup: %w", err)
	}
	entries, err := os.ReadDir(c.dir)
	if err != nil {
		return nil, fmt.Errorf("cgroup: %w", err)
	}
	for _, e := range entries {
		if e.IsDir() && strings.HasPrefix(e.Name(), "call-") {
			if err := (&group{path: filepath.Join(c.dir, e.Name())}).end(context.Background()); err != nil {
				log.Warn("processes of an earlier daemon's call are left", "error", err)
			}
		}
	}
	return c, nil
}

// cgroup2Mount returns where a cgroup2 hierarchy can be written to, "" if nowhere.
func cgroup2Mount() (string, error) {
	all, err := mounts.Read(mounts.Here, mountinfo.FSTypeFilter("cgroup2"))
	if err != nil {
		return "", fmt.Errorf("mounts: %w", err)
	}
	for _, m := range all {
		if unix.Access(m.Mountpoint, unix.W_OK) == nil && !strings.HasPrefix(m.Options, "ro") {
			return m.Mountpoint, nil
		}
	}
	return "", nil
}

// close removes the folder, if no group is left in it.
func (c *cgroups) close() { _ = os.Remove(c.dir) }

// make makes a group, or takes the one of this name.
func (c *cgroups) make(name string) (*group, error) {
	g := &group{path: filepath.Join(c.dir, name)}
	if err := os.Mkdir(g.path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("cgroup: %w", err)
	}
	dir, err := os.Open(g.path)
	if err != nil {
		return nil, fmt.Errorf("cgroup: %w", err)
	}
	g.file = dir
	return g, nil
}

// find names a group that may be there.
func (c *cgroups) find(name string) *group { return &group{path: filepath.Join(c.dir, name)} }

// group holds a process and all its descendants.
type group struct {
	path string
	file *os.File // the folder, that processes are started into; nil in one that was only found
}

// kill kills all that are in the group. One that is not there has none.
func (g *group) kill() error {
	err := os.WriteFile(filepath.Join(g.path, "cgroup.kill"), []byte("1"), 0)
	if err == nil {
		return nil
	}
	if _, gone := os.Stat(g.path); errors.Is(gone, fs.ErrNotExist) {
		return nil
	}
	if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("kill: %w", err)
	}
	// Before Linux 5.14: what is frozen starts nothing more.
	_ = os.WriteFile(filepath.Join(g.path, "cgroup.freeze"), []byte("1"), 0)
	pids, err := os.ReadFile(filepath.Join(g.path, "cgroup.procs"))
	if err != nil {
		return fmt.Errorf("kill: %w", err)
	}
	for _, field := range strings.Fields(string(pids)) {
		if pid, err := strconv.Atoi(field); err == nil && pid > 0 {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	}
	return nil
}

// endLimit bounds how long what was killed may take to be gone; a process in an uninterruptible call of the kernel's takes as long as that does.
const endLimit = 10 * time.Second

// end kills what is in the group, waits until nothing is, and removes it. It is idempotent.
func (g *group) end(ctx context.Context) error {
	if g.file != nil {
		_ = g.file.Close()
	}
	if err := unix.Rmdir(g.path); err == nil || errors.Is(err, fs.ErrNotExist) { // the usual way: nothing is in it any more
		return nil
	}
	events, err := os.Open(filepath.Join(g.path, "cgroup.events"))
	if err != nil {
		return fmt.Errorf("cgroup: %w", err)
	}
	defer events.Close()
	until := time.Now().Add(endLimit)
	for {
		if err := g.kill(); err != nil {
			return err
		}
		text := make([]byte, 256)
		n, err := events.ReadAt(text, 0)
		if n == 0 && err != nil {
			return fmt.Errorf("cgroup: %w", err)
		}
		if strings.Contains(string(text[:n]), "populated 0") {
			break
		}
		left := time.Until(until)
		if left <= 0 || ctx.Err() != nil {
			return fmt.Errorf("cgroup %s: its processes are killed, and not gone yet", g.path)
		}
		// The kernel says so when the file changes; the bound is for kernels on which a killing round may miss one.
		_, err = unix.Poll([]unix.PollFd{{Fd: int32(events.Fd()), Events: unix.POLLPRI}}, int(min(left, time.Second).Milliseconds())+1)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("cgroup: %w", err)
		}
	}
	if err := removeTree(g.path); err != nil {
		return fmt.Errorf("cgroup %s: %w", g.path, err)
	}
	return nil
}

// removeTree removes a group in which nothing is, and the groups that a plugin has made in it.
func removeTree(path string) error {
	below, err := os.ReadDir(path)
	for _, e := range below {
		if e.IsDir() {
			err = errors.Join(err, removeTree(filepath.Join(path, e.Name())))
		}
	}
	if err == nil {
		err = unix.Rmdir(path)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
