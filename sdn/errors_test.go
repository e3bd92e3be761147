package sdn

import (
	"errors"
	"fmt"
	"io"
	"testing"
	"time"
)

func TestPredicates(t *testing.T) {
	t.Parallel()
	predicates := map[Kind]func(error) bool{
		KindNotFound: IsNotFound, KindConflict: IsConflict, KindExhausted: IsExhausted, KindInvalid: IsInvalid, KindDenied: IsDenied,
		KindUnsupported: IsUnsupported, KindPending: IsPending, KindUnavailable: IsUnavailable,
	}
	for kind := range predicates {
		err := fmt.Errorf("wrapped: %w", &Error{Kind: kind, Reason: Stale, Field: "f", RetryAfter: time.Second})
		for other, is := range predicates {
			if is(err) != (kind == other) {
				t.Errorf("the predicate of %q says %v of %q", other, is(err), kind)
			}
		}
		if ReasonOf(err) != Stale || FieldOf(err) != "f" || RetryAfterOf(err) != time.Second {
			t.Errorf("of %v: %q, %q, %v", err, ReasonOf(err), FieldOf(err), RetryAfterOf(err))
		}
	}
	for _, err := range []error{nil, io.EOF} {
		if IsNotFound(err) || ReasonOf(err) != "" || FieldOf(err) != "" || RetryAfterOf(err) != 0 {
			t.Errorf("%v is taken for ours", err)
		}
	}
}

func TestErrorText(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  error
		want string
	}{
		{NotFound("port", ID("4f")), "port 4f: not found"},
		{Conflict(AddressInUse, "port", "addresses[0]", "%s is another port's", "10.0.0.5"), "port: addresses[0]: 10.0.0.5 is another port's"},
		{&Error{Kind: KindConflict, Reason: Stale, Noun: "port"}, "port: conflict (stale)"},
		{Exhausted(NoAddresses, "subnet", "no free address"), "subnet: no free address"},
		{Invalid("subnet", "cidr", "is missing"), "subnet: cidr: is missing"},
		{Unsupported("trunk", "none here"), "trunk: none here"},
		{Unavailable(io.EOF, "store", "cannot be read"), "store: cannot be read: EOF"},
		{&Error{Kind: KindDenied}, "denied"},
	} {
		if got := c.err.Error(); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
	if !errors.Is(Unavailable(io.EOF, "x", "y"), io.EOF) {
		t.Error("the cause is lost")
	}
}

func TestBulkError(t *testing.T) {
	t.Parallel()
	one := &BulkError{Errs: []error{nil, Invalid("port", "mac", "bad"), nil}}
	if got, want := one.Error(), "port: mac: bad"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if !IsInvalid(one) || FieldOf(one) != "mac" {
		t.Error("the predicates do not see through")
	}
	two := &BulkError{Errs: []error{Exhausted(NoPorts, "network", "full"), nil, Invalid("port", "mac", "bad")}}
	if got, want := two.Error(), "2 of 3 failed, the first: network: full"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if !IsExhausted(two) || IsInvalid(two) {
		t.Error("the predicates are to see the first failure")
	}
}
