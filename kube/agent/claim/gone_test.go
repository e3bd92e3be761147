//go:build linux

package claim

import (
	"os"
	"path/filepath"
	"testing"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
)

// What a pod leaves that goes without a DEL is taken away when its network namespace has gone.
func TestGoneWithoutDel(t *testing.T) {
	w := newWorld(t, aPort(1), aPod("a", "ua"))
	w.begun()
	netns := filepath.Join(t.TempDir(), "cni-1")
	must(t, os.WriteFile(netns, nil, 0o600))
	a := ask("c", "a", "ua")
	a.Namespace = netns
	got := w.adds(a)
	w.says(string(got.Port.ID), v1.PortBound, "c")
	w.api.remove(t, aPod("a", "ua"))
	eventually(t, "the namespace is watched", func() bool { w.gone.mu.Lock(); defer w.gone.mu.Unlock(); return len(w.gone.waiting) == 1 })
	if _, err := w.Find(t.Context(), a); err != nil {
		t.Errorf("the port went before the namespace: %v", err)
	}
	must(t, os.Remove(netns))
	w.says(string(got.Port.ID), v1.PortAvailable, "")
	w.plugs.mu.Lock()
	defer w.plugs.mu.Unlock()
	if len(w.plugs.there) != 0 {
		t.Errorf("still plugged: %v", w.plugs.there)
	}
}

// Where the network namespace has gone before the pod, nothing waits for it afterwards.
func TestGoneWithItsNamespace(t *testing.T) {
	w := newWorld(t, aPort(1), aPod("a", "ua"))
	w.begun()
	a := ask("c", "a", "ua")
	a.Namespace = filepath.Join(t.TempDir(), "cni-1")
	got := w.adds(a)
	w.says(string(got.Port.ID), v1.PortBound, "c")
	must(t, os.Remove(a.Namespace))
	w.api.remove(t, aPod("a", "ua"))
	w.says(string(got.Port.ID), v1.PortAvailable, "")
	w.gone.mu.Lock()
	defer w.gone.mu.Unlock()
	if len(w.gone.waiting) != 0 {
		t.Errorf("it still waits for %v", w.gone.waiting)
	}
}
