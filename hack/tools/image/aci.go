package main

import (
	"archive/tar"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"time"
)

// The parts of an image manifest of appc that are written (App Container Image, version 0.8.11).
type (
	manifest struct {
		Kind    string `json:"acKind"`
		Version string `json:"acVersion"`
		Name    string `json:"name"`
		Labels  []pair `json:"labels"`
		App     app    `json:"app"`
	}
	app struct {
		Exec             []string     `json:"exec"`
		User             string       `json:"user"`
		Group            string       `json:"group"`
		WorkingDirectory string       `json:"workingDirectory"`
		Environment      []pair       `json:"environment"`
		MountPoints      []mountPoint `json:"mountPoints,omitempty"`
		Isolators        []isolator   `json:"isolators"`
	}
	pair struct {
		Name  string `json:"name"`
		Value string `json:"value"`
	}
	mountPoint struct {
		Name string `json:"name"`
		Path string `json:"path"`
	}
	isolator struct {
		Name  string `json:"name"`
		Value any    `json:"value"`
	}
)

// writeACI writes a tar, compressed by gzip, of the manifest and of the folder below rootfs. The image's name is that of -tag, without the tag.
func writeACI(out io.Writer, root string) error {
	name, _, _ := strings.Cut(*reference, ":")
	m := manifest{
		Kind: "ImageManifest", Version: "0.8.11", Name: name, Labels: []pair{{"version", *version}, {"os", "linux"}, {"arch", *arch}},
		App: app{
			Exec: strings.Fields(*entrypoint), User: "0", Group: "0", WorkingDirectory: "/", Environment: []pair{{"PATH", "/usr/sbin:/usr/bin"}},
			Isolators: []isolator{{"os/linux/privileged", true}}, // what Kurma itself asks for, so that a plugin may change networks
		},
	}
	for _, at := range folders() {
		m.App.MountPoints = append(m.App.MountPoints, mountPoint{strings.ReplaceAll(strings.Trim(at, "/"), "/", "-"), at})
	}
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	packed, err := gzip.NewWriterLevel(out, gzip.BestCompression)
	if err != nil {
		return err
	}
	w := tar.NewWriter(packed)
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "manifest", Size: int64(len(text)), Mode: 0o644, ModTime: time.Unix(0, 0), Format: tar.FormatPAX}); err != nil {
		return err
	}
	if _, err := w.Write(text); err != nil {
		return err
	}
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: "rootfs/", Mode: 0o755, ModTime: time.Unix(0, 0), Format: tar.FormatPAX}); err != nil {
		return err
	}
	return errors.Join(layer(w, root, "rootfs/"), w.Close(), packed.Close())
}
