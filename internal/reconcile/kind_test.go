package reconcile

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"
)

// After a partial deletion the next one has what is left, also in another process.
func TestRemaining(t *testing.T) {
	path := filepath.Join(t.TempDir(), "test.db")
	var gone []string
	register := func(s *Store) (*partTarget, *Kind[string, string]) {
		f := &partTarget{}
		return f, Register(s, "port", f, Options[string, string]{
			Confirm: true, Removed: func(r Row[string, string]) { gone = append(gone, r.Key) },
		})
	}
	s := open(t, path)
	f, k := register(s)
	if _, err := k.Set(t.Context(), Request[string]{Key: "a", Spec: "1"}); err != nil {
		t.Fatal(err)
	}
	f.left = "half"
	if err := k.Remove(t.Context(), "a"); !IsPending(err) {
		t.Errorf("Remove: %v", err)
	}
	if r, _ := k.Get("a"); r.Last != "half" || len(gone) > 0 {
		t.Errorf("last %q, gone %q", r.Last, gone)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	f, k = register(open(t, path))
	if err := k.Remove(t.Context(), "a"); err != nil || f.last != "half" {
		t.Errorf("Remove of %q: %v", f.last, err)
	}
	if len(gone) != 1 || gone[0] != "a" {
		t.Errorf("gone %q", gone)
	}
}

// partTarget deletes a part of its object if left is not "".
type partTarget struct {
	fakeTarget
	left, last string
}

func (p *partTarget) Delete(_ context.Context, _ Object, _, last string) error {
	p.last = last
	if p.left != "" {
		return Remaining(p.left, errTest)
	}
	return nil
}

// A row that was imported is ensured by Repeat alone, and again after the backoff of the failures
// that Repeat was told of.
func TestImportAndRepeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, k := newKind(t)
		row := func(key, spec string) []Row[string, string] {
			return []Row[string, string]{{
				Object: Object{Key: key}, Phase: Wanted, Spec: spec, Last: "old", Done: true,
				Claims: []string{"address/" + key},
			}}
		}
		for _, spec := range []string{"1", "2"} { // the second is left out
			if err := k.Import(t.Context(), row("a", spec)); err != nil {
				t.Fatal(err)
			}
		}
		if r, ok := k.Holder("address/a"); !ok || r.Spec != "1" || r.Last != "old" || r.Incarnation == 0 {
			t.Errorf("row %+v", r)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go k.store.Run(ctx)
		synctest.Wait()
		wantCalls(t, f)
		for _, c := range []struct {
			failures    int
			least, most time.Duration
		}{{0, 0, 0}, {1, time.Second / 2, time.Second}, {4, 4 * time.Second, 8 * time.Second}} {
			begun := time.Now()
			if err := k.Repeat(ctx, "a", c.failures, errTest); err != nil {
				t.Fatal(err)
			}
			due := k.Due("a")
			for r, _ := k.Get("a"); r.Err != ""; r, _ = k.Get("a") {
				time.Sleep(10 * time.Millisecond)
			}
			if took := time.Since(begun); took < c.least || took > c.most+time.Second/10 {
				t.Errorf("%d failures: after %s", c.failures, took)
			}
			if c.failures > 0 && (due.Before(begun.Add(c.least)) || due.After(begun.Add(c.most))) {
				t.Errorf("%d failures: due %s, now %s", c.failures, due, begun)
			}
			wantCalls(t, f, "ensure a 1")
		}
		if err := k.Repeat(ctx, "absent", 0, nil); err != nil {
			t.Error(err)
		}
	})
}

// A Set that is being stored is not replaced by an Import of its key.
func TestImportDuringSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, k := newKind(t)
		answers := make(chan error)
		k.store.journal = heldJournal{k.store.journal, answers}
		go set(t, k, Request[string]{Key: "a", Spec: "set"})
		synctest.Wait()
		go func() {
			rows := []Row[string, string]{{Object: Object{Key: "a"}, Phase: Wanted, Spec: "imported"}}
			succeed(t, "Import", k.Import(t.Context(), rows))
		}()
		synctest.Wait()
		close(answers)
		synctest.Wait()
		if r, _ := k.Get("a"); r.Spec != "set" || !r.Done {
			t.Errorf("row: got %+v, want that of the Set", r)
		}
	})
}

