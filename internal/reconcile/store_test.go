package reconcile

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/anishathalye/porcupine"
	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
)

// fakeTarget notes its calls and fails where a test says so.
type fakeTarget struct {
	mu      sync.Mutex
	calls   []string
	objects map[string]string
	fail    func(call string) error
}

func (f *fakeTarget) note(call string) error {
	f.mu.Lock()
	f.calls = append(f.calls, call)
	fail := f.fail
	f.mu.Unlock()
	if fail == nil {
		return nil
	}
	return fail(call)
}

func (f *fakeTarget) Ensure(_ context.Context, o Object, spec, _ string) (string, error) {
	if err := f.note("ensure " + o.Key + " " + spec); err != nil {
		return "", err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.objects == nil {
		f.objects = map[string]string{}
	}
	f.objects[o.Key] = spec
	return "made " + spec, nil
}

func (f *fakeTarget) Delete(_ context.Context, o Object, _, _ string) error {
	if err := f.note("delete " + o.Key); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, ok := f.objects[o.Key]; !ok {
		return ErrAbsent
	}
	delete(f.objects, o.Key)
	return nil
}

// failing returns an error for each call that begins like this.
func failing(prefix string, err error) func(string) error {
	return func(call string) error {
		if strings.HasPrefix(call, prefix) {
			return err
		}
		return nil
	}
}

func open(t *testing.T, path string) *Store {
	t.Helper()
	s, err := Open(Config{Path: path, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func newKind(t *testing.T) (*fakeTarget, *Kind[string, string]) {
	t.Helper()
	f := &fakeTarget{}
	s := open(t, filepath.Join(t.TempDir(), "test.db"))
	return f, Register(s, "port", f, Options[string, string]{})
}

func wantCalls(t *testing.T, f *fakeTarget, want ...string) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	if !slices.Equal(f.calls, want) {
		t.Errorf("calls %q, want %q", f.calls, want)
	}
	f.calls = nil
}

var errTest = errors.New("test")

func TestSetAndRemove(t *testing.T) {
	f, k := newKind(t)
	q := Request[string]{Key: "a", Spec: "1", Claims: []string{"address/1"}}
	for range 2 { // the second answers what the first did
		if last, err := k.Set(t.Context(), q); last != "made 1" || err != nil {
			t.Fatalf("Set: %q, %v", last, err)
		}
	}
	q.Spec = "2"
	if last, err := k.Set(t.Context(), q); last != "made 2" || err != nil {
		t.Fatalf("Set: %q, %v", last, err)
	}
	if r, ok := k.Holder("address/1"); !ok || r.Key != "a" || !r.Done || !r.Acked {
		t.Errorf("row %+v", r)
	}
	for range 2 {
		if err := k.Remove(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
	}
	wantCalls(t, f, "ensure a 1", "ensure a 2", "delete a")
	if r, ok := k.Get("a"); ok {
		t.Errorf("row %+v", r)
	}
}

func TestFailedSet(t *testing.T) {
	for _, c := range []struct {
		name  string
		err   error
		calls []string
		row   bool
	}{
		{"refused", Refused(errTest), []string{"ensure a 1"}, false},
		{"failed", errTest, []string{"ensure a 1", "delete a"}, false},
		{"unconfirmed", Unconfirmed(errTest), []string{"ensure a 1", "delete a"}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, k := newKind(t)
			f.fail = failing("ensure", c.err)
			if _, err := k.Set(t.Context(), Request[string]{Key: "a", Spec: "1"}); !errors.Is(err, errTest) {
				t.Errorf("Set: %v", err)
			}
			wantCalls(t, f, c.calls...)
			if r, ok := k.Get("a"); ok != c.row || ok && !r.Unconfirmed {
				t.Errorf("row %v %+v", ok, r)
			}
		})
	}
}

func TestFailedSetRestores(t *testing.T) {
	f, k := newKind(t)
	if _, err := k.Set(t.Context(), Request[string]{Key: "a", Spec: "1", Claims: []string{"x"}}); err != nil {
		t.Fatal(err)
	}
	f.fail = failing("ensure a 2", errTest)
	_, err := k.Set(t.Context(), Request[string]{Key: "a", Spec: "2", Claims: []string{"y"}})
	if !errors.Is(err, errTest) || IsPending(err) {
		t.Errorf("Set: %v", err)
	}
	r, _ := k.Get("a")
	if r.Spec != "1" || r.Last != "made 1" || r.Phase != Wanted || !slices.Equal(r.Claims, []string{"x"}) {
		t.Errorf("row %+v", r)
	}
	if _, ok := k.Holder("y"); ok {
		t.Error("the claim of the failed Set is still held")
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); k.store.Run(ctx) }()
	waitFor(t, func() bool { r, _ := k.Get("a"); return r.Err == "" })
	cancel()
	<-done
	wantCalls(t, f, "ensure a 1", "ensure a 2", "ensure a 1")
}

// waitFor waits for what another goroutine does.
func waitFor(t *testing.T, met func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !met(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("condition not met")
		}
	}
}

func TestClaims(t *testing.T) {
	f, k := newKind(t)
	set := func(key string) error {
		_, err := k.Set(t.Context(), Request[string]{Key: key, Spec: "1", Claims: []string{"address/1"}})
		return err
	}
	if err := set("a"); err != nil {
		t.Fatal(err)
	}
	err := set("b")
	if conflict, ok := errors.AsType[*ConflictError](err); !ok || *conflict != (ConflictError{"address/1", "port/a"}) {
		t.Errorf("Set: %v", err)
	}
	f.fail = failing("delete", errTest)
	if err := k.Remove(t.Context(), "a"); !IsPending(err) {
		t.Errorf("Remove: %v", err)
	}
	if err := set("b"); !IsPending(err) {
		t.Errorf("Set: %v", err)
	}
	f.fail = nil
	if err := set("b"); err != nil { // which completes the deletion
		t.Errorf("Set: %v", err)
	}
	wantCalls(t, f, "ensure a 1", "delete a", "delete a", "delete a", "ensure b 1")
}

func TestOwners(t *testing.T) {
	f, k := newKind(t)
	set := func(key string, owners ...string) error {
		_, err := k.Set(t.Context(), Request[string]{Key: key, Owners: owners})
		return err
	}
	if err := errors.Join(set("pool"), set("network", k.Ref("pool")), set("port", k.Ref("network"))); err != nil {
		t.Fatal(err)
	}
	f.calls = nil
	// The pool waits for the network, as Docker asks for it first.
	if err := k.Remove(t.Context(), "pool"); !IsPending(err) {
		t.Errorf("Remove: %v", err)
	}
	if err := set("other", k.Ref("pool")); !IsOwnerGone(err) {
		t.Errorf("Set below an owner that is being deleted: %v", err)
	}
	f.fail = failing("delete port", errTest)
	if err := errors.Join(k.Remove(t.Context(), "port")); !IsPending(err) {
		t.Errorf("Remove: %v", err)
	}
	f.fail, f.calls = nil, nil
	// The network's removal deletes its port first, and the pool is due then.
	if err := k.Remove(t.Context(), "network"); err != nil {
		t.Errorf("Remove: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go k.store.Run(ctx)
	waitFor(t, func() bool { _, ok := k.Get("pool"); return !ok })
	wantCalls(t, f, "delete port", "delete network", "delete pool")
}

// TestStart opens a store whose process was killed, with rows in every state.
func TestStart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "test.db")
	s := open(t, path)
	f := &fakeTarget{}
	k := Register(s, "port", f, Options[string, string]{Confirm: true})
	for _, key := range []string{"keep", "drop", "again", "delete", "removed"} {
		if _, err := k.Set(t.Context(), Request[string]{Key: key, Spec: "1"}); err != nil {
			t.Fatal(err)
		}
	}
	f.fail = failing("", errTest)
	_ = k.Remove(t.Context(), "removed")
	id, gen := s.ID(), s.gen
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	f.calls, f.fail = nil, nil
	s = open(t, path)
	if s.ID() != id || s.gen < gen { // it has the time, so that a lost file brings none back
		t.Errorf("id %s, gen %d; was %s, %d", s.ID(), s.gen, id, gen)
	}
	actions := map[string]Action{"drop": Drop, "again": Ensure, "delete": Delete}
	k = Register(s, "port", f, Options[string, string]{
		Start: func(r Row[string, string], rebooted bool) Action {
			if rebooted {
				t.Error("the kernel has not been started")
			}
			return actions[r.Key]
		},
	})
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go s.Run(ctx)
	var keys []string
	waitFor(t, func() bool {
		keys = nil
		redo := false
		for r := range k.Rows() {
			keys = append(keys, r.Key)
			row := k.store.row(k.Ref(r.Key)) // absent if it went after it was listed
			redo = redo || row != nil && row.Redo
		}
		return len(keys) == 2 && !redo
	})
	slices.Sort(keys)
	slices.Sort(f.calls)
	wantCalls(t, f, "delete delete", "delete removed", "ensure again 1")
	if !slices.Equal(keys, []string{"again", "keep"}) {
		t.Errorf("rows %v", keys)
	}
}

func TestFiles(t *testing.T) {
	written := func(t *testing.T) string {
		path := filepath.Join(t.TempDir(), "test.db")
		s := open(t, path)
		k := Register(s, "port", &fakeTarget{}, Options[string, string]{})
		var rows []Row[string, string]
		for i := range 500 {
			rows = append(rows, Row[string, string]{
				Object: Object{Key: fmt.Sprint(i)}, Phase: Wanted, Spec: strings.Repeat("x", 200),
			})
		}
		if err := errors.Join(k.Import(t.Context(), rows), s.Close()); err != nil {
			t.Fatal(err)
		}
		return path
	}
	log := slog.New(slog.DiscardHandler)
	rows := func(path, boot string, volatile bool) (int, error) {
		j, c, err := openBolt(path, boot, volatile, log)
		if err != nil {
			return 0, err
		}
		return len(c.rows), j.close()
	}
	_, c, err := openBolt(filepath.Join(t.TempDir(), "new.db"), "boot", false, log)
	if err != nil || c.id == "" {
		t.Fatalf("%+v, %v", c, err)
	}
	t.Run("in use", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "test.db")
		open(t, path)
		if _, err := Open(Config{Path: path}); !errors.Is(err, ErrInUse) {
			t.Error(err)
		}
	})
	t.Run("newer", func(t *testing.T) {
		path := written(t)
		j, _, err := openBolt(path, "boot", false, log)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(j.db.Update(putFormat("2")), j.close()); err != nil {
			t.Fatal(err)
		}
		if _, err := rows(path, "boot", false); !errors.Is(err, ErrNewer) {
			t.Error(err)
		}
	})
	for _, size := range []int64{1, 4096, 20000, 60000} {
		t.Run(fmt.Sprint("truncated to ", size), func(t *testing.T) {
			path := written(t)
			if err := os.Truncate(path, size); err != nil {
				t.Fatal(err)
			}
			if n, err := rows(path, "boot", false); n != 0 || err != nil {
				t.Errorf("%d rows, %v", n, err)
			}
			if kept, _ := filepath.Glob(path + ".damaged-*"); len(kept) != 1 {
				t.Errorf("damaged files kept: %v", kept)
			}
		})
	}
	t.Run("overwritten", func(t *testing.T) {
		path := written(t)
		file, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		_, err = file.WriteAt([]byte(strings.Repeat("garbage!", 4096)), 8192)
		if err := errors.Join(err, file.Close()); err != nil {
			t.Fatal(err)
		}
		if n, err := rows(path, "boot", false); n != 0 || err != nil {
			t.Errorf("%d rows, %v", n, err)
		}
	})
	t.Run("volatile", func(t *testing.T) {
		path := written(t)
		for _, boot := range []string{"one", "two", "two"} {
			if n, err := rows(path, boot, boot == "two"); err != nil || n != map[string]int{"one": 500}[boot] {
				t.Errorf("boot %s: %d rows, %v", boot, n, err)
			}
		}
	})
}

