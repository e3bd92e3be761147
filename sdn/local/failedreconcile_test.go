package local

import (
	"context"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/engine"
)

// restart opens the provider's store again with the same kernel, and fails to reconcile it.
func (w *world) restart(t *testing.T) {
	t.Helper()
	ok(t, w.Close())
	w.Provider = open(t, Options{Path: w.path, Datapath: w.fake})
	w.refuse = "Reconcile"
	if _, err := w.Reconcile(t.Context()); err == nil {
		t.Fatal("the comparison of everything did not fail")
	}
	w.refuse = ""
}

// A domain that goes after a failed Reconcile waits for the domain that its network comes to: with it the
// links of the network's ports would go.
func TestDomainGoesAfterFailedReconcile(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.port(t, portSpec(w, 0))
	w.restart(t)
	own := string(w.networks[0].ID)
	w.failIn = own
	ok(t, w.DetachSubnet(t.Context(), w.routers[0], w.networks[0].Subnets[0]))
	if d := w.fake.state[string(w.routers[0])]; d == nil || len(d.ports) != 1 {
		t.Errorf("the router went with the port: %+v", d)
	}
	w.failIn = ""
	ok(t, w.sync.retry(t.Context()))
	checkSum(t, w.Provider)
}

// A caller that repeats its request after a failed Reconcile is answered when the kernel has what it asked
// for, though the store has had that before.
func TestRepeatAfterFailedReconcile(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	router, subnet := w.routers[0], w.networks[0].Subnets[0]
	spec := portSpec(w, 0)
	spec.Key = sdn.Key{Owner: w.Installation(), Kind: "k", Name: "n"}
	id := w.port(t, spec)
	for _, name := range []string{"a", "b"} {
		_, err := w.ApplyLoadBalancer(t.Context(), service(subnet, name, "10.0.0.200:80"))
		ok(t, err)
	}
	lost := w.fake.state[string(router)] // the process was killed before the kernel had it, and the machine was booted
	delete(w.fake.state, string(router))
	w.restart(t)
	if port, err := w.Port(t.Context(), id); err != nil || port.Status != sdn.PortDown {
		t.Errorf("before the repeat the port is %v, %v, want it down", port.Status, err)
	}
	made, err := w.EnsurePorts(t.Context(), []sdn.PortSpec{spec})
	ok(t, err)
	if d := w.fake.state[string(router)]; made[0].Status != sdn.PortActive || d == nil || len(d.ports) != 1 {
		t.Errorf("the repeated port is %v, and the kernel has %+v", made[0].Status, d)
	}
	l, err := w.ApplyLoadBalancer(t.Context(), service(subnet, "a", "10.0.0.200:80"))
	ok(t, err)
	if n := len(w.fake.balancedIn(router)); !l.Status.Ready || n != len(lost.balanced) {
		t.Errorf("the repeated load balancer is %+v, and the kernel balances %d frontends, want %d", l.Status, n, len(lost.balanced))
	}
	_, err = w.Reconcile(t.Context())
	ok(t, err)
	checkSum(t, w.Provider)
	w.refuse = "Reconcile"
	if _, err := w.Reconcile(t.Context()); err == nil {
		t.Error("the comparison of everything did not fail")
	}
	if port, err := w.Port(t.Context(), id); err != nil || port.Status != sdn.PortActive {
		t.Errorf("a failure in a process that has compared everything takes the port down: %v, %v", port.Status, err)
	}
}