// A deletion that is imported is completed by Run.
func TestImportedDeletionIsCompleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, k := newKind(t)
		run(t, k.store)
		rows := []Row[string, string]{{Object: Object{Key: "a"}, Phase: Deleting}}
		succeed(t, "Import", k.Import(t.Context(), rows))
		time.Sleep(time.Minute)
		wantCalls(t, f, "delete a")
	})
}

// Object.Earlier tells the target, also of another process, that an earlier object of the key may
// still appear.
func TestEarlier(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "test.db")
		s := open(t, path)
		f := &fakeTarget{fail: failing("ensure", Unconfirmed(errTest))}
		k := Register(s, "port", f, Options[string, string]{})
		if _, err := k.Set(t.Context(), Request[string]{Key: "a"}); !errors.Is(err, errTest) {
			t.Fatal(err)
		}
		f.fail = nil
		for _, spec := range []string{"1", "2"} {
			set(t, k, Request[string]{Key: "a", Spec: spec})
			if r, _ := k.Get("a"); !r.Earlier {
				t.Errorf("row %+v, want an earlier object", r)
			}
		}
		succeed(t, "Close", s.Close())
		s = open(t, path)
		k = Register(s, "port", f, Options[string, string]{})
		succeed(t, "Start", s.Start(t.Context()))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go s.Run(ctx)
		time.Sleep(time.Hour) // the first object is no longer looked for
		if r, _ := k.Get("a"); !r.Earlier {
			t.Errorf("row %+v, want an earlier object", r)
		}
		succeed(t, "Remove", k.Remove(ctx, "a"))
		set(t, k, Request[string]{Key: "a", Spec: "3"})
		if r, _ := k.Get("a"); r.Earlier {
			t.Errorf("row %+v, want no earlier object", r)
		}
	})
}

// A row has claims on what its target has chosen, also in another process. A newer answer takes
// them over, and an object that is looked for has none.
func TestAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "test.db")
		var s *Store
		var k *Kind[any, any]
		answers := anyFake{"a": "address/1", "b": "address/2", "c": "address/1"}
		reopen := func() {
			t.Helper()
			if s != nil {
				succeed(t, "Close", s.Close())
			}
			s = open(t, path)
			k = Register(s, "port", answers, Options[any, any]{Answered: func(r Row[any, any]) []string {
				claim, _ := r.Last.(string)
				return []string{claim}
			}})
		}
		holds := func(claim, want string) {
			t.Helper()
			if r, _ := k.Holder(claim); r.Key != want {
				t.Errorf("holder of %s: got %q, want %q", claim, r.Key, want)
			}
		}
		reopen()
		for _, key := range []string{"a", "b"} {
			set(t, k, Request[any]{Key: key, Claims: []string{"mac/" + key}})
		}
		for range 2 {
			holds("address/1", "a")
			holds("mac/a", "a")
			holds("address/2", "b")
			_, err := k.Set(t.Context(), Request[any]{Key: "d", Claims: []string{"address/1"}})
			if !IsConflict(err) {
				t.Errorf("Set with another's address: %v", err)
			}
			reopen()
		}
		set(t, k, Request[any]{Key: "c"})
		for range 2 {
			holds("address/1", "c")
			succeed(t, "Repeat", k.Repeat(t.Context(), "a", 0, nil)) // which stores the row again
			holds("address/1", "c")
			reopen()
		}
		succeed(t, "Remove", k.Remove(t.Context(), "a"))
		holds("address/1", "c")
		answers["b"] = "address/3"
		set(t, k, Request[any]{Key: "b", Spec: "changed"})
		holds("address/2", "")
		holds("address/3", "b")
		succeed(t, "Remove", k.Remove(t.Context(), "c"))
		holds("address/1", "")
	})
}

