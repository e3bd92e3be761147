//go:build e2e

package cni_test

import (
	"context"
	"encoding/json"
	"os"
	"strings"
	"testing"
)

// root makes the root file system of a container from the machine's static busybox, since
// a private host reaches no registry.
func (r *rig) root(t *testing.T, name string) string {
	t.Helper()
	dir := "/run/roots/" + name
	r.must(t, "sh", "-c", "mkdir -p "+dir+"/bin "+dir+"/etc "+dir+"/proc "+dir+"/sys "+dir+"/dev "+
		dir+"/tmp "+dir+"/run && cp $(command -v busybox) "+dir+
		"/bin/ && chroot "+dir+" /bin/busybox --install -s /bin")
	return dir
}

func (r *rig) write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(r.Path(path[:strings.LastIndex(path, "/")]), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(r.Path(path), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// newPodman has a host's podman use CNI, of which Debian's can.
func newPodman(t *testing.T) *rig {
	t.Helper()
	r := newRig(t)
	r.write(t, "/etc/containers/containers.conf", `[containers]
[network]
network_backend = "cni"
cni_plugin_dirs = ["`+plugins+`"]
network_config_dir = "`+lists+`"
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "none"
`)
	r.write(
		t, "/etc/containers/storage.conf",
		"[storage]\ndriver = \"vfs\"\nrunroot = \"/run/containers/storage\"\ngraphroot = "+
			"\"/var/lib/containers/storage\"\n",
	)
	return r
}

// podman runs podman without what the harness tells of Docker's configuration.
func (r *rig) podman(t *testing.T, args ...string) string {
	t.Helper()
	return r.must(t, append([]string{"env", "-u", "DOCKER_CONFIG", "podman"}, args...)...)
}

func (r *rig) podmanRun(t *testing.T, name string, flags ...string) {
	t.Helper()
	argv := append([]string{"run", "-d", "--name", name, "--network", "blue", "--cap-add", "net_raw"}, flags...)
	r.podman(t, append(argv, "--rootfs", r.root(t, name), "sleep", "3600")...)
}

// addressOf is the first address that podman tells of a container.
func (r *rig) addressOf(t *testing.T, name string) string {
	t.Helper()
	var all []struct {
		NetworkSettings struct {
			Networks map[string]struct{ IPAddress string }
		}
	}
	if err := json.Unmarshal([]byte(r.podman(t, "inspect", name)), &all); err != nil || len(all) != 1 {
		t.Fatalf("podman inspect %s: %v", name, err)
	}
	return all[0].NetworkSettings.Networks["blue"].IPAddress
}

// podman's containers talk, one at the address that it was to have; a container that is
// started anew while the daemon was away has a network again; nothing is left.
func TestPodman(t *testing.T) {
	t.Parallel()
	r := newPodman(t)
	before := r.snapshot(t)
	r.podmanRun(t, "a")
	r.podmanRun(t, "b", "--ip", "10.1.0.50", "--mac-address", "02:00:00:00:00:50")
	if got := r.addressOf(t, "b"); got != "10.1.0.50" {
		t.Errorf("podman tells of %q", got)
	}
	r.podman(t, "exec", "a", "ping", "-c", "1", "-W", "5", "10.1.0.50")
	r.podman(t, "exec", "b", "ping", "-c", "1", "-W", "5", r.addressOf(t, "a"))
	r.kill(t)
	r.podman(t, "stop", "-t", "0", "a")
	r.podman(t, "exec", "b", "true")
	r.start(t)
	r.podman(t, "start", "a")
	r.podman(t, "exec", "a", "ping", "-c", "1", "-W", "5", "10.1.0.50")
	r.podman(t, "rm", "-f", "-t", "0", "a", "b")
	r.clean(t, before)
}

// containerd's containers (ctr run --cni) talk, and nothing is left of them.
func TestContainerd(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	r.write(t, "/etc/containerd/e2e.toml", `version = 2
root = "/var/lib/containerd-e2e"
state = "/run/containerd"
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.devmapper"]
`)
	_, err := r.StartService(ctx, "containerd", nil, []string{
		"containerd", "--config", "/etc/containerd/e2e.toml",
	}, func(ctx context.Context) bool {
		return r.Exec(ctx, "ctr", "version").OK()
	})
	if err != nil {
		t.Fatal(err)
	}
	before := r.snapshot(t)
	for _, name := range []string{"a", "b"} {
		r.must(t, "ctr", "run", "-d", "--cni", "--rootfs", r.root(t, name), name, "/bin/sleep", "3600")
	}
	ports := r.ports(t)
	if len(ports) != 2 {
		t.Fatalf("ports of two containers: %+v", ports)
	}
	for _, p := range ports {
		r.must(t, "ctr", "task", "exec", "--exec-id", "p", "a", "/bin/ping", "-c", "1", "-W", "5", p.FixedIPs[0].Address)
	}
	for _, name := range []string{"a", "b"} {
		r.must(t, "ctr", "task", "kill", "-s", "9", name)
		r.eventually(t, func() bool { return r.do(t, "ctr", "task", "rm", name).OK() })
	}
	// ctr asks for no DEL; the sweep of who is started anew finds that the interfaces have gone.
	r.kill(t)
	r.start(t)
	r.clean(t, before)
}
