//go:build linux

package plugin

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// netnsInside is where plugins see the namespaces of pods.
const netnsInside = "/var/lib/kurma/netns"

// defaultPath is for images that set no PATH.
const defaultPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// capabilities are what network set-up needs, and what a root without them would be surprised by: NET_ADMIN for links, routes and rules, NET_RAW for what looks for
// addresses in use, NET_BIND_SERVICE for DHCP, SYS_ADMIN for setns into a pod's namespace, and those by which root handles its own files and processes.
// Not: modules, raw devices, new device files, tracing, the clock, reboot, other processes' limits.
var capabilities = []string{
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_KILL", "CAP_NET_ADMIN", "CAP_NET_BIND_SERVICE", "CAP_NET_RAW",
	"CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_ADMIN", "CAP_SYS_CHROOT",
}

// keptBits are the same as the kernel counts them (linux/capability.h).
var keptBits = []uintptr{
	unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE, unix.CAP_FOWNER, unix.CAP_KILL, unix.CAP_NET_ADMIN, unix.CAP_NET_BIND_SERVICE, unix.CAP_NET_RAW,
	unix.CAP_SETGID, unix.CAP_SETPCAP, unix.CAP_SETUID, unix.CAP_SYS_ADMIN, unix.CAP_SYS_CHROOT,
}

// bundle is the folder of one container: what its runtime reads, and what it leaves behind.
type bundle struct {
	id, dir string
	lower   string // the image's root file system
}

func (b bundle) pidFile() string { return filepath.Join(b.dir, "pid") }
func (b bundle) fifo() string    { return filepath.Join(b.dir, "output.fifo") }
func (b bundle) output() string  { return filepath.Join(b.dir, "output") }
func (b bundle) rootfs() string  { return filepath.Join(b.dir, "rootfs") }

// write makes the folder. What it holds of a container that has failed, but for its output, is made anew.
func (b bundle) write(img Image, mounts []specs.Mount) error {
	for _, old := range []string{"upper", "work", "rootfs"} {
		if err := os.RemoveAll(filepath.Join(b.dir, old)); err != nil {
			return fmt.Errorf("bundle: %w", err)
		}
	}
	for _, dir := range []string{"upper", "work", "rootfs"} {
		if err := os.MkdirAll(filepath.Join(b.dir, dir), 0o755); err != nil {
			return fmt.Errorf("bundle: %w", err)
		}
	}
	if err := unix.Mkfifo(b.fifo(), 0o600); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("bundle: %w", err)
	}
	text, err := json.Marshal(b.spec(img, mounts))
	if err != nil {
		return fmt.Errorf("bundle: %w", err)
	}
	if err := os.WriteFile(filepath.Join(b.dir, "config.json"), text, 0o600); err != nil {
		return fmt.Errorf("bundle: %w", err)
	}
	return nil
}

// mountRoot lays a writable layer over the image's files, which are shared. The calling thread is in a mount namespace that goes with the container.
func (b bundle) mountRoot() error {
	escape := strings.NewReplacer(`\`, `\\`, ":", `\:`, ",", `\,`).Replace
	options := "lowerdir=" + escape(b.lower) + ",upperdir=" + escape(filepath.Join(b.dir, "upper")) + ",workdir=" + escape(filepath.Join(b.dir, "work"))
	if err := unix.Mount("overlay", b.rootfs(), "overlay", 0, options); err != nil {
		return fmt.Errorf("root file system: overlay on %s: %w", b.lower, err)
	}
	return nil
}

// spec is the container (opencontainers/runtime-spec, config.md): of the host's namespaces it has all but those of mounts and processes.
func (b bundle) spec(img Image, mounts []specs.Mount) specs.Spec {
	hidden := []string{"/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list", "/proc/sched_debug", "/proc/scsi", "/proc/acpi", "/sys/firmware"}
	fixed := []string{"/proc/asound", "/proc/bus", "/proc/fs", "/proc/irq", "/proc/sysrq-trigger"}
	// Of /proc/sys only net is a plugin's to change.
	for _, part := range []string{"abi", "crypto", "debug", "dev", "fs", "kernel", "sunrpc", "user", "vm"} {
		fixed = append(fixed, "/proc/sys/"+part)
	}
	s := specs.Spec{
		Version: "1.0.2",
		Process: &specs.Process{
			Args: img.Exec, Env: environment(img.Env), Cwd: workDir(img.Dir),
			Capabilities: &specs.LinuxCapabilities{Bounding: capabilities, Effective: capabilities, Permitted: capabilities},
		},
		Root:     &specs.Root{Path: b.rootfs()},
		Hostname: "",
		Mounts: append([]specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
			{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"}},
			{Destination: "/dev/shm", Type: "tmpfs", Source: "shm", Options: []string{"nosuid", "noexec", "nodev", "mode=1777", "size=65536k"}},
			{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
		}, mounts...),
		Linux: &specs.Linux{
			Namespaces:  []specs.LinuxNamespace{{Type: specs.MountNamespace}, {Type: specs.PIDNamespace}},
			MaskedPaths: hidden, ReadonlyPaths: fixed, RootfsPropagation: "slave",
		},
	}
	var st unix.Stat_t
	if unix.Stat("/dev/net/tun", &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFCHR {
		mode := fs.FileMode(0o600)
		s.Linux.Devices = []specs.LinuxDevice{{Path: "/dev/net/tun", Type: "c", Major: int64(unix.Major(st.Rdev)), Minor: int64(unix.Minor(st.Rdev)), FileMode: &mode}}
	}
	return s
}

func environment(env []string) []string {
	if slices.ContainsFunc(env, func(v string) bool { return strings.HasPrefix(v, "PATH=") }) {
		return env
	}
	return append([]string{defaultPath}, env...)
}

func workDir(dir string) string {
	if !path.IsAbs(dir) {
		return "/"
	}
	return path.Clean(dir)
}

// mountsFor are the host's folders in the container: the namespaces of pods, the mount points that the image asks for, and what names are resolved by.
func (p *Pod) mountsFor(network string, img Image) ([]specs.Mount, error) {
	mounts := []specs.Mount{{Destination: netnsInside, Type: "bind", Source: p.cfg.NetNS, Options: []string{"rbind", "rslave", "nosuid", "noexec", "nodev"}}}
	if err := p.checkGrants(network, img); err != nil {
		return nil, err
	}
	for _, point := range img.Mounts {
		if !path.IsAbs(point) || path.Clean(point) == "/" {
			return nil, fmt.Errorf("image: mount point %q: want a whole path that is not /", point)
		}
		point = path.Clean(point)
		if slices.ContainsFunc(mounts, func(m specs.Mount) bool { return m.Destination == point }) {
			continue
		}
		source, access, err := p.source(network, img, point)
		if err != nil {
			return nil, err
		}
		mounts = append(mounts, specs.Mount{Destination: point, Type: "bind", Source: source, Options: []string{"rbind", "rslave", access}})
	}
	for _, file := range []string{"/etc/resolv.conf", "/etc/hosts"} {
		if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() {
			mounts = append(mounts, specs.Mount{Destination: file, Type: "bind", Source: file, Options: []string{"bind", "ro", "nosuid", "noexec", "nodev"}})
		}
	}
	return mounts, nil
}

// volume is the private folder of a network for a mount point. It outlives generations: an allocator of addresses keeps its leases in such a one.
func (p *Pod) volume(network, point string) string {
	return filepath.Join(p.networkDir(network), "volumes", strings.ReplaceAll(strings.Trim(point, "/"), "/", "%"))
}
