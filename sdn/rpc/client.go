package rpc

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"iter"
	"log/slog"
	"net"
	"net/http"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kuryr/kuryr/internal/backoff"
	"github.com/kuryr/kuryr/sdn"
)

// Options configure a client.
type Options struct {
	// Installation is the client's installation. "" is the server's.
	Installation string
	// Known is what the server said of itself earlier. It holds until the server answers,
	// for which Dial then does not wait.
	Known *Peer
	// Learned, if set, is called when the server says something else of itself.
	Learned func(Peer)
	// Neutron is the socket of the server's REST API. If that answers, and the client's
	// socket does not exist, the server is of a version without this package. "": not known.
	Neutron string
	// Timeout bounds the wait for a server that does not listen, for callers without a
	// deadline. 0 is a minute.
	Timeout time.Duration
	// Logger is told while Dial waits. nil: not logged.
	Logger *slog.Logger
	// Observe, if set, is called after each request. The status is the HTTP status, 0
	// where the server did not answer.
	Observe func(method string, status int, took time.Duration)
}

// Times of a client.
const (
	dialTimeout     = 10 * time.Second
	silenceTimeout  = 30 * time.Second // without a byte of the answer
	defaultTimeout  = time.Minute
	greetTimeout    = time.Second
	knownTimeout    = 200 * time.Millisecond // of a server that need not be running
	idleConnTimeout = 90 * time.Second
	idleConns       = 64
)

// maxCalls is how many calls of a client are in progress, and how many that may take long
// (see isLong). The server has 512 connections, and the machine a few clients.
const maxCalls = 64

// dialBackoff is between attempts to reach a server that does not listen.
var dialBackoff = backoff.Backoff{Min: 20 * time.Millisecond, Max: 500 * time.Millisecond}

// ErrEarlier is among the causes of an unavailable error if the server is of an earlier
// version than the client.
var ErrEarlier = errors.New("upgrade and restart `kuryr sdn` first")

// errLater is the cause if the server is of a later version, without this one's protocol.
var errLater = errors.New("upgrade and restart this process")

var errSilent = errors.New("the server is silent")

// Client is the provider that a server serves. A call waits for a server that does not
// listen, until the caller's deadline. A call whose answer was lost is repeated once if
// the contract says that a repeat is the same call.
type Client struct {
	o       Options
	socket  string
	http    *http.Transport
	silence time.Duration
	// A caller may make calls while it reads the results of a Find. So those have slots of
	// their own.
	calls, longCalls chan struct{}

	mu       sync.Mutex
	peer     Peer
	instance string // of the server whose Peer this is; "" if it must be asked
	projects []string
	named    string // the projects as a header
}

// Dial returns a client of the server at a Unix socket. Without Options.Known it waits for
// the server until ctx ends.
func Dial(ctx context.Context, socket string, o Options) (*Client, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Timeout == 0 {
		o.Timeout = defaultTimeout
	}
	c := &Client{
		o: o, socket: socket, silence: silenceTimeout,
		calls: make(chan struct{}, maxCalls), longCalls: make(chan struct{}, maxCalls),
	}
	c.http = &http.Transport{
		MaxIdleConnsPerHost: idleConns, IdleConnTimeout: idleConnTimeout,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, "unix", socket)
		},
	}
	if o.Known != nil {
		c.peer = *o.Known
		_ = c.tryGreet(ctx, knownTimeout) // otherwise the first call asks
		return c, nil
	}
	wait := dialBackoff
	for logged := false; ; logged = true {
		err := c.tryGreet(ctx, greetTimeout)
		if err == nil {
			return c, nil
		}
		if !logged {
			o.Logger.InfoContext(ctx, "waiting for `kuryr sdn`", "socket", socket, "err", err)
		}
		isOther := errors.Is(err, ErrEarlier) || errors.Is(err, errLater)
		if isOther || wait.Wait(ctx) != nil {
			return nil, err
		}
	}
}

