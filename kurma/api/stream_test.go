//go:build linux

package api

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// A client that does not read does not keep what it has asked for.
func TestStreamNotRead(t *testing.T) {
	t.Parallel()
	done := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		defer close(done)
		lines := &stream{to: json.NewEncoder(w), control: http.NewResponseController(w), patience: 20 * time.Millisecond}
		defer lines.end()
		for range 1000 {
			lines.write(Progress{Stage: strings.Repeat("x", 64<<10)})
		}
	}))
	defer server.Close()
	if response, err := server.Client().Get(server.URL); err == nil { // on a slow machine the stream has ended before its head has come
		defer response.Body.Close()
	}
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Error("it is held")
		server.CloseClientConnections()
	}
}
