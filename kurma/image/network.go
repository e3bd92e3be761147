package image

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"
)

// network is how hosts are spoken to: with TLS that is verified, and in plain where that is allowed.
type network struct {
	transport http.RoundTripper
	insecure  []string
}

func newNetwork(c Config) *network {
	n := &network{c.Transport, c.Insecure}
	if n.transport == nil {
		t := http.DefaultTransport.(*http.Transport).Clone()
		t.ResponseHeaderTimeout = 30 * time.Second
		t.DisableCompression = true // offsets and digests are of what is sent
		n.transport = t
	}
	return n
}

// allowed tells whether the configuration lets the host be spoken to without TLS.
func (n *network) allowed(host string) bool {
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = host
	}
	return slices.ContainsFunc(n.insecure, func(h string) bool { return strings.EqualFold(h, host) || strings.EqualFold(h, name) })
}

// loopback tells whether the host is this machine by its name.
func loopback(host string) bool {
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = host
	}
	ip := net.ParseIP(strings.Trim(name, "[]"))
	return name == "localhost" || ip != nil && ip.IsLoopback()
}

var errPlain = errors.New("plain http is refused: use https, give the digest, or allow the host by kurma.insecure")

// guard lets requests without TLS through to hosts that plain says, redirects among them.
type guard struct {
	next  http.RoundTripper
	plain func(host string) bool
}

// RoundTrip is http.RoundTripper.
func (g guard) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme != "https" && !g.plain(r.URL.Host) {
		if r.Body != nil {
			_ = r.Body.Close()
		}
		return nil, fmt.Errorf("%s: %w", r.URL.Host, errPlain)
	}
	return g.next.RoundTrip(r)
}

// client speaks HTTP. anyPlain is for what has a digest, which makes the way it comes harmless.
func (n *network) client(anyPlain bool) *http.Client {
	return &http.Client{Transport: guard{n.transport, func(host string) bool { return anyPlain || n.allowed(host) }}}
}

// stall is how long a download may stand still.
const stall = time.Minute

var errStalled = fmt.Errorf("nothing came for %s", stall)

// watched ends a download's context when nothing comes for the time of a stall.
func watched(ctx context.Context) (_ context.Context, alive func(), stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(stall, func() { cancel(errStalled) })
	return ctx, func() { timer.Reset(stall) }, func() { timer.Stop(); cancel(nil) }
}
