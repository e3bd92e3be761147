package reconcile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// heldJournal answers a commit that is written when the test sends the answer.
type heldJournal struct {
	journal
	answers chan error
}

func (j heldJournal) commit(changes map[string][]byte, gen uint64) error {
	return errors.Join(j.journal.commit(changes, gen), <-j.answers)
}

// hungTarget does not answer when it must ensure the spec hang.
type hungTarget struct {
	fakeTarget
	hang string
}

func (h *hungTarget) Ensure(ctx context.Context, o Object, spec, last string) (string, error) {
	if spec == h.hang {
		<-ctx.Done()
		return "", ctx.Err()
	}
	return h.fakeTarget.Ensure(ctx, o, spec, last)
}

// listTarget lists what it found. Then it does what comes before the rows are made.
type listTarget struct {
	fakeTarget
	found []Found[string, string]
	then  func()
}

func (l *listTarget) List(context.Context) iter.Seq2[Found[string, string], error] {
	return func(yield func(Found[string, string], error) bool) {
		for _, f := range l.found {
			if !yield(f, nil) {
				return
			}
		}
		if l.then != nil {
			l.then()
		}
	}
}

// anyFake has the answers by key.
type anyFake map[string]any

func (a anyFake) Ensure(_ context.Context, o Object, _, _ any) (any, error) { return a[o.Key], nil }
func (a anyFake) Delete(context.Context, Object, any, any) error            { return nil }

// registerNew registers a kind of a new store.
func registerNew[S, T any](t *testing.T, target Target[S, T]) *Kind[S, T] {
	t.Helper()
	s := open(t, filepath.Join(t.TempDir(), "test.db"))
	return Register(s, "port", target, Options[S, T]{})
}

// succeed reports the error of a call that must not fail.
func succeed(t *testing.T, call string, err error) {
	t.Helper()
	if err != nil {
		t.Errorf("%s: got %v, want nil", call, err)
	}
}

func set[S, T any](t *testing.T, k *Kind[S, T], q Request[S]) {
	t.Helper()
	_, err := k.Set(t.Context(), q)
	succeed(t, "Set of "+q.Key, err)
}

// run calls Run until the test ends, and waits for its first attempts.
func run(t *testing.T, s *Store) {
	go s.Run(t.Context())
	synctest.Wait()
}

// A Set that the target refuses keeps the Redo of a failed Set before it.
func TestRefusalKeepsRedo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, k := newKind(t)
		for spec, want := range []error{nil, errTest, Refused(errTest)} {
			f.fail = failing("ensure", want)
			q := Request[string]{Key: "a", Spec: fmt.Sprint(spec)}
			if _, got := k.Set(t.Context(), q); !errors.Is(got, want) {
				t.Errorf("Set of %d: got %v, want %v", spec, got, want)
			}
		}
		f.fail = nil
		run(t, k.store)
		wantCalls(t, f, "ensure a 0", "ensure a 1", "ensure a 2", "ensure a 0")
	})
}

// A row of a restored backup takes over the object of a later incarnation, with its
// answer and claims. The next incarnation has a higher number than that.
func TestRestoredRowTakesObjectOver(t *testing.T) {
	found := Found[string, string]{
		Object: Object{Key: "a", Incarnation: 1 << 60}, Spec: "2", Last: "made 2", Claims: []string{"new"},
	}
	k := registerNew(t, &listTarget{found: []Found[string, string]{found}})
	set(t, k, Request[string]{Key: "a", Spec: "1", Claims: []string{"old"}, Engine: "engine"})
	succeed(t, "importObjects", k.importObjects(t.Context()))
	if r, _ := k.Get("a"); r.Object != found.Object || r.Spec != "2" || r.Last != "made 2" ||
		r.Engine != "engine" || !slices.Equal(r.Claims, found.Claims) {
		t.Errorf("row: got %+v, want that of %+v", r, found)
	}
	if gen := k.store.nextGen(); gen <= found.Incarnation {
		t.Errorf("next gen: got %d, want more than %d", gen, found.Incarnation)
	}
}

