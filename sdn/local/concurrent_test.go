package local

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kuryr/kuryr/datapath/router"
	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/engine"
)

// blockingKernel is a fakeKernel whose calls wait before they do anything.
type blockingKernel struct {
	*fakeKernel
	wait func(call, domain string)
}

func (k *blockingKernel) Set(ctx context.Context, c router.Change) (router.Result, error) {
	if k.wait != nil && c.Shape != nil {
		k.wait("shape", c.Router)
	}
	if k.wait != nil && len(c.Groups) > 0 {
		k.wait("groups", c.Router)
	}
	return k.fakeKernel.Set(ctx, c)
}

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

// A network that moves slowly holds up its own domains only.
func TestSlowMove(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		kernel := &blockingKernel{fakeKernel: newFake()}
		p := openMemory(t, engine.NewMemory(), Options{Datapath: kernel, Host: testHost})
		slow, n := newRouterAndNetwork(t, p, "10.0.0.0/24")
		quick, other := newRouterAndNetwork(t, p, "10.1.0.0/24")
		for _, id := range []sdn.ID{n.ID, other.ID} {
			_, err := p.EnsurePorts(t.Context(), []sdn.PortSpec{{Network: id, Host: testHost}})
			ok(t, err)
		}
		proceed := make(chan struct{})
		kernel.wait = func(_, domain string) {
			if domain == string(slow) {
				<-proceed
			}
		}
		moved := make(chan error, 1)
		go func() { moved <- p.AttachSubnet(t.Context(), slow, n.Subnets[0], netip.Addr{}) }()
		synctest.Wait()
		impatient, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		ok(t, p.AttachSubnet(impatient, quick, other.Subnets[0], netip.Addr{}))
		ok(t, p.DetachSubnet(impatient, quick, other.Subnets[0]))
		close(proceed)
		ok(t, <-moved)
		checkSum(t, p)
	})
}

// A router that applies a network late does not take it from the router that has it by then.
func TestLateShapeTakesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		kernel := &blockingKernel{fakeKernel: newFake()}
		p := openMemory(t, engine.NewMemory(), Options{Datapath: kernel, Host: testHost})
		late, n := newRouterAndNetwork(t, p, "10.0.0.0/24")
		next, kept := newRouterAndNetwork(t, p, "10.1.0.0/24")
		ok(t, p.AttachSubnet(t.Context(), late, kept.Subnets[0], netip.Addr{}))
		proceed := make(chan struct{})
		kernel.wait = func(_, domain string) {
			if domain == string(late) {
				<-proceed
			}
		}
		done := make(chan error, 3)
		for _, f := range []func() error{
			func() error { return p.AttachSubnet(t.Context(), late, n.Subnets[0], netip.Addr{}) },
			func() error { return p.DetachSubnet(t.Context(), late, n.Subnets[0]) },
			func() error { return p.AttachSubnet(t.Context(), next, n.Subnets[0], netip.Addr{}) },
		} {
			go func() { done <- f() }()
			synctest.Wait()
		}
		close(proceed)
		for range 3 {
			ok(t, <-done)
		}
		ok(t, p.sync.retry(t.Context()))
		checkSum(t, p)
	})
}

// A port is not answered in a router that loses its network before it has the port.
func TestNetworkLeavesBeforeItsPort(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		kernel := &blockingKernel{fakeKernel: newFake()}
		p := openMemory(t, engine.NewMemory(), Options{Datapath: kernel, Host: testHost})
		r, n := newRouterAndNetwork(t, p, "10.0.0.0/24")
		ok(t, p.AttachSubnet(t.Context(), r, n.Subnets[0], netip.Addr{}))
		group, err := p.ApplySecurityGroup(t.Context(), sdn.SecurityGroupSpec{})
		ok(t, err)
		proceed := make(chan struct{})
		kernel.wait = func(call, domain string) {
			if call == "groups" && domain == string(r) {
				<-proceed
			}
		}
		answered := make(chan error, 1)
		go func() {
			_, err := p.EnsurePorts(t.Context(), []sdn.PortSpec{{Network: n.ID, Host: testHost, Groups: []sdn.ID{group.ID}}})
			answered <- err
		}()
		synctest.Wait()
		left := stored(t, func(ctx context.Context) error { return p.DetachSubnet(ctx, r, n.Subnets[0]) })
		// The network's own domain takes it for the sake of another change, which does not name the port.
		other := []*claim{{target: p.sync.domains[n.ID], keys: []partKey{shapeKey}}}
		p.sync.mu.Lock()
		next := other[0].target.take()
		other[0].busy(1)
		p.sync.mu.Unlock()
		p.sync.join(other)
		ok(t, p.sync.wait(t.Context(), other))
		synctest.Wait() // its goroutine has ended
		p.sync.mu.Lock()
		other[0].target.next = next
		p.sync.mu.Unlock()
		close(proceed)
		ok(t, <-answered)
		if own := kernel.state[string(n.ID)]; own == nil || len(own.ports) != 1 {
			t.Error("the port was answered before its network's domain had it")
		}
		ok(t, left.settle())
		checkSum(t, p)
	})
}
