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
		want := []Orphan{{Kind: "port", Key: "a", Engine: "engine", Since: begun, Due: begun.Add(10 * time.Minute)}}
		got := e.orphans(t)
		if len(got) == 1 {
			got[0].Since, got[0].Due = got[0].Since.Round(time.Second), got[0].Due.Round(time.Second)
			want[0].Since, want[0].Due = begun.Round(time.Second), want[0].Due.Round(time.Second)
			want[0].Changed = got[0].Changed
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
		if n := len(e.orphans(t)); n != 0 {
			t.Errorf("%d orphans, want 0", n)
		}
	})
}

// What no engine has listed is deleted only if it was never used and nothing speaks of another
// engine, or if its Set was not answered. Rows of other engines stay, as does what they own.
func TestUnlistedRows(t *testing.T) {
	for _, test := range []struct {
		speaks       string // of another engine
		deleted      []string
		kept         []string
		ofAnother    []string
		unknownPurge []string
	}{
		{"nothing", []string{"begun", "unanswered"}, nil, nil, nil},
		{"a row that was named later", []string{"unanswered"}, []string{"begun", "named"}, nil, []string{"begun", "named"}},
		{"a row of another engine", []string{"unanswered"}, []string{"begun"}, []string{"child", "other"}, []string{"begun"}},
	} {
		synctest.Test(t, func(t *testing.T) {
			e := newEngineFixture(t, time.Minute, "listed")
			all := []string{"listed", "begun"}
			switch {
			case test.ofAnother != nil:
				set(t, e.nets, Request[string]{Key: "other", Engine: "another"})
				set(t, e.ports, Request[string]{Key: "child", Owners: []string{e.nets.Ref("other")}})
			case test.kept != nil:
				all = append(all, "named")
			}
			for _, key := range all {
				set(t, e.nets, Request[string]{Key: key})
			}
			e.nets.Ack("named")
			set(t, e.nets, Request[string]{Key: "unheard"})
			set(t, e.ports, Request[string]{Key: "part", Owners: []string{e.nets.Ref("unheard")}})
			e.nets.Ack("unheard") // it is deleted in each case
			e.nets.NoteHeard("unheard", false)
			e.nets.NoteHeard("begun", false)
			e.nets.NoteHeard("begun", true)
			row := Row[string, string]{Object: Object{Key: "unanswered"}, Phase: Wanted}
			succeed(t, "Import", e.nets.Import(t.Context(), []Row[string, string]{row}))
			e.run(t)
			time.Sleep(59 * time.Second)
			if keys := e.keys(); !slices.Contains(keys, "begun") {
				t.Errorf("%s: rows of the first minute: %q", test.speaks, keys)
			}
			time.Sleep(time.Hour)
			left := slices.Concat(test.kept, test.ofAnother, []string{"listed"})
			slices.Sort(left)
			wantKeys(t, test.speaks, e.keys(), left...)
			kept := map[string][]string{}
			for _, o := range e.orphans(t) {
				if o.Kept && o.Due.IsZero() && o.Since.IsZero() {
					kept[o.Engine] = append(kept[o.Engine], o.Key)
				}
			}
			slices.Sort(kept["another"])
			wantKeys(t, test.speaks+": kept for none", kept[""], test.kept...)
			wantKeys(t, test.speaks+": kept for the other engine", kept["another"], test.ofAnother...)
			set(t, e.nets, Request[string]{Key: "new"})
			time.Sleep(30 * time.Second) // "new" is too young
			deleted, err := e.store.DeleteOrphans(t.Context(), UnknownEngine)
			succeed(t, "DeleteOrphans", err)
			if len(deleted) != len(test.unknownPurge) {
				t.Errorf("%s: deleted %+v, want %q", test.speaks, deleted, test.unknownPurge)
			}
			synctest.Wait()
			if keys := e.keys(); !slices.Contains(keys, "new") || !slices.Contains(keys, "listed") {
				t.Errorf("%s: rows %q", test.speaks, keys)
			}
			e.fakeEngine.err = errTest
			if _, err := e.store.DeleteOrphans(t.Context(), UnknownEngine); err == nil {
				t.Error("rows that no engine has listed are deleted without a list")
			}
			if list, err := e.store.Orphans(t.Context()); err == nil {
				t.Errorf("orphans %+v without a list", list)
			}
		})
	}
}

// Rows in use stay, and so do their owners, also on demand.
func TestUnlistedInUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngineFixture(t, time.Minute, "listed")
		set(t, e.nets, Request[string]{Key: "listed"})
		set(t, e.nets, Request[string]{Key: "owner"})
		e.used["port"] = true
		set(t, e.ports, Request[string]{Key: "port", Owners: []string{e.nets.Ref("owner")}})
		e.run(t)
		time.Sleep(time.Hour)
		for _, gone := range []string{"", UnknownEngine} {
			deleted, err := e.store.DeleteOrphans(t.Context(), gone)
			succeed(t, "DeleteOrphans", err)
			if len(deleted) > 0 {
				t.Errorf("deleted %+v", deleted)
			}
		}
		wantKeys(t, "rows", e.keys(), "listed", "owner", "port")
		for _, o := range e.orphans(t) {
			if !o.InUse || !o.Due.IsZero() {
				t.Errorf("orphan %+v is not in use, or is due", o)
			}
		}
	})
}

func (e *engineFixture) orphans(t *testing.T) []Orphan {
	t.Helper()
	list, err := e.store.Orphans(t.Context())
	succeed(t, "Orphans", err)
	return list
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
		o := slices.DeleteFunc(e.orphans(t), func(o Orphan) bool { return o.Kept })
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
