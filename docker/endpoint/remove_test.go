package endpoint

import (
	"context"
	"errors"
	"iter"
	"testing"
	"time"

	"github.com/kuryr/kuryr/bind"
	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/sdn"
)

var errHeld = errors.New("something holds the port")

// ports is a provider that has no port but those that cannot be read.
type ports struct {
	sdn.Provider
	held map[sdn.ID]bool
	read func(sdn.ID) // called before each read; nil: nothing is
}

func (p *ports) Port(_ context.Context, id sdn.ID) (sdn.Port, error) {
	if p.read != nil {
		p.read(id)
	}
	if p.held[id] {
		return sdn.Port{}, errHeld
	}
	return sdn.Port{}, sdn.NotFound("port", string(id))
}

func (p *ports) FindPorts(context.Context, sdn.PortQuery) iter.Seq2[sdn.Port, error] {
	return found([]sdn.Port(nil), nil)
}

// importRow makes the row of an endpoint with a port of the same id.
func importRow(t *testing.T, s *Service, id string, phase reconcile.Phase) {
	t.Helper()
	row := reconcile.Row[Spec, Last]{
		Object: reconcile.Object{Key: id}, Phase: phase, Done: true, Spec: Spec{Network: "net"},
		Last: Last{Port: sdn.Port{Meta: sdn.Meta{ID: sdn.ID(id)}, Host: "box"}},
	}
	if err := s.endpoints.Import(t.Context(), []reconcile.Row[Spec, Last]{row}); err != nil {
		t.Fatal(err)
	}
}

// A deletion that fails keeps a call from its own endpoint only, and it stays pending.
func TestFinish(t *testing.T) {
	t.Parallel()
	s, _ := newService(t)
	s.SDN = &ports{held: map[sdn.ID]bool{"held": true}}
	importRow(t, s, "held", reconcile.Deleting)
	importRow(t, s, "gone", reconcile.Deleting)
	finish := func(required string) error {
		return s.Finish(t.Context(), func(id string, _ sdn.Port) (bool, bool) { return true, id == required })
	}
	if err := finish("gone"); err != nil || s.Known("gone") || !s.Known("held") {
		t.Errorf("%v; gone is known: %v, held is known: %v", err, s.Known("gone"), s.Known("held"))
	}
	if err := finish("held"); !errors.Is(err, errHeld) || !s.pending.Load() {
		t.Errorf("%v, pending %v", err, s.pending.Load())
	}
	s.SDN = &ports{}
	if err := finish("held"); err != nil || s.Known("held") || s.pending.Load() {
		t.Errorf("%v, pending %v", err, s.pending.Load())
	}
}

// A deletion that fails while Finish runs stays pending.
func TestFinishConcurrently(t *testing.T) {
	t.Parallel()
	s, _ := newService(t)
	p := &ports{held: map[sdn.ID]bool{"other": true}}
	s.SDN, s.Binder = p, wires{}
	importRow(t, s, "gone", reconcile.Deleting)
	importRow(t, s, "other", reconcile.Wanted)
	p.read = func(id sdn.ID) {
		if id != "gone" {
			return
		}
		if err := s.Drop(t.Context(), "other"); !reconcile.IsPending(err) {
			t.Error(err)
		}
	}
	all := func(string, sdn.Port) (bool, bool) { return true, true }
	if err := s.Finish(t.Context(), all); err != nil || s.Known("gone") || !s.pending.Load() {
		t.Errorf("%v, pending %v", err, s.pending.Load())
	}
}

// brokenWires is a Binder that fails.
type brokenWires struct{ wires }

func (brokenWires) Plug(context.Context, bind.Interface) (bind.Result, error) {
	return bind.Result{}, errors.New("no memory")
}

func (brokenWires) Unplug(context.Context, sdn.Port) error { return errors.New("no memory") }

