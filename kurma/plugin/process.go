//go:build linux

package plugin

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// process is the first one of a container, held by a pidfd, so that no other process is meant when its number is given anew.
type process struct {
	pid   int
	start string // proc_pid_stat(5), field 22
	fd    *os.File
}

// openProcess holds the process of this number. If start is not "", it must have begun then. The error is os.ErrNotExist if there is none, or it has ended.
func openProcess(pid int, start string) (*process, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		if errors.Is(err, unix.ESRCH) {
			err = os.ErrNotExist
		}
		return nil, fmt.Errorf("process %d: %w", pid, err)
	}
	p := &process{pid: pid, fd: os.NewFile(uintptr(fd), "pidfd")}
	began, err := startOf(pid)
	if err == nil && start != "" && began != start {
		err = os.ErrNotExist
	}
	if err != nil {
		_ = p.fd.Close()
		return nil, fmt.Errorf("process %d: %w", pid, err)
	}
	p.start = began
	return p, nil
}

// startOf is when the process began, in the clock ticks of this boot.
func startOf(pid int) (string, error) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		if errors.Is(err, unix.ESRCH) {
			err = os.ErrNotExist
		}
		return "", err
	}
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:])) // the name before may hold anything; these are from field 3 on
	if len(fields) < 20 || fields[0] == "Z" || fields[0] == "X" {
		return "", os.ErrNotExist
	}
	return fields[19], nil
}

// wait returns when the process has ended, or close was called. It says how it ended where that can be known: it cannot of a process that another one's child was.
func (p *process) wait() (how string, err error) {
	raw, err := p.fd.SyscallConn()
	if err != nil {
		return "", err
	}
	err = raw.Read(func(fd uintptr) bool {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return err == nil && n > 0
	})
	if err != nil {
		return "", err
	}
	return reap(p.pid), nil
}

// dying is how long a process that is about to end is waited for, to hear how.
const dying = time.Second

// dies tells whether the process ends within a moment, and how: what was called in its container may have been killed with it.
func (p *process) dies() (how string, dead bool) {
	_ = p.fd.SetReadDeadline(time.Now().Add(dying))
	defer func() { _ = p.fd.SetReadDeadline(time.Time{}) }()
	how, err := p.wait()
	return how, err == nil
}

// reap says how a child has ended. Of a process that is not this one's child (its parent has been killed) that cannot be known.
func reap(pid int) string {
	var status unix.WaitStatus
	child, err := unix.Wait4(pid, &status, unix.WNOHANG, nil)
	if err == nil && child == 0 { // its first thread has ended, others are about to
		if fd, e := unix.PidfdOpen(pid, 0); e == nil {
			_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(dying.Milliseconds()))
			_ = unix.Close(fd)
		}
		child, err = unix.Wait4(pid, &status, unix.WNOHANG, nil)
	}
	if err != nil || child != pid {
		return "has ended"
	}
	if status.Signaled() {
		return "was killed by " + unix.SignalName(status.Signal())
	}
	return fmt.Sprintf("has exited with status %d", status.ExitStatus())
}

func (p *process) signal(s unix.Signal) error {
	raw, err := p.fd.SyscallConn()
	if err != nil {
		return err
	}
	if e := raw.Control(func(fd uintptr) { err = unix.PidfdSendSignal(int(fd), s, nil, 0) }); e != nil {
		return e
	}
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}

func (p *process) close() { _ = p.fd.Close() }
