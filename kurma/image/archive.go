package image

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"runtime"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// blobs are the parts of an image by their paths in a layout or an archive. The error of an absent one is fs.ErrNotExist.
type blobs interface {
	open(name string) (io.ReadCloser, error)
}

// folderBlobs is an OCI layout that is a folder.
type folderBlobs struct{ *os.Root }

func (f folderBlobs) open(name string) (io.ReadCloser, error) {
	info, err := f.Stat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, invalid("%s is no file", name)
	}
	return f.Open(name)
}

// archiveBlobs is an archive, uncompressed: where each file is in it, and what each link says.
type archiveBlobs struct {
	file  *io.SectionReader
	spans map[string][2]int64 // offset and size
	links map[string]string
}

func indexArchive(file *io.SectionReader, limits Limits) (*archiveBlobs, error) {
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	a := &archiveBlobs{file, map[string][2]int64{}, map[string]string{}}
	t := &tally{limits: limits}
	err := t.walk(file, func(name string, h *tar.Header, _ io.Reader) error {
		switch h.Typeflag {
		case tar.TypeReg:
			at, err := file.Seek(0, io.SeekCurrent)
			if err != nil {
				return err
			}
			a.spans[name] = [2]int64{at, h.Size}
		case tar.TypeSymlink:
			a.links[name] = path.Join(path.Dir(name), h.Linkname)
		case tar.TypeLink:
			a.links[name] = h.Linkname
		}
		return nil
	})
	return a, err
}

func (a *archiveBlobs) open(name string) (io.ReadCloser, error) {
	for range 8 { // "docker save" links equal layers
		if span, found := a.spans[name]; found {
			return io.NopCloser(io.NewSectionReader(a.file, span[0], span[1])), nil
		}
		next, found := a.links[name]
		if !found {
			break
		}
		name = next
	}
	return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
}

// readSmall reads a manifest or the like.
func readSmall(b blobs, name string) ([]byte, error) {
	r, err := b.open(name)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	data, err := io.ReadAll(io.LimitReader(r, maxManifest+1))
	if len(data) > maxManifest {
		return nil, invalid("%s has more than %d bytes", name, maxManifest)
	}
	return data, err
}

// bundle finds the one image in a layout or archive. Docker's archives of today are OCI layouts too, and are read as such.
func bundle(b blobs, limits Limits) (*ociImage, error) {
	index, err := readSmall(b, "index.json")
	if err == nil {
		return ociBundle(b, index, limits)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	manifest, err := readSmall(b, "manifest.json")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, invalid("it is no ACI, no OCI layout and no archive of Docker: it has neither manifest and rootfs, nor index.json, nor manifest.json")
	}
	if err != nil {
		return nil, err
	}
	return dockerBundle(b, manifest, limits)
}

func ociBundle(b blobs, index []byte, limits Limits) (*ociImage, error) {
	chosen, err := choose(index, func(h v1.Hash) ([]byte, error) { return readBlob(b, h) })
	if err != nil {
		return nil, err
	}
	data, err := readBlob(b, chosen.Digest)
	if err != nil {
		return nil, err
	}
	m, err := v1.ParseManifest(bytes.NewReader(data))
	if err != nil {
		return nil, invalid("manifest: %w", err)
	}
	o := &ociImage{limits: limits}
	for _, key := range []string{"io.containerd.image.name", "org.opencontainers.image.ref.name"} {
		if o.name == "" {
			o.name = repository(chosen.Annotations[key])
		}
	}
	if o.config, err = readBlob(b, m.Config.Digest); err != nil {
		return nil, err
	}
	for _, l := range m.Layers {
		o.layers = append(o.layers, layer{l.Digest.String(), func() (io.ReadCloser, error) { return openBlob(b, l.Digest) }})
	}
	return o, nil
}

