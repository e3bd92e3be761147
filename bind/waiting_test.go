//go:build linux

package bind

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/kuryr/kuryr/sdn"
)

// wirer is a driver whose SDN wires a port by closing wired, and that counts the waits.
type wirer struct {
	noopDriver
	wired chan struct{}
	fault error
	waits chan struct{}
}

func (w wirer) Wait(ctx context.Context, _ sdn.Port) error {
	w.waits <- struct{}{}
	select {
	case <-w.wired:
		return w.fault
	case <-ctx.Done():
		return sdn.Unavailable(ctx.Err(), "Open vSwitch", "did not answer") // as the switch's database has it
	}
}

// TestWaiting: a Plug ends with the SDN's wiring, and not before.
func TestWaiting(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.port()
	p.VIF = sdn.VIF{Type: "wired"}
	i := Interface{Port: p, MTU: testMTU, Name: "eth0"}
	fake := wirer{wired: make(chan struct{}), waits: make(chan struct{}, 9)}
	w.b.Register("wired", fake)
	waiting := Waiting{w.b, time.Hour}

	done := make(chan error)
	go func() { _, err := waiting.Plug(t.Context(), i); done <- err }()
	<-fake.waits
	select {
	case err := <-done:
		t.Fatalf("Plug ended before the port was wired: %v", err)
	default:
	}
	close(fake.wired)
	must(t, <-done)

	if _, err := (Waiting{w.b, 0}).Plug(t.Context(), i); err != nil || len(fake.waits) != 0 {
		t.Errorf("without a timeout: %d waits, %v", len(fake.waits), err)
	}

	fake.wired = make(chan struct{})
	w.b.Register("wired", fake)
	if _, err := (Waiting{w.b, time.Millisecond}).Plug(t.Context(), i); !errors.Is(
		err, context.DeadlineExceeded,
	) || sdn.IsUnavailable(err) {
		t.Errorf("never wired: %v", err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := waiting.Plug(gone, i); !errors.Is(err, context.Canceled) {
		t.Errorf("the caller has gone: %v", err)
	}

	fake.fault = sdn.Unavailable(nil, "port", "the switch cannot use its interface")
	close(fake.wired)
	w.b.Register("wired", fake)
	if _, err := waiting.Plug(t.Context(), i); !sdn.IsUnavailable(err) {
		t.Errorf("a switch that cannot use it: %v", err)
	}

	i.Port.VIF.Type = sdn.VIFNoop // as of the embedded SDN's types: no program tells
	if _, err := waiting.Plug(t.Context(), i); err != nil {
		t.Errorf("where nobody tells: %v", err)
	}
}
