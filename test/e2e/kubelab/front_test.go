package kubelab

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"
)

// echo is a server that says what it is told.
func echo(t *testing.T) func(context.Context) (net.Conn, error) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_, _ = io.Copy(conn, conn)
			}()
		}
	}()
	return func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "tcp", listener.Addr().String())
	}
}

func TestFrontPassesOn(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := newFront(listener, echo(t))
	defer f.Close()
	ask := func(words ...string) (time.Duration, error) {
		begin := time.Now()
		conn, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			return 0, err
		}
		defer conn.Close()
		answers := bufio.NewReader(conn)
		for _, word := range words {
			if _, err := conn.Write([]byte(word + "\n")); err != nil {
				return 0, err
			}
		}
		for _, word := range words {
			if line, err := answers.ReadString('\n'); err != nil || line != word+"\n" {
				return 0, io.ErrUnexpectedEOF
			}
		}
		return time.Since(begin), nil
	}
	if _, err := ask("one"); err != nil {
		t.Fatal(err)
	}
	const late = 200 * time.Millisecond
	f.Delay(late)
	if took, err := ask("one", "two"); err != nil || took < late {
		t.Errorf("two words by a slow front took %s, %v", took, err)
	}
	f.Delay(0)
	open, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	if _, err := open.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := open.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	f.Cut()
	_ = open.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := open.Read(make([]byte, 1)); err == nil || isTimeout(err) {
		t.Errorf("a connection outlives Cut: %v", err)
	}
	if _, err := ask("one"); err == nil {
		t.Error("a front that is cut answers")
	}
	f.Mend()
	if _, err := ask("one"); err != nil {
		t.Errorf("mended: %v", err)
	}
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}
