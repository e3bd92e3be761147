//go:build linux

package netns

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/kuryr/kuryr/internal/mounts"
	"github.com/moby/sys/mountinfo"
)

// mount is where a mount is and to which mounts it propagates.
type mount struct {
	Point string
	// Peers is the group of its peers, below which mounts below it appear too. It has the same
	// number in all mount namespaces, and is empty if the mount is not shared.
	Peers string
	Slave bool // it receives mounts from a master, which receives none from it
}

// holderHere is holder in the mount namespace of the calling thread, which may differ from
// the process's.
func holderHere(path string) (mount, error) {
	table, err := os.Open(mounts.Here)
	if err != nil {
		return mount{}, err
	}
	defer table.Close()
	return holder(table, path)
}

// holder finds the mount that holds path, which is absolute and clean. Of several mounts on
// one point the last covers the others.
func holder(table io.Reader, path string) (found mount, _ error) {
	holding, err := mounts.ReadFrom(table, func(m *mountinfo.Info) (skip, stop bool) {
		return !within(path, m.Mountpoint), false
	})
	if err != nil {
		return mount{}, fmt.Errorf("read mountinfo: %w", err)
	}
	for _, m := range holding {
		if len(m.Mountpoint) >= len(found.Point) {
			peers, slave := propagation(m)
			found = mount{m.Mountpoint, peers, slave}
		}
	}
	if found.Point == "" {
		return mount{}, fmt.Errorf("mountinfo names no mount that holds %s", path)
	}
	return found, nil
}

// hasPeers reports whether one of the mounts is in the group of peers.
func hasPeers(table io.Reader, peers string) (bool, error) {
	all, err := mounts.ReadFrom(table, func(m *mountinfo.Info) (skip, stop bool) {
		group, _ := propagation(m)
		return group != peers, group == peers
	})
	return len(all) > 0, err
}

// propagation reads fields such as "shared:1 master:2".
func propagation(m *mountinfo.Info) (peers string, slave bool) {
	for field := range strings.FieldsSeq(m.Optional) {
		switch tag, value, _ := strings.Cut(field, ":"); tag {
		case "shared":
			peers = value
		case "master":
			slave = true
		}
	}
	return peers, slave
}

func within(path, point string) bool {
	return point == "/" || path == point || strings.HasPrefix(path, point+"/")
}
