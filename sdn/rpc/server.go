package rpc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/kuryr/kuryr/internal/httpserve"
	"github.com/kuryr/kuryr/sdn"
)

// Times of a server.
const (
	headerTimeout = 10 * time.Second
	readTimeout   = 30 * time.Second // of a whole request
	idleTimeout   = 2 * time.Minute
	aliveInterval = 10 * time.Second // between the signs of life of a call in progress
	stallTimeout  = 2 * time.Minute  // for the client to read some of an answer
	maxHeader     = 256 << 10        // 6,000 projects
)

// HandlerOptions configure a handler.
type HandlerOptions struct {
	// Logger gets a line for each call that changes something, at debug level. nil: none.
	Logger *slog.Logger
}

type handler struct {
	HandlerOptions
	provider sdn.Provider
	methods  map[string]reflect.Value
	instance string
	alive    time.Duration // between signs of life
}

// NewHandler returns a handler that serves p at Unix sockets. A request that came by any
// other connection is refused.
func NewHandler(p sdn.Provider, o HandlerOptions) http.Handler {
	h := &handler{
		HandlerOptions: o, provider: p, methods: map[string]reflect.Value{},
		instance: uuid.NewString(), alive: aliveInterval,
	}
	if h.Logger == nil {
		h.Logger = slog.New(slog.DiscardHandler)
	}
	for name, method := range methods(p) {
		h.methods[name] = reflect.ValueOf(method)
	}
	return h
}

// endKey is the context value that is the context of Serve.
type endKey struct{}

// Serve answers with h at l until ctx ends, completes the calls in progress for a short
// time, and returns nil. The answer of a WaitPorts is lost then, and its client asks the
// next server. It closes l, which must be a Unix socket's.
func Serve(ctx context.Context, l net.Listener, h http.Handler, log *slog.Logger) error {
	return httpserve.Run(ctx, &http.Server{
		ConnContext: func(conn context.Context, _ net.Conn) context.Context {
			return context.WithValue(conn, endKey{}, ctx)
		},
		Handler: h, ReadHeaderTimeout: headerTimeout, ReadTimeout: readTimeout,
		IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}, l)
}

// ServeHTTP is http.Handler's.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if local == nil || local.Network() != "unix" {
		http.Error(w, "not a Unix socket", http.StatusForbidden)
		return
	}
	w.Header().Set(instanceHeader, h.instance)
	method, isCall := strings.CutPrefix(r.URL.Path, versionPath)
	switch {
	case r.URL.Path == Path && r.Method == http.MethodGet:
		peer := Peer{[]int{Version}, h.provider.Installation(), h.provider.Capabilities()}
		_ = json.NewEncoder(w).Encode(peer)
	case isCall && r.Method == http.MethodPost:
		h.call(w, r, method)
	default:
		http.NotFound(w, r)
	}
}

// versionPath is where calls of this version go.
var versionPath = Path + strconv.Itoa(Version) + "/"

func (h *handler) call(w http.ResponseWriter, r *http.Request, method string) {
	began := time.Now()
	a := &answer{w: w, control: http.NewResponseController(w), alive: h.alive}
	defer a.close()
	end, _ := r.Context().Value(endKey{}).(context.Context)
	isWait := end != nil && method == "WaitPorts"
	if isWait {
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		defer context.AfterFunc(end, cancel)()
		r = r.WithContext(ctx)
	}
	err := h.invoke(a, r, method)
	if isWait && end.Err() != nil {
		panic(http.ErrAbortHandler) // a lost answer makes the client ask the next server
	}
	_ = a.line(endSign, failureOf(err))
	if !isRead(method) {
		h.Logger.DebugContext(r.Context(), "sdn call",
			"method", method, "took", time.Since(began), "err", err)
	}
}

// isRead reports whether a method changes nothing.
func isRead(method string) bool {
	for _, verb := range changing {
		if strings.HasPrefix(method, verb) {
			return false
		}
	}
	return true
}

