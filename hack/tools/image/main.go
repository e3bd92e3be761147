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
	entrypoint = flag.String("entrypoint", "", "program that the container runs, with its arguments")
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
	if err := whole(*to, func(out io.Writer) error { return write(out, flag.Arg(0)) }); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

// whole makes a file whole or not at all.
func whole(path string, write func(io.Writer) error) error {
	out, err := os.CreateTemp(filepath.Dir(path), ".image-*")
	if err != nil {
		return err
	}
	err = errors.Join(write(out), out.Chmod(0o644), out.Close())
	if err == nil {
		err = os.Rename(out.Name(), path)
	}
	if err != nil {
		_ = os.Remove(out.Name())
	}
	return err
}

func write(out io.Writer, root string) error {
	tag, err := name.NewTag(*reference)
	if err != nil {
		return err
	}
	var content bytes.Buffer
	w := tar.NewWriter(&content)
	if err := errors.Join(layer(w, root), w.Close()); err != nil {
		return err
	}
	made, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content.Bytes())), nil })
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
		Entrypoint: strings.Fields(*entrypoint), Env: []string{"PATH=/usr/sbin:/usr/bin"}, WorkingDir: "/",
		Labels: map[string]string{"org.opencontainers.image.title": path.Base(tag.RepositoryStr()), "org.opencontainers.image.version": *version},
	}
	if image, err = mutate.ConfigFile(image, file); err != nil {
		return err
	}
	return tarball.Write(tag, image, out)
}