// tryGreet asks the server for its Peer, for a short time.
func (c *Client) tryGreet(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return c.greet(ctx)
}

// Close closes the connections without a call.
func (c *Client) Close() error {
	c.http.CloseIdleConnections()
	return nil
}

// Installation returns the installation.
func (c *Client) Installation() string {
	if c.o.Installation != "" {
		return c.o.Installation
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.peer.Installation
}

// Capabilities returns the server's. They are asked for again from each process that
// serves.
func (c *Client) Capabilities() sdn.Capabilities {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.peer.Capabilities
}

// who is the subject of the errors of the connection.
func (c *Client) who() string { return "the SDN at " + c.socket }

func (c *Client) unavailable(cause error, detail string) error {
	return sdn.Unavailable(cause, c.who(), "%s", detail)
}

// unsent marks the cause of an error of a call that did not reach the server.
type unsent struct{ error }

func (u unsent) Unwrap() []error { return []error{u.error, sdn.ErrNotSent} }

// greet asks the server for its Peer unless it is known.
func (c *Client) greet(ctx context.Context) error {
	c.mu.Lock()
	known := c.instance != ""
	c.mu.Unlock()
	if known {
		return nil
	}
	var peer Peer
	rq := &request{verb: http.MethodGet, path: Path, again: true, read: func(r io.Reader) error {
		return json.NewDecoder(io.LimitReader(r, maxLine)).Decode(&peer)
	}}
	if err := c.send(ctx, rq); err != nil {
		return err
	}
	if err := c.checkVersion(peer.Versions); err != nil {
		return err
	}
	c.mu.Lock()
	changed := !reflect.DeepEqual(peer, c.peer)
	c.peer, c.instance = peer, rq.instance
	c.mu.Unlock()
	if changed && c.o.Learned != nil {
		c.o.Learned(peer)
	}
	return nil
}

// checkVersion returns an error unless a server with these versions has the client's.
func (c *Client) checkVersion(served []int) error {
	switch {
	case slices.Contains(served, Version):
		return nil
	case len(served) > 0 && slices.Min(served) > Version:
		return c.unavailable(unsent{errLater}, "it is of a later version")
	}
	return c.unavailable(unsent{ErrEarlier}, "it is of an earlier version")
}

// forget makes the next call ask for the Peer, unless the instance is the one that the Peer
// is of. It reports whether it is not.
func (c *Client) forget(instance string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.instance != "" && c.instance == instance {
		return false
	}
	c.instance = ""
	return true
}

// call calls a method with a result.
func call[T any](ctx context.Context, c *Client, method string, args ...any) (out T, err error) {
	err = c.callInto(ctx, method, args, &out)
	return out, err
}

// callInto is call for a pointer to the result. It is compiled once.
func (c *Client) callInto(ctx context.Context, method string, args []any, out any) error {
	var failed error
	err := c.lines(ctx, newRequest(method, args), func(line []byte) bool {
		reflect.ValueOf(out).Elem().SetZero() // of a lost answer
		failed = c.decode(line, out)
		return failed == nil
	})
	return cmp.Or(failed, err)
}

// do calls a method without a result.
func (c *Client) do(ctx context.Context, method string, args ...any) error {
	return c.lines(ctx, newRequest(method, args), func([]byte) bool { return true })
}

// find calls a method with any number of results.
func find[T any](ctx context.Context, c *Client, method string, query any) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var failed error
		stopped := false
		rq := newRequest(method, []any{query})
		err := c.lines(ctx, rq, func(line []byte) bool {
			rq.again = false // each result is passed on once
			var v T
			if failed = c.decode(line, &v); failed != nil {
				return false
			}
			stopped = !yield(v, nil)
			return !stopped
		})
		if err = cmp.Or(failed, err); err != nil && !stopped {
			var none T
			yield(none, err)
		}
	}
}

