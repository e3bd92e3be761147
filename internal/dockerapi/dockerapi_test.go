package dockerapi

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

func engine(t *testing.T, answers map[string]string) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "d.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer, ok := answers[r.URL.Path]
		if !ok || r.Method != http.MethodGet {
			http.Error(w, "no", http.StatusInternalServerError)
			return
		}
		_, _ = w.Write([]byte(answer))
	}))
	server.Listener = l
	server.Start()
	t.Cleanup(server.Close)
	return socket
}

func TestAsk(t *testing.T) {
	t.Parallel()
	socket := engine(t, map[string]string{
		"/containers/json": `[{"Id":"c","Names":["/web","/other/web"],"NetworkSettings":{"Networks":{"front":{"EndpointID":"e1"},"back":{"EndpointID":"e2"},"none":{"EndpointID":""}}}},
			{"Id":"d","Names":[],"NetworkSettings":{"Networks":{"x":{"EndpointID":"e3"}}}}]`,
		"/networks": `[{"Id":"n1","Name":"front"},{"Id":"n2","Name":"back"}]`,
	})
	got, err := Ask(context.Background(), socket)
	if err != nil {
		t.Fatal(err)
	}
	want := Names{Endpoints: map[string]string{"e1": "web", "e2": "web"}, Networks: map[string]string{"n1": "front", "n2": "back"}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestAskFails(t *testing.T) {
	t.Parallel()
	for name, socket := range map[string]string{
		"nobody there": filepath.Join(t.TempDir(), "none.sock"),
		"refuses":      engine(t, nil),
		"nonsense":     engine(t, map[string]string{"/containers/json": "[{"}),
	} {
		if _, err := Ask(context.Background(), socket); err == nil || !strings.HasPrefix(err.Error(), "ask the Docker engine: ") {
			t.Errorf("%s: error = %v", name, err)
		}
	}
}

func TestSocket(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{"": "/default", "unix:///run/d.sock": "/run/d.sock", "tcp://1.2.3.4:2375": ""} {
		if got := Socket(in, "/default"); got != want {
			t.Errorf("Socket(%q) = %q, want %q", in, got, want)
		}
	}
}

// answer is an engine that says the same to everything.
type answer []byte

func (a answer) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(bytes.NewReader(a))}, nil
}

// FuzzAsk: whatever the engine answers, there are names or an error that says who answered so.
func FuzzAsk(f *testing.F) {
	f.Add([]byte(`[{"Names":["/web"],"NetworkSettings":{"Networks":{"front":{"EndpointID":"e1"}}},"ID":"n1","Name":"front"}]`))
	f.Add([]byte(`[{"Names":null,"NetworkSettings":null}]`))
	f.Fuzz(func(t *testing.T, body []byte) {
		names, err := ask(t.Context(), &http.Client{Transport: answer(body)})
		if err != nil && !strings.HasPrefix(err.Error(), "ask the Docker engine: ") {
			t.Errorf("error %v", err)
		}
		if _, nameless := names.Endpoints[""]; nameless {
			t.Error("there is an endpoint without an id")
		}
	})
}
