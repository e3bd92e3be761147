package neutronlab

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"time"
)

// Front is a server that stands before Neutron, or Keystone, on the central host.
type Front struct {
	// Endpoint is what Kuryr takes for the service's own.
	Endpoint string
	server   *http.Server
}

// NewFront starts a server before the one at a URL, which answers until Close: over TLS
// with secure, in plain text where that is nil. By wrap it does something else than pass
// all on; nil does that.
func (l *Lab) NewFront(
	ctx context.Context, before string, secure *tls.Config,
	wrap func(*httputil.ReverseProxy) http.Handler,
) (*Front, error) {
	to, err := url.Parse(before)
	if err != nil {
		return nil, err
	}
	listener, err := l.Central.Listen(ctx, "tcp", netip.AddrPortFrom(Management.Addr(), 0).String())
	if err != nil {
		return nil, err
	}
	proxy := &httputil.ReverseProxy{
		Transport: &http.Transport{DialContext: l.Central.Dial, MaxIdleConnsPerHost: 32},
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(to)
			r.Out.Host = r.In.Host // links to next pages lead here
		},
	}
	var handler http.Handler = proxy
	if wrap != nil {
		handler = wrap(proxy)
	}
	// Clients that hang up are for the tests to notice.
	f := &Front{server: &http.Server{
		ReadHeaderTimeout: time.Minute, Handler: handler, ErrorLog: log.New(io.Discard, "", 0),
	}}
	proxy.ErrorLog = f.server.ErrorLog
	scheme := "http"
	if secure != nil {
		listener, scheme = tls.NewListener(listener, secure), "https"
	}
	f.Endpoint = scheme + "://" + listener.Addr().String()
	go func(on net.Listener) { _ = f.server.Serve(on) }(listener)
	return f, nil
}

// Close ends the server and what it was asked and has not answered.
func (f *Front) Close() error {
	if err := f.server.Close(); err != nil {
		return fmt.Errorf("end the proxy before %s: %w", f.Endpoint, err)
	}
	return nil
}
