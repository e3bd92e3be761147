package neutron

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"time"
)

const (
	maxAnswer   = 64 << 20 // bytes of one answer
	dialTimeout = 10 * time.Second
	connections = 16 // to one endpoint that are kept for the next request
)

var errTooLarge = errors.New("the answer is larger than 64 MiB")

// newHTTPClient returns the client that speaks to Keystone and Neutron. It follows no
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
