//go:build linux && kubernetes

package main

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

// The time is the server's, however wrong this machine's clock is.
func TestKubernetesServerClock(t *testing.T) {
	t.Parallel()
	date := time.Now().Add(-3 * time.Hour).UTC().Format(http.TimeFormat)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Date", date) }))
	defer server.Close()
	var clock serverClock
	if off := time.Since(clock.now()); off.Abs() > time.Minute {
		t.Errorf("unasked it is off by %s", off)
	}
	config := &rest.Config{Host: server.URL}
	clock.watch(config)
	c, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		answer, err := c.Get(server.URL)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		if off := time.Since(clock.now()) - 3*time.Hour; off.Abs() > time.Minute {
			t.Errorf("it is off by %s", off)
		}
		date = "yesterday" // which is no date
	}
}
