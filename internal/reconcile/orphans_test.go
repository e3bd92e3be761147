package reconcile

import (
	"context"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// fakeEngine has the keys of rows.
type fakeEngine struct {
	mu    sync.Mutex
	id    string
	has   map[string]bool
	err   error
	lists int
}

func (f *fakeEngine) List(context.Context) (List, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lists++
	has := map[string]bool{}
	for key := range f.has {
		has[key] = true
	}
	return List{Engine: f.id, Content: has}, f.err
}

// forget makes the engine forget keys, and returns how often it was listed since the last call.
func (f *fakeEngine) forget(keys ...string) (lists int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, key := range keys {
		delete(f.has, key)
	}
	lists, f.lists = f.lists, 0
	return lists
}

// engineFixture is a store of two kinds with one engine that has all keys but gone.
type engineFixture struct {
	*fakeEngine
	store       *Store
	nets, ports *Kind[string, string]
	used        map[string]bool
}

func newEngineFixture(t *testing.T, grace time.Duration, keys ...string) *engineFixture {
	t.Helper()
	e := &engineFixture{fakeEngine: &fakeEngine{id: "engine", has: map[string]bool{}}, used: map[string]bool{}}
	for _, key := range keys {
		e.has[key] = true
	}
	var err error
	e.store, err = Open(Config{
		Path: filepath.Join(t.TempDir(), "test.db"), Logger: slog.New(slog.DiscardHandler), GracePeriod: grace,
	})
	if err != nil {
		t.Fatal(err)
	}
	o := Options[string, string]{
		Engine: e.fakeEngine, Listed: listed,
		InUse: func(r Row[string, string]) bool { return e.used[r.Key] },
	}
	e.nets = Register(e.store, "network", &fakeTarget{}, o)
	e.ports = Register(e.store, "port", &fakeTarget{}, o)
	return e
}

// run calls Run until the test ends.
func (e *engineFixture) run(t *testing.T) {
	t.Helper()
	var running sync.WaitGroup
	running.Go(func() { e.store.Run(t.Context()) })
	t.Cleanup(func() { running.Wait(); _ = e.store.Close() })
	synctest.Wait()
}

func (e *engineFixture) keys() (keys []string) {
	for _, r := range e.store.all() {
		if r.Phase == Wanted {
			keys = append(keys, r.Key)
		}
	}
	slices.Sort(keys)
	return keys
}

func wantKeys(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: got %q, want %q", what, got, want)
	}
}

// Engines are listed once for all kinds, after an event, and as long as there is a candidate.
func TestCompare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngineFixture(t, 10*time.Minute, "net", "a", "b")
		set(t, e.nets, Request[string]{Key: "net"})
		for _, key := range []string{"a", "b"} {
			set(t, e.ports, Request[string]{Key: key, Owners: []string{e.nets.Ref("net")}})
		}
		e.run(t)
		lists := func(what string, want int) {
			t.Helper()
			if n := e.forget(); n != want {
				t.Errorf("%d lists %s, want %d", n, what, want)
			}
		}
		lists("at the start", 1)
		if r, _ := e.nets.Get("net"); r.Engine != "engine" || !r.Acked {
			t.Errorf("row %+v, want one with its engine", r)
		}
		set(t, e.nets, Request[string]{Key: "net"}) // which changes nothing
		time.Sleep(50 * time.Minute)
		lists("without an event", 0)
		e.forget("a")
		e.store.Compare()
		synctest.Wait()
		lists("after an event", 1)
		begun := time.Now()
		want := []Orphan{{"port", "a", "engine", begun, begun.Add(10 * time.Minute), "its engine does not list it", false}}
		got := e.store.Orphans()
		if len(got) == 1 {
			got[0].Since, got[0].Due = got[0].Since.Round(time.Second), got[0].Due.Round(time.Second)
			want[0].Since, want[0].Due = begun.Round(time.Second), want[0].Due.Round(time.Second)
		}
		if !slices.Equal(got, want) {
			t.Errorf("orphans %+v, want %+v", got, want)
		}
		time.Sleep(9 * time.Minute)
		wantKeys(t, "rows before the grace period is over", e.keys(), "a", "b", "net")
		time.Sleep(2 * time.Minute)
		wantKeys(t, "rows after it", e.keys(), "b", "net")
		e.forget()
		time.Sleep(time.Hour)
		lists("without a candidate", 1) // with those of the targets
		if n := len(e.store.Orphans()); n != 0 {
			t.Errorf("%d orphans, want 0", n)
		}
	})
}

