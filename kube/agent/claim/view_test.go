//go:build linux

package claim

import (
	"context"
	"testing"
	"time"

	"github.com/kuryr/kuryr/sdn"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
)

// A View has who has what, who waits, and in what journal and API do not agree.
func TestView(t *testing.T) {
	stray := aPort(2)
	stray.Labels[v1.LabelPortStatus] = string(v1.PortDeleting)
	w := newWorld(t, aPort(1), stray, aPod("a", "ua"), aPod("b", "ub"))
	w.begun()
	got := w.adds(ask("ca", "a", "ua"))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { _, err := w.Claim(ctx, ask("cb", "b", "ub")); done <- err }()
	var v View
	for end := time.Now().Add(testTimeout); ; {
		if v = w.View(); v.Waiting == 1 && v.Ports[0].Status == v1.PortBound && v.Ports[0].Wrong == "" || time.Now().After(end) {
			break
		}
		<-time.After(time.Millisecond)
	}
	cancel()
	if err := <-done; !sdn.IsExhausted(err) {
		t.Errorf("the one that waits: %v", err)
	}
	if len(v.Ports) != 2 || len(v.Pools) != 1 {
		t.Fatalf("%+v", v)
	}
	if p := v.Ports[0]; p.Name != string(got.Port.ID) || p.Holder == nil || p.Holder.Pod.Name != "a" || p.UID != "ua" || p.Status != v1.PortBound || p.Wrong != "" {
		t.Errorf("the port of a: %+v", p)
	}
	if p := v.Ports[1]; p.Name != portName(2) || p.Holder != nil || p.Status != v1.PortDeleting || p.Wrong != "" {
		t.Errorf("the port of nobody: %+v", p)
	}
	if p := v.Pools[0]; p.Ports != 2 || p.Free != 0 || p.Waiting != 1 {
		t.Errorf("the pool: %+v", p)
	}
	w.kill() // so that it mends nothing
	w.index.ports[string(got.Port.ID)].object.Labels[v1.LabelPortStatus] = string(v1.PortAvailable)
	if p := w.View().Ports[0]; p.Wrong != `it is labelled "available" and should be "bound"` {
		t.Errorf("labelled by hand: %q", p.Wrong)
	}
	delete(w.index.ports, string(got.Port.ID))
	if p := w.View().Ports[0]; p.Wrong == "" || p.Holder == nil || p.Status != "" {
		t.Errorf("without its KuryrPort: %+v", p)
	}
}
