package image_test

import (
	"archive/tar"
	"bytes"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/kuryr/kuryr/kurma/image"
)

// Layers that builders write, and what the image has of them. A content of "-" is an absent file.
func TestLayersOfBuilders(t *testing.T) {
	t.Parallel()
	file := func(name, content string) entry { return entry{name: name, content: content} }
	link := func(name, to string) entry { return entry{name: name, kind: tar.TypeLink, link: to} }
	symlink := func(name, to string) entry { return entry{name: name, kind: tar.TypeSymlink, link: to} }
	dir := func(name string) entry { return entry{name: name, kind: tar.TypeDir} }
	char := func(name string) entry { return entry{name: name, kind: tar.TypeChar} }
	type layer = []entry
	for title, c := range map[string]struct {
		layers []layer
		want   map[string]string
		logged string
	}{
		"the root itself": {
			[]layer{{dir("/"), dir("./"), dir("."), file("a", "1")}},
			map[string]string{"a": "1"}, "",
		},
		"absolute names": {
			[]layer{{file("/usr/a", "1"), file("//usr//b", "2"), file("./usr/c", "3")}},
			map[string]string{"usr/a": "1", "usr/b": "2", "usr/c": "3"}, "",
		},
		"hard links by absolute names": {
			[]layer{
				{file("usr/a", "1"), link("b", "/usr/a"), link("c", "./usr/a")},
				{link("/d", "/usr/a"), link("etc/passwd", "/b")},
			},
			map[string]string{"b": "1", "c": "1", "d": "1", "etc/passwd": "1"}, "",
		},
		"devices and FIFOs": {
			[]layer{{
				dir("dev/"), char("dev/console"), entry{name: "dev/sda", kind: tar.TypeBlock},
				entry{name: "run/initctl", kind: tar.TypeFifo}, link("dev/again", "dev/console"), file("a", "1"),
			}},
			map[string]string{"a": "1", "dev/console": "-", "dev/sda": "-", "run/initctl": "-", "dev/again": "-"},
			"entries=\"[dev/again dev/console dev/sda run/initctl]\"",
		},
		"a device in place of a file": {
			[]layer{{file("x", "1"), dir("d/"), file("d/f", "1")}, {char("x"), char("d")}, {link("y", "/x")}},
			map[string]string{"x": "-", "d/f": "-", "y": "-"}, "count=3",
		},
		"a file in place of a device": {
			[]layer{{char("x")}, {file("x", "2"), link("y", "x")}},
			map[string]string{"x": "2", "y": "2"}, "",
		},
		"entries twice": {
			[]layer{{
				file("a", "1"), file("./a", "2"), symlink("l", "a"), symlink("l", "d/f"),
				dir("d/"), file("d/f", "1"), dir("d/"),
			}},
			map[string]string{"a": "2", "d/f": "1", "l": "1"}, "",
		},
		"whiteouts of what is absent": {
			[]layer{
				{file("a", "1")},
				{file("/.wh.b", ""), file("none/.wh.c", ""), file("a/.wh.d", ""), file("no/.wh..wh..opq", "")},
			},
			map[string]string{"a": "1"}, "",
		},
		"whiteouts by absolute names": {
			[]layer{{file("a", "1"), file("d/f", "1")}, {file("/.wh.a", ""), file("/d/.wh..wh..opq", ""), file("d/g", "2")}},
			map[string]string{"a": "-", "d/f": "-", "d/g": "2"}, "",
		},
		"whiteouts of devices": {
			[]layer{{char("dev/x")}, {file("dev/.wh.x", ""), file("a", "1")}},
			map[string]string{"dev/x": "-", "a": "1"}, "count=1",
		},
		"an opaque root": {
			[]layer{{file("a", "1"), file("d/f", "1")}, {file(".wh..wh..opq", ""), file("b", "2")}},
			map[string]string{"a": "-", "d/f": "-", "b": "2"}, "",
		},
		"an opaque folder in place of a link": {
			[]layer{
				{file("usr/bin/x", "1"), symlink("bin", "usr/bin")},
				{dir("bin/"), file("bin/.wh..wh..opq", ""), file("bin/y", "2")},
			},
			map[string]string{"usr/bin/x": "1", "bin/y": "2", "bin/x": "-"}, "",
		},
	} {
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			var raw [][]byte
			for _, l := range c.layers {
				raw = append(raw, pack(t, l...))
			}
			checkBuilt(t, c.want, c.logged, raw...)
		})
	}
}

