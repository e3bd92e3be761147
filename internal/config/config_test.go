package config

import (
	"errors"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kuryr.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestLoadOrder(t *testing.T) {
	t.Parallel()
	path := write(
		t,
		"host: file\nlog:\n  level: warn\ndocker:\n  capability_scope: global\n  default_pools: "+
			"[10.0.0.0/16, 10.1.0.0/16]\n",
	)
	c, err := Load(Source{
		Path: path, MustBe: true,
		Environ: []string{
			"KURYR_LOG_LEVEL=error", "KURYR_HOST=env", "KURYR_SDN_UPLINK_RANGES=10.9.0.0/16, 10.8.0.0/16",
			"PATH=/bin",
		},
		Flags: map[string]string{"host": "flag"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if c.Host != "flag" {
		t.Errorf("host = %q, want the flag's", c.Host)
	}
	if got := Lookup("log.level").get(&c); got != "error" {
		t.Errorf("log.level = %s, want the environment's", got)
	}
	if c.Docker.CapabilityScope != "global" || len(c.Docker.DefaultPools) != 2 {
		t.Errorf("docker = %+v, want the file's", c.Docker)
	}
	want := []netip.Prefix{netip.MustParsePrefix("10.9.0.0/16"), netip.MustParsePrefix("10.8.0.0/16")}
	if !slices.Equal(c.SDN.UplinkRanges, want) {
		t.Errorf("sdn.uplink_ranges = %v, want %v", c.SDN.UplinkRanges, want)
	}
	if c.Admin.Socket != "/run/kuryr/kuryr.sock" {
		t.Errorf("admin.socket = %s", c.Admin.Socket)
	}
}

func TestLoadWithoutFile(t *testing.T) {
	t.Parallel()
	missing := filepath.Join(t.TempDir(), "none.yaml")
	c, err := Load(Source{Path: missing})
	if err != nil {
		t.Fatal(err)
	}
	if name, _ := os.Hostname(); c.Host != name {
		t.Errorf("host = %q, want the machine's name %q", c.Host, name)
	}
	if _, err := Load(Source{Path: missing, MustBe: true}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file that was asked for and is absent: %v", err)
	}
}

func TestFileErrors(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ file, want string }{
		"unknown key":       {"host: a\ncolour: red\n", ":2: colour: unknown key"},
		"unknown in secton": {"log:\n  # deep\n  colour: red\n", ":3: log.colour: unknown key"},
		"misspelt": {
			"docker:\n  capability_scop: local\n",
			":2: docker.capability_scop: unknown key; is docker.capability_scope meant?",
		},
		"wrong section": {
			"capability_scope: local\n",
			":1: capability_scope: unknown key; is docker.capability_scope meant?",
		},
		"twice":         {"host: a\nlog: {}\nhost: b\n", ":3: host: is set twice"},
		"section twice": {"log: {level: info}\nlog: {format: json}\n", ":2: log: is set twice"},
		"bad value":     {"log:\n  level: loud\n", `:2: log.level: "loud" is not a log level`},
		"bad choice": {
			"docker:\n\n  capability_scope: planet\n",
			`:3: docker.capability_scope: want local or global, not "planet"`,
		},
		"no value":        {"host:\n", ":1: host: has no value"},
		"scalar section":  {"log: info\n", ":1: log: want settings"},
		"list for scalar": {"host: [a]\n", ":1: host: want one plain value"},
		"scalar for list": {"docker:\n  default_pools: 10.0.0.0/8\n", ":2: docker.default_pools: want a list"},
		"nested list":     {"docker:\n  default_pools: [[10.0.0.0/8]]\n", "want a list of plain values"},
		"host bits":       {"docker:\n  default_pools: [10.0.0.1/8]\n", "the range is 10.0.0.0/8"},
		"family":          {"docker:\n  default_pools: ['fd00::/64']\n", "want IPv4"},
		"family 6":        {"docker:\n  default_pools_v6: [10.0.0.0/8]\n", "want IPv6"},
		"overlap":         {"docker:\n  default_pools: [10.0.0.0/8, 10.1.0.0/16]\n", "10.1.0.0/16 overlaps 10.0.0.0/8"},
		"not a number": {
			"sdn:\n  ports_per_network: many\n",
			`:2: sdn.ports_per_network: want a number from 1 to 1023, not "many"`,
		},
		"empty list":    {"sdn:\n  uplink_ranges: []\n", ":2: sdn.uplink_ranges: want at least one"},
		"too large":     {"sdn:\n  ports_per_network: 1024\n", "from 1 to 1023"},
		"relative path": {"state_dir: lib\n", `:1: state_dir: want a whole path`},
		"listen":        {"metrics: {listen: '9464'}\n", "want host:port"},
		"syntax":        {"host: a\n\tlog: b\n", "line 2"},
		"top is a list": {"- host\n", ":1: want settings"},
		"alias":         {"log: {level: &x info, format: *x}\n", "log.format: want one plain value"},
		"two documents": {"host: a\n---\nhost: b\n", ":2: a second YAML document"},
		"key is a map":  {"{a: b}: c\n", "a key must be a word"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := write(t, tc.file)
			_, err := Load(Source{Path: path})
			var typed *Error
			if !errors.As(err, &typed) || !strings.HasPrefix(err.Error(), path) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error = %v\nwant one that names the file and contains %q", err, tc.want)
			}
			if err != nil && strings.Contains(err.Error(), "\n") {
				t.Errorf("error is more than a line: %v", err)
			}
		})
	}
}

// Docker must be able to reach the plugin, and over TCP no other client may.
func TestReachable(t *testing.T) {
	t.Parallel()
	tcp := map[string]string{
		"docker.listen": "tcp://127.0.0.1:2378", "docker.tls_cert": "/c", "docker.tls_key": "/k",
		"docker.tls_client_ca": "/a",
	}
	without := func(key string) map[string]string {
		flags := maps.Clone(tcp)
		delete(flags, key)
		return flags
	}
	both := maps.Clone(tcp)
	both["docker.socket"] = ""
	for name, tc := range map[string]struct {
		flags map[string]string
		want  string
	}{
		"both":         {tcp, ""},
		"tcp alone":    {both, ""},
		"neither":      {map[string]string{"docker.socket": ""}, "docker.socket: is empty"},
		"no cert":      {without("docker.tls_cert"), "docker.tls_cert: is needed"},
		"no key":       {without("docker.tls_key"), "docker.tls_key: is needed"},
		"no authority": {without("docker.tls_client_ca"), "docker.tls_client_ca: is needed"},
		"not tcp":      {map[string]string{"docker.listen": "http://127.0.0.1:1"}, "docker.listen: want tcp://"},
		"no port":      {map[string]string{"docker.listen": "tcp://127.0.0.1"}, "docker.listen: want tcp://"},
		"bare":         {map[string]string{"docker.listen": "tcp://"}, "docker.listen: want tcp://"},
		"provider":     {map[string]string{"provider": "moon"}, "provider: want local"},
		"nested here":  {map[string]string{"bind.nested": "vlan"}, "bind.nested: needs provider neutron"},
		"nested beside": {
			map[string]string{"bind.nested": "vlan", "provider": "sdn"}, "bind.nested: needs provider neutron",
		},
		"nested": {map[string]string{"bind.nested": "vlan", "provider": "neutron"}, ""},
	} {
		_, err := Load(Source{Flags: tc.flags})
		if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
}

func TestErrorsNameTheSource(t *testing.T) {
	t.Parallel()
	_, err := Load(Source{Environ: []string{"KURYR_DOCKER_CAPABILITY_SCOPE=x"}})
	if err == nil ||
		!strings.HasPrefix(
			err.Error(), "environment KURYR_DOCKER_CAPABILITY_SCOPE: docker.capability_scope: ",
		) {
		t.Errorf("error = %v", err)
	}
	_, err = Load(Source{Flags: map[string]string{"log.format": "xml"}})
	if err == nil || !strings.HasPrefix(err.Error(), "flag --log-format: log.format: ") {
		t.Errorf("error = %v", err)
	}
}

func TestUnknownEnv(t *testing.T) {
	t.Parallel()
	got := UnknownEnv([]string{
		"KURYR_LOG_LEVL=info", "KURYR_LOG_LEVEL=info", "KURYR_CONFIG=/x", "KURYR_PORT=tcp://1",
		"KURYR_SERVICE_HOST=1", "HOME=/", "KURYR_A=b",
	})
	if want := []string{"KURYR_A", "KURYR_LOG_LEVL"}; !slices.Equal(got, want) {
		t.Errorf("UnknownEnv = %v, want %v", got, want)
	}
}

// What a setting shows is what sets it.
func TestDefaultsRoundTrip(t *testing.T) {
	t.Parallel()
	for _, s := range settings {
		c := Config{}
		if err := s.set(&c, splitList(s, s.Default())); err != nil {
			t.Errorf("%s: default %q is refused: %v", s.Key, s.Default(), err)
		} else if got := s.get(&c); got != s.Default() {
			t.Errorf("%s: set to %q, shows %q", s.Key, s.Default(), got)
		}
		if s.Help == "" {
			t.Errorf("%s has no help", s.Key)
		}
	}
}

// The documented sample has every key with its default, in comments: unchanged it changes
// nothing, uncommented neither.
func TestSample(t *testing.T) {
	t.Parallel()
	const path = "../../deploy/kuryr.yaml"
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	plain, err := Load(Source{Path: path, MustBe: true})
	if err != nil {
		t.Fatalf("the sample is refused: %v", err)
	}
	var lines []string
	for _, line := range strings.Split(string(data), "\n") {
		if bare, ok := strings.CutPrefix(line, "#"); ok && !strings.HasPrefix(bare, " ") && !strings.HasPrefix(bare, "#") {
			line = bare
		} else if bare, ok := strings.CutPrefix(line, "  #"); ok && !strings.HasPrefix(bare, " ") {
			line = "  " + bare
		}
		lines = append(lines, line)
	}
	uncommented := []byte(strings.Join(lines, "\n"))
	full := Default()
	if err := parse(&full, path, uncommented); err != nil {
		t.Fatalf("the sample without its comment signs is refused: %v", err)
	}
	if err := full.complete(); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(normal(full), normal(plain)) {
		t.Errorf("the sample's values are not the defaults:\n%+v\n%+v", full, plain)
	}
	var tree map[string]any
	if err := yaml.Unmarshal(uncommented, &tree); err != nil {
		t.Fatal(err)
	}
	for _, s := range settings {
		var at any = tree
		for _, part := range strings.Split(s.Key, ".") {
			m, _ := at.(map[string]any)
			at = m[part]
		}
		if at == nil {
			t.Errorf("the sample does not have %s", s.Key)
		}
	}
}

// normal makes nil and empty lists alike.
func normal(c Config) string {
	var out []string
	for _, s := range settings {
		out = append(out, s.Key+"="+s.get(&c))
	}
	return strings.Join(out, "\n")
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("host: a\nlog: {level: info}\ndocker:\n  default_pools: [10.0.0.0/8]\n"))
	f.Add([]byte("a: &x [*x]\n"))
	f.Add([]byte("{a: b}: c"))
	f.Add([]byte("---\n---\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c := Default()
		if err := parse(&c, "f", data); err != nil {
			return
		}
		for _, s := range settings { // what was taken is valid
			again := Config{}
			if err := s.set(&again, splitList(s, s.get(&c))); err != nil {
				t.Errorf("%s was set to %q, which is refused: %v", s.Key, s.get(&c), err)
			}
		}
	})
}

func TestDurations(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"0": "0s", "1s": "1s", "90s": "1m30s", "2m": "2m", "60m": "1h", "1h30m": "1h30m",
	} {
		c := Default()
		s := Lookup("docker.forget_after")
		if err := s.set(&c, []string{text}); err != nil || s.get(&c) != want {
			t.Errorf("%q: %q, %v; want %q", text, s.get(&c), err, want)
		}
	}
	for _, text := range []string{"", "2", "-1m", "999ms", "soon", "900000h"} {
		c := Default()
		if err := Lookup("docker.forget_after").set(&c, []string{text}); err == nil ||
			!strings.Contains(err.Error(), "want a time of at least 1s") {
			t.Errorf("%q: %v", text, err)
		}
	}
}
