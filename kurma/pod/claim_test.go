//go:build linux

package pod

import (
	"os/exec"
	"syscall"
	"testing"

	ns "github.com/kuryr/kuryr/internal/netns"
	"github.com/vishvananda/netns"
)

// A container that names a pod which is not its own gets neither the UUID nor the pod removed,
// also if the pod's own container has ended.
func TestContainerNamesAnothersPod(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.SetGrants(Grants{chosenUUID: {All: true}})
	fails := func(reason Reason, r Request) {
		t.Helper()
		before := w.List()
		if _, err := w.Add(t.Context(), r); ReasonOf(err) != reason {
			t.Errorf("%+v: %v (%s), want %s", r, err, ReasonOf(err), reason)
		}
		same(t, w.List(), before)
	}
	stranger := Request{UUID: someUUID, Container: "c", PID: sleeper(t), Networks: []string{"a"}}
	w.add(Request{UUID: someUUID, Networks: []string{"a"}})
	fails(Conflict, stranger)
	w.del(someUUID)

	first := exec.Command("sleep", "600")
	first.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	if err := first.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { end(first) })
	own := Request{UUID: someUUID, Container: "own", PID: first.Process.Pid, Networks: []string{"a"}}
	w.add(own)
	shared := stranger
	shared.PID = own.PID
	if _, err := w.Add(t.Context(), shared); !LookedAfter(err) {
		t.Errorf("in the pod's namespace: %v", err)
	}
	w.unwatch(someUUID) // as before the daemon has seen that it ended
	end(first)
	fails(Conflict, stranger)
	fails(Conflict, Request{UUID: someUUID, Networks: []string{"a"}})

	// Its own container, made again, is refused before anything is removed.
	own.PID = sleeper(t)
	w.SetGrants(Grants{chosenUUID: {All: true}, "a": {}})
	fails(Denied, own)
	w.SetGrants(nil)
	fails(Denied, own)
	fails(Denied, stranger)
	w.del(someUUID)
	fails(Denied, stranger)
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
