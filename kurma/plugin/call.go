//go:build linux

package plugin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Where the executables of a plugin are (Kurma Network Specification; setup is of its first version).
const (
	execAdd   = "/opt/network/add"
	execDel   = "/opt/network/del"
	execSetup = "/opt/network/setup"
)

// callLimit is how long a call may take, by the specification.
const callLimit = time.Minute

// maxAnswer bounds each of the streams of a call; what is more is read and forgotten.
const maxAnswer = 1 << 20

// Add has the network attach a pod. The error is a *NotRunningError where the plugin is not running, a *CallError where it was called and failed, was too slow or
// answered what makes no sense; ErrUnknown of a network that is not configured. Then what it did before may be half made, and Del is to be called.
// Calls run in parallel. When Add returns, no process of the call is left.
func (p *Pod) Add(ctx context.Context, on Ref, c Call) (*Result, error) {
	out, err := p.call(ctx, on, "add", execAdd, c)
	if err != nil {
		return nil, err
	}
	if len(out) > maxAnswer {
		return nil, &CallError{Network: on.Name, Verb: "add", Message: fmt.Sprintf("its answer is larger than %d bytes", maxAnswer)}
	}
	result, err := parseResult(out)
	if err != nil {
		return nil, &CallError{Network: on.Name, Verb: "add", Message: err.Error()}
	}
	return result, nil
}

// Del has the network take away what Add made, whole or half. The namespace may be gone. Errors are as Add's.
func (p *Pod) Del(ctx context.Context, on Ref, c Call) error {
	_, err := p.call(ctx, on, "del", execDel, c)
	return err
}

func (p *Pod) call(ctx context.Context, on Ref, verb, path string, c Call) ([]byte, error) {
	g, err := p.find(on)
	if err != nil {
		return nil, err
	}
	name, inside := strings.CutPrefix(filepath.Clean(c.Namespace), p.cfg.NetNS+"/")
	if !inside || strings.Contains(name, "/") {
		return nil, fmt.Errorf("namespace %s: it is not pinned in %s, which is what plugins see", c.Namespace, p.cfg.NetNS)
	}
	d, leave, err := g.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	return g.execute(ctx, d, verb, path, netnsInside+"/"+name, c.Pod, c.Interface)
}

// calls numbers them, for the names of their groups.
var calls atomic.Uint64

var errTooSlow = errors.New("too slow")

// execute runs one of the plugin's executables to its end, and gives what it has written to stdout.
func (g *generation) execute(ctx context.Context, d door, verb, path string, args ...string) ([]byte, error) {
	failure := &CallError{Network: g.network.Name, Verb: verb, Code: -1}
	in, err := sealed(g.network.Raw)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	processes, err := g.pod.cgroups.make(fmt.Sprintf("call-%d-%d", os.Getpid(), calls.Add(1)))
	if err != nil {
		return nil, err
	}
	ended := false
	end := func() error {
		if ended {
			return nil
		}
		ended = true
		return processes.end(context.WithoutCancel(ctx))
	}
	defer func() { _ = end() }()
	stdout, stderr := &answer{}, &answer{}
	cmd := &exec.Cmd{Path: path, Args: append([]string{path}, args...), Dir: "/", Env: environment(g.environ()), Stdin: in}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, UseCgroupFD: true, CgroupFD: int(processes.file.Fd())}
	wait, err := stream(cmd, stdout, stderr, endLimit)
	if err != nil {
		return nil, err
	}
	limit, cancel := context.WithTimeoutCause(ctx, g.pod.cfg.CallLimit, errTooSlow)
	defer cancel()
	if err := d.start(cmd); err != nil {
		wait()
		failure.Message = "cannot execute " + path + ": " + reason(err)
		return nil, failure
	}
	killed := context.AfterFunc(limit, func() { _ = processes.kill() })
	err = cmd.Wait()
	late := !killed() // the limit came before the end
	if gone := end(); gone != nil {
		g.pod.log.Warn("processes of a call are left", "network", g.network.Name, "verb", verb, "error", gone)
	}
	wait() // every writer is gone now
	if err == nil {
		return stdout.bytes(), nil
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		failure.Code = exit.ExitCode()
	}
	said := complaint(stdout.bytes(), stderr.bytes())
	switch {
	case late && errors.Is(context.Cause(limit), errTooSlow):
		failure.Timeout = true
		failure.Message = fmt.Sprintf("it did not end within %s, and was killed with all its children", g.pod.cfg.CallLimit)
		if said != "" {
			failure.Message += "; it had said: " + said
		}
	case late:
		failure.Message = "it was killed with all its children: " + context.Cause(ctx).Error()
	case said != "":
		failure.Message = said
	case failure.Code >= 0:
		failure.Message = fmt.Sprintf("it has exited with status %d, and said nothing", failure.Code)
	default:
		failure.Message = "it has ended by itself: " + err.Error()
	}
	return nil, failure
}

// Outcome is a word for metrics.
func (e *CallError) Outcome() string {
	if e.Timeout {
		return "timeout"
	}
	return "failed"
}

// Outcome is a word for metrics.
func (e *NotRunningError) Outcome() string { return "not_running" }

// NotCalled says that the network's add or del has not run.
func (e *NotRunningError) NotCalled() bool { return true }

// reason is the kernel's of a program that could not be started.
func reason(err error) string {
	var path *fs.PathError
	if errors.As(err, &path) {
		err = path.Err
	}
	return err.Error()
}

// sealed is a file without a name that holds just this, and that whoever gets it cannot change.
func sealed(content []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate("network", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("standard input: %w", err)
	}
	file := os.NewFile(uintptr(fd), "network")
	if _, err = file.Write(content); err == nil {
		_, err = file.Seek(0, io.SeekStart)
	}
	if err == nil {
		_, err = unix.FcntlInt(file.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SEAL|unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_WRITE)
	}
	if err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("standard input: %w", err)
	}
	return file, nil
}

// stream connects cmd's output to two writers by pipes. Unlike those of package exec, whose Wait would wait for children that hold them, they are waited for after
// the children have been killed, no longer than patience, as what cannot be killed may hold them; that is also the way to end when cmd was not started.
func stream(cmd *exec.Cmd, stdout, stderr io.Writer, patience time.Duration) (wait func(), err error) {
	var ours, theirs []*os.File
	for range 2 {
		r, w, err := os.Pipe()
		if err != nil {
			for _, f := range append(ours, theirs...) {
				_ = f.Close()
			}
			return nil, fmt.Errorf("standard output: %w", err)
		}
		ours, theirs = append(ours, r), append(theirs, w)
	}
	cmd.Stdout, cmd.Stderr = theirs[0], theirs[1]
	done := make(chan struct{}, 2)
	for i, to := range []io.Writer{stdout, stderr} {
		go func() {
			_, _ = io.Copy(to, ours[i])
			done <- struct{}{}
		}()
	}
	return func() {
		for _, w := range theirs {
			_ = w.Close()
		}
		for _, r := range ours {
			_ = r.SetReadDeadline(time.Now().Add(patience))
		}
		for range ours {
			<-done
		}
		for _, r := range ours {
			_ = r.Close()
		}
	}, nil
}

// answer keeps the beginning of a stream.
type answer struct{ buf bytes.Buffer }

// Write keeps what fits, and one byte more to tell that something did not.
func (a *answer) Write(b []byte) (int, error) {
	if room := maxAnswer + 1 - a.buf.Len(); room > 0 {
		a.buf.Write(b[:min(room, len(b))])
	}
	return len(b), nil
}

func (a *answer) bytes() []byte { return a.buf.Bytes() }
