package image_test

import (
	"bytes"
	"crypto/sha512"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/kuryr/kuryr/kurma/image"
	"github.com/kuryr/kuryr/kurma/image/build"
)

// What build makes is what the store reads, in either form, and the same each time.
func TestBuilt(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var first, second bytes.Buffer
	for _, b := range []*bytes.Buffer{&first, &second} {
		if err := build.ACI(b, plugin()); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(first.Bytes(), second.Bytes()) {
		t.Error("two builds of an ACI differ")
	}
	var archives [][]byte
	for range 2 {
		path := filepath.Join(dir, "image.oci.tar")
		if err := build.OCI(path, plugin()); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		archives = append(archives, data)
	}
	if !bytes.Equal(archives[0], archives[1]) {
		t.Error("two builds of an OCI archive differ")
	}
	s := open(t, image.Config{})
	for form, data := range map[string][]byte{"aci": first.Bytes(), "oci": archives[0], "oci.gz": zip(t, archives[0])} {
		i := get(t, s, "file://"+write(t, data))
		if i.Name != "example.com/plugin" || !slices.Equal(i.Exec, []string{"/bin/main", "-x"}) || !slices.Equal(i.Env, []string{"PATH=/bin"}) ||
			len(i.Mounts) != 1 || i.Mounts[0].Path != "/run/kuryr" || i.Labels["version"] != "1.0" {
			t.Errorf("%s: %+v", form, i)
		}
		if got := content(t, i, "opt/network/add"); got != "add" {
			t.Errorf("%s: add has %q", form, got)
		}
		info, err := i.Stat("/opt/network/add")
		if err != nil || info.Mode() != 0o755 {
			t.Errorf("%s: %v %v", form, info, err)
		}
	}
	if images, err := s.List(); err != nil || len(images) != 2 {
		t.Errorf("%d images, %v: want the ACI's and OCI's", len(images), err)
	}
}

// An ACI's id is the SHA-512 of the tar within, whatever its compression.
func TestACIIdentity(t *testing.T) {
	t.Parallel()
	data := packACI(t, entry{name: "rootfs/file", content: "x"})
	want := image.ID(fmt.Sprintf("sha512-%x", sha512.Sum512(data)))
	s := open(t, image.Config{})
	for _, form := range [][]byte{data, zip(t, data)} {
		if i := get(t, s, "file://"+write(t, form)+"#"+string(want)); i.ID != want {
			t.Errorf("the id is %s, not %s", i.ID, want)
		}
	}
}
