//go:build linux

package identity

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"time"
)

// Refused requests whose bodies never come, more than a server has connections, do
// not keep other clients out, whether they come from the address of the served client or
// from many.
func TestSlowRefusalsKeepNobodyOut(t *testing.T) {
	t.Parallel()
	w := newGateWorld(t, 0, false)
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	// Wrapped, as a TLS listener is.
	go func() { served <- Serve(ctx, struct{ net.Listener }{l}, w.handler, slog.New(slog.DiscardHandler)) }()
	var open []net.Conn
	for _, addresses := range []int{1, 200} {
		for _, path := range []string{"/v2.0/networks", "/v3/auth/tokens"} {
			for i := range 600 {
				d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, byte(1+i%addresses))}}
				conn, err := d.DialContext(ctx, "tcp4", l.Addr().String())
				if err != nil {
					t.Fatal(err)
				}
				open = append(open, conn)
				_, _ = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"+
					"Content-Length: 200000\r\n\r\n{", path)
			}
			// Less than readTimeout, which ends the other requests.
			client := http.Client{Timeout: readTimeout - 5*time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
			for range 3 {
				r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+l.Addr().String()+"/v2.0/networks", nil)
				if err != nil {
					t.Fatal(err)
				}
				r.Header.Set("X-Auth-Token", adminToken)
				response, err := client.Do(r)
				if err != nil {
					t.Fatalf("behind 600 requests to %s of %d addresses: %v", path, addresses, err)
				}
				_ = response.Body.Close()
				if response.StatusCode != http.StatusOK {
					t.Errorf("behind 600 requests to %s of %d addresses: %d", path, addresses, response.StatusCode)
				}
			}
		}
	}
	for _, conn := range open { // the server waits for those that it still reads
		_ = conn.Close()
	}
	cancel()
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// One token or user has so many requests in progress.
func TestCallsAtOnce(t *testing.T) {
	t.Parallel()
	w := newGateWorld(t, 0, false)
	release, underway := make(chan struct{}), make(chan struct{})
	g := w.gate
	g.API = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		underway <- struct{}{}
		<-release
	})
	w.handler = NewGate(g)
	codes := make(chan int, callsAtOnce)
	for range callsAtOnce {
		go func() { codes <- w.ask("GET", "/v2.0/ports", readerToken, "192.0.2.1").Code }()
		<-underway
	}
	if code := w.ask("GET", "/v2.0/ports", readerToken, "192.0.2.2").Code; code != http.StatusTooManyRequests {
		t.Errorf("one more: %d", code)
	}
	go func() { codes <- w.ask("GET", "/v2.0/ports", adminToken, "192.0.2.1").Code }()
	<-underway // another token has its own
	close(release)
	for range callsAtOnce + 1 {
		if code := <-codes; code != http.StatusOK {
			t.Errorf("one of those under way: %d", code)
		}
	}
}
