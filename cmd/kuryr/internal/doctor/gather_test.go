//go:build linux

package doctor

import (
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kuryr/kuryr/internal/nstest"
	"github.com/kuryr/kuryr/internal/tlsfiles"
	"github.com/vishvananda/netlink"
)

func TestMain(m *testing.M) { os.Exit(nstest.Main(m)) }

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// socket makes one that somebody listens at, or listened at.
func socket(t *testing.T, path string, alive bool) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	if !alive {
		_ = l.Close()
	}
	t.Cleanup(func() { _ = l.Close() })
}

// root is a short folder, since the path of a socket has little room.
func root(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "kd-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func TestPlugins(t *testing.T) {
	t.Parallel()
	const usual = "run/docker/plugins/kuryr.sock"
	for _, tc := range []struct {
		name    string
		socket  string // kuryr's
		make    func(t *testing.T, root string)
		verdict Verdict
		says    string
		removes string
	}{
		{"usual", usual, func(t *testing.T, r string) { socket(t, filepath.Join(r, usual), true) }, OK, usual, ""},
		{"none", usual, func(*testing.T, string) {}, Problem, "finds no plugin kuryr", ""},
		{
			"ended", usual, func(t *testing.T, r string) { socket(t, filepath.Join(r, usual), false) },
			Problem, "nobody listens", "",
		},
		{"by spec", "elsewhere/kuryr.sock", func(t *testing.T, r string) {
			socket(t, filepath.Join(r, "elsewhere/kuryr.sock"), true)
			write(t, filepath.Join(r, "etc/docker/plugins/kuryr.spec"), "unix://"+filepath.Join(r, "elsewhere/kuryr.sock")+"\n")
		}, OK, "kuryr.spec", ""},
		{"shadowed by a leftover", "elsewhere/kuryr.sock", func(t *testing.T, r string) {
			socket(t, filepath.Join(r, usual), false)
			socket(t, filepath.Join(r, "elsewhere/kuryr.sock"), true)
			write(t, filepath.Join(r, "etc/docker/plugins/kuryr.spec"), "unix://"+filepath.Join(r, "elsewhere/kuryr.sock"))
		}, Problem, "nobody listens", usual},
		{"shadowed by another", usual, func(t *testing.T, r string) {
			write(t, filepath.Join(r, "etc/docker/plugins/kuryr.json"), `{"Name":"kuryr","Addr":"tcp://192.0.2.1:99"}`)
		}, Problem, "leads to tcp://192.0.2.1:99 and not to kuryr's socket", ""},
		{"old spec behind", usual, func(t *testing.T, r string) {
			socket(t, filepath.Join(r, usual), true)
			write(t, filepath.Join(r, "usr/lib/docker/plugins/kuryr/kuryr.spec"), "unix:///nowhere/kuryr.sock")
		}, Warning, "unix:///nowhere/kuryr.sock", "usr/lib/docker/plugins/kuryr/kuryr.spec"},
		{"foreign spec behind", usual, func(t *testing.T, r string) {
			socket(t, filepath.Join(r, usual), true)
			write(t, filepath.Join(r, "etc/docker/plugins/kuryr.spec"), "http://192.0.2.1:99")
		}, Warning, "http://192.0.2.1:99", ""},
		{"own spec, while kuryr is away", "elsewhere/kuryr.sock", func(t *testing.T, r string) {
			socket(t, filepath.Join(r, "elsewhere/kuryr.sock"), false)
			write(t, filepath.Join(r, "etc/docker/plugins/kuryr.spec"), "unix://"+filepath.Join(r, "elsewhere/kuryr.sock"))
		}, Problem, "nobody listens", ""},
		{"with a password", usual, func(t *testing.T, r string) {
			write(t, filepath.Join(r, "etc/docker/plugins/kuryr.spec"), "http://me:hidden@192.0.2.1:99")
		}, Problem, "http://me:xxxxx@192.0.2.1:99", ""},
		{"no description", usual, func(t *testing.T, r string) {
			socket(t, filepath.Join(r, usual), true)
			write(t, filepath.Join(r, "etc/docker/plugins/kuryr.json"), "{")
		}, Warning, "kuryr.json leads to", ""},
	} {
		r := root(t)
		tc.make(t, r)
		facts := findPlugin(r, []string{"kuryr"}, filepath.Join(r, tc.socket), "")
		found := Plugins(facts)
		if got := Worst(found); got != tc.verdict ||
			!slices.ContainsFunc(found, func(f Finding) bool { return strings.Contains(f.What, tc.says) }) {
			t.Errorf("%s: %+v, want %s and %q", tc.name, found, tc.verdict, tc.says)
		}
		done, err := facts.Remove()
		if err != nil || (tc.removes == "") != (len(done) == 0) || tc.removes != "" && exists(filepath.Join(r, tc.removes)) {
			t.Errorf("%s: removed %q, %v; want %q", tc.name, done, err, tc.removes)
		}
		if again, err := facts.Remove(); err != nil {
			t.Errorf("%s: removed twice: %q, %v", tc.name, again, err)
		}
	}
}

