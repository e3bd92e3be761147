package neutron

import (
	"bytes"
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
	"github.com/kuryr/kuryr/sdn"
)

// A client sends requests to one service. The methods of collections use get, post, put and
// remove. Calls of gophercloud's typed packages use api, whose transport the client is. Both ways
// meet in exchange (session.go), which alone has the token, deadlines, retries and the translation
// of errors.
//
// Paths begin with a slash and are below the version. Their ids are escaped by url.PathEscape.
// Errors are those of package sdn. IsUnavailable leaves open whether a change was made.
type client struct {
	of      *service
	auth    *authenticator
	http    http.Client
	breaker *breaker
	budget  *budget
	timeout time.Duration
	now     func() time.Time
	observe func(Request)
	backoff func(ctx context.Context, n int, err error) bool
	// before runs before every request but those of send. It discovers the extensions.
	before func(ctx context.Context) error
	// hasTags reports whether objects have tags, after before has returned.
	hasTags func() bool
}

// A service is one of OpenStack's: its address and the meaning of its refusals.
type service struct {
	name     string // in errors
	root     string // of its version, in the URLs of requests
	typed    string // before the paths of gophercloud's typed packages
	endpoint func(*session) (string, error)
	judge    func(status int, body []byte) (fault, meaning)
}

// neutronService is Neutron.
var neutronService = &service{
	name: "Neutron", root: "/v2.0", typed: "/v2.0/", judge: judgeNeutron,
	endpoint: func(s *session) (string, error) { return s.endpoint, nil },
}

// who returns the service that an error names when it does not answer.
func (c *client) who() string { return c.of.name }

// get reads one object or a list. It is repeated when it fails.
func (c *client) get(ctx context.Context, path string, query url.Values, into any) error {
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	return c.do(ctx, http.MethodGet, path, 0, nil, into)
}

// post creates an object. It is never repeated: look for its Key before it is sent again, and ask
// makeAgain after a 429 or a 503.
func (c *client) post(ctx context.Context, path string, body, into any) error {
	return c.do(ctx, http.MethodPost, path, 0, body, into)
}

// put changes an object. It fails as Stale if the object has another revision than ifRevision; 0
// matches all. Without a revision it is repeated when its answer is lost, so the body must be a value
// and not an addition.
func (c *client) put(ctx context.Context, path string, ifRevision int64, body, into any) error {
	return c.do(ctx, http.MethodPut, path, ifRevision, body, into)
}

// remove deletes an object; ifRevision is that of put. It is repeated when its answer is lost. The
// error IsNotFound if the object is absent.
func (c *client) remove(ctx context.Context, path string, ifRevision int64) error {
	return c.do(ctx, http.MethodDelete, path, ifRevision, nil, nil)
}

func (c *client) do(
	ctx context.Context, method, path string, ifRevision int64, body, into any,
) error {
	if err := c.before(ctx); err != nil {
		return err
	}
	return c.send(ctx, method, path, ifRevision, body, into)
}

// send is do without before.
func (c *client) send(
	ctx context.Context, method, path string, ifRevision int64, body, into any,
) error {
	var content io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return err
		}
		content = bytes.NewReader(data)
	}
	r, err := http.NewRequestWithContext(ctx, method, placeholder+c.of.root+path, content)
	if err != nil {
		return notSent(sdn.Unavailable(err, c.who(), "the request has no valid URL"))
	}
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	if ifRevision != 0 {
		r.Header.Set("If-Match", fmt.Sprintf("revision_number=%d", ifRevision-1))
	}
	//nolint:bodyclose // exchange has read and closed it
	_, _, err = c.exchange(r, func(data []byte) error {
		if into == nil {
			return nil
		}
		return json.Unmarshal(data, into)
	})
	return err
}

// placeholder is the address in requests that no session has given an endpoint yet.
const placeholder = "http://service"

// api returns the client for calls of gophercloud's typed packages. Translate their errors by
// typed, and mark those that must not be repeated by once.
func (c *client) api() *gophercloud.ServiceClient {
	return &gophercloud.ServiceClient{
		ProviderClient: &gophercloud.ProviderClient{HTTPClient: http.Client{Transport: c}},
		ResourceBase:   placeholder + c.of.typed,
	}
}

// RoundTrip is http.RoundTripper's, for typed calls. An answer that refuses is an error.
func (c *client) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body != nil {
		defer r.Body.Close() // each attempt has a copy
	}
	if err := c.before(r.Context()); err != nil {
		return nil, err
	}
	answer, data, err := c.exchange(r, func(data []byte) error {
		if len(data) == 0 {
			return nil
		}
		var any json.RawMessage
		return json.Unmarshal(data, &any)
	})
	if err != nil {
		return nil, err
	}
	answer.Body = io.NopCloser(bytes.NewReader(data))
	return answer, nil
}

// typed returns the error of RoundTrip, which http.Client wraps. Any other error of a typed call is
// about an answer that gophercloud does not understand.
func (c *client) typed(err error) error {
	if err == nil {
		return nil
	}
	var wrapped *url.Error // the outermost, which is http.Client's
	if errors.As(err, &wrapped) {
		return wrapped.Err
	}
	return sdn.Unavailable(err, c.who(), "its answer is not one of its API")
}

// collectionOf returns the first part of a path, for metrics: "/ports/<id>?fields=id" is "ports".
func collectionOf(path string) string {
	path, _, _ = strings.Cut(strings.TrimPrefix(path, "/"), "?")
	name, _, _ := strings.Cut(path, "/")
	return name
}
