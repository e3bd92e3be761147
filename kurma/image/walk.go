package image

import (
	"archive/tar"
	"errors"
	"io"
	"math"
	"path"
	"strings"
)

// A tally counts what the archives of one image hold, against its limits.
type tally struct {
	limits         Limits
	entries, bytes int64
}

// walk visits the entries of a tar in their order, each with its path below the image's root:
// relative, clean, "." for the root itself. An absolute name is relative to that root too. It
// is the one place where an archive's words are judged: what visit sees has no "..", no unknown
// type, owners that exist, and is within the limits by what it says of itself. Devices and
// FIFOs are visited, for the visitor to leave out. content gives the bytes of files.
func (t *tally) walk(r io.Reader, visit func(path string, h *tar.Header, content io.Reader) error) error {
	archive := tar.NewReader(r)
	for {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			if errors.Is(err, ErrInvalid) {
				return err
			}
			return invalid("its tar: %w", err)
		}
		if h.Typeflag == tar.TypeXGlobalHeader {
			continue // comments, of "git archive" say
		}
		name, err := t.judge(h)
		if err != nil {
			return err
		}
		if err := visit(name, h, archive); err != nil {
			return err
		}
	}
}

func (t *tally) judge(h *tar.Header) (string, error) {
	name, err := t.name("entry", h.Name)
	if err != nil {
		return "", err
	}
	switch h.Typeflag {
	case tar.TypeGNUSparse, tar.TypeCont: // content gives the holes as zeros
		h.Typeflag = tar.TypeReg
	}
	switch h.Typeflag {
	case tar.TypeReg:
		if h.Size > t.limits.Unpacked-t.bytes {
			return "", invalid("entry %q: the files have more than %d bytes", name, t.limits.Unpacked)
		}
		t.bytes += h.Size
	case tar.TypeDir, tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
	case tar.TypeSymlink:
		if h.Linkname == "" || len(h.Linkname) >= maxName || strings.ContainsRune(h.Linkname, 0) {
			return "", invalid("entry %q: a link needs a target of at most %d bytes", name, maxName-1)
		}
	case tar.TypeLink:
		if h.Linkname, err = t.name("the hard link's target", h.Linkname); err != nil {
			return "", err
		}
	default:
		return "", invalid("entry %q has the unknown type %q", name, h.Typeflag)
	}
	if t.entries++; t.entries > t.limits.Entries {
		return "", invalid("it has more than %d entries", t.limits.Entries)
	}
	const nobody = math.MaxUint32
	if h.Uid < 0 || h.Uid >= nobody || h.Gid < 0 || h.Gid >= nobody {
		return "", invalid("entry %q: there are no owners %d:%d", name, h.Uid, h.Gid)
	}
	return name, nil
}

// What Linux can have.
const maxName, maxPart = 4096, 255

func (t *tally) name(what, name string) (string, error) {
	switch {
	case len(name) >= maxName:
		return "", invalid("%s %.40q… has %d bytes, more than a path may", what, name, len(name))
	case strings.ContainsRune(name, 0):
		return "", invalid("%s %q: a name has no zero byte", what, name)
	}
	depth := 0
	for part := range strings.SplitSeq(name, "/") {
		switch {
		case part == "..":
			return "", invalid("%s %q leads out of the folder it is in", what, name)
		case len(part) > maxPart:
			return "", invalid("%s %.40q…: a part of it has more than %d bytes", what, name, maxPart)
		case part != "" && part != ".":
			depth++
		}
	}
	if depth > t.limits.Depth {
		return "", invalid("%s %.40q… is more than %d folders deep", what, name, t.limits.Depth)
	}
	return path.Clean("./" + name), nil
}
