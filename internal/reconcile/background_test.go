package reconcile

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestBackground shows that no caller of a background kind waits for the target, and that the
// last intent wins over an attempt that is in flight.
func TestBackground(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeTarget{}
		var during func()
		f.fail = func(string) error {
			if do := during; do != nil {
				during = nil
				do()
			}
			return nil
		}
		rows := map[string][]byte{}
		run := func(do func(k *Kind[string, string])) {
			c := Config{Logger: slog.New(slog.DiscardHandler)}
			s := newStore(c, &memory{rows}, &content{rows: maps.Clone(rows)}, "boot")
			k := Register(s, "tags", f, Options[string, string]{Background: true})
			ctx, cancel := context.WithCancel(t.Context())
			if err := s.Start(ctx); err != nil {
				t.Fatal(err)
			}
			do(k)
			var running sync.WaitGroup
			running.Go(func() { s.Run(ctx) })
			time.Sleep(time.Minute)
			cancel()
			running.Wait()
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}
		set := func(k *Kind[string, string], spec string) {
			if _, err := k.Set(t.Context(), Request[string]{Key: "a", Spec: spec}); err != nil {
				t.Error(err)
			}
		}
		remove := func(k *Kind[string, string]) {
			if err := k.Remove(t.Context(), "a"); err != nil {
				t.Error(err)
			}
		}
		run(func(k *Kind[string, string]) {
			set(k, "1")
			wantCalls(t, f)
			during = func() { // while the target is called
				go remove(k)
				time.Sleep(time.Second)
			}
		})
		wantCalls(t, f, "ensure a 1", "delete a")
		if len(rows) != 0 {
			t.Errorf("rows %q", rows)
		}
		run(func(k *Kind[string, string]) {
			set(k, "2")
			remove(k)
			during = func() {
				go set(k, "3")
				time.Sleep(time.Second)
			}
		})
		wantCalls(t, f, "delete a", "ensure a 3")
		run(func(k *Kind[string, string]) { set(k, "4") })
		wantCalls(t, f, "ensure a 4")
		run(func(k *Kind[string, string]) {
			if r, ok := k.Get("a"); !ok || !r.Done || r.Last != "made 4" {
				t.Errorf("row %+v", r)
			}
			if _, err := k.Set(t.Context(), Request[string]{Key: "a", Claims: []string{"x"}}); err == nil {
				t.Error("a background row has claims")
			}
		})
		wantCalls(t, f)
	})
}

// memory is a journal in memory.
type memory struct{ rows map[string][]byte }

func (m *memory) commit(changes map[string][]byte, _ uint64) error {
	for name, text := range changes {
		if text == nil {
			delete(m.rows, name)
		} else {
			m.rows[name] = text
		}
	}
	return nil
}

func (m *memory) reserve() error { return nil }

func (m *memory) close() error { return nil }

func TestInspect(t *testing.T) {
	path := filepath.Join(t.TempDir(), "test.db")
	if h := Inspect(path); h != (Health{}) {
		t.Errorf("a missing file: %+v", h)
	}
	s := open(t, path)
	k := Register(s, "port", &fakeTarget{}, Options[string, string]{})
	if _, err := k.Set(t.Context(), Request[string]{Key: "a", Spec: "1"}); err != nil {
		t.Fatal(err)
	}
	want := s.Rows()
	if h := Inspect(path); !h.Exists || !errors.Is(h.Err, ErrInUse) || h.Full || h.Damaged != "" {
		t.Errorf("an open file: %+v", h)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	rows, err := Read(path)
	if err != nil || len(rows) != 1 || string(rows["port/a"]) != string(want["port/a"]) {
		t.Errorf("rows %s, %v, want %s", rows, err, want)
	}
	if err := os.WriteFile(path, []byte(strings.Repeat("garbage!", 4096)), 0o600); err != nil {
		t.Fatal(err)
	}
	if h := Inspect(path); !errors.Is(h.Err, errDamaged) {
		t.Errorf("a damaged file: %+v", h)
	}
	open(t, path)
	if h := Inspect(path); !strings.HasPrefix(h.Damaged, path+".damaged-") {
		t.Errorf("after a damaged file: %+v", h)
	}
}

func TestMaxRows(t *testing.T) {
	for _, background := range []bool{false, true} {
		s := open(t, filepath.Join(t.TempDir(), "test.db"))
		k := Register(s, "port", &fakeTarget{}, Options[string, string]{Background: background, MaxRows: 2})
		set := func(key, spec string) error {
			_, err := k.Set(t.Context(), Request[string]{Key: key, Spec: spec})
			return err
		}
		if err := errors.Join(set("a", "1"), set("b", "1"), set("b", "2")); err != nil {
			t.Error(err)
		}
		if err := set("c", "1"); !errors.Is(err, ErrFull) {
			t.Errorf("a row too many: %v", err)
		}
		if err := errors.Join(k.Remove(t.Context(), "a"), k.Forget(t.Context(), "a"), set("c", "1")); err != nil {
			t.Error(err)
		}
	}
}
