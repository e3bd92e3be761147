package privatehost

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// The sockets of the two daemons, as seen in the host.
const (
	DockerSocket = "/run/docker.sock"
	PluginSocket = "/run/docker/plugins/kuryr.sock"
	KuryrSocket  = "/run/kuryr/kuryr.sock"
)

// daemon is a process that runs until it is stopped; its output goes to a file.
type daemon struct {
	cmd  *exec.Cmd
	log  string
	gone chan struct{}
}

func (h *Host) spawn(log string, env, argv []string) (*daemon, error) {
	file, err := os.OpenFile(filepath.Join(h.dir, log), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	d := &daemon{cmd: h.host.command(context.Background(), env, argv), log: file.Name(), gone: make(chan struct{})}
	d.cmd.Stdout, d.cmd.Stderr = file, file
	if err := h.host.enter(d.cmd.Start); err != nil {
		return nil, fmt.Errorf("start %s: %w", argv[0], err)
	}
	go func() {
		_ = d.cmd.Wait()
		close(d.gone)
	}()
	return d, nil
}

// ready asks again and again until answers says yes, the daemon ends or ctx does.
func (d *daemon) ready(ctx context.Context, answers func(context.Context) bool) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if answers(ctx) {
			return nil
		}
		select {
		case <-tick.C:
		case <-d.gone:
			return fmt.Errorf(
				"%s ended before it was ready: %s; the end of its log:\n%s", d.cmd.Args[0],
				d.cmd.ProcessState, lastLines(d.log, 10),
			)
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w", d.cmd.Args[0], ctx.Err())
		}
	}
}

// wait returns when the process has been reaped; none at all is no wait.
func (d *daemon) wait() {
	if d != nil {
		<-d.gone
	}
}

// stop sends sig and waits for the end; what does not end within limit is killed, and that is an error.
func (d *daemon) stop(sig syscall.Signal, limit time.Duration) error {
	if d == nil {
		return nil
	}
	_ = d.cmd.Process.Signal(sig)
	select {
	case <-d.gone:
		return nil
	case <-time.After(limit):
		_ = d.cmd.Process.Kill()
		<-d.gone
		return fmt.Errorf("%s did not end within %s of %s", d.cmd.Args[0], limit, sig)
	}
}

// StartDocker starts the engine and returns when it answers. Its data folder outlives Reboot.
func (h *Host) StartDocker(ctx context.Context) error {
	if d := h.docker; d != nil {
		select {
		case <-d.gone:
		default:
			return errors.New("the engine runs already")
		}
	}
	h.forgetEnginePids()
	engine, err := findEngine(h.opts.Dockerd)
	if err != nil {
		return err
	}
	argv := append([]string{engine.program, "--data-root", filepath.Join(h.dir, "docker"), "--exec-root", "/run/docker",
		"--pidfile", "/run/docker.pid", "-H", "unix://" + DockerSocket,
		"--exec-opt", "native.cgroupdriver=cgroupfs", "--cgroup-parent", "/" + h.Group()}, engine.flags()...)
	argv = append(argv, h.opts.DockerFlags...)
	d, err := h.spawn("dockerd.log", nil, argv)
	if err != nil {
		return err
	}
	h.docker = d
	client := h.UnixClient(DockerSocket)
	return d.ready(ctx, func(ctx context.Context) bool {
		return answers(ctx, client, http.MethodGet, "http://docker/_ping")
	})
}

