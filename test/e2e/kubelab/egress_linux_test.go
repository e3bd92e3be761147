package kubelab

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
)

// A client that asks the socket for an address gets what is there; another is told why not.
func TestEgress(t *testing.T) {
	pod := httptest.NewServer(http.HandlerFunc(
		func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "the pod") },
	))
	defer pod.Close()
	socket := filepath.Join(t.TempDir(), "egress")
	e, err := newEgress(socket, func(ctx context.Context, address string) (net.Conn, error) {
		var d net.Dialer
		if address == "10.128.0.5:80" {
			address = pod.Listener.Addr().String()
		}
		return d.DialContext(ctx, "tcp", address)
	})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	for _, c := range []struct{ ask, want string }{
		{
			"CONNECT 10.128.0.5:80 HTTP/1.1\r\nHost: 10.128.0.5:80\r\n\r\nGET / " +
				"HTTP/1.1\r\nHost: pod\r\nConnection: close\r\n\r\n",
			"the pod",
		},
		{"CONNECT 127.0.0.1:0 HTTP/1.1\r\nHost: 127.0.0.1:0\r\nConnection: close\r\n\r\n", "502 Bad Gateway"},
		{"GET / HTTP/1.1\r\nHost: pod\r\nConnection: close\r\n\r\n", "only CONNECT"},
	} {
		conn, err := net.Dial("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := io.WriteString(conn, c.ask); err != nil {
			t.Fatal(err)
		}
		if said, err := io.ReadAll(conn); err != nil || !strings.Contains(string(said), c.want) {
			t.Errorf("asked %q: %q, %v", c.ask, said, err)
		}
	}
}
