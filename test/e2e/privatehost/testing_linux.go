package privatehost

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// startTime is how long a test's host may take to start.
const startTime = 5 * time.Minute

// TB is the part of testing.TB that Start and Pool.For need.
type TB interface {
	Helper()
	Cleanup(func())
	Failed() bool
	Errorf(format string, args ...any)
	Logf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// Program is the first thing of a TestMain: it is Init, and gives the Kuryr to test,
// which KURYR_BIN names, else that at path. Where there is none it ends the process with
// the command that makes it.
func Program(path, made string) string {
	Init()
	if name := os.Getenv("KURYR_BIN"); name != "" {
		path = name
	}
	path, err := filepath.Abs(path)
	if err == nil {
		_, err = os.Stat(path)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "no program to test, run %q first: %v\n", made, err)
		os.Exit(1)
	}
	return path
}

// Earlier returns the Kuryr that upgrades start from. hack/earlier.sh builds it once. The
// caller's package is two folders below the module's.
func Earlier(t TB) string {
	t.Helper()
	build := exec.CommandContext(context.Background(), "../../../hack/earlier.sh")
	build.Stderr = os.Stderr
	path, err := build.Output()
	if err != nil {
		t.Fatalf("build the earlier version: %v", err)
	}
	return strings.TrimSpace(string(path))
}

// Start is New for a test: the host ends with the test, and where the test failed the ends of its logs are shown. The
// environment variable KURYR_E2E_LOGS names a folder that keeps the whole logs.
func Start(t TB, opts Options) *Host {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startTime)
	defer cancel()
	h, err := New(ctx, opts)
	if err != nil {
		t.Fatalf("start a private host: %v", err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			h.report(t)
		}
		h.Close()
	})
	return h
}

// report shows the ends of a failed test's logs, and keeps the whole ones.
func (h *Host) report(t TB) {
	t.Logf("%s", h.Logs(60))
	h.KeepLogs(os.Getenv("KURYR_E2E_LOGS"))
}

// KeepLogs copies the whole logs into a folder of the host's name below dir; where dir is empty it does nothing.
func (h *Host) KeepLogs(dir string) {
	if dir == "" {
		return
	}
	to := filepath.Join(dir, filepath.Base(h.dir))
	_ = os.MkdirAll(to, 0o755)
	for _, file := range h.logFiles() {
		if text, err := os.ReadFile(file); err == nil {
			_ = os.WriteFile(filepath.Join(to, filepath.Base(file)), text, 0o644)
		}
	}
}
