//go:build linux

package pod

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kuryr/kuryr/kurma/process"
)

// requester is for whom a pod is asked. It has only what the caller of the API vouches for, or
// what the kernel says of a container. The uid of a container's process is not part of it,
// because the container's image chooses that.
type requester struct {
	root bool // a command or a program of root asks for itself
	// user is the host's user that is asked for. For a container it is the user that is root
	// of the container's user namespace; nil if that is the host's user namespace or its root.
	user      *uint32
	container bool
	cgroup    string // of the container in the cgroup2 hierarchy; "" without one
}

// requesterOf finds for whom a request is. A container is judged by its first process, whatever
// user the request names.
func requesterOf(r Request, first *process.ID) (requester, error) {
	if first == nil {
		return requester{root: r.User == nil || *r.User == 0, user: r.User}, nil
	}
	made := requester{container: true}
	var err error
	if made.user, err = namespaceRoot(first.PID); err == nil {
		made.cgroup, err = cgroupOf(first.PID)
	}
	if err == nil && first.Ended() {
		err = os.ErrProcessDone // the number may already be another process's
	}
	if err != nil {
		return requester{}, invalid("pid: process %d of container %s: %w", first.PID, clip(r.Container), err)
	}
	return made, nil
}

// namespaceRoot is the host's user that is root of the process's user namespace; nil if the
// process is in this process's namespace, or if root of its namespace is the host's root or
// is not mapped.
func namespaceRoot(pid int) (*uint32, error) {
	proc := "/proc/" + strconv.Itoa(pid)
	var own, its unix.Stat_t
	err := errors.Join(unix.Stat("/proc/self/ns/user", &own), unix.Stat(proc+"/ns/user", &its))
	if err != nil {
		return nil, fmt.Errorf("user namespace: %w", err)
	}
	if own.Dev == its.Dev && own.Ino == its.Ino {
		return nil, nil // its uid_map would name users of the namespace above
	}
	text, err := os.ReadFile(proc + "/uid_map")
	if err != nil {
		return nil, err
	}
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		fields := strings.Fields(lines.Text()) // user_namespaces(7): inside, outside, length
		if len(fields) != 3 || fields[0] != "0" {
			continue
		}
		id, err := strconv.ParseUint(fields[1], 10, 32)
		if err != nil {
			return nil, fmt.Errorf("uid_map: %w", err)
		}
		if id == 0 {
			return nil, nil
		}
		user := uint32(id)
		return &user, nil
	}
	return nil, nil
}

// cgroupOf is the path of the process in the cgroup2 hierarchy (cgroups(7)), "" without one.
func cgroupOf(pid int) (string, error) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
	if err != nil {
		return "", err
	}
	for line := range strings.SplitSeq(string(text), "\n") {
		if cgroup, ok := strings.CutPrefix(line, "0::"); ok {
			return cgroup, nil
		}
	}
	return "", nil
}

// below reports whether the container's cgroup is this one or below it.
func (r requester) below(cgroup string) bool {
	return r.cgroup == cgroup || strings.HasPrefix(r.cgroup, cgroup+"/")
}

// describe names the requester, and for a container what a grant of the network can name.
func (r requester) describe(network string) string {
	switch {
	case !r.container:
		return fmt.Sprintf("user %d", *r.user)
	case r.user != nil:
		return fmt.Sprintf("user %d, who is root of the container's user namespace, nor cgroup %s",
			*r.user, clip(r.cgroup))
	}
	return fmt.Sprintf("cgroup %s; the uid of a container in the host's user namespace does not count: "+
		"want %s=%sPATH", clip(r.cgroup), network, cgroupPrefix)
}
