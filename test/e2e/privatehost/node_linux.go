package privatehost

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// node is one first process and the namespaces it holds.
type node struct {
	cmd   *exec.Cmd
	stdin io.Closer // its end ends the process, unless it is kept
	pid   int
	pidfd int
	gone  chan struct{}
}

func startNode(s settings) (*node, error) {
	text, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(s.Scratch, 0o755); err != nil {
		return nil, err
	}
	n := &node{cmd: exec.Command("/proc/self/exe"), gone: make(chan struct{})}
	n.cmd.Env = append(os.Environ(), initEnv+"="+string(text))
	n.cmd.SysProcAttr = attributes()
	n.cmd.Dir = "/"
	n.cmd.Stderr = os.Stderr
	if n.stdin, err = n.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if s.Keep {
		n.cmd.Stderr = nil // a descriptor that outlives us would keep our caller waiting
	}
	out, err := n.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := n.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start a process in new namespaces (needs root): %w", err)
	}
	n.pid = n.cmd.Process.Pid
	answer, _ := bufio.NewReader(out).ReadString('\n')
	go func() {
		_ = n.cmd.Wait()
		close(n.gone)
	}()
	if strings.TrimSpace(answer) != "ready" {
		n.kill()
		return nil, fmt.Errorf("prepare a private host: %s", strings.TrimSpace(answer))
	}
	if n.pidfd, err = unix.PidfdOpen(n.pid, 0); err != nil {
		n.kill()
		return nil, fmt.Errorf("open process %d: %w", n.pid, err)
	}
	return n, nil
}

// kill ends the process and with it, by the kernel, every process in its pid namespace.
func (n *node) kill() {
	_ = unix.Kill(n.pid, unix.SIGKILL)
	<-n.gone
	_ = n.stdin.Close()
	if n.pidfd > 0 {
		_ = unix.Close(n.pidfd)
		n.pidfd = 0
	}
}

// path tells how a path of the node's mount namespace is reached from the machine's.
func (n *node) path(p string) string { return filepath.Join(fmt.Sprintf("/proc/%d/root", n.pid), p) }

// enter runs f on a thread of its own that is in the node's namespaces; processes that f starts are there too.
func (n *node) enter(f func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread must not be used for anything else
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			result <- fmt.Errorf("unshare: %w", err)
			return
		}
		if err := unix.Setns(n.pidfd, cloneFlags); err != nil {
			result <- fmt.Errorf("enter the namespaces of process %d: %w", n.pid, err)
			return
		}
		result <- f()
	}()
	return <-result
}

// Result is what a command left.
type Result struct {
	Argv   []string
	Stdout string
	Stderr string
	Code   int // exit status; -1 when it was killed or never ran
}

// OK tells whether the command succeeded.
func (r Result) OK() bool { return r.Code == 0 }

// Err is nil where the command succeeded, else an error that shows all it left.
func (r Result) Err() error {
	if r.OK() {
		return nil
	}
	return errors.New(r.String())
}

// Out is the standard output without surrounding white space.
func (r Result) Out() string { return strings.TrimSpace(r.Stdout) }

// String shows the command with all it left, for messages.
func (r Result) String() string {
	return fmt.Sprintf("%s\nexit status %d\n%s%s", strings.Join(r.Argv, " "), r.Code, r.Stdout, r.Stderr)
}

// command prepares argv to run in the node; env is added to the usual one.
func (n *node) command(ctx context.Context, env, argv []string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, lookPath(argv[0]), argv[1:]...)
	cmd.Args[0] = argv[0]
	cmd.Dir = "/"
	cmd.Env = append(
		append(
			environment(), "PATH="+searchPath, "HOME=/root", "DOCKER_CONFIG=/run/docker-config",
			"LC_ALL=C",
		),
		env...,
	)
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	cmd.WaitDelay = 2 * time.Second // for output that a left-behind child holds open
	return cmd
}

func (n *node) exec(ctx context.Context, env []string, stdin io.Reader, argv []string) Result {
	var stdout, stderr bytes.Buffer
	cmd := n.command(ctx, env, argv)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &stdout, &stderr
	err := n.enter(cmd.Start)
	if err == nil {
		err = cmd.Wait()
	}
	r := Result{Argv: argv, Stdout: stdout.String(), Stderr: stderr.String()}
	if err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		r.Code = -1
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			r.Code = exit.ExitCode()
		} else {
			r.Stderr += err.Error()
		}
	}
	return r
}

// environment is the program's own, without what is about Kuryr: that speaks of the machine or to a test.
func environment() []string {
	return slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, "KURYR_") })
}

// searchPath begins with the distribution's folders: another Docker client or Python may lie in /usr/local.
const searchPath = "/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/sbin:/usr/local/bin:/usr/local/go/bin"

func lookPath(name string) string {
	if strings.Contains(name, "/") {
		return name
	}
	for _, dir := range filepath.SplitList(searchPath) {
		p := filepath.Join(dir, name)
		if info, err := os.Stat(p); err == nil && info.Mode()&0o111 != 0 && !info.IsDir() {
			return p
		}
	}
	return name
}
