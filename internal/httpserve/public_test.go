package httpserve

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"
)

// timeout is how long a client waits for what a server does immediately. A server of these tests
// gives a request much more time.
const timeout = time.Minute

// moment is how long a connection must stay open.
const moment = 100 * time.Millisecond

// public starts a server that lets every client in, and returns how to connect to it from
// an address of the loopback network.
func public(t *testing.T, most int, h http.HandlerFunc) func(from string) net.Conn {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	s := &http.Server{
		Handler: h, ReadHeaderTimeout: time.Hour, ReadTimeout: time.Hour, ErrorLog: log.New(io.Discard, "", 0),
	}
	go func() { done <- run(ctx, s, newLimiter(l, most, true, s.ErrorLog)) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return func(from string) net.Conn {
		t.Helper()
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
		conn, err := d.DialContext(ctx, "tcp4", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		_ = conn.SetDeadline(time.Now().Add(timeout))
		return conn
	}
}

// slow begins a request whose body does not come. With a name it is one of a client that
// the server knows.
func slow(t *testing.T, conn net.Conn, name string) {
	t.Helper()
	const request = "POST / HTTP/1.1\r\nHost: x\r\nX-Name: %s\r\nContent-Length: 200000\r\n\r\n{"
	if _, err := fmt.Fprintf(conn, request, name); err != nil {
		t.Fatal(err)
	}
}

// isOpen reports whether the server leaves a connection open for a while. It has not
// answered yet.
func isOpen(conn net.Conn, while time.Duration) bool {
	_ = conn.SetReadDeadline(time.Now().Add(while))
	_, err := conn.Read(make([]byte, 1))
	return errors.Is(err, os.ErrDeadlineExceeded)
}

// waiting reads a body, and says when it begins.
func waiting(begun chan<- string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if name := r.Header.Get("X-Name"); name != "" {
			Authenticated(r.Context())
		}
		begun <- r.Header.Get("X-Name")
		_, _ = io.ReadAll(r.Body)
		hello(w, r)
	}
}

// A request that is answered before its body has come is answered immediately, and its
// connection is closed soon.
func TestRefusalDoesNotWaitForTheBody(t *testing.T) {
	t.Parallel()
	for name, refuse := range map[string]http.HandlerFunc{
		"a status": func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusUnauthorized) },
		"a long text": func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, strings.Repeat("no", 1<<16), http.StatusUnauthorized)
		},
		"nothing said": func(http.ResponseWriter, *http.Request) {},
		"a flush": func(w http.ResponseWriter, _ *http.Request) {
			if err := http.NewResponseController(w).Flush(); err != nil {
				t.Error(err)
			}
		},
		"a part read": func(w http.ResponseWriter, r *http.Request) {
			_, _ = r.Body.Read(make([]byte, 1))
			w.WriteHeader(http.StatusForbidden)
		},
	} {
		for _, sent := range []string{
			"Content-Length: 200000\r\n\r\n1", "Content-Length: 20000000\r\n\r\n1",
			"Transfer-Encoding: chunked\r\n\r\n5\r\n1",
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				conn := public(t, 4, refuse)("127.0.0.1")
				_, _ = fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: x\r\n%s", sent)
				response, err := http.ReadResponse(bufio.NewReader(conn), nil)
				if err != nil {
					t.Fatalf("%q: %v", sent, err)
				}
				_, _ = io.Copy(io.Discard, response.Body)
				_ = response.Body.Close()
				if !response.Close {
					t.Errorf("%q: the connection is to be used again", sent)
				}
				_, err = conn.Read(make([]byte, 1))
				if err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
					t.Errorf("%q: %v, want a closed connection", sent, err)
				}
			})
		}
	}
}

// A connection whose bodies are read is used again.
func TestReadBodiesKeepTheConnection(t *testing.T) {
	t.Parallel()
	conn := public(t, 4, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.ReadAll(r.Body)
		hello(w, r)
	})("127.0.0.1")
	reader := bufio.NewReader(conn)
	for _, body := range []string{
		"Content-Length: 2\r\n\r\nhi", "Content-Length: 0\r\n\r\n",
		"Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n", "\r\n",
	} {
		_, _ = fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: x\r\n%s", body)
		response, err := http.ReadResponse(reader, nil)
		if err != nil {
			t.Fatal(err)
		}
		if text, err := io.ReadAll(response.Body); err != nil || string(text) != "hello" || response.Close {
			t.Errorf("%q: %q, %v, closing: %v", body, text, err, response.Close)
		}
	}
}

// Requests of strangers that never end do not keep other clients out, and those of known
// clients stay.
func TestSlowStrangersGiveWay(t *testing.T) {
	t.Parallel()
	begun := make(chan string, 100)
	dial := public(t, 8, waiting(begun)) // two for each address
	known := dial("127.0.1.1")
	slow(t, known, "alice")
	<-begun
	for i := range 20 {
		slow(t, dial(fmt.Sprintf("127.0.2.%d", i+1)), "")
		<-begun
	}
	legitimate := dial("127.0.3.1")
	if got := ask(t, legitimate); got != "hello" {
		t.Errorf("behind slow strangers: %s", got)
	}
	if !isOpen(known, moment) {
		t.Error("the call of a known client was cut off")
	}
}

// What one address opens is bounded, and closes what that address has.
func TestShareOfAnAddress(t *testing.T) {
	t.Parallel()
	begun := make(chan string, 100)
	dial := public(t, 8, waiting(begun))
	other := dial("127.0.1.1")
	slow(t, other, "")
	<-begun
	var mine []net.Conn
	for range 20 {
		conn := dial("127.0.2.1")
		slow(t, conn, "")
		<-begun
		mine = append(mine, conn)
	}
	for i, conn := range mine[:18] {
		if isOpen(conn, timeout) {
			t.Errorf("connection %d of 20 is open", i)
		}
	}
	if !isOpen(other, moment) {
		t.Error("another address lost its connection")
	}
	for range 2 { // its share is in use by known clients
		conn := dial("127.0.3.1")
		slow(t, conn, "alice")
		<-begun
	}
	if isOpen(dial("127.0.3.1"), timeout) {
		t.Error("an address got more than its share")
	}
	if got := ask(t, dial("127.0.4.1")); got != "hello" {
		t.Errorf("from elsewhere: %s", got)
	}
}

func TestAddresses(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"192.0.2.1:5": "192.0.2.1", "[::ffff:192.0.2.1]:5": "192.0.2.1",
		"[2001:db8:1:2:3::4]:5": "2001:db8:1:2::/64", "[fe80::1%lo]:5": "fe80::/64",
	} {
		a, err := net.ResolveTCPAddr("tcp", text)
		if err != nil {
			t.Fatal(err)
		}
		if got := addressOf(a); got != want {
			t.Errorf("%s counts as %q, want %q", text, got, want)
		}
	}
	if got := addressOf(&net.UnixAddr{Name: "/run/x"}); got != "" {
		t.Errorf("a Unix socket counts as %q", got)
	}
}
