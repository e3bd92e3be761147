package privatehost

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/kuryr/kuryr/internal/jsonstore"
)

// Options say what runs on a host. The zero value is a bare host with its neighbour.
type Options struct {
	Docker      bool     // start a Docker engine and import the image "busybox"
	Dockerd     string   // the engine's program; where empty, KURYR_E2E_DOCKERD's, else "dockerd"
	DockerFlags []string // added to the engine's flags
	Kuryr       string   // path of kuryr; started before the engine with "up" unless empty
	KuryrLater  bool     // New leaves it to StartKuryr; Reboot does not
	KuryrArgs   []string // arguments instead of "up"
	KuryrEnv    []string // NAME=value
	Dir         string   // folder for state and logs; must not exist or be empty; a new temporary one where empty
	Keep        bool     // the host outlives the program; End(Dir) ends it
	Hostname    string   // "host" where empty

	// Booted runs on New and on every Reboot, when the host has its links and before any daemon starts: what the host
	// is joined to and which services it runs besides (see Join and StartService).
	Booted func(context.Context, *Host) error
}

// Host is a running private host. Its methods may be called from any goroutine, but those that start and stop daemons
// or the host itself from one at a time.
type Host struct {
	opts    Options
	dir     string
	ownDir  bool
	host    *node
	outside *node
	docker  *daemon
	kuryr   *daemon
	boots   int

	mu       sync.Mutex
	services []*Service
}

// New starts a host. Close must be called also when ctx has ended.
func New(ctx context.Context, opts Options) (*Host, error) {
	h := &Host{opts: opts, dir: opts.Dir}
	if os.Geteuid() != 0 {
		return nil, errors.New("a private host needs root: it makes namespaces and mounts")
	}
	if h.dir == "" {
		dir, err := os.MkdirTemp("", "kuryr-host-")
		if err != nil {
			return nil, err
		}
		h.dir, h.ownDir = dir, true
	}
	if err := h.start(ctx); err != nil {
		err = fmt.Errorf("%w\n%s", err, h.Logs(30))
		h.Close()
		return nil, err
	}
	return h, nil
}

func (h *Host) start(ctx context.Context) error {
	for _, dir := range []string{"docker", "kuryr"} {
		if err := os.MkdirAll(filepath.Join(h.dir, dir), 0o755); err != nil {
			return err
		}
	}
	var err error
	h.outside, err = startNode(settings{
		Hostname: "neighbour", Keep: h.opts.Keep, Scratch: filepath.Join(h.dir, "scratch-outside"),
	})
	if err != nil {
		return err
	}
	return h.boot(ctx)
}

// boot starts the host's first process, joins it to the neighbour and starts what the options ask for.
func (h *Host) boot(ctx context.Context) error {
	var err error
	h.host, err = startNode(settings{Hostname: h.Hostname(), Keep: h.opts.Keep, Full: true,
		Scratch: filepath.Join(h.dir, "scratch-host"), State: filepath.Join(h.dir, "kuryr")})
	if err != nil {
		return err
	}
	if h.opts.Keep { // before there are processes that a killed program would leave
		if err := h.record(); err != nil {
			return err
		}
	}
	if err := h.link(); err != nil {
		return fmt.Errorf("join host and neighbour: %w", err)
	}
	if h.opts.Booted != nil {
		if err := h.opts.Booted(ctx, h); err != nil {
			return err
		}
	}
	if h.opts.Kuryr != "" && (!h.opts.KuryrLater || h.boots > 0) {
		if err := h.StartKuryr(ctx, h.opts.KuryrArgs, h.opts.KuryrEnv); err != nil {
			return err
		}
	}
	if h.opts.Docker {
		if err := h.StartDocker(ctx); err != nil {
			return err
		}
		if h.boots == 0 {
			if err := h.ImportBusybox(ctx); err != nil {
				return err
			}
		}
	}
	h.boots++
	return nil
}

