package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// found makes n findings of a rule in a folder.
func found(rule, folder string, n int) (all []finding) {
	for i := range n {
		all = append(all, finding{rule: rule, folder: folder, path: folder + "/x.go", line: i + 1, text: "text"})
	}
	return all
}

func TestCompare(t *testing.T) {
	t.Parallel()
	two := append(found("lll", "docker", 2), found("words", "kube/raven", 12)...)
	const exact = "lll docker 2\nwords kube/raven 12\n"
	for name, c := range map[string]struct {
		debt string
		all  []finding
		mode mode
		code int
		left string   // the debt file after the run
		says []string // parts of the output
		not  string
	}{
		"no debt, no findings": {code: clean},
		"as allowed":           {debt: exact, all: two, left: exact, code: clean},
		"worse": {
			debt: "lll docker 1\nwords kube/raven 12\n", all: two, code: findings,
			left: "lll docker 1\nwords kube/raven 12\n", not: "raven",
			says: []string{"lll docker: 2 findings, allowed 1", "docker/x.go:2: text"},
		},
		"package without an entry": {
			debt: "lll docker 2\n", all: two, left: "lll docker 2\n", code: findings,
			says: []string{"words kube/raven: 12 findings, allowed 0", "x.go:10: text", "and 2 more"},
			not:  "x.go:11",
		},
		"modified last": {
			debt: exact, left: exact, code: findings,
			all:  append(two, finding{rule: "words", folder: "kube/raven", path: "z.go", modified: 1}),
			says: []string{"words kube/raven: 13 findings, allowed 12\n  z.go: \n"},
		},
		"better": {
			debt: "lll docker 3\nwords kube/raven 12\n", all: two, code: findings,
			left: "lll docker 3\nwords kube/raven 12\n",
			says: []string{"lll docker: lower the entry in .lint-debt to 2 (run make lint-debt)"},
		},
		"nothing left": {
			debt: "lll bind 3\n", left: "lll bind 3\n", code: findings,
			says: []string{"lll bind: lower the entry in .lint-debt to 0"},
		},
		"write lowers": {
			debt: "lll bind 3\nlll docker 3\nwords kube/raven 13\n", all: two, mode: mode{write: true},
			left: exact, code: clean, not: "lower",
		},
		"write neither raises nor adds": {
			debt: "lll docker 1\n", all: two, mode: mode{write: true}, left: "lll docker 1\n", code: findings,
			says: []string{"docker: 2 findings, allowed 1", "raven: 12 findings, allowed 0"},
		},
		"write lowers beside worse": {
			debt: "lll docker 1\nwords kube/raven 20\n", all: two, mode: mode{write: true},
			left: "lll docker 1\nwords kube/raven 12\n", code: findings,
		},
		"init": {
			debt: "lll docker 1\nlll bind 9\n", all: two, mode: mode{initial: true},
			left: exact, code: clean,
		},
		"init replaces a broken file": {debt: "x", all: two, mode: mode{initial: true}, left: exact, code: clean},
		"init of a rule without debt": {
			all: found("pkgdoc", "docker", 1), mode: mode{initial: true}, code: findings,
			says: []string{"pkgdoc docker: 1 findings, allowed 0"},
		},
	} {
		root := t.TempDir()
		file := filepath.Join(root, debtFile)
		if c.debt != "" {
			write(t, file, c.debt)
		}
		var out bytes.Buffer
		code, err := compare(root, c.all, c.mode, &out)
		if err != nil || code != c.code {
			t.Errorf("%s: got %d, %v, want %d\n%s", name, code, err, c.code, &out)
		}
		left, err := os.ReadFile(file)
		if string(left) != c.left || err != nil && c.left != "" {
			t.Errorf("%s: %s is %q, %v, want %q", name, debtFile, left, err, c.left)
		}
		for _, part := range c.says {
			if !strings.Contains(out.String(), part) {
				t.Errorf("%s: %q is not in the output:\n%s", name, part, &out)
			}
		}
		excess := c.not != "" && strings.Contains(out.String(), c.not)
		if excess || c.code == clean && out.Len() > 0 {
			t.Errorf("%s: the output has too much:\n%s", name, &out)
		}
	}
}

func TestReadDebt(t *testing.T) {
	t.Parallel()
	for text, ok := range map[string]bool{
		"": true, "lll . 3\nwords docs 1\n": true,
		"lll docker\n": false, "lll docker x\n": false, "lll docker 0\n": false,
		"lll docker -1\n": false, "commits . 1\n": false, "other docker 1\n": false,
		"lll docker 1\nlll docker 2\n": false, "\n": false,
	} {
		if d, err := readDebt(text); (err == nil) != ok {
			t.Errorf("%q: got %v, %v, want ok: %v", text, d, err, ok)
		}
	}
}

