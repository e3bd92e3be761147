//go:build linux

// Package process identifies processes, such as the first ones of containers, so that they can be
// found again by another daemon, and holds them by pidfds (pidfd_open(2)).
//
// It must not start processes, nor reap them.
package process

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ID identifies a process. Its number alone may be another's later.
type ID struct {
	PID   int    `json:"pid"`
	Start string `json:"start"` // proc_pid_stat(5), field 22: clock ticks since boot
	Boot  string `json:"boot"`
}

// Boot identifies this boot of the kernel (random(4)).
func Boot() (string, error) {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(text)), err
}

// Of identifies the process that has this number now. The error is os.ErrNotExist if none has, or
// if that has ended and was not reaped.
func Of(pid int) (ID, error) {
	boot, err := Boot()
	if err != nil {
		return ID{}, err
	}
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if errors.Is(err, unix.ESRCH) {
		err = os.ErrNotExist
	}
	if err != nil {
		return ID{}, err
	}
	// The name, in brackets, may hold anything. The fields after it are from field 3 on.
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	if len(fields) < 20 || fields[0] == "Z" || fields[0] == "X" {
		return ID{}, os.ErrNotExist
	}
	return ID{PID: pid, Start: fields[19], Boot: boot}, nil
}

// Ended reports whether the process has ended. One that cannot be read has not.
func (id ID) Ended() bool {
	now, err := Of(id.PID)
	return errors.Is(err, os.ErrNotExist) || err == nil && now != id
}

// Process is held, so that its number means no other one.
type Process struct {
	ID
	fd *os.File
}

// Open holds the process. The error is os.ErrNotExist if it has ended.
func (id ID) Open() (*Process, error) {
	fd, err := unix.PidfdOpen(id.PID, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.ESRCH) {
		err = os.ErrNotExist
	}
	if err != nil {
		return nil, fmt.Errorf("process %d: %w", id.PID, err)
	}
	if id.Ended() { // the pidfd may be of another process
		_ = unix.Close(fd)
		return nil, fmt.Errorf("process %d: %w", id.PID, os.ErrNotExist)
	}
	return &Process{id, os.NewFile(uintptr(fd), "pidfd")}, nil
}

// Wait returns when the process has ended. The error says that it was closed, or its deadline is
// over.
func (p *Process) Wait() error {
	raw, err := p.fd.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Read(func(fd uintptr) bool {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return err == nil && n > 0
	})
}

// SetDeadline bounds calls of Wait, also those in progress; the zero Time is no bound.
func (p *Process) SetDeadline(t time.Time) { _ = p.fd.SetReadDeadline(t) }

// Signal sends a signal. A process that has ended is no error.
func (p *Process) Signal(s unix.Signal) error {
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

// Close releases the process, and ends calls of Wait.
func (p *Process) Close() { _ = p.fd.Close() }