// link makes the veth between host and neighbour, with addresses at once usable, and the host's default routes.
func (h *Host) link() error {
	out, err := handleOf(h.outside.pid)
	if err != nil {
		return err
	}
	defer out.Close()
	in, err := handleOf(h.host.pid)
	if err != nil {
		return err
	}
	defer in.Close()
	// The kernel takes a dead host's end away some time after its last process, and ours with it.
	if old, err := out.LinkByName("eth0"); err == nil {
		if err := out.LinkDel(old); err != nil && !errors.Is(err, unix.ENODEV) {
			return err
		}
	}
	veth := &netlink.Veth{LinkAttrs: netlink.NewLinkAttrs(), PeerName: Uplink, PeerNamespace: netlink.NsPid(h.host.pid)}
	veth.Name = "eth0"
	if err := out.LinkAdd(veth); err != nil {
		return err
	}
	for _, side := range []struct {
		handle *netlink.Handle
		name   string
		addrs  []netip.Prefix
	}{
		{in, Uplink, []netip.Prefix{HostIPv4, HostIPv6}},
		{out, "eth0", []netip.Prefix{NeighbourIPv4, NeighbourIPv6}},
	} {
		for _, name := range []string{"lo", side.name} {
			link, err := side.handle.LinkByName(name)
			if err != nil {
				return err
			}
			if err := side.handle.LinkSetUp(link); err != nil {
				return err
			}
			if name == "lo" {
				continue
			}
			for _, p := range side.addrs {
				addr := &netlink.Addr{IPNet: ipNet(p), Flags: unix.IFA_F_NODAD}
				if err := side.handle.AddrAdd(link, addr); err != nil {
					return fmt.Errorf("address %s: %w", p, err)
				}
			}
		}
	}
	for _, side := range []struct {
		handle *netlink.Handle
		name   string
	}{{in, Uplink}, {out, "eth0"}} {
		if err := settled(side.handle, side.name); err != nil {
			return err
		}
	}
	for _, via := range []netip.Prefix{NeighbourIPv4, NeighbourIPv6} {
		if err := in.RouteAdd(&netlink.Route{Gw: via.Addr().AsSlice()}); err != nil {
			return fmt.Errorf("default route via %s: %w", via.Addr(), err)
		}
	}
	return nil
}

