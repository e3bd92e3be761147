package core

import (
	"context"
	"errors"
	"net"
	"slices"
	"time"

	"github.com/kuryr/kuryr/kube/pool"
	"github.com/kuryr/kuryr/sdn"
	"golang.org/x/sys/unix"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	ctrl "sigs.k8s.io/controller-runtime"
)

// Waiting is an error that says what is waited for. A watch reports its end, so there is
// no retry.
type Waiting string

// Error returns what is waited for.
func (w Waiting) Error() string { return string(w) }

// Short is the error of fewer ports than are needed, by a limit of Kuryr's own.
type Short struct {
	Limit pool.Limit
	What  string
}

// Error returns what is missing.
func (s Short) Error() string { return s.What }

// Errors returns the errors that were joined, one by one. One that wraps another is one
// of them.
func Errors(err error) (all []error) {
	if err == nil {
		return nil
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	for _, e := range joined.Unwrap() {
		all = append(all, Errors(e)...)
	}
	return all
}

// Failures returns the joined errors that need a retry: nothing is waited for with them.
func Failures(err error) []error {
	return slices.DeleteFunc(Errors(err), func(e error) bool {
		return errors.As(e, new(Waiting)) || errors.As(e, new(Short))
	})
}

// HasFailure reports whether an error has more than what is waited for, or a cache that
// is behind.
func HasFailure(err error) bool {
	return slices.ContainsFunc(Errors(err), func(e error) bool {
		return !errors.As(e, new(Waiting)) && !apierrors.IsConflict(e)
	})
}

// ConflictRetry is the pause after a conflict, in which the cache sees what another
// client has written.
const ConflictRetry = 200 * time.Millisecond

// Result returns a reconciler's result. A conflict of versions is no failure: the cache
// was behind. What waits for a watch needs no retry. One failure among joined errors is
// enough for a retry.
func Result(again time.Duration, err error) (ctrl.Result, error) {
	failed := Failures(err)
	if len(failed) == 0 {
		return ctrl.Result{RequeueAfter: again}, nil
	}
	if !slices.ContainsFunc(failed, func(e error) bool { return !apierrors.IsConflict(e) }) {
		return ctrl.Result{RequeueAfter: ConflictRetry}, nil
	}
	if after := sdn.RetryAfterOf(err); after > 0 {
		return ctrl.Result{RequeueAfter: after}, nil
	}
	return ctrl.Result{}, err
}

// Passing reports whether an error can end without a change of the configuration: the SDN
// or the API server is unavailable, or cannot be reached.
func Passing(err error) bool {
	return sdn.IsUnavailable(err) || sdn.IsPending(err) || errors.Is(err, context.DeadlineExceeded) ||
		apierrors.IsServerTimeout(err) || apierrors.IsTooManyRequests(err) || apierrors.IsInternalError(err) ||
		apierrors.IsTimeout(err) || apierrors.IsServiceUnavailable(err) || apierrors.IsConflict(err) ||
		utilnet.IsConnectionRefused(err) || utilnet.IsConnectionReset(err) || utilnet.IsTimeout(err) ||
		utilnet.IsProbableEOF(err) || errors.Is(err, unix.EHOSTUNREACH) || errors.Is(err, unix.ENETUNREACH) ||
		isTemporary(err)
}

// isTemporary reports whether a name server did not answer.
func isTemporary(err error) bool {
	var dns *net.DNSError
	return errors.As(err, &dns) && dns.Temporary()
}

// Sooner returns the shorter of two times; 0 is never.
func Sooner(a, b time.Duration) time.Duration {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}
