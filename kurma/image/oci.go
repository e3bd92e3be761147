package image

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"path"
	"runtime"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/kuryr/kuryr/internal/sortslice"
)

// An ociImage is an image of OCI or Docker, wherever its parts are: a configuration and the layers that it names, lowest first.
type ociImage struct {
	name   string
	config []byte
	layers []layer
	limits Limits

	diffs     []string   // the layers' digests by the configuration, uncompressed
	whiteouts [][]string // by layer
}

// A layer is a tar, perhaps compressed, that can be read from its start as often as is wanted.
type layer struct {
	name string
	open func() (io.ReadCloser, error)
}

// verify reads every layer whole and writes nothing.
func (o *ociImage) verify(ctx context.Context, progress func(item string)) (Image, error) {
	image, diffs, err := parseConfig(o.config)
	if err != nil {
		return Image{}, err
	}
	if len(diffs) != len(o.layers) {
		return Image{}, invalid("configuration: rootfs: it names %d layers, and there are %d", len(diffs), len(o.layers))
	}
	image.Name, o.diffs = o.name, diffs
	t := &tally{limits: o.limits}
	for n, l := range o.layers {
		progress(l.name)
		var covered []string
		err := o.read(ctx, t, n, func(name string, h *tar.Header, _ io.Reader) error {
			if strings.HasPrefix(path.Base(name), whiteout) {
				covered = append(covered, name)
			}
			image.Size += h.Size
			return nil
		})
		if err != nil {
			return Image{}, err
		}
		o.whiteouts = append(o.whiteouts, covered)
	}
	return image, nil
}

// unpack makes the files of an image that verify has read in a new folder.
func (o *ociImage) unpack(ctx context.Context, to *root, progress func(item string)) error {
	t := &tally{limits: o.limits}
	for n, l := range o.layers {
		progress(l.name)
		for _, name := range o.whiteouts[n] {
			if err := to.cover(name); err != nil {
				return err
			}
		}
		err := o.read(ctx, t, n, func(name string, h *tar.Header, content io.Reader) error {
			if strings.HasPrefix(path.Base(name), whiteout) {
				return nil
			}
			return to.put(name, h, content)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// read visits the entries of a layer and checks its digest at the end.
func (o *ociImage) read(ctx context.Context, t *tally, n int, visit func(string, *tar.Header, io.Reader) error) error {
	file, err := o.layers[n].open()
	if err != nil {
		return err
	}
	defer file.Close()
	r, err := decompress(ctx, file, o.limits)
	if err != nil {
		return err
	}
	defer r.Close()
	sum := sha256.New()
	all := io.TeeReader(r, sum)
	if err := t.walk(all, visit); err != nil {
		return fmt.Errorf("layer %s: %w", o.layers[n].name, err)
	}
	if _, err := io.Copy(io.Discard, all); err != nil {
		return fmt.Errorf("layer %s: %w", o.layers[n].name, err)
	}
	if got := "sha256:" + hex.EncodeToString(sum.Sum(nil)); got != o.diffs[n] {
		return invalid("layer %s: its digest is %s, and the configuration says %s", o.layers[n].name, got, o.diffs[n])
	}
	return nil
}

// parseConfig reads and checks an image's configuration (OCI image-spec, "Image Configuration"; Docker's is the same). It returns the layers' digests too.
func parseConfig(data []byte) (Image, []string, error) {
	if !bytes.HasPrefix(bytes.TrimSpace(data), []byte("{")) { // null would be an image without files
		return Image{}, nil, invalid("configuration: want a JSON object")
	}
	c, err := v1.ParseConfigFile(bytes.NewReader(data))
	if err != nil {
		return Image{}, nil, invalid("configuration: %w", err)
	}
	if os := cmp.Or(c.OS, "linux"); os != "linux" {
		return Image{}, nil, invalid("configuration: os is %q, not linux", c.OS)
	}
	if arch := cmp.Or(c.Architecture, runtime.GOARCH); arch != runtime.GOARCH {
		return Image{}, nil, invalid("configuration: architecture is %q, and this machine is %s", c.Architecture, runtime.GOARCH)
	}
	sum := sha256.Sum256(data)
	image := Image{
		ID: ID("sha256-" + hex.EncodeToString(sum[:])), Created: c.Created.Time, Labels: map[string]string{},
		Exec: slices.Concat(c.Config.Entrypoint, c.Config.Cmd), Env: c.Config.Env, Dir: c.Config.WorkingDir,
	}
	image.User, image.Group, _ = strings.Cut(c.Config.User, ":")
	for k, v := range c.Config.Labels {
		image.Labels[k] = v
	}
	if v := image.Labels["org.opencontainers.image.version"]; v != "" && image.Labels["version"] == "" {
		image.Labels["version"] = v
	}
	for _, e := range image.Env {
		if name, _, found := strings.Cut(e, "="); !found || name == "" {
			return Image{}, nil, invalid("configuration: Env: %q is not NAME=value", e)
		}
	}
	for p := range c.Config.Volumes {
		image.Mounts = append(image.Mounts, Mount{Name: p, Path: p})
	}
	sortslice.Func(image.Mounts, func(a, b Mount) int { return cmp.Compare(a.Path, b.Path) })
	var diffs []string
	for _, d := range c.RootFS.DiffIDs {
		if d.Algorithm != "sha256" {
			return Image{}, nil, invalid("configuration: rootfs: the digest %s is not SHA-256's", d)
		}
		diffs = append(diffs, d.String())
	}
	return image, diffs, image.check("configuration")
}