// By TCP: what the file says is compared with where kuryr listens, and its certificates
// are looked at.
func TestPluginsByTCP(t *testing.T) {
	t.Parallel()
	certs := t.TempDir()
	if err := tlsfiles.Issue(certs, []string{"127.0.0.1"}, time.Now()); err != nil {
		t.Fatal(err)
	}
	const file = "etc/docker/plugins/kuryr.json"
	in := func(name string) string { return filepath.Join(certs, name) }
	described := func(address string) string {
		return `{"Name":"kuryr","Addr":"` + address + `","TLSConfig":{"CAFile":"` + in(tlsfiles.CAFile) +
			`","CertFile":"` + in(tlsfiles.ClientFile) + `","KeyFile":"` + in(tlsfiles.ClientKeyFile) + `"}}`
	}
	for _, tc := range []struct {
		name, listen, file string
		verdict            Verdict
		says               string
	}{
		{"address", "tcp://127.0.0.1:2378", described("https://127.0.0.1:2378"), OK, file},
		{"all addresses", "tcp://0.0.0.0:2378", described("https://127.0.0.1:2378"), OK, file},
		{"all addresses of both families", "tcp://[::]:2378", described("https://[::1]:2378"), OK, file},
		{"a name", "tcp://192.0.2.1:2378", described("https://sdn.example:2378"), OK, file},
		{
			"another address", "tcp://192.0.2.1:2378", described("https://127.0.0.1:2378"), Problem,
			"leads to https://127.0.0.1:2378 and not to kuryr's address https://192.0.2.1:2378",
		},
		{
			"another port", "tcp://127.0.0.1:2378", described("https://127.0.0.1:2379"), Problem,
			"leads to https://127.0.0.1:2379",
		},
		{
			"plain HTTP", "tcp://127.0.0.1:2378", described("tcp://127.0.0.1:2378"), Problem,
			"leads to tcp://127.0.0.1:2378 and not to kuryr's address https://127.0.0.1:2378",
		},
		{"without certificates", "tcp://127.0.0.1:2378", `{"Addr":"https://127.0.0.1:2378"}`, Problem, "ca: is needed"},
		{"not there", "tcp://127.0.0.1:2378", "", Problem, "finds no plugin kuryr"},
		{"by socket only", "", described("https://127.0.0.1:2378"), Problem, "not to kuryr's socket"},
	} {
		r, at := root(t), ""
		if tc.file != "" {
			write(t, filepath.Join(r, file), tc.file)
		}
		if tc.listen == "" {
			at = filepath.Join(r, "kuryr.sock")
		}
		facts := findPlugin(r, []string{"kuryr"}, at, tc.listen)
		if found := Plugins(facts); len(found) != 1 || found[0].Verdict != tc.verdict ||
			!strings.Contains(found[0].What, tc.says) {
			t.Errorf("%s: %+v, want %s and %q", tc.name, found, tc.verdict, tc.says)
		}
		if done, err := facts.Remove(); err != nil || len(done) > 0 {
			t.Errorf("%s: removed %q, %v", tc.name, done, err)
		}
	}
	r := root(t)
	write(t, filepath.Join(r, file), described("https://127.0.0.1:2378"))
	facts := findPlugin(r, []string{"kuryr"}, "", "tcp://127.0.0.1:2378")
	facts.Now = facts.Now.AddDate(4, 0, 0)
	if found := Plugins(facts); Worst(found) != Problem || !strings.Contains(found[0].What, "expired") {
		t.Errorf("in four years: %+v", found)
	}
}

