package privatehost

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// Group is the control group, of every hierarchy, under which the host's daemons put
// their containers. Close and Reboot remove it.
func (h *Host) Group() string { return "kuryr-e2e-" + filepath.Base(h.dir) }

// MakeGroup makes Group where the host's daemons do not do so themselves. That it is there already is no error.
func (h *Host) MakeGroup() error {
	const top = "/sys/fs/cgroup"
	hierarchies, err := filepath.Glob(top + "/*/cgroup.procs") // of version 1; by that of version 2 a folder is a group
	if err != nil {
		return err
	}
	if _, err := os.Stat(top + "/cgroup.controllers"); err == nil {
		return mkdir(filepath.Join(top, h.Group()))
	}
	for _, procs := range hierarchies {
		hierarchy := filepath.Dir(procs)
		group := filepath.Join(hierarchy, h.Group())
		if err := mkdir(group); err != nil {
			return err
		}
		// Of cpusets a new group has none, and could have no process.
		for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
			all, err := os.ReadFile(filepath.Join(hierarchy, name))
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return err
			}
			if own, err := os.ReadFile(filepath.Join(group, name)); err != nil || len(bytes.TrimSpace(own)) > 0 {
				continue
			}
			if err := os.WriteFile(filepath.Join(group, name), all, 0); err != nil {
				return err
			}
		}
	}
	return nil
}

func mkdir(dir string) error {
	if err := os.Mkdir(dir, 0o755); !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}
