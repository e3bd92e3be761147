//go:build linux

package pod

import (
	"errors"
	"fmt"
)

// Reason is why a call failed, in a word that programs go by.
type Reason string

// The reasons.
const (
	Invalid  Reason = "invalid"   // the request makes no sense
	Denied   Reason = "denied"    // the user may not have the network
	NotFound Reason = "not_found" // there is no such pod or network
	Conflict Reason = "conflict"  // the pod is there with other networks or another namespace
	Failed   Reason = "failed"    // a network said no
	Internal Reason = "internal"  // of this machine: the disk, the kernel
)

// Error is a call that failed. What it did is undone, unless its text says what is left.
type Error struct {
	Reason Reason
	Err    error
}

func (e *Error) Error() string { return e.Err.Error() }

func (e *Error) Unwrap() error { return e.Err }

// ReasonOf is why err came about; Internal where nothing says so.
func ReasonOf(err error) Reason {
	var e *Error
	if errors.As(err, &e) {
		return e.Reason
	}
	return Internal
}

func invalid(format string, args ...any) error {
	return &Error{Invalid, fmt.Errorf(format, args...)}
}

func denied(format string, args ...any) error { return &Error{Denied, fmt.Errorf(format, args...)} }

func notFound(format string, args ...any) error {
	return &Error{NotFound, fmt.Errorf(format, args...)}
}

func conflict(format string, args ...any) error {
	return &Error{Conflict, fmt.Errorf(format, args...)}
}

func failed(format string, args ...any) error { return &Error{Failed, fmt.Errorf(format, args...)} }
