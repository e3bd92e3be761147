//go:build e2e

package kurma_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"strconv"
	"strings"
)

// root makes the root file system of a container from the machine's static busybox.
func (r *rig) root(name string) string {
	r.t.Helper()
	dir := "/run/bundles/" + name + "/rootfs"
	r.must(
		"sh", "-c",
		"mkdir -p "+dir+"/bin "+dir+"/etc "+dir+"/proc "+dir+"/sys "+dir+"/dev "+dir+
			"/tmp && cp $(command -v busybox) "+dir+
			"/bin/ && for a in sh sleep ip ping; do ln -sf busybox "+dir+"/bin/$a; done",
	)
	return dir
}

// bundle makes a bundle whose hooks are those that `kuryr kurma hook` prints.
func (r *rig) bundle(name string, user int, annotations map[string]string) string {
	r.t.Helper()
	r.root(name)
	var hooks map[string]any
	if err := json.Unmarshal(
		[]byte(r.must(kuryr, "kurma", "hook", "--program", beside("kuryr-oci-hook"))), &hooks,
	); err != nil {
		r.t.Fatal(err)
	}
	spec := map[string]any{
		"ociVersion": "1.0.2", "root": map[string]any{"path": "rootfs"}, "annotations": annotations,
		"process": map[string]any{
			"args": []string{"/bin/sleep", "3600"}, "cwd": "/", "env": []string{"PATH=/bin"},
			"user": map[string]any{"uid": user, "gid": user},
		},
		"mounts": []any{map[string]any{"destination": "/proc", "type": "proc", "source": "proc"}},
		"linux": map[string]any{"namespaces": []any{
			map[string]any{"type": "pid"}, map[string]any{"type": "network"},
			map[string]any{"type": "mount"}, map[string]any{"type": "ipc"},
			map[string]any{"type": "uts"},
		}},
	}
	if r.mapped > 0 {
		r.must("chown", "-R", fmt.Sprintf("%d:%d", r.mapped, r.mapped), "/run/bundles/"+name+"/rootfs")
		ids := []any{map[string]any{"containerID": 0, "hostID": r.mapped, "size": 10000}}
		linux := spec["linux"].(map[string]any)
		linux["namespaces"] = append(linux["namespaces"].([]any), map[string]any{"type": "user"})
		linux["uidMappings"], linux["gidMappings"] = ids, ids
	}
	maps.Copy(spec, hooks)
	text, err := json.Marshal(spec)
	if err != nil {
		r.t.Fatal(err)
	}
	r.write("/run/bundles/"+name+"/config.json", string(text))
	return "/run/bundles/" + name
}

// oci is a command line of the runtime. Where control groups of both versions are mounted
// crun 1.8 refuses to work, so it sees those of version 2 alone.
func (r *rig) oci(args ...string) []string {
	line := r.runtime + " " + strings.Join(args, " ")
	if r.runtime == "crun" {
		return []string{
			"unshare", "-m", "sh", "-c",
			"mount -t cgroup2 none /sys/fs/cgroup && exec crun --cgroup-manager=disabled " +
				strings.Join(args, " "),
		}
	}
	return []string{"sh", "-c", line}
}

// launch starts a container; what its runtime said where it failed is the error.
func (r *rig) launch(name string, user int, annotations map[string]string) error {
	r.t.Helper()
	bundle := r.bundle(name, user, annotations)
	result := r.do(r.oci("run", "-d", "--bundle", bundle, name, "</dev/null", ">"+bundle+"/log", "2>&1")...)
	if result.OK() {
		return nil
	}
	return fmt.Errorf("%s: %s", result, r.do("cat", bundle+"/log").Out())
}

func (r *rig) mustLaunch(name string, annotations map[string]string) pod {
	r.t.Helper()
	if err := r.launch(name, 0, annotations); err != nil {
		r.t.Fatal(err)
	}
	return r.podOf(name)
}

// podOf is the pod of a container.
func (r *rig) podOf(name string) pod {
	r.t.Helper()
	for _, p := range r.pods() {
		if p.Container == name {
			return p
		}
	}
	r.t.Fatalf("container %s has no pod: %+v", name, r.pods())
	return pod{}
}

// inside runs a command in a container's network.
func (r *rig) inside(name string, argv ...string) string {
	r.t.Helper()
	var state struct{ PID int }
	if err := json.Unmarshal([]byte(r.must(r.oci("state", name)...)), &state); err != nil {
		r.t.Fatal(err)
	}
	return r.must(append([]string{"nsenter", "-t", strconv.Itoa(state.PID), "-n"}, argv...)...)
}

func (r *rig) ping(name, address string) {
	r.t.Helper()
	r.inside(name, "ping", "-c", "1", "-W", "5", address)
}

func (r *rig) remove(name string) {
	r.t.Helper()
	r.must(r.oci("delete", "-f", name)...)
}
