//go:build linux

package nstest

import (
	"os"
	"syscall"
	"testing"
)

// WriteProgram writes an executable file. It keeps parallel tests from starting a process that
// inherits the open file, because executing the file would then fail with ETXTBSY.
func WriteProgram(t *testing.T, path string, content []byte) {
	t.Helper()
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(path, content, 0o755); err != nil {
		t.Fatal(err)
	}
}
