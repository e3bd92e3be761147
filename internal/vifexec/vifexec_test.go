//go:build linux

package vifexec

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kuryr/kuryr/internal/nstest"
	"github.com/kuryr/kuryr/sdn"
)

func TestMain(m *testing.M) { os.Exit(nstest.Main(m)) }

// folder is a folder of root's own, with an executable for each text.
func folder(t *testing.T, scripts map[string]string) (Dir, string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, also that of a user namespace: only root's files are called")
	}
	dir := t.TempDir()
	for name, text := range scripts {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return Dir(dir), dir
}

func port(vif string) sdn.Port {
	mac, _ := net.ParseMAC("fa:16:3e:00:00:01")
	return sdn.Port{
		Meta: sdn.Meta{ID: "b5b1f2a0-1111-4000-8000-000000000001", Base: sdn.Base{Project: "proj"}}, Network: "net", MAC: mac, DeviceID: "endpoint",
		VIF: sdn.VIF{Type: vif, Details: map[string]string{"port_filter": "true", "bridge_name": "it's", "vlan": "7"}},
	}
}

// The arguments are kuryr-lib's, whose orders differ.
func TestArguments(t *testing.T) {
	t.Parallel()
	dir, path := folder(t, map[string]string{"vendor": `printf '%s\n' "$@" >` + "\"$0.said\"\n"})
	for _, tc := range []struct {
		call func(context.Context, sdn.Port, string) error
		want []string
	}{
		{dir.Bind, []string{"bind", "b5b1f2a0-1111-4000-8000-000000000001", "tapx", "endpoint", "fa:16:3e:00:00:01", "net", "proj",
			`"{'bridge_name': 'it\'s', 'port_filter': True, 'vlan': '7'}"`}},
		{dir.Unbind, []string{"unbind", "b5b1f2a0-1111-4000-8000-000000000001", "tapx", "endpoint", "fa:16:3e:00:00:01",
			`"{'bridge_name': 'it\'s', 'port_filter': True, 'vlan': '7'}"`, "net"}},
	} {
		if err := tc.call(t.Context(), port("vendor"), "tapx"); err != nil {
			t.Fatal(err)
		}
		said, err := os.ReadFile(filepath.Join(path, "vendor.said"))
		if got := strings.Split(strings.TrimSpace(string(said)), "\n"); err != nil || !slices.Equal(got, tc.want) {
			t.Errorf("called with %q, %v, want %q", got, err, tc.want)
		}
	}
}

func TestNoDetails(t *testing.T) {
	t.Parallel()
	if got := quoted(nil); got != "" {
		t.Errorf("no details are %q", got)
	}
}

func TestFailureIsSaid(t *testing.T) {
	t.Parallel()
	dir, _ := folder(t, map[string]string{"vendor": "echo no such\necho bridge >&2\nexit 3\n"})
	err := dir.Bind(t.Context(), port("vendor"), "tapx")
	if err == nil || !strings.Contains(err.Error(), "exit status 3: no such bridge") {
		t.Errorf("got error %v", err)
	}
}

// Its children hold the output open and would be waited for.
func TestEndsInTime(t *testing.T) {
	t.Parallel()
	dir, _ := folder(t, map[string]string{"vendor": "sleep 1000 &\nsleep 1000\n"})
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := dir.Bind(ctx, port("vendor"), "tapx"); !sdn.IsUnavailable(err) {
		t.Errorf("got error %v, want one that is unavailable", err)
	}
}

func TestBoundedOutput(t *testing.T) {
	t.Parallel()
	dir, _ := folder(t, map[string]string{"vendor": "yes | head -c 1000000\nexit 1\n"})
	if err := dir.Bind(t.Context(), port("vendor"), "tapx"); err == nil || len(err.Error()) > said+200 {
		t.Errorf("got an error of %d bytes", len(err.Error()))
	}
}

func TestWhoCouldHaveChangedIt(t *testing.T) {
	t.Parallel()
	dir, path := folder(t, map[string]string{"good": "", "writable": "", "foreign": "", "plain": ""})
	for name, mode := range map[string]os.FileMode{"writable": 0o775, "plain": 0o644} {
		if err := os.Chmod(filepath.Join(path, name), mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(filepath.Join(path, "writable"), filepath.Join(path, "link")); err != nil {
		t.Fatal(err)
	}
	if err := dir.Check(port("good")); err != nil {
		t.Errorf("a good one is refused: %v", err)
	}
	for _, name := range []string{"writable", "plain", "link"} {
		if err := dir.Bind(t.Context(), port(name), "tapx"); !sdn.IsDenied(err) {
			t.Errorf("%s: got error %v, want one that is denied", name, err)
		}
	}
	if err := os.Chown(filepath.Join(path, "foreign"), 1, 1); err == nil { // not in every user namespace
		if err := dir.Check(port("foreign")); !sdn.IsDenied(err) {
			t.Errorf("another user's: got error %v, want one that is denied", err)
		}
	}
	if err := os.Chmod(path, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := dir.Check(port("good")); !sdn.IsDenied(err) {
		t.Errorf("in a folder that all may write: got error %v, want one that is denied", err)
	}
}

func TestNames(t *testing.T) {
	t.Parallel()
	dir, _ := folder(t, map[string]string{"good": ""})
	for _, name := range []string{"absent", "../good", "Good", "a b", "", "good\n", ".."} {
		if err := dir.Check(port(name)); !sdn.IsUnsupported(err) || sdn.FieldOf(err) != "vif.type" {
			t.Errorf("%q: got error %v, want one that is unsupported and names the field", name, err)
		}
	}
}
