package build

import (
	"archive/tar"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// appcArch are appc's names of architectures for Go's.
var appcArch = map[string]string{"amd64": "amd64", "386": "i386", "arm64": "aarch64", "arm": "armv7l", "ppc64": "ppc64", "ppc64le": "ppc64le", "s390x": "s390x"}

var notName = regexp.MustCompile(`[^a-z0-9]+`)

type named struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

type mountPoint struct {
	Name string `json:"name"`
	Path string `json:"path"`
}

type isolator struct {
	Name  string `json:"name"`
	Value any    `json:"value"`
}

type app struct {
	Exec        []string     `json:"exec,omitempty"`
	User        string       `json:"user"`
	Group       string       `json:"group"`
	Environment []named      `json:"environment,omitempty"`
	MountPoints []mountPoint `json:"mountPoints,omitempty"`
	Isolators   []isolator   `json:"isolators"`
}

type manifest struct {
	Kind    string  `json:"acKind"`
	Version string  `json:"acVersion"`
	Name    string  `json:"name"`
	Labels  []named `json:"labels"`
	App     app     `json:"app"`
}

// ACI writes the image as an App Container Image (appc specification 0.8.11), compressed with gzip.
func ACI(w io.Writer, s Spec) error {
	text, items, err := s.aci()
	if err != nil {
		return fmt.Errorf("image %s: %w", s.Name, err)
	}
	compressed, err := gzip.NewWriterLevel(w, gzip.BestCompression)
	if err != nil {
		return err
	}
	archive := tar.NewWriter(compressed)
	// The manifest first: a reader that looks for it alone need not read on.
	err = archive.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "manifest", Size: int64(len(text)), Mode: 0o644, ModTime: epoch, Format: tar.FormatPAX})
	if err == nil {
		_, err = archive.Write(text)
	}
	if err == nil {
		err = archive.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: "rootfs/", Mode: 0o755, ModTime: epoch, Format: tar.FormatPAX})
	}
	if err == nil {
		err = write(archive, "rootfs/", items)
	}
	if err != nil {
		return fmt.Errorf("image %s: %w", s.Name, err)
	}
	return errors.Join(archive.Close(), compressed.Close())
}

func (s Spec) aci() ([]byte, []item, error) {
	if err := s.check(); err != nil {
		return nil, nil, err
	}
	items, err := s.items()
	if err != nil {
		return nil, nil, err
	}
	arch := appcArch[s.arch()]
	if arch == "" {
		return nil, nil, fmt.Errorf("arch: appc has no name for %q", s.Arch)
	}
	m := manifest{Kind: "ImageManifest", Version: "0.8.11", Name: s.Name, App: app{
		Exec: s.Exec, User: "0", Group: "0",
		Isolators: []isolator{{"os/linux/privileged", true}}, // by which the Kurma of old lets a plugin change networks
	}}
	labels := map[string]string{}
	maps.Copy(labels, s.Labels)
	labels["os"], labels["arch"] = "linux", arch
	if s.Version != "" {
		labels["version"] = s.Version
	}
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		m.Labels = append(m.Labels, named{name, labels[name]})
	}
	for _, e := range s.Env {
		name, value, _ := strings.Cut(e, "=")
		m.App.Environment = append(m.App.Environment, named{name, value})
	}
	for _, path := range s.Mounts {
		m.App.MountPoints = append(m.App.MountPoints, mountPoint{strings.Trim(notName.ReplaceAllString(strings.ToLower(path), "-"), "-"), path})
	}
	text, err := json.MarshalIndent(m, "", "  ")
	return append(text, '\n'), items, err
}