// A managed plugin needs no file; one that is disabled goes before a file all the same.
func TestPluginsManaged(t *testing.T) {
	t.Parallel()
	const usual = "run/docker/plugins/kuryr.sock"
	for _, tc := range []struct {
		name    string
		change  func(*PluginFacts)
		file    bool
		verdict Verdict
		says    string
	}{
		{
			"enabled",
			func(p *PluginFacts) { p.Managed = []Managed{{"kuryr:old", false}, {"example/net:1", true}} },
			false, OK, "example/net:1",
		},
		{
			"disabled", func(p *PluginFacts) { p.Managed = []Managed{{"kuryr:latest", false}} }, false,
			Problem, "kuryr:latest is disabled",
		},
		{
			"disabled, before a file",
			func(p *PluginFacts) { p.Managed = []Managed{{"kuryr:latest", false}} }, true, Problem,
			"kuryr:latest is disabled",
		},
		{"disabled, of another name", func(p *PluginFacts) { p.Managed = []Managed{{"kuryr:old", false}} }, true, OK, usual},
		{"not known", func(p *PluginFacts) { p.Unasked = true }, false, Warning, "does not tell"},
		{"none", func(*PluginFacts) {}, false, Problem, "finds no plugin kuryr"},
	} {
		r := root(t)
		if tc.file {
			socket(t, filepath.Join(r, usual), true)
		}
		p := findPlugin(r, []string{"kuryr"}, filepath.Join(r, usual), "")
		tc.change(&p)
		if found := Plugins(p); len(found) != 1 || found[0].Verdict != tc.verdict ||
			!strings.Contains(found[0].What, tc.says) {
			t.Errorf("%s: %+v, want %s and %q", tc.name, found, tc.verdict, tc.says)
		}
	}
}

func TestFindUnit(t *testing.T) {
	t.Parallel()
	r := root(t)
	if u := findUnit(r); u.Systemd || u.Docker || u.Path != "" {
		t.Errorf("nothing there: %+v", u)
	}
	write(t, filepath.Join(r, "run/systemd/system/x"), "")
	write(t, filepath.Join(r, "lib/systemd/system/docker.service"), "")
	write(t, filepath.Join(r, "lib/systemd/system/kuryr.service"), "packaged")
	write(
		t, filepath.Join(r, "etc/systemd/system/kuryr.service"),
		"[Unit]\nBefore=docker.service\n[Service]\nKillMode=process",
	)
	write(t, filepath.Join(r, "etc/systemd/system/kuryr.service.d/a.conf"), "[Service]\nPrivateTmp=yes")
	u := findUnit(r)
	if !u.Systemd || !u.Docker || u.Path != filepath.Join(r, "etc/systemd/system/kuryr.service") ||
		strings.Contains(string(u.Text), "packaged") {
		t.Errorf("%+v %s", u, u.Text)
	}
	if found := Unit(u); len(found) != 1 || !strings.Contains(found[0].What, "PrivateTmp=yes") {
		t.Errorf("%+v", found)
	}
}

