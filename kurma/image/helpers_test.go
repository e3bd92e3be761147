package image_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"io/fs"
	"log"
	"net"
	"os"
	"path/filepath"
	"testing"
	"testing/fstest"
	"time"

	"github.com/kuryr/kuryr/kurma/image"
	"github.com/kuryr/kuryr/kurma/image/build"
)

const goodManifest = `{"acKind":"ImageManifest","acVersion":"0.8.11","name":"example.com/plugin","labels":[{"name":"version","value":"1.0"},{"name":"os","value":"linux"}],
"app":{"exec":["/bin/main","-x"],"user":"0","group":"0","environment":[{"name":"PATH","value":"/bin"}],"mountPoints":[{"name":"run","path":"/run/kuryr"}]}}`

// entry is one of an archive that a test makes.
type entry struct {
	name, link, content string
	kind                byte // 0 is a file, or a folder where the name ends in a slash
	mode, size          int64
}

func pack(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Linkname: e.link, Typeflag: e.kind, Mode: e.mode, Size: int64(len(e.content))}
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
			if e.name != "" && e.name[len(e.name)-1] == '/' {
				h.Typeflag = tar.TypeDir
			}
		}
		if h.Mode == 0 {
			h.Mode = 0o755
		}
		if e.size > 0 {
			h.Size = e.size
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(e.content)); err != nil {
			t.Fatal(err)
		}
	}
	if e := entries[len(entries)-1]; e.size == 0 {
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return b.Bytes()
}

// packACI is an ACI of these entries below a good manifest.
func packACI(t testing.TB, entries ...entry) []byte {
	t.Helper()
	return pack(t, append([]entry{{name: "manifest", content: goodManifest}, {name: "rootfs/"}}, entries...)...)
}

func zip(t testing.TB, data []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func write(t testing.TB, data []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "image")
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func open(t testing.TB, c image.Config) *image.Store {
	t.Helper()
	return openAt(t, t.TempDir(), c)
}

func openAt(t testing.TB, dir string, c image.Config) *image.Store {
	t.Helper()
	s, err := image.Open(dir, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func get(t testing.TB, s *image.Store, ref string) image.Image {
	t.Helper()
	i, err := s.Get(t.Context(), ref, nil)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// content is a file of the image, "" if it is absent.
func content(t testing.TB, i image.Image, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(i.Rootfs, name))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return string(data)
}

// left are the files of a store's folder, but for its lock and the empty folders.
func left(t testing.TB, dir string) (names []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && d.Name() != "lock" {
			names = append(names, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func plugin() build.Spec {
	return build.Spec{
		Name: "example.com/plugin", Version: "1.0", Exec: []string{"/bin/main", "-x"}, Env: []string{"PATH=/bin"}, Mounts: []string{"/run/kuryr"},
		Rootfs: fstest.MapFS{"bin/main": {Data: []byte("main"), Mode: 0o755}, "opt/network/add": {Data: []byte("add"), Mode: 0o755}},
	}
}

func nopLogger() *log.Logger { return log.New(io.Discard, "", 0) }

type ctx = context.Context

type dialer = func(ctx, string, string) (net.Conn, error)

// contextUntil ends when the condition has come about, which a test's server brings.
func contextUntil(t testing.TB, done func() bool) (context.Context, func()) {
	t.Helper()
	c, cancel := context.WithCancel(t.Context())
	go func() {
		for c.Err() == nil && !done() {
			time.Sleep(time.Millisecond)
		}
		cancel()
	}()
	return c, cancel
}
