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

// TestLater shows that SetLater and RemoveLater do not wait for the target, and that the last intent
// wins over an attempt that is in flight.
func TestLater(t *testing.T) {
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
			k := Register(s, "tags", f, Options[string, string]{})
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
			q := Request[string]{Key: "a", Spec: spec, Claims: []string{"claim"}}
			succeed(t, "SetLater", k.SetLater(t.Context(), q))
		}
		remove := func(k *Kind[string, string]) {
			succeed(t, "RemoveLater", k.RemoveLater(t.Context(), "a"))
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
			err := k.SetLater(t.Context(), Request[string]{Key: "b", Claims: []string{"claim"}})
			if !IsConflict(err) {
				t.Errorf("SetLater with another's claim: %v", err)
			}
		})
		wantCalls(t, f)
	})
}

// A repeated RemoveLater makes the attempt due now, and does not cut off one that is in flight.
func TestRemoveLaterAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := Config{Logger: slog.New(slog.DiscardHandler), MinBackoff: time.Hour, MaxBackoff: 2 * time.Hour}
		s := newStore(c, &memory{map[string][]byte{}}, &content{}, "boot")
		f := &slowDelete{cut: make(chan error, 9)}
		k := Register(s, "tags", f, Options[string, string]{})
		if err := s.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { s.Run(ctx) })
		rows := []Row[string, string]{{Object: Object{Key: "a"}, Phase: Deleting, Done: true}}
		succeed(t, "Import", k.Import(ctx, rows)) // due in MinBackoff
		for range 3 {
			succeed(t, "RemoveLater", k.RemoveLater(ctx, "a"))
			time.Sleep(time.Second)
		}
		time.Sleep(time.Minute)
		if _, ok := k.Get("a"); ok {
			t.Error("the row was not deleted")
		}
		cancel()
		running.Wait()
		succeed(t, "Close", s.Close())
		if len(f.cut) != 1 {
			t.Fatalf("%d attempts, want 1", len(f.cut))
		}
		if err := <-f.cut; err != nil {
			t.Errorf("the attempt was cut off: %v", err)
		}
	})
}

// slowDelete is a target whose deletions take ten seconds. It notes how each of them ended.
type slowDelete struct {
	fakeTarget
	cut chan error
}

func (f *slowDelete) Delete(ctx context.Context, _ Object, _, _ string) error {
	select {
	case <-ctx.Done():
	case <-time.After(10 * time.Second):
	}
	f.cut <- ctx.Err()
	return ctx.Err()
}

// RetryFailed makes a failed attempt due now, but one that fails again not after each call.
func TestRetryFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, k := newKind(t)
		set(t, k, Request[string]{Key: "a"})
		f.fail = failing("delete a", errTest)
		if err := k.Remove(t.Context(), "a"); !IsPending(err) {
			t.Errorf("Remove: got %v, want pending", err)
		}
		f.calls = nil
		run(t, k.store)
		k.store.RetryFailed()
		synctest.Wait()
		wantCalls(t, f, "delete a")
		const seconds = 10
		for range 100 * seconds {
			k.store.RetryFailed()
			time.Sleep(10 * time.Millisecond)
		}
		f.mu.Lock()
		if n := len(f.calls); n < seconds/2 || n > 2*seconds {
			t.Errorf("%d attempts in %d s, want one or two a second", n, seconds)
		}
		f.calls, f.fail = nil, nil
		f.mu.Unlock()
		time.Sleep(time.Second)
		k.store.RetryFailed()
		synctest.Wait()
		wantCalls(t, f, "delete a")
		if _, ok := k.Get("a"); ok {
			t.Error("the row was not deleted")
		}
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
	for _, later := range []bool{false, true} {
		s := open(t, filepath.Join(t.TempDir(), "test.db"))
		k := Register(s, "port", &fakeTarget{}, Options[string, string]{MaxRows: 2})
		set := func(key, spec string) error {
			if later {
				return k.SetLater(t.Context(), Request[string]{Key: key, Spec: spec})
			}
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

// RemoveTree deletes a row and all rows that it owns, children first, with one commit. A child that
// cannot be deleted holds up its owners and no other row, and they wait for its end.
func TestRemoveTree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, k := newKind(t)
		set(t, k, Request[string]{Key: "net"})
		for _, pair := range [][2]string{{"child", "net"}, {"grandchild", "child"}, {"other", "net"}} {
			set(t, k, Request[string]{Key: pair[0], Owners: []string{k.Ref(pair[1])}})
		}
		f.calls, f.fail = nil, failing("delete grandchild", errTest)
		commits := &countingJournal{journal: k.store.journal}
		k.store.journal = commits
		if err := k.RemoveTree(t.Context(), "net"); !IsPending(err) || !errors.Is(err, errTest) {
			t.Errorf("RemoveTree: got %v, want pending", err)
		}
		wantCalls(t, f, "delete grandchild", "delete other")
		if commits.n != 1 {
			t.Errorf("%d commits, want 1", commits.n)
		}
		for _, key := range []string{"net", "child", "grandchild"} {
			r, _ := k.Get(key)
			if tries := map[string]int{"grandchild": 1}[key]; r.Phase != Deleting || r.Tries != tries {
				t.Errorf("row %+v, want one that is being deleted after %d tries", r, tries)
			}
		}
		run(t, k.store)
		time.Sleep(time.Minute)
		if r, _ := k.Get("net"); r.Tries != 0 || r.Err != "" {
			t.Errorf("row %+v, want one without a failure", r)
		}
		f.mu.Lock()
		f.calls, f.fail = nil, nil
		f.mu.Unlock()
		time.Sleep(defaultMaxBackoff)
		wantCalls(t, f, "delete grandchild", "delete child", "delete net")
	})
}

