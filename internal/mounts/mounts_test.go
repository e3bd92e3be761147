//go:build linux

package mounts

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"
)

// A line of any length is read, and so are those after it.
func TestReadFromLongLine(t *testing.T) {
	t.Parallel()
	layers := "lowerdir=" + strings.Repeat("/var/lib/docker/overlay2/l/ABCDEFGHIJKLMNOPQRSTUVWXYZ:", 2000)
	table := "30 1 0:29 / / rw,relatime shared:1 - overlay overlay rw," + layers + "\n" +
		"31 30 0:30 / /run/a\\040b rw shared:5 master:1 - tmpfs  rw\n" +
		"32 31 0:4 net:[4026532281] /run/netns/one rw - nsfs nsfs rw\n"
	got, err := ReadFrom(strings.NewReader(table), nil)
	if err != nil {
		t.Fatal(err)
	}
	var points, types []string
	for _, m := range got {
		points, types = append(points, m.Mountpoint), append(types, m.FSType)
	}
	want, wantTypes := []string{"/", "/run/a b", "/run/netns/one"}, []string{"overlay", "tmpfs", "nsfs"}
	if !reflect.DeepEqual(points, want) || !reflect.DeepEqual(types, wantTypes) {
		t.Errorf("read %q of types %q", points, types)
	}
	if got[1].Optional != "shared:5 master:1" {
		t.Errorf("optional fields %q", got[1].Optional)
	}
}

// The kernel's own table is read as mountinfo reads it. Both read a copy, as other processes mount
// and unmount.
func TestRead(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(Here)
	if err != nil {
		t.Fatal(err)
	}
	table := filepath.Join(t.TempDir(), "mountinfo")
	if err := os.WriteFile(table, text, 0o600); err != nil {
		t.Fatal(err)
	}
	want, err := mountinfo.GetMountsFromReader(bytes.NewReader(text), nil)
	if err != nil || len(want) == 0 {
		t.Fatalf("%d mounts, %v", len(want), err)
	}
	for _, m := range want {
		m.VFSOptions = "none"
	}
	got, err := Read(table, nil)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("read %d mounts of %d, %v", len(got), len(want), err)
	}
	if _, err := Read(t.TempDir()+"/none", nil); !os.IsNotExist(err) {
		t.Errorf("got error %v of an absent table", err)
	}
}
