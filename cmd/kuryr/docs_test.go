//go:build linux

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kuryr/kuryr/docker"
	"github.com/kuryr/kuryr/internal/config"
	"github.com/kuryr/kuryr/internal/metrics"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/kube/agent"
	"github.com/kuryr/kuryr/kube/cni"
	"github.com/kuryr/kuryr/kube/proxy"
	"github.com/kuryr/kuryr/kube/raven"
	"github.com/kuryr/kuryr/kurma/plugin"
	"github.com/kuryr/kuryr/kurma/pod"
	"github.com/kuryr/kuryr/sdn/local"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

const docs = "../../docs"

func page(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(docs, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// has tells whether text has the word with nothing around it that could be more of it.
func has(text, word string) bool {
	return regexp.MustCompile(`(^|[^\w.-])` + regexp.QuoteMeta(word) + `($|[^\w-])`).MatchString(text)
}

// Every command has a page that names it, what is below it, and all its flags; there is no page of a command that is not.
func TestEveryCommandHasItsPage(t *testing.T) {
	t.Parallel()
	root := (&app{}).root()
	names := []string{"kuryr.md"}
	check := func(c *cobra.Command, file string, flags *pflag.FlagSet) {
		text := page(t, filepath.Join("commands", file))
		if !has(text, c.CommandPath()) {
			t.Errorf("%s does not name %q", file, c.CommandPath())
		}
		flags.VisitAll(func(f *pflag.Flag) {
			if !has(text, "--"+f.Name) {
				t.Errorf("%s does not name --%s of %q", file, f.Name, c.CommandPath())
			}
		})
	}
	check(root, "kuryr.md", root.PersistentFlags())
	for _, c := range root.Commands() {
		file := c.Name() + ".md"
		names = append(names, file)
		check(c, file, c.LocalFlags())
		for _, below := range c.Commands() {
			check(below, file, below.LocalFlags())
		}
	}
	files, err := os.ReadDir(filepath.Join(docs, "commands"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if !slices.Contains(names, f.Name()) {
			t.Errorf("docs/commands/%s is of no command", f.Name())
		}
	}
}

// Pages are in the order of manual pages.
func TestPagesHaveTheirParts(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(filepath.Join(docs, "commands", "*.md"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no pages: %v", err)
	}
	for _, path := range files {
		text := page(t, filepath.Join("commands", filepath.Base(path)))
		last := -1
		for _, part := range []string{"NAME", "DESCRIPTION", "USAGE", "OPTIONS", "ERRORS", "EXAMPLES"} {
			at := strings.Index(text, "\n## "+part+"\n")
			if at < last || at < 0 {
				t.Errorf("%s: part %s is missing or out of order", path, part)
			}
			last = at
		}
	}
}

// The manual page of kuryr-cni has the parts of one, every error with code and exit status, and every name that the manual's tables have.
func TestPageOfTheCNIPlugin(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if code, _, complaint := kuryr(t.Context(), nil, "man", dir); code != exitOK {
		t.Fatalf("man: exit %d, %s", code, complaint)
	}
	data, err := os.ReadFile(filepath.Join(dir, "kuryr-cni.1"))
	if err != nil {
		t.Fatal(err)
	}
	text := regexp.MustCompile(`\\f[A-Z]|\\&`).ReplaceAllString(strings.ReplaceAll(string(data), `\-`, "-"), "") // as it is read
	last := -1
	for _, part := range []string{"NAME", "SYNOPSIS", "DESCRIPTION", "ENVIRONMENT", "CONFIGURATION", "EXIT STATUS", "FILES", "EXAMPLES", "SEE ALSO"} {
		at := strings.Index(text, "\n.SH "+part+"\n")
		if at <= last {
			t.Errorf("part %s is missing or out of order", part)
		}
		last = at
	}
	for _, k := range cni.Kinds() {
		if want := fmt.Sprintf("%d, code %d: %s\n%s\n", k.Exit, k.Code, k.Name, k.Advice); !strings.Contains(text, want) {
			t.Errorf("it does not have %q", want)
		}
	}
	_, tables, _ := strings.Cut(page(t, "cni.md"), "## CONFIGURATION")
	tables, _, _ = strings.Cut(tables, "## WITHOUT THE DAEMON")
	names := 0
	for _, row := range regexp.MustCompile("(?m)^\\| (`[^|]*) \\|").FindAllStringSubmatch(tables, -1) {
		for _, name := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row[1], -1) {
			if names++; !has(text, name[1]) {
				t.Errorf("it does not have %s", name[1])
			}
		}
	}
	if names < 20 {
		t.Errorf("only %d names found in docs/cni.md", names)
	}
}

// The page of the configuration has every setting with its names and what it is by default.
func TestEverySettingIsDescribed(t *testing.T) {
	t.Parallel()
	text := page(t, "configuration.md")
	for _, s := range config.Settings() {
		row := ""
		for line := range strings.Lines(text) {
			if strings.HasPrefix(line, "| `"+s.Key+"` |") {
				row = line
			}
		}
		for _, want := range append(strings.Split(s.Default(), ","), s.Env(), "--"+s.Flag()) {
			if want != "" && !strings.Contains(row, "`"+want+"`") {
				t.Errorf("the row of %s does not have %s: %q", s.Key, want, row)
			}
		}
	}
}

// names collects the names of the metrics that are registered with it.
type metricNames []string

func (n *metricNames) Register(c prometheus.Collector) error {
	descriptions := make(chan *prometheus.Desc)
	go func() { c.Describe(descriptions); close(descriptions) }()
	for d := range descriptions {
		// A Desc tells its name in no other way.
		if m := regexp.MustCompile(`fqName: "([^"]+)"`).FindStringSubmatch(d.String()); m != nil {
			*n = append(*n, m[1])
		}
	}
	return nil
}

func (n *metricNames) MustRegister(all ...prometheus.Collector) {
	for _, c := range all {
		_ = n.Register(c)
	}
}

func (*metricNames) Unregister(prometheus.Collector) bool { return false }

// The page of the metrics has all that `kuryr up`, `kuryr docker`, `kuryr node` and `kuryr kurma` register, and no others.
func TestEveryMetricIsDescribed(t *testing.T) {
	t.Parallel()
	provider, err := local.Open(t.Context(), local.Options{Path: filepath.Join(t.TempDir(), "kuryr.db"), Host: "here"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = provider.Close() })
	names := &metricNames{"kuryr_build_info"}
	metrics.Observe(provider, names)
	names.MustRegister(metrics.Objects(provider))
	metrics.NewAPI(names)
	metrics.NewReconciles(names)
	metrics.NewBalancing(names)
	metrics.NewRequests(names)
	driver, err := docker.New(docker.Config{
		Provider: provider, Binder: struct{ docker.Binder }{}, Host: "here", Registerer: names,
		StateDir: t.TempDir(),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(driver.Close)
	raven.NewMetrics(names)
	proxy.NewMetrics(names)
	names.MustRegister(plugin.Collector(nil))
	store, err := reconcile.Open(reconcile.Config{
		Path: filepath.Join(t.TempDir(), "kurma.db"), Registerer: names,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	pod.New(pod.Config{Store: store, Registerer: names})
	if _, err := agent.New(agent.Config{Store: store, Registerer: names}); err != nil {
		t.Fatal(err)
	}
	if len(*names) < 10 {
		t.Fatalf("only %v are registered", *names)
	}
	text := page(t, "metrics.md")
	for _, name := range *names {
		if !strings.Contains(text, "\n| `"+name+"` |") {
			t.Errorf("%s is not described", name)
		}
	}
	for _, m := range regexp.MustCompile(`kuryr_[a-z_]+[a-z]`).FindAllString(text, -1) {
		if name := strings.TrimSuffix(m, "_bucket"); !slices.Contains(*names, name) {
			t.Errorf("%s is described, but nobody registers it", name)
		}
	}
}

// anchors are the names that a page's headings have in links, as GitHub makes them: in small letters, without punctuation, "-" for a space.
func anchors(page string) (names []string) {
	punctuation := regexp.MustCompile(`[^\p{L}\p{N} _-]`)
	for _, m := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(page, -1) {
		names = append(names, strings.ReplaceAll(punctuation.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-"))
	}
	return names
}

// Links lead to files and headings that are there.
func TestLinksOfTheManual(t *testing.T) {
	t.Parallel()
	link := regexp.MustCompile(`\]\(([^)]*)\)`)
	seen := 0
	err := filepath.WalkDir(docs, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, m := range link.FindAllStringSubmatch(string(data), -1) {
			target, anchor, _ := strings.Cut(m[1], "#")
			to := path
			if target != "" {
				to = filepath.Join(filepath.Dir(path), target)
			}
			seen++
			text, err := os.ReadFile(to)
			if info, gone := os.Stat(to); err != nil && (gone != nil || !info.IsDir()) {
				t.Errorf("%s: the link %s leads nowhere", path, m[1])
			}
			if anchor != "" && !slices.Contains(anchors(string(text)), anchor) {
				t.Errorf("%s: %s has no heading %s", path, to, anchor)
			}
		}
		return nil
	})
	if err != nil || seen < 20 {
		t.Errorf("%d links seen, %v", seen, err)
	}
}

// manualCommand matches a command of ours in the manual: in backticks, or a line of an example.
var manualCommand = regexp.MustCompile("(?m)`kuryr ([^`\n]+)`|^    (?:\\$ )?kuryr ([a-z].*)$")

// What the manual has people run exists, with its flags.
func TestCommandsOfTheManual(t *testing.T) {
	t.Parallel()
	var pages []string
	for _, pattern := range []string{"*.md", "commands/*.md"} {
		found, err := filepath.Glob(filepath.Join(docs, pattern))
		if err != nil || len(found) == 0 {
			t.Fatalf("no pages: %v", err)
		}
		pages = append(pages, found...)
	}
	for _, path := range pages {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range manualCommand.FindAllStringSubmatch(string(text), -1) {
			line, _, _ := strings.Cut(m[1]+m[2], " # ")
			for _, end := range []string{" | ", " && ", " >"} {
				line, _, _ = strings.Cut(line, end)
			}
			if strings.HasPrefix(line, version+" ") {
				continue // printed, not run
			}
			root := (&app{}).root()
			root.InitDefaultHelpCmd()
			root.InitDefaultHelpFlag()
			root.InitDefaultVersionFlag()
			c, rest, err := root.Find(strings.Fields(line))
			if err != nil || c.Name() == "kuryr" && !strings.HasPrefix(line, "-") {
				t.Errorf("%s: no command `kuryr %s`: %v", path, line, err)
				continue
			}
			if words := slices.DeleteFunc(rest, func(w string) bool { return strings.HasPrefix(w, "-") }); c.HasSubCommands() && !c.Runnable() && len(words) > 0 && isWord(words[0]) {
				t.Errorf("%s: no command `kuryr %s`", path, line)
			}
			for _, w := range strings.Fields(line) {
				name, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimLeft(w, "["), "--"), "=")
				if strings.HasPrefix(w, "--") && w != "--" && c.Flag(strings.TrimRight(name, "].,")) == nil {
					t.Errorf("%s: `kuryr %s`: %s has no flag %s", path, line, c.CommandPath(), w)
				}
			}
		}
	}
}

// isWord tells a command's name from what stands for one: NOUN, …, network|subnet.
func isWord(w string) bool { return regexp.MustCompile(`^[a-z-]+$`).MatchString(w) }