// RemoveTreeIf asks for its condition under the row's lock, and not for a row that is being deleted.
func TestRemoveTreeIf(t *testing.T) {
	t.Parallel()
	f, k := newKind(t)
	set(t, k, Request[string]{Key: "a", Spec: "one"})
	set(t, k, Request[string]{Key: "b", Owners: []string{k.Ref("a")}})
	f.calls = nil
	asked, failure := 0, error(nil)
	remove := func(met bool) error {
		return k.RemoveTreeIf(t.Context(), "a", func(_ context.Context, r Row[string, string]) (bool, error) {
			locked, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			defer cancel()
			if err := k.Forget(locked, "a"); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("lock of the row: got %v, want it held", err)
			}
			asked++
			return met && r.Spec == "one", failure
		})
	}
	if err := remove(false); err != nil {
		t.Error(err)
	}
	failure = errTest
	if err := remove(true); !errors.Is(err, errTest) || IsPending(err) {
		t.Errorf("got %v, want the error of the condition", err)
	}
	wantCalls(t, f)
	failure, f.fail = nil, failing("delete b", errTest)
	if err := remove(true); !IsPending(err) {
		t.Errorf("got %v, want pending", err)
	}
	f.fail = nil
	if err := remove(false); err != nil || asked != 3 {
		t.Errorf("%v, asked %d times, want 3", err, asked)
	}
	wantCalls(t, f, "delete b", "delete b", "delete a")
}

// RemoveTree waits for a child whose Set is in progress, and deletes it too.
func TestRemoveTreeDuringSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, k := newKind(t)
		set(t, k, Request[string]{Key: "net"})
		f.fail = func(string) error { time.Sleep(time.Second); return nil }
		q := Request[string]{Key: "child", Owners: []string{k.Ref("net")}}
		go set(t, k, q)
		synctest.Wait()
		succeed(t, "RemoveTree", k.RemoveTree(t.Context(), "net"))
		wantCalls(t, f, "ensure net ", "ensure child ", "delete child", "delete net")
	})
}

type countingJournal struct {
	journal
	n int
}

func (j *countingJournal) commit(changes map[string][]byte, gen uint64) error {
	j.n++
	return j.journal.commit(changes, gen)
}

// A row that is imported does not get what another row has.
func TestImportedClaims(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "test.db"))
	k := Register(s, "port", &fakeTarget{}, Options[string, string]{})
	set := func(key string) error {
		_, err := k.Set(t.Context(), Request[string]{Key: key, Spec: "1", Claims: []string{"address"}})
		return err
	}
	if err := set("a"); err != nil {
		t.Fatal(err)
	}
	found := Row[string, string]{Object: Object{Key: "b"}, Phase: Wanted, Claims: []string{"address"}}
	if err := k.Import(t.Context(), []Row[string, string]{found}); err != nil {
		t.Fatal(err)
	}
	if r, _ := k.Holder("address"); r.Key != "a" {
		t.Errorf("the address is row %q's", r.Key)
	}
	if err := k.Remove(t.Context(), "b"); err != nil {
		t.Fatal(err)
	}
	if err := set("c"); !IsConflict(err) {
		t.Errorf("the address is two rows': %v", err)
	}
}

