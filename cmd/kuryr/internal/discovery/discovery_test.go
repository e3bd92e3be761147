package discovery

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kuryr/kuryr/internal/tlsfiles"
)

func issued(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := tlsfiles.Issue(dir, []string{"127.0.0.1"}, time.Now()); err != nil {
		t.Fatal(err)
	}
	return dir
}

func tcp(dir string) Plugin {
	return Plugin{
		Address: "tcp://127.0.0.1:2378", CA: filepath.Join(dir, tlsfiles.CAFile),
		Cert: filepath.Join(dir, tlsfiles.ClientFile), Key: filepath.Join(dir, tlsfiles.ClientKeyFile),
	}
}

func TestFile(t *testing.T) {
	t.Parallel()
	dir, other := issued(t), issued(t)
	server := tcp(dir)
	server.Cert, server.Key = filepath.Join(dir, tlsfiles.ServerFile), filepath.Join(dir, tlsfiles.ServerKeyFile)
	with := func(change func(*Plugin)) Plugin { p := tcp(dir); change(&p); return p }
	now := time.Now()
	for name, tc := range map[string]struct {
		plugin Plugin
		now    time.Time
		field  string
		want   string
	}{
		"http":      {with(func(p *Plugin) { p.Address = "http://127.0.0.1:1" }), now, "address", "plain text"},
		"no scheme": {with(func(p *Plugin) { p.Address = "127.0.0.1:1" }), now, "address", "no URL"},
		"no port":   {with(func(p *Plugin) { p.Address = "https://127.0.0.1" }), now, "address", "HOST:PORT"},
		"a path":    {with(func(p *Plugin) { p.Address = "https://127.0.0.1:1/x" }), now, "address", "HOST:PORT"},
		"anywhere": {
			with(func(p *Plugin) { p.Address = "tcp://0.0.0.0:1" }), now, "address",
			"not an address that Docker can call",
		},
		"no authority":     {with(func(p *Plugin) { p.CA = "" }), now, "ca", "verifies nothing"},
		"no certificate":   {with(func(p *Plugin) { p.Cert = "" }), now, "cert", "is needed"},
		"no key":           {with(func(p *Plugin) { p.Key = "" }), now, "key", "is needed"},
		"relative":         {with(func(p *Plugin) { p.CA = "ca.pem" }), now, "ca", "whole path"},
		"absent authority": {with(func(p *Plugin) { p.CA = "/absent.pem" }), now, "ca", "no such file"},
		"a key as CA":      {with(func(p *Plugin) { p.CA = p.Key }), now, "ca", "no certificate"},
		"another's key":    {with(func(p *Plugin) { p.Key = tcp(other).Key }), now, "cert", "does not match"},
		"expired":          {tcp(dir), now.AddDate(4, 0, 0), "cert", "expired"},
		"not yet":          {tcp(dir), now.AddDate(-1, 0, 0), "cert", "not valid before"},
		"a server's":       {server, now, "cert", "not for a client"},
		"relative socket":  {Plugin{Address: "unix://run/kuryr.sock"}, now, "address", "whole path"},
		"dots":             {Plugin{Address: "unix:///run/../kuryr.sock"}, now, "address", "whole path"},
		"socket with TLS":  {Plugin{Address: "unix:///run/k.sock", CA: "/x"}, now, "ca", "not for a Unix socket"},
		"default socket":   {Plugin{Address: "unix:///run/docker/plugins/kuryr.sock"}, now, "address", ErrFound.Error()},
	} {
		_, err := tc.plugin.File(tc.now)
		var field *FieldError
		if !errors.As(err, &field) || field.Field != tc.field || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %s: …%s", name, err, tc.field, tc.want)
		}
	}
	f, err := Plugin{Address: "unix:///srv/kuryr.sock"}.File(now)
	if err != nil || f.Name != "kuryr.spec" || string(f.Content) != "unix:///srv/kuryr.sock\n" {
		t.Errorf("spec: %v %s %q", err, f.Name, f.Content)
	}
	f, err = tcp(dir).File(now)
	if err != nil || f.Name != "kuryr.json" {
		t.Fatalf("json: %v %s", err, f.Name)
	}
	// As the engine decodes it: by any other scheme than https it would not use TLS.
	var decoded struct {
		Name, Addr string
		TLSConfig  *struct {
			CAFile, CertFile, KeyFile string
			InsecureSkipVerify        bool
		}
	}
	if err := json.Unmarshal(f.Content, &decoded); err != nil || decoded.TLSConfig == nil {
		t.Fatalf("%v\n%s", err, f.Content)
	}
	if decoded.Name != "kuryr" || decoded.Addr != "https://127.0.0.1:2378" ||
		decoded.TLSConfig.InsecureSkipVerify || decoded.TLSConfig.CAFile != tcp(dir).CA ||
		decoded.TLSConfig.CertFile != tcp(dir).Cert || decoded.TLSConfig.KeyFile != tcp(dir).Key {
		t.Errorf("%s", f.Content)
	}
	if strings.Contains(string(f.Content), "PRIVATE") {
		t.Error("a key is in the file")
	}
}

