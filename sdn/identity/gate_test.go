//go:build linux

package identity

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kuryr/kuryr/internal/metrics"
	"github.com/kuryr/kuryr/internal/rootsock"
	"github.com/prometheus/client_golang/prometheus"
)

const adminToken, readerToken = "admin-token-0123456789", "reader-token-0123456789"

type whoKey struct{}

// gateWorld is a gate before an API that says who asked.
type gateWorld struct {
	gate     GateConfig
	handler  http.Handler
	registry *prometheus.Registry
}

func newGateWorld(t *testing.T, rate int, open bool) *gateWorld {
	t.Helper()
	set, err := ParseTokens(
		strings.NewReader("token "+adminToken+" ops admin root\ntoken "+readerToken+" blue reader eve\n"),
		"tokens",
	)
	if err != nil {
		t.Fatal(err)
	}
	w := &gateWorld{registry: prometheus.NewRegistry()}
	c := GateConfig{
		API: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			who, known := r.Context().Value(whoKey{}).(Identity)
			if _, limited := r.Context().Deadline(); !known || !limited {
				http.Error(w, "nobody, or for ever", http.StatusInternalServerError)
				return
			}
			_, _ = fmt.Fprintf(w, "%s/%s/%s from %s", who.Project, who.Name, who.Role, PeerOf(r.Context()))
		}),
		As: func(ctx context.Context, id Identity) context.Context {
			return context.WithValue(ctx, whoKey{}, id)
		},
		Rate: rate, Metrics: metrics.NewAPI(w.registry),
	}
	if !open {
		if c.Identity, err = New(Config{
			Tokens: func() *TokenSet { return set }, Key: []byte(strings.Repeat("k", 32)),
		}); err != nil {
			t.Fatal(err)
		}
	}
	w.gate, w.handler = c, NewGate(c)
	return w
}

func (w *gateWorld) ask(method, path, token, from string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, nil)
	r.RemoteAddr = from + ":1"
	if token != "" {
		r.Header.Set("X-Auth-Token", token)
	}
	rec := httptest.NewRecorder()
	w.handler.ServeHTTP(rec, r)
	return rec
}

// count is a counter's value.
func (w *gateWorld) count(t *testing.T, name string, labels ...string) float64 {
	t.Helper()
	families, err := w.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			var got []string
			for _, l := range m.GetLabel() {
				got = append(got, l.GetValue())
			}
			if strings.Join(got, " ") == strings.Join(labels, " ") {
				return m.GetCounter().GetValue()
			}
		}
	}
	return 0
}

func TestWhoAsks(t *testing.T) {
	t.Parallel()
	w := newGateWorld(t, 0, false)
	for name, tc := range map[string]struct {
		path, token string
		status      int
		has         string
	}{
		"administrator":  {"/v2.0/networks", adminToken, 200, "ops/root/admin from 192.0.2.1:1"},
		"reader":         {"/v2.0/networks", readerToken, 200, "blue/eve/reader"},
		"nobody":         {"/v2.0/networks", "", 401, "requires authentication"},
		"nobody's below": {"/v2.0/networks/x", "", 401, "requires authentication"},
		"wrong":          {"/v2.0/networks", adminToken + "x", 401, "requires authentication"},
		"versions":       {"/", "", 200, `"id":"v2.0"`},
		"balancers":      {"/load-balancer/v2/lbaas/loadbalancers", "", 401, "requires authentication"},
		"their versions": {"/load-balancer/", "", 500, "nobody"}, // are the API's to tell, to all clients
		"identity":       {"/v3", "", 200, `"id":"v3.`},
		"identity of":    {"/v3/projects", "", 401, "requires authentication"},
		"elsewhere":      {"/admin/status", "", 401, "requires authentication"},
	} {
		rec := w.ask("GET", tc.path, tc.token, "192.0.2.1")
		if rec.Code != tc.status || !strings.Contains(rec.Body.String(), tc.has) ||
			!strings.HasPrefix(rec.Header().Get("X-Openstack-Request-Id"), "req-") {
			t.Errorf("%s: %d %s %v", name, rec.Code, rec.Body, rec.Header())
		}
		if rec.Code == 401 && !strings.HasPrefix(rec.Header().Get("WWW-Authenticate"), "Keystone uri=") {
			t.Errorf("%s: WWW-Authenticate is %q", name, rec.Header().Get("WWW-Authenticate"))
		}
	}
	if n := w.count(t, "kuryr_api_requests_total", "200", "GET", "networks"); n != 2 {
		t.Errorf("%v requests were counted", n)
	}
	if n := w.count(t, "kuryr_api_refused_total", "unauthenticated"); n != 6 {
		t.Errorf("%v refusals were counted", n)
	}
}

// One client's flood is its own: another's requests are served.
func TestRate(t *testing.T) {
	t.Parallel()
	w := newGateWorld(t, 1, false)
	served, refused := 0, 0
	for range 20 {
		switch rec := w.ask("GET", "/v2.0/ports", readerToken, "192.0.2.1"); rec.Code {
		case 200:
			served++
		case 429:
			refused++
			if rec.Header().Get("Retry-After") == "" || !strings.Contains(rec.Body.String(), "Too Many Requests") {
				t.Errorf("%v %s", rec.Header(), rec.Body)
			}
		default:
			t.Errorf("%d %s", rec.Code, rec.Body)
		}
	}
	if served < 2 || served > 4 || refused < 16 {
		t.Errorf("%d were served, %d refused", served, refused)
	}
	if rec := w.ask("GET", "/v2.0/ports", adminToken, "192.0.2.1"); rec.Code != 200 {
		t.Errorf("another token: %d", rec.Code)
	}
	if n := w.count(t, "kuryr_api_refused_total", "rate"); n != float64(refused) {
		t.Errorf("%v refusals were counted, want %d", n, refused)
	}
}

