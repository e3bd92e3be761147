package httpserve

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// served starts a server with room for few connections on a socket and returns how to
// connect to it.
func served(t *testing.T, most int, h http.HandlerFunc, out io.Writer) func() net.Conn {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	s := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute, ErrorLog: log.New(out, "", 0)}
	go func() { done <- run(ctx, s, newLimiter(l, most, false, s.ErrorLog)) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return func() net.Conn {
		t.Helper()
		conn, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
}

func ask(t *testing.T, conn net.Conn) string {
	t.Helper()
	if _, err := fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		return err.Error()
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	return string(body)
}

func hello(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }

// lines is a writer that a server and a test may use concurrently.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// Connections that say nothing keep no client out, however many they are.
func TestSilentConnectionsGiveWay(t *testing.T) {
	t.Parallel()
	var out lines
	dial := served(t, 3, hello, &out)
	busy := dial()
	if got := ask(t, busy); got != "hello" {
		t.Fatal(got)
	}
	var silent []net.Conn
	for range 20 {
		silent = append(silent, dial())
	}
	if got := ask(t, dial()); got != "hello" {
		t.Fatal("behind silent connections: ", got)
	}
	// The oldest went first, and an idle one that had been in use later than those.
	for i, conn := range silent[:18] {
		if _, err := conn.Read(make([]byte, 1)); err == nil {
			t.Errorf("silent connection %d is open", i)
		}
	}
	if n := strings.Count(out.String(), "too many connections"); n != 1 {
		t.Errorf("%d lines in the log: %s", n, out.String())
	}
}

// A call in progress is never cut off for another connection: that waits.
func TestCallsInProgressStay(t *testing.T) {
	t.Parallel()
	began, end := make(chan struct{}, 3), make(chan struct{})
	dial := served(t, 2, func(w http.ResponseWriter, r *http.Request) {
		began <- struct{}{}
		<-end
		hello(w, r)
	}, io.Discard)
	answers := make(chan string, 3)
	call := func() {
		conn := dial()
		go func() { answers <- ask(t, conn) }()
	}
	call()
	call()
	<-began
	<-began
	call() // has no place until one of the others is done
	close(end)
	for range 3 {
		if got := <-answers; got != "hello" {
			t.Error(got)
		}
	}
}

// A server that is to end does so also while a connection waits for room.
func TestEndWhileFull(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	m := newLimiter(l, 0, false, log.New(io.Discard, "", 0))
	done := make(chan error, 1)
	go func() { _, err := m.Accept(); done <- err }()
	conn, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	if err := <-done; err == nil {
		t.Error("a connection was accepted without room")
	}
}
