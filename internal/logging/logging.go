// Package logging makes the process's structured logger and carries request ids through contexts.
//
// It owns the shape of log lines only: every line that is logged with a context made by
// WithRequest has the attribute "request". It must not decide what is logged, and nothing
// in it may block on anything but the writer.
package logging

import (
	"context"
	"fmt"
	"io"
	"log/slog"

	"github.com/google/uuid"
)

// The formats of log lines.
const (
	Text = "text" // key=value
	JSON = "json" // one object a line
)

// New makes a logger that writes lines of the given format, from the given level on, to
// w. Lines logged with a context of WithRequest have the request's id.
func New(w io.Writer, level slog.Level, format string) (*slog.Logger, error) {
	options := &slog.HandlerOptions{Level: level}
	switch format {
	case Text:
		return slog.New(requestHandler{slog.NewTextHandler(w, options)}), nil
	case JSON:
		return slog.New(requestHandler{slog.NewJSONHandler(w, options)}), nil
	}
	return nil, fmt.Errorf("log format %q: want %s or %s", format, Text, JSON)
}

// ParseLevel reads debug, info, warn or error.
func ParseLevel(s string) (slog.Level, error) {
	switch s {
	case "debug":
		return slog.LevelDebug, nil
	case "info":
		return slog.LevelInfo, nil
	case "warn":
		return slog.LevelWarn, nil
	case "error":
		return slog.LevelError, nil
	}
	return 0, fmt.Errorf("%q is not a log level: want debug, info, warn or error", s)
}

type requestKey struct{}

// WithRequest gives ctx a request id, which is returned too: id, or a new one if id is "".
func WithRequest(ctx context.Context, id string) (context.Context, string) {
	if id == "" {
		id = uuid.NewString()[:8]
	}
	return context.WithValue(ctx, requestKey{}, id), id
}

// Request is the request id of ctx, "" if it has none.
func Request(ctx context.Context) string {
	id, _ := ctx.Value(requestKey{}).(string)
	return id
}

// requestHandler adds the request id to what it hands on.
type requestHandler struct{ slog.Handler }

// Handle adds the request id of ctx and hands the line on.
func (h requestHandler) Handle(ctx context.Context, r slog.Record) error {
	if id := Request(ctx); id != "" {
		r.AddAttrs(slog.String("request", id))
	}
	return h.Handler.Handle(ctx, r)
}

// WithAttrs keeps adding request ids.
func (h requestHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return requestHandler{h.Handler.WithAttrs(attrs)}
}

// WithGroup keeps adding request ids.
func (h requestHandler) WithGroup(name string) slog.Handler {
	return requestHandler{h.Handler.WithGroup(name)}
}
