//go:build linux

package main

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kuryr/kuryr/internal/config"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func TestUsage(t *testing.T) {
	t.Parallel()
	bad := filepath.Join(t.TempDir(), "bad.yaml")
	if err := os.WriteFile(bad, []byte("log:\n  colour: red\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"bogus"}, exitUsage, `unknown command "bogus"`},
		{[]string{"stats"}, exitUsage, "is status meant?"},
		{[]string{"network", "lst"}, exitUsage, "is list meant?"},
		{[]string{"up", "--colour"}, exitUsage, "unknown flag: --colour"},
		{[]string{"up", "now"}, exitUsage, "takes no arguments"},
		{[]string{"help", "nosuch"}, exitUsage, `unknown help topic "nosuch"`},
		{[]string{"help", "network", "lst"}, exitUsage, `unknown help topic "network lst"`},
		{[]string{"help", "up", "now"}, exitUsage, `unknown help topic "up now"`},
		{[]string{"docker", "--provider", "ovn"}, exitUsage, "flag --provider: provider: want local or sdn or neutron"},
		{[]string{"up", "--log-level", "loud"}, exitUsage, `flag --log-level: log.level: "loud" is not a log level`},
		{[]string{"up", "--config", bad}, exitError, bad + ":2: log.colour: unknown key"},
		{[]string{"up", "--config", "/none.yaml"}, exitError, "no such file"},
		{[]string{"network", "show"}, exitUsage, "want the name or the id of one network"},
		{[]string{"port", "published", "a", "b"}, exitUsage, "at most one container"},
		{[]string{"port", "published", "-o", "xml"}, exitUsage, `"xml"`},
		{[]string{"network", "list", "-o", "xml"}, exitUsage, `"xml"`},
		{[]string{"network", "list", "--filter", "x"}, exitUsage, "want NAME=VALUE"},
		{[]string{"topology", "-o", "networks.svg"}, exitUsage, "want tree, json, yaml, svg, dot; --file names a file"},
		{[]string{"trace", "web"}, exitUsage, "want a container and where its packet is to go"},
		{[]string{"trace", "web", "db:0"}, exitUsage, "want a number from 1 to 65535"},
		{[]string{"trace", "--family", "5", "web", "db"}, exitUsage, "want 4 or 6"},
		{[]string{"--socket", "/none.sock", "port", "published"}, exitError, "kuryr is not running"},
		{[]string{"support-bundle", "a", "b"}, exitUsage, "want at most one file"},
		{[]string{"completion", "tcsh"}, exitUsage, "tcsh"},
		{[]string{"install", "cluster"}, exitUsage, `unknown command "cluster"`},
		{[]string{"install", "cni"}, exitUsage, "at least one folder"},
		{[]string{"install", "cni", "--from", "/none", "/tmp"}, exitError, "no such file"},
		{[]string{"uninstall", "cni"}, exitUsage, "at least one folder, or --conflist"},
		{[]string{"uninstall", "kubernetes", "--force"}, exitUsage, "--force goes with --apply"},
		{[]string{"sdn", "backup"}, exitUsage, "want one file"},
		{[]string{"--socket", "/none.sock", "network", "list"}, exitError, "kuryr is not running: nothing answers at /none.sock"},
	} {
		code, _, complaint := kuryr(t.Context(), nil, tc.args...)
		if code != tc.code || !strings.Contains(complaint, tc.says) || strings.Count(complaint, "\n") != 1 || !strings.HasPrefix(complaint, "kuryr: ") {
			t.Errorf("kuryr %v: exit %d, %q; want %d and one line with %q", tc.args, code, complaint, tc.code, tc.says)
		}
	}
}

// Every command says what it is for, and all but the simplest give an example.
func TestHelp(t *testing.T) {
	t.Parallel()
	a := &app{}
	var visit func(c *cobra.Command)
	visit = func(c *cobra.Command) {
		if c.Short == "" || c.Example == "" && c.Name() != "version" {
			t.Errorf("%s: short %q, example %q", c.CommandPath(), c.Short, c.Example)
		}
		for _, child := range c.Commands() {
			visit(child)
		}
	}
	visit(a.root())
	code, out, _ := kuryr(t.Context(), nil)
	if code != exitOK || !strings.Contains(out, "topology") {
		t.Errorf("kuryr alone: exit %d\n%s", code, out)
	}
}

// The help of each flag says in a word what its value is.
func TestPlaceholders(t *testing.T) {
	t.Parallel()
	vague := []string{"string", "strings", "stringArray", "stringSlice", "value"}
	var visit func(c *cobra.Command)
	visit = func(c *cobra.Command) {
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			name, usage := pflag.UnquoteUsage(f)
			if slices.Contains(vague, name) || strings.HasPrefix(name, "kuryr") || strings.Contains(usage, "`") {
				t.Errorf("%s --%s %s: %s", c.CommandPath(), f.Name, name, usage)
			}
		})
		for _, child := range c.Commands() {
			visit(child)
		}
	}
	visit((&app{}).root())
	for flag, want := range map[string]string{
		"provider": "local|sdn|neutron", "docker-socket": "path", "docker-delete-empty-subnets": "true|false",
		"docker-default-pools": "range,…", "docker-default-pool-size": "number", "docker-wait-active": "duration",
		"metrics-listen": "host:port", "log-level": "debug|info|warn|error", "neutron-endpoint": "url",
	} {
		if got, _ := pflag.UnquoteUsage((&app{}).dockerCommand().Flags().Lookup(flag)); got != want {
			t.Errorf("--%s %s, want %s", flag, got, want)
		}
	}
	for _, args := range [][]string{{"help"}, {"help", "network", "list"}, {"help", "help"}} {
		if code, out, complaint := kuryr(t.Context(), nil, args...); code != exitOK || !strings.Contains(out, "Usage:") {
			t.Errorf("kuryr %v: exit %d, %s%s", args, code, out, complaint)
		}
	}
}

// Where a flag is one of a few words a shell completes it by those, and each of them will do.
func TestCompletedWords(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"up", "--docker-capability-scope"}, {"docker", "--provider"}, {"topology", "--output"}, {"trace", "--family"}, {"doctor", "--output"}} {
		code, out, _ := kuryr(t.Context(), nil, append(append([]string{"__complete"}, args...), "")...)
		if code != exitOK || !strings.HasSuffix(out, "\n:4\n") || strings.Count(out, "\n") < 2 {
			t.Errorf("kuryr %v: exit %d\n%s", args, code, out)
		}
	}
	for _, s := range config.Settings() {
		for _, word := range wordsOf(s) {
			if err := s.Check(word); err != nil {
				t.Errorf("%s %s is completed, and refused: %v", s.Key, word, err)
			}
		}
	}
}

func TestEverySettingIsAFlagOfDaemons(t *testing.T) {
	t.Parallel()
	for _, c := range []*cobra.Command{(&app{}).upCommand(), (&app{}).dockerCommand(), (&app{}).nodeCommand()} {
		for _, s := range config.Settings() {
			section, _, _ := strings.Cut(s.Key, ".")
			// `kuryr up` has the embedded SDN, so there is no choice; a front end does not need another's.
			none := map[string][]string{
				"up":     {"provider", "neutron", "bind", "kubernetes", "controller", "kurma"},
				"docker": {"node", "kubernetes", "controller", "kurma"}, "node": {"docker", "controller", "kurma"},
			}[c.Name()]
			want := !slices.Contains(none, section)
			if c.Name() == "up" && section == "node" { // the rest is a cluster's node's, or another SDN's
				want = slices.Contains([]string{"node.socket", "node.conflist", "node.network"}, s.Key)
			}
			if has := c.Flags().Lookup(s.Flag()) != nil; has != want {
				t.Errorf("kuryr %s: flag for %s: want %v", c.Name(), s.Key, want)
			}
		}
	}
}

// Each choice of a provider opens one.
func TestEveryProviderIsWired(t *testing.T) {
	t.Parallel()
	setting := config.Lookup("provider")
	if providers[setting.Default()] == nil {
		t.Errorf("provider %s opens nothing", setting.Default())
	}
	for name := range providers {
		if _, err := config.Load(config.Source{Path: "/absent", Flags: map[string]string{"provider": name}}); err != nil {
			t.Errorf("provider %s cannot be chosen: %v", name, err)
		}
	}
}

func TestVersionManAndCompletion(t *testing.T) {
	t.Parallel()
	if code, out, _ := kuryr(t.Context(), nil, "version"); code != exitOK || !strings.HasPrefix(out, "kuryr "+version) {
		t.Errorf("version: exit %d, %s", code, out)
	}
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if code, out, _ := kuryr(t.Context(), nil, "completion", shell); code != exitOK || !strings.Contains(out, "kuryr") {
			t.Errorf("completion %s: exit %d, %d bytes", shell, code, len(out))
		}
	}
	dir := filepath.Join(t.TempDir(), "man1")
	if code, _, complaint := kuryr(t.Context(), nil, "man", dir); code != exitOK {
		t.Fatalf("man: exit %d, %s", code, complaint)
	}
	for _, page := range []string{"kuryr.1", "kuryr-up.1", "kuryr-network-list.1", "kuryr-sdn-backup.1"} {
		data, err := os.ReadFile(filepath.Join(dir, page))
		if err != nil || !strings.Contains(string(data), ".SH SYNOPSIS") {
			t.Errorf("%s: %v", page, err)
		}
	}
}

func TestWriteFileIsWholeOrNot(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	err := writeFile(path, func(io.Writer) error { return os.ErrInvalid })
	if got, _ := os.ReadFile(path); err == nil || string(got) != "old" {
		t.Errorf("error %v, file %q", err, got)
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(path), ".kuryr-*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}