// decode reads a result into what out points to. The server has judged by its own
// installation which objects are Foreign: those with a Key of another installation than the
// client's, and no others that have a Key.
func (c *Client) decode(line []byte, out any) error {
	if err := json.Unmarshal(line, out); err != nil {
		return c.unavailable(err, "unexpected result")
	}
	if c.o.Installation == "" {
		return nil
	}
	each(reflect.ValueOf(out).Elem(), func(v reflect.Value) {
		if m, ok := field(v, "Meta").(sdn.Meta); ok && !m.Key.IsZero() {
			v.FieldByName("Foreign").SetBool(m.Key.Owner != c.o.Installation)
		}
	})
	return nil
}

// lines makes a call and passes its results on until result returns false.
func (c *Client) lines(ctx context.Context, rq *request, result func([]byte) bool) (err error) {
	if rq.body, err = encodeArgs(rq.args); err != nil {
		return sdn.Invalid("request", "", "%v", err)
	}
	if n := len(rq.body); n > maxRequest {
		return sdn.Invalid("request", "", "has %d bytes, more than %d", n, maxRequest)
	}
	if err := c.greet(ctx); err != nil {
		if !errors.Is(err, sdn.ErrNotSent) { // the lost answer was not the call's
			err = c.unavailable(unsent{err}, "the call was not sent")
		}
		return err
	}
	if _, served := sdn.ClientOf(ctx); !served {
		for _, arg := range rq.args {
			each(reflect.ValueOf(arg), c.name)
		}
	}
	var failed *failure
	rq.read = func(r io.Reader) (err error) {
		failed, err = readAnswer(r, result)
		return err
	}
	if err := c.send(ctx, rq); err != nil {
		return err
	}
	if c.forget(rq.instance) { // the server was restarted
		_ = c.tryGreet(ctx, greetTimeout) // otherwise the next call asks
	}
	return failed.err()
}

// name remembers the projects that an argument names. Each call tells them to the server,
// which forgets them with its process.
func (c *Client) name(v reflect.Value) {
	project, _ := field(v, "Project").(string)
	projects, _ := field(v, "Projects").([]string)
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range slices.Concat(projects, []string{project}) {
		if p != "" && !slices.Contains(c.projects, p) {
			c.projects = append(c.projects, p)
			text, _ := json.Marshal(c.projects) // of strings, which have a form
			c.named = string(text)
		}
	}
}

// request is a request with what reads its answer.
type request struct {
	verb, path string
	method     string // of the provider; "" for the greeting
	args       []any
	body       []byte
	again      bool // it may be repeated if the answer is lost
	read       func(io.Reader) error
	instance   string // of the server that answered
}

func newRequest(method string, args []any) *request {
	return &request{
		verb: http.MethodPost, path: versionPath + method, method: method, args: args, again: isRepeatable(args),
	}
}

// outcome is how an attempt ended.
type outcome int

const (
	answered outcome = iota // also if the answer is an error
	unheard                 // no connection
	lost                    // it was sent, and has no whole answer
)

// isLong reports whether a method may take as long as its caller likes.
func isLong(method string) bool { return method == "WaitPorts" || strings.HasPrefix(method, "Find") }

// send sends a request and reads the answer.
func (c *Client) send(ctx context.Context, rq *request) error {
	limit, bounded := ctx.Deadline()
	if !bounded {
		limit = time.Now().Add(c.o.Timeout)
	}
	patience, cancel := context.WithDeadline(ctx, limit)
	defer cancel()
	slots := c.calls
	if isLong(rq.method) {
		slots = c.longCalls
	}
	select {
	case slots <- struct{}{}:
		defer func() { <-slots }()
	case <-patience.Done():
		return c.unavailable(unsent{context.Cause(patience)}, "too many calls are in progress")
	}
	wait := dialBackoff
	earlier := 0
	for isLost := false; ; {
		if ctx.Err() != nil && !isLost {
			return c.unavailable(unsent{context.Cause(ctx)}, "the call was given up")
		}
		how, err := c.attempt(ctx, rq)
		switch {
		case how == answered:
			return err
		case how == unheard:
			c.forget("")
			if earlier++; !c.isEarlier() {
				earlier = 0
			}
			if earlier >= sureOfEarlier {
				return c.unavailable(unsent{ErrEarlier}, "it is of an earlier version")
			}
			if wait.Wait(patience) == nil {
				continue
			}
			if !isLost {
				err = unsent{err}
			}
			return c.unavailable(err, "no connection")
		case isLost || !rq.again || ctx.Err() != nil:
			return c.unavailable(err, "the answer was lost")
		}
		isLost = true
		c.forget("")
	}
}