// A row with another key, which knows its object only by what it claims, is deleted while the objects
// are listed. The object gets no row.
func TestObjectDeletedByAnotherKey(t *testing.T) {
	l := &listTarget{found: []Found[string, string]{{Object: Object{Key: "own key"}, Claims: []string{"id"}}}}
	k := registerNew(t, l)
	set(t, k, Request[string]{Key: "other key", Claims: []string{"id"}})
	l.then = func() {
		succeed(t, "Remove", k.Remove(t.Context(), "other key"))
		l.found = nil
	}
	if err := k.importObjects(t.Context()); err == nil {
		t.Error("importObjects: got nil, want the error that makes it list again")
	}
	succeed(t, "importObjects again", k.importObjects(t.Context()))
	if rows := k.store.Rows(); len(rows) != 0 {
		t.Errorf("rows: got %s, want none", rows)
	}
}

// The deletion of an owner waits for a child whose Set began while it was stored.
func TestOwnerWaitsForConcurrentChild(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, k := newKind(t)
		set(t, k, Request[string]{Key: "net"})
		answers := make(chan error)
		k.store.journal = heldJournal{k.store.journal, answers}
		var calls sync.WaitGroup
		calls.Go(func() {
			if err := k.Remove(t.Context(), "net"); !IsPending(err) {
				t.Errorf("Remove of net: got %v, want a PendingError", err)
			}
		})
		synctest.Wait()
		calls.Go(func() { set(t, k, Request[string]{Key: "child", Owners: []string{"port/net"}}) })
		synctest.Wait()
		close(answers)
		calls.Wait()
		succeed(t, "Remove of child", k.Remove(t.Context(), "child"))
		run(t, k.store)
		wantCalls(t, f, "ensure net ", "ensure child ", "delete child", "delete net")
	})
}

// A tree whose deletion was cut off is deleted later: while a child could not be marked, after all
// were stored, and when a kill has left only the owner's mark.
func TestCutOffTreeIsDeleted(t *testing.T) {
	for _, cut := range []string{"marking", "stored", "killed"} {
		t.Run(cut, func(t *testing.T) { synctest.Test(t, func(t *testing.T) { cutOffTree(t, cut) }) })
	}
}

func cutOffTree(t *testing.T, cut string) {
	_, k := newKind(t)
	set(t, k, Request[string]{Key: "net"})
	set(t, k, Request[string]{Key: "child", Owners: []string{"port/net"}})
	answers := make(chan error)
	if cut == "stored" {
		k.store.journal = heldJournal{k.store.journal, answers}
	}
	lock := func() (unlock func()) {
		unlock, err := k.store.locks.Lock(t.Context(), "port/child")
		succeed(t, "Lock", err)
		return unlock
	}
	unlock := func() {}
	if cut != "stored" {
		unlock = lock()
	}
	var calls sync.WaitGroup
	calls.Go(func() {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := k.RemoveTree(ctx, "net"); !IsPending(err) {
			t.Errorf("RemoveTree: got %v, want a PendingError", err)
		}
	})
	synctest.Wait()
	switch cut {
	case "stored":
		unlock = lock()
		close(answers)
	case "killed":
		set(t, k, Request[string]{Key: "other"}) // commits what is marked so far
		k = killed(t, k.store)
		succeed(t, "Remove of other", k.Remove(t.Context(), "other"))
	}
	calls.Wait()
	unlock()
	run(t, k.store)
	time.Sleep(time.Hour)
	if rows := slices.Collect(k.Rows()); len(rows) > 0 {
		t.Errorf("rows: got %+v, want none", rows)
	}
}

