package docker

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/kuryr/kuryr/sdn"
)

// httpError is answered with a status of its own: the call itself was wrong, not what it asked for.
type httpError struct {
	status int
	text   string
}

func (e *httpError) Error() string { return e.text }

// malformed says that a field of the request makes no sense.
func malformed(field, format string, args ...any) error {
	return &httpError{http.StatusBadRequest, field + ": " + fmt.Sprintf(format, args...)}
}

// refusal is an error whose text is meant for the engine's user. It may wrap a cause, which is only logged.
type refusal struct {
	text  string
	cause error
}

func (e *refusal) Error() string {
	if e.cause != nil {
		return e.text + ": " + e.cause.Error()
	}
	return e.text
}

func (e *refusal) Unwrap() error { return e.cause }

func refuse(format string, args ...any) error { return &refusal{text: fmt.Sprintf(format, args...)} }

func refuseFor(cause error, format string, args ...any) error {
	return &refusal{text: fmt.Sprintf(format, args...), cause: cause}
}

// plugError is a failure of the Binder. Its text is about interfaces of this host and may be shown.
type plugError struct{ err error }

func (e *plugError) Error() string { return "the interface could not be plugged: " + e.err.Error() }
func (e *plugError) Unwrap() error { return e.err }

// say puts an error into words for the engine, which shows them on its user's terminal and in its log. What is not known to
// be fit for that is replaced by the request id, by which the log has the whole error.
func say(err error, request string) string {
	var (
		call    *httpError
		refused *refusal
		plug    *plugError
		fromSDN *sdn.Error
	)
	switch {
	case errors.As(err, &call):
		return printable(call.text)
	case errors.As(err, &refused):
		return printable(refused.text)
	case errors.Is(err, context.DeadlineExceeded) && !errors.As(err, &fromSDN):
		return "kuryr: not done in time; see its log, request " + request
	case errors.As(err, &fromSDN):
		shown := *fromSDN
		if shown.Kind == sdn.KindUnavailable && !sdn.IsOfHost(shown.Err) {
			shown.Err = nil // transport errors name endpoints
		}
		return printable(shown.Error())
	case errors.As(err, &plug):
		return printable(plug.Error())
	}
	return "kuryr: internal error; see its log, request " + request
}

// printable makes a text one clean line of bounded length.
func printable(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == 0xfffd {
			return ' '
		}
		return r
	}, s)
	return clip(s, 1000)
}

func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}