var changing = []string{
	"Add", "Apply", "Attach", "Delete", "Detach", "Ensure", "Publish", "Remove", "Set",
	"Unpublish", "Update",
}

// invoke calls the method and writes its results.
func (h *handler) invoke(a *answer, r *http.Request, method string) error {
	f, known := h.methods[method]
	if !known {
		return sdn.Unsupported("method", "%q is not known: upgrade `kuryr sdn`", method)
	}
	body, err := io.ReadAll(http.MaxBytesReader(a.w, r.Body, maxRequest))
	if err != nil {
		return sdn.Invalid("request", "", "%v", err)
	}
	a.begin() // not earlier: an answer that begins ends the reading of the request
	args, err := decodeArgs(body, f.Type())
	if err != nil {
		return err
	}
	ctx, cancel, err := contextOf(r)
	if err != nil {
		return sdn.Invalid("request", "", "%v", err)
	}
	defer cancel()
	out := f.Call(append([]reflect.Value{reflect.ValueOf(ctx)}, args...))
	last := out[len(out)-1]
	if last.Kind() == reflect.Func {
		return a.stream(last)
	}
	err, _ = last.Interface().(error)
	var some *sdn.BulkError
	if len(out) > 1 && (err == nil || errors.As(err, &some)) {
		if failed := a.result(out[0].Interface()); failed != nil {
			return failed
		}
	}
	return err
}

// contextOf returns the context of a call.
func contextOf(r *http.Request) (context.Context, context.CancelFunc, error) {
	ctx := r.Context()
	if r.Header.Get(backgroundMark) != "" {
		ctx = sdn.Unawaited(ctx)
	}
	if text := r.Header.Get(clientHeader); text != "" {
		var client sdn.Client
		if err := json.Unmarshal([]byte(text), &client); err != nil {
			return nil, nil, fmt.Errorf("header %s: %w", clientHeader, err)
		}
		ctx = sdn.WithClient(ctx, client)
	}
	if text := r.Header.Get(projectsHeader); text != "" {
		var projects []string
		if err := json.Unmarshal([]byte(text), &projects); err != nil {
			return nil, nil, fmt.Errorf("header %s: %w", projectsHeader, err)
		}
		ctx = sdn.WithProjects(ctx, projects)
	}
	text := r.Header.Get(timeoutHeader)
	if text == "" {
		return ctx, func() {}, nil
	}
	left, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return nil, nil, fmt.Errorf("header %s: %w", timeoutHeader, err)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(left))
	return ctx, cancel, nil
}

// answer writes the lines of an answer.
type answer struct {
	w       http.ResponseWriter
	control *http.ResponseController
	alive   time.Duration

	mu    sync.Mutex
	timer *time.Timer // of live; nil before begin
	ended bool
}

// begin starts the signs of life.
func (a *answer) begin() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.timer = time.AfterFunc(a.alive, a.live)
}

// stream writes what a Find method returned, up to its error, which it returns.
func (a *answer) stream(found reflect.Value) error {
	for v, failed := range found.Seq2() {
		if err, _ := failed.Interface().(error); err != nil {
			return err
		}
		if err := a.result(v.Interface()); err != nil {
			return err
		}
	}
	return nil
}

func (a *answer) result(v any) error { return a.line(resultSign, v) }

// close stops the signs of life.
func (a *answer) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ended = true
	if a.timer != nil {
		a.timer.Stop()
	}
}

func (a *answer) line(sign byte, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.write(append(append(append(make([]byte, 0, len(data)+2), sign), data...), '\n'))
}

// write must be called with the lock.
func (a *answer) write(line []byte) error {
	if err := a.control.SetWriteDeadline(time.Now().Add(stallTimeout)); err != nil {
		return err
	}
	_, err := a.w.Write(line)
	return err
}

// live shows that the call is in progress.
func (a *answer) live() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ended || a.write([]byte{'\n'}) != nil || a.control.Flush() != nil {
		return
	}
	a.timer.Reset(a.alive)
}
