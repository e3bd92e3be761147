//go:build failpoints

// Package failpoint kills the process where KURYR_FAILPOINT asks for it, and writes down
// its failpoints' names as it passes them into the file that KURYR_FAILPOINTS_PASSED
// names. See failpoint.go for what it is for: this file takes the place of that one in
// builds for crash tests, and must have the same two names.
package failpoint

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// Enabled reports whether this build can be killed at its failpoints.
const Enabled = true

// target is the failpoint to die at, and left how many visits remain until then:
// KURYR_FAILPOINT=name[:visit].
var (
	target string
	left   atomic.Int64
)

// passed has a line for each visit, "START NAME", in nanoseconds of when the process
// started, as a namespace's process numbers come again; nil is nowhere.
var (
	passed *os.File
	start  = time.Now().UnixNano()
)

func init() {
	name, visit, counted := strings.Cut(os.Getenv("KURYR_FAILPOINT"), ":")
	target = name
	left.Store(1)
	if counted {
		n, err := strconv.ParseInt(visit, 10, 64)
		if err != nil || n < 1 {
			panic("KURYR_FAILPOINT: the visit after the colon must be a positive number, not " + strconv.Quote(visit))
		}
		left.Store(n)
	}
	if path := os.Getenv("KURYR_FAILPOINTS_PASSED"); path != "" {
		var err error
		if passed, err = os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600); err != nil {
			panic("KURYR_FAILPOINTS_PASSED: " + err.Error())
		}
	}
}

// Here kills the process if name is the failpoint that KURYR_FAILPOINT asks for and this
// is the visit it asks for.
func Here(name string) {
	if passed != nil {
		_, _ = fmt.Fprintf(passed, "%d %s\n", start, name) // one write, so that lines of several goroutines stay whole
	}
	if name != target || left.Add(-1) != 0 {
		return
	}
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}
