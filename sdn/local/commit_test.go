package local

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/engine"
	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
)

// together writes changes as if they had come while the disk was waited for.
func together(p *Provider, changes ...func(*tx) error) []*proposal {
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
func making(p *Provider, name string) func(*tx) error {
	return func(t *tx) error {
		key := sdn.Key{Owner: p.installation, Kind: "k", Name: name}
		if r, err := networks.byKey(t.Tx, "", key); err != nil || r != nil {
			return errors.Join(err, sdn.Conflict(sdn.Exists, "network", "key", "%v is there", key))
		}
		return networks.put(t, &networkRow{Network: sdn.Network{Meta: newMeta(sdn.Base{Key: key})}})
	}
}

// onDisk sets how the provider's store commits.
func onDisk(p *Provider, commit func(*bbolt.Tx) error) { p.store.(*boltStore).commit = commit }

// What waits together is one transaction; what is refused takes nothing along and is answered for what is stored.
func TestTogether(t *testing.T) {
	t.Parallel()
	p := open(t, Options{})
	transactions := 0
	onDisk(p, func(b *bbolt.Tx) error { transactions++; return b.Commit() })
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

// A disk that fails says so to all that it was to keep: before it has the change nothing is there, behind that everything.
func TestTogetherOnFailingDisk(t *testing.T) {
	t.Parallel()
	for want, end := range map[int]func(*bbolt.Tx) error{
		0: func(b *bbolt.Tx) error { return errors.Join(unix.EIO, b.Rollback()) },
		2: func(b *bbolt.Tx) error { return errors.Join(unix.EIO, b.Commit()) },
	} {
		p := open(t, Options{Datapath: newFake()})
		onDisk(p, end)
		for i, w := range together(p, making(p, "a"), making(p, "b")) {
			<-w.done
			if !sdn.IsUnavailable(w.err) || !errors.Is(w.err, unix.EIO) {
				t.Errorf("change %d: %v", i, w.err)
			}
		}
		onDisk(p, (*bbolt.Tx).Commit)
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

// panickingStore is a store whose next view is a defect.
type panickingStore struct {
	engine.Store
	armed bool
}

func (s *panickingStore) View(f func(engine.Tx) error) error {
	if s.armed {
		s.armed = false
		panic("a defect")
	}
	return s.Store.View(f)
}

// A panic, which an HTTP server recovers from, leaves no part in doubt for good and no turn taken.
func TestPanicsLeaveNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	recovered := func(f func()) {
		t.Helper()
		defer func() {
			if recover() == nil {
				t.Error("the panic is lost")
			}
		}()
		f()
	}
	port, subnet := w.port(t, portSpec(w, 0)), w.networks[0].Subnets[0]
	deleting := func(t *tx) error { return t.deletePort(port, 0) }
	recovered(func() { together(w.Provider, deleting, func(*tx) error { panic("a defect") }) })
	if got, err := w.Port(ctx, port); err != nil || got.Status != sdn.PortActive {
		t.Errorf("after a change that panicked the port is %v, %v", got.Status, err)
	}
	store := &panickingStore{Store: w.store}
	w.store = store
	// The comparison of everything, and the application of a shape.
	for _, f := range []func(){
		func() { _, _ = w.Check(ctx) },
		func() {
			claims := []*claim{{target: w.sync.domains[w.routers[0]], keys: []partKey{shapeKey}}}
			claims[0].busy(1)
			w.sync.join(claims)
			_ = w.settle(ctx, claims)
		},
	} {
		store.armed = true
		recovered(f)
		ok(t, w.AttachSubnet(ctx, w.routers[0], w.networks[2].Subnets[0], netip.Addr{}))
		ok(t, w.DetachSubnet(ctx, w.routers[0], w.networks[2].Subnets[0]))
	}
	fail := w.fake.fail
	w.fake.fail = func(call, _ string) error {
		if call == "vips" {
			panic("a defect")
		}
		return nil
	}
	recovered(func() { _, _ = w.ApplyLoadBalancer(ctx, service(subnet, "a", "10.0.0.200:80")) })
	w.fake.fail = fail
	ok(t, w.sync.retry(ctx))
	checkSum(t, w.Provider)
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
	engine.Store
	conflicts int
}

func (s *fasterStore) Begin(ctx context.Context) (engine.Writer, error) {
	w, err := s.Store.Begin(ctx)
	if err != nil || s.conflicts == 0 {
		return w, err
	}
	s.conflicts--
	return conflictingWriter{w}, nil
}

type conflictingWriter struct{ engine.Writer }

func (w conflictingWriter) Commit() error {
	w.Rollback()
	return fmt.Errorf("commit: %w", engine.ErrConflict)
}

// TestConflict checks that changes are made again when another process was faster.
func TestConflict(t *testing.T) {
	t.Parallel()
	p := open(t, Options{Datapath: newFake()})
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
	checkSum(t, p)
}
