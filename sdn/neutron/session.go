package neutron

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/kuryr/kuryr/sdn"
)

// Agent is how the User-Agent of every request begins.
const Agent = "kuryr"

// BackgroundAgent is the User-Agent of requests that no caller waits for. Tests that count the
// requests of a call leave these out.
const BackgroundAgent = Agent + "-background"

const (
	maxAnswer   = 64 << 20 // bytes of one answer
	dialTimeout = 10 * time.Second
	connections = 16 // idle ones that are kept to one endpoint
)

var errTooLarge = errors.New("the answer is larger than 64 MiB")

// newHTTPClient returns the client that speaks to Keystone and to the services. It follows no
// redirect: a token must not go elsewhere, and a POST must not become a GET. Requests have
// their deadline from their context.
func newHTTPClient(t *tls.Config) http.Client {
	dialer := &net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second}
	transport := &http.Transport{
		Proxy: http.ProxyFromEnvironment, DialContext: dialer.DialContext,
		TLSClientConfig: t, TLSHandshakeTimeout: dialTimeout,
		MaxIdleConnsPerHost: connections, IdleConnTimeout: 90 * time.Second, ForceAttemptHTTP2: true,
	}
	return http.Client{
		Transport:     bounded{transport},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// bounded cuts answers that are too large.
type bounded struct{ *http.Transport }

// RoundTrip is http.RoundTripper's.
func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := b.Transport.RoundTrip(r)
	if err == nil {
		answer.Body = &boundedBody{answer.Body, maxAnswer}
	}
	return answer, err
}

type boundedBody struct {
	io.ReadCloser
	left int64
}

func (b *boundedBody) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, errTooLarge
	}
	n, err := b.ReadCloser.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	return n, err
}

// exchange sends a request to the service and returns its whole answer, which decode accepts. It
// repeats the request as retry.go says. It renews a refused token once: the service has done nothing
// then, so this is safe for every method.
func (c *client) exchange(
	r *http.Request, decode func([]byte) error,
) (*http.Response, []byte, error) {
	ctx := r.Context()
	var refused *session
	for n := 1; ; n++ {
		a := attempt{client: c, path: strings.TrimPrefix(r.URL.RequestURI(), c.of.root)}
		err := a.run(r, refused, decode)
		switch {
		case err == nil:
			c.budget.gain()
			if r.Method != http.MethodGet {
				// A process that is killed here has not heard of what it changed.
				failpoint.Here("neutron.change.answered")
			}
			return a.answer, a.data, nil
		case a.status == http.StatusUnauthorized && refused == nil && a.session != nil:
			refused = a.session
		case ctx.Err() != nil || n >= maxAttempts || !mayRepeat(r, a.status) || !retryable(err):
			return nil, nil, err
		case !c.budget.take() || !c.backoff(ctx, n, err):
			return nil, nil, err
		}
	}
}

// An attempt sends a request once.
type attempt struct {
	*client
	path    string // below the version, with the query
	session *session
	answer  *http.Response
	data    []byte // of the answer's body
	status  int    // 0 without a whole answer
}

func (a *attempt) run(r *http.Request, refused *session, decode func([]byte) error) error {
	ctx := r.Context()
	if ctx.Err() != nil {
		return notSent(sdn.Unavailable(context.Cause(ctx), a.who(),
			"the request was given up before it was sent"))
	}
	out, err := a.prepare(r, refused)
	if err != nil {
		return notSent(err)
	}
	if err := a.breaker.allow(); err != nil {
		return notSent(err)
	}
	limited, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	begin := a.now()
	err = a.judge(ctx, r.Method, a.fetch(out.WithContext(limited), decode))
	a.observe(Request{
		Method: r.Method, Collection: cmp.Or(collectionOf(a.path), "versions"), Status: a.status,
		Duration: a.now().Sub(begin),
	})
	if a.status != 0 || ctx.Err() == nil { // a canceled call proves nothing about the service
		a.breaker.done(unavailable(a.status, err), err)
	}
	return err
}

// prepare returns the request with the endpoint and the token of a session. It is a copy of r,
// with a body of its own. The session is another than the refused one.
func (a *attempt) prepare(r *http.Request, refused *session) (out *http.Request, err error) {
	ctx := r.Context()
	if refused == nil {
		a.session, err = a.auth.session(ctx)
	} else {
		a.session, err = a.auth.renew(ctx, refused)
	}
	if err != nil {
		return nil, err
	}
	endpoint, err := a.of.endpoint(a.session)
	if err != nil {
		return nil, err
	}
	out = r.Clone(ctx)
	if out.URL, err = url.Parse(endpoint + a.path); err != nil {
		return nil, sdn.Unavailable(err, a.who(), "its address is not a URL")
	}
	out.Host = out.URL.Host
	if r.GetBody != nil {
		if out.Body, err = r.GetBody(); err != nil {
			return nil, err
		}
	}
	out.Header.Set("Accept", "application/json")
	out.Header.Set("User-Agent", Agent)
	if sdn.IsUnawaited(ctx) {
		out.Header.Set("User-Agent", BackgroundAgent)
	}
	if a.session.token != "" {
		out.Header.Set("X-Auth-Token", a.session.token)
	}
	return out, nil
}

// fetch reads and decodes the whole answer.
func (a *attempt) fetch(r *http.Request, decode func([]byte) error) error {
	answer, err := a.http.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	data, err := io.ReadAll(answer.Body)
	switch status := answer.StatusCode; status {
	case http.StatusOK, http.StatusCreated, http.StatusAccepted:
		if err != nil {
			return fmt.Errorf("the answer broke off: %w", err)
		}
		if err := decode(data); err != nil {
			return fmt.Errorf("the answer is not what %s would say: %w", a.who(), err)
		}
	case http.StatusNoContent:
	default:
		err = &rejection{status: status, header: answer.Header, body: data}
		a.status = status
		return err
	}
	a.answer, a.data, a.status = answer, data, answer.StatusCode
	return nil
}

// judge returns the error of package sdn.
func (a *attempt) judge(ctx context.Context, method string, err error) error {
	err = a.translate(ctx, err, method, a.path)
	if a.status == http.StatusTooManyRequests || a.status == http.StatusServiceUnavailable {
		return busy{err}
	}
	return err
}

// unavailable reports whether a request that ended so has not reached the service. A 404 that is
// not the service's own is that of a proxy before it.
func unavailable(status int, err error) bool {
	return status == 0 || status >= 502 && status <= 504 ||
		status == http.StatusNotFound && sdn.IsUnavailable(err)
}
