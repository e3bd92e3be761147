package local

import (
	"context"
	"sync"
	"testing"

	"github.com/kuryr/kuryr/sdn/engine"
)

// holder is a realm whose callers can be held between the commit of their changes and their wait for the
// kernel.
type holder struct{ engine.Realm }

// hold puts a holder between the rules of a provider and its kernel.
func hold(t testing.TB, p *Provider, o Options) {
	t.Helper()
	var err error
	p.Engine, err = engine.New(context.Background(), p.store, holder{realm{p}}, o.rules())
	ok(t, err)
}

func (h holder) Expect(b engine.Tx, changes map[engine.RowID]*engine.RowChange) (engine.Expectation, error) {
	e, err := h.Realm.Expect(b, changes)
	if err != nil {
		return nil, err
	}
	return heldExpectation{e}, nil
}

type heldExpectation struct{ engine.Expectation }

// Wait waits until the call that its context is of goes on.
func (e heldExpectation) Wait(ctx context.Context) error {
	if c, held := ctx.Value(heldKey{}).(*heldCall); held {
		c.claims = e.Expectation.(*expectation).claims
		close(c.stored)
		<-c.proceed
	}
	return e.Expectation.Wait(ctx)
}

// heldKey is the key of a held call in its context.
type heldKey struct{}

// heldCall is a call whose change is stored, and that does not wait for the kernel yet.
type heldCall struct {
	claims   []*claim
	stored   chan struct{}
	proceed  chan struct{}
	once     sync.Once
	answered chan error
}

// stored makes a call that changes the store once. It returns when the change is stored.
func stored(t testing.TB, call func(context.Context) error) *heldCall {
	t.Helper()
	c := &heldCall{stored: make(chan struct{}), proceed: make(chan struct{}), answered: make(chan error, 1)}
	ctx := context.WithValue(t.Context(), heldKey{}, c)
	go func() { c.answered <- call(ctx) }()
	t.Cleanup(c.release)
	select {
	case <-c.stored:
	case err := <-c.answered:
		t.Fatalf("the call ended before its change was stored: %v", err)
	}
	return c
}

func (c *heldCall) release() { c.once.Do(func() { close(c.proceed) }) }

// settle lets the call wait for the kernel, and returns its error.
func (c *heldCall) settle() error {
	c.release()
	return <-c.answered
}

// settleAll makes calls of which none waits for the kernel before all changes are stored.
func settleAll(t *testing.T, calls ...func(context.Context) error) []error {
	t.Helper()
	held := make([]*heldCall, len(calls))
	for i, call := range calls {
		held[i] = stored(t, call)
	}
	for _, c := range held {
		c.release()
	}
	errs := make([]error, len(calls))
	for i, c := range held {
		errs[i] = c.settle()
	}
	return errs
}
