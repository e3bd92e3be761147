//go:build e2e

package kurma_test

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/kuryr/kuryr/kurma/image/build"
)

// address is where images are served on the host.
const address = "127.0.0.1:5000"

// serveImages has a web server on the host with the files of a folder and, below /v2/, a registry.
func (r *rig) serveImages(folder string) http.RoundTripper {
	r.t.Helper()
	mux := http.NewServeMux()
	mux.Handle("/", http.FileServer(http.Dir(folder)))
	mux.Handle("/v2/", registry.New())
	l, err := r.Listen(r.t.Context(), "tcp", address)
	if err != nil {
		r.t.Fatal(err)
	}
	server := &http.Server{Handler: mux}
	go func() { _ = server.Serve(l) }()
	r.t.Cleanup(func() { _ = server.Close() })
	return &http.Transport{DialContext: r.Dial}
}

// Images by HTTP with a digest, from a registry by tag, and as an OCI archive; by plain HTTP without a digest, none.
func TestImages(t *testing.T) {
	t.Parallel()
	r := newRig(t, "crun")
	folder := beside("images")
	transport := r.serveImages(folder)
	tag, err := name.NewTag(address + "/kuryr/cni-netplugin:1")
	if err != nil {
		t.Fatal(err)
	}
	image := archived(t, filepath.Join(folder, "cni-netplugin.tar"))
	if err := remote.Write(tag, image, remote.WithTransport(transport), remote.WithContext(t.Context())); err != nil {
		t.Fatal(err)
	}
	sum, err := exec.CommandContext(t.Context(), "sha256sum", filepath.Join(folder, "kuryr-netplugin.aci")).Output()
	if err != nil {
		t.Fatal(err)
	}
	entry := func(name, image, bridge, subnet string) string {
		return fmt.Sprintf(
			`{"name": %q, "aci": %q, "containerInterface": "eth{{num}}", "type": "bridge", `+
				`"bridge": %q, "isGateway": true, "ipam": {"type": "host-local", "subnet": %q}}`,
			name, image, bridge, subnet,
		)
	}
	r.configure(
		entry("registry", "docker://"+tag.String(), "registry0", "10.20.0.0/16"),
		entry("archive", file("cni-netplugin.tar"), "archive0", "10.21.0.0/16"),
		blue("http://"+address+"/kuryr-netplugin.aci#sha256-"+strings.Fields(string(sum))[0], ""),
		entry("unverified", "http://"+address+"/cni-netplugin.aci", "none0", "10.22.0.0/16"),
	)
	r.start()
	r.running("registry", "archive", "blue")
	r.must(kuryr, "kurma", "add", "146d7cef-fbf6-41da-a2f8-eba218597f9c", "--network", "registry,archive,blue")
	if got := len(r.pods()[0].Attachments); got != 3 {
		t.Errorf("%d attachments: %+v", got, r.pods())
	}
	r.eventually("an image by plain HTTP without a digest is refused", func() bool {
		for _, n := range r.networks() {
			if n.Name == "unverified" {
				return n.State == "failed" && strings.Contains(n.Reason, "digest")
			}
		}
		return false
	})
	if refused := r.do(kuryr, "kurma", "add", "--network", "unverified"); refused.OK() ||
		!strings.Contains(refused.String(), "unverified") {
		t.Errorf("a network without an image took a pod: %s", refused)
	}
	r.must(kuryr, "kurma", "del", "146d7cef-fbf6-41da-a2f8-eba218597f9c")
}

