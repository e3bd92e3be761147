package neutron

import (
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"

	"context"

	"github.com/kuryr/kuryr/sdn/neutron/neutrontest"
)

// script is a Neutron that says what it is told to: by method and path the answers in their order, of which the last is said again and again. What real
// Neutrons were seen to say is in the tests.
type script struct {
	t  *testing.T
	mu sync.Mutex

	answers map[string][]says
	asked   []string // method, path and body of what changes
}

type says struct {
	status int
	body   string
}

func (s *script) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	_, path, _ := strings.Cut(r.URL.Path, "/v2.0")
	line := r.Method + " " + path
	if r.Method != http.MethodGet {
		s.asked = append(s.asked, line+" "+string(body))
	}
	list := s.answers[line]
	if len(list) == 0 {
		s.t.Errorf("%s was asked for, which nobody expects", line)
		answer(w, http.StatusInternalServerError, "")
		return
	}
	if len(list) > 1 {
		s.answers[line] = list[1:]
	}
	w.Header().Set("Content-Type", "application/json")
	answer(w, list[0].status, list[0].body)
}

// count is how many changing requests began so.
func (s *script) count(begin string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, line := range s.asked {
		if strings.HasPrefix(line, begin) {
			n++
		}
	}
	return n
}

// onScript opens a provider on a script behind a proxy. Its backoffs take no time.
func onScript(t *testing.T, answers map[string][]says, aliases ...string) (*Provider, *script, *neutrontest.Proxy) {
	t.Helper()
	var list []string
	for _, a := range append(aliases, usual...) {
		list = append(list, `{"alias": "`+a+`"}`)
	}
	s := &script{t: t, answers: map[string][]says{"GET /extensions": {{200, `{"extensions": [` + strings.Join(list, ", ") + `]}`}}}}
	for line, a := range answers {
		s.answers[line] = a
	}
	proxy := neutrontest.NewBefore(t, s)
	p, err := Open(Config{
		Installation: "test", Project: "p1", Endpoint: proxy.URL, Auth: Auth{Type: "none"}, Env: func(string) (string, bool) { return "", false },
	}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	p.client.backoff = func(ctx context.Context, _ int, _ error) bool { return ctx.Err() == nil }
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p, s, proxy
}
