package image

import (
	"archive/tar"
	"context"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"
)

// An aci is an App Container Image (appc specification 0.8.11, "App Container Image"): a tar, perhaps compressed, of a file "manifest" and a folder "rootfs", and nothing else.
type aci struct {
	file   *io.SectionReader
	limits Limits
}

// verify reads all of it and writes nothing.
func (a *aci) verify(ctx context.Context) (Image, error) {
	var manifest []byte
	var rootfs bool
	size := int64(0)
	id, err := a.read(ctx, func(name string, h *tar.Header, content io.Reader) error {
		switch {
		case name == "." && h.Typeflag == tar.TypeDir:
		case name == "manifest" && h.Typeflag == tar.TypeReg:
			if manifest != nil {
				return invalid("entry %q is there twice", name)
			}
			if h.Size > maxManifest {
				return invalid("the manifest has more than %d bytes", maxManifest)
			}
			var err error
			manifest, err = io.ReadAll(content)
			return err
		case name == "rootfs" && h.Typeflag == tar.TypeDir:
			rootfs = true
		case strings.HasPrefix(name, "rootfs/"):
			rootfs = true
			size += h.Size
			if h.Typeflag == tar.TypeLink && !strings.HasPrefix(h.Linkname, "rootfs/") {
				return invalid("entry %q: its hard link's target %q is not in rootfs", name, h.Linkname)
			}
		default:
			return invalid("entry %q: an ACI holds a file manifest and a folder rootfs, and nothing else", name)
		}
		return nil
	})
	switch {
	case err != nil:
		return Image{}, err
	case manifest == nil:
		return Image{}, invalid("it has no manifest")
	case !rootfs:
		return Image{}, invalid("it has no rootfs")
	}
	image, err := parseManifest(manifest)
	image.ID, image.Size = id, size
	return image, err
}

// unpack makes the files of an image that verify has read in a new folder.
func (a *aci) unpack(ctx context.Context, want ID, to *root) error {
	id, err := a.read(ctx, func(name string, h *tar.Header, content io.Reader) error {
		inside, found := strings.CutPrefix(name, "rootfs/")
		if !found {
			return nil
		}
		h.Linkname = strings.TrimPrefix(h.Linkname, linkPrefix(h))
		return to.put(inside, h, content)
	})
	if err == nil && id != want {
		err = fmt.Errorf("it was changed while it was read")
	}
	return err
}

func linkPrefix(h *tar.Header) string {
	if h.Typeflag == tar.TypeLink {
		return "rootfs/"
	}
	return ""
}

// read visits the entries and returns the SHA-512 of the whole tar, which has what follows its end in it.
func (a *aci) read(ctx context.Context, visit func(string, *tar.Header, io.Reader) error) (ID, error) {
	if _, err := a.file.Seek(0, io.SeekStart); err != nil {
		return "", err
	}
	r, err := decompress(ctx, a.file, a.limits)
	if err != nil {
		return "", err
	}
	defer r.Close()
	sum := sha512.New()
	all := io.TeeReader(r, sum)
	t := &tally{limits: a.limits}
	if err := t.walk(all, visit); err != nil {
		return "", err
	}
	if _, err := io.Copy(io.Discard, all); err != nil {
		return "", err
	}
	return ID("sha512-" + hex.EncodeToString(sum.Sum(nil))), nil
}

// isACI tells by its first entry whether a tar is an ACI rather than an archive of OCI or Docker, whose first entries have other names.
func isACI(ctx context.Context, file *io.SectionReader, limits Limits) (bool, error) {
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return false, err
	}
	r, err := decompress(ctx, file, limits)
	if err != nil {
		return false, err
	}
	defer r.Close()
	first, enough := "", errors.New("enough")
	t := &tally{limits: limits}
	err = t.walk(r, func(name string, _ *tar.Header, _ io.Reader) error {
		if first = name; name == "." {
			return nil
		}
		return enough
	})
	if err != nil && !errors.Is(err, enough) {
		return false, err
	}
	top, _, _ := strings.Cut(first, "/")
	return top == "manifest" || top == "rootfs", nil
}
