package kubelab

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// The images that every node has.
const (
	PauseImage = "registry.k8s.io/pause:kuryr-test"
	Busybox    = "docker.io/library/busybox:kuryr-test"
)

// Image is one that is made of programs of the machine, since no node reaches a registry.
// Pods that use it want the pull policy Never, or IfNotPresent and a tag.
type Image struct {
	Name     string            // with registry and tag
	Programs map[string]string // path in the image to file on the machine
	Links    map[string]string // path in the image to what it leads to
	Texts    map[string]string // path in the image to what the file there says
	Entry    []string          // what is run with a pod's arguments, or else with Command
	Command  []string
}

// writeImages makes the archives that each node imports.
func (c *Cluster) writeImages(ctx context.Context) error {
	if err := os.Mkdir(c.images, 0o755); err != nil {
		return err
	}
	busybox, err := c.busybox(ctx)
	if err != nil {
		return err
	}
	pause := Image{
		Name: PauseImage, Programs: map[string]string{"/pause": filepath.Join(c.programs, "pause")},
		Command: []string{"/pause"},
	}
	images := append([]Image{pause, busybox}, c.opts.Images...)
	if c.opts.DNS {
		images = append(images, Image{
			Name:     dnsImage,
			Programs: map[string]string{"/coredns": filepath.Join(c.programs, "coredns")},
			Command:  []string{"/coredns"},
		})
	}
	for i, image := range images {
		if err := image.write(filepath.Join(c.images, fmt.Sprintf("%d.tar", i))); err != nil {
			return fmt.Errorf("image %s: %w", image.Name, err)
		}
	}
	return nil
}

// busybox is the distribution's, with its commands.
func (c *Cluster) busybox(ctx context.Context) (Image, error) {
	image := Image{
		Name: Busybox, Programs: map[string]string{"/bin/busybox": "/bin/busybox"},
		Links: map[string]string{}, Command: []string{"/bin/sh"},
	}
	list := c.Central.Exec(ctx, "/bin/busybox", "--list")
	if !list.OK() {
		return image, fmt.Errorf("busybox is missing (package busybox-static): %s", list)
	}
	for _, applet := range strings.Fields(list.Stdout) {
		if applet != "busybox" {
			image.Links["/bin/"+applet] = "busybox"
		}
	}
	return image, nil
}

// write puts the image into a file in the form of "docker save".
func (i Image) write(file string) error {
	tag, err := name.NewTag(i.Name)
	if err != nil {
		return err
	}
	files, err := i.files()
	if err != nil {
		return err
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(files)), nil }
	// Compression would take longer than the import.
	layer, err := tarball.LayerFromOpener(open, tarball.WithCompressionLevel(gzip.NoCompression))
	if err != nil {
		return err
	}
	image, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = runtime.GOOS, runtime.GOARCH
	config.Config = v1.Config{Entrypoint: i.Entry, Cmd: i.Command, Env: []string{"PATH=/bin"}, WorkingDir: "/"}
	if image, err = mutate.ConfigFile(image, config); err != nil {
		return err
	}
	return tarball.WriteToFile(file, tag, image)
}

// files is the image's one layer.
func (i Image) files() ([]byte, error) {
	var layer bytes.Buffer
	tw := tar.NewWriter(&layer)
	for _, dir := range []string{"bin/", "etc/", "tmp/", "root/", "proc/", "sys/", "dev/"} {
		if err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir, Mode: 0o755}); err != nil {
			return nil, err
		}
	}
	for path, file := range i.Programs {
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		if err := tw.WriteHeader(&tar.Header{
			Typeflag: tar.TypeReg, Name: strings.TrimPrefix(path, "/"), Mode: 0o755,
			Size: int64(len(data)),
		}); err != nil {
			return nil, err
		}
		if _, err := tw.Write(data); err != nil {
			return nil, err
		}
	}
	for path, text := range i.Texts {
		if err := tw.WriteHeader(&tar.Header{
			Typeflag: tar.TypeReg, Name: strings.TrimPrefix(path, "/"), Mode: 0o644,
			Size: int64(len(text)),
		}); err != nil {
			return nil, err
		}
		if _, err := io.WriteString(tw, text); err != nil {
			return nil, err
		}
	}
	for path, to := range i.Links {
		if err := tw.WriteHeader(&tar.Header{
			Typeflag: tar.TypeSymlink, Name: strings.TrimPrefix(path, "/"), Linkname: to,
		}); err != nil {
			return nil, err
		}
	}
	if err := tw.Close(); err != nil {
		return nil, err
	}
	return layer.Bytes(), nil
}