// TestRun runs the program on a small tree of its own.
func TestRun(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	write(t, filepath.Join(root, configFile), "")
	write(t, filepath.Join(root, "go.mod"), "module example.org/x\n\ngo 1.26\n")
	for _, p := range programs {
		write(t, filepath.Join(root, p.folder, "main.go"),
			"// Command x does y. It owns nothing.\npackage main\n\nfunc main() {}\n")
	}
	write(t, filepath.Join(root, "bind", "x.go"),
		"// Package bind does it anew. It owns nothing.\npackage bind\n")
	write(t, filepath.Join(root, "bind", "testdata", "x.go"), "not parsed\n")
	write(t, filepath.Join(root, "docs", "a.md"), "The SDN is away.\n")
	write(t, filepath.Join(root, "deploy", "a.md"), "This file is not looked at meanwhile.\n")
	write(t, filepath.Join(root, ".ci", "run"), strings.Repeat("x", 121)+"\n")

	stylecheck := func(want int, says string, args ...string) {
		t.Helper()
		var out bytes.Buffer
		code := run(append([]string{"-C", root}, args...), &out, &out)
		if code != want || !strings.Contains(out.String(), says) {
			t.Errorf("%q: got %d, want %d and %q in the output:\n%s", args, code, want, says, &out)
		}
	}
	stylecheck(findings, "words bind: 1 findings, allowed 0")
	stylecheck(findings, ".ci/run:1: 121 columns", "-list", ".ci")
	stylecheck(findings, "bind/x.go:1: \"anew\": again, recreate (words)", "-list")
	stylecheck(clean, "", "-list", "cmd")
	stylecheck(clean, "commits: not checked", "-init")
	stylecheck(clean, "")
	got, err := os.ReadFile(filepath.Join(root, debtFile))
	if want := "lll .ci 1\nwords bind 1\nwords docs 1\n"; err != nil || string(got) != want {
		t.Errorf("%s is %q, %v, want %q", debtFile, got, err, want)
	}
	write(t, filepath.Join(root, "docs", "a.md"), "The SDN is unavailable.\n")
	stylecheck(findings, "words docs: lower the entry in .lint-debt to 0")
	stylecheck(clean, "", "-write")
	stylecheck(clean, "")

	stylecheck(clean, "usage: stylecheck", "-h")
	stylecheck(failed, "usage: stylecheck", "-unknown")
	stylecheck(failed, "usage: stylecheck", "bind")
	stylecheck(failed, "usage: stylecheck", "-write", "-init")
	write(t, filepath.Join(root, "bind", "x.go"), "no Go\n")
	stylecheck(failed, "expected 'package'")
}

// TestCommits has a repository with commits before and after the debt file.
func TestCommits(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	tr := &tree{root: root}
	check := func(note string, wants ...string) {
		t.Helper()
		tr.notes = nil
		found, err := checkCommits(tr)
		if err != nil || len(found) != len(wants) {
			t.Fatalf("got %v, %v, want %d findings", found, err, len(wants))
		}
		for i, want := range wants {
			if !strings.Contains(found[i].text, want) {
				t.Errorf("got %q, want %q", found[i].text, want)
			}
		}
		if got := strings.Join(tr.notes, "\n"); note == "" && got != "" || !strings.Contains(got, note) {
			t.Errorf("the notes are %q, want %q", got, note)
		}
	}
	commit := func(subject string) {
		t.Helper()
		runGit(t, "-C", root, "add", ".")
		runGit(t, "-C", root, "-c", "user.name=x", "-c", "user.email=x@example.org",
			"commit", "-q", "--allow-empty", "-m", subject)
	}
	check("not a git repository")
	runGit(t, "init", "-q", root)
	check("commits: not checked")
	write(t, filepath.Join(root, "sdn", "neutron", "x.go"), "package neutron\n")
	commit("Move to sdn/neutron")
	check("no commit adds " + debtFile)
	write(t, filepath.Join(root, debtFile), "")
	commit("Add the list to sdn/neutron")
	check("")
	commit("sdn/neutron: create ports in bulk")
	check("")
	commit("Delete sdn/neutron")
	commit(strings.Repeat("x", 73))
	check("", "73 characters", "the path sdn/neutron")
}

// TestDebtHistory raises a count by hand, then together with the rules.
func TestDebtHistory(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	tr := &tree{root: root}
	file := filepath.Join(root, debtFile)
	commit := func() {
		t.Helper()
		runGit(t, "-C", root, "add", ".")
		runGit(t, "-C", root, "-c", "user.name=x", "-c", "user.email=x@example.org", "commit", "-q", "-m", "x")
	}
	check := func(wants ...string) {
		t.Helper()
		found, err := checkDebtHistory(tr)
		if err != nil || len(found) != len(wants) {
			t.Fatalf("got %v, %v, want %d findings", found, err, len(wants))
		}
		for i, want := range wants {
			if !strings.Contains(found[i].text, want) {
				t.Errorf("got %q, want %q", found[i].text, want)
			}
		}
	}
	check()
	runGit(t, "init", "-q", root)
	write(t, file, "lll bind 2\nlll docker 3\n")
	check()
	commit()
	write(t, file, "lll docker 5\n") // code has moved
	check()
	commit()
	write(t, file, "lll docker 5\nlll bind 1\n")
	check("the working tree raises lll from 5 to 6")
	commit()
	check("raises lll from 5 to 6")
	write(t, file, "lll docker 9\n")
	write(t, filepath.Join(root, "hack", "tools", "stylecheck", "words.go"), "package main\n")
	commit()
	check("raises lll from 5 to 6")
}

func runGit(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command("git", args...).CombinedOutput(); err != nil {
		t.Fatalf("git %q: %v\n%s", args, err, out)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
