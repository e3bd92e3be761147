//go:build e2e

package kubernetes_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kuryr/kuryr/kube/install"
)

// unpack lays down what an image's only layer has, and gives the image's entrypoint.
func unpack(t *testing.T, archive, root string) string {
	t.Helper()
	files := map[string][]byte{}
	read := func(from io.Reader, each func(*tar.Header, *tar.Reader) error) {
		t.Helper()
		for r := tar.NewReader(from); ; {
			h, err := r.Next()
			if errors.Is(err, io.EOF) {
				return
			}
			if err == nil {
				err = each(h, r)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	file, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	read(file, func(h *tar.Header, r *tar.Reader) (err error) {
		files[h.Name], err = io.ReadAll(r)
		return err
	})
	var manifest []struct {
		Config string
		Layers []string
	}
	var image struct{ Config struct{ Entrypoint []string } }
	if err := json.Unmarshal(files["manifest.json"], &manifest); err != nil || len(manifest) != 1 ||
		len(manifest[0].Layers) != 1 {
		t.Fatalf("%v, %+v", err, manifest)
	}
	if err := json.Unmarshal(files[manifest[0].Config], &image); err != nil || len(image.Config.Entrypoint) != 1 {
		t.Fatalf("%v, %+v", err, image)
	}
	layer, err := gzip.NewReader(bytes.NewReader(files[manifest[0].Layers[0]]))
	if err != nil {
		t.Fatal(err)
	}
	// Each folder comes before what is in it.
	read(layer, func(h *tar.Header, r *tar.Reader) error {
		path := filepath.Join(root, h.Name)
		switch h.Typeflag {
		case tar.TypeDir:
			return os.Mkdir(path, h.FileInfo().Mode())
		case tar.TypeSymlink:
			return os.Symlink(h.Linkname, path)
		}
		out, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, h.FileInfo().Mode())
		if err != nil {
			return err
		}
		_, err = io.Copy(out, r)
		return errors.Join(err, out.Close())
	})
	return image.Config.Entrypoint[0]
}

// The image of "make images" has all that the manifests ask of it: folders for what they
// mount, and programs that run with nothing else there.
func TestImage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	root := filepath.Join(dir, "root")
	if err := os.Mkdir(root, 0o755); err != nil {
		t.Fatal(err)
	}
	if said, err := exec.CommandContext(t.Context(), "../../../hack/images.sh", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	program := unpack(t, filepath.Join(dir, "kuryr.tar"), root)
	// As a container runtime does, with nothing but the image and /proc.
	if err := os.Mkdir(filepath.Join(root, "proc"), 0o755); err != nil {
		t.Fatal(err)
	}
	try := func(env []string, input, path string, args ...string) (string, error) {
		c := exec.CommandContext(
			t.Context(), "unshare",
			append(
				[]string{"--mount", "--root=" + root, "--wd=/", "--mount-proc=/proc", path},
				args...,
			)...,
		)
		c.Env, c.Stdin = env, strings.NewReader(input)
		said, err := c.CombinedOutput()
		return string(said), err
	}
	run := func(env []string, input, path string, args ...string) string {
		t.Helper()
		said, err := try(env, input, path, args...)
		if err != nil {
			t.Errorf("%s %s: %v: %s", path, strings.Join(args, " "), err, said)
		}
		return said
	}
	for _, provider := range []string{install.Embedded, install.Neutron} {
		for _, spec := range pods(t, provider) {
			for _, container := range append(spec.InitContainers, spec.Containers...) {
				for _, m := range container.VolumeMounts {
					if info, err := os.Stat(filepath.Join(root, m.MountPath)); err != nil || !info.IsDir() {
						t.Errorf("%s: nothing can be mounted on %s, as the image is read-only: %v", container.Name, m.MountPath, err)
					}
				}
				if len(container.Command) > 0 {
					t.Errorf("%s runs %v, not the image's program", container.Name, container.Command)
				}
				if container.Name == "install" {
					run(nil, "", program, container.Args...)
					continue
				}
				// Its command is one that the program knows.
				if said := run(
					nil, "", program, append(container.Args, "--help")...,
				); !strings.Contains(said, "kuryr "+container.Args[0]) {
					t.Errorf("%s: %s", container.Name, said)
				}
			}
		}
	}
	// Raven and a node's daemon are the work of kuryr-kubernetes, which this command needs too.
	if said := run(nil, "", program, "install", "kubernetes"); !strings.Contains(said, "kind: DaemonSet") {
		t.Errorf("kuryr does not become kuryr-kubernetes: %s", said)
	}
	for _, folder := range []string{"/host/bin", "/host/spec"} {
		if said := run(
			[]string{"CNI_COMMAND=VERSION"}, `{"cniVersion": "1.1.0"}`, folder+"/kuryr",
		); !strings.Contains(said, `"supportedVersions"`) {
			t.Errorf("the plugin in %s says %s", folder, said)
		}
		// Without a daemon it has the program beside it ask Kubernetes, which refuses a
		// token that is in no file: of a plugin alone that program's absence would be the
		// reason.
		said, err := try(
			[]string{"CNI_COMMAND=STATUS"},
			`{"cniVersion": "1.1.0", "name": "kuryr", "type": "kuryr", "api_server": `+
				`"https://127.0.0.1:1", "api_token": "x", "api_timeout": 1}`,
			folder+"/kuryr",
		)
		if err == nil || !strings.Contains(said, "api_token_file") {
			t.Errorf("the plugin in %s without a daemon: %v, %s", folder, err, said)
		}
	}
}

// pods are what the manifests run.
func pods(t *testing.T, provider string) (all []corev1.PodSpec) {
	t.Helper()
	v, err := install.Defaults()
	if err == nil {
		err = v.Set("provider", provider)
	}
	if err != nil {
		t.Fatal(err)
	}
	manifests, err := install.Render(install.Release{Namespace: system, Values: v})
	if err != nil {
		t.Fatal(err)
	}
	into := func(m install.Manifest, o any) {
		t.Helper()
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(m.Object.Object, o); err != nil {
			t.Fatal(err)
		}
	}
	for _, m := range manifests {
		switch m.Object.GetKind() {
		case "Deployment":
			var d appsv1.Deployment
			into(m, &d)
			all = append(all, d.Spec.Template.Spec)
		case "DaemonSet":
			var d appsv1.DaemonSet
			into(m, &d)
			all = append(all, d.Spec.Template.Spec)
		}
	}
	if len(all) < 2 {
		t.Fatalf("%s: %d kinds of pods", provider, len(all))
	}
	return all
}