// A Join that cannot be undone leaves a deletion. Finish does not forget it.
func TestFailedJoinIsPending(t *testing.T) {
	t.Parallel()
	s, _ := newService(t)
	s.Binder = brokenWires{}
	importRow(t, s, "one", reconcile.Wanted)
	s.pending.Store(false)
	join := &api.JoinRequest{EndpointRequest: api.EndpointRequest{EndpointID: "one", NetworkID: "net"}}
	_, err := s.Join(t.Context(), join)
	if !reconcile.IsPending(err) || !s.pending.Load() {
		t.Errorf("%v, pending %v", err, s.pending.Load())
	}
	none := func(string, sdn.Port) (bool, bool) { return false, false }
	if err := s.Finish(t.Context(), none); err != nil || !s.pending.Load() {
		t.Errorf("%v, pending %v", err, s.pending.Load())
	}
}

// A publication that cannot be undone leaves a deletion that is noted.
func TestFailedPublicationIsPending(t *testing.T) {
	t.Parallel()
	s, _ := newService(t)
	s.SDN = &fakeSDN{unavailable: true}
	s.pending.Store(false)
	spec := PublicationSpec{Exposed: []api.ExposedPort{{Proto: sdn.TCP, Port: 80}}}
	if err := s.publish(t.Context(), "one", spec); !reconcile.IsPending(err) || !s.pending.Load() {
		t.Errorf("%v, pending %v", err, s.pending.Load())
	}
}

// An endpoint that is being deleted when it is set again stays pending if the deletion fails.
func TestSetAgainIsPending(t *testing.T) {
	t.Parallel()
	s, _ := newService(t)
	s.SDN = &ports{held: map[sdn.ID]bool{"one": true}}
	importRow(t, s, "one", reconcile.Deleting)
	s.pending.Store(false)
	row, _ := s.endpoints.Get("one")
	if _, err := s.again(t.Context(), row); !reconcile.IsPending(err) || !s.pending.Load() {
		t.Errorf("%v, pending %v", err, s.pending.Load())
	}
}

// joining is a Binder. A container gets the interface when a test says so.
type joining struct {
	wires
	asked func()
}

func (j joining) Connected(ctx context.Context, p sdn.Port) (bool, error) {
	j.asked()
	return j.wires.Connected(ctx, p)
}

// wantLocked checks that the row of an endpoint cannot be changed until its deletion is stored.
func wantLocked(t *testing.T, s *Service, id string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if err := s.endpoints.Forget(ctx, id); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("lock of the row: got %v, want it held", err)
	}
}

// An endpoint whose port is gone stays while a container has its interface. That is checked when the
// row cannot change any more.
func TestDropGone(t *testing.T) {
	t.Parallel()
	s, _ := newService(t)
	s.SDN = &ports{}
	wired := wires{"one": true}
	s.Binder = joining{wired, func() { wantLocked(t, s, "one") }}
	importRow(t, s, "one", reconcile.Wanted)
	for _, used := range []bool{true, false} {
		wired["one"] = used
		if err := s.DropGone(t.Context()); err != nil || s.Known("one") != used {
			t.Errorf("used %v: known %v, %v", used, s.Known("one"), err)
		}
	}
}

// An endpoint stays if a container gets its interface before the deletion has the row's lock.
func TestDropUnused(t *testing.T) {
	t.Parallel()
	s, _ := newService(t)
	s.SDN = &ports{}
	wired := wires{"one": true}
	s.Binder = joining{wired, func() { wantLocked(t, s, "one") }}
	importRow(t, s, "one", reconcile.Wanted)
	drop := func() bool {
		t.Helper()
		connected, err := s.DropUnused(t.Context(), "one", sdn.Port{}, "test")
		if err != nil {
			t.Error(err)
		}
		return connected
	}
	if connected := drop(); !connected || !s.Known("one") {
		t.Errorf("connected %v, known %v", connected, s.Known("one"))
	}
	delete(wired, "one")
	if connected := drop(); connected || s.Known("one") {
		t.Errorf("connected %v, known %v", connected, s.Known("one"))
	}
}
