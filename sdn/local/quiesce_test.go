package local

import (
	"context"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kuryr/kuryr/sdn"
)

// Close waits for a change of the kernel whose caller has given up, and nothing begins after it: the kernel
// may be cleared then.
func TestCloseWaitsForTheKernel(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var calls, ended atomic.Int32
		inside, proceed := make(chan struct{}, 9), make(chan struct{})
		w.fake.fail = func(string, string) error {
			calls.Add(1)
			inside <- struct{}{}
			<-proceed
			ended.Add(1)
			return nil
		}
		first := make(chan error, 1)
		go func() {
			first <- w.AttachSubnet(t.Context(), w.routers[0], w.networks[2].Subnets[0], netip.Addr{})
		}()
		<-inside
		impatient, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		if _, err := w.EnsurePorts(impatient, []sdn.PortSpec{portSpec(w, 0)}); !sdn.IsUnavailable(err) {
			t.Errorf("a caller that gave up got %v, want unavailable", err)
		}
		go func() {
			time.Sleep(20 * time.Millisecond)
			close(proceed)
		}()
		ok(t, w.Close())
		if begun := calls.Load(); begun != ended.Load() {
			t.Errorf("Close returned while %d of %d calls were under way", begun-ended.Load(), begun)
		}
		begun := calls.Load()
		ok(t, <-first)
		time.Sleep(20 * time.Millisecond)
		if n := calls.Load() - begun; n != 0 {
			t.Errorf("%d calls began after Close", n)
		}
		if _, err := w.Reconcile(t.Context()); !sdn.IsUnavailable(err) {
			t.Errorf("after Close Reconcile returned %v, want it unavailable", err)
		}
	})
}

// After Quiesce the store still changes, and the caller is told that the kernel does not follow.
func TestQuiesce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.Quiesce()
	calls := w.fake.calls
	made, err := w.EnsurePorts(t.Context(), []sdn.PortSpec{portSpec(w, 0)})
	if !sdn.IsUnavailable(err) || len(made) != 1 || made[0].Status != sdn.PortDown {
		t.Errorf("got %+v, %v, want a port that is down, and unavailable", made, err)
	}
	if n := w.fake.calls - calls; n != 0 {
		t.Errorf("the kernel was told by %d calls", n)
	}
	ok(t, w.Close())
}