func TestInstall(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "plugins")
	one, two := File{"kuryr.json", []byte("{}\n")}, File{"kuryr.spec", []byte("unix:///x\n")}
	install := func(f File, replace, wantChanged, wantErr bool) {
		t.Helper()
		changed, err := Install(dir, f, replace)
		if changed != wantChanged || errors.Is(err, fs.ErrExist) != wantErr || !wantErr && err != nil {
			t.Errorf("changed %v, %v", changed, err)
		}
	}
	install(one, false, true, false)
	install(one, false, false, false) // twice is as once
	if info, err := os.Stat(filepath.Join(dir, one.Name)); err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("%v, mode %v", err, info.Mode())
	}
	install(File{one.Name, []byte("{ }\n")}, false, false, true)
	install(two, false, false, true) // Docker would take the .spec and not the .json
	install(two, true, true, false)
	if left, _ := filepath.Glob(dir + "/*"); !slices.Equal(left, []string{filepath.Join(dir, two.Name)}) {
		t.Errorf("in the folder: %v", left)
	}
	for i, want := range []int{1, 0} {
		if removed, err := Uninstall(dir); err != nil || len(removed) != want {
			t.Errorf("uninstall %d: %v, %v", i, removed, err)
		}
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// The order is the engine's.
func TestBefore(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	sockets, etc, lib := filepath.Join(root, "run"), filepath.Join(root, "etc"), filepath.Join(root, "lib")
	make := func(path string) string {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	file := File{Name: "kuryr.json"}
	before := func(dir string) []string { return Before(sockets, []string{etc, lib}, dir, file) }
	make(filepath.Join(lib, "kuryr.json"))
	make(filepath.Join(etc, "kuryr.json"))
	if got := before(etc); len(got) != 0 {
		t.Errorf("before the first: %v", got)
	}
	if got, want := before(lib), []string{filepath.Join(etc, "kuryr.json")}; !slices.Equal(got, want) {
		t.Errorf("before the second: %v, want %v", got, want)
	}
	want := []string{make(filepath.Join(sockets, "kuryr.sock")), make(filepath.Join(etc, "kuryr", "kuryr.spec"))}
	if got := before(etc); !slices.Equal(got, want) {
		t.Errorf("before the first: %v, want %v", got, want)
	}
}

// An installed file is found again, unchanged. An unreadable one is found too, since
// an engine stops at it.
func TestFind(t *testing.T) {
	t.Parallel()
	dir, root := issued(t), t.TempDir()
	sockets, etc, lib := filepath.Join(root, "run"), filepath.Join(root, "etc"), filepath.Join(root, "lib")
	file, err := tcp(dir).File(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Install(lib, file, false); err != nil {
		t.Fatal(err)
	}
	want := tcp(dir)
	want.Address = "https://127.0.0.1:2378"
	find := func() []Found { return Find(sockets, []string{etc, lib}, Name) }
	if got := find(); !slices.Equal(got, []Found{{filepath.Join(lib, "kuryr.json"), want}}) {
		t.Errorf("found %+v", got)
	}
	for path, text := range map[string]string{
		"run/kuryr.sock": "no socket", "etc/kuryr.spec": " unix:///srv/kuryr.sock\n",
		"etc/kuryr/kuryr.json": "{", "lib/kuryr.spec": strings.Repeat("x", maxFile+1),
		"etc/other.spec": "unix:///x",
	} {
		path = filepath.Join(root, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	all := []Found{
		{filepath.Join(etc, "kuryr.spec"), Plugin{Address: "unix:///srv/kuryr.sock"}},
		{Path: filepath.Join(etc, "kuryr/kuryr.json")},
		{Path: filepath.Join(lib, "kuryr.spec")}, {filepath.Join(lib, "kuryr.json"), want},
	}
	if got := find(); !slices.Equal(got, all) {
		t.Errorf("found %+v\nwant %+v", got, all)
	}
}
