package local

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/engine"
)

// newRouterAndNetwork returns a router, and a network with a subnet that is on no router.
func newRouterAndNetwork(t *testing.T, p *Provider, cidr string) (sdn.ID, sdn.Network) {
	t.Helper()
	r, err := p.EnsureRouter(t.Context(), sdn.RouterSpec{})
	ok(t, err)
	n, err := p.EnsureNetwork(t.Context(), sdn.NetworkSpec{Subnets: []sdn.SubnetSpec{{CIDR: prefix(cidr)}}})
	ok(t, err)
	return r.ID, n
}

// During a comparison of everything changes are stored, and callers can give up.
func TestLongReconcile(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fake := newFake()
		p := openMemory(t, engine.NewMemory(), Options{Datapath: fake, Host: testHost})
		_, n := newRouterAndNetwork(t, p, "10.0.0.0/24")
		proceed := make(chan struct{})
		fake.fail = func(call, _ string) error {
			if call == "Reconcile" {
				<-proceed
			}
			return nil
		}
		reconciled, checked := make(chan error, 1), make(chan error, 1)
		go func() {
			_, err := p.Reconcile(t.Context())
			reconciled <- err
		}()
		synctest.Wait()
		canceled, cancel := context.WithCancel(t.Context())
		go func() {
			_, err := p.Check(canceled)
			checked <- err
		}()
		synctest.Wait()
		impatient, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		made, err := p.EnsurePorts(impatient, []sdn.PortSpec{{Network: n.ID, Host: testHost}})
		if !sdn.IsUnavailable(err) || len(made) != 1 || made[0].Status != sdn.PortDown {
			t.Fatalf("got %+v, %v, want a port that is down, and unavailable", made, err)
		}
		cancel()
		if err := <-checked; !errors.Is(err, context.Canceled) {
			t.Errorf("the canceled check returned %v", err)
		}
		close(proceed)
		ok(t, <-reconciled)
		ok(t, p.WaitPorts(t.Context(), []sdn.ID{made[0].ID}, sdn.PortActive))
		checkSum(t, p)
	})
}
