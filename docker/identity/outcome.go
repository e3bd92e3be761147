package identity

import (
	"context"
	"errors"

	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/sdn"
)

// Outcome marks the error of a target for its store: reconcile.Refused if nothing was changed, by
// this call or before, and reconcile.Unconfirmed if the SDN may still do what it was asked.
func Outcome(err error, changed bool) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, sdn.ErrNotSent):
		if changed {
			return err
		}
		return reconcile.Refused(err)
	case sdn.IsUnavailable(err), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return reconcile.Unconfirmed(err)
	case !changed && isRefusal(err):
		return reconcile.Refused(err)
	}
	return err
}

// isRefusal reports whether the SDN answered and changed nothing.
func isRefusal(err error) bool {
	return sdn.IsInvalid(err) || sdn.IsDenied(err) || sdn.IsUnsupported(err) ||
		sdn.IsExhausted(err) || sdn.IsNotFound(err) || sdn.IsConflict(err)
}

// IgnoreAbsent returns the error of a call about an object that may be gone.
func IgnoreAbsent(err error) error {
	if sdn.IsNotFound(err) {
		return nil
	}
	return err
}
