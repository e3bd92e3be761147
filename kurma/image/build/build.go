// Package build makes the image of a network plugin out of files: as an ACI, and as an OCI archive.
//
// It owns nothing but what it is told to write. The same files make the same bytes, whoever builds them and when: owners, times and order are fixed. It must not know what the
// files are, run any of them, or talk with a registry.
package build

import (
	"archive/tar"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"
	"time"
)

// Spec says what an image is. Name, and something in Rootfs or Files, are needed.
type Spec struct {
	Name    string   // an appc identifier, "kuryr.org/netplugin"; the OCI archive's repository too
	Version string   // label of the ACI and tag of the OCI archive; "" is "latest" there and nothing in the ACI
	Arch    string   // as Go calls it; "" is this program's
	Exec    []string // the main executable and its arguments
	Env     []string // NAME=value
	Mounts  []string // absolute paths in the container
	Labels  map[string]string

	Rootfs fs.FS             // may be nil; os.DirFS(dir) gives links as they are
	Files  map[string]string // by path in the image: files of this machine, which may be links to them. They stand above Rootfs
}

// epoch is the time of all that is built.
var epoch = time.Unix(0, 0).UTC()

// An item is an entry of the root file system.
type item struct {
	header tar.Header
	open   func() (io.ReadCloser, error) // of files
}

// items are the whole root file system in the order of paths, a folder before what is in it.
func (s Spec) items() ([]item, error) {
	all := map[string]item{}
	if s.Rootfs != nil {
		err := fs.WalkDir(s.Rootfs, ".", func(name string, d fs.DirEntry, err error) error {
			if err != nil || name == "." {
				return err
			}
			info, err := d.Info()
			if err != nil {
				return err
			}
			i, err := s.entry(name, info)
			all[name] = i
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	for to, from := range s.Files {
		name := strings.TrimPrefix(path.Clean("/"+to), "/")
		info, err := os.Stat(from)
		if err != nil {
			return nil, err
		}
		if name == "" || !info.Mode().IsRegular() {
			return nil, fmt.Errorf("%s: %s is no file to be put there", to, from)
		}
		i := item{tar.Header{Typeflag: tar.TypeReg, Name: name, Size: info.Size(), Mode: mode(info)}, func() (io.ReadCloser, error) { return os.Open(from) }}
		all[name] = i
	}
	for _, name := range slices.Collect(maps.Keys(all)) {
		for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
			above, there := all[dir]
			if there && above.header.Typeflag != tar.TypeDir {
				return nil, fmt.Errorf("%s: %s is no folder", name, dir)
			}
			all[dir] = item{header: tar.Header{Typeflag: tar.TypeDir, Name: dir, Mode: cmp.Or(above.header.Mode, 0o755)}}
		}
	}
	if len(all) == 0 {
		return nil, errors.New("it has no files")
	}
	list := slices.Collect(maps.Values(all))
	slices.SortFunc(list, func(a, b item) int { return cmp.Compare(a.header.Name, b.header.Name) })
	return list, nil
}

func (s Spec) entry(name string, info fs.FileInfo) (item, error) {
	i := item{header: tar.Header{Name: name, Mode: mode(info)}}
	switch info.Mode().Type() {
	case 0:
		i.header.Typeflag, i.header.Size = tar.TypeReg, info.Size()
		i.open = func() (io.ReadCloser, error) { return s.Rootfs.Open(name) }
	case fs.ModeDir:
		i.header.Typeflag = tar.TypeDir
	case fs.ModeSymlink:
		target, err := fs.ReadLink(s.Rootfs, name)
		if err != nil {
			return item{}, err
		}
		i.header.Typeflag, i.header.Linkname, i.header.Mode = tar.TypeSymlink, target, 0o777
	default:
		return item{}, fmt.Errorf("%s: an image has files, folders and links", name)
	}
	return i, nil
}

// mode depends on the execute bit alone, as git's does: a umask must not change an image.
func mode(info fs.FileInfo) int64 {
	if info.IsDir() || info.Mode()&0o100 != 0 {
		return 0o755
	}
	return 0o644
}

// write puts the items into a tar, below prefix.
func write(w *tar.Writer, prefix string, items []item) error {
	for _, i := range items {
		h := i.header
		h.Name, h.ModTime, h.Format = prefix+h.Name, epoch, tar.FormatPAX
		if h.Typeflag == tar.TypeDir {
			h.Name += "/"
		}
		if err := w.WriteHeader(&h); err != nil {
			return err
		}
		if i.open == nil {
			continue
		}
		r, err := i.open()
		if err != nil {
			return err
		}
		_, err = io.Copy(w, r)
		if err := errors.Join(err, r.Close()); err != nil {
			return fmt.Errorf("%s: %w", h.Name, err)
		}
	}
	return nil
}

func (s Spec) arch() string { return cmp.Or(s.Arch, runtime.GOARCH) }

// check finds what neither form could say.
func (s Spec) check() error {
	if s.Name == "" {
		return errors.New("name: it is needed")
	}
	for _, e := range s.Env {
		if name, _, found := strings.Cut(e, "="); !found || name == "" {
			return fmt.Errorf("env: %q is not NAME=value", e)
		}
	}
	for _, m := range s.Mounts {
		if !path.IsAbs(m) || path.Clean(m) != m || m == "/" {
			return fmt.Errorf("mounts: %q must be an absolute path, clean, below /", m)
		}
	}
	return nil
}