func openBlob(b blobs, h v1.Hash) (io.ReadCloser, error) {
	r, err := b.open(path.Join("blobs", h.Algorithm, h.Hex))
	if errors.Is(err, fs.ErrNotExist) {
		err = invalid("the blob %s is not in it", h)
	}
	return r, err
}

// readBlob reads a small blob and checks that it is the one that was asked for.
func readBlob(b blobs, h v1.Hash) ([]byte, error) {
	data, err := readSmall(b, path.Join("blobs", h.Algorithm, h.Hex))
	if errors.Is(err, fs.ErrNotExist) {
		err = invalid("the blob %s is not in it", h)
	}
	if err != nil {
		return nil, err
	}
	return data, checkBlob(data, h)
}

func checkBlob(data []byte, h v1.Hash) error {
	sum := sha256.Sum256(data)
	if h.Algorithm != "sha256" || h.Hex != hex.EncodeToString(sum[:]) {
		return invalid("the blob %s has the digest sha256:%x", h, sum)
	}
	return nil
}

// choose finds the manifest for this machine's platform in an index, which may lead to further ones.
func choose(data []byte, read func(v1.Hash) ([]byte, error)) (v1.Descriptor, error) {
	annotations := map[string]string{}
	for range 4 {
		index, err := v1.ParseIndexManifest(bytes.NewReader(data))
		if err != nil {
			return v1.Descriptor{}, invalid("index: %w", err)
		}
		var fit []v1.Descriptor
		for _, m := range index.Manifests {
			p := m.Platform
			if (m.MediaType.IsImage() || m.MediaType.IsIndex()) && (p == nil || p.OS == "linux" && p.Architecture == runtime.GOARCH) {
				fit = append(fit, m)
			}
		}
		if len(fit) == 0 {
			return v1.Descriptor{}, invalid("index: it has no image for linux/%s", runtime.GOARCH)
		}
		if len(fit) > 1 && fit[0].Platform == nil {
			return v1.Descriptor{}, invalid("index: it has %d images; an archive of a plugin holds one", len(fit))
		}
		for k, v := range fit[0].Annotations {
			annotations[k] = v
		}
		if fit[0].MediaType.IsImage() {
			fit[0].Annotations = annotations
			return fit[0], nil
		}
		if data, err = read(fit[0].Digest); err != nil {
			return v1.Descriptor{}, err
		}
	}
	return v1.Descriptor{}, invalid("index: indexes of indexes of indexes")
}

// dockerBundle reads what "docker save" wrote before it wrote OCI layouts.
func dockerBundle(b blobs, manifest []byte, limits Limits) (*ociImage, error) {
	var images []struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	if err := json.Unmarshal(manifest, &images); err != nil {
		return nil, invalid("manifest.json: %w", err)
	}
	if len(images) != 1 {
		return nil, invalid("manifest.json: it has %d images; an archive of a plugin holds one", len(images))
	}
	o := &ociImage{limits: limits}
	if len(images[0].RepoTags) > 0 {
		o.name = repository(images[0].RepoTags[0])
	}
	var err error
	if o.config, err = readSmall(b, path.Clean(images[0].Config)); err != nil {
		return nil, invalid("manifest.json: Config: %w", err)
	}
	for _, l := range images[0].Layers {
		name := path.Clean(l)
		o.layers = append(o.layers, layer{name, func() (io.ReadCloser, error) {
			r, err := b.open(name)
			if errors.Is(err, fs.ErrNotExist) {
				err = invalid("manifest.json: the layer %s is not in it", name)
			}
			return r, err
		}})
	}
	return o, nil
}

// repository is the name of an image without its tag and digest, or "" if it has none: the annotation may be a tag alone.
func repository(ref string) string {
	ref, _, _ = strings.Cut(ref, "@")
	if colon := strings.LastIndexByte(ref, ':'); colon > strings.LastIndexByte(ref, '/') {
		ref = ref[:colon]
	} else if !strings.Contains(ref, "/") {
		return ""
	}
	if !identifier.MatchString(ref) {
		return ""
	}
	return ref
}
