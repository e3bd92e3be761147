// Package neutrontest is a proxy to stand between a client and a real Neutron in tests: it counts requests, cuts an answer off,
// answers in Neutron's stead and plays the Neutron that is away.
//
// It owns nothing of Neutron's meaning: what it is not told to spoil passes unchanged. It must not be used outside of tests.
package neutrontest

import (
	"bytes"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
)

// A Call is a kind of request: its method and the first part of its path below /v2.0, such as "ports", or below Octavia's /v2/lbaas, such as
// "loadbalancers", or of a path that is below neither, such as Keystone's "v3". An empty field is any.
type Call struct{ Method, Collection string }

// String is "POST ports".
func (c Call) String() string { return c.Method + " " + c.Collection }

func (c Call) fits(other Call) bool {
	return (c.Method == "" || c.Method == other.Method) && (c.Collection == "" || c.Collection == other.Collection)
}

// An Answer is what the proxy says in Neutron's stead.
type Answer struct {
	Status int
	Header map[string]string
	Body   string
}

// A Proxy stands before a server. Its methods may be called while requests are under way.
type Proxy struct {
	URL string // "" of one that a test serves itself

	before http.Handler
	server *httptest.Server

	mu     sync.Mutex
	counts map[Call]int
	order  []Call
	rules  []*rule
	away   bool
}

type rule struct {
	call   Call
	times  int // left
	answer *Answer
	part   int           // with no answer: how many bytes of the server's body pass; -1: not even the header
	hold   chan struct{} // the request waits for it, or for its client to give up
	does   bool          // what it asks for is done meanwhile
	goes   bool          // the server is away from then on
}

// New starts a proxy before the server at target, which ends with the test.
func New(t testing.TB, target string) *Proxy {
	t.Helper()
	to, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	reverse := httputil.NewSingleHostReverseProxy(to)
	reverse.ErrorHandler = func(w http.ResponseWriter, _ *http.Request, _ error) { hangUp(w) }
	return start(t, reverse)
}

// NewBefore is New for a handler in this process.
func NewBefore(t testing.TB, h http.Handler) *Proxy {
	t.Helper()
	return start(t, h)
}

// Handler is a proxy before a handler that serves nowhere by itself.
func Handler(h http.Handler) *Proxy { return &Proxy{before: h, counts: map[Call]int{}} }

func start(t testing.TB, h http.Handler) *Proxy {
	p := Handler(h)
	p.server = httptest.NewServer(p)
	p.URL = p.server.URL
	t.Cleanup(func() {
		p.release()
		p.server.CloseClientConnections()
		p.server.Close()
	})
	return p
}

// Count is how many requests of a kind have come since Reset.
func (p *Proxy) Count(c Call) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for call, count := range p.counts {
		if c.fits(call) {
			n += count
		}
	}
	return n
}

// Calls are the requests since Reset, in their order.
func (p *Proxy) Calls() []Call {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.order)
}

// Counts are the numbers of all kinds since Reset.
func (p *Proxy) Counts() map[Call]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.counts)
}

// Reset forgets what was counted and all that is to be spoilt.
func (p *Proxy) Reset() {
	p.release()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counts, p.order, p.rules, p.away = map[Call]int{}, nil, nil, false
}

// Cut makes the server do what the next requests of a kind ask for, and hangs up instead of answering.
func (p *Proxy) Cut(c Call, times int) { p.add(&rule{call: c, times: times, part: -1}) }

// CutBody does the same after so many bytes of the answer's body.
func (p *Proxy) CutBody(c Call, times, bytes int) { p.add(&rule{call: c, times: times, part: bytes}) }

// CutAndGo does what Cut does to one request, and is away from then on: the Neutron that dies with the answer on its tongue.
func (p *Proxy) CutAndGo(c Call) { p.add(&rule{call: c, times: 1, part: -1, goes: true}) }

// Say answers the next requests of a kind without the server.
func (p *Proxy) Say(c Call, times int, a Answer) { p.add(&rule{call: c, times: times, answer: &a}) }

// Hang lets the next requests of a kind wait, without the server, until their client gives up or Reset is called.
func (p *Proxy) Hang(c Call, times int) {
	p.add(&rule{call: c, times: times, hold: make(chan struct{})})
}

// Stall is Hang, but that the server does what they ask for.
func (p *Proxy) Stall(c Call, times int) {
	p.add(&rule{call: c, times: times, hold: make(chan struct{}), does: true})
}

// Away hangs up on every request until it is called with false: the Neutron that is not there. Requests that come are counted.
func (p *Proxy) Away(away bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.away = away
}

func (p *Proxy) add(r *rule) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rules = append(p.rules, r)
}

// release lets go of the requests that hang.
func (p *Proxy) release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.rules {
		if r.hold != nil {
			close(r.hold)
			r.hold = nil
		}
	}
}

// take counts a request and gives the rule for it, nil for none; away tells that Neutron is not there.
func (p *Proxy) take(call Call) (r *rule, away bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counts[call]++
	p.order = append(p.order, call)
	for _, r := range p.rules {
		if r.times > 0 && r.call.fits(call) {
			r.times--
			kept := *r
			return &kept, p.away
		}
	}
	return nil, p.away
}

// ServeHTTP is http.Handler's.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	rule, away := p.take(callOf(r))
	switch {
	case away:
		hangUp(w)
	case rule == nil:
		p.before.ServeHTTP(w, r)
	case rule.hold != nil:
		if rule.does {
			p.before.ServeHTTP(httptest.NewRecorder(), r)
		}
		_, _ = io.Copy(io.Discard, r.Body) // else the server does not see its client go
		select {
		case <-rule.hold:
		case <-r.Context().Done():
		}
		hangUp(w)
	case rule.answer != nil:
		for name, value := range rule.answer.Header {
			w.Header().Set(name, value)
		}
		w.WriteHeader(rule.answer.Status)
		_, _ = io.WriteString(w, rule.answer.Body)
	default:
		recorder := httptest.NewRecorder()
		p.before.ServeHTTP(recorder, r)
		if rule.goes {
			p.Away(true)
		}
		if rule.part < 0 {
			hangUp(w)
			return
		}
		body := recorder.Body.Bytes()
		maps.Copy(w.Header(), recorder.Header())
		w.WriteHeader(recorder.Code)
		_, _ = io.Copy(w, bytes.NewReader(body[:min(rule.part, len(body))]))
		_ = http.NewResponseController(w).Flush()
		hangUp(w)
	}
}

func callOf(r *http.Request) Call {
	_, path, ok := strings.Cut(r.URL.Path, "/v2.0/")
	if !ok {
		if _, path, ok = strings.Cut(r.URL.Path, "/v2/lbaas/"); !ok {
			path = strings.TrimPrefix(r.URL.Path, "/")
		}
	}
	collection, _, _ := strings.Cut(path, "/")
	return Call{r.Method, collection}
}

// hangUp closes the connection without another byte.
func hangUp(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}
