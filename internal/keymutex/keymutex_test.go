package keymutex

import (
	"context"
	"errors"
	"sync"
	"testing"
)

func TestLock(t *testing.T) {
	t.Parallel()
	var m Mutex
	unlock, err := m.Lock(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	other, err := m.Lock(t.Context(), "b")
	if err != nil {
		t.Fatal(err)
	}
	canceled := errors.New("canceled")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(canceled)
	if _, err := m.Lock(ctx, "a"); !errors.Is(err, canceled) {
		t.Errorf("lock a locked key with an ended context: %v", err)
	}
	if _, err := m.LockAll(ctx, "c", "a"); !errors.Is(err, canceled) {
		t.Errorf("lock several keys with an ended context: %v", err)
	}
	next := make(chan error)
	go func() {
		again, err := m.Lock(t.Context(), "a")
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
	if n := m.Held(); n != 0 {
		t.Errorf("%d keys are held, want 0", n)
	}
}

// Callers that name the same keys in different orders do not wait for one another.
func TestLockAll(t *testing.T) {
	t.Parallel()
	var m Mutex
	var callers sync.WaitGroup
	changes := 0
	const rounds = 1000
	for _, keys := range [][]string{{"a", "b"}, {"b", "a", "b"}} {
		callers.Go(func() {
			for range rounds {
				unlock, err := m.LockAll(t.Context(), keys...)
				if err != nil {
					t.Error(err)
					return
				}
				changes++
				unlock()
			}
		})
	}
	callers.Wait()
	if changes != 2*rounds || m.Held() != 0 {
		t.Errorf("%d changes, want %d; %d keys are held", changes, 2*rounds, m.Held())
	}
}
