package engine

import (
	"bytes"
	"encoding/binary"
	"sync"
	"testing"
)

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func begin(t testing.TB, s Store) Writer {
	t.Helper()
	w, err := s.Begin(t.Context())
	ok(t, err)
	return w
}

// keysOf joins the keys of a table.
func keysOf(tx Tx, table string) string {
	var keys [][]byte
	for k := range tx.Seek(table, nil) {
		keys = append(keys, k)
	}
	return string(bytes.Join(keys, []byte(" ")))
}

// TestMemoryIsolates checks that a reader sees one state, and no change that is not committed.
func TestMemoryIsolates(t *testing.T) {
	t.Parallel()
	m := NewMemory()
	w := begin(t, m)
	ok(t, w.Put("a", []byte("1"), []byte("x")))
	ok(t, w.Commit())
	ok(t, m.View(func(old Tx) error {
		w := begin(t, m)
		ok(t, w.Put("a", []byte("2"), nil))
		ok(t, w.Delete("a", []byte("1")))
		ok(t, w.Put("b", []byte("3"), nil))
		ok(t, m.View(func(tx Tx) error {
			if got := keysOf(tx, "a") + keysOf(tx, "b"); got != "1" {
				t.Errorf("before the commit there is %q", got)
			}
			return nil
		}))
		ok(t, w.Commit())
		if got := keysOf(old, "a") + keysOf(old, "b"); got != "1" {
			t.Errorf("after the commit the older reader sees %q", got)
		}
		return nil
	}))
	w = begin(t, m)
	ok(t, w.Clear("a"))
	w.Rollback()
	w = begin(t, m)
	defer w.Rollback()
	if a, b := keysOf(w, "a"), keysOf(w, "b"); a != "2" || b != "3" {
		t.Errorf("there is %q and %q", a, b)
	}
	if v := w.Get("a", []byte("2")); v == nil || len(v) > 0 {
		t.Errorf("the empty value is %v", v)
	}
}

// TestMemoryRefuses checks bad keys, and changes outside of an open Writer.
func TestMemoryRefuses(t *testing.T) {
	t.Parallel()
	m := NewMemory()
	w := begin(t, m)
	for _, key := range [][]byte{nil, {}, make([]byte, MaxKey+1)} {
		if err := w.Put("a", key, nil); err == nil {
			t.Errorf("a key of %d bytes was stored", len(key))
		}
	}
	ok(t, w.Put("a", make([]byte, MaxKey), nil))
	w.Rollback()
	w.Rollback()
	if err := w.Put("a", []byte("1"), nil); err == nil {
		t.Error("a Writer changes the store after its end")
	}
	if err := w.Commit(); err == nil {
		t.Error("a Writer commits after its end")
	}
	ok(t, m.View(func(tx Tx) error {
		if tx.Put("a", []byte("1"), nil) == nil || tx.Delete("a", []byte("1")) == nil || tx.Clear("a") == nil {
			t.Error("a reader changes the store")
		}
		return nil
	}))
}

// TestMemoryConcurrently checks that writers take turns and that readers see whole changes.
func TestMemoryConcurrently(t *testing.T) {
	t.Parallel()
	m := NewMemory()
	const writers, rounds = 4, 200
	counter := []byte("n")
	read := func(tx Tx) (n uint64, rows int) {
		if v := tx.Get("a", counter); v != nil {
			n = binary.BigEndian.Uint64(v)
		}
		for range tx.Seek("b", nil) {
			rows++
		}
		return n, rows
	}
	done := make(chan struct{})
	var reading, writing sync.WaitGroup
	reading.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			err := m.View(func(tx Tx) error {
				if n, rows := read(tx); n != uint64(rows) {
					t.Errorf("a reader sees %d rows and the counter %d", rows, n)
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		}
	})
	for range writers {
		writing.Go(func() {
			for range rounds {
				w, err := m.Begin(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				n, _ := read(w)
				next := binary.BigEndian.AppendUint64(nil, n+1)
				if w.Put("a", counter, next) != nil || w.Put("b", next, nil) != nil || w.Commit() != nil {
					t.Error("the change is refused")
				}
			}
		})
	}
	writing.Wait()
	close(done)
	reading.Wait()
	w := begin(t, m)
	defer w.Rollback()
	if n, rows := read(w); n != writers*rounds || rows != writers*rounds {
		t.Errorf("the counter is %d and there are %d rows, want %d", n, rows, writers*rounds)
	}
}
