package engine

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/kuryr/kuryr/sdn"
	"golang.org/x/sys/unix"
)

// together writes changes as if they had come while the disk was waited for.
func together(p *Engine, changes ...func(*tx) error) []*proposal {
	p.proposals.turn <- struct{}{}
	list := make([]*proposal, len(changes))
	for i, change := range changes {
		list[i] = &proposal{ctx: context.Background(), change: change, done: make(chan struct{})}
		p.proposals.add(list[i])
	}
	p.writeSome(p.proposals.take())
	return list
}

// making is a change that makes a network of a name, unless there is one.
func making(p *Engine, name string) func(*tx) error {
	return func(t *tx) error {
		key := sdn.Key{Owner: p.installation, Kind: "k", Name: name}
		if r, err := Networks.byKey(t.Tx, "", key); err != nil || r != nil {
			return errors.Join(err, sdn.Conflict(sdn.Exists, "network", "key", "%v is there", key))
		}
		return Networks.put(t, &NetworkRow{Network: sdn.Network{Meta: newMeta(sdn.Base{Key: key})}})
	}
}

// endingStore is a store whose commits a test plays.
type endingStore struct {
	Store
	end func(Writer) error
}

func (s *endingStore) Begin(ctx context.Context) (Writer, error) {
	w, err := s.Store.Begin(ctx)
	return endingWriter{w, s}, err
}

type endingWriter struct {
	Writer
	store *endingStore
}

func (w endingWriter) Commit() error { return w.store.end(w.Writer) }

// What waits together is one transaction; what is refused takes nothing along and is answered for what is stored.
func TestTogether(t *testing.T) {
	t.Parallel()
	p := open(t, Options{})
	transactions := 0
	p.store = &endingStore{p.store, func(w Writer) error { transactions++; return w.Commit() }}
	for i, w := range together(p, making(p, "a"), making(p, "b"), making(p, "a"), making(p, "c"), making(p, "d"), making(p, "d")) {
		<-w.done
		if refused := i == 2 || i == 5; sdn.IsConflict(w.err) != refused || !refused && w.err != nil {
			t.Errorf("change %d: %v", i, w.err)
		}
	}
	if transactions != 2 {
		t.Errorf("%d transactions; two before what is refused and two after it want one each", transactions)
	}
	found, err := sdn.All(p.FindNetworks(t.Context(), sdn.NetworkQuery{Match: sdn.Match{Owner: p.installation, Kind: "k"}}))
	ok(t, err)
	if len(found) != 4 {
		t.Errorf("%d networks", len(found))
	}
}

// A disk that fails says so to all that it was to keep: before it has the change nothing is there,
// behind that everything.
func TestTogetherOnFailingDisk(t *testing.T) {
	t.Parallel()
	for want, end := range map[int]func(Writer) error{
		0: func(Writer) error { return unix.EIO },
		2: func(w Writer) error { return errors.Join(unix.EIO, ErrNotDurable, w.Commit()) },
	} {
		p := open(t, Options{})
		before, _ := p.realm.(*fakeRealm).counts()
		store := p.store
		p.store = &endingStore{store, end}
		for i, w := range together(p, making(p, "a"), making(p, "b")) {
			<-w.done
			if !errors.Is(w.err, unix.EIO) {
				t.Errorf("change %d: %v", i, w.err)
			}
		}
		if joined, dropped := p.realm.(*fakeRealm).counts(); joined-before != want || dropped != 2-want {
			t.Errorf("the realm was told of %d changes, and that %d were not made; want %d", joined-before, dropped, want)
		}
		p.store = store
		found, err := sdn.All(p.FindNetworks(t.Context(), sdn.NetworkQuery{Match: sdn.Match{Owner: p.installation, Kind: "k"}}))
		ok(t, err)
		if len(found) != want {
			t.Errorf("%d networks where %d were written", len(found), want)
		}
	}
}

// More than are written together are all written, and a change that panics leaves nobody waiting.
func TestManyTogether(t *testing.T) {
	t.Parallel()
	p := open(t, Options{})
	var changes []func(*tx) error
	for i := range 2*mostTogether + 1 {
		changes = append(changes, making(p, fmt.Sprint(i)))
	}
	list := together(p, changes...)
	n, err := p.EnsureNetwork(t.Context(), sdn.NetworkSpec{}) // which finds the rest waiting before it
	ok(t, err)
	for i, w := range list {
		<-w.done
		if w.err != nil {
			t.Errorf("change %d: %v", i, w.err)
		}
	}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic is lost")
			}
		}()
		together(p, making(p, "before"), func(*tx) error { panic("a defect") })
	}()
	ok(t, p.DeleteNetwork(t.Context(), n.ID))
}

// Who waits for the disk's other users waits no longer than his context.
func TestWithdrawn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := open(t, Options{})
		p.proposals.turn <- struct{}{}
		ctx, cancel := context.WithCancel(t.Context())
		var err error
		go func() {
			_, err = p.EnsureNetwork(ctx, sdn.NetworkSpec{})
		}()
		synctest.Wait()
		cancel()
		synctest.Wait()
		if !errors.Is(err, context.Canceled) || len(p.proposals.take()) > 0 {
			t.Errorf("the error is %v", err)
		}
		<-p.proposals.turn
	})
}

// fasterStore is a store that another process changes before each of the first commits.
type fasterStore struct {
	Store
	conflicts int
}

func (s *fasterStore) Begin(ctx context.Context) (Writer, error) {
	w, err := s.Store.Begin(ctx)
	if err != nil || s.conflicts == 0 {
		return w, err
	}
	s.conflicts--
	return conflictingWriter{w}, nil
}

type conflictingWriter struct{ Writer }

func (w conflictingWriter) Commit() error {
	w.Rollback()
	return fmt.Errorf("commit: %w", ErrConflict)
}

// TestConflict checks that changes are made again when another process was faster.
func TestConflict(t *testing.T) {
	t.Parallel()
	p := open(t, Options{})
	p.store = &fasterStore{p.store, 3}
	runs := 0
	counted := func(tx *tx) error { runs++; return making(p, "a")(tx) }
	for i, w := range together(p, counted, making(p, "b"), making(p, "a")) {
		<-w.done
		if refused := i == 2; sdn.IsConflict(w.err) != refused || !refused && w.err != nil {
			t.Errorf("change %d: %v", i, w.err)
		}
	}
	if runs < 4 {
		t.Errorf("the change ran %d times, want once more for each conflict", runs)
	}
	found, err := sdn.All(p.FindNetworks(t.Context(), sdn.NetworkQuery{Match: sdn.Match{Owner: p.installation, Kind: "k"}}))
	ok(t, err)
	if len(found) != 2 {
		t.Errorf("%d networks, want 2", len(found))
	}
}
