//go:build !failpoints

// Package failpoint marks the places where a multi-step operation may be killed.
//
// A crash test builds Kuryr with the build tag "failpoints", names one place in the
// environment variable KURYR_FAILPOINT, runs the operation, and finds the process killed
// (SIGKILL, so nothing is cleaned up) exactly there; then it starts Kuryr again and
// compares store and kernel. In every other build Here is empty and is inlined.
//
// The package owns nothing but that variable's meaning, and KURYR_FAILPOINTS_PASSED's, a
// file that tells which places there are to die at. It must not be used for anything else
// than dying: a failpoint that returned errors or slept would test behaviour no kill can
// cause.
package failpoint

// Enabled reports whether this build can be killed at its failpoints.
const Enabled = false

// Here marks a place between two effects. The name is a literal, unique in the tree, of
// the form "package.operation.step".
func Here(name string) {}