// A note or an ack during the commit of a deletion does not put the row back into the file.
func TestNoteDuringCommitKeepsDeletion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, k := newKind(t)
		set(t, k, Request[string]{Key: "a"})
		answers := make(chan error)
		k.store.journal = heldJournal{k.store.journal, answers}
		go func() { succeed(t, "RemoveLater", k.RemoveLater(t.Context(), "a")) }()
		synctest.Wait()
		k.Note("a", func(last string) string { return last + " noted" })
		k.Ack("a")
		close(answers)
		synctest.Wait()
		set(t, k, Request[string]{Key: "b"})
		if r, _ := killed(t, k.store).Get("a"); r.Phase != Deleting {
			t.Errorf("row after a kill: got %+v, want it deleting", r)
		}
	})
}

// An ack during the commit of an answer is kept.
func TestAckDuringCommitIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, filepath.Join(t.TempDir(), "test.db"))
		k := Register(s, "port", &fakeTarget{}, Options[string, string]{Confirm: true})
		answers := make(chan error)
		s.journal = heldJournal{s.journal, answers}
		go set(t, k, Request[string]{Key: "a"})
		answers <- nil // for the intent
		synctest.Wait()
		s.ack("port/a", "engine")
		close(answers) // for the answer
		synctest.Wait()
		set(t, k, Request[string]{Key: "b"})
		for name, k := range map[string]*Kind[string, string]{"memory": k, "file": killed(t, s)} {
			if r, _ := k.Get("a"); !r.Done || !r.Acked || r.Engine != "engine" {
				t.Errorf("row in %s: got %+v, want it done and acked", name, r)
			}
		}
	})
}

// An answer that cannot be stored fails its own Set and no other call.
func TestUnstorableAnswerFailsOneSet(t *testing.T) {
	k := registerNew(t, anyFake{"bad": math.NaN(), "good": 1})
	if _, err := k.Set(t.Context(), Request[any]{Key: "bad"}); err == nil {
		t.Error("Set of bad: got nil, want an error")
	}
	set(t, k, Request[any]{Key: "good"})
	succeed(t, "Close", k.store.Close())
}

// Specs and answers of an interface type may be nil.
func TestNilSpecAndAnswer(t *testing.T) {
	k := registerNew(t, anyFake{})
	set(t, k, Request[any]{Key: "a"})
	if r, ok := k.Get("a"); !ok || r.Spec != nil || r.Last != nil {
		t.Errorf("row: got %v %+v, want one with a nil spec and answer", ok, r)
	}
	succeed(t, "Remove", k.Remove(t.Context(), "a"))
}

// The attempts of one kind go on while those of another hang.
func TestHungTargetDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hung, k := &fakeTarget{}, registerNew(t, &fakeTarget{})
		other := Register(k.store, "hung", hung, Options[string, string]{})
		hung.fail = func(string) error { time.Sleep(time.Minute); return errTest }
		run(t, k.store)
		rows := make([]Row[string, string], 2*workers)
		for i := range rows {
			rows[i].Key, rows[i].Phase = fmt.Sprint(i), Deleting
		}
		for _, k := range []*Kind[string, string]{other, k} {
			succeed(t, "Import", k.Import(t.Context(), rows))
			k.Retry()
			synctest.Wait()
		}
		if rows := slices.Collect(k.Rows()); len(rows) > 0 {
			t.Errorf("rows: got %d, want 0", len(rows))
		}
	})
}

// Remove and Set of a row interrupt an attempt that hangs.
func TestCallsInterruptAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hungTarget{}
		k := registerNew(t, h)
		for _, key := range []string{"a", "b"} {
			set(t, k, Request[string]{Key: key, Spec: "1"})
			succeed(t, "Repeat", k.Repeat(t.Context(), key, 0, nil))
		}
		h.hang = "1"
		run(t, k.store)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		succeed(t, "Remove", k.Remove(ctx, "a"))
		if r, ok := k.Get("a"); ok {
			t.Errorf("row: got %+v, want none", r)
		}
		_, err := k.Set(ctx, Request[string]{Key: "b", Spec: "2"})
		succeed(t, "Set", err)
	})
}

