package neutron

import (
	"context"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/kuryr/kuryr/sdn/neutron/neutrontest"
)

// waiting is a context that tells when somebody waits for it.
type waiting struct {
	context.Context
	once *sync.Once
	now  chan struct{}
}

func waits(ctx context.Context) waiting { return waiting{ctx, &sync.Once{}, make(chan struct{})} }

func (w waiting) Done() <-chan struct{} {
	w.once.Do(func() { close(w.now) })
	return w.Context.Done()
}

// However many calls need a session at once, the first or another, because the token has ended or because Neutron has refused it, Keystone is asked once.
func TestRenewalsAtOnce(t *testing.T) {
	t.Parallel()
	d := withKeystone()
	p, proxy := onDouble(t, d, nil)
	a := p.client.auth
	now := time.Now()
	a.now = func() time.Time { return now }
	var held chan struct{} // Keystone answers when it is closed
	d.arriving = func(r *http.Request) {
		if r.URL.Path == "/v3/auth/tokens" {
			<-held
		}
	}
	for _, c := range []struct {
		why  string
		need func(ctx context.Context, stale *session) (*session, error)
	}{
		{"the first", func(ctx context.Context, _ *session) (*session, error) { return a.session(ctx) }},
		{"the token has ended", func(ctx context.Context, _ *session) (*session, error) { return a.session(ctx) }},
		{"Neutron has refused the token", a.renew},
	} {
		a.mu.Lock()
		stale := a.current
		a.mu.Unlock()
		if stale != nil {
			now = stale.expires
		}
		proxy.Reset()
		held = make(chan struct{})
		var got [8]*session
		var all sync.WaitGroup
		for i := range got {
			ctx := waits(t.Context())
			all.Go(func() {
				var err error
				if got[i], err = c.need(ctx, stale); err != nil {
					t.Errorf("%s: %v", c.why, err)
				}
			})
			<-ctx.now
		}
		close(held)
		all.Wait()
		for _, s := range got {
			if s != got[0] || s == stale {
				t.Errorf("%s: one got session %p, another %p, instead of %p", c.why, got[0], s, stale)
			}
		}
		if n := proxy.Count(postTokens); n != 1 {
			t.Errorf("%s: Keystone was asked %d times, want once", c.why, n)
		}
	}
}

// A call whose token was refused is not content with that token, though another's renewal, which it has joined, gives it: for that one it was new.
func TestRenewalOfAnother(t *testing.T) {
	t.Parallel()
	p, proxy := onDouble(t, withKeystone(), nil)
	a := p.client.auth
	old, err := a.session(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	newer, err := a.renew(t.Context(), old)
	if err != nil {
		t.Fatal(err)
	}
	proxy.Reset()
	a.mu.Lock() // the one that is late, with the old token, has not seen yet that there is a newer
	late := a.start(old)
	ctx := waits(t.Context())
	var third *session
	var failed error
	var joined sync.WaitGroup
	joined.Go(func() { third, failed = a.renew(ctx, newer) })
	<-ctx.now
	a.mu.Unlock()
	if r := <-late; r.Err != nil || r.Val.(*session) != newer {
		t.Errorf("the one that is late got %v, error %v", r.Val, r.Err)
	}
	joined.Wait()
	if failed != nil || third == newer || third == old {
		t.Errorf("the token that was refused was given again, error %v", failed)
	}
	if n := proxy.Count(neutrontest.Call{Collection: "v3"}); n != 1 {
		t.Errorf("Keystone was asked %d times, want once", n)
	}
}