// An address that guesses is refused. Clients with a right token from there are not, nor
// are those from elsewhere.
func TestGuessing(t *testing.T) {
	t.Parallel()
	w := newGateWorld(t, 0, false)
	last := 0
	for i := range failuresAtOnce + 5 {
		last = w.ask("GET", "/v2.0/ports", fmt.Sprintf("guess-number-%020d", i), "[2001:db8::1]").Code
	}
	if last != 429 {
		t.Errorf("the last guess: %d", last)
	}
	if rec := w.ask("POST", "/v3/auth/tokens", "", "[2001:db8::2]"); rec.Code != 429 {
		t.Errorf("from beside it: %d", rec.Code)
	}
	if rec := w.ask("GET", "/v2.0/ports", adminToken, "[2001:db8::1]"); rec.Code != 200 {
		t.Errorf("with a right token: %d", rec.Code)
	}
	if rec := w.ask("POST", "/v3/auth/tokens", readerToken, "[2001:db8::1]"); rec.Code != 429 {
		t.Errorf("another try, with a right token beside it: %d", rec.Code)
	}
	if rec := w.ask("GET", "/v2.0/ports", "guess-number-x", "[2001:db8:1::1]"); rec.Code != 401 {
		t.Errorf("from elsewhere: %d", rec.Code)
	}
}

// One address has so many requests for a token in progress, so that those from elsewhere do
// not wait for all of its passwords.
func TestAskingAtOnce(t *testing.T) {
	t.Parallel()
	w := newGateWorld(t, 0, false)
	post := func(from string, body io.Reader) int {
		r := httptest.NewRequest("POST", "/v3/auth/tokens", body)
		r.RemoteAddr = from + ":1"
		rec := httptest.NewRecorder()
		w.handler.ServeHTTP(rec, r)
		return rec.Code
	}
	codes := make(chan int)
	var bodies []*io.PipeWriter
	for range askingAtOnce {
		read, write := io.Pipe()
		go func() { codes <- post("192.0.2.1", read) }()
		if _, err := write.Write([]byte("{")); err != nil {
			// returns when it is read, which is when the request is in progress
			t.Fatal(err)
		}
		bodies = append(bodies, write)
	}
	if code := post("192.0.2.1", strings.NewReader("{}")); code != 429 {
		t.Errorf("one more: %d", code)
	}
	if code := post("192.0.2.2", strings.NewReader("{}")); code != 400 {
		t.Errorf("from elsewhere: %d", code)
	}
	for _, body := range bodies {
		_ = body.Close()
		if code := <-codes; code != 400 {
			t.Errorf("one that was under way: %d", code)
		}
	}
	if code := post("192.0.2.1", strings.NewReader("{}")); code != 400 {
		t.Errorf("later: %d", code)
	}
}

func TestBucketsAreBounded(t *testing.T) {
	t.Parallel()
	b := newBuckets(1, 1)
	if !b.take("first") || b.take("first") {
		t.Error("the first does not have one")
	}
	for i := range 3 * maxBuckets {
		b.take(fmt.Sprint(i))
		if i%1000 == 0 && b.take("first") {
			t.Fatalf("who comes again was forgotten after %d others", i)
		}
	}
	if n := len(b.young) + len(b.old); n > 2*maxBuckets {
		t.Errorf("%d are kept", n)
	}
}

// On a socket that is root's, who has connected is root, whatever it shows.
func TestSocket(t *testing.T) {
	t.Parallel()
	w := newGateWorld(t, 1, true)
	path := filepath.Join(t.TempDir(), "s")
	l, err := rootsock.Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- Serve(ctx, l, w.handler, slog.New(slog.DiscardHandler)) }()
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}
	client := http.Client{Transport: &http.Transport{DialContext: dial}}
	for range 10 {
		resp, err := client.Get("http://kuryr/v2.0/networks")
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if want := fmt.Sprintf("// from uid %d", os.Geteuid()); resp.StatusCode != 200 || string(body) != want {
			t.Fatalf("%d %s, want %s", resp.StatusCode, body, want)
		}
	}
	client.CloseIdleConnections()
	cancel()
	if err := <-served; err != nil {
		t.Error(err)
	}
}

func TestWords(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]string{
		"/v2.0/networks": "networks", "/v2.0/ports/x/tags": "ports", "/v2.0/ports.json": "ports",
		"/v2.0/qos/policies": "qos", "/v2.0/x": "other",
		"/": "other", "": "other", "/v3/auth/tokens": "identity", "/identity/v3": "identity",
		"/v3x": "other", "/v2.0": "other",
		"/v2.0/lbaas/loadbalancers": "loadbalancers", "/v2/lbaas/pools/x/members": "pools",
		"/load-balancer/v2/lbaas/listeners": "listeners", "/load-balancer/v2.0/quotas/x": "quotas",
		"/load-balancer": "other", "/load-balancer/v3/auth/tokens": "other",
	} {
		if got := nounOf(path); got != want {
			t.Errorf("%s is %s, want %s", path, got, want)
		}
	}
	if methodOf("BREW") != "other" || methodOf("PUT") != "PUT" {
		t.Error("methods")
	}
}
