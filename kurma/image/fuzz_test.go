package image

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"path"
	"strings"
	"testing"
)

func FuzzManifest(f *testing.F) {
	f.Add([]byte(`{"acKind":"ImageManifest","acVersion":"0.8.11","name":"a/b","app":{"exec":["/x"],"user":"0","group":"0","mountPoints":[{"name":"m","path":"/m"}]}}`))
	f.Add([]byte(`{"os":"linux","rootfs":{"type":"layers","diff_ids":["sha256:00"]},"config":{"Env":["A=B"]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		read := []func() (Image, error){
			func() (Image, error) { return parseManifest(data) },
			func() (Image, error) { i, _, err := parseConfig(data); return i, err },
		}
		for _, parse := range read {
			image, err := parse()
			if err != nil {
				if !errors.Is(err, ErrInvalid) {
					t.Fatalf("not marked as invalid: %v", err)
				}
				continue
			}
			for _, m := range image.Mounts {
				if !path.IsAbs(m.Path) || path.Clean(m.Path) != m.Path || m.Path == "/" {
					t.Fatalf("mount point %q", m.Path)
				}
			}
		}
	})
}

func FuzzWalk(f *testing.F) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range []*tar.Header{{Name: "rootfs/x", Typeflag: tar.TypeReg}, {Name: "l", Typeflag: tar.TypeLink, Linkname: "rootfs/x"}, {Name: "d/", Typeflag: tar.TypeDir}} {
		if err := w.WriteHeader(h); err != nil {
			f.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	f.Fuzz(func(t *testing.T, data []byte) {
		limits := Limits{Download: 1 << 20, Unpacked: 1 << 20, Entries: 100, Depth: 8, Ratio: 100}
		r, err := decompress(t.Context(), bytes.NewReader(data), limits)
		if err != nil {
			return
		}
		defer r.Close()
		entries, size := 0, int64(0)
		_ = (&tally{limits: limits}).walk(r, func(name string, h *tar.Header, content io.Reader) error {
			for _, n := range []string{name, map[bool]string{true: h.Linkname, false: "."}[h.Typeflag == tar.TypeLink]} {
				if path.IsAbs(n) || n == ".." || strings.HasPrefix(n, "../") || path.Clean(n) != n || strings.Count(n, "/") >= limits.Depth {
					t.Fatalf("the name %q was let through", n)
				}
			}
			n, err := io.Copy(io.Discard, content)
			entries, size = entries+1, size+n
			return err
		})
		if entries > 100 || size > limits.Unpacked {
			t.Fatalf("%d entries of %d bytes were let through", entries, size)
		}
	})
}
