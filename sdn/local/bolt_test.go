package local

import (
	"bytes"
	"encoding/binary"
	"errors"
	"path/filepath"
	"testing"

	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/engine"
	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// testDB opens an empty file that is not synced.
func testDB(t testing.TB) *bbolt.DB {
	t.Helper()
	db, err := openBolt(filepath.Join(t.TempDir(), "test.db"), boltOptions(true))
	ok(t, err)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// failer is a test of package testing or rapid.
type failer interface {
	Helper()
	Fatalf(format string, args ...any)
}

// twoStores are a bbolt store and a Memory that get the same changes.
type twoStores struct{ bolt, memory engine.Store }

// twoWriters are the transactions of twoStores.
type twoWriters struct{ bolt, memory engine.Writer }

func (s twoStores) begin(t *testing.T, f failer) twoWriters {
	f.Helper()
	b, err := s.bolt.Begin(t.Context())
	if err != nil {
		f.Fatalf("begin: %v", err)
	}
	m, err := s.memory.Begin(t.Context())
	if err != nil {
		f.Fatalf("begin: %v", err)
	}
	return twoWriters{b, m}
}

func (w twoWriters) do(f failer, change func(engine.Writer) error) {
	f.Helper()
	b, m := change(w.bolt), change(w.memory)
	if (b == nil) != (m == nil) {
		f.Fatalf("bbolt answers %v, the memory %v", b, m)
	}
}

// sameAround compares what two transactions have at and around a key.
func sameAround(f failer, a, b engine.Tx, table string, key []byte) {
	f.Helper()
	same := func(what string, ka, va, kb, vb []byte) {
		f.Helper()
		if !bytes.Equal(ka, kb) || !bytes.Equal(va, vb) || (va == nil) != (vb == nil) {
			f.Fatalf("%s of %q in %s: bbolt has %q (%d bytes, nil %v), the memory %q (%d bytes, nil %v)",
				what, key, table, ka, len(va), va == nil, kb, len(vb), vb == nil)
		}
	}
	same("Get", nil, a.Get(table, key), nil, b.Get(table, key))
	ka, va := a.Floor(table, key)
	kb, vb := b.Floor(table, key)
	same("Floor", ka, va, kb, vb)
	first := func(tx engine.Tx) (k, v []byte) {
		for k, v := range tx.Seek(table, key) {
			return k, v
		}
		return nil, nil
	}
	ka, va = first(a)
	kb, vb = first(b)
	same("Seek", ka, va, kb, vb)
}

// sameTable compares all that two transactions have in a table.
func sameTable(f failer, a, b engine.Tx, table string) {
	f.Helper()
	list := func(tx engine.Tx) (out [][]byte) {
		for k, v := range tx.Seek(table, nil) {
			out = append(out, k, v)
		}
		return out
	}
	la, lb := list(a), list(b)
	if len(la) != len(lb) {
		f.Fatalf("table %s has %d keys in bbolt and %d in the memory", table, len(la)/2, len(lb)/2)
	}
	for i := range la {
		if !bytes.Equal(la[i], lb[i]) {
			f.Fatalf("table %s: bbolt has %q where the memory has %q", table, la[i], lb[i])
		}
	}
}

// TestStoresAgree plays random transactions on both stores and compares what they answer.
func TestStoresAgree(t *testing.T) {
	t.Parallel()
	names := []string{"a", "b", "n", "n/1", "n/1/free", "n/1/other", "n/2"}
	db := testDB(t)
	rapid.Check(t, func(r *rapid.T) {
		s := twoStores{NewStore(db), engine.NewMemory()}
		w := s.begin(t, r)
		for _, name := range names {
			w.do(r, func(w engine.Writer) error { return w.Clear(name) })
		}
		w.do(r, engine.Writer.Commit)
		table := rapid.SampledFrom(names)
		keys := rapid.SliceOfN(rapid.SampledFrom([]byte{0, 'p', 'q', 0xff}), 0, 3)
		for range rapid.IntRange(1, 5).Draw(r, "transactions") {
			w := s.begin(t, r)
			for range rapid.IntRange(0, 40).Draw(r, "operations") {
				name, key := table.Draw(r, "table"), keys.Draw(r, "key")
				switch rapid.IntRange(0, 9).Draw(r, "operation") {
				case 0:
					w.do(r, func(w engine.Writer) error { return w.Clear(name) })
				case 1, 2, 3:
					w.do(r, func(w engine.Writer) error { return w.Delete(name, key) })
				default:
					size := rapid.SampledFrom([]int{0, 1, 8, 900}).Draw(r, "size")
					value := bytes.Repeat([]byte{byte(size)}, size)
					w.do(r, func(w engine.Writer) error { return w.Put(name, key, value) })
				}
				for _, name := range names {
					sameAround(r, w.bolt, w.memory, name, keys.Draw(r, "look at"))
				}
			}
			end := engine.Writer.Commit
			if rapid.Bool().Draw(r, "roll back") {
				end = func(w engine.Writer) error { w.Rollback(); return nil }
			}
			w.do(r, end)
			err := s.bolt.View(func(b engine.Tx) error {
				return s.memory.View(func(m engine.Tx) error {
					for _, name := range names {
						sameTable(r, b, m, name)
					}
					return nil
				})
			})
			if err != nil {
				r.Fatalf("view: %v", err)
			}
		}
	})
}

// TestReadsPassEmptiedPages checks reads across pages that the same transaction has emptied, which
// bbolt keeps until the commit.
func TestReadsPassEmptiedPages(t *testing.T) {
	t.Parallel()
	const keys = 1000
	at := func(i int) []byte { return binary.BigEndian.AppendUint16(nil, uint16(i)) }
	for name, gone := range map[string]func(i int) bool{
		"middle":      func(i int) bool { return i > 200 && i < 800 },
		"start":       func(i int) bool { return i < 700 },
		"end":         func(i int) bool { return i > 300 },
		"all but one": func(i int) bool { return i != 500 },
		"all":         func(int) bool { return true },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := twoStores{NewStore(testDB(t)), engine.NewMemory()}
			w := s.begin(t, t)
			for i := range keys {
				w.do(t, func(w engine.Writer) error { return w.Put("a", at(2*i), make([]byte, 100)) })
			}
			w.do(t, engine.Writer.Commit)
			w = s.begin(t, t)
			defer w.do(t, func(w engine.Writer) error { w.Rollback(); return nil })
			for i := range keys {
				if gone(i) {
					w.do(t, func(w engine.Writer) error { return w.Delete("a", at(2*i)) })
				}
			}
			for i := range 2 * keys {
				sameAround(t, w.bolt, w.memory, "a", at(i))
			}
			sameTable(t, w.bolt, w.memory, "a")
		})
	}
}

