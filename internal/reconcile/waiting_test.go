package reconcile

import (
	"context"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// waiting is a target whose deletions wait for an event.
type waiting struct {
	mu   sync.Mutex
	come map[uint64]bool // by incarnation
	made []uint64
}

func (w *waiting) Ensure(_ context.Context, o Object, spec, _ string) (string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.made = append(w.made, o.Incarnation)
	return spec, nil
}

func (w *waiting) Delete(_ context.Context, o Object, _, _ string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.come[o.Incarnation] {
		return nil
	}
	return ErrWaiting
}

// A deletion that waits for an event is no failure. Its key can be set again before the event,
// and Wake ends it.
func TestDeletionWaits(t *testing.T) {
	s, err := Open(Config{Path: filepath.Join(t.TempDir(), "test.db"), Volatile: true, MinBackoff: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	target := &waiting{come: map[uint64]bool{}}
	k := Register(s, "waiting", target, Options[string, string]{})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { s.Run(ctx) })
	defer func() { cancel(); running.Wait(); _ = s.Close() }()
	for _, spec := range []string{"one", "two"} {
		if _, err := k.Set(ctx, Request[string]{Key: "a", Spec: spec}); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := k.Remove(ctx, "a"); err != nil {
				t.Fatal(err)
			}
		}
	}
	if r, ok := k.Get("a"); !ok || r.Phase != Deleting || r.Tries != 0 || r.Err != "" {
		t.Fatalf("the row is %+v", r)
	}
	left := func() (n int) {
		for range k.Rows() {
			n++
		}
		return n
	}
	for want := 2; want > 0; want-- {
		if n := left(); n != want {
			t.Fatalf("%d rows, want %d", n, want)
		}
		target.mu.Lock()
		made := target.made[2-want] // the earlier incarnation first
		target.come[made] = true
		target.mu.Unlock()
		k.Wake(Object{Key: "a", Incarnation: made})
		for end := time.Now().Add(time.Minute); left() == want; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("incarnation %d is not deleted", made)
			}
		}
	}
}
