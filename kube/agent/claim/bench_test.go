//go:build linux

package claim

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kuryr/kuryr/internal/jsonstore"
	"github.com/kuryr/kuryr/kube/agent"
	"github.com/kuryr/kuryr/kube/agent/wiring"
	"github.com/kuryr/kuryr/kube/cni"
)

// BenchmarkChoose finds a port among 1,000 free ones: what a claim costs without its row.
func BenchmarkChoose(b *testing.B) {
	x := newIndex(thisNode)
	for i := range 1000 {
		x.setPort(aPort(i))
	}
	x.setPool(aPool())
	x.setNamespace(aNamespace())
	x.setNetwork(aNetwork())
	x.setPod(aPod("a", "ua"))
	a := ask("c", "a", "ua")
	b.ReportAllocs()
	for b.Loop() {
		if p, _, _, err := x.choose(a); p == nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkAdd is an ADD and a DEL on a node with 1,000 free ports, without a kernel and an API
// server, beside writing two records into files without waiting for the disk.
func BenchmarkAdd(b *testing.B) {
	objects := []client.Object{aPod("a", "ua")}
	for i := range 1000 {
		objects = append(objects, aPort(i))
	}
	w := newWorld(b, objects...)
	w.begun()
	w.api.leave(true)
	w.queue.ShutDown() // what is told behind the answer is not measured
	ctx := context.Background()
	netns := filepath.Join(b.TempDir(), "netns")
	must(b, os.WriteFile(netns, nil, 0o600))
	n := 0
	add := func(pod string) error {
		w.mu.Lock()
		n++
		container := fmt.Sprint("c", n)
		w.mu.Unlock()
		c := cni.Call{
			Verb: cni.Add, Container: container, Interface: "eth0", Namespace: netns, Config: []byte(`{"cniVersion": "1.1.0", "name": "kuryr", "type": "kuryr"}`),
			Args: "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_INFRA_CONTAINER_ID=" + container + ";K8S_POD_NAME=" + pod,
		}
		if _, err := w.server.Do(ctx, c); err != nil {
			return err
		}
		c.Verb = cni.Del
		if _, err := w.server.Do(ctx, c); err != nil {
			return err
		}
		// As if the API server knew.
		w.mu.Lock()
		clear(w.index.released)
		w.mu.Unlock()
		return w.server.Drop(ctx, agent.Attachment{Container: container, Interface: "eth0"})
	}
	b.Run("one", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			must(b, add("a"))
		}
	})
	folder, err := jsonstore.OpenVolatile(b.TempDir())
	must(b, err)
	r := agent.Intent{Attachment: ask("c", "a", "ua"), Port: &agent.Allocation{UID: "ua", Since: time.Now()}}
	r.Port.Wiring, err = wiring.Of(&aPort(1).Spec)
	must(b, err)
	b.Run("two files", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			for range 2 {
				must(b, folder.Put("c", r))
			}
		}
	})
	b.Run("thirty at once", func(b *testing.B) {
		for i := range 30 {
			w.mu.Lock()
			w.index.setPod(aPod(fmt.Sprint("p", i), fmt.Sprint("u", i)))
			w.mu.Unlock()
		}
		b.ReportAllocs()
		for b.Loop() {
			done := make(chan error)
			for i := range 30 {
				go func() { done <- add(fmt.Sprint("p", i)) }()
			}
			for range 30 {
				must(b, <-done)
			}
		}
	})
}