// archived is the one image of an OCI archive.
func archived(t *testing.T, path string) v1.Image {
	t.Helper()
	dir := t.TempDir()
	if said, err := exec.CommandContext(t.Context(), "tar", "-xf", path, "-C", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil || len(manifest.Manifests) != 1 {
		t.Fatalf("index of %s: %+v, %v; want one image", path, manifest, err)
	}
	image, err := index.Image(manifest.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	return image
}

// script makes the ACI of a plugin out of busybox, whose add is this shell script, and whose del does nothing.
func script(t *testing.T, dir, name, main, add string) string {
	t.Helper()
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, name+".aci")
	out, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	file := func(text string) *fstest.MapFile {
		return &fstest.MapFile{Data: []byte("#!/bin/sh\n" + text + "\n"), Mode: 0o755}
	}
	err = build.ACI(out, build.Spec{
		Name: "kuryr.org/" + name, Exec: []string{"/bin/main"}, Env: []string{"PATH=/bin"},
		Rootfs: fstest.MapFS{"bin/main": file(main), "opt/network/add": file(add), "opt/network/del": file("exit 0")},
		Files:  map[string]string{"bin/sh": busybox, "bin/busybox": busybox},
	})
	if err != nil {
		t.Fatal(err)
	}
	return "file://" + path
}

// What is wrong with one plugin is told, undone, and no other network's affair: one that
// refuses, crashes, answers nonsense or too much, leaves a child, or whose main
// executable ends; and one that hangs, whose call is ended with its children after a
// minute.
func TestIllBehaved(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const stay = "exec busybox sleep 100000"
	entries := []string{mynet(file("cni-netplugin.aci"))}
	bad := map[string]struct{ main, add, want string }{
		"refuses":  {stay, `echo '{"code": 100, "msg": "no room in the inn"}'; exit 1`, "no room in the inn"},
		"crashes":  {stay, `echo out of luck >&2; kill -SEGV $$`, "out of luck"},
		"nonsense": {stay, `echo '{"ip4": {"ip": "300.0.0.1/8"}}'`, "300.0.0.1"},
		"silent":   {stay, `exit 0`, "nothing"},
		"floods":   {stay, `busybox yes | busybox head -c 3000000`, "larger"},
		"ends":     {`echo "no bridge here" >&2; exit 3`, `exit 0`, "no bridge here"},
		"hangs":    {stay, `busybox setsid busybox sleep 98765 & busybox sleep 98765`, "minute"},
	}
	for name, b := range bad {
		entries = append(entries, fmt.Sprintf(`{"name": %q, "aci": %q}`, name, script(t, dir, name, b.main, b.add)))
	}
	orphan := script(
		t, dir, "orphan", stay,
		`busybox setsid busybox sleep 98764 >/dev/null 2>&1 & echo '{"ip4": {"ip": `+
			`"10.9.0.2/24"}}'`,
	)
	entries = append(entries, fmt.Sprintf(`{"name": "orphan", "aci": %q}`, orphan))
	r := newRig(t, "crun", entries...)
	r.start()
	r.running("mynet", "refuses", "crashes", "nonsense", "silent", "floods", "hangs", "orphan")
	idle := r.sight()
	hung := make(chan string, 1)
	go func() { hung <- r.ExecLong(2*limit, kuryr, "kurma", "add", "--network", "mynet,hangs") }()
	for name, b := range bad {
		if name == "hangs" {
			continue
		}
		result := r.do(kuryr, "kurma", "add", "--network", "mynet,"+name)
		if result.OK() || !strings.Contains(result.String(), name) || !strings.Contains(result.String(), b.want) {
			t.Errorf("%s: %s", name, result)
		}
	}
	const uuid = "146d7cef-fbf6-41da-a2f8-eba218597f9c"
	r.must(kuryr, "kurma", "add", uuid, "--network", "mynet,orphan")
	r.eventually("the child of a call that has ended is gone", func() bool {
		return !r.do("pgrep", "-f", "sleep 98764").OK()
	})
	r.must(kuryr, "kurma", "del", uuid)
	if said := <-hung; !strings.Contains(said, "hangs") || !strings.Contains(said, "1m0s") {
		t.Errorf("a call that hangs: %s", said)
	}
	r.eventually("a call that hung is gone with its children", func() bool {
		return !r.do("pgrep", "-f", "sleep 98765").OK()
	})
	for _, n := range r.networks() {
		if n.Name != "ends" && n.State != "running" {
			t.Errorf("network %s: %s, %s", n.Name, n.State, n.Reason)
		}
	}
	r.same(idle, podsGone...)
}

// ExecLong is Exec with a time limit of its own.
func (r *rig) ExecLong(within time.Duration, argv ...string) string {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.t.Context()), within)
	defer cancel()
	return r.Exec(ctx, argv...).String()
}

