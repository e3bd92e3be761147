//go:build linux

package pod

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"

	ns "github.com/kuryr/kuryr/internal/netns"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// space identifies a network namespace while it exists (ioctl_ns(2): device and inode).
type space struct {
	Dev uint64 `json:"dev"`
	Ino uint64 `json:"ino"`
}

func spaceOf(h netns.NsHandle) (space, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(h), &st); err != nil {
		return space{}, &Error{Internal, fmt.Errorf("network namespace: %w", err)}
	}
	return space{Dev: st.Dev, Ino: st.Ino}, nil
}

// find opens the namespace that is asked for; netns.None() if none is.
func find(r Request) (netns.NsHandle, error) {
	path := r.Path
	switch {
	case path != "" && r.PID != 0:
		return netns.None(), invalid("namespace: a path or a process, not both")
	case r.PID < 0:
		return netns.None(), invalid("pid: %d is not a process", r.PID)
	case r.PID > 0:
		path = "/proc/" + strconv.Itoa(r.PID) + "/ns/net"
	case path == "":
		return netns.None(), nil
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return netns.None(), invalid("namespace %s: %w", clip(path), err)
	}
	if kind, err := unix.IoctlRetInt(fd, unix.NS_GET_NSTYPE); err != nil || kind != unix.CLONE_NEWNET {
		_ = unix.Close(fd)
		return netns.None(), invalid("namespace %s: it is not a network namespace", clip(path))
	}
	h := netns.NsHandle(fd)
	if err := notOurs(h); err != nil {
		_ = h.Close()
		return netns.None(), err
	}
	return h, nil
}

// errHost says that the namespace is the host's.
var errHost = errors.New("it is the host's own network namespace, which is no pod's")

// notOurs refuses the namespaces of the host and of this process, whose network must never be
// changed for a pod.
func notOurs(h netns.NsHandle) error {
	for _, path := range []string{"/proc/1/ns/net", "/proc/thread-self/ns/net"} {
		own, err := netns.GetFromPath(path)
		if errors.Is(err, os.ErrPermission) {
			continue // in a sandbox where process 1 is beyond reach, so is its namespace
		}
		if err != nil {
			return &Error{Internal, fmt.Errorf("namespace %s: %w", path, err)}
		}
		same := own.Equal(h)
		_ = own.Close()
		if same {
			return &Error{Invalid, fmt.Errorf("namespace: %w", errHost)}
		}
	}
	return nil
}

// newNamespace makes a network namespace that goes with the handle until it is pinned.
func newNamespace() (h netns.NsHandle, err error) {
	err = ns.OnOwnThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		h, err = netns.GetFromPath("/proc/thread-self/ns/net")
		return err
	})
	if err != nil {
		return netns.None(), &Error{Internal, fmt.Errorf("new network namespace: %w", err)}
	}
	return h, nil
}

// loopback brings lo up.
func loopback(h netns.NsHandle) error {
	kernel, err := netlink.NewHandleAt(h, unix.NETLINK_ROUTE)
	if err != nil {
		return &Error{Internal, fmt.Errorf("network namespace: %w", err)}
	}
	defer kernel.Close()
	lo, err := kernel.LinkByName("lo")
	if err == nil {
		err = kernel.LinkSetUp(lo)
	}
	if err != nil {
		return &Error{Internal, fmt.Errorf("bring lo up: %w", err)}
	}
	return nil
}

// linkNames are the names of a namespace's links, of which there are few.
func linkNames(h netns.NsHandle) (names []string, err error) {
	err = ns.Do(h, func() error {
		all, err := net.Interfaces()
		for _, i := range all {
			names = append(names, i.Name)
		}
		return err
	})
	if err != nil {
		return nil, &Error{Internal, fmt.Errorf("links of the network namespace: %w", err)}
	}
	return names, nil
}
