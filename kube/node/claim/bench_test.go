package claim

import (
	"context"
	"fmt"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// BenchmarkChoose finds a port among 1,000 free ones: what a claim costs without its journal.
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

// BenchmarkClaim claims a port of 1,000 and gives it back, with the journal and without an API server, beside what writing two such files costs.
func BenchmarkClaim(b *testing.B) {
	objects := []client.Object{aPod("a", "ua")}
	for i := range 1000 {
		objects = append(objects, aPort(i))
	}
	w := newWorld(b, objects...)
	w.begun()
	w.api.leave(true)
	w.queue.ShutDown() // what is told behind the answer is not measured
	ctx := context.Background()
	a := ask("c", "a", "ua")
	b.Run("claim+release", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := w.Claim(ctx, a); err != nil {
				b.Fatal(err)
			}
			if err := w.Release(ctx, a); err != nil {
				b.Fatal(err)
			}
		}
	})
	r := record{Attachment: a, UID: "ua", Port: aPort(1).Spec, Since: time.Now()}
	b.Run("two files", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			for range 2 {
				if err := w.journal.folder.Put(a.Container, r); err != nil {
					b.Fatal(err)
				}
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
				go func() {
					a := ask(fmt.Sprint("c", i), fmt.Sprint("p", i), "")
					_, err := w.Claim(ctx, a)
					if err == nil {
						err = w.Release(ctx, a)
					}
					done <- err
				}()
			}
			for range 30 {
				if err := <-done; err != nil {
					b.Fatal(err)
				}
			}
		}
	})
}
