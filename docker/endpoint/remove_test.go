package endpoint

import (
	"context"
	"errors"
	"iter"
	"sync/atomic"
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

// brokenWires is a Binder that fails.
type brokenWires struct{ wires }

func (brokenWires) Plug(context.Context, bind.Interface) (bind.Result, error) {
	return bind.Result{}, errors.New("no memory")
}

func (brokenWires) Unplug(context.Context, sdn.Port) error { return errors.New("no memory") }

// A Join that cannot be undone leaves a deletion.
func TestFailedJoinIsPending(t *testing.T) {
	t.Parallel()
	s, _ := newService(t)
	s.Binder = brokenWires{}
	importRow(t, s, "one", reconcile.Wanted)
	join := &api.JoinRequest{EndpointRequest: api.EndpointRequest{EndpointID: "one", NetworkID: "net"}}
	_, err := s.Join(t.Context(), join)
	if !reconcile.IsPending(err) {
		t.Error(err)
	}
}

// A publication that cannot be undone leaves a deletion that is noted.
func TestFailedPublicationIsPending(t *testing.T) {
	t.Parallel()
	s, _ := newService(t)
	s.SDN = &fakeSDN{unavailable: true}
	importRow(t, s, "one", reconcile.Wanted)
	spec := PublicationSpec{Exposed: []api.ExposedPort{{Proto: sdn.TCP, Port: 80}}}
	if err := s.publish(t.Context(), "one", spec); !reconcile.IsPending(err) {
		t.Error(err)
	}
}

// An endpoint that is being deleted when it is set again stays pending if the deletion fails.
func TestSetAgainIsPending(t *testing.T) {
	t.Parallel()
	s, _ := newService(t)
	s.SDN = &ports{held: map[sdn.ID]bool{"one": true}}
	importRow(t, s, "one", reconcile.Deleting)
	row, _ := s.endpoints.Get("one")
	if _, err := s.again(t.Context(), row); !reconcile.IsPending(err) {
		t.Error(err)
	}
}

// cutOff is an SDN during whose call the caller gives up.
type cutOff struct {
	ports
	end func()
}

func (c *cutOff) DeleteSecurityGroup(context.Context, sdn.ID) error {
	c.end()
	return sdn.Unavailable(context.Canceled, "sdn", "no answer")
}

// A Leave that could not store one of its deletions does not succeed because another is pending.
func TestLeaveCutOff(t *testing.T) {
	t.Parallel()
	s, _ := newService(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s.SDN, s.Binder = &cutOff{end: cancel}, wires{}
	importRow(t, s, "one", reconcile.Wanted)
	o := reconcile.Object{Key: "one"}
	err := s.publications.Import(t.Context(), []publicationRow{
		{Object: o, Phase: reconcile.Wanted, Done: true, Last: PublicationLast{Group: "group"}},
	})
	if err == nil {
		row := floatingRow{Object: o, Phase: reconcile.Wanted, Done: true, Last: FloatingLast{ID: "fip"}}
		err = s.floating.Import(t.Context(), []floatingRow{row})
	}
	if err != nil {
		t.Fatal(err)
	}
	err = s.Leave(ctx, "one")
	if row, _ := s.publications.Get("one"); row.Phase != reconcile.Deleting {
		t.Errorf("the publication is %s", row.Phase)
	}
	if row, ok := s.floating.Get("one"); ok && row.Phase == reconcile.Wanted && err == nil {
		t.Error("Leave succeeded, and nothing deletes the floating IP")
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
		if err := s.DropGone(t.Context()); err != nil || s.known("one") != used {
			t.Errorf("used %v: known %v, %v", used, s.known("one"), err)
		}
	}
}

// So does an endpoint that was joined: the engine has not moved the interface yet.
func TestDropGoneOfJoined(t *testing.T) {
	t.Parallel()
	s, _ := newService(t)
	s.SDN, s.Binder = &ports{}, wires{}
	importRow(t, s, "one", reconcile.Wanted)
	join := &api.JoinRequest{EndpointRequest: api.EndpointRequest{EndpointID: "one", NetworkID: "net"}}
	if _, err := s.Join(t.Context(), join); err != nil {
		t.Fatal(err)
	}
	if err := s.DropGone(t.Context()); err != nil || !s.known("one") {
		t.Errorf("after Join: known %v, %v", s.known("one"), err)
	}
	s.EngineStarted(t.Context())
	if err := s.DropGone(t.Context()); err != nil || s.known("one") {
		t.Errorf("when the engine has forgotten it: known %v, %v", s.known("one"), err)
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
	port := sdn.Port{Meta: sdn.Meta{ID: "one"}, DeviceID: "one", Host: "box"}
	for _, connected := range []bool{true, false} {
		wired["one"] = connected
		used, err := s.dropUnused(t.Context(), "one", port)
		if err != nil || used != connected || s.known("one") != connected {
			t.Errorf("connected %v: used %v, known %v, %v", connected, used, s.known("one"), err)
		}
	}
}

// An endpoint whose row does not know the port, as after a restored backup, stays if a container has
// the interface of the port.
func TestDropUnusedWithoutAnswer(t *testing.T) {
	t.Parallel()
	s, _ := newService(t)
	s.SDN, s.Binder = &ports{}, wires{"one": true}
	row := endpointRow{Object: reconcile.Object{Key: "one"}, Phase: reconcile.Wanted, Done: true}
	if err := s.endpoints.Import(t.Context(), []endpointRow{row}); err != nil {
		t.Fatal(err)
	}
	port := sdn.Port{Meta: sdn.Meta{ID: "one"}, DeviceID: "one", Host: "box"}
	if used, err := s.dropUnused(t.Context(), "one", port); !used || err != nil || !s.known("one") {
		t.Errorf("used %v, known %v, %v", used, s.known("one"), err)
	}
}

// activating is an SDN whose first port does not become active before a test says so.
type activating struct {
	ports
	waits   atomic.Int64
	waiting chan struct{}
	fail    chan struct{}
}

func (a *activating) WaitPorts(context.Context, []sdn.ID, sdn.PortStatus) error {
	if a.waits.Add(1) > 1 {
		return nil
	}
	close(a.waiting)
	<-a.fail
	return errHeld
}

// A Join that fails leaves what a repeated Join has plugged since.
func TestFailedJoinAfterRepeat(t *testing.T) {
	t.Parallel()
	s, _ := newService(t)
	a := &activating{waiting: make(chan struct{}), fail: make(chan struct{})}
	s.SDN, s.Binder, s.WaitActive = a, wires{}, time.Minute
	importRow(t, s, "one", reconcile.Wanted)
	join := &api.JoinRequest{EndpointRequest: api.EndpointRequest{EndpointID: "one", NetworkID: "net"}}
	first := make(chan error)
	go func() {
		_, err := s.Join(t.Context(), join)
		first <- err
	}()
	<-a.waiting
	if _, err := s.Join(t.Context(), join); err != nil {
		t.Error(err)
	}
	close(a.fail)
	if err := <-first; !errors.Is(err, errHeld) {
		t.Error(err)
	}
	if _, ok := s.plugs.Get("one"); !ok {
		t.Error("the interface of the repeated Join is gone")
	}
}
