// Command stylecheck checks the rules of the style guide, and of the layout of the tree, that
// no linter of golangci-lint checks. It owns `.lint-debt`, the allow list of the packages
// that do not comply yet. It parses Go files without type information and changes nothing
// but that list. The line length is checked here and not by golangci-lint's `lll`, because
// the allow list needs a count per package.
package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Exit statuses.
const (
	clean    = 0
	findings = 1
	failed   = 2 // wrong usage, or the tree cannot be read
)

// finding is one place that breaks a rule.
type finding struct {
	rule   string
	folder string // the package, relative to the root
	path   string // empty for findings that belong to no file
	line   int
	text   string

	modified int64 // time of the file in seconds
}

func (f finding) String() string {
	switch {
	case f.path == "":
		return fmt.Sprintf("%s: %s", f.folder, f.text)
	case f.line == 0:
		return fmt.Sprintf("%s: %s", f.path, f.text)
	}
	return fmt.Sprintf("%s:%d: %s", f.path, f.line, f.text)
}

// rule is a check with the findings that it reports. Only findings of a rule with debt may
// be in the allow list.
type rule struct {
	name  string
	debt  bool
	about string
	check func(*tree) ([]finding, error)
}

var rules = []rule{
	{"lll", true, "a line has at most 120 columns (Go, shell, Makefile, .ci/run)", checkLines},
	{"words", true, "no banned word in comments, messages, command texts and Markdown", checkWords},
	{"logattr", true, "the error attribute of a log record is err", checkLogAttrs},
	{"logmsg", true, "a log message has at most 60 characters and no semicolon", checkLogMessages},
	{"filesize", false, "a Go file has at most 900 lines", checkSizes},
	{"pkgdoc", false, "a package documentation has at least two sentences", checkPackageDocs},
	{"procself", false, "no /proc path of the process's first thread", checkProcPaths},
	{"programs", false, "programs contain no packages that make them large or slow", checkPrograms},
	{"manual", false, "the tests that docs/development.md names exist", checkManual},
	{"changelog", false, "CHANGELOG.md has the Keep a Changelog form", checkChangelog},
	{"debt", false, "the counts of a rule in " + debtFile + " only fall", checkDebtHistory},
	{"commits", false, "the subject of a new commit is short and names no path", checkCommits},
}

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

func run(args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("stylecheck", flag.ContinueOnError)
	flags.SetOutput(stderr)
	root := flags.String("C", "", "root `folder` of the tree (default: the one with "+configFile+")")
	list := flags.Bool("list", false, "print all findings, or those of the folders")
	write := flags.Bool("write", false, "lower the entries of "+debtFile+" to the findings")
	initial := flags.Bool("init", false, "replace "+debtFile+" by the findings")
	flags.Usage = func() { usage(flags) }
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return clean
	} else if err != nil {
		return failed
	}
	if flags.NArg() > 0 && !*list || *list && (*write || *initial) || *write && *initial {
		flags.Usage()
		return failed
	}
	m := mode{list: *list, folders: flags.Args(), write: *write, initial: *initial}
	code, err := check(*root, m, stdout)
	if err != nil {
		fmt.Fprintln(stderr, "stylecheck:", err)
		return failed
	}
	return code
}

func usage(flags *flag.FlagSet) {
	out := flags.Output()
	fmt.Fprintf(out, "usage: stylecheck [-C folder] [-write | -init | -list [folder...]]\n\n"+
		"Checks the style of the tree and compares the findings with %s, which has\n"+
		"a line RULE PACKAGE COUNT for each package that does not comply yet.\n"+
		"Exit status: 0 clean, 1 findings, 2 wrong usage or unreadable tree.\n\n", debtFile)
	flags.PrintDefaults()
	fmt.Fprintln(out, "\nRules (* may have entries in "+debtFile+"):")
	for _, r := range rules {
		mark := " "
		if r.debt {
			mark = "*"
		}
		fmt.Fprintf(out, "  %s %-10s %s\n", mark, r.name, r.about)
	}
}

// mode is what a run does with the findings.
type mode struct {
	list    bool
	folders []string
	write   bool
	initial bool
}

// check runs all rules on the tree and returns the exit status.
func check(root string, m mode, out io.Writer) (int, error) {
	if root == "" {
		var err error
		if root, err = findRoot(); err != nil {
			return failed, err
		}
	}
	t, err := load(root)
	if err != nil {
		return failed, err
	}
	var all []finding
	for _, r := range rules {
		found, err := r.check(t)
		if err != nil {
			return failed, fmt.Errorf("rule %s: %w", r.name, err)
		}
		for _, f := range found {
			f.rule = r.name
			all = append(all, f)
		}
	}
	slices.SortStableFunc(all, func(a, b finding) int {
		return cmp.Or(cmp.Compare(a.rule, b.rule), cmp.Compare(a.folder, b.folder),
			cmp.Compare(a.path, b.path), cmp.Compare(a.line, b.line))
	})
	for _, note := range t.notes {
		fmt.Fprintln(out, note)
	}
	if m.list {
		return printAll(all, m.folders, out), nil
	}
	return compare(root, all, m, out)
}

// printAll prints the findings of the folders, or of all, and returns the exit status.
func printAll(all []finding, folders []string, out io.Writer) int {
	code := clean
	for _, f := range all {
		inside := func(top string) bool { return within(f.folder, top) }
		if len(folders) == 0 || slices.ContainsFunc(folders, inside) {
			fmt.Fprintf(out, "%v (%s)\n", f, f.rule)
			code = findings
		}
	}
	return code
}

// configFile marks the root of the tree.
const configFile = ".golangci.yml"

func findRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, configFile)); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("no parent folder has %s: use -C", configFile)
		}
	}
}

// within reports whether a slash-separated path is top or below it.
func within(path, top string) bool {
	top = strings.TrimSuffix(top, "/")
	return path == top || strings.HasPrefix(path, top+"/")
}
