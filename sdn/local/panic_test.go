package local

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/engine"
)

// panickingStore is a store whose next view or commit is a defect.
type panickingStore struct {
	engine.Store
	armed      bool
	committing bool
}

func (s *panickingStore) Begin(ctx context.Context) (engine.Writer, error) {
	w, err := s.Store.Begin(ctx)
	if err != nil || !s.committing {
		return w, err
	}
	s.committing = false
	return panickingWriter{w}, nil
}

type panickingWriter struct{ engine.Writer }

func (panickingWriter) Commit() error { panic("a defect") }

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
	store := &panickingStore{Store: w.store}
	w.store = store
	o := Options{Host: testHost, Datapath: w.fake}
	ok(t, o.complete())
	hold(t, w.Provider, o)
	store.committing = true
	recovered(func() { _ = w.DeletePort(ctx, port, 0) })
	if got, err := w.Port(ctx, port); err != nil || got.Status != sdn.PortActive {
		t.Errorf("after a change that panicked the port is %v, %v", got.Status, err)
	}
	// The comparison of everything, and the application of a shape.
	for _, f := range []func(){
		func() { _, _ = w.Check(ctx) },
		func() {
			claims := []*claim{{target: w.sync.domains[w.routers[0]], keys: []partKey{shapeKey}}}
			claims[0].busy(1)
			w.sync.join(claims)
			_ = w.sync.wait(ctx, claims)
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
