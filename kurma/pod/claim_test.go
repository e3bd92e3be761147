//go:build linux

package pod

import (
	"testing"

	ns "github.com/kuryr/kuryr/internal/netns"
	"github.com/vishvananda/netns"
)

// A container names a pod that is not its own, and does not get it out of the way.
func TestContainerNamesAnothersPod(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.add(Request{UUID: someUUID, Networks: []string{"a"}})
	if _, err := w.Add(t.Context(), Request{UUID: someUUID, Container: "c", PID: sleeper(t), Networks: []string{"a"}}); ReasonOf(err) != Conflict {
		t.Errorf("%v", err)
	}
	same(t, w.List(), []Pod{p})
	w.del(p.UUID)
	w.clean()
}

// slowPins are namespaces whose pinning waits.
type slowPins struct {
	*ns.Store
	begun, more chan struct{}
}

func (s slowPins) Pin(name string, h netns.NsHandle) error {
	s.begun <- struct{}{}
	<-s.more
	return s.Store.Pin(name, h)
}

// Two pods want one namespace at the same time.
func TestOneNamespaceAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	pins := slowPins{w.spaces, make(chan struct{}, 2), make(chan struct{})}
	w.Manager.spaces = pins
	pid := sleeper(t)
	first := make(chan error, 1)
	go func() {
		_, err := w.Add(t.Context(), Request{UUID: someUUID, PID: pid})
		first <- err
	}()
	<-pins.begun
	second := make(chan error, 1)
	go func() {
		_, err := w.Add(t.Context(), Request{PID: pid})
		second <- err
	}()
	select {
	case err := <-second:
		if ReasonOf(err) != Conflict || !LookedAfter(err) {
			t.Errorf("%v", err)
		}
	case <-pins.begun:
		t.Error("both pin it")
	}
	close(pins.more)
	if err := <-first; err != nil {
		t.Error(err)
	}
	w.del(someUUID)
	for _, p := range w.List() {
		w.del(p.UUID)
	}
	w.clean()
}
