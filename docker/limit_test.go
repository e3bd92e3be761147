package docker

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kuryr/kuryr/internal/rootsock"
)

// Twenty callers concurrently send the largest body that is accepted, and no call is answered.
// They cost less memory than they send, and all are served in the end.
func TestFloodOfLargeBodies(t *testing.T) {
	gate := &blocked{entered: make(chan struct{}), leave: make(chan struct{})}
	b := newBox(t, func(c *Config) { c.Provider, c.CallTimeout = gate.of(c.Provider), time.Minute })
	path := filepath.Join(t.TempDir(), "kuryr.sock")
	listener, err := rootsock.Listen(path)
	b.must(err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- b.driver.Serve(ctx, listener) }()

	const callers, maxLarge = 20, largeBodies / maxBody
	junk := []byte(strings.Repeat("x", maxBody-100) + `"}`) // one for all: what the callers hold must not count
	before := heap()
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			conn, err := net.Dial("unix", path)
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			body := fmt.Sprintf(`{"PoolID":"%d","Junk":"`, i)
			fmt.Fprintf(
				conn,
				"POST /IpamDriver.ReleasePool HTTP/1.1\r\nHost: \r\nContent-Length: %d\r\n\r\n%s",
				len(body)+len(junk), body,
			)
			if _, err := conn.Write(junk); err != nil {
				t.Error(err)
			}
			answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Error(err)
				return
			}
			if text, err := io.ReadAll(answer.Body); err != nil || string(text) != "{}" {
				t.Errorf("answered %s, %v", text, err)
			}
		})
	}
	for range maxLarge {
		<-gate.entered
	}
	if grown := heap() - before; grown > 2*largeBodies {
		t.Errorf("%d callers cost %d MiB", callers, grown>>20)
	}
	select {
	case <-gate.entered:
		t.Errorf("more than %d large bodies are served concurrently", maxLarge)
	default:
	}
	close(gate.leave)
	for range callers - maxLarge {
		<-gate.entered
	}
	wg.Wait()
	cancel()
	b.must(<-ended)
}

// heap is the live heap in bytes.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// pipes is a listener whose connections are pipes, so that time is the test's.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), closed: make(chan struct{})} }

func (p *pipes) dial() net.Conn {
	here, there := net.Pipe()
	p.conns <- there
	return here
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }

// Callers that send a byte now and then are cut off, wherever they are in a call, and
// delay no other caller.
func TestSlowCallers(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	synctest.Test(t, func(t *testing.T) {
		b.restart() // its channels must be of this bubble
		l := newPipes()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- b.driver.Serve(ctx, l) }()
		drip := func(at once) time.Duration {
			conn := l.dial()
			defer conn.Close()
			go func() { _, _ = io.Copy(io.Discard, conn) }()
			start := time.Now()
			if _, err := io.WriteString(conn, string(at)); err != nil {
				t.Errorf("%q: %v", at, err)
			}
			for {
				if _, err := io.WriteString(conn, "x"); err != nil {
					return time.Since(start)
				}
				time.Sleep(time.Second)
			}
		}
		var wg sync.WaitGroup
		for at, limit := range map[once]time.Duration{
			"": headerTimeout,
			"POST /Plugin.Activate HTTP/1.1\r\nHost: \r\nX: ":                                            headerTimeout,
			"POST /NetworkDriver.Leave HTTP/1.1\r\nHost: \r\nContent-Length: 1000\r\n\r\n":               readTimeout,
			"POST /NetworkDriver.Leave HTTP/1.1\r\nHost: \r\nContent-Length: 1000000\r\n\r\n":            readTimeout,
			"POST /NetworkDriver.Leave HTTP/1.1\r\nHost: \r\nTransfer-Encoding: chunked\r\n\r\n5000\r\n": readTimeout,
		} {
			for range 32 {
				wg.Go(func() {
					// A second for the last byte, and time for those that wait for a place.
					if took := drip(at); took > 2*(limit+b.driver.config.CallTimeout) {
						t.Errorf("%q was served for %v", at, took)
					}
				})
			}
		}
		time.Sleep(5 * time.Second)
		conn := l.dial()
		fmt.Fprint(conn, "POST /Plugin.Activate HTTP/1.1\r\nHost: \r\nContent-Length: 0\r\n\r\n")
		start := time.Now()
		if r, err := http.ReadResponse(bufio.NewReader(conn), nil); err != nil ||
			r.StatusCode != http.StatusOK || time.Since(start) > 0 {
			t.Errorf("an honest caller was answered %v after %v: %v", r, time.Since(start), err)
		}
		conn.Close()
		wg.Wait()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// once is the first text that a slow caller sends.
type once string

// TestSlowLargeBodies checks that large calls are served beside callers whose large bodies
// stop, before or after they have room, and that a served call outlives largeTime.
func TestSlowLargeBodies(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	const header = "POST /IpamDriver.ReleasePool HTTP/1.1\r\nHost: \r\n"
	synctest.Test(t, func(t *testing.T) {
		gate := &blocked{entered: make(chan struct{}), leave: make(chan struct{})}
		b.config.Provider = gate.of(b.config.Provider)
		b.restart() // its channels must be of this bubble
		l := newPipes()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- b.driver.Serve(ctx, l) }()
		var slow sync.WaitGroup
		for i := range 16 {
			sent := i % 3 * smallBody
			length := fmt.Sprintf("Content-Length: %d\r\n\r\n", maxBody)
			if i%2 == 0 {
				length = fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n", maxBody)
			}
			conn := l.dial()
			slow.Go(func() {
				defer conn.Close()
				go func() { _, _ = io.WriteString(conn, header+length+strings.Repeat("x", sent)) }()
				_, _ = io.Copy(io.Discard, conn)
			})
		}
		synctest.Wait()
		conn := l.dial()
		defer conn.Close()
		body := `{"PoolID":"1","Junk":"` + strings.Repeat("x", maxBody-100) + `"}`
		go fmt.Fprintf(conn, "%sContent-Length: %d\r\n\r\n%s", header, len(body), body)
		go func() {
			select {
			case <-gate.entered:
				time.Sleep(2 * largeTime)
				close(gate.leave)
			case <-ctx.Done():
			}
		}()
		start := time.Now()
		if r, err := http.ReadResponse(bufio.NewReader(conn), nil); err != nil {
			t.Error(err)
		} else if text, err := io.ReadAll(r.Body); string(text) != "{}" || err != nil {
			t.Errorf("answered %s after %v: %v", text, time.Since(start), err)
		}
		slow.Wait()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
