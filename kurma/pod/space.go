//go:build linux

package pod

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"

	ns "github.com/kuryr/kuryr/internal/netns"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// space identifies a network namespace as long as somebody holds it (ioctl_ns(2): device and inode).
type space struct {
	Dev uint64 `json:"dev"`
	Ino uint64 `json:"ino"`
}

func spaceOf(h netns.NsHandle) (space, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(h), &st); err != nil {
		return space{}, fmt.Errorf("network namespace: %w", err)
	}
	return space{Dev: st.Dev, Ino: st.Ino}, nil
}

// process is one of this boot: its number alone may be another's later.
type process struct {
	PID   int    `json:"pid"`
	Start string `json:"start"` // proc_pid_stat(5), field 22: clock ticks since boot
	Boot  string `json:"boot"`
}

// bootID is of the running kernel.
func bootID() (string, error) {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(text)), err
}

// processOf notes the process that has this number now. The error is os.ErrNotExist if none has.
func processOf(pid int) (*process, error) {
	boot, err := bootID()
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if errors.Is(err, unix.ESRCH) {
		err = os.ErrNotExist
	}
	if err != nil {
		return nil, err
	}
	// The name, in brackets, may hold anything.
	_, rest, _ := strings.Cut(string(text[strings.LastIndexByte(string(text), ')'):]), " ")
	fields := strings.Fields(rest) // from field 3 on
	if len(fields) < 20 || fields[0] == "Z" || fields[0] == "X" {
		return nil, os.ErrNotExist
	}
	return &process{PID: pid, Start: fields[19], Boot: boot}, nil
}

// gone tells whether the process has ended; what cannot be read has not.
func (p *process) gone() bool {
	now, err := processOf(p.PID)
	return errors.Is(err, os.ErrNotExist) || err == nil && *now != *p
}

// find opens the namespace that is asked for, netns.None() where one is to be made.
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

// notOurs refuses the namespaces of the host and of this process, whose network must never be changed for a pod.
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

// pin pins the namespace, or a new one where it is None, under the pod's UUID, and gives a handle of it.
func (m *Manager) pin(uuid string, h netns.NsHandle) (netns.NsHandle, error) {
	var err error
	if h.IsOpen() {
		if err = m.spaces.Pin(uuid, h); err == nil {
			h, err = m.spaces.Handle(uuid)
		}
	} else {
		h, _, err = m.spaces.Create(uuid)
	}
	if err != nil {
		return netns.None(), &Error{Internal, err}
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
