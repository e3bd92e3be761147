package privatehost

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// initEnv carries the settings of a first process, in JSON; where it is set, the program is one.
const initEnv = "KURYR_PRIVATEHOST_INIT"

// settings are what a first process is told by the program that starts it.
type settings struct {
	Hostname string
	Keep     bool   // live on when the program that started it ends
	Full     bool   // the host (private system folders), not the neighbour
	Scratch  string // an empty folder for what ends with the process
	State    string // becomes /var/lib/kuryr
}

// The goroutines that enter a host's namespaces end together with their thread. The main thread cannot end, so none of
// them may run on it: main keeps it for itself.
func init() { runtime.LockOSThread() }

// Init turns the program into the first process of a host if it was started to be one, and then does not return.
func Init() {
	text := os.Getenv(initEnv)
	if text == "" {
		return
	}
	var s settings
	err := json.Unmarshal([]byte(text), &s)
	if err == nil {
		err = s.prepare()
	}
	if err != nil {
		fmt.Println("private host:", err)
		os.Exit(1)
	}
	fmt.Println("ready")
	s.serve()
	os.Exit(0)
}

// serve reaps what is orphaned into this namespace until the program that started it ends or says so.
func (s settings) serve() {
	child := make(chan os.Signal, 16)
	signal.Notify(child, unix.SIGCHLD)
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, unix.SIGTERM)
	gone := make(chan struct{})
	if !s.Keep {
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin)
			close(gone)
		}()
	}
	for {
		select {
		case <-child:
			for {
				pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
				if pid <= 0 && err != unix.EINTR {
					break
				}
			}
		case <-stop:
			return
		case <-gone:
			return
		}
	}
}

// prepare gives the process its own view of the file system and switches forwarding off, which a new network namespace
// takes over from the machine.
func (s settings) prepare() error {
	if err := unix.Sethostname([]byte(s.Hostname)); err != nil {
		return fmt.Errorf("set host name: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := mount("proc", "/proc", "proc", ""); err != nil {
		return err
	}
	if err := mount("tmpfs", s.Scratch, "tmpfs", "mode=755"); err != nil {
		return err
	}
	if err := s.sysfs(); err != nil {
		return err
	}
	if err := mount("tmpfs", "/run", "tmpfs", "mode=755"); err != nil {
		return err
	}
	if s.Full {
		if err := s.folders(); err != nil {
			return err
		}
	}
	// Nor are addresses held back for a second until no one else answers to them: here no one does.
	for _, name := range []string{
		"ipv4/ip_forward", "ipv6/conf/all/forwarding", "ipv6/conf/all/accept_dad",
		"ipv6/conf/default/accept_dad",
	} {
		if err := os.WriteFile("/proc/sys/net/"+name, []byte("0"), 0); err != nil {
			return err
		}
	}
	return nil
}

// sysfs shows the links of the new network namespace under /sys, and the machine's control groups where they were.
func (s settings) sysfs() error {
	const groups = "/sys/fs/cgroup"
	aside := filepath.Join(s.Scratch, "cgroup")
	if err := os.Mkdir(aside, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(groups, aside, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("put the control groups aside: %w", err)
	}
	if err := mount("sysfs", "/sys", "sysfs", ""); err != nil {
		return err
	}
	if err := unix.Mount(aside, groups, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("put the control groups back: %w", err)
	}
	return unix.Unmount(aside, unix.MNT_DETACH)
}

// folders gives the host its own /etc and /var/lib: an overlay of the machine's, so that no folder need be made there.
func (s settings) folders() error {
	for _, dir := range []string{"/etc", "/var/lib"} {
		name := filepath.Base(dir)
		upper, work := filepath.Join(s.Scratch, name, "upper"), filepath.Join(s.Scratch, name, "work")
		for _, d := range []string{upper, work} {
			if err := os.MkdirAll(d, 0o755); err != nil {
				return err
			}
		}
		if err := mount("overlay", dir, "overlay", fmt.Sprintf(
			"lowerdir=%s,upperdir=%s,workdir=%s", dir, upper, work,
		)); err != nil {
			return err
		}
	}
	for _, dir := range []string{
		"/etc/docker", "/etc/kuryr", "/var/lib/kuryr", "/run/netns", "/run/lock",
		"/run/docker/plugins", "/run/kuryr",
	} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	empty := []string{"/etc/docker", "/etc/kuryr"}
	if _, err := os.Stat("/usr/lib/docker"); err == nil {
		empty = append(empty, "/usr/lib/docker")
	}
	for _, dir := range empty {
		if err := mount("tmpfs", dir, "tmpfs", "mode=755"); err != nil {
			return err
		}
	}
	if err := unix.Mount(s.State, "/var/lib/kuryr", "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount /var/lib/kuryr: %w", err)
	}
	return nil
}

func mount(source, target, fstype, data string) error {
	if err := unix.Mount(source, target, fstype, 0, data); err != nil {
		return fmt.Errorf("mount %s on %s: %w", fstype, target, err)
	}
	return nil
}

// cloneFlags are the namespaces of a first process.
const cloneFlags = unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC

func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Cloneflags: cloneFlags, Setsid: true}
}
