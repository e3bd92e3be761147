//go:build linux

package beside

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// become, in its environment, has the test binary become the program that it names.
const become = "BESIDE_TEST_BECOME"

func TestMain(m *testing.M) {
	if name := os.Getenv(become); name != "" {
		err := Become(name, []string{"a name", "an argument"}, []string{"PATH=/usr/bin:/bin", "VARIABLE=value"})
		if errors.Is(err, fs.ErrNotExist) {
			os.Exit(3)
		}
		os.Exit(4)
	}
	os.Exit(m.Run())
}

func TestBecome(t *testing.T) {
	folder, elsewhere := t.TempDir(), t.TempDir()
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	write := func(name, content string, mode os.FileMode) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(folder, name), []byte(content), mode); err != nil {
			t.Fatal(err)
		}
	}
	write("self", string(self), 0o755)
	write("there", "#!/bin/sh\necho \"$$ $* $VARIABLE $(cat)\"\n", 0o755)
	write("no-program", "text", 0o644)
	link := filepath.Join(elsewhere, "link")
	if err := os.Symlink(filepath.Join(folder, "self"), link); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		program, name string
		code          int
	}{
		{filepath.Join(folder, "self"), "there", 0},
		{link, "there", 0},
		{filepath.Join(folder, "self"), "gone", 3},
		{filepath.Join(folder, "self"), "no-program", 4},
	} {
		cmd := exec.CommandContext(t.Context(), c.program)
		cmd.Env, cmd.Stdin = []string{become + "=" + c.name}, strings.NewReader("input")
		out, err := cmd.Output()
		if failed := new(exec.ExitError); err != nil && !errors.As(err, &failed) {
			t.Fatal(err)
		}
		if code := cmd.ProcessState.ExitCode(); code != c.code {
			t.Errorf("%s becomes %s: exit %d, want %d", c.program, c.name, code, c.code)
		}
		if _, said, _ := strings.Cut(string(out), " "); c.code == 0 && said != "an argument value input\n" {
			t.Errorf("%s becomes %s, which says %q", c.program, c.name, out)
		}
	}
}