// An image that wants to write past its root is refused, and nothing of it is left; the
// other networks run. A device in an image is not made.
func TestHostileImages(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const manifest = `{"acKind": "ImageManifest", "acVersion": "0.8.11", "name": ` +
		`"evil.example/plugin", "app": {"exec": ["/bin/main"], "user": "0", "group": "0"}}`
	entries := []string{mynet(file("cni-netplugin.aci"))}
	for name, members := range map[string][]tar.Header{
		"link": {{Typeflag: tar.TypeSymlink, Name: "rootfs/etc", Linkname: "/etc"}, {
			Typeflag: tar.TypeReg, Name: "rootfs/etc/kuryr-evil", Size: 4,
		}},
		"dotdot":  {{Typeflag: tar.TypeReg, Name: "rootfs/../../../../../../etc/kuryr-evil", Size: 4}},
		"device":  {{Typeflag: tar.TypeBlock, Name: "rootfs/dev/disk", Devmajor: 8}},
		"huge":    {{Typeflag: tar.TypeReg, Name: "rootfs/huge", Size: 1 << 50}},
		"nothing": nil,
	} {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		text := manifest
		if name == "nothing" {
			text = `{"acKind": "PodManifest"}`
		}
		for _, h := range append(
			[]tar.Header{{Typeflag: tar.TypeReg, Name: "manifest", Size: int64(len(text))}},
			members...,
		) {
			h.Mode = 0o755
			if err := w.WriteHeader(&h); err != nil {
				t.Fatal(err)
			}
			if h.Name == "manifest" {
				_, _ = w.Write([]byte(text))
			} else if h.Size == 4 {
				_, _ = w.Write([]byte("evil"))
			}
		}
		_ = w.Flush() // the huge one is cut off
		path := filepath.Join(dir, name+".aci")
		if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		entries = append(entries, fmt.Sprintf(`{"name": %q, "aci": %q}`, name, "file://"+path))
	}
	r := newRig(t, "crun", entries...)
	r.start()
	r.running("mynet")
	r.eventually("hostile images are refused", func() bool {
		for _, n := range r.networks() {
			if n.Name != "mynet" && (n.State != "failed" || n.Reason == "") {
				return false
			}
		}
		return true
	})
	if found := r.must("sh", "-c", "ls /etc/kuryr-evil /var/lib/kuryr/kurma/etc 2>/dev/null || true"); found != "" {
		t.Errorf("an image wrote past its root: %s", found)
	}
	if found := r.must("find", "/var/lib/kuryr/kurma", "-name", "disk"); found != "" {
		t.Errorf("an image made a device: %s", found)
	}
	var images []struct{ Name string }
	r.ask(&images, "image", "list")
	if len(images) != 2 { // cni-netplugin, and the one whose device was left out
		t.Errorf("images %+v", images)
	}
	r.must(kuryr, "kurma", "add", "146d7cef-fbf6-41da-a2f8-eba218597f9c")
}

// Killed within an add and within a del, the daemon comes back: what was not answered is undone,
// what was being removed is removed, and nothing is left. kurma/pod kills at every step.
func TestKilled(t *testing.T) {
	t.Parallel()
	r := newRig(t, "crun", mynet(file("cni-netplugin.aci")), blue(file("kuryr-netplugin.aci"), ""))
	r.program = beside("kuryr-failpoints")
	r.start()
	r.running()
	idle := r.sight()
	const uuid = "146d7cef-fbf6-41da-a2f8-eba218597f9c"
	add := []string{kuryr, "kurma", "add", uuid, "--network", "mynet,blue"}
	restart := func(env ...string) {
		t.Helper()
		r.stop(syscall.SIGKILL)
		r.start(env...)
		r.running()
	}
	for _, step := range []string{"netns.pin.file", "netns.pin.pinned"} {
		restart("KURYR_FAILPOINT=" + step)
		if result := r.do(add...); result.OK() {
			t.Errorf("%s: not killed: %s", step, result)
		}
		<-r.kurma.Gone()
		r.start()
		r.running()
		r.eventually(step+": the add is undone", func() bool { return len(r.pods()) == 0 })
		r.same(idle, podsGone...)
		r.must(add...)
		r.must(kuryr, "kurma", "del", uuid)
		r.same(idle, podsGone...)
	}
	const step = "netns.delete.unmounted"
	r.must(add...)
	restart("KURYR_FAILPOINT=" + step)
	r.do(kuryr, "kurma", "del", uuid)
	<-r.kurma.Gone()
	r.start()
	r.running()
	r.eventually(step+": the del is finished", func() bool { return len(r.pods()) == 0 })
	r.same(idle, podsGone...)
}
