package image

import (
	"encoding/json"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"
)

// maxManifest is the longest manifest, configuration or index that is read, in bytes.
const maxManifest = 4 << 20

// appcArch are appc's names of architectures for Go's.
var appcArch = map[string]string{"amd64": "amd64", "386": "i386", "arm64": "aarch64", "arm": "armv7l", "ppc64": "ppc64", "ppc64le": "ppc64le", "s390x": "s390x"}

var acVersion = regexp.MustCompile(`^0\.\d{1,9}\.\d{1,9}([-+].*)?$`)

// aciManifest is what is read of an ACI's manifest (appc specification 0.8.11, "Image Manifest Schema").
type aciManifest struct {
	Kind    string  `json:"acKind"`
	Version string  `json:"acVersion"`
	Name    string  `json:"name"`
	Labels  []named `json:"labels"`
	App     *struct {
		Exec        []string `json:"exec"`
		User        string   `json:"user"`
		Group       string   `json:"group"`
		Dir         string   `json:"workingDirectory"`
		Environment []named  `json:"environment"`
		MountPoints []struct {
			Name     string `json:"name"`
			Path     string `json:"path"`
			ReadOnly bool   `json:"readOnly"`
		} `json:"mountPoints"`
	} `json:"app"`
	Annotations   []named           `json:"annotations"`
	Dependencies  []json.RawMessage `json:"dependencies"`
	PathWhitelist []string          `json:"pathWhitelist"`
}

type named struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// parseManifest reads and checks an ACI's manifest. Its errors name the key.
func parseManifest(data []byte) (Image, error) {
	var m aciManifest
	if err := json.Unmarshal(data, &m); err != nil {
		return Image{}, invalid("manifest: %w", err)
	}
	switch {
	case m.Kind != "ImageManifest":
		return Image{}, invalid("manifest: acKind is %q, not ImageManifest", m.Kind)
	case !acVersion.MatchString(m.Version):
		return Image{}, invalid("manifest: acVersion %q is not 0.x.y", m.Version)
	case len(m.Name) > 512 || !identifier.MatchString(m.Name):
		return Image{}, invalid("manifest: name %q is no appc identifier", m.Name)
	case len(m.Dependencies) > 0:
		return Image{}, invalid("manifest: dependencies: images of several ACIs are not put together; build it as one")
	case len(m.PathWhitelist) > 0:
		return Image{}, invalid("manifest: pathWhitelist: it is for images of several ACIs, which are not put together")
	}
	image := Image{Name: m.Name, Labels: map[string]string{}}
	for _, l := range m.Labels {
		if !identifier.MatchString(l.Name) {
			return Image{}, invalid("manifest: labels: %q is no appc identifier", l.Name)
		}
		if _, twice := image.Labels[l.Name]; twice {
			return Image{}, invalid("manifest: labels: %s is there twice", l.Name)
		}
		image.Labels[l.Name] = l.Value
	}
	if os := image.Labels["os"]; os != "" && os != "linux" {
		return Image{}, invalid("manifest: labels: os is %q, not linux", os)
	}
	if arch := image.Labels["arch"]; arch != "" && arch != appcArch[runtime.GOARCH] {
		return Image{}, invalid("manifest: labels: arch is %q, and this machine is %s", arch, appcArch[runtime.GOARCH])
	}
	for _, a := range m.Annotations {
		if a.Name == "created" {
			image.Created, _ = time.Parse(time.RFC3339, a.Value) // for people to read, so it may be wrong
		}
	}
	if m.App == nil {
		return image, nil
	}
	if m.App.User == "" || m.App.Group == "" {
		return Image{}, invalid("manifest: app: user and group must be set")
	}
	image.Exec, image.User, image.Group = m.App.Exec, m.App.User, m.App.Group
	for _, e := range m.App.Environment {
		image.Env = append(image.Env, e.Name+"="+e.Value)
		if e.Name == "" || strings.Contains(e.Name, "=") {
			return Image{}, invalid("manifest: app: environment: %q is no name", e.Name)
		}
	}
	var names []string
	for _, p := range m.App.MountPoints {
		if !acName.MatchString(p.Name) {
			return Image{}, invalid("manifest: app: mountPoints: %q is no appc name", p.Name)
		}
		if slices.Contains(names, p.Name) {
			return Image{}, invalid("manifest: app: mountPoints: %s is there twice", p.Name)
		}
		names = append(names, p.Name)
		image.Mounts = append(image.Mounts, Mount{Name: p.Name, Path: p.Path, ReadOnly: p.ReadOnly})
	}
	image.Dir = m.App.Dir
	return image, image.check("manifest: app")
}

// check judges what manifests and configurations have in common, and cleans paths.
func (i *Image) check(where string) error {
	for _, words := range [][]string{i.Exec, i.Env, {i.User, i.Group}} {
		for _, w := range words {
			if strings.ContainsRune(w, 0) {
				return invalid("%s: %q has a zero byte", where, w)
			}
		}
	}
	if len(i.Exec) > 0 && i.Exec[0] == "" {
		return invalid("%s: exec: the program's name is empty", where)
	}
	var err error
	if i.Dir != "" {
		if i.Dir, err = cleanPath(where+": working directory", i.Dir); err != nil {
			return err
		}
	}
	seen := map[string]bool{}
	for n := range i.Mounts {
		m := &i.Mounts[n]
		if m.Path, err = cleanPath(where+": mount point", m.Path); err != nil {
			return err
		}
		if m.Path == "/" || seen[m.Path] {
			return invalid("%s: mount point %s: it is the top, or there twice", where, m.Path)
		}
		seen[m.Path] = true
	}
	return nil
}
