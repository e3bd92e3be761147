package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/kuryr/kuryr/internal/httpserve"
	"github.com/kuryr/kuryr/internal/logging"
)

// Limits of the servers. There is no limit on writing: a backup may be long.
const (
	headerTimeout = 10 * time.Second
	idleTimeout   = 2 * time.Minute
	bodyTimeout   = 10 * time.Second
	maxBody       = 64 << 10
	maxHeader     = 16 << 10
	// askTimeout bounds what only asks, workTimeout what goes through the whole kernel state.
	askTimeout  = 30 * time.Second
	workTimeout = 10 * time.Minute
)

// Config is what a handler serves.
type Config struct {
	Daemon  Daemon
	SDN     http.Handler // below /v2.0/
	Metrics http.Handler
	Pods    func(context.Context) (Pods, error) // of a cluster's node; nil elsewhere
	Intents func() map[string]json.RawMessage   // of the daemon's database; nil without one
	Logger  *slog.Logger
}

// Handler serves everything; it is for the socket that is root's.
func Handler(c Config) http.Handler {
	mux := http.NewServeMux()
	open(mux, c)
	mux.HandleFunc("/v2.0/", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), askTimeout)
		defer cancel()
		c.SDN.ServeHTTP(w, r.WithContext(ctx))
	})
	s := server{c.Daemon, c.Logger}
	mux.HandleFunc("GET /admin/status", answer(
		s, askTimeout,
		func(ctx context.Context, _ *http.Request) (Status, error) { return c.Daemon.Status(ctx) },
	))
	mux.HandleFunc("POST /admin/reconcile", answer(
		s, workTimeout,
		func(ctx context.Context, _ *http.Request) (Reconcile, error) { return c.Daemon.Reconcile(ctx) },
	))
	mux.HandleFunc("GET /admin/check", answer(
		s, workTimeout,
		func(ctx context.Context, _ *http.Request) (Check, error) { return c.Daemon.Check(ctx) },
	))
	mux.HandleFunc("POST /admin/down", answer(s, workTimeout,
		func(ctx context.Context, r *http.Request) (DownReport, error) {
			var o DownOptions
			if err := decode(r, &o); err != nil {
				return DownReport{}, err
			}
			// A caller that disconnects must not leave half of it standing.
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), workTimeout)
			defer cancel()
			return c.Daemon.Down(ctx, o)
		}))
	mux.HandleFunc("POST /admin/stop", answer(s, askTimeout, func(ctx context.Context, _ *http.Request) (struct{}, error) {
		return struct{}{}, c.Daemon.Stop(context.WithoutCancel(ctx))
	}))
	mux.HandleFunc("GET /admin/backup", s.backup)
	handleRepairs(mux, s)
	podding(mux, s, c.Pods)
	if c.Intents != nil {
		mux.HandleFunc("GET /admin/intents", answer(s, askTimeout,
			func(context.Context, *http.Request) (map[string]json.RawMessage, error) { return c.Intents(), nil }))
	}
	return withBody(withRequest(mux))
}

// PublicHandler serves only what monitoring asks: /metrics, /healthz and /readyz.
func PublicHandler(c Config) http.Handler {
	mux := http.NewServeMux()
	open(mux, c)
	return withBody(withRequest(mux))
}

func open(mux *http.ServeMux, c Config) {
	mux.Handle("GET /metrics", c.Metrics)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok\n") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		reasons := c.Daemon.Unready()
		if len(reasons) > 0 {
			http.Error(w, strings.Join(reasons, "\n"), http.StatusServiceUnavailable)
			return
		}
		_, _ = io.WriteString(w, "ok\n")
	})
}

type server struct {
	daemon Daemon
	log    *slog.Logger
}

type badRequest struct{ error }

// decode reads the options of a request. Without a body they stay as they are.
func decode(r *http.Request, options any) error {
	decoder := json.NewDecoder(io.LimitReader(r.Body, maxBody))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(options); err != nil && !errors.Is(err, io.EOF) {
		return badRequest{err}
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return badRequest{errors.New("data follows the JSON object")}
	}
	return nil
}

func answer[T any](
	s server, timeout time.Duration, do func(context.Context, *http.Request) (T, error),
) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), timeout)
		defer cancel()
		out, err := do(ctx, r)
		if err != nil {
			status := http.StatusInternalServerError
			if errors.As(err, &badRequest{}) {
				status = http.StatusBadRequest
			}
			s.log.WarnContext(r.Context(), "admin request failed", "path", r.URL.Path, "err", err)
			http.Error(w, err.Error(), status)
			return
		}
		data, err := json.Marshal(out)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(append(data, '\n'))
	}
}

// backup streams; that it is whole is told by the trailer, since the status goes first.
func (s server) backup(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Trailer", errorTrailer)
	if err := s.daemon.Backup(r.Context(), w); err != nil {
		s.log.WarnContext(r.Context(), "backup failed", "err", err)
		w.Header().Set(errorTrailer, strings.ReplaceAll(err.Error(), "\n", " "))
		return
	}
	w.Header().Set(errorTrailer, backupWhole)
}

// The trailer after a backup holds backupWhole or what went wrong.
const (
	errorTrailer = "Kuryr-Backup"
	backupWhole  = "whole"
)

// withBody reads a request's body before anything is done for it: soon, and not much. A
// deadline for the whole request would end the context of what takes long.
func withBody(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Body != nil && r.Body != http.NoBody {
			rc := http.NewResponseController(w)
			_ = rc.SetReadDeadline(time.Now().Add(bodyTimeout)) // a test's recorder has none
			body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
			if tooBig := (*http.MaxBytesError)(nil); errors.As(err, &tooBig) {
				http.Error(w, fmt.Sprintf("the body is longer than %d bytes", maxBody), http.StatusRequestEntityTooLarge)
				return
			}
			if err != nil {
				http.Error(w, "the body could not be read", http.StatusBadRequest)
				return
			}
			_ = rc.SetReadDeadline(time.Time{})
			r.Body = io.NopCloser(bytes.NewReader(body))
		}
		next.ServeHTTP(w, r)
	})
}

func withRequest(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, _ := logging.WithRequest(r.Context(), "")
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// Serve answers on l until ctx ends, lets requests in progress finish for a short while,
// and returns nil. It closes l.
func Serve(ctx context.Context, l net.Listener, h http.Handler) error {
	return httpserve.Run(
		ctx,
		&http.Server{
			Handler: h, ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout,
			MaxHeaderBytes: maxHeader,
		},
		l,
	)
}