// What no engine has listed is deleted only if there is one engine and no later call had to do with
// it. Rows of other engines stay, as does what they own.
func TestUnlistedRows(t *testing.T) {
	for _, sole := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			e := newEngineFixture(t, time.Minute, "listed")
			for _, key := range []string{"listed", "begun", "named", "owner"} {
				set(t, e.nets, Request[string]{Key: key})
			}
			e.nets.Ack("named")
			other := Request[string]{Key: "other", Engine: "engine"}
			if !sole {
				other.Engine = "another"
			}
			set(t, e.nets, other)
			set(t, e.ports, Request[string]{Key: "child", Owners: []string{e.nets.Ref("other")}})
			e.used["port"] = true
			set(t, e.ports, Request[string]{Key: "port", Owners: []string{e.nets.Ref("owner")}})
			e.run(t)
			time.Sleep(time.Hour)
			if sole {
				wantKeys(t, "rows", e.keys(), "listed", "named", "owner", "port")
			} else {
				wantKeys(t, "rows", e.keys(), "begun", "child", "listed", "named", "other", "owner", "port")
			}
			synctest.Wait()
			e.wantKept(t, sole)
		})
	}
}

// wantKept checks what TestUnlistedRows keeps, and that it is deleted for the name of its engine.
func (e *engineFixture) wantKept(t *testing.T, sole bool) {
	t.Helper()
	kept := func(engine string) (keys []string) {
		for _, o := range e.store.Orphans() {
			if o.Kept && o.Engine == engine && o.Due.IsZero() {
				keys = append(keys, o.Key)
			}
		}
		return keys
	}
	unknown, want := []string{"begun", "named", "owner", "port"}, 2 // owner and port are in use
	if sole {
		unknown, want = []string{"named", "owner"}, 1 // port is a candidate
	} else {
		wantKeys(t, "kept for the other engine", kept("another"), "other", "child")
	}
	wantKeys(t, "kept for none", kept(""), unknown...)
	time.Sleep(time.Second)
	set(t, e.nets, Request[string]{Key: "new"})
	wantKeys(t, "kept with a row since the last list", kept(""), unknown...)
	deleted, err := e.store.DeleteOrphans(t.Context(), UnknownEngine)
	succeed(t, "DeleteOrphans", err)
	if len(deleted) != want {
		t.Errorf("%d rows deleted, want %d: %+v", len(deleted), want, deleted)
	}
	synctest.Wait()
	if got := e.keys(); slices.Contains(got, "named") || !slices.Contains(got, "new") || !slices.Contains(got, "port") {
		t.Errorf("rows %q", got)
	}
	e.fakeEngine.err = errTest
	if _, err := e.store.DeleteOrphans(t.Context(), UnknownEngine); err == nil {
		t.Error("rows that no engine has listed are deleted without a list")
	}
}

// Without a grace period orphans are deleted on demand only, and so are the rows of an engine that
// is gone.
func TestDeleteOrphans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngineFixture(t, -1, "listed")
		for _, key := range []string{"listed", "gone", "used"} {
			set(t, e.nets, Request[string]{Key: key, Engine: "engine"})
		}
		set(t, e.nets, Request[string]{Key: "old", Engine: "replaced"})
		set(t, e.ports, Request[string]{Key: "child", Owners: []string{e.nets.Ref("old")}})
		e.used["used"] = true
		e.run(t)
		time.Sleep(24 * time.Hour)
		wantKeys(t, "rows", e.keys(), "child", "gone", "listed", "old", "used")
		o := slices.DeleteFunc(e.store.Orphans(), func(o Orphan) bool { return o.Kept })
		if len(o) != 2 || !o[0].Due.IsZero() {
			t.Errorf("orphans %+v, want 2 that are never due", o)
		}
		set(t, e.nets, Request[string]{Key: "new", Engine: "engine"})
		deleted := func(engine string, want ...string) {
			t.Helper()
			list, err := e.store.DeleteOrphans(t.Context(), engine)
			succeed(t, "DeleteOrphans", err)
			var keys []string
			for _, o := range list {
				keys = append(keys, o.Key)
			}
			slices.Sort(keys)
			wantKeys(t, "deleted", keys, want...)
		}
		deleted("", "gone")
		if _, err := e.store.DeleteOrphans(t.Context(), "engine"); err == nil {
			t.Error("the rows of an engine that is running are deleted")
		}
		deleted("replaced", "child", "old")
		time.Sleep(time.Minute)
		wantKeys(t, "rows", e.keys(), "listed", "new", "used")
		e.err = errTest
		if _, err := e.store.DeleteOrphans(t.Context(), ""); err == nil {
			t.Error("orphans without a list: got no error")
		}
	})
}

// Retry makes the rows of all kinds due.
func TestStoreRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngineFixture(t, time.Minute)
		rows := []Row[string, string]{{Object: Object{Key: "a"}, Phase: Deleting}}
		succeed(t, "Import", e.nets.Import(t.Context(), rows))
		succeed(t, "Import", e.ports.Import(t.Context(), rows))
		e.run(t)
		e.store.Retry()
		synctest.Wait()
		if n := len(e.store.all()); n != 0 {
			t.Errorf("%d rows, want 0", n)
		}
	})
}
