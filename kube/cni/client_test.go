package cni

import (
	"errors"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
)

// What the daemon does to a caller, and what the runtime hears of it.
func TestAsk(t *testing.T) {
	t.Parallel()
	call := Call{Verb: Del, Container: "c", Interface: "eth0", Config: []byte(`{}`)}
	serve := func(t *testing.T, answer func(net.Conn)) string {
		path := filepath.Join(t.TempDir(), "s")
		l, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		go func() {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			defer conn.Close()
			var r Request
			if ReadFrame(conn, &r) == nil {
				answer(conn)
			}
		}()
		return path
	}
	tests := map[string]struct {
		answer func(net.Conn)
		code   uint
	}{
		"an answer":  {func(c net.Conn) { _ = WriteFrame(c, NewReply([]byte("out"), nil)) }, 0},
		"an error":   {func(c net.Conn) { _ = WriteFrame(c, NewReply(nil, Differs.Errorf("no"))) }, Differs.Code},
		"it dies":    {func(net.Conn) {}, TryAgain.Code},
		"it is slow": {func(c net.Conn) { _, _ = c.Read(make([]byte, 1)) }, TimedOut.Code},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			limit := 20 * time.Second
			if test.code == TimedOut.Code {
				limit = 50 * time.Millisecond
			}
			out, err := Ask(serve(t, test.answer), call, limit)
			var e *types.Error
			switch {
			case test.code == 0 && (err != nil || string(out) != "out"):
				t.Errorf("%q, %v", out, err)
			case test.code != 0 && (!errors.As(err, &e) || e.Code != test.code):
				t.Errorf("%v, want the code %d", err, test.code)
			}
		})
	}
	if _, err := Ask(filepath.Join(t.TempDir(), "nobody"), call, time.Second); !errors.Is(err, ErrNoDaemon) {
		t.Error(err)
	}
}