// After a restart an answered claim is still of the row with the newest answer. Neither the order in
// which the rows were created nor that of later calls counts.
func TestAnswerOrder(t *testing.T) {
	for _, c := range []struct {
		name     string
		change   func(t *testing.T, k *Kind[any, any], answers anyFake)
		resource string
		want     string
	}{
		{
			"the older row was set again", func(t *testing.T, k *Kind[any, any], _ anyFake) {
				set(t, k, Request[any]{Key: "a"}) // answers what it did
			}, "address/1", "b",
		},
		{
			"the older row was stored again", func(t *testing.T, k *Kind[any, any], _ anyFake) {
				succeed(t, "Repeat", k.Repeat(t.Context(), "a", 1, errTest))
			}, "address/1", "b",
		},
		{
			"the older row was answered last", func(t *testing.T, k *Kind[any, any], answers anyFake) {
				answers["a"] = "address/3"
				set(t, k, Request[any]{Key: "a", Spec: "changed"})
			}, "address/3", "a",
		},
		{
			"the older row was noted last", func(_ *testing.T, k *Kind[any, any], _ anyFake) {
				k.Note("a", func(any) any { return "address/3" })
			}, "address/3", "a",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "test.db")
			answers := anyFake{"a": "address/1", "b": "address/1", "c": "address/3"}
			register := func(s *Store) *Kind[any, any] {
				return Register(s, "port", answers, Options[any, any]{Answered: func(r Row[any, any]) []string {
					claim, _ := r.Last.(string)
					return []string{claim}
				}})
			}
			s := open(t, path)
			k := register(s)
			for _, key := range []string{"a", "b", "c"} {
				set(t, k, Request[any]{Key: key})
			}
			c.change(t, k, answers)
			for range 2 {
				if r, _ := k.Holder(c.resource); r.Key != c.want {
					t.Errorf("holder of %s: got %q, want %q", c.resource, r.Key, c.want)
				}
				succeed(t, "Close", s.Close())
				s = open(t, path)
				k = register(s)
			}
		})
	}
}

// A kind with Stale decides on the holder of a claim without the engine, which waits for the Set.
// The rows that the holder owns are deleted with it, unless one is in use.
func TestStale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeTarget{}
		s := open(t, filepath.Join(t.TempDir(), "test.db"))
		stale, used := true, false
		k := Register(s, "port", f, Options[string, string]{
			Stale:      func(context.Context, Row[string, string]) (bool, error) { return stale, nil },
			StaleAfter: time.Minute,
			Engine:     &fakeEngine{err: errTest},
			InUse:      func(r Row[string, string]) bool { return used && r.Key == "child" },
		})
		taken := func(key, why string, want bool) {
			t.Helper()
			_, err := k.Set(t.Context(), Request[string]{Key: key, Claims: []string{"claim"}})
			if IsConflict(err) == want || want && err != nil {
				t.Errorf("Set of %s %s: got %v, want taken %v", key, why, err, want)
			}
		}
		taken("a", "first", true)
		set(t, k, Request[string]{Key: "child", Owners: []string{k.Ref("a")}})
		taken("b", "just after the Set of the holder", false)
		time.Sleep(time.Minute)
		used = true
		taken("b", "while the child is in use", false)
		stale, used = false, false
		taken("b", "of which the holder is not stale", false)
		stale, f.calls = true, nil
		taken("b", "of which the holder is stale", true)
		wantCalls(t, f, "delete child", "delete a", "ensure b ")
	})
}

