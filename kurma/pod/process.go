//go:build linux

package pod

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// process identifies a process. Its number alone may be another's later.
type process struct {
	PID   int    `json:"pid"`
	Start string `json:"start"` // proc_pid_stat(5), field 22: clock ticks since boot
	Boot  string `json:"boot"`
}

// bootID identifies this boot of the kernel (random(4)).
func bootID() (string, error) {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(text)), err
}

// processOf identifies the process that has this number now. The error is os.ErrNotExist if none
// has.
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

// gone reports whether the process has ended. One that cannot be read has not.
func (p *process) gone() bool {
	now, err := processOf(p.PID)
	return errors.Is(err, os.ErrNotExist) || err == nil && *now != *p
}

// open returns a pidfd (pidfd_open(2)), which Go's poller can wait for. The error is
// os.ErrNotExist if the process has ended.
func (p *process) open() (*os.File, error) {
	fd, err := unix.PidfdOpen(p.PID, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.ESRCH) {
		return nil, os.ErrNotExist
	}
	if err != nil {
		return nil, fmt.Errorf("pidfd of process %d: %w", p.PID, err)
	}
	if p.gone() { // the pidfd may be another process's
		_ = unix.Close(fd)
		return nil, os.ErrNotExist
	}
	return os.NewFile(uintptr(fd), "pidfd"), nil
}

// hasEnded waits until the process of a pidfd has ended, and reports false if the pidfd was
// closed before.
func hasEnded(pidfd *os.File) bool {
	raw, err := pidfd.SyscallConn()
	if err != nil {
		return false
	}
	err = raw.Read(func(fd uintptr) bool {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return err == nil && n > 0
	})
	return err == nil
}

// watch removes the pod when the first process of its container ends, if the container's
// poststop hook does not. It reports false if the process has ended already.
func (m *Manager) watch(uuid string, p *process) bool {
	pidfd, err := p.open()
	if errors.Is(err, os.ErrNotExist) {
		return false
	}
	if err != nil {
		m.log.Warn("cannot watch the process of a pod", "pod", uuid, "err", err)
		return true
	}
	m.mu.Lock()
	m.watched[uuid] = pidfd
	m.mu.Unlock()
	m.work.Go(func() {
		if hasEnded(pidfd) {
			m.removeEnded(uuid)
		}
	})
	return true
}

// unwatch ends the watch of a pod's process.
func (m *Manager) unwatch(uuid string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if pidfd, ok := m.watched[uuid]; ok {
		_ = pidfd.Close()
		delete(m.watched, uuid)
	}
}

func (m *Manager) removeEnded(uuid string) {
	ctx := context.Background()
	unlock, err := m.locks.Lock(ctx, uuid)
	if err != nil {
		return
	}
	defer unlock()
	r, ok := m.pods.Get(uuid)
	if !ok || stateOf(r) != Ready || r.Spec.Process == nil || !r.Spec.Process.gone() {
		return // removed, or recreated with another process
	}
	m.log.Info("first process has ended", "pod", uuid, "container", r.Spec.Container)
	if err := m.remove(ctx, uuid); err != nil {
		m.log.Warn("pod not removed yet", "pod", uuid, "err", err)
	}
}
