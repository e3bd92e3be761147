package sdn

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// Kind is what an error means to a caller. Ask with the predicates, not by comparing kinds.
type Kind string

// The kinds of errors, each with its predicate.
const (
	KindNotFound    Kind = "not found"   // IsNotFound
	KindConflict    Kind = "conflict"    // IsConflict
	KindExhausted   Kind = "exhausted"   // IsExhausted
	KindInvalid     Kind = "invalid"     // IsInvalid
	KindDenied      Kind = "denied"      // IsDenied
	KindUnsupported Kind = "unsupported" // IsUnsupported
	KindPending     Kind = "pending"     // IsPending
	KindUnavailable Kind = "unavailable" // IsUnavailable
)

// Reason says why something conflicts or what is exhausted.
type Reason string

// Reasons under IsConflict.
const (
	Exists       Reason = "exists"         // another object has what must be unique
	AddressInUse Reason = "address in use" // the address belongs to another port
	MACInUse     Reason = "MAC in use"     // the MAC belongs to another port of the network
	InUse        Reason = "in use"         // other objects depend on it: remove them first
	Stale        Reason = "stale"          // the object is no longer at the revision given: read it again
	Immutable    Reason = "immutable"      // the field cannot be changed once the object is there
)

// Reasons under IsExhausted.
const (
	NoAddresses Reason = "addresses" // no free address in the subnet
	NoPrefixes  Reason = "prefixes"  // no free prefix in the subnet pool
	NoPorts     Reason = "ports"     // the network holds as many ports as its data path can
	NoQuota     Reason = "quota"     // the project's quota is used up
	NoVLANs     Reason = "VLANs"     // no free VLAN in the trunk
	NoSpace     Reason = "space"     // the SDN has no room to write its state
)

// Error is what providers answer with. Its text is meant for operators and for a Docker user's terminal: it names the
// noun and the field, and never holds a secret or an id of another project.
type Error struct {
	Kind       Kind
	Reason     Reason        // with KindConflict and KindExhausted
	Noun       string        // "port", "subnet", …
	ID         string        // of the object, or its Key or name, where known
	Field      string        // which input is meant, where one is
	Detail     string        // a sentence without a capital or a full stop
	RetryAfter time.Duration // with KindPending and KindUnavailable, when the SDN said so
	Err        error         // the cause, if any
}

