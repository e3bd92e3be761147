//go:build linux && !kubernetes

package main

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// installed copies the program under test into a folder, as kuryr.
func installed(t *testing.T) string {
	t.Helper()
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer self.Close()
	path := filepath.Join(t.TempDir(), "kuryr")
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(file, self); err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

// What needs Kubernetes' libraries becomes kuryr-kubernetes, with all that kuryr was given; what does not, and a command line that makes no sense, stays.
//
// It runs alone: a file that is written while another test starts a process cannot be executed until that has let go of it.
func TestHandOver(t *testing.T) {
	program := installed(t)
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(program, link); err != nil {
		t.Fatal(err)
	}
	start := program
	run := func(env string, args ...string) (code int, said string) {
		c := exec.CommandContext(t.Context(), start, args...)
		c.Args[0] = "kuryr"
		c.Env = []string{asProgram + "=1", "KURYR_CONFIG=/none.yaml", env}
		c.Stdin = strings.NewReader("input")
		out, err := c.CombinedOutput()
		if failed := new(exec.ExitError); err != nil && !errors.As(err, &failed) {
			t.Fatal(err)
		}
		return c.ProcessState.ExitCode(), string(out)
	}
	const absent = "kuryr: kuryr pool list is the work of kuryr-kubernetes, which is not installed beside kuryr: exec "
	if code, said := run("", "pool", "list"); code != exitError || !strings.HasPrefix(said, absent) || strings.Count(said, "\n") != 1 {
		t.Errorf("without it: exit %d, %s", code, said)
	}

	beside := filepath.Join(filepath.Dir(program), kubernetesProgram)
	if err := os.WriteFile(beside, []byte("text"), 0o644); err != nil {
		t.Fatal(err)
	}
	if code, said := run("", "pool", "list"); code != exitError || !strings.Contains(said, "permission denied") {
		t.Errorf("with a file that is no program: exit %d, %s", code, said)
	}
	if err := os.Remove(beside); err != nil {
		t.Fatal(err)
	}

	script := "#!/bin/sh\necho \"$NODE_NAME:$(cat):$*\"\nexit 7\n" // a shell's $0 is the script's path, not what it was called
	if err := os.WriteFile(beside, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ env, args string }{
		{"", "controller --provider neutron"},
		{"NODE_NAME=here", "node"},
		{"NODE_NAME=here", "--config /x.yaml node --node-network blue"},
		{"", "pool list --node here -o json"},
		{"", "pool show a"},
		{"", "pool fill a 3"},
		{"", "pool drain a"},
		{"", "install kubernetes --apply --set a=b"},
		{"", "uninstall kubernetes --apply --force"},
		{"", "doctor cluster -o json"},
	} {
		want := strings.TrimPrefix(c.env, "NODE_NAME=") + ":input:" + c.args + "\n"
		if code, said := run(c.env, strings.Fields(c.args)...); code != 7 || said != want {
			t.Errorf("%s %s: exit %d, %q, want %q", c.env, c.args, code, said, want)
		}
	}
	start = link
	if code, said := run("", "pool", "list"); code != 7 || said != ":input:pool list\n" {
		t.Errorf("started by a link: exit %d, %q", code, said)
	}
	start = program
	for args, want := range map[string]string{
		"node":                              "/none.yaml",
		"pool show":                         "want the name of one pool",
		"pool list --colour":                "unknown flag",
		"install cni --from /none /none":    "/none",
		"uninstall kubernetes --force":      "--force goes with --apply",
		"uninstall cni /none":               "",
		"uninstall node":                    "/none.yaml",
		"controller --help":                 "--controller-router",
		"pool fill --help":                  "Have N ports of the pool available",
		"install kubernetes --help":         "--service-cidr",
		"__complete pool ":                  "drain",
		"__complete install k":              "kubernetes",
		"__complete controller --provider ": "neutron",
	} {
		words := strings.Split(args, " ") // the last may be empty: it is to be completed
		if code, said := run("", words...); code == 7 || !strings.Contains(said, want) {
			t.Errorf("%s: exit %d, %q, want %q", args, code, said, want)
		}
	}
}
