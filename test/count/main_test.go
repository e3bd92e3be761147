package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRead(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, in string
		want     counts
		ok       bool
		shows    string
	}{
		{"nothing", "", counts{}, false, "0 passed"},
		{"pass", `{"Action":"output","Package":"p","Test":"T","Output":"secret\n"}
{"Action":"pass","Package":"p","Test":"T"}
{"Action":"pass","Package":"p","Elapsed":1}
`, counts{passed: 1, failed: 0, skipped: 0}, true, "ok    p"},
		{"slow", `{"Action":"pass","Package":"p","Test":"T/sub","Elapsed":9}
{"Action":"pass","Package":"p","Test":"T","Elapsed":9.04}
{"Action":"pass","Package":"p","Elapsed":10}
`, counts{passed: 2}, true, "slow     9.0s p T\n"},
		{"fail", `{"Action":"pass","Package":"p","Test":"T"}
{"Action":"output","Package":"p","Test":"U","Output":"why\n"}
{"Action":"fail","Package":"p","Test":"U"}
{"Action":"fail","Package":"p"}
`, counts{passed: 1, failed: 1, skipped: 0}, false, "why"},
		{"all skipped", `{"Action":"skip","Package":"p","Test":"T"}
`, counts{passed: 0, failed: 0, skipped: 1}, false, "1 skipped"},
		{"does not build", `{"ImportPath":"p","Action":"build-output","Output":"syntax error\n"}
{"ImportPath":"p","Action":"build-fail"}
{"Action":"fail","Package":"p","FailedBuild":"p"}
{"Action":"pass","Package":"q","Test":"T"}
`, counts{passed: 1, failed: 1, skipped: 0}, false, "syntax error"},
		{"TestMain fails", `{"Action":"pass","Package":"p","Test":"T"}
{"Action":"fail","Package":"p"}
`, counts{passed: 1, failed: 1, skipped: 0}, false, "1 failed"},
		{"not JSON", "go: no such tool\n", counts{}, false, "no such tool"},
	} {
		var out strings.Builder
		got, _, err := read(strings.NewReader(c.in), &out, "suite", nil)
		if c.name == "nothing" || c.name == "all skipped" || c.name == "not JSON" {
			c.want.failed = 1 // a suite in which nothing passed counts as one that failed
		}
		if got != c.want || (err == nil) != c.ok || !strings.Contains(out.String(), c.shows) {
			t.Errorf("%s: got %+v, %v\n%s", c.name, got, err, out.String())
		}
	}
}

// The first message of a failed test is told, with its lines, and not a daemon's log before it.
func TestFirstMessage(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ output, want string }{
		{"=== RUN   T\n--- FAIL: T (0.00s)\n", ""},
		{
			"=== RUN   T\n    host.go:9: --- kuryr.log\n        ready\n" +
				"    a_test.go:12: left:\n        a port\n        a link\n    a_test.go:13: later\n",
			"a_test.go:12: left:\n        a port\n        a link",
		},
		{"    a_test.go:1: one\n--- FAIL: T\n        not of it\n", "a_test.go:1: one"},
	} {
		if got := firstMessage(c.output); got != c.want {
			t.Errorf("firstMessage(%q) is %q, want %q", c.output, got, c.want)
		}
	}
}

// A known failure counts as skipped, and as failed when it passes, is skipped or does not run.
func TestKnownFailures(t *testing.T) {
	t.Parallel()
	const fails = `{"Action":"fail","Package":"p","Test":"T/sub"}
{"Action":"fail","Package":"p","Test":"T"}
{"Action":"fail","Package":"p"}
`
	const passes = `{"Action":"pass","Package":"p","Test":"T"}
`
	const skips = `{"Action":"skip","Package":"p","Test":"T"}
`
	const other = `{"Action":"pass","Package":"q","Test":"T"}
`
	for _, c := range []struct {
		name, in string
		want     counts
		shows    string
	}{
		{"fails", fails + other, counts{passed: 1, skipped: 1}, "known X1: p T fails"},
		{"passes", passes + other, counts{passed: 1, failed: 1}, "p T passes"},
		{"is skipped", skips + other, counts{passed: 1, failed: 1}, "is skipped"},
		{"does not run", other, counts{passed: 1, failed: 1}, "did not run"},
		{"another fails", strings.ReplaceAll(fails, `:"T`, `:"U`) + other, counts{passed: 1, failed: 3}, "p U"},
	} {
		var out strings.Builder
		got, _, err := read(strings.NewReader(c.in), &out, "suite", map[string]string{"p T": "X1"})
		if got != c.want || (err == nil) != (c.want.failed == 0) || !strings.Contains(out.String(), c.shows) {
			t.Errorf("%s: got %+v, %v\n%s", c.name, got, err, out.String())
		}
	}
}

func TestReadKnown(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "list")
	for text, ok := range map[string]bool{
		"# comment\n\ndocker example.org/p TestA D1\n": true,
		"docker example.org/p TestA\n":                 false,
	} {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		known, err := readKnown(file)
		if (err == nil) != ok || ok && known["example.org/p TestA"] != "D1" {
			t.Errorf("%q: got %v, %v", text, known, err)
		}
	}
	if _, err := readKnown(file + "missing"); err == nil {
		t.Error("a missing list is taken for an empty one")
	}
}

func TestTotal(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	one, two := filepath.Join(dir, "one"), filepath.Join(dir, "two")
	for file, text := range map[string]string{one: "3 0 1\n", two: "4 0 0\n"} {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var out strings.Builder
	if err := total(&out, []string{one, two}); err != nil || out.String() != "7 passed, 0 failed, 1 skipped\n" {
		t.Errorf("%v %q", err, out.String())
	}
	out.Reset()
	files := []string{one, filepath.Join(dir, "missing")}
	if err := total(&out, files); err == nil || out.String() != "3 passed, 1 failed, 1 skipped\n" {
		t.Errorf("a suite without numbers passes: %v %q", err, out.String())
	}
}