// Error puts the parts into one line, such as "port 4f…: address 10.0.0.5: in use by another port".
func (e *Error) Error() string {
	var parts []string
	if subject := strings.TrimSpace(e.Noun + " " + e.ID); subject != "" {
		parts = append(parts, subject)
	}
	if e.Field != "" {
		parts = append(parts, e.Field)
	}
	switch {
	case e.Detail != "":
		parts = append(parts, e.Detail)
	case e.Reason != "":
		parts = append(parts, string(e.Kind)+" ("+string(e.Reason)+")")
	default:
		parts = append(parts, string(e.Kind))
	}
	if e.Err != nil {
		parts = append(parts, e.Err.Error())
	}
	return strings.Join(parts, ": ")
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

func isKind(err error, k Kind) bool {
	var e *Error
	return errors.As(err, &e) && e.Kind == k
}

// IsNotFound tells that the object, or one it needs, is not there.
func IsNotFound(err error) bool { return isKind(err, KindNotFound) }

// IsConflict tells that something else stands in the way; ReasonOf tells what.
func IsConflict(err error) bool { return isKind(err, KindConflict) }

// IsExhausted tells that there is no more of something; ReasonOf tells of what.
func IsExhausted(err error) bool { return isKind(err, KindExhausted) }

// IsInvalid tells that the request makes no sense whatever the state; FieldOf tells which field.
func IsInvalid(err error) bool { return isKind(err, KindInvalid) }

// IsDenied tells that the SDN's policy forbids it to these credentials. Where it does not know them at all, it could not be asked: IsUnavailable.
func IsDenied(err error) bool { return isKind(err, KindDenied) }

// IsUnsupported tells that this SDN cannot do it at all; Capabilities told so before.
func IsUnsupported(err error) bool { return isKind(err, KindUnsupported) }

// IsPending tells that the object is being changed by the SDN; try again after RetryAfterOf.
func IsPending(err error) bool { return isKind(err, KindPending) }

// IsUnavailable tells that the SDN could not be asked, or failed; whether a change was made is unknown.
func IsUnavailable(err error) bool { return isKind(err, KindUnavailable) }

// ErrNotSent is among the causes of an unavailable error where it is certain that nothing was asked of the SDN, so that nothing will come of it.
var ErrNotSent = errors.New("the request was not sent")

// ReasonOf gives the reason of a conflict or an exhaustion, "" for any other error.
func ReasonOf(err error) Reason {
	var e *Error
	if errors.As(err, &e) {
		return e.Reason
	}
	return ""
}

// FieldOf gives the field an error is about, "" where it is about none.
func FieldOf(err error) string {
	var e *Error
	if errors.As(err, &e) {
		return e.Field
	}
	return ""
}

// RetryAfterOf gives how long the SDN asked to wait, 0 where it did not say.
func RetryAfterOf(err error) time.Duration {
	var e *Error
	if errors.As(err, &e) {
		return e.RetryAfter
	}
	return 0
}

// NotFound makes an error that IsNotFound.
func NotFound(noun string, id any) error {
	return &Error{Kind: KindNotFound, Noun: noun, ID: fmt.Sprint(id)}
}

// Conflict makes an error that IsConflict for the given reason. The detail is a format.
func Conflict(reason Reason, noun, field, detail string, args ...any) error {
	return &Error{Kind: KindConflict, Reason: reason, Noun: noun, Field: field, Detail: fmt.Sprintf(detail, args...)}
}

// Exhausted makes an error that IsExhausted of the given thing. The detail is a format.
func Exhausted(reason Reason, noun, detail string, args ...any) error {
	return &Error{Kind: KindExhausted, Reason: reason, Noun: noun, Detail: fmt.Sprintf(detail, args...)}
}

// Invalid makes an error that IsInvalid and names the field. The detail is a format.
func Invalid(noun, field, detail string, args ...any) error {
	return &Error{Kind: KindInvalid, Noun: noun, Field: field, Detail: fmt.Sprintf(detail, args...)}
}

// Unsupported makes an error that IsUnsupported. The detail is a format.
func Unsupported(noun, detail string, args ...any) error {
	return &Error{Kind: KindUnsupported, Noun: noun, Detail: fmt.Sprintf(detail, args...)}
}

// Unavailable makes an error that IsUnavailable with its cause. The detail is a format.
func Unavailable(cause error, noun, detail string, args ...any) error {
	return &Error{Kind: KindUnavailable, Noun: noun, Detail: fmt.Sprintf(detail, args...), Err: cause}
}

// OfHost marks a cause as one of this machine, about its files or its kernel: it names no endpoint of another and may be shown to a user of this
// machine's container engine.
func OfHost(err error) error {
	if err == nil {
		return nil
	}
	return hostError{err}
}

// IsOfHost tells that the cause of an error is marked by OfHost.
func IsOfHost(err error) bool { return errors.As(err, &hostError{}) }

type hostError struct{ error }

func (e hostError) Unwrap() error { return e.error }

// A BulkError tells what became of each item of a bulk call that did not wholly succeed.
type BulkError struct {
	Errs []error // by position of the item in the call; nil for an item that succeeded
}

// Error names the first failure and counts the rest.
func (e *BulkError) Error() string {
	var first error
	failed := 0
	for _, err := range e.Errs {
		if err == nil {
			continue
		}
		if failed++; first == nil {
			first = err
		}
	}
	if failed == 1 {
		return first.Error()
	}
	return fmt.Sprintf("%d of %d failed, the first: %v", failed, len(e.Errs), first)
}

// Unwrap gives the failures, so that the predicates see through to the first of them.
func (e *BulkError) Unwrap() []error {
	var errs []error
	for _, err := range e.Errs {
		if err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}
