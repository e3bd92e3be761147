// Package engine is a client of the Docker Engine's API. It lists what an engine has
// (networks, containers, endpoints), identifies the engine and watches its events.
//
// It translates answers and judges nothing: which object is an orphan is for its callers. A
// Lister gives them to a reconcile.Store.
// It only sends GET requests.
//
// No plugin call may wait for this client. The engine holds locks while it waits for its
// plugins, and would wait for itself.
//
// The client speaks HTTP on the engine's Unix socket. Its paths have no version, so the
// engine answers in its newest one: 1.41 of Docker 20.10 to 1.56 of Docker 29. The fields
// that the client reads are the same in all of them.
package engine

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/kuryr/kuryr/internal/backoff"
)

const (
	// requestTimeout bounds one request. An engine with thousands of containers needs seconds.
	requestTimeout = 30 * time.Second

	// defaultMaxAnswer is 128 MiB, enough for some 50,000 containers.
	defaultMaxAnswer = 128 << 20

	// maxMessage bounds the text that is quoted of an answer that refuses, in bytes.
	maxMessage = 4 << 10
)

// Client asks one engine. Its methods may be called concurrently. Each method that sends
// requests gives up after 30 seconds for each, or when ctx ends. An error of a method means
// that the engine has not answered, or not in full: what it has is unknown then. IsNotFound
// tells the one exception.
type Client struct {
	http      *http.Client
	drivers   []string
	maxAnswer int64 // bytes of one answer
}

// New returns a client of the engine at a Unix socket. The drivers are the names that the
// engine may have for this plugin; Network.Ours and Event.Ours compare with them. The first
// request connects.
func New(socket string, drivers ...string) *Client {
	return &Client{
		drivers: drivers, maxAnswer: defaultMaxAnswer,
		http: &http.Client{Transport: &http.Transport{
			MaxIdleConns: 2, IdleConnTimeout: time.Minute,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, "unix", socket)
			},
		}},
	}
}

// Close closes idle connections. A later request opens a new one.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Socket returns the path of the Unix socket that DOCKER_HOST names, and fallback if it is
// empty. It returns "" for anything but a Unix socket.
func Socket(dockerHost, fallback string) string {
	if dockerHost == "" {
		return fallback
	}
	path, ok := strings.CutPrefix(dockerHost, "unix://")
	if !ok {
		return ""
	}
	return path
}

// ours reports whether a driver's name in the engine is this plugin's. The name of a
// managed plugin has a version and may have a folder.
func (c *Client) ours(driver string) bool {
	name, _, _ := strings.Cut(driver, ":")
	return slices.ContainsFunc(c.drivers, func(own string) bool {
		return name == own || strings.HasSuffix(name, "/"+own)
	})
}

// Get decodes the answer to a GET request of a path, such as "/version", into a value.
func (c *Client) Get(ctx context.Context, path string, into any) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	body, err := c.open(ctx, path)
	if err != nil {
		return err
	}
	defer body.Close()
	limited := &io.LimitedReader{R: body, N: c.maxAnswer}
	if err := json.NewDecoder(limited).Decode(into); err != nil {
		if limited.N <= 0 {
			err = fmt.Errorf("answer exceeds %d bytes", c.maxAnswer)
		}
		return askError(path, err)
	}
	return nil
}

func (c *Client) open(ctx context.Context, path string) (io.ReadCloser, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://docker"+path, nil)
	if err != nil {
		return nil, askError(path, err)
	}
	response, err := c.http.Do(request)
	if err != nil {
		return nil, fmt.Errorf("%s%w", askPrefix, err) // the error has the path
	}
	if response.StatusCode != http.StatusOK {
		defer response.Body.Close()
		return nil, askError(path, &statusError{response.StatusCode, message(response.Body)})
	}
	return response.Body, nil
}

// askPrefix begins the errors of requests.
const askPrefix = "ask the Docker engine: "

func askError(path string, err error) error {
	return fmt.Errorf("%s%s: %w", askPrefix, path, err)
}

// message returns the "message" of an answer that refuses, "" if it has none.
func message(body io.Reader) string {
	var answer struct{ Message string }
	if json.NewDecoder(io.LimitReader(body, maxMessage)).Decode(&answer) != nil {
		return ""
	}
	return answer.Message
}

// statusError is an answer with a status other than 200.
type statusError struct {
	status  int
	message string
}

func (e *statusError) Error() string {
	text := fmt.Sprintf("status %d %s", e.status, http.StatusText(e.status))
	if e.message != "" {
		text += fmt.Sprintf(": %q", e.message)
	}
	return text
}

// IsNotFound reports whether the engine answered that it does not have the object asked for.
// A node of a swarm answers so too for networks of the swarm that it does not use.
func IsNotFound(err error) bool {
	var e *statusError
	return errors.As(err, &e) && e.status == http.StatusNotFound
}

// maxEvent bounds a line of the engine's events, in bytes.
const maxEvent = 1 << 20

// The bounds of the wait before the stream is opened again.
const (
	minBackoff = 500 * time.Millisecond
	maxBackoff = 30 * time.Second
)

// eventFilter keeps changes of networks, and what takes containers from them.
const eventFilter = `{"type":["network","container"],"event":["create","destroy","disconnect","die"]}`

// Event is a change of a network or a container.
type Event struct {
	Type   string // "network" or "container"
	Action string // "create", "destroy", "disconnect" or "die"
	ID     string // of the network or the container
	Ours   bool   // the driver of the network is this plugin
}

// Watch calls event for each event (GET /events) until ctx ends. It calls connected whenever
// the stream begins: events before that are lost, and a List begun then has their results.
// Without an engine it tries again, with backoff.
func (c *Client) Watch(ctx context.Context, connected func(), event func(Event)) {
	wait := backoff.Backoff{Min: minBackoff, Max: maxBackoff}
	for {
		began := time.Now()
		_ = c.stream(ctx, connected, func(e Event) { wait.Reset(); event(e) })
		if time.Since(began) > maxBackoff {
			wait.Reset() // the stream did not end as soon as it began
		}
		if wait.Wait(ctx) != nil {
			return
		}
	}
}

// stream reads one stream of events to its end, which is an error.
func (c *Client) stream(ctx context.Context, connected func(), event func(Event)) error {
	path := "/events?filters=" + url.QueryEscape(eventFilter)
	body, err := c.open(ctx, path)
	if err != nil {
		return err
	}
	defer body.Close()
	connected()
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, maxEvent)
	for lines.Scan() {
		var e struct {
			Type, Action string
			Actor        struct {
				ID         string
				Attributes struct{ Type string }
			}
		}
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return askError("/events", err)
		}
		event(Event{
			Type: e.Type, Action: e.Action, ID: e.Actor.ID,
			Ours: e.Type == "network" && c.ours(e.Actor.Attributes.Type),
		})
	}
	if err := lines.Err(); err != nil {
		return err
	}
	return io.EOF
}
