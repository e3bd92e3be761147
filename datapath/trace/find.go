//go:build linux

package trace

import (
	"fmt"
	"path/filepath"

	"github.com/vishvananda/netlink"
	vns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Where engines pin containers' namespaces, and where the kernel shows those of processes.
var pins = []string{"/run/docker/netns/*", "/var/run/docker/netns/*", "/run/netns/*", "/proc/[0-9]*/ns/net"}

// Peer finds the namespace in which the other end of a veth device is, without asking any
// engine. The caller closes it.
func Peer(ns vns.NsHandle, device string) (vns.NsHandle, error) {
	h, err := netlink.NewHandleAt(ns)
	if err != nil {
		return vns.None(), err
	}
	defer h.Close()
	link, err := h.LinkByName(device)
	if err != nil {
		return vns.None(), fmt.Errorf("device %s: %w", device, err)
	}
	number := link.Attrs().NetNsID // the kernel's for the other namespace; less than none where that is this one
	seen := map[string]bool{}
	for _, pattern := range pins {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			return vns.None(), err
		}
		for _, path := range paths {
			var st unix.Stat_t
			if unix.Stat(path, &st) != nil {
				continue // a process that has ended
			}
			file := fmt.Sprint(st.Dev, " ", st.Ino)
			if seen[file] {
				continue // others share the namespace
			}
			seen[file] = true
			other, err := vns.GetFromPath(path)
			if err != nil {
				continue
			}
			if id, err := h.GetNetNsIdByFd(int(other)); err == nil && id >= 0 && id == number {
				return other, nil
			}
			_ = other.Close()
		}
	}
	return vns.None(), fmt.Errorf(
		"device %s: no process, and no pin of an engine, holds the namespace of its other end", device,
	)
}