// A Set of an existing row neither makes a row nor brings one back that is being deleted.
func TestExisting(t *testing.T) {
	f, k := newKind(t)
	q := Request[string]{Key: "a", Spec: "later", Existing: true}
	absent := func(when string) {
		t.Helper()
		_, err := k.Set(t.Context(), q)
		for call, err := range map[string]error{"Set": err, "SetLater": k.SetLater(t.Context(), q)} {
			if !errors.Is(err, ErrAbsent) {
				t.Errorf("%s %s: got %v, want ErrAbsent", call, when, err)
			}
		}
	}
	absent("without a row")
	set(t, k, Request[string]{Key: "a"})
	succeed(t, "RemoveLater", k.RemoveLater(t.Context(), "a"))
	absent("during a deletion")
	if r, _ := k.Get("a"); r.Phase != Deleting {
		t.Errorf("row: got %+v, want it deleting", r)
	}
	succeed(t, "Remove", k.Remove(t.Context(), "a"))
	wantCalls(t, f, "ensure a ", "delete a")
	set(t, k, Request[string]{Key: "a"})
	succeed(t, "SetLater", k.SetLater(t.Context(), q))
	set(t, k, q)
	wantCalls(t, f, "ensure a ", "ensure a later")
}

// A deleted row that is set later has neither the engine of the deletion nor what that engine heard.
func TestLaterForgetsEngine(t *testing.T) {
	_, k := newKind(t)
	set(t, k, Request[string]{Key: "a", Engine: "gone"})
	k.NoteHeard("a", false)
	succeed(t, "SetLater", k.SetLater(t.Context(), Request[string]{Key: "a", Spec: "changed"}))
	if r := k.store.row("port/a"); r.Engine != "gone" || !r.Unheard {
		t.Errorf("changed row: got %+v, want its engine", r)
	}
	succeed(t, "RemoveLater", k.RemoveLater(t.Context(), "a"))
	succeed(t, "SetLater", k.SetLater(t.Context(), Request[string]{Key: "a"}))
	if r := k.store.row("port/a"); r.Engine != "" || r.Unheard || r.Acked {
		t.Errorf("row of a new engine: got %+v, want none of the old one", r)
	}
}

// A row is set later while the judge deletes it as an orphan, many times: the intent is stored and
// fulfilled, or refused if it was for an existing row.
func TestLaterAgainstJudge(t *testing.T) {
	f := &fakeTarget{}
	s := newStore(Config{Logger: slog.New(slog.DiscardHandler)}, &memory{map[string][]byte{}}, &content{}, "boot")
	k := Register(s, "port", f, Options[string, string]{
		Engine: &fakeEngine{id: "engine", has: map[string]bool{}}, Listed: listed,
	})
	judge := func(missing map[string]candidate, apart time.Duration) {
		if _, _, err := s.judge(t.Context(), missing, apart); err != nil {
			t.Error(err)
		}
	}
	deleted, kept := 0, 0
	for n := range 1000 {
		set(t, k, Request[string]{Key: "a", Engine: "engine"})
		missing := map[string]candidate{}
		judge(missing, -1)
		var calls sync.WaitGroup
		calls.Go(func() { judge(missing, 0) })
		q := Request[string]{Key: "a", Spec: "later", Existing: n%2 == 0}
		err := k.SetLater(t.Context(), q)
		calls.Wait()
		r, _ := k.Get("a")
		switch {
		case err == nil && r.Phase == Wanted && r.Spec == "later":
			kept++
		case errors.Is(err, ErrAbsent) && q.Existing && r.Phase == Deleting:
			deleted++
		default:
			t.Fatalf("SetLater: %v, row %+v", err, r)
		}
		k.attempt(t.Context(), "port/a")
		want := ""
		if err == nil {
			want = "later"
		}
		if f.objects["a"] != want {
			t.Fatalf("object %q, want %q", f.objects["a"], want)
		}
		succeed(t, "Remove", k.Remove(t.Context(), "a"))
	}
	t.Logf("deleted %d, kept %d", deleted, kept)
}