// TestMountNamespace finds each setting that gives the unit its own mounts.
func TestMountNamespace(t *testing.T) {
	t.Parallel()
	unit := func(setting string) []Finding {
		text := "[Unit]\nBefore=docker.service\n[Service]\nKillMode=process\n" + setting
		return Unit(UnitFacts{Systemd: true, Docker: true, Path: "/k.service", Text: []byte(text)})
	}
	for _, setting := range []string{
		"MountImages=/i.raw:/opt", "ExtensionImages=/e.raw", "ExtensionDirectories=/e", "MountAPIVFS=yes",
		"InaccessibleDirectories=/home", "ReadOnlyDirectories=/etc", "ReadWriteDirectories=/var", "MountFlags=slave",
		"PrivateNetwork=yes", "NetworkNamespacePath=/run/netns/a", "PrivateIPC=yes", "IPCNamespacePath=/run/ipc",
		"BindLogSockets=yes",
	} {
		found := unit(setting)
		if len(found) != 1 || found[0].Verdict != Problem || !strings.Contains(found[0].What, setting) {
			t.Errorf("%s: %+v", setting, found)
		}
	}
	for _, setting := range []string{"MountAPIVFS=no", "MountFlags=shared", "PrivateNetwork=no"} {
		if found := unit(setting); len(found) != 1 || found[0].Verdict != OK {
			t.Errorf("%s: %+v", setting, found)
		}
	}
}

func TestLook(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	write(t, path, "x")
	facts := Look([]File{{Path: path}, {Path: filepath.Join(dir, "none")}}, dir, filepath.Join(dir, "not/yet"))
	if f := facts.Files; f[0].Mode.Perm() != 0o600 || f[0].UID != os.Geteuid() || f[0].Absent || !f[1].Absent {
		t.Errorf("files %+v", f)
	}
	if d := facts.Disks; len(d) != 2 || d[0].Size == 0 || d[0].Size != d[1].Size {
		t.Errorf("disks %+v", d)
	}
	if Changed(path).IsZero() || !Changed(path+"x").IsZero() {
		t.Error("times of change")
	}
	if here, seen := CountPins("/"); here == 0 || seen > here {
		t.Errorf("%d mounts, %d seen", here, seen) // /proc is one
	}
}

// The machine that tests has what the data path needs, and the probe leaves nothing.
func TestProbeKernel(t *testing.T) {
	nstest.Require(t)
	before, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	facts := ProbeKernel()
	if facts.Untried != nil || len(facts.Features) < 8 {
		t.Fatalf("%+v", facts)
	}
	for _, f := range facts.Features {
		if f.Err != nil {
			t.Errorf("no %s: %v", f.Name, f.Err)
		}
	}
	if after, err := net.Interfaces(); err != nil || len(after) != len(before) {
		t.Errorf("links %v, before %v, %v", after, before, err)
	}
}

func TestGatherLimitsAndRoutes(t *testing.T) {
	nstest.Require(t)
	add := func(link, to string) {
		t.Helper()
		l := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: link}}
		if err := netlink.LinkAdd(l); err != nil {
			t.Fatal(err)
		}
		if err := netlink.LinkSetUp(l); err != nil {
			t.Fatal(err)
		}
		_, dst, err := net.ParseCIDR(to)
		if err != nil {
			t.Fatal(err)
		}
		if err := netlink.RouteAdd(&netlink.Route{
			LinkIndex: l.Index, Dst: dst, Priority: l.Index, Scope: netlink.SCOPE_LINK,
		}); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile("/proc/sys/net/ipv4/conf/"+link+"/rp_filter", []byte("1"), 0); err != nil {
			t.Fatal(err)
		}
	}
	look := func() (LimitFacts, []Route) {
		t.Helper()
		routes, err := GatherRoutes(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return GatherLimits(os.Getpid(), routes), routes
	}
	add("out0", "0.0.0.0/0")
	add("kr0", "100.64.0.0/31")
	l, routes := look()
	if l.PIDs.Used == 0 || l.PIDs.Max == 0 || l.SystemFiles.Max == 0 || l.DaemonFiles.Used == 0 || l.DaemonFiles.Max == 0 {
		t.Errorf("%+v", l)
	}
	if l.Strict != "" {
		t.Errorf("%s is strict, and the only way out", l.Strict)
	}
	for _, want := range []Route{
		{netip.MustParsePrefix("0.0.0.0/0"), "out0", false},
		{netip.MustParsePrefix("100.64.0.0/31"), "kr0", true},
	} {
		if !slices.Contains(routes, want) {
			t.Errorf("no %+v in %+v", want, routes)
		}
	}
	add("out1", "0.0.0.0/0")
	if l, _ = look(); l.Strict != "out0" {
		t.Errorf("%q is strict, want out0", l.Strict)
	}
}
