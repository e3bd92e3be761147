package image

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// put makes an entry that walk has judged, but for a device or a FIFO, which is noted, in place of what is there; a folder over a folder keeps what is in it. Links on the way to it are followed as in a container; the entry itself is never followed.
// Set-user-ID bits and extended attributes are left out: all that a plugin runs is root's. Owners are kept where this process may give files away.
func (r *root) put(name string, h *tar.Header, content io.Reader) error {
	if name == "." {
		return nil // the top is ours
	}
	err := r.putInto(name, h, content)
	// A file where a folder is needed, links in a circle or to nowhere, a name that is too long once links are followed.
	for _, fault := range []error{unix.ENOTDIR, unix.ELOOP, unix.ENAMETOOLONG, unix.EISDIR, unix.EEXIST} {
		if errors.Is(err, fault) {
			return invalid("entry %q: %w", name, err)
		}
	}
	if err != nil && !errors.Is(err, ErrInvalid) {
		err = fmt.Errorf("entry %q: %w", name, err)
	}
	return err
}

func (r *root) putInto(name string, h *tar.Header, content io.Reader) error {
	parent, base, err := r.parent(name, true)
	if err != nil {
		return err
	}
	defer unix.Close(parent)
	dir, err := within(parent)
	if err != nil {
		return err
	}
	defer dir.Close()
	old, err := dir.Lstat(base)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	there := err == nil
	if there && h.Typeflag != tar.TypeLink && (h.Typeflag != tar.TypeDir || !old.IsDir()) {
		if err := dir.RemoveAll(base); err != nil {
			return err
		}
		there = false
	}
	mode := fs.FileMode(h.Mode & 0o777)
	at, err := placeOf(parent, base)
	if err != nil {
		return err
	}
	linked := h.Typeflag == tar.TypeLink && r.isSkipped(h.Linkname)
	delete(r.skipped, at)
	switch h.Typeflag {
	case tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
		r.skipped[at] = name
		return nil
	case tar.TypeSymlink:
		if err := dir.Symlink(h.Linkname, base); err != nil {
			return err
		}
		return give(dir, base, h)
	case tar.TypeLink:
		if linked { // a further name of a device
			r.skipped[at] = name
			return dir.RemoveAll(base)
		}
		return r.link(h.Linkname, dir, parent, base)
	case tar.TypeDir:
		if !there {
			if err := dir.Mkdir(base, 0o700); err != nil {
				return err
			}
		}
		if h.Mode&0o1000 != 0 {
			mode |= fs.ModeSticky
		}
		return errors.Join(give(dir, base, h), dir.Chmod(base, mode))
	}
	file, err := dir.OpenFile(base, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, content)
	if err := errors.Join(err, file.Close()); err != nil {
		return err
	}
	return errors.Join(give(dir, base, h), dir.Chmod(base, mode), dir.Chtimes(base, h.ModTime, h.ModTime))
}

// link makes a further name of a file of this root. What a link leads to is not followed.
func (r *root) link(target string, dir *os.Root, parent int, base string) error {
	from, last, err := r.parent(target, false)
	if errors.Is(err, fs.ErrNotExist) {
		return invalid("entry %q: its hard link's target %q is not there", base, target)
	}
	if err != nil {
		return err
	}
	defer unix.Close(from)
	var stat unix.Stat_t
	if err := unix.Fstatat(from, last, &stat, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return invalid("entry %q: its hard link's target %q: %w", base, target, err)
	}
	if kind := stat.Mode & unix.S_IFMT; kind != unix.S_IFREG && kind != unix.S_IFLNK {
		return invalid("entry %q: its hard link's target %q is no file", base, target)
	}
	temp := ".kurma-link-" + path.Base(base)
	if len(temp) > maxPart {
		temp = temp[:maxPart]
	}
	// Made beside and renamed: the target may be what is replaced, and may then be the same file.
	if err := unix.Linkat(from, last, parent, temp, 0); err != nil {
		return err
	}
	old, err := dir.Lstat(base)
	if err == nil && old.IsDir() {
		if err := dir.RemoveAll(base); err != nil {
			return err
		}
	}
	if err := unix.Renameat(parent, temp, parent, base); err != nil {
		return err
	}
	// The kernel leaves both names where they are the same file.
	if err := dir.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func give(dir *os.Root, base string, h *tar.Header) error {
	if os.Geteuid() != 0 {
		return nil
	}
	return dir.Lchown(base, h.Uid, h.Gid)
}

// Whiteouts of an OCI layer (image-spec, "Image Layer Filesystem Changeset"): a file of this prefix says that what follows it is gone, and the opaque one that
// all of its folder is. They speak of the layers below alone, wherever they are among their own layer's entries.
const whiteout, opaque = ".wh.", ".wh..wh..opq"

// cover does what a whiteout says. What it names may be absent, as layers are not always exact.
func (r *root) cover(name string) error {
	folder, base := path.Split(name)
	if base == opaque {
		return r.empty(folder)
	}
	base = strings.TrimPrefix(base, whiteout)
	if base == "" || base == "." || base == ".." {
		return invalid("entry %q: a whiteout of nothing", name)
	}
	parent, base, err := r.parent(folder+base, false)
	if err != nil {
		return absent(err)
	}
	defer unix.Close(parent)
	dir, err := within(parent)
	if err != nil {
		return err
	}
	defer dir.Close()
	return absent(dir.RemoveAll(base))
}

// empty removes what is in a folder. A link in its place is not followed: what it leads to is
// another folder, which stays.
func (r *root) empty(folder string) error {
	parent, base, err := r.parent(strings.TrimSuffix(folder, "/"), false)
	if err != nil {
		return absent(err)
	}
	defer unix.Close(parent)
	if base == "" {
		base = "."
	}
	flags := unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := unix.Openat(parent, base, flags, 0)
	if err != nil {
		return absent(err)
	}
	defer unix.Close(fd)
	dir, err := within(fd)
	if err != nil {
		return err
	}
	defer dir.Close()
	entries, err := fs.ReadDir(dir.FS(), ".")
	for _, e := range entries {
		err = errors.Join(err, dir.RemoveAll(e.Name()))
	}
	return err
}

func absent(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil
	}
	return err
}
