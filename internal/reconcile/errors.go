package reconcile

import (
	"context"
	"errors"
	"fmt"
)

// Errors that callers ask for with errors.Is.
var (
	// ErrAbsent is what a Target's Delete returns if there was nothing to delete, and what a Set
	// of an existing row returns if there is none.
	ErrAbsent = errors.New("object is absent")
	// ErrWaiting is what a Target's Delete returns if only an event that Kind.Wake reports can
	// complete it, such as word that another party no longer counts on the object. The row
	// stays, its key can be set again, and no attempt is made until then.
	ErrWaiting = errors.New("deletion waits for an event")
	// ErrUnwanted is what a Target's Ensure returns, in an attempt of Run, if what the row asks for
	// has lost its purpose. The row is deleted.
	ErrUnwanted = errors.New("object is no longer wanted")
	// ErrClosed says that the store is closed.
	ErrClosed = errors.New("store is closed")
	// ErrInUse says that another process has the store's file open.
	ErrInUse = errors.New("store is open in another process")
	// ErrNewer says that the file was written by a later version of Kuryr.
	ErrNewer = errors.New("store was written by a later version")
	// ErrNotWritten says that a change could not be written to the store's file, which the error names.
	ErrNotWritten = errors.New("change not written")
	// ErrFull says that the disk has no room for new rows. Rows can still be removed.
	ErrFull = errors.New("no space left for new rows")
)

// ConflictError says that an exclusive resource belongs to another row.
type ConflictError struct {
	Resource string // the claim
	Holder   string // the row, as Kind.Ref has it
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("%s is in use by %s", e.Resource, e.Holder)
}

// IsConflict reports whether err says that a resource belongs to another row.
func IsConflict(err error) bool {
	_, ok := errors.AsType[*ConflictError](err)
	return ok
}

// OwnerError says that a row which must outlive another is being deleted, or is gone.
type OwnerError struct {
	Owner string // as Kind.Ref has it
}

func (e *OwnerError) Error() string { return fmt.Sprintf("%s is being deleted or is gone", e.Owner) }

// IsOwnerGone reports whether err says that an owner is being deleted, or is gone.
func IsOwnerGone(err error) bool {
	_, ok := errors.AsType[*OwnerError](err)
	return ok
}

// PendingError says that a deletion is committed and not complete. It is repeated.
type PendingError struct {
	Row string // as Kind.Ref has it
	Err error
}

func (e *PendingError) Error() string { return fmt.Sprintf("cleanup of %s: %v", e.Row, e.Err) }

func (e *PendingError) Unwrap() error { return e.Err }

// IsPending reports whether err says that a deletion is committed and not complete.
func IsPending(err error) bool {
	_, ok := errors.AsType[*PendingError](err)
	return ok
}

type refused struct{ error }

func (e refused) Unwrap() error { return e.error }

// Refused marks an error of Ensure that came before the first change: there is nothing to undo.
func Refused(err error) error { return refused{err} }

func isRefused(err error) bool {
	_, ok := errors.AsType[refused](err)
	return ok
}

type unconfirmed struct{ error }

func (e unconfirmed) Unwrap() error { return e.error }

// Unconfirmed marks an error of Ensure after which it is unknown whether the object will
// exist, such as a lost answer.
func Unconfirmed(err error) error { return unconfirmed{err} }

func isUnconfirmed(err error) bool {
	_, ok := errors.AsType[unconfirmed](err)
	return ok || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

type remaining struct {
	error
	last any
}

func (e remaining) Unwrap() error { return e.error }

// Remaining marks an error of Delete after which last is what the next Delete has to delete. It
// takes the place of the row's Last.
func Remaining[T any](last T, err error) error { return remaining{err, last} }

// isLooking reports whether a deletion is not complete and nothing has failed.
func isLooking(err error) bool {
	return errors.Is(err, errLooking) || errors.Is(err, ErrWaiting)
}

var errChildren = errors.New("rows that it owns are still there")
