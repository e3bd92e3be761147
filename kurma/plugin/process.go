//go:build linux

package plugin

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kuryr/kuryr/kurma/process"
)

// ends waits until the process has ended, and returns how it did.
func ends(p *process.Process) (how string, err error) {
	if err := p.Wait(); err != nil {
		return "", err
	}
	return reap(p.PID), nil
}

// dying is how long a process that is about to end is waited for, to hear how.
const dying = time.Second

// dies reports whether the process ends within a moment, and how: what was called in its container
// may have been killed with it.
func dies(p *process.Process) (how string, dead bool) {
	p.SetDeadline(time.Now().Add(dying))
	defer p.SetDeadline(time.Time{})
	how, err := ends(p)
	return how, err == nil
}

// reap returns how a child has ended. That is unknown of a process that is not this one's child,
// as its parent has been killed.
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
