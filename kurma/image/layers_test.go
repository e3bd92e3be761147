package image_test

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/kuryr/kuryr/kurma/image"
)

// layers are three, of which the upper two take away and bring anew.
func layers(t *testing.T) [][]byte {
	t.Helper()
	return [][]byte{
		pack(t, entry{name: "a", content: "1"}, entry{name: "gone", content: "1"}, entry{name: "d/"}, entry{name: "d/old", content: "1"}, entry{name: "e/"}, entry{name: "e/old", content: "1"},
			entry{name: "turned/"}, entry{name: "turned/x", content: "1"}, entry{name: "usr/bin/"}, entry{name: "bin", kind: tar.TypeSymlink, link: "/usr/bin"}),
		// The whiteouts stand after what their own layer brings, and leave it.
		pack(t, entry{name: "./a", content: "2"}, entry{name: "d/new", content: "2"}, entry{name: "d/.wh..wh..opq"}, entry{name: ".wh.gone"}, entry{name: "e/old", content: "2"}, entry{name: "e/.wh.old"},
			entry{name: "turned", content: "2"}, entry{name: "bin/tool", content: "2"}, entry{name: ".wh.never"}),
		pack(t, entry{name: "bin/.wh.none"}, entry{name: "last", content: "3"}),
	}
}

func imageOf(t *testing.T, arch string, layers ...[]byte) v1.Image {
	t.Helper()
	i := empty.Image
	for _, l := range layers {
		layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(l)), nil })
		if err == nil {
			i, err = mutate.AppendLayers(i, layer)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	file, err := i.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	file = file.DeepCopy()
	file.OS, file.Architecture = "linux", arch
	file.Config = v1.Config{Entrypoint: []string{"/main"}, Cmd: []string{"-x"}, User: "1:2", Volumes: map[string]struct{}{"/v": {}}}
	if i, err = mutate.ConfigFile(i, file); err != nil {
		t.Fatal(err)
	}
	return i
}

func checkLayers(t *testing.T, i image.Image) {
	t.Helper()
	for file, want := range map[string]string{"a": "2", "gone": "", "d/old": "", "d/new": "2", "e/old": "2", "turned": "2", "usr/bin/tool": "2", "last": "3"} {
		if got := content(t, i, file); got != want {
			t.Errorf("%s has %q, want %q", file, got, want)
		}
	}
	if i.User != "1" || i.Group != "2" || strings.Join(i.Exec, " ") != "/main -x" || len(i.Mounts) != 1 {
		t.Errorf("%+v", i)
	}
}

// hub is a registry on loopback.
func hub(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(registry.New(registry.Logger(nopLogger())))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://")
}

func TestRegistry(t *testing.T) {
	t.Parallel()
	host := hub(t)
	mine := imageOf(t, runtime.GOARCH, layers(t)...)
	other := imageOf(t, "vax", pack(t, entry{name: "other"}))
	index := mutate.AppendManifests(empty.Index,
		mutate.IndexAddendum{Add: other, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "vax"}}},
		mutate.IndexAddendum{Add: mine, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: runtime.GOARCH}}})
	tag := func(s string) name.Tag {
		t, err := name.NewTag(host + "/" + s)
		if err != nil {
			panic(err)
		}
		return t
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(remote.Write(tag("user/plugin:1"), mine))
	must(remote.WriteIndex(tag("user/multi:latest"), index))
	must(remote.Write(tag("user/other:1"), other))
	digest, err := mine.Digest()
	must(err)

	dir := t.TempDir()
	s := openAt(t, dir, image.Config{})
	base := "docker://" + host + "/user/"
	tagged := get(t, s, base+"plugin:1")
	checkLayers(t, tagged)
	if tagged.Name != "" && !strings.HasSuffix(tagged.Name, "/user/plugin") {
		t.Errorf("the name is %q", tagged.Name)
	}
	for _, ref := range []string{base + "plugin@" + digest.String(), base + "plugin:1@" + digest.String(), base + "multi"} {
		if i := get(t, s, ref); i.ID != tagged.ID {
			t.Errorf("%s is %s, want %s", ref, i.ID, tagged.ID)
		}
	}
	if images, err := s.List(); err != nil || len(images) != 1 || len(images[0].References) != 4 {
		t.Errorf("%+v, %v: want one image with four references", images, err)
	}
	if _, err := s.Get(t.Context(), base+"other:1", nil); !errors.Is(err, image.ErrInvalid) {
		t.Errorf("another machine's image: %v", err)
	}
	if _, err := s.Get(t.Context(), base+"none:1", nil); !errors.Is(err, image.ErrNotFound) {
		t.Errorf("an absent image: %v", err)
	}
	// A tag that moved is seen when it is asked for.
	must(remote.Write(tag("user/plugin:1"), imageOf(t, runtime.GOARCH, pack(t, entry{name: "moved", content: "4"}))))
	if i := get(t, s, base+"plugin:1"); i.ID != tagged.ID {
		t.Error("Get asked the registry again")
	}
	moved, err := s.Refresh(t.Context(), base+"plugin:1", nil)
	if err != nil || content(t, moved, "moved") != "4" {
		t.Errorf("%v, %v", moved, err)
	}
	if _, err := s.Collect(nil, nil); err != nil {
		t.Fatal(err)
	}
	if rest := left(t, dir); len(rest) > 0 {
		t.Errorf("left: %q", rest)
	}
}

// dockerArchive is what "docker save" wrote before it wrote OCI layouts; its second layer is a link.
func TestDockerArchive(t *testing.T) {
	t.Parallel()
	all := layers(t)
	config := configOf(all...)
	data := pack(t,
		entry{name: "c.json", content: config},
		entry{name: "1/layer.tar", content: string(all[0])}, entry{name: "x/layer.tar", content: string(zip(t, all[1]))},
		entry{name: "2/layer.tar", kind: tar.TypeSymlink, link: "../x/layer.tar"}, entry{name: "3/layer.tar", content: string(all[2])},
		entry{name: "manifest.json", content: `[{"Config":"c.json","RepoTags":["example.com/plugin:1"],"Layers":["1/layer.tar","2/layer.tar","3/layer.tar"]}]`})
	i := get(t, open(t, image.Config{}), "file://"+write(t, data))
	checkLayers(t, i)
	if i.Name != "example.com/plugin" {
		t.Errorf("the name is %q", i.Name)
	}
	wrong := bytes.Replace(data, []byte("c.json"), []byte("c.json"), 1)
	at := bytes.Index(wrong, []byte(`sha256:`))
	wrong[at+7] ^= 1
	if _, err := open(t, image.Config{}).Get(t.Context(), "file://"+write(t, wrong), nil); !errors.Is(err, image.ErrInvalid) || !strings.Contains(err.Error(), "digest") {
		t.Errorf("another layer than the configuration says: %v", err)
	}
}

func configOf(layers ...[]byte) string {
	var diffs []string
	for _, l := range layers {
		diffs = append(diffs, fmt.Sprintf("sha256:%x", sha256.Sum256(l)))
	}
	text, err := json.Marshal(map[string]any{
		"os": "linux", "architecture": runtime.GOARCH, "rootfs": map[string]any{"type": "layers", "diff_ids": diffs},
		"config": map[string]any{"Entrypoint": []string{"/main"}, "Cmd": []string{"-x"}, "User": "1:2", "Volumes": map[string]any{"/v": map[string]any{}}},
	})
	if err != nil {
		panic(err)
	}
	return string(text)
}