// settled waits until a link that was set up has all that the kernel gives it a little
// later: its carrier, its link-local address, and the routes of both. What a test sees of
// the host then changes by what the test does only.
func settled(handle *netlink.Handle, name string) error {
	for range 3000 {
		link, err := handle.LinkByName(name)
		if err != nil {
			return err
		}
		addrs, err := handle.AddrList(link, unix.AF_INET6)
		if err != nil {
			return err
		}
		local := slices.ContainsFunc(addrs, func(a netlink.Addr) bool {
			return a.IP.IsLinkLocalUnicast() && a.Flags&unix.IFA_F_TENTATIVE == 0
		})
		routes, err := handle.RouteListFiltered(unix.AF_INET6, &netlink.Route{
			Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL, LinkIndex: link.Attrs().Index,
		},
			netlink.RT_FILTER_TABLE|netlink.RT_FILTER_TYPE|netlink.RT_FILTER_OIF)
		if err != nil {
			return err
		}
		if local && len(routes) >= 2 && link.Attrs().OperState == netlink.OperUp {
			return nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	return fmt.Errorf("link %s does not come up", name)
}

func handleOf(pid int) (*netlink.Handle, error) {
	ns, err := netns.GetFromPid(pid)
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	return netlink.NewHandleAt(ns)
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// Dir is the folder with the host's state and logs.
func (h *Host) Dir() string { return h.dir }

// Hostname is the host's name, as the host itself tells it.
func (h *Host) Hostname() string { return cmp.Or(h.opts.Hostname, "host") }

// Pid is the host's first process as the machine sees it: nsenter -a -t PID gives a shell in the host.
func (h *Host) Pid() int { return h.host.pid }

// Path tells how a file of the host is reached from outside it; it also serves for sockets.
func (h *Host) Path(p string) string { return h.host.path(p) }

// Exec runs a command in the host and waits for it; ended by ctx it is killed with its process group.
func (h *Host) Exec(ctx context.Context, argv ...string) Result {
	return h.host.exec(ctx, nil, nil, argv)
}

// ExecIn is Exec with a standard input.
func (h *Host) ExecIn(ctx context.Context, stdin io.Reader, argv ...string) Result {
	return h.host.exec(ctx, nil, stdin, argv)
}

// Outside runs a command on the neighbour.
func (h *Host) Outside(ctx context.Context, argv ...string) Result {
	return h.outside.exec(ctx, nil, nil, argv)
}

// Docker runs the docker command against the host's engine.
func (h *Host) Docker(ctx context.Context, args ...string) Result {
	return h.Exec(ctx, append([]string{"docker"}, args...)...)
}

// Command prepares a command whose streams and folder the caller sets; Start it with StartCommand.
func (h *Host) Command(ctx context.Context, argv ...string) *exec.Cmd {
	return h.host.command(ctx, nil, argv)
}

// StartCommand starts what Command prepared; the caller waits for it.
func (h *Host) StartCommand(cmd *exec.Cmd) error { return h.host.enter(cmd.Start) }

// StartOutside starts a command on the neighbour, which runs until stop is called or the host is closed.
func (h *Host) StartOutside(ctx context.Context, argv ...string) (stop func(), err error) {
	cmd := h.outside.command(ctx, nil, argv)
	if err := h.outside.enter(cmd.Start); err != nil {
		return nil, err
	}
	// A host does not end before its last process is reaped, so nobody may forget to.
	gone := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(gone)
	}()
	return func() {
		select {
		case <-gone: // its number may be another's by now
		default:
			_ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
			<-gone
		}
	}, nil
}

// Reboot loses everything but the folders of Kuryr (/var/lib/kuryr) and of Docker: every process of the host is killed
// at once and its namespaces end; then it boots as New did. The neighbour stays.
func (h *Host) Reboot(ctx context.Context) error {
	h.off()
	return h.boot(ctx)
}

// RebootBare is Reboot without the daemons: StartKuryr and StartDocker are left to the caller.
func (h *Host) RebootBare(ctx context.Context) error {
	h.off()
	opts := h.opts
	defer func() { h.opts = opts }()
	h.opts.Docker, h.opts.Kuryr = false, ""
	return h.boot(ctx)
}

func (h *Host) off() {
	h.host.kill()
	h.waitAll()
	h.removeGroups()
}

// Close ends the host and removes its folder, unless Keep was asked for and the host runs.
func (h *Host) Close() {
	for _, n := range []*node{h.host, h.outside} {
		if n != nil {
			n.kill()
		}
	}
	h.waitAll()
	h.removeGroups()
	h.removeDir()
}

// waitAll returns when every daemon of a killed host has been reaped.
func (h *Host) waitAll() {
	h.docker.wait()
	h.kuryr.wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.services {
		s.wait()
	}
	h.services = nil
}

// removeDir retries, since the kernel gives the engine's mounts back a moment after the last process has gone.
func (h *Host) removeDir() {
	for range 300 {
		if err := os.RemoveAll(h.dir); err == nil {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// removeGroups removes the control groups of killed containers, which no engine is left to remove.
func (h *Host) removeGroups() {
	for range 50 {
		left := 0
		for _, pattern := range []string{"/sys/fs/cgroup/", "/sys/fs/cgroup/*/"} {
			tops, _ := filepath.Glob(pattern + h.Group())
			for _, top := range tops {
				var dirs []string
				_ = filepath.WalkDir(top, func(p string, d os.DirEntry, err error) error {
					if err == nil && d.IsDir() {
						dirs = append(dirs, p)
					}
					return nil
				})
				for i := len(dirs) - 1; i >= 0; i-- {
					if err := unix.Rmdir(dirs[i]); err != nil && !errors.Is(err, unix.ENOENT) {
						left++
					}
				}
			}
		}
		if left == 0 {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// kept is what a later program needs to end a kept host.
type kept struct{ Host, Outside int }

func (h *Host) record() error {
	return jsonstore.WriteFile(filepath.Join(h.dir, "kept"), kept{h.host.pid, h.outside.pid})
}

// Detach lets go of a kept host without ending it.
func (h *Host) Detach() error {
	if !h.opts.Keep {
		return errors.New("the host was not started to be kept")
	}
	return h.record()
}

// Attach opens a kept host, so that commands can be run in it; it must not be closed but ended with End.
func Attach(dir string) (*Host, error) {
	k, err := readKept(dir)
	if err != nil {
		return nil, err
	}
	h := &Host{opts: Options{Keep: true}, dir: dir, boots: 1}
	for _, n := range []struct {
		to  **node
		pid int
	}{{&h.host, k.Host}, {&h.outside, k.Outside}} {
		fd, err := unix.PidfdOpen(n.pid, 0)
		if err != nil {
			return nil, fmt.Errorf("the host of %s has gone (process %d): %w", dir, n.pid, err)
		}
		*n.to = &node{pid: n.pid, pidfd: fd}
	}
	return h, nil
}

// End ends a kept host from another program and removes its folder. A host that has gone already is no error.
func End(dir string) error {
	k, err := readKept(dir)
	if err != nil {
		return err
	}
	h := &Host{dir: dir}
	for _, pid := range []int{k.Host, k.Outside} {
		// A number may belong to someone else by now: only a process that runs this program's Init is ours.
		env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		if err != nil || !strings.Contains(string(env), initEnv+"=") || !strings.Contains(string(env), dir) {
			continue
		}
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue
		}
		_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
		for err = unix.EINTR; errors.Is(err, unix.EINTR); { // readable once the process has ended
			_, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 60_000)
		}
		_ = unix.Close(fd)
	}
	h.removeGroups()
	h.removeDir()
	return nil
}

func readKept(dir string) (kept, error) {
	k, err := jsonstore.ReadFile[kept](filepath.Join(dir, "kept"))
	if err != nil {
		return k, fmt.Errorf("no kept host: %w", err)
	}
	return k, nil
}