// TestFullDisk fills the file system: new rows are refused first, and rows can still be removed.
func TestFullDisk(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("mounting a file system needs root")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=3m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	s := open(t, filepath.Join(dir, "test.db"))
	k := Register(s, "port", &fakeTarget{}, Options[string, string]{})
	for i := range 50 {
		key := fmt.Sprint("old", i)
		if _, err := k.Set(t.Context(), Request[string]{Key: key, Spec: "1"}); err != nil {
			t.Fatal(err)
		}
	}
	file, err := os.Create(filepath.Join(dir, "filler"))
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = file.Write(make([]byte, 4096))
	}
	for i := 0; ; i++ { // what is left of the file's own pages
		_, err := k.Set(t.Context(), Request[string]{Key: fmt.Sprint(i), Spec: strings.Repeat("x", 4096)})
		if errors.Is(err, ErrFull) {
			break
		}
		if i == 1000 {
			t.Fatalf("new rows are still taken: %v", err)
		}
	}
	for i := range 50 {
		if err := k.Remove(t.Context(), fmt.Sprint("old", i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(file.Close(), os.Remove(file.Name())); err != nil {
		t.Fatal(err)
	}
	if _, err := k.Set(t.Context(), Request[string]{Key: "b", Spec: "1"}); err != nil {
		t.Errorf("with room again: %v", err)
	}
}

// TestCancelled makes 200 concurrent calls, of which a half is cancelled: each leaves a row that
// is done, or nothing.
func TestCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, k := newKind(t)
		f.fail = func(string) error { time.Sleep(time.Second); return nil }
		var calls sync.WaitGroup
		errs := make([]error, 200)
		for i := range errs {
			calls.Go(func() {
				ctx := t.Context()
				if i%2 == 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, time.Duration(rand.IntN(1500))*time.Millisecond)
					defer cancel()
				}
				_, errs[i] = k.Set(ctx, Request[string]{Key: fmt.Sprint(i % 150), Spec: fmt.Sprint(i)})
			})
		}
		calls.Wait()
		for r := range k.Rows() {
			if r.Phase != Wanted || !r.Done || f.objects[r.Key] != r.Spec {
				t.Errorf("row %+v, object %q", r, f.objects[r.Key])
			}
		}
		for i, err := range errs {
			if i%2 == 1 && err != nil {
				t.Error(err)
			}
		}
	})
}

