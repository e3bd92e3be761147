package image_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/kuryr/kuryr/kurma/image"
	"github.com/kuryr/kuryr/kurma/image/build"
)

// Kuryr's images are found by name where they are installed, one of them by the name that the
// specification's example has.
func TestInstalledImages(t *testing.T) {
	t.Parallel()
	const ours, example = "kuryr.org/cni-netplugin", "apcera.com/kurma/cni-netplugin"
	// No host answers: discovery finds nothing.
	offline := &http.Transport{DialContext: func(ctx, string, string) (net.Conn, error) {
		return nil, errors.New("offline")
	}}
	installed := t.TempDir()
	put := func(file string, data []byte) {
		if err := os.WriteFile(filepath.Join(installed, file), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	store := func() *image.Store { return open(t, image.Config{Installed: installed, Transport: offline}) }
	absent := func(s *image.Store, ref string) {
		t.Helper()
		if i, err := s.Get(t.Context(), ref, nil); !errors.Is(err, image.ErrNotFound) {
			t.Errorf("%s: %s, %v", ref, i.Name, err)
		}
	}
	s := store()
	absent(s, example)
	put("cni-netplugin.aci", named(t, ours, "1"))
	put("stranger.aci", named(t, "example.com/stranger", "1"))
	first := get(t, s, example)
	if first.Name != ours || get(t, s, ours).ID != first.ID || get(t, s, example+":1").ID != first.ID {
		t.Errorf("%+v", first)
	}
	absent(s, example+",os=none")
	absent(store(), ours+",os=none")
	absent(s, "kuryr.org/stranger")
	absent(s, "apcera.com/kurma/other")
	file := filepath.Join(installed, "cni-netplugin.aci")
	elsewhere := "file://" + write(t, named(t, ours, "1"))
	for ref, want := range map[string]string{
		ours: file, example: file, example + ":1": file, "file://" + file: file, elsewhere: "",
	} {
		for range 2 { // read, and known
			if i := get(t, s, ref); i.Installed != want || i.ID != first.ID {
				t.Errorf("%s: installed as %q, want %q", ref, i.Installed, want)
			}
		}
	}
	put("cni-netplugin.aci", named(t, ours, "2"))
	// The image in the store that a reference asks for by its label stays.
	if i := get(t, s, example+":1"); i.ID != first.ID {
		t.Errorf("version 1 is version %s", i.Labels["version"])
	}
	second := get(t, s, example)
	if second.ID == first.ID || second.Labels["version"] != "2" || get(t, s, ours).ID != second.ID {
		t.Errorf("the file has changed: %+v", second)
	}
	if i, err := s.Refresh(t.Context(), example, nil); err != nil || i.ID != second.ID {
		t.Errorf("refreshed: %+v, %v", i, err)
	}
	put("cni-netplugin.aci", []byte("nothing"))
	if _, err := store().Get(t.Context(), example, nil); !errors.Is(err, image.ErrInvalid) {
		t.Errorf("a bad file: %v", err)
	}
}

// The manifest of an image can claim the name of one of Kuryr's. It is no such image.
func TestClaimedNames(t *testing.T) {
	t.Parallel()
	const ours, example = "kuryr.org/cni-netplugin", "apcera.com/kurma/cni-netplugin"
	offline := &http.Transport{DialContext: func(ctx, string, string) (net.Conn, error) {
		return nil, errors.New("offline")
	}}
	installed, dir := t.TempDir(), t.TempDir()
	s := openAt(t, dir, image.Config{Installed: installed, Transport: offline})
	claim := func(name string) image.Image {
		return get(t, s, "file://"+write(t, named(t, name, "9")))
	}
	claims := map[string]image.Image{ours: claim(ours), example: claim(example)}
	for ref, other := range claims {
		if i, err := s.Get(t.Context(), ref, nil); !errors.Is(err, image.ErrNotFound) {
			t.Errorf("%s: %s, %v, want ErrNotFound", ref, i.ID, err)
		}
		// Earlier versions recorded the claim.
		sum := sha256.Sum256([]byte(ref))
		text := fmt.Sprintf(`{"reference":%q,"id":%q}`, ref, other.ID)
		path := filepath.Join(dir, "refs", hex.EncodeToString(sum[:])+".json")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if i, err := s.Get(t.Context(), ref, nil); !errors.Is(err, image.ErrNotFound) {
			t.Errorf("%s, as recorded: %s, %v, want ErrNotFound", ref, i.ID, err)
		}
	}
	file := filepath.Join(installed, "cni-netplugin.aci")
	if err := os.WriteFile(file, named(t, ours, "1"), 0o644); err != nil {
		t.Fatal(err)
	}
	claim(ours)
	for ref := range claims {
		if i := get(t, s, ref); i.Labels["version"] != "1" {
			t.Errorf("%s is version %s of %s", ref, i.Labels["version"], i.Name)
		}
	}
	// Without the file, what it was read as remains.
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if i := get(t, s, example); i.Labels["version"] != "1" {
		t.Errorf("without the file: version %s of %s", i.Labels["version"], i.Name)
	}
}

// named is an ACI of this name and version.
func named(t *testing.T, name, version string) []byte {
	t.Helper()
	spec := plugin()
	spec.Name, spec.Version = name, version
	var b bytes.Buffer
	if err := build.ACI(&b, spec); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}
