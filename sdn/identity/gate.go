//go:build linux

package identity

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/kuryr/kuryr/internal/httpserve"
	"github.com/kuryr/kuryr/internal/logging"
	"github.com/kuryr/kuryr/internal/metrics"
	"github.com/kuryr/kuryr/internal/rootsock"
)

// Bounds of a request and of its connection.
const (
	headerTimeout  = 10 * time.Second
	readTimeout    = 30 * time.Second // of the whole request, its body included
	requestTimeout = 60 * time.Second // until the answer
	writeTimeout   = 2 * time.Minute
	idleTimeout    = 2 * time.Minute
	maxHeader      = 16 << 10
)

// GateConfig is what a gate stands before.
type GateConfig struct {
	API http.Handler
	// Identity tells whose a token is, and serves its own API beside. nil: every client is root.
	Identity *Service
	// As puts who asks into a request's context, for API. Root is who asks where Identity is
	// nil: the zero Identity.
	As func(context.Context, Identity) context.Context
	// Rate is how many requests of one token or user are served in a second, on average;
	// twice as many in a burst. 0 is no bound. Root has none.
	Rate    int
	Metrics *metrics.API
}

// NewGate gives the handler.
func NewGate(c GateConfig) http.Handler {
	g := &gate{
		GateConfig: c, clients: newBuckets(float64(c.Rate), 2*c.Rate),
		failures: newBuckets(failuresPerSecond, failuresAtOnce),
		asking:   &turns{most: askingAtOnce}, calls: &turns{most: callsAtOnce},
	}
	return http.HandlerFunc(g.serve)
}

// Of wrong credentials one address may show so many.
const (
	failuresPerSecond = 2
	failuresAtOnce    = 20
)

// askingAtOnce is how many requests for a token one address may have in flight, and
// callsAtOnce how many requests one token or user.
const (
	askingAtOnce = 32
	callsAtOnce  = 128
)

type gate struct {
	GateConfig
	clients  *buckets // by credential, or by address where there is none
	failures *buckets // by address
	asking   *turns   // for a token, by address: passwords take their time, and those from elsewhere wait for them
	calls    *turns   // in progress, by credential: a connection with one gives way to no other
}

func (g *gate) serve(w http.ResponseWriter, r *http.Request) {
	began := time.Now()
	id := "req-" + uuid.NewString()
	w.Header().Set("X-Openstack-Request-Id", id)
	ctx, _ := logging.WithRequest(r.Context(), id)
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if _, known := ctx.Value(peerKey{}).(string); !known {
		ctx = context.WithValue(ctx, peerKey{}, r.RemoteAddr)
	}
	answer := &watched{ResponseWriter: w, status: http.StatusOK}
	noun := nounOf(r.URL.Path)
	defer func() { g.Metrics.Done(methodOf(r.Method), noun, answer.status, time.Since(began)) }()
	if g.Identity == nil {
		g.API.ServeHTTP(answer, r.WithContext(g.As(ctx, Identity{})))
		return
	}
	g.admit(answer, r.WithContext(ctx), noun)
}