// forgetEnginePids removes the files in which a killed engine left its own process ID and
// its containerd's. Other processes soon have those IDs, and an engine that finds one in
// use does not start, or waits in vain for containerd. The kernel kills containerd some
// time after its engine, so the function waits until containerd has ended.
func (h *Host) forgetEnginePids() {
	_ = os.Remove(h.Path("/run/docker.pid"))
	const file = "/run/docker/containerd/containerd.pid"
	pid, err := os.ReadFile(h.Path(file))
	if err != nil {
		return
	}
	for range 500 {
		name, _ := os.ReadFile(h.Path(filepath.Join("/proc", strings.TrimSpace(string(pid)), "comm")))
		if strings.TrimSpace(string(name)) != "containerd" {
			_ = os.Remove(h.Path(file))
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// StopDocker ends the engine: with SIGTERM it stops its containers first, with SIGKILL it has no time to.
func (h *Host) StopDocker(sig syscall.Signal) error { return h.docker.stop(sig, 60*time.Second) }

// StartKuryr starts kuryr with args and env added, and returns when its plugin socket
// answers. Where args are empty they are the host's (Options.KuryrArgs and KuryrEnv),
// else "up".
func (h *Host) StartKuryr(ctx context.Context, args, env []string) error {
	d, err := h.spawnKuryr(args, env)
	if err != nil {
		return err
	}
	client := h.UnixClient(PluginSocket)
	return d.ready(ctx, func(ctx context.Context) bool {
		return answers(ctx, client, http.MethodPost, "http://kuryr/Plugin.Activate")
	})
}

func (h *Host) spawnKuryr(args, env []string) (*daemon, error) {
	if h.opts.Kuryr == "" {
		return nil, errors.New("the host was made without kuryr")
	}
	if len(args) == 0 {
		args, env = h.opts.KuryrArgs, append(slices.Clone(h.opts.KuryrEnv), env...)
	}
	if len(args) == 0 {
		args = []string{"up"}
	}
	d, err := h.spawn("kuryr.log", env, append([]string{h.opts.Kuryr}, args...))
	if err != nil {
		return nil, err
	}
	h.kuryr = d
	return d, nil
}

// KuryrWith makes StartKuryr and Reboot start Kuryr with args, unless they are nil, and
// with env added, until undo is called.
func (h *Host) KuryrWith(args, env []string) (undo func()) {
	was := h.opts
	if args != nil {
		h.opts.KuryrArgs = args
	}
	h.opts.KuryrEnv = append(slices.Clone(was.KuryrEnv), env...)
	return func() { h.opts.KuryrArgs, h.opts.KuryrEnv = was.KuryrArgs, was.KuryrEnv }
}

// UseKuryr has the next StartKuryr start another program.
func (h *Host) UseKuryr(program string) { h.opts.Kuryr = program }

// KillKuryr sends sig to kuryr and waits for its end.
func (h *Host) KillKuryr(sig syscall.Signal) error { return h.kuryr.stop(sig, 60*time.Second) }

// KuryrGone is closed when the kuryr that was started last has ended.
func (h *Host) KuryrGone() <-chan struct{} { return h.kuryr.gone }

// KuryrKilled waits for kuryr's end and reports whether it was by SIGKILL, its own or another's.
func (h *Host) KuryrKilled() bool {
	h.kuryr.wait()
	status, ok := h.kuryr.cmd.ProcessState.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGKILL
}

// KuryrPid is kuryr's process as the machine sees it.
func (h *Host) KuryrPid() int { return h.kuryr.cmd.Process.Pid }

// Kuryr runs the kuryr command in the host.
func (h *Host) Kuryr(ctx context.Context, args ...string) Result {
	return h.Exec(ctx, append([]string{h.opts.Kuryr}, args...)...)
}

// UnixClient speaks HTTP with a Unix socket of the host, a new connection for each request.
func (h *Host) UnixClient(socket string) *http.Client {
	return &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", h.Path(socket))
		},
	}}
}

func answers(ctx context.Context, client *http.Client, method, url string) bool {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		return false
	}
	resp, err := client.Do(req)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// logFiles are the logs of the host's daemons and services.
func (h *Host) logFiles() []string {
	files, _ := filepath.Glob(filepath.Join(h.dir, "*.log"))
	return files
}

// emptyLogs makes the logs begin here. The daemons continue to write to them.
func (h *Host) emptyLogs() error {
	for _, file := range h.logFiles() {
		if err := os.Truncate(file, 0); err != nil {
			return err
		}
	}
	return nil
}

// Logs returns the last lines of each daemon's log.
func (h *Host) Logs(lines int) string {
	var b strings.Builder
	for _, file := range h.logFiles() {
		fmt.Fprintf(&b, "--- %s\n%s\n", filepath.Base(file), lastLines(file, lines))
	}
	return b.String()
}

// lastLines are the last n lines of a file; of one that cannot be read there are none.
func lastLines(file string, n int) []byte {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil
	}
	all := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	return bytes.Join(all[max(0, len(all)-n):], []byte("\n"))
}
