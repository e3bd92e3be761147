package rpc

import (
	"context"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/kuryr/kuryr/sdn"
)

// The end of a server ends the calls that wait for a port. Their client repeats them.
func TestStopDuringWait(t *testing.T) {
	_, socket := paths(t)
	waits := make(chan struct{})
	p := &stub{wait: func(ctx context.Context) error {
		close(waits)
		<-ctx.Done()
		return ctx.Err()
	}}
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	log := slog.New(slog.DiscardHandler)
	go func() { ended <- Serve(ctx, l, NewHandler(p, HandlerOptions{}), log) }()
	c := dial(t, socket, Options{})
	answer := make(chan error, 1)
	go func() { answer <- c.WaitPorts(t.Context(), []sdn.ID{"1"}, sdn.PortActive) }()
	<-waits
	began := time.Now()
	stop()
	// After ten seconds it cuts off the calls in progress.
	if err := <-ended; err != nil || time.Since(began) > 9*time.Second {
		t.Errorf("it ended after %v with error %v", time.Since(began), err)
	}
	serve(t, &stub{wait: func(context.Context) error { return nil }}, socket)
	if err := <-answer; err != nil {
		t.Errorf("got error %v of the next server", err)
	}
}
