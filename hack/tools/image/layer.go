package main

import (
	"archive/tar"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// layer adds the folder to a tar, with all that is root's and of the beginning of time.
func layer(w *tar.Writer, root string) error {
	var paths []string
	err := filepath.WalkDir(root, func(path string, _ os.DirEntry, err error) error {
		if path != root {
			paths = append(paths, path)
		}
		return err
	})
	if err != nil {
		return err
	}
	slices.Sort(paths)
	for _, path := range paths {
		if err := add(w, root, path); err != nil {
			return err
		}
	}
	return nil
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
