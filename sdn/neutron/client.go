package neutron

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/kuryr/kuryr/sdn"
)

// A client sends requests to Neutron. It is the only one: whatever is asked, tried again, timed, refused or translated, is so
// here. Paths begin with a slash and are below /v2.0; ids in them are escaped by the caller with url.PathEscape.
//
// Errors are sdn's (errors.go). An error that IsUnavailable leaves open whether a change was made.
type client struct {
	auth    *authenticator
	breaker *breaker
	budget  *budget
	timeout time.Duration
	now     func() time.Time
	observe func(Request)
	backoff func(ctx context.Context, n int, err error) bool
	// of, where it is another than Neutron, is which service this client is for.
	of *service
	// before is asked before every request but those marked by beforehand: it discovers the extensions.
	before func(ctx context.Context) error
	// hasTags tells whether objects have tags, once before has returned.
	hasTags func() bool
}

// A service is one of OpenStack's beside Neutron that has the same session: where it is, and what its refusals mean.
type service struct {
	name     string // in errors
	endpoint func(*session) (string, error)
	judge    func(status int, body []byte) (fault, meaning)
}

// who returns the service that an error names when it does not answer.
func (c *client) who() string {
	if c.of != nil {
		return c.of.name
	}
	return "Neutron"
}

// get reads one object or a list. It is repeated when it fails.
func (c *client) get(ctx context.Context, path string, query url.Values, into any) error {
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	return c.do(ctx, http.MethodGet, path, 0, nil, into)
}

// post makes something. It is never repeated: look by Key before sending it again, and ask makeAgain where its answer was 429 or 503.
func (c *client) post(ctx context.Context, path string, body, into any) error {
	return c.do(ctx, http.MethodPost, path, 0, body, into)
}

// put changes something; ifRevision 0 is whatever the revision, else the error is a conflict, Stale, where it is another. Without a
// revision it is repeated when its answer is lost, so the body must say what is to be, not what is to be added; PUTs that act
// (add_router_interface, add_subports) are sent by act.
func (c *client) put(ctx context.Context, path string, ifRevision int64, body, into any) error {
	return c.do(ctx, http.MethodPut, path, ifRevision, body, into)
}

// act is put for the PUTs that do something rather than set it: like a POST it is never repeated.
func (c *client) act(ctx context.Context, path string, body, into any) error {
	return c.do(ctx, methodAct, path, 0, body, into)
}

// remove deletes something; ifRevision is as in put. It is repeated when its answer is lost. The error IsNotFound where it was not there.
func (c *client) remove(ctx context.Context, path string, ifRevision int64) error {
	return c.do(ctx, http.MethodDelete, path, ifRevision, nil, nil)
}

// methodAct is sent as PUT and repeated as little as POST.
const methodAct = "ACT"

func (c *client) do(ctx context.Context, method, path string, ifRevision int64, body, into any) error {
	if err := c.before(ctx); err != nil {
		return err
	}
	return c.send(ctx, method, path, ifRevision, body, into)
}

// send is do without the look at the extensions.
func (c *client) send(ctx context.Context, method, path string, ifRevision int64, body, into any) error {
	var refused *session
	for n := 1; ; n++ {
		s, status, err := c.attempt(ctx, refused, method, path, ifRevision, body, into)
		switch {
		case err == nil:
			c.budget.gain()
			if method != http.MethodGet {
				// Killed here is killed between any two changes; what was made, its maker never heard of.
				failpoint.Here("neutron.change.answered")
			}
			return nil
		case status == http.StatusUnauthorized && refused == nil && s != nil:
			refused = s // the token was taken back: nothing was done, so once with another is safe for every method
		case ctx.Err() != nil || n >= maxAttempts || !mayRepeat(method, ifRevision != 0, status) || !retryable(err):
			return err
		case !c.budget.take() || !c.backoff(ctx, n, err):
			return err
		}
	}
}