// TestBoltCommitFails checks what a store says and keeps when the disk fails before and after a change
// is visible, and that it syncs what the disk has not confirmed before it goes on.
func TestBoltCommitFails(t *testing.T) {
	t.Parallel()
	for visible, commit := range map[bool]func(*bbolt.Tx) error{
		false: func(b *bbolt.Tx) error { return errors.Join(unix.EIO, b.Rollback()) },
		true:  func(b *bbolt.Tx) error { return errors.Join(unix.EIO, b.Commit()) },
	} {
		s := NewStore(testDB(t)).(*boltStore)
		s.commit = commit
		w, err := s.Begin(t.Context())
		ok(t, err)
		ok(t, w.Put("a", []byte("1"), nil))
		err = w.Commit()
		if errors.Is(err, engine.ErrNotDurable) != visible || !errors.Is(err, unix.EIO) || !sdn.IsUnavailable(err) {
			t.Errorf("visible %v: got error %v", visible, err)
		}
		w.Rollback()
		ok(t, s.View(func(tx engine.Tx) error {
			if seen := tx.Get("a", []byte("1")) != nil; seen != visible {
				t.Errorf("a reader sees the change: %v, want %v", seen, visible)
			}
			return nil
		}))
		if s.unsynced != visible {
			t.Errorf("unsynced is %v, want %v", s.unsynced, visible)
		}
		w, err = s.Begin(t.Context())
		ok(t, err)
		w.Rollback()
		if s.unsynced {
			t.Error("the store is unsynced after the next Begin")
		}
	}
}