// A Set that meets a holder that is being deleted deletes none of the rows that the holder owns.
func TestConflictKeepsChildrenOfDeletion(t *testing.T) {
	f, k := newKind(t)
	set(t, k, Request[string]{Key: "a", Claims: []string{"claim"}})
	set(t, k, Request[string]{Key: "child", Owners: []string{k.Ref("a")}})
	if err := k.Remove(t.Context(), "a"); !IsPending(err) {
		t.Errorf("Remove: got %v, want a PendingError", err)
	}
	if _, err := k.Set(t.Context(), Request[string]{Key: "b", Claims: []string{"claim"}}); !IsPending(err) {
		t.Errorf("Set: got %v, want a PendingError", err)
	}
	if r, _ := k.Get("child"); r.Phase != Wanted {
		t.Errorf("child: got %+v, want it wanted", r)
	}
	wantCalls(t, f, "ensure a ", "ensure child ")
}

// Import takes what is known of a create, which is looked for if it was not confirmed. The list of
// a target tells what a Set was not answered, also by claims.
func TestLostAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &listTarget{}
		s := open(t, filepath.Join(t.TempDir(), "test.db"))
		k := Register(s, "port", l, Options[string, string]{
			Answered: func(r Row[string, string]) []string { return []string{r.Last} },
		})
		succeed(t, "Import", k.Import(t.Context(), []Row[string, string]{
			{Object: Object{Key: "late"}, Phase: Deleting, Unconfirmed: true},
			{Object: Object{Key: "lost"}, Phase: Wanted, Acked: true},
			{Object: Object{Key: "done"}, Phase: Wanted, Last: "2", Done: true},
		}))
		for _, key := range []string{"lost", "done"} {
			r, _ := k.Get(key)
			l.found = append(l.found, Found[string, string]{Object: r.Object, Last: "1"})
		}
		go s.Run(t.Context())
		k.Retry()
		synctest.Wait()
		if r, ok := k.Holder("1"); !ok || r.Key != "lost" || !r.Acked {
			t.Errorf("row: got %+v, want that of lost", r)
		}
		if _, ok := k.Holder("2"); !ok {
			t.Error("the answer of done has changed")
		}
		if _, ok := k.Get("late"); !ok {
			t.Error("late is not looked for")
		}
		time.Sleep(time.Hour)
		if r, ok := k.Get("late"); ok {
			t.Errorf("row %+v, want none after OrphanTTL", r)
		}
	})
}

// killed opens a copy of a store's file, as the process after a kill does: what was not synced is
// lost.
func killed(t *testing.T, s *Store) *Kind[string, string] {
	t.Helper()
	text, err := os.ReadFile(s.cfg.Path)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "copy.db")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	next := open(t, path)
	k := Register(next, "port", &fakeTarget{}, Options[string, string]{})
	if err := next.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return k
}

// A changed intent that was answered outlives a kill, as a new one does.
func TestChangeOutlivesKill(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "test.db"))
	k := Register(s, "port", &fakeTarget{}, Options[string, string]{})
	for _, spec := range []string{"1", "2"} {
		if _, err := k.Set(t.Context(), Request[string]{Key: "a", Spec: spec}); err != nil {
			t.Fatal(err)
		}
		if r, ok := killed(t, s).Get("a"); !ok || r.Spec != spec {
			t.Errorf("after a kill the spec is %q, want %q", r.Spec, spec)
		}
	}
}

// A note changes what is stored of the object, and is written with the next commit.
func TestNote(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "test.db"))
	k := Register(s, "port", &fakeTarget{}, Options[string, string]{})
	if _, err := k.Set(t.Context(), Request[string]{Key: "a", Spec: "1"}); err != nil {
		t.Fatal(err)
	}
	k.Note("a", func(last string) string { return last + " noted" })
	k.Note("absent", func(string) string { t.Error("an absent row was changed"); return "" })
	want, _ := k.Get("a")
	if want.Last == "" || want.Last == " noted" || want.Last[len(want.Last)-6:] != " noted" {
		t.Errorf("last %q", want.Last)
	}
	if _, err := k.Set(t.Context(), Request[string]{Key: "b", Spec: "1"}); err != nil {
		t.Fatal(err)
	}
	if r, _ := killed(t, s).Get("a"); r.Last != want.Last {
		t.Errorf("after the next commit and a kill last is %q, want %q", r.Last, want.Last)
	}
}