// sureOfEarlier is how many times in a row isEarlier must hold: a server that ends closes
// its sockets one after the other.
const sureOfEarlier = 3

// isEarlier reports whether the server has a REST API and not this protocol.
func (c *Client) isEarlier() bool {
	if _, err := os.Lstat(c.socket); c.o.Neutron == "" || !errors.Is(err, fs.ErrNotExist) {
		return false
	}
	conn, err := net.DialTimeout("unix", c.o.Neutron, dialTimeout)
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}

// attempt sends a request once.
func (c *Client) attempt(ctx context.Context, rq *request) (how outcome, err error) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	silence := time.AfterFunc(c.silence, func() { stop(errSilent) })
	defer silence.Stop()
	defer func() {
		if how == lost && ctx.Err() != nil {
			err = context.Cause(ctx)
		}
	}()
	hr, err := c.prepare(ctx, rq)
	if err != nil {
		return answered, sdn.Invalid("request", "", "%v", err)
	}
	began, status := time.Now(), 0
	if c.o.Observe != nil {
		defer func() { c.o.Observe(rq.method, status, time.Since(began)) }()
	}
	r, err := c.http.RoundTrip(hr)
	var dial *net.OpError
	if errors.As(err, &dial) && dial.Op == "dial" {
		return unheard, err
	}
	if err != nil {
		return lost, err
	}
	defer r.Body.Close()
	rq.instance = r.Header.Get(instanceHeader)
	switch r.StatusCode {
	case http.StatusOK:
		err := rq.read(&watched{r.Body, silence, c.silence})
		if err != nil {
			return lost, err
		}
		status = r.StatusCode
		return answered, nil
	case http.StatusNotFound:
		status = r.StatusCode
		return answered, c.unavailable(unsent{ErrEarlier}, "it is of an earlier version")
	}
	status = r.StatusCode
	return answered, c.unavailable(nil, "it answers "+r.Status)
}

// prepare returns the HTTP request.
func (c *Client) prepare(ctx context.Context, rq *request) (*http.Request, error) {
	hr, err := http.NewRequestWithContext(ctx, rq.verb, "http://sdn"+rq.path, bytes.NewReader(rq.body))
	if err != nil {
		return nil, err
	}
	if limit, ok := ctx.Deadline(); ok {
		hr.Header.Set(timeoutHeader, strconv.FormatInt(int64(time.Until(limit)), 10))
	}
	if sdn.IsUnawaited(ctx) {
		hr.Header.Set(backgroundMark, "1")
	}
	c.mu.Lock()
	named := c.named
	c.mu.Unlock()
	if named != "" {
		hr.Header.Set(projectsHeader, named)
	}
	if client, ok := sdn.ClientOf(ctx); ok {
		text, err := json.Marshal(client)
		if err != nil {
			return nil, err
		}
		hr.Header.Set(clientHeader, string(text))
	}
	return hr, nil
}

// watched reads a body while a timer waits for its next byte.
type watched struct {
	body  io.Reader
	timer *time.Timer
	limit time.Duration
}

// Read is io.Reader's.
func (w *watched) Read(p []byte) (int, error) {
	w.timer.Reset(w.limit)
	defer w.timer.Stop()
	return w.body.Read(p)
}