// admit serves who shows a token, and to others what gives one. Wrong credentials from an
// address do not lock out those that show a right one, which yet does not let them try
// others: what a request for a token shows is in its body.
func (g *gate) admit(w *watched, r *http.Request, noun string) {
	from := addressOf(r.RemoteAddr)
	who, ok := g.Identity.Identify(r.Header.Get("X-Auth-Token"))
	client := who.Credential
	if !ok {
		client = "address " + from
	} else {
		if !g.calls.enter(client) {
			g.refuse(w, r, "rate", "Too many requests with this token are in progress.")
			return
		}
		defer g.calls.leave(client)
		httpserve.Authenticated(r.Context())
	}
	asksForToken := r.Method == http.MethodPost && noun == nounIdentity
	if (!ok || asksForToken) && !g.failures.left(from) {
		g.refuse(w, r, "failures", "Too many requests with wrong credentials came from this address.")
		return
	}
	if asksForToken {
		if !g.asking.enter(from) {
			g.refuse(w, r, "rate", "Too many requests for a token from this address are in progress.")
			return
		}
		defer g.asking.leave(from)
	}
	switch {
	case !g.clients.take(client):
		g.refuse(w, r, "rate", "Too many requests came with this token or from this address.")
	case r.URL.Path == "/" && (r.Method == http.MethodGet || r.Method == http.MethodHead):
		g.Identity.ServeVersions(w, r)
	case strings.TrimSuffix(r.URL.Path, "/") == LoadBalancing &&
		(r.Method == http.MethodGet || r.Method == http.MethodHead):
		g.API.ServeHTTP(w, r) // the versions of that API, which all clients may read
	case noun == nounIdentity:
		g.Identity.ServeHTTP(w, r)
	case !ok:
		g.Identity.Refuse(w, r, http.StatusUnauthorized, "")
	default:
		g.API.ServeHTTP(w, r.WithContext(g.As(r.Context(), who)))
	}
	if w.status == http.StatusUnauthorized {
		g.failures.take(from)
		g.Metrics.Refused("unauthenticated")
	}
}

func (g *gate) refuse(w http.ResponseWriter, r *http.Request, reason, message string) {
	w.Header().Set("Retry-After", "1")
	g.Metrics.Refused(reason)
	g.Identity.Refuse(w, r, http.StatusTooManyRequests, message)
}

type peerKey struct{}

// PeerOf tells from where a request has come: "uid 0", or an address with its port.
func PeerOf(ctx context.Context) string {
	peer, _ := ctx.Value(peerKey{}).(string)
	return peer
}

// Serve answers on l until ctx ends, lets requests in progress finish for a short while,
// and returns nil. It closes l. Over TCP every host may connect, and a client that shows
// a token is known. At a Unix socket every client is known.
func Serve(ctx context.Context, l net.Listener, h http.Handler, log *slog.Logger) error {
	run := httpserve.RunPublic
	if l.Addr().Network() == "unix" {
		run = httpserve.Run
	}
	return run(ctx, &http.Server{
		Handler: h, ReadHeaderTimeout: headerTimeout, ReadTimeout: readTimeout,
		WriteTimeout: writeTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		ConnContext: func(ctx context.Context, conn net.Conn) context.Context {
			if unix, ok := conn.(*net.UnixConn); ok {
				if uid, err := rootsock.PeerUID(unix); err == nil {
					return context.WithValue(ctx, peerKey{}, fmt.Sprintf("uid %d", uid))
				}
			}
			return ctx
		},
	}, l)
}

// watched notes the status of an answer.
type watched struct {
	http.ResponseWriter
	status int
}

// WriteHeader notes the status.
func (w *watched) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap is for http.ResponseController.
func (w *watched) Unwrap() http.ResponseWriter { return w.ResponseWriter }

const nounIdentity, nounOther = "identity", "other"

// nouns are the collections that are told apart in metrics.
var nouns = map[string]bool{
	"networks": true, "subnets": true, "subnetpools": true, "ports": true, "routers": true,
	"floatingips": true, "security-groups": true,
	"security-group-rules": true, "address-groups": true, "trunks": true, "qos": true, "quotas": true, "extensions": true,
	"network-ip-availabilities": true,
	"loadbalancers":             true, "listeners": true, "pools": true, "healthmonitors": true,
}

// nounOf is a path's collection, of a small set of words.
func nounOf(path string) string {
	path, balancing := strings.CutPrefix(path, LoadBalancing+"/")
	first, rest, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	switch {
	case (first == "v3" || first == "identity") && !balancing:
		return nounIdentity
	case first == "v2.0", first == "v2":
		rest = strings.TrimPrefix(rest, "lbaas/")
	default:
		return nounOther
	}
	noun, _, _ := strings.Cut(rest, "/")
	if noun = strings.TrimSuffix(noun, ".json"); nouns[noun] {
		return noun
	}
	return nounOther
}

func methodOf(method string) string {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodDelete:
		return method
	}
	return nounOther
}