// A router that cannot be reconciled takes neither ports nor load balancers of others down, and is tried again.
func TestReconcileFailsInOneRouter(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	good, bad := w.port(t, portSpec(w, 0)), w.port(t, portSpec(w, 1))
	l, err := w.ApplyLoadBalancer(t.Context(), service(w.networks[0].Subnets[0], "a", "10.0.0.200:80"))
	ok(t, err)
	delete(w.fake.state, string(w.routers[1]))
	ok(t, w.Close())
	w.Provider = open(t, Options{Path: w.path, Datapath: w.fake})
	w.fake.broken = string(w.routers[1])
	if _, err := w.Reconcile(t.Context()); err == nil {
		t.Fatal("the comparison of everything did not fail")
	}
	w.fake.broken = ""
	status := func(id sdn.ID) sdn.PortStatus {
		p, err := w.Port(t.Context(), id)
		ok(t, err)
		return p.Status
	}
	if status(good) != sdn.PortActive || status(bad) != sdn.PortDown {
		t.Errorf("the ports are %v and %v, want active and down", status(good), status(bad))
	}
	if l, err = w.LoadBalancer(t.Context(), l.ID); err != nil || !l.Status.Ready {
		t.Errorf("the load balancer is %+v, %v", l.Status, err)
	}
	if stats, err := w.Stats(t.Context()); err != nil || stats.Unsettled != 1 {
		t.Errorf("%d routers are unsettled, %v; want 1", stats.Unsettled, err)
	}
	ok(t, w.sync.retry(t.Context()))
	if status(bad) != sdn.PortActive {
		t.Errorf("the port is %v after the retry", status(bad))
	}
	checkSum(t, w.Provider)
}

// A row that cannot be read stops no change of other routers, also before everything was compared.
func TestDamagedRowStopsItsRouterOnly(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	damaged, port := w.port(t, portSpec(w, 1)), w.port(t, portSpec(w, 1))
	ok(t, w.Close())
	w.Provider = open(t, Options{Path: w.path, Datapath: w.fake})
	var row []byte
	eachPort(t, w.Provider, func(id, is []byte) []byte {
		if sdn.ID(id) != damaged {
			return is
		}
		row = append(row, is...)
		return []byte("damaged")
	})
	if _, err := w.Reconcile(t.Context()); !sdn.IsUnavailable(err) {
		t.Errorf("got %v, want unavailable", err)
	}
	if made := w.port(t, portSpec(w, 0)); !w.fake.has(made) {
		t.Error("the data path does not have the port of another router")
	}
	ok(t, w.DeletePorts(t.Context(), []sdn.ID{port}))
	if w.fake.has(port) || !w.fake.has(damaged) {
		t.Error("the data path has the deleted port, or lacks the damaged one")
	}
	eachPort(t, w.Provider, func(id, is []byte) []byte {
		if sdn.ID(id) == damaged {
			return row
		}
		return is
	})
	checkSum(t, w.Provider)
}

// Run tries each router again by itself: one that is refused for long does not delay others.
func TestRunTriesRoutersApart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fake := newFake()
		p := openMemory(t, engine.NewMemory(), Options{Datapath: fake, Host: testHost})
		var routers []sdn.ID
		var specs []sdn.PortSpec
		for _, cidr := range []string{"10.0.0.0/24", "10.1.0.0/24"} {
			r, n := newRouterAndNetwork(t, p, cidr)
			ok(t, p.AttachSubnet(t.Context(), r, n.Subnets[0], netip.Addr{}))
			routers, specs = append(routers, r), append(specs, sdn.PortSpec{Network: n.ID, Host: testHost})
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- p.Run(ctx) }()
		failing := map[string]bool{string(routers[0]): true}
		fake.fail = func(_, domain string) error {
			if failing[domain] {
				return errInjected
			}
			return nil
		}
		create := func(i int) sdn.ID {
			made, err := p.EnsurePorts(t.Context(), specs[i:i+1])
			if !sdn.IsUnavailable(err) {
				t.Fatalf("got %v, want unavailable", err)
			}
			return made[0].ID
		}
		late := create(0)
		time.Sleep(time.Hour)
		fake.mu.Lock()
		failing[string(routers[1])] = true
		fake.mu.Unlock()
		port := create(1)
		fake.mu.Lock()
		failing[string(routers[1])] = false
		fake.mu.Unlock()
		soon, stop := context.WithTimeout(t.Context(), 2*time.Second)
		defer stop()
		ok(t, p.WaitPorts(soon, []sdn.ID{port}, sdn.PortActive))
		fake.mu.Lock()
		failing[string(routers[0])] = false
		fake.mu.Unlock()
		ok(t, p.WaitPorts(t.Context(), []sdn.ID{late}, sdn.PortActive))
		cancel()
		ok(t, <-done)
		checkSum(t, p)
	})
}
