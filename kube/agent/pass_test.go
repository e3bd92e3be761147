//go:build linux

package agent

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/internal/rootsock"
	"github.com/kuryr/kuryr/kube/cni"
	"github.com/kuryr/kuryr/sdn"
)

// empty is a Source without a port to give: each Claim says that it waits, and does so to its end.
type empty struct {
	waits    chan struct{}
	released chan string
}

func (e empty) Allocate(ctx context.Context, _ Attachment) (*Allocation, error) {
	e.waits <- struct{}{}
	<-ctx.Done()
	return nil, sdn.Exhausted(sdn.NoPorts, "port", "the pool is empty")
}

func (e empty) Find(_ context.Context, a Attachment) (Wiring, error) {
	return Wiring{}, sdn.NotFound("attachment", a.Container)
}

func (empty) Free(Intent) {}

func (empty) Ensure(context.Context, Intent) (Wiring, error) { return Wiring{}, nil }

func (e empty) Leave(ctx context.Context, i Intent) (Wiring, error) { return e.Find(ctx, i.Attachment) }

func (e empty) Release(_ context.Context, _ reconcile.Object, i Intent) error {
	e.released <- i.Container
	return nil
}

func (empty) RowOf(a Attachment) (string, bool) { return a.Key(), true }

// However many ADDs wait for a port, a DEL, which gives one back, is served; and no more of them are taken than there is room for.
func TestDelPassesAdds(t *testing.T) {
	t.Parallel()
	const (
		served = 140 // by the socket, more than a node has pods by default
		limit  = time.Minute
	)
	r := newRig(t)
	source := empty{make(chan struct{}, maxAdds), make(chan string, maxAdds+1)}
	r.serves(source)
	socket := filepath.Join(t.TempDir(), "node.sock")
	l, err := rootsock.Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithTimeout(t.Context(), limit)
	ended := make(chan error, 1)
	adds, stop := context.WithCancel(ctx)
	go func() { ended <- r.Serve(ctx, l) }()
	await := func(n int) {
		t.Helper()
		for i := range n {
			select {
			case <-source.waits:
			case <-ctx.Done():
				t.Fatalf("%d of %d ADDs are served", i, n)
			}
		}
	}
	del := func(container string) {
		t.Helper()
		if _, err := cni.Ask(socket, r.call(cni.Del, container, ""), limit/2); err != nil {
			t.Errorf("DEL: %v", err)
		}
		if got := <-source.released; got != container {
			t.Errorf("%s is released, not %s", got, container)
		}
	}
	answers := make(chan error, served)
	for i := range served {
		go func() {
			_, err := cni.Ask(socket, r.call(cni.Add, fmt.Sprint("served", i), ""), limit)
			answers <- err
		}()
	}
	await(served)
	del("other")
	for i := range maxAdds - served {
		go func() { _, _ = r.Do(adds, r.call(cni.Add, fmt.Sprint("done", i), "")) }()
	}
	await(maxAdds - served)
	_, err = cni.Ask(socket, r.call(cni.Add, "late", ""), limit/2)
	wants(t, err, cni.TryAgain, fmt.Sprint(maxAdds))
	del("served0")
	wants(t, <-answers, cni.Exhausted, "the pool is empty")
	go func() {
		_, err := cni.Ask(socket, r.call(cni.Add, "late", ""), limit)
		answers <- err
	}()
	await(1) // there is room again
	stop()
	for i := range served - 1 {
		del(fmt.Sprint("served", i+1))
	}
	del("late")
	end()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