// An object that appears after an attempt without an answer is deleted with its row.
func TestLateObjectOfAttemptIsDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, k := newKind(t)
		set(t, k, Request[string]{Key: "a", Spec: "1"})
		delete(f.objects, "a")
		late := func() { _, _ = f.Ensure(t.Context(), Object{Key: "a"}, "late", "") }
		f.fail = func(call string) error {
			if call != "ensure a 1" {
				return nil
			}
			time.AfterFunc(3*time.Minute, late)
			return Unconfirmed(errTest)
		}
		succeed(t, "Repeat", k.Repeat(t.Context(), "a", 0, nil))
		run(t, k.store)
		succeed(t, "Remove", k.Remove(t.Context(), "a"))
		time.Sleep(time.Hour)
		if rows := slices.Collect(k.Rows()); len(f.objects)+len(rows) > 0 {
			t.Errorf("got objects %v and rows %v, want none", f.objects, rows)
		}
	})
}

// A deletion that fails delays neither the import of objects nor the Redo of other rows.
func TestStuckDeletionDelaysNoImport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &listTarget{}
		l.found = []Found[string, string]{
			{Object: Object{Key: "stuck", Incarnation: 5}}, {Object: Object{Key: "lost", Incarnation: 7}},
		}
		k := registerNew(t, l)
		l.fail = failing("delete", errTest)
		succeed(t, "Import", k.Import(t.Context(), []Row[string, string]{
			{Object: Object{Key: "stuck"}, Phase: Deleting},
			{Object: Object{Key: "again"}, Phase: Wanted, Spec: "1", Done: true},
		}))
		succeed(t, "Repeat", k.Repeat(t.Context(), "again", 0, nil))
		run(t, k.store)
		for _, name := range []string{"port/stuck", "port/stuck#5", "port/lost"} {
			if k.store.row(name) == nil {
				t.Errorf("row %s: got none, want one", name)
			}
		}
		if r := k.store.row("port/again"); r.Redo {
			t.Errorf("row port/again: got %+v, want no Redo", r)
		}
	})
}

// A Set with another engine and the same spec stores the engine.
func TestSetStoresNewEngine(t *testing.T) {
	_, k := newKind(t)
	set(t, k, Request[string]{Key: "a", Engine: "old"})
	set(t, k, Request[string]{Key: "a", Engine: "new"})
	if r, _ := k.Get("a"); r.Engine != "new" {
		t.Errorf("engine: got %q, want %q", r.Engine, "new")
	}
}

// Concurrent Sets whose commit fails after it was written leave no rows and no claims.
func TestFailedCommitLeavesNoRows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, k := newKind(t)
		path := k.store.journal.(*boltJournal).db.Path()
		answers := make(chan error)
		k.store.journal = heldJournal{k.store.journal, answers}
		var calls sync.WaitGroup
		errs := make([]error, 16)
		for i := range errs {
			q := Request[string]{Key: fmt.Sprint(i), Claims: []string{fmt.Sprint(i)}}
			calls.Go(func() { _, errs[i] = k.Set(t.Context(), q) })
			synctest.Wait()
		}
		answers <- nil     // for the first Set
		answers <- errTest // for the others, which share a commit
		close(answers)
		calls.Wait()
		for i, err := range errs {
			_, held := k.store.claims[fmt.Sprint(i)]
			if want := i == 0; held != want || errors.Is(err, errTest) == want {
				t.Errorf("Set %d: got error %v and claim held %v, want held %v", i, err, held, want)
			}
		}
		succeed(t, "Close", k.store.Close())
		stored := Register(open(t, path), "port", &fakeTarget{}, Options[string, string]{})
		for name, k := range map[string]*Kind[string, string]{"memory": k, "file": stored} {
			if rows := slices.Collect(k.Rows()); len(rows) != 1 || rows[0].Key != "0" {
				t.Errorf("rows in %s: got %+v, want row 0", name, rows)
			}
		}
	})
}