// retryable tells whether an error is one that time may mend; those of the breaker and of this client's own settings are not.
func retryable(err error) bool {
	return sdn.IsUnavailable(err) && !errors.Is(err, errNotSent)
}

// errNotSent marks errors of requests that never left: the breaker was open or there was no session.
var errNotSent = sdn.ErrNotSent

// notSent marks err without changing its text.
func notSent(err error) error { return unsent{err} }

type unsent struct{ error }

func (e unsent) Unwrap() []error { return []error{e.error, errNotSent} }

// attempt sends a request once. The status is 0 where there was no whole answer.
func (c *client) attempt(ctx context.Context, refused *session, method, path string, ifRevision int64, body, into any) (s *session, status int, err error) {
	if err := ctx.Err(); err != nil {
		return nil, 0, notSent(sdn.Unavailable(context.Cause(ctx), c.who(), "the request was given up before it was sent"))
	}
	if refused == nil {
		s, err = c.auth.session(ctx)
	} else {
		s, err = c.auth.renew(ctx, refused)
	}
	if err != nil {
		return nil, 0, notSent(err)
	}
	endpoint := s.endpoint
	if c.of != nil {
		if endpoint, err = c.of.endpoint(s); err != nil {
			return nil, 0, notSent(err)
		}
	}
	if err := c.breaker.allow(); err != nil {
		return nil, 0, notSent(err)
	}
	options := &gophercloud.RequestOpts{KeepResponseBody: true, OkCodes: []int{200, 201, 202, 204}}
	if body != nil {
		options.JSONBody = body
	}
	options.MoreHeaders = map[string]string{}
	if ifRevision != 0 {
		options.MoreHeaders["If-Match"] = fmt.Sprintf("revision_number=%d", ifRevision-1)
	}
	if sdn.IsUnawaited(ctx) {
		options.MoreHeaders["User-Agent"] = BackgroundAgent
	}
	verb := method
	if method == methodAct {
		verb = http.MethodPut
	}
	limited, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	begin := c.now()
	answer, err := s.provider.Request(limited, verb, endpoint+path, options)
	if err == nil {
		err = read(answer, into)
	}
	if status = statusOf(err); err == nil {
		status = answer.StatusCode
	}
	c.observe(Request{Method: verb, Collection: first(collectionOf(path), "versions"), Status: status, Duration: c.now().Sub(begin)})
	err = c.translate(ctx, err, verb, path)
	if status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable {
		err = busy{err}
	}
	if status != 0 || ctx.Err() == nil { // a caller that gave up says nothing of Neutron
		c.breaker.done(gone(status, err), err)
	}
	return s, status, err
}

// Agent is how the User-Agent of every request begins.
const Agent = "kuryr"

// BackgroundAgent is the User-Agent of requests that nobody waits for, so that who counts those of a call can tell them apart.
const BackgroundAgent = Agent + "-background"

// gone tells whether an endpoint that ended a request so is to be taken for away. A 404 that is not Neutron's is of a proxy that does not reach it.
func gone(status int, err error) bool {
	return status == 0 || status >= 502 && status <= 504 || status == http.StatusNotFound && sdn.IsUnavailable(err)
}

// read decodes a whole answer.
func read(answer *http.Response, into any) error {
	defer answer.Body.Close()
	data, err := io.ReadAll(answer.Body)
	if err != nil {
		return fmt.Errorf("the answer broke off: %w", err)
	}
	if into == nil || answer.StatusCode == http.StatusNoContent {
		return nil
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("the answer is not what Neutron would say: %w", err)
	}
	return nil
}

// collectionOf is the first part of a path, for metrics: "/ports/<id>?fields=id" is "ports".
func collectionOf(path string) string {
	path, _, _ = strings.Cut(strings.TrimPrefix(path, "/"), "?")
	name, _, _ := strings.Cut(path, "/")
	return name
}