// TestLinearizable runs concurrent calls for one key: they are as if one followed the other.
func TestLinearizable(t *testing.T) {
	type input struct {
		do, spec string
	}
	model := porcupine.Model{
		Init: func() any { return "" },
		Step: func(state, in, out any) (bool, any) {
			switch i := in.(input); i.do {
			case "set":
				return true, i.spec
			case "remove":
				return true, ""
			default:
				return out == state, state
			}
		},
	}
	f, k := newKind(t)
	f.fail = func(string) error { time.Sleep(time.Duration(rand.IntN(300)) * time.Microsecond); return nil }
	begin := time.Now()
	var mu sync.Mutex
	var history []porcupine.Operation
	var clients sync.WaitGroup
	for c := range 6 {
		clients.Go(func() {
			for i := range 40 {
				in := input{[]string{"set", "remove", "get"}[rand.IntN(3)], fmt.Sprint(c, ".", i)}
				op := porcupine.Operation{ClientId: c, Input: in, Call: time.Since(begin).Nanoseconds()}
				switch in.do {
				case "set":
					if _, err := k.Set(t.Context(), Request[string]{Key: "a", Spec: in.spec}); err != nil {
						t.Error(err)
					}
				case "remove":
					if err := k.Remove(t.Context(), "a"); err != nil {
						t.Error(err)
					}
				default:
					op.Output = ""
					if r, ok := k.Get("a"); ok && r.Phase == Wanted {
						op.Output = r.Spec
					}
				}
				op.Return = time.Since(begin).Nanoseconds()
				mu.Lock()
				history = append(history, op)
				mu.Unlock()
			}
		})
	}
	clients.Wait()
	if result := porcupine.CheckOperationsTimeout(model, history, time.Minute); result != porcupine.Ok {
		t.Errorf("history of %d calls: %v", len(history), result)
	}
}

// BenchmarkSetRemove prints the commits of a row's life beside its time.
func BenchmarkSetRemove(b *testing.B) {
	s, err := Open(Config{Path: filepath.Join(b.TempDir(), "test.db"), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	k := Register(s, "port", &fakeTarget{}, Options[string, string]{})
	for i := 0; b.Loop(); i++ {
		if _, err := k.Set(b.Context(), Request[string]{Key: fmt.Sprint(i), Spec: "1"}); err != nil {
			b.Fatal(err)
		}
		if err := k.Remove(b.Context(), fmt.Sprint(i)); err != nil {
			b.Fatal(err)
		}
	}
}

func putFormat(f string) func(*bbolt.Tx) error {
	return func(tx *bbolt.Tx) error { return tx.Bucket(bucketMeta).Put(keyFormat, []byte(f)) }
}
