package local

import "testing"

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
