package httpserve

import (
	"errors"
	"io"
	"net/http"
	"time"
)

// linger is how long the server reads what comes of a body that no handler reads, so that its
// client has time to read the answer before the connection is closed.
const linger = 500 * time.Millisecond

// undrained closes the connection of a request that is answered before its body was read
// to its end. net/http would read on, for as long as a whole request may take, before it
// sends the answer.
func undrained(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Body == nil || r.Body == http.NoBody {
			next.ServeHTTP(w, r)
			return
		}
		body := &body{ReadCloser: r.Body}
		answer := &answer{ResponseWriter: w, body: body}
		copied := r.WithContext(r.Context()) // the server looks at the body of its own request
		copied.Body = body
		defer answer.begin()
		next.ServeHTTP(answer, copied)
	})
}

// body notes when it has been read to its end.
type body struct {
	io.ReadCloser
	ended bool
}

// Read reads and notes the end.
func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.ended = b.ended || errors.Is(err, io.EOF)
	return n, err
}

// answer decides about the body when the answer begins.
type answer struct {
	http.ResponseWriter
	body  *body
	begun bool
}

// begin bounds what is still read of the body, and has the connection closed, if the body
// has not ended.
func (a *answer) begin() {
	if a.begun {
		return
	}
	a.begun = true
	if a.body.ended {
		return
	}
	a.Header().Set("Connection", "close") // with it the answer is sent immediately
	_ = http.NewResponseController(a.ResponseWriter).SetReadDeadline(time.Now().Add(linger))
}

// WriteHeader begins the answer, unless it is one of those that come before.
func (a *answer) WriteHeader(status int) {
	if status >= http.StatusOK || status == http.StatusSwitchingProtocols {
		a.begin()
	}
	a.ResponseWriter.WriteHeader(status)
}

// Write begins the answer.
func (a *answer) Write(p []byte) (int, error) {
	a.begin()
	return a.ResponseWriter.Write(p)
}

// FlushError begins the answer.
func (a *answer) FlushError() error {
	a.begin()
	return http.NewResponseController(a.ResponseWriter).Flush()
}

// Unwrap is for http.ResponseController.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }
