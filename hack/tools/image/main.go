// Command image writes a container image of one layer as an archive that "docker load", "podman load" and "ctr images import" read, without an engine and from nothing but
// the files it is given. The same files make the same archive, byte for byte: times and owners are fixed, and names are in order.
//
// It must not know what the files are, nor talk with a registry.
package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

var (
	to         = flag.String("to", "", "archive to write")
	reference  = flag.String("tag", "", "name and tag of the image")
	arch       = flag.String("arch", "", "architecture, as Go calls it")
	entrypoint = flag.String("entrypoint", "", "program that the container runs")
	version    = flag.String("version", "", "label org.opencontainers.image.version")
)

func main() {
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "image -to FILE -tag NAME:TAG -arch ARCH -entrypoint PATH ROOT: makes an image of the folder ROOT")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() != 1 || *to == "" || *reference == "" || *arch == "" {
		flag.Usage()
		os.Exit(2)
	}
	if err := write(flag.Arg(0)); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func write(root string) error {
	tag, err := name.NewTag(*reference)
	if err != nil {
		return err
	}
	content, err := layer(root)
	if err != nil {
		return err
	}
	made, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil })
	if err != nil {
		return err
	}
	image, err := mutate.AppendLayers(empty.Image, made)
	if err != nil {
		return err
	}
	file, err := image.ConfigFile()
	if err != nil {
		return err
	}
	file = file.DeepCopy()
	file.OS, file.Architecture, file.Created = "linux", *arch, v1.Time{Time: time.Unix(0, 0).UTC()}
	file.Config = v1.Config{
		Entrypoint: []string{*entrypoint}, Env: []string{"PATH=/usr/bin"}, WorkingDir: "/",
		Labels: map[string]string{"org.opencontainers.image.title": path.Base(tag.RepositoryStr()), "org.opencontainers.image.version": *version},
	}
	if image, err = mutate.ConfigFile(image, file); err != nil {
		return err
	}
	// Whole or not at all.
	out, err := os.CreateTemp(filepath.Dir(*to), ".image-*")
	if err != nil {
		return err
	}
	err = errors.Join(tarball.Write(tag, image, out), out.Chmod(0o644), out.Close())
	if err == nil {
		err = os.Rename(out.Name(), *to)
	}
	if err != nil {
		_ = os.Remove(out.Name())
	}
	return err
}

// layer is a tar of the folder, with all that is root's and of the beginning of time.
func layer(root string) ([]byte, error) {
	var paths []string
	err := filepath.WalkDir(root, func(path string, _ os.DirEntry, err error) error {
		if path != root {
			paths = append(paths, path)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	slices.Sort(paths)
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, path := range paths {
		if err := add(w, root, path); err != nil {
			return nil, err
		}
	}
	return b.Bytes(), w.Close()
}

func add(w *tar.Writer, root, path string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	link := ""
	if info.Mode()&os.ModeSymlink != 0 {
		if link, err = os.Readlink(path); err != nil {
			return err
		}
	}
	from, err := tar.FileInfoHeader(info, link)
	if err != nil {
		return err
	}
	header := &tar.Header{
		Typeflag: from.Typeflag, Name: strings.TrimPrefix(from.Name, "/"), Linkname: link, Size: from.Size, Mode: from.Mode & 0o7777, ModTime: time.Unix(0, 0), Format: tar.FormatPAX,
	}
	within, err := filepath.Rel(root, path)
	if err != nil {
		return err
	}
	if header.Name = filepath.ToSlash(within); info.IsDir() {
		header.Name += "/"
	}
	if err := w.WriteHeader(header); err != nil || !info.Mode().IsRegular() {
		return err
	}
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = io.Copy(w, file)
	return err
}
