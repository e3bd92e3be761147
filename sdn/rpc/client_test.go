package rpc

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/kuryr/kuryr/sdn"
)

// A server without this version of the protocol is told from one that does not run.
func TestOtherVersions(t *testing.T) {
	for text, want := range map[string]error{
		`{}`: ErrEarlier, `{"versions":[0]}`: ErrEarlier, `{"versions":[2]}`: errLater, `{"versions":[1,2]}`: nil,
	} {
		_, socket := paths(t)
		l, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		other := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != Path && want != nil {
				t.Errorf("%s: %s was called", text, r.URL.Path)
			}
			_, _ = io.WriteString(w, text)
		})}
		go func() { _ = other.Serve(l) }()
		defer other.Close()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		if _, err := Dial(ctx, socket, Options{}); !errors.Is(err, want) || ctx.Err() != nil {
			t.Errorf("%s: got error %v", text, err)
		}
		if want == nil {
			continue
		}
		err = dial(t, socket, Options{Known: &Peer{Versions: []int{1}}}).Ping(ctx)
		if !errors.Is(err, want) || !errors.Is(err, sdn.ErrNotSent) || !sdn.IsUnavailable(err) {
			t.Errorf("%s: got error %v of a call", text, err)
		}
	}
}

// A client has so many calls in progress, and as many that read or wait for long. A further
// call waits, and was not sent if it is given up.
func TestCallsInProgress(t *testing.T) {
	began, end := make(chan struct{}, 9), make(chan struct{})
	block := func(ctx context.Context) error {
		began <- struct{}{}
		select {
		case <-end:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	p := &stub{ping: block, wait: block, find: func(func(sdn.Port, error) bool) {}}
	s, c := start(t, p)
	c.calls, c.longCalls = make(chan struct{}, 2), make(chan struct{}, 2)
	answers := make(chan error, 9)
	for range 2 {
		go func() { answers <- c.Ping(t.Context()) }()
		<-began
	}
	go func() { answers <- c.WaitPorts(t.Context(), nil, sdn.PortActive) }()
	<-began
	if _, err := sdn.All(c.FindPorts(t.Context(), sdn.PortQuery{})); err != nil {
		t.Errorf("got error %v of a call of the other kind", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := c.Ping(ctx); !sdn.IsUnavailable(err) || !errors.Is(err, sdn.ErrNotSent) {
		t.Errorf("got error %v of a call too many", err)
	}
	if n := s.count("Ping"); n != 2 {
		t.Errorf("the server has %d calls", n)
	}
	go func() { answers <- c.Ping(t.Context()) }()
	close(end)
	for range 4 {
		if err := <-answers; err != nil {
			t.Errorf("got error %v", err)
		}
	}
}