// checkBuilt unpacks an image of these layers and looks at its files and at the log.
func checkBuilt(t *testing.T, want map[string]string, logged string, layers ...[]byte) {
	t.Helper()
	tag, err := name.NewTag(hub(t) + "/user/built:1")
	if err == nil {
		err = remote.Write(tag, imageOf(t, runtime.GOARCH, layers...))
	}
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	s := open(t, image.Config{Log: slog.New(slog.NewTextHandler(&log, nil))})
	i := get(t, s, "docker://"+tag.String())
	for file, text := range want {
		if _, err := i.Stat(file); os.IsNotExist(err) != (text == "-") {
			t.Errorf("%s: %v, want content %q", file, err, text)
		} else if text != "-" && content(t, i, file) != text {
			t.Errorf("%s has %q, want %q", file, content(t, i, file), text)
		}
	}
	if (logged == "") != (log.Len() == 0) || !strings.Contains(log.String(), logged) {
		t.Errorf("log is %q, want %q", log.String(), logged)
	}
}

// Layers as GNU tar writes them: sparse files in each of its forms, long names, attributes in
// PAX headers.
func TestLayersOfTar(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	long := strings.Repeat("n", 200) + "/" + strings.Repeat("m", 200)
	if err := os.Mkdir(filepath.Join(dir, filepath.Dir(long)), 0o755); err != nil {
		t.Fatal(err)
	}
	sparse := make([]byte, 1<<20)
	copy(sparse[512<<10:], "data")
	for file, size := range map[string]int64{"sparse": 1 << 20, long: 5} {
		f, err := os.Create(filepath.Join(dir, file))
		if err == nil {
			_, err = f.WriteAt([]byte("data"), map[bool]int64{true: 512 << 10}[file == "sparse"])
		}
		if err == nil {
			err = f.Truncate(size)
		}
		if err == nil {
			err = f.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, format := range []string{
		"--format=gnu", "--format=pax --sparse-version=0.0", "--format=pax --sparse-version=0.1",
		"--format=pax --sparse-version=1.0", "--format=pax --pax-option=comment=x,SCHILY.xattr.user.a=b",
		"-P --transform=s,^\\./,/,",
	} {
		argv := append([]string{"-C", dir, "-S", "-cf", "-"}, append(strings.Fields(format), ".")...)
		layer, err := exec.CommandContext(t.Context(), "tar", argv...).Output()
		if err != nil {
			t.Fatalf("tar %q: %v", argv, err)
		}
		checkBuilt(t, map[string]string{"sparse": string(sparse), long: "data\x00"}, "", layer)
	}
}

// An ACI is read as a layer is: absolute names, entries twice, devices.
func TestACIOfBuilders(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	s := open(t, image.Config{Log: slog.New(slog.NewTextHandler(&log, nil))})
	i := get(t, s, "file://"+write(t, pack(t,
		entry{name: "/", kind: tar.TypeDir}, entry{name: "/manifest", content: goodManifest},
		entry{name: "/rootfs/"}, entry{name: "/rootfs/"},
		entry{name: "/rootfs/f", content: "1"}, entry{name: "rootfs/f", content: "2"},
		entry{name: "rootfs/l", kind: tar.TypeLink, link: "/rootfs/f"},
		entry{name: "rootfs/null", kind: tar.TypeChar}, entry{name: "rootfs/n", kind: tar.TypeLink, link: "rootfs/null"})))
	if f, l := content(t, i, "f"), content(t, i, "l"); f != "2" || l != "2" {
		t.Errorf("f has %q, and l %q", f, l)
	}
	if _, err := i.Stat("/null"); !os.IsNotExist(err) || !strings.Contains(log.String(), "entries=\"[n null]\"") {
		t.Errorf("the device: %v; log %q", err, log.String())
	}
}

// A device is known by its place, whatever links the paths to it go through.
func TestSkippedThroughLinks(t *testing.T) {
	t.Parallel()
	s := open(t, image.Config{})
	lib := []entry{{name: "rootfs/usr/lib/"}, {name: "rootfs/lib", kind: tar.TypeSymlink, link: "usr/lib"}}
	link := entry{name: "rootfs/y", kind: tar.TypeLink, link: "rootfs/lib/x"}
	device := get(t, s, "file://"+write(t, packACI(t,
		append(lib, entry{name: "rootfs/usr/lib/x", kind: tar.TypeFifo}, link)...)))
	for _, path := range []string{"/y", "/usr/lib/x"} {
		if _, err := device.Stat(path); !os.IsNotExist(err) {
			t.Errorf("%s of a FIFO: %v", path, err)
		}
	}
	file := get(t, s, "file://"+write(t, packACI(t,
		append(lib, entry{name: "rootfs/lib/x", kind: tar.TypeFifo},
			entry{name: "rootfs/usr/lib/x", content: "file"}, link)...)))
	if got := content(t, file, "y"); got != "file" {
		t.Errorf("the link to a file that replaced a FIFO has %q", got)
	}
}
