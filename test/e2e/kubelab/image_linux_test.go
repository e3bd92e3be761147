package kubelab

import (
	"archive/tar"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

func TestImage(t *testing.T) {
	t.Parallel()
	program, archive := filepath.Join(t.TempDir(), "program"), filepath.Join(t.TempDir(), "image.tar")
	if err := os.WriteFile(program, []byte("a program"), 0o755); err != nil {
		t.Fatal(err)
	}
	made := Image{
		Name: PauseImage, Programs: map[string]string{"/bin/p": program},
		Links: map[string]string{"/bin/q": "p"}, Command: []string{"/bin/p"},
	}
	if err := made.write(archive); err != nil {
		t.Fatal(err)
	}
	tag, err := name.NewTag(PauseImage)
	if err != nil {
		t.Fatal(err)
	}
	image, err := tarball.ImageFromPath(archive, &tag)
	if err != nil {
		t.Fatal(err)
	}
	config, err := image.ConfigFile()
	if err != nil || len(config.Config.Cmd) != 1 || config.Config.Cmd[0] != "/bin/p" || config.OS != "linux" {
		t.Errorf("the image's configuration is %+v, %v", config, err)
	}
	files := mutate.Extract(image)
	defer files.Close()
	found := map[string]string{}
	for r := tar.NewReader(files); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		found[header.Name] = header.Linkname + string(text)
	}
	if found["bin/p"] != "a program" || found["bin/q"] != "p" {
		t.Errorf("the image has %v", found)
	}
}
