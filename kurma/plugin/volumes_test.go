//go:build linux

package plugin

import (
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kuryr/kuryr/internal/nstest"
	"github.com/opencontainers/runtime-spec/specs-go"
)

func TestParseVolume(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Volume{
		"/a=/b":             {Point: "/a", Host: "/b"},
		"/a=/b:ro":          {Point: "/a", Host: "/b", ReadOnly: true},
		"front:/a=/b":       {Network: "front", Point: "/a", Host: "/b"},
		"front:/a=/b/c:ro":  {Network: "front", Point: "/a", Host: "/b/c", ReadOnly: true},
		"/a:b=/c":           {Point: "/a:b", Host: "/c"},
		"front:/a:b=/c=d:x": {Network: "front", Point: "/a:b", Host: "/c=d:x"},
	} {
		if got, err := ParseVolume(text); err != nil || got != want {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "/a", "a=/b", "/a=b", "/a=", "front:a=/b", "/a/../b=/c", "/a=/b/", "front:=/b"} {
		if v, err := ParseVolume(text); err == nil {
			t.Errorf("%q is taken: %+v", text, v)
		}
	}
}

// An image gets of the host what the administrator has granted its network, whatever mount
// points it declares.
func TestVolumesAreGranted(t *testing.T) {
	nstest.Require(t) // /run is the test's own
	const installed = "/usr/share/kuryr/kuryr-netplugin.aci"
	dir := t.TempDir()
	if err := os.MkdirAll("/run/kuryr", 0o700); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove("/run/kuryr") })
	p := &Pod{log: slog.New(slog.DiscardHandler), cfg: Config{State: dir, NetNS: dir, Volumes: []Volume{
		{Point: "/all", Host: dir, ReadOnly: true},
		{Network: "front", Point: "/run/kuryr", Host: "/run/kuryr"},
		{Network: "front", Point: "/all", Host: "/run"},
		{Network: "front", Point: "/absent", Host: dir + "/absent"},
	}}}
	private := func(network, point string) string { return filepath.Join(p.networkDir(network), "volumes", point) }
	for _, c := range []struct {
		network, installed, point, source, access, fails string
	}{
		{"front", "", "/run/kuryr", "/run/kuryr", "rw", ""},
		{"front", "", "/run/kuryr/../kuryr", "/run/kuryr", "rw", ""},
		{"front", "", "/run/kuryr/more", private("front", "run%kuryr%more"), "rw", ""},
		{"front", "", "/all", "/run", "rw", ""},
		{"front", "", "/absent", private("front", "absent"), "rw", ""},
		{"front", "", "/etc/kuryr", "", "", "want front:/etc/kuryr=/etc/kuryr:ro"},
		{"back", "", "/all", dir, "ro", ""},
		{"back", "", "/var/lib/cni", private("back", "var%lib%cni"), "rw", ""},
		{"back", "", "/run/kuryr /etc/kuryr /all", "", "",
			"kurma.volumes does not grant network back the mount points of its image: want back:/run/kuryr=/run/kuryr, back:/etc/kuryr=/etc/kuryr:ro"},
		{"back", "", "/run/openvswitch", "", "", "want back:/run/openvswitch=/run/openvswitch"},
		{"back", "/usr/share/kuryr/other.aci", "/run/kuryr", "", "", "want back:"},
		{"back", installed, "/run/kuryr", "/run/kuryr", "rw", ""},
		{"back", "/usr/share/kuryr/kuryr-netplugin.tar", "/run/kuryr", "/run/kuryr", "rw", ""},
	} {
		mounts, err := p.mountsFor(c.network, Image{Mounts: strings.Fields(c.point), Installed: c.installed})
		if c.fails != "" {
			if err == nil || !strings.Contains(err.Error(), c.fails) {
				t.Errorf("%s, %s, %s: %v, want %q", c.network, c.installed, c.point, err, c.fails)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s, %s, %s: %v", c.network, c.installed, c.point, err)
			continue
		}
		point := filepath.Clean(c.point)
		at := slices.IndexFunc(mounts, func(m specs.Mount) bool { return m.Destination == point })
		if m := mounts[at]; m.Source != c.source || !slices.Contains(m.Options, c.access) {
			t.Errorf("%s, %s, %s: %+v, want %s %s", c.network, c.installed, c.point, m, c.source, c.access)
		}
	}
}