// After a crash during a Set, the row has its previous spec and claims, and is ensured.
func TestCrashDuringChangeRestoresIntent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, k := newKind(t)
		path := k.store.journal.(*boltJournal).db.Path()
		f.fail = func(call string) error {
			if call == "ensure a 2" { // a killed process stores nothing more
				return errors.Join(errTest, k.store.journal.close())
			}
			return nil
		}
		set(t, k, Request[string]{Key: "a", Spec: "1", Claims: []string{"old"}})
		q := Request[string]{Key: "a", Spec: "2", Claims: []string{"new"}}
		if _, err := k.Set(t.Context(), q); !errors.Is(err, errTest) {
			t.Errorf("Set: got %v, want %v", err, errTest)
		}
		f, s := &fakeTarget{}, open(t, path)
		k = Register(s, "port", f, Options[string, string]{})
		succeed(t, "Start", s.Start(t.Context()))
		run(t, s)
		wantCalls(t, f, "ensure a 1")
		if r, _ := k.Get("a"); r.Spec != "1" || !slices.Equal(r.Claims, []string{"old"}) {
			t.Errorf("row: got %+v, want spec 1 with the claim old", r)
		}
	})
}

// A volatile store removes a file of another boot without opening it.
func TestVolatileFileOfAnotherBootIsRemoved(t *testing.T) {
	path := filepath.Join(t.TempDir(), "test.db")
	succeed(t, "WriteFile", errors.Join(
		os.WriteFile(path, bytes.Repeat([]byte("garbage!"), 8192), 0o600),
		os.WriteFile(path+".boot", []byte("boot"), 0o600)))
	j, c, err := openBolt(path, "otherBoot", true, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatalf("openBolt: got %v, want nil", err)
	}
	defer j.close()
	kept, _ := filepath.Glob(path + ".damaged-*") // an opened file would be kept
	if len(c.rows)+len(kept) > 0 {
		t.Errorf("got %d rows and the kept files %q, want none", len(c.rows), kept)
	}
}

// An object that a host has begun to delete is deleted when a list has it.
func TestListedDeletionIsCompleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &listTarget{found: []Found[string, string]{
			{Object: Object{Key: "kept"}}, {Object: Object{Key: "left"}, Phase: Deleting, Spec: "1"},
		}}
		k := registerNew(t, l)
		run(t, k.store)
		if r, ok := k.Get("kept"); !ok || r.Phase != Wanted {
			t.Errorf("row kept: got %+v, want it wanted", r)
		}
		if r, ok := k.Get("left"); ok {
			t.Errorf("row left: got %+v, want none", r)
		}
		wantCalls(t, &l.fakeTarget, "delete left")
	})
}

// halfTarget fails after it has done half of its first Ensure, and notes what it deletes.
type halfTarget struct{ deleted []string }

func (h *halfTarget) Ensure(_ context.Context, _ Object, _, last string) (string, error) {
	if last == "" {
		return "half", errTest
	}
	return "", errTest
}

func (h *halfTarget) Delete(_ context.Context, _ Object, _, last string) error {
	h.deleted = append(h.deleted, last)
	return nil
}

// What a failed attempt has made of a new row is deleted with it, also after later attempts that
// have made nothing.
func TestPartOfFailedAttemptIsDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &halfTarget{}
		k := registerNew(t, h)
		run(t, k.store)
		succeed(t, "SetLater", k.SetLater(t.Context(), Request[string]{Key: "a"}))
		time.Sleep(time.Minute)
		succeed(t, "Remove", k.Remove(t.Context(), "a"))
		if !slices.Equal(h.deleted, []string{"half"}) {
			t.Errorf("deleted: got %q, want half", h.deleted)
		}
	})
}
