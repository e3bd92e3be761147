package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestEvents(t *testing.T) {
	t.Parallel()
	want := []string{
		"network create false", "container create false", "container die false",
		"network create true", "network destroy true",
	}
	for _, version := range []string{"20.10", "29"} {
		var text string
		if err := json.Unmarshal(recorded(t, version)["/events"], &text); err != nil {
			t.Fatal(err)
		}
		c := reply{http.StatusOK, text}.client()
		c.drivers = []string{"kuryr"}
		var got []string
		_ = c.stream(t.Context(), func() {}, func(e Event) {
			if len(e.ID) != 64 {
				t.Errorf("%+v", e)
			}
			// Docker 29 tells also that a container left its network.
			if line := fmt.Sprint(e.Type, " ", e.Action, " ", e.Ours); e.Action != "disconnect" {
				got = append(got, line)
			}
		})
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q", version, got)
		}
	}
}

// The stream is opened again after each end, whatever it was, until the context ends.
func TestWatch(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "d.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	streams := []string{
		`{"Type":"network","Action":"create","Actor":{"ID":"n1","Attributes":{"type":"kuryr"}}}` + "\n",
		"nonsense\n",
		strings.Repeat("x", maxEvent+1) + "\n",
		`{"Type":"network","Action":"destroy","Actor":{"ID":"n1"}}` + "\n",
	}
	served := 0
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/events" || !strings.Contains(r.URL.Query().Get("filters"), "destroy") {
			t.Errorf("asked %s", r.URL)
		}
		stream := streams[min(served, len(streams)-1)]
		served++ // first: the client opens the next stream as soon as it has read too much of this one
		_, _ = fmt.Fprint(w, stream)
	}))
	server.Listener = l
	server.Start()
	defer server.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var got []string
	connected := 0
	c := New(socket, "kuryr")
	defer c.Close()
	c.Watch(ctx, func() { connected++ }, func(e Event) {
		got = append(got, fmt.Sprint(e.Action, " ", e.ID, " ", e.Ours))
		if e.Action == "destroy" {
			cancel()
		}
	})
	if want := []string{"create n1 true", "destroy n1 false"}; !slices.Equal(got, want) || connected != len(streams) {
		t.Errorf("%q after %d connections", got, connected)
	}
}

// Without an engine the watch waits until the context ends.
func TestWatchWithoutEngine(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	c := New(filepath.Join(t.TempDir(), "none"))
	c.Watch(ctx, func() { t.Error("connected") }, func(Event) { t.Error("an event") })
}
