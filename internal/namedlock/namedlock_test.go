package namedlock

import (
	"context"
	"errors"
	"testing"
)

func TestLock(t *testing.T) {
	var l Locks
	unlock, err := l.Lock(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	other, err := l.Lock(t.Context(), "b")
	if err != nil {
		t.Fatal(err)
	}
	gone := errors.New("gone")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(gone)
	if _, err := l.Lock(ctx, "a"); !errors.Is(err, gone) {
		t.Errorf("who waits for what is held gets %v", err)
	}
	next := make(chan error)
	go func() {
		again, err := l.Lock(t.Context(), "a")
		if err == nil {
			again()
		}
		next <- err
	}()
	unlock()
	other()
	if err := <-next; err != nil {
		t.Error(err)
	}
	if len(l.held) != 0 {
		t.Errorf("%d names are kept that nobody holds", len(l.held))
	}
}
