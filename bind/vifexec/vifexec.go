//go:build linux

// Package vifexec calls the executables that plug ports of VIF types Kuryr has no driver
// for, in the words of kuryr-lib, whose plug-in point they are.
//
// It owns finding an executable, the proof that only root can have put it there, its
// arguments, and its end. It must not touch an interface, and knows nothing of a port but
// what the executable is told.
package vifexec

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/kuryr/kuryr/sdn"
	"golang.org/x/sys/unix"
)

// DefaultDir is the folder of the executables: kuryr-lib's.
const DefaultDir = "/usr/libexec/kuryr"

const (
	runTime = 30 * time.Second // of one run
	said    = 4 << 10          // how much of its output an error shows, in bytes
)

// vifType is what a VIF type must be to name an executable.
var vifType = regexp.MustCompile(`^[a-z0-9_-]+$`)

// Dir is a folder of executables, each of a VIF type's name. They are called, without a
// shell between, as
//
//	bind   PORT INTERFACE DEVICE MAC NETWORK PROJECT VIF_DETAILS
//	unbind PORT INTERFACE DEVICE MAC VIF_DETAILS NETWORK
//
// in the process's own network namespace, with an empty standard input. VIF_DETAILS is a
// Python dictionary's text between double quotes, "" where there are none; its values are
// of the types that the SDN gave them, but for a number that is no part of another value:
// Neutron gives those as text. Exit status 0 is success. Both may be repeated. A run has
// half a minute; then it is killed with all that it started.
type Dir string

// Bind has the port's interface wired. Errors: IsUnsupported where the VIF type has no
// executable, IsDenied where others than root could have changed it, IsUnavailable where
// it did not end in time; *Error where it failed.
func (d Dir) Bind(ctx context.Context, port sdn.Port, link string) error {
	return d.run(
		ctx, port, "bind", string(port.ID), link, port.DeviceID, port.MAC.String(), string(port.Network),
		port.Project, quoted(port.VIF.Details),
	)
}

// Unbind undoes Bind. Its errors are Bind's.
func (d Dir) Unbind(ctx context.Context, port sdn.Port, link string) error {
	return d.run(
		ctx, port, "unbind", string(port.ID), link, port.DeviceID, port.MAC.String(),
		quoted(port.VIF.Details), string(port.Network),
	)
}

// Check finds the executable of the port's VIF type, and has Bind's errors.
func (d Dir) Check(port sdn.Port) error {
	_, err := d.program(port)
	return err
}

// program finds the executable of the port's VIF type. The error IsUnsupported where
// there is none, and IsDenied where others than root could have put it there.
func (d Dir) program(port sdn.Port) (string, error) {
	refuse := func(kind sdn.Kind, detail string, args ...any) error {
		return &sdn.Error{
			Kind: kind, Noun: "port", ID: string(port.ID), Field: "vif.type",
			Detail: fmt.Sprintf(detail, args...),
		}
	}
	if !vifType.MatchString(port.VIF.Type) {
		return "", refuse(
			sdn.KindUnsupported, "no binding driver for VIF type %q, which cannot name an executable either",
			port.VIF.Type,
		)
	}
	path := filepath.Join(string(d), port.VIF.Type)
	if !filepath.IsAbs(path) {
		return "", refuse(sdn.KindDenied, "the folder of executables, %q, is no whole path", string(d))
	}
	real, info, err := resolve(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", refuse(sdn.KindUnsupported, "no binding driver for VIF type %q, and no executable %s", port.VIF.Type, path)
	case isUntrusted(err):
		return "", refuse(sdn.KindDenied, "executable %s: %v", path, err)
	case err != nil:
		return "", fmt.Errorf("executable of VIF type %s: %w", port.VIF.Type, err)
	case !info.Mode().IsRegular() || info.Mode().Perm()&0o100 == 0:
		return "", refuse(sdn.KindDenied, "%s is no executable file", real)
	}
	return real, nil
}

func (d Dir) run(ctx context.Context, port sdn.Port, args ...string) error {
	program, err := d.program(port)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, runTime)
	defer cancel()
	out := &bounded{left: said}
	done := make(chan error, 1)
	go func() { // on a thread of the Binder's own namespace: the caller's may be in another
		c := exec.CommandContext(ctx, program, args...)
		c.Args[0] = filepath.Join(string(d), port.VIF.Type) // one program may serve several types
		c.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8"}
		c.Dir = "/"
		c.Stdout, c.Stderr = out, out
		c.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
		c.Cancel = func() error { return unix.Kill(-c.Process.Pid, unix.SIGKILL) }
		c.WaitDelay = time.Second
		done <- c.Run()
	}()
	if err = <-done; err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return sdn.Unavailable(context.Cause(ctx), "executable "+program, "%s did not end in time", args[0])
	}
	text := strings.ToValidUTF8(out.kept.String(), "?")
	return &Error{Program: program, Verb: args[0], Output: strings.Join(strings.Fields(text), " "), Err: err}
}

// Error is the failure of an executable.
type Error struct {
	Program string
	Verb    string // bind or unbind
	Output  string // the first part of it, in one line
	Err     error
}

func (e *Error) Error() string {
	text := fmt.Sprintf("%s %s: %v", e.Program, e.Verb, e.Err)
	if e.Output != "" {
		text += ": " + e.Output
	}
	return text
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// bounded keeps the first bytes of what is written to it.
type bounded struct {
	kept bytes.Buffer // not embedded: its ReadFrom knows no bound
	left int
}

func (b *bounded) Write(p []byte) (int, error) {
	n := min(len(p), b.left)
	b.left -= n
	_, _ = b.kept.Write(p[:n])
	return len(p), nil
}
