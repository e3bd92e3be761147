package build

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/kuryr/kuryr/internal/atomicfile"
)

// Image is the image in OCI's form, of one layer, which is held in memory.
func Image(s Spec) (v1.Image, error) {
	image, err := s.oci()
	if err != nil {
		return nil, fmt.Errorf("image %s: %w", s.Name, err)
	}
	return image, nil
}

func (s Spec) oci() (v1.Image, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	items, err := s.items()
	if err != nil {
		return nil, err
	}
	var content bytes.Buffer
	archive := tar.NewWriter(&content)
	if err := write(archive, "", items); err != nil {
		return nil, err
	}
	if err := archive.Close(); err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content.Bytes())), nil },
		tarball.WithMediaType(types.OCILayer), tarball.WithCompressionLevel(gzip.BestCompression))
	if err != nil {
		return nil, err
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	if image, err = mutate.AppendLayers(image, layer); err != nil {
		return nil, err
	}
	file, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	file = file.DeepCopy()
	file.OS, file.Architecture, file.Created = "linux", s.arch(), v1.Time{Time: epoch}
	labels := map[string]string{"org.opencontainers.image.title": s.Name}
	if s.Version != "" {
		labels["org.opencontainers.image.version"] = s.Version
	}
	maps.Copy(labels, s.Labels)
	file.Config = v1.Config{Entrypoint: s.Exec, Env: s.Env, WorkingDir: "/", Labels: labels}
	for _, path := range s.Mounts {
		if file.Config.Volumes == nil {
			file.Config.Volumes = map[string]struct{}{}
		}
		file.Config.Volumes[path] = struct{}{}
	}
	return mutate.ConfigFile(image, file)
}

// OCI writes the image at path as an OCI archive: an OCI layout (image-spec, "OCI Image Layout") in a tar, as "podman load", "skopeo copy oci-archive:" and "ctr images import" take it.
// The file is there whole or not at all.
func OCI(path string, s Spec) error {
	image, err := Image(s)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp(filepath.Dir(path), ".layout-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	l, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	name := s.Name + ":" + cmp.Or(s.Version, "latest")
	err = l.AppendImage(image, layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": name, "io.containerd.image.name": name}),
		layout.WithPlatform(v1.Platform{OS: "linux", Architecture: s.arch()}))
	if err != nil {
		return err
	}
	files := os.DirFS(dir)
	items, err := Spec{Rootfs: files}.items()
	if err != nil {
		return err
	}
	for n := range items {
		if items[n].header.Typeflag == tar.TypeReg {
			items[n].header.Mode = 0o644
		}
	}
	return atomicfile.Write(path, 0o644, func(f *os.File) error {
		archive := tar.NewWriter(f)
		if err := write(archive, "", items); err != nil {
			return err
		}
		return archive.Close()
	})
}
