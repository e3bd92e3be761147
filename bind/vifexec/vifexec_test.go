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
	nstest.RootsFiles(t)
	dir := t.TempDir()
	for name, text := range scripts {
		nstest.WriteProgram(t, filepath.Join(dir, name), []byte("#!/bin/sh\n"+text))
	}
	return Dir(dir), dir
}

func port(vif string) sdn.Port {
	mac, _ := net.ParseMAC("fa:16:3e:00:00:01")
	return sdn.Port{
		Meta:    sdn.Meta{ID: "b5b1f2a0-1111-4000-8000-000000000001", Base: sdn.Base{Project: "proj"}},
		Network: "net", MAC: mac, DeviceID: "endpoint",
		VIF: sdn.VIF{Type: vif, Details: map[string]string{
			"port_filter": "true", "bridge_name": "it's", "vlan": "7", "bound_drivers": `{"0":"ovn"}`,
		}},
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
		{dir.Bind, []string{"bind", "b5b1f2a0-1111-4000-8000-000000000001", "tapx", "endpoint",
			"fa:16:3e:00:00:01", "net", "proj",
			`"{'bound_drivers': {'0': 'ovn'}, 'bridge_name': 'it\'s', 'port_filter': True, 'vlan': '7'}"`}},
		{dir.Unbind, []string{"unbind", "b5b1f2a0-1111-4000-8000-000000000001", "tapx", "endpoint", "fa:16:3e:00:00:01",
			`"{'bound_drivers': {'0': 'ovn'}, 'bridge_name': 'it\'s', 'port_filter': True, 'vlan': '7'}"`, "net"}},
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

// What the SDN said as JSON is for a Python program of the type that it was, however deep.
func TestDetails(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":            `''`,
		"br-int":      `'br-int'`,
		"true":        `True`,
		"false":       `False`,
		"truest":      `'truest'`,
		"null":        `None`,
		"nullable":    `'nullable'`,
		"7":           `'7'`, // a VLAN, as Neutron's drivers write it
		`{"0":"ovn"}`: `{'0': 'ovn'}`,
		`{}`:          `{}`,
		`{"b":[true,null,-1.50,"it's"],"a":{"c":false,"d":12345678901234567890}}`: `{'a': {'c': ` +
			`False, 'd': 12345678901234567890}, 'b': [True, None, -1.50, 'it\'s']}`,
		`[]`:               `[]`,
		`["x","\n"]`:       `['x', '\n']`,
		`[not JSON]`:       `'[not JSON]'`,
		`{"cut": "off`:     `'{"cut": "off'`,
		"a\\b\x01\x7f\r\t": `'a\\b\x01\x7f\r\t'`,
		"größe":            `'größe'`,
	} {
		if got := quoted(map[string]string{"k": text}); got != `"{'k': `+want+`}"` {
			t.Errorf("%s is %s, want %s", text, got, want)
		}
	}
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
}

// A user who can change a folder above an executable, or a folder or a link that leads there,
// chooses what is called.
func TestWhoCouldHaveChangedTheWay(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		spoil string // a folder, below the test's own, that is made so
		mode  os.FileMode
		owner int
		good  bool
	}{
		"as it should be":           {"", 0, 0, true},
		"the folder itself":         {"a/b", 0o777, 0, false},
		"of a group":                {"a/b", 0o775, 0, false},
		"above it":                  {"a", 0o777, 0, false},
		"another's above it":        {"a", 0o755, 1, false},
		"sticky":                    {"a", 0o777 | os.ModeSticky, 0, true},
		"sticky, another's":         {"a", 0o777 | os.ModeSticky, 1, false},
		"where a link leads":        {"c/d", 0o777, 0, false},
		"above where a link leads":  {"c", 0o777, 0, false},
		"where a link only goes by": {"e", 0o777, 0, false},
		"elsewhere":                 {"f", 0o777, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, top := folder(t, nil)
			for _, sub := range []string{"a/b", "c/d", "e", "f"} {
				if err := os.MkdirAll(filepath.Join(top, sub), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			// a/b/vendor leads by a folder and a relative link, e/on, to c/d/program.
			for link, to := range map[string]string{"a/b/vendor": filepath.Join(top, "e/on/program"), "e/on": "../c/./d"} {
				if err := os.Symlink(to, filepath.Join(top, link)); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.WriteFile(filepath.Join(top, "c/d/program"), []byte("#!/bin/sh\n"), 0o755); err != nil {
				t.Fatal(err)
			}
			if c.spoil != "" {
				spoilt := filepath.Join(top, c.spoil)
				if err := os.Chown(spoilt, c.owner, -1); err != nil {
					t.Skip(err) // in some user namespaces
				}
				if err := os.Chmod(spoilt, c.mode); err != nil {
					t.Fatal(err)
				}
			}
			err := Dir(filepath.Join(top, "a/b")).Check(port("vendor"))
			if c.good && err != nil || !c.good &&
				(!sdn.IsDenied(err) || !strings.Contains(err.Error(), filepath.Join(top, c.spoil))) {
				t.Errorf("got error %v", err)
			}
		})
	}
}

func TestLinksWithoutEnd(t *testing.T) {
	t.Parallel()
	dir, path := folder(t, nil)
	for link, to := range map[string]string{"vendor": "other", "other": "vendor"} {
		if err := os.Symlink(to, filepath.Join(path, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := dir.Check(port("vendor")); err == nil {
		t.Error("a link that leads to itself is found")
	}
	if err := Dir("relative").Check(port("vendor")); !sdn.IsDenied(err) {
		t.Errorf("a folder that is no whole path: got error %v", err)
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
