package reconcile

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A Set names the owner that is gone or is being deleted, and calls no target.
func TestOwnerIsGone(t *testing.T) {
	f, k := newKind(t)
	child := Request[string]{Key: "child", Owners: []string{k.Ref("net")}}
	refused := func(when string) {
		t.Helper()
		_, err := k.Set(t.Context(), child)
		for call, err := range map[string]error{"Set": err, "SetLater": k.SetLater(t.Context(), child)} {
			if e, ok := errors.AsType[*OwnerError](err); !ok || !IsOwnerGone(err) || e.Owner != "port/net" {
				t.Errorf("%s %s: got %v, want an error that names port/net", call, when, err)
			}
		}
		if r, ok := k.Get("child"); ok {
			t.Errorf("row %s: got %+v, want none", when, r)
		}
	}
	refused("without the owner")
	set(t, k, Request[string]{Key: "net"})
	f.fail = failing("delete net", errTest)
	if err := k.Remove(t.Context(), "net"); !IsPending(err) {
		t.Errorf("Remove: got %v, want pending", err)
	}
	refused("while the owner is being deleted")
	f.fail = nil
	succeed(t, "Remove", k.Remove(t.Context(), "net"))
	refused("after the owner")
	wantCalls(t, f, "ensure net ", "delete net", "delete net")
}

// A row may be imported before its owners, and be changed then. It can get no other owner that is
// gone, and must have its owner if it was deleted since.
func TestImportedBeforeOwner(t *testing.T) {
	_, k := newKind(t)
	row := Row[string, string]{Object: Object{Key: "a"}, Phase: Wanted, Done: true, Owners: []string{k.Ref("net")}}
	succeed(t, "Import", k.Import(t.Context(), []Row[string, string]{row}))
	q := Request[string]{Key: "a", Spec: "changed", Owners: row.Owners}
	set(t, k, q)
	q.Spec, q.Owners = "again", []string{k.Ref("net"), k.Ref("other")}
	if _, err := k.Set(t.Context(), q); !IsOwnerGone(err) {
		t.Errorf("Set with another owner: got %v, want it refused", err)
	}
	if r, _ := k.Get("a"); r.Phase != Wanted || r.Spec != "changed" {
		t.Errorf("row: got %+v, want it unchanged", r)
	}
	succeed(t, "Remove", k.Remove(t.Context(), "a"))
	if _, err := k.Set(t.Context(), Request[string]{Key: "a", Owners: row.Owners}); !IsOwnerGone(err) {
		t.Errorf("Set after Remove: got %v, want it refused", err)
	}
}

// ownedTarget checks that the object of an owner is there as long as that of a child. The keys are
// those of the owner, and the same behind "child".
type ownedTarget struct {
	fakeTarget
	t *testing.T
}

func (o *ownedTarget) check(call string) error {
	time.Sleep(time.Duration(rand.IntN(60)) * time.Microsecond)
	o.mu.Lock()
	defer o.mu.Unlock()
	verb, rest, _ := strings.Cut(call, " ")
	key, _, _ := strings.Cut(rest, " ")
	owner, isChild := strings.CutPrefix(key, "child")
	_, hasOwner := o.objects[owner]
	_, hasChild := o.objects["child"+owner]
	if verb == "ensure" && isChild && !hasOwner || verb == "delete" && !isChild && hasChild {
		o.t.Errorf("%s: the owner's object is there %v, that of the child %v", call, hasOwner, hasChild)
	}
	return nil
}

// A child is set while its owner is removed, many times: the Set is refused, or the owner's deletion
// takes the child along or waits for it.
func TestSetAgainstRemovalOfOwner(t *testing.T) {
	f := &ownedTarget{t: t}
	f.fail = f.check
	s := newStore(Config{Logger: slog.New(slog.DiscardHandler)}, &memory{map[string][]byte{}}, &content{}, "boot")
	k := Register(s, "port", f, Options[string, string]{})
	var refused, waited, taken int
	for n := range 500 {
		owner, child := fmt.Sprint(n), fmt.Sprint("child", n)
		set(t, k, Request[string]{Key: owner})
		var calls sync.WaitGroup
		var failed, removed error
		calls.Go(func() {
			time.Sleep(time.Duration(rand.IntN(200)) * time.Microsecond)
			_, failed = k.Set(t.Context(), Request[string]{Key: child, Owners: []string{k.Ref(owner)}})
		})
		remove := k.Remove
		if n%2 == 0 {
			remove = k.RemoveTree
		}
		time.Sleep(time.Duration(rand.IntN(200)) * time.Microsecond)
		removed = remove(t.Context(), owner)
		calls.Wait()
		_, hasOwner := k.Get(owner)
		_, hasChild := k.Get(child)
		switch {
		case IsOwnerGone(failed) && removed == nil && !hasOwner && !hasChild:
			refused++
		case failed == nil && IsPending(removed) && hasOwner && hasChild:
			waited++
		case failed == nil && removed == nil && !hasOwner && !hasChild:
			taken++
		default:
			t.Fatalf("Set %v, Remove %v, owner %v, child %v", failed, removed, hasOwner, hasChild)
		}
	}
	t.Logf("refused %d, waited %d, taken %d", refused, waited, taken)
	if refused == 0 || waited+taken == 0 {
		t.Error("the calls did not overlap")
	}
}

// The target refuses a row that has just become an owner: its deletion waits for the child.
func TestRefusedOwnerWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeTarget{}
		s := open(t, filepath.Join(t.TempDir(), "test.db"))
		k := Register(s, "port", f, Options[string, string]{})
		f.fail = func(call string) error {
			if call == "ensure net " {
				time.Sleep(time.Second)
				return Refused(errTest)
			}
			return nil
		}
		var calls sync.WaitGroup
		calls.Go(func() {
			if _, err := k.Set(t.Context(), Request[string]{Key: "net"}); !errors.Is(err, errTest) {
				t.Errorf("Set of net: got %v, want it refused", err)
			}
		})
		synctest.Wait()
		set(t, k, Request[string]{Key: "child", Owners: []string{k.Ref("net")}})
		calls.Wait()
		if r, ok := k.Get("net"); !ok || r.Phase != Deleting {
			t.Errorf("row: got %+v, want it deleting", r)
		}
		run(t, s)
		succeed(t, "Remove", k.Remove(t.Context(), "child"))
		synctest.Wait()
		if r, ok := k.Get("net"); ok {
			t.Errorf("row: got %+v, want none", r)
		}
	})
}
