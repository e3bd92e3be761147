package image_test

import (
	"bytes"
	"errors"
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
	aci := func(name, version string) []byte {
		spec := plugin()
		spec.Name, spec.Version = name, version
		var b bytes.Buffer
		if err := build.ACI(&b, spec); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
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
	put("cni-netplugin.aci", aci(ours, "1"))
	put("stranger.aci", aci("example.com/stranger", "1"))
	first := get(t, s, example)
	if first.Name != ours || get(t, s, ours).ID != first.ID || get(t, s, example+":1").ID != first.ID {
		t.Errorf("%+v", first)
	}
	absent(s, example+",os=none")
	absent(store(), ours+",os=none")
	absent(s, "kuryr.org/stranger")
	absent(s, "apcera.com/kurma/other")
	put("cni-netplugin.aci", aci(ours, "2"))
	if i := get(t, s, example); i.ID != first.ID {
		t.Error("a reference changed its meaning without a refresh")
	}
	second, err := s.Refresh(t.Context(), example, nil)
	if err != nil || second.ID == first.ID || second.Labels["version"] != "2" {
		t.Errorf("refreshed: %+v, %v", second, err)
	}
	// An image of exactly that name goes first, and one in the store does without the file.
	s = store()
	exact := get(t, s, "file://"+write(t, aci(example, "1")))
	other := get(t, s, "file://"+write(t, aci(ours, "3")))
	if i := get(t, s, example); i.ID != exact.ID {
		t.Errorf("%s is %s", example, i.Name)
	}
	if err := s.Remove(exact.ID); err != nil {
		t.Fatal(err)
	}
	if i := get(t, s, example); i.ID != other.ID {
		t.Errorf("%s is version %s of %s", example, i.Labels["version"], i.Name)
	}
	put("cni-netplugin.aci", []byte("nothing"))
	if _, err := store().Get(t.Context(), example, nil); !errors.Is(err, image.ErrInvalid) {
		t.Errorf("a bad file: %v", err)
	}
}
