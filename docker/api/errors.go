package api

import (
	"fmt"
	"strings"
)

// Error is an error in the call itself. It is answered with an HTTP status.
type Error struct {
	Status int
	Text   string
}

// Error returns the text.
func (e *Error) Error() string { return e.Text }

// Refusal is an error whose text is shown to the user of Docker. It is answered with status 200.
type Refusal struct {
	Text  string
	Cause error // only logged; nil if there is none
}

// Error returns the text and the cause.
func (e *Refusal) Error() string {
	if e.Cause != nil {
		return e.Text + ": " + e.Cause.Error()
	}
	return e.Text
}

// Unwrap returns the cause.
func (e *Refusal) Unwrap() error { return e.Cause }

// Refuse returns a refusal.
func Refuse(format string, args ...any) error { return RefuseFor(nil, format, args...) }

// RefuseFor returns a refusal with a cause.
func RefuseFor(cause error, format string, args ...any) error {
	return &Refusal{Text: fmt.Sprintf(format, args...), Cause: cause}
}

// ErrorResponse answers a call that failed. The network side of Docker reads Err, the IPAM side
// Error.
type ErrorResponse struct{ Err, Error string }

// Line makes a text one line of at most 1,000 bytes without control characters.
func Line(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == 0xfffd {
			return ' '
		}
		return r
	}, s)
	return Clip(s, 1000)
}

// Clip cuts a text to n bytes.
func Clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}
