package neutron

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/neutron/neutrontest"
)

var toNetworks = neutrontest.Call{Collection: "networks"}

// failures are what a Neutron in trouble does, and whether by that it is taken to be away.
var failures = map[string]struct {
	spoil func(p *neutrontest.Proxy, times int)
	away  bool
}{
	"403":       {spoiltBy(403), false},
	"409":       {spoiltBy(409), false},
	"429":       {spoiltBy(429), false},
	"500":       {spoiltBy(500), false},
	"502":       {spoiltBy(502), true},
	"503":       {spoiltBy(503), true},
	"504":       {spoiltBy(504), true},
	"no answer": {func(p *neutrontest.Proxy, times int) { p.Cut(toNetworks, times) }, true},
	"half an answer": {func(p *neutrontest.Proxy, times int) {
		p.Say(toNetworks, times, neutrontest.Answer{Status: 200, Header: map[string]string{"Content-Length": "100"}, Body: `{"netw`})
	}, true},
	"slow": {func(p *neutrontest.Proxy, times int) { p.Hang(toNetworks, times) }, true},
}

func spoiltBy(status int) func(*neutrontest.Proxy, int) {
	return func(p *neutrontest.Proxy, times int) {
		p.Say(toNetworks, times, neutrontest.Answer{Status: status, Header: map[string]string{"Retry-After": "7"}})
	}
}

// requests are the kinds of requests, to a network x.
var requests = map[string]func(context.Context, *client) error{
	"GET": func(ctx context.Context, c *client) error { return c.get(ctx, "/networks/x", nil, nil) },
	"POST": func(ctx context.Context, c *client) error {
		return c.post(ctx, "/networks", map[string]any{"network": map[string]any{}}, nil)
	},
	"PUT": func(ctx context.Context, c *client) error {
		return c.put(ctx, "/networks/x", 0, map[string]any{"network": nil}, nil)
	},
	"PUT on a condition": func(ctx context.Context, c *client) error {
		return c.put(ctx, "/networks/x", 2, map[string]any{"network": nil}, nil)
	},
	"PUT that acts": func(ctx context.Context, c *client) error {
		return c.put(once(ctx), "/networks/x", 0, map[string]any{"network": nil}, nil)
	},
	"DELETE": func(ctx context.Context, c *client) error { return c.remove(ctx, "/networks/x", 0) },
}

// inTrouble is a provider that knows its Neutron already, which has a network x.
func inTrouble(t *testing.T) (*Provider, *neutrontest.Proxy, *double) {
	t.Helper()
	d := newDouble()
	d.add("networks", map[string]any{"id": "x"})
	p, proxy := onDouble(t, d, nil)
	if err := p.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.http.CloseIdleConnections() // on one that was used before, Go itself sends a GET again
	proxy.Reset()
	return p, proxy, d
}

// eachTrouble runs test for each request that meets each failure.
func eachTrouble(t *testing.T, test func(t *testing.T, failure, request string)) {
	t.Helper()
	for failure := range failures {
		for request := range requests {
			t.Run(request+", "+failure, func(t *testing.T) {
				t.Parallel()
				test(t, failure, request)
			})
		}
	}
}

// Which requests are sent again after which failures: reads always, changes that say what is to be where they may not have been done, a POST never, and
// nothing that was refused.
func TestRepeats(t *testing.T) {
	t.Parallel()
	reads := []string{"GET"}
	sets := []string{"GET", "PUT", "DELETE"}
	again := map[string][]string{
		"429": append(sets, "PUT on a condition"), // nothing was done
		"500": reads, "502": sets, "503": sets, "504": sets, "no answer": sets, "half an answer": sets, "slow": sets,
	}
	eachTrouble(t, func(t *testing.T, failure, request string) {
		p, proxy, _ := inTrouble(t)
		if failure == "slow" {
			p.client.timeout = 200 * time.Millisecond
		}
		failures[failure].spoil(proxy, 100)
		err := requests[request](t.Context(), p.client)
		is := sdn.IsUnavailable
		switch failure {
		case "403":
			is = sdn.IsDenied
		case "409":
			is = sdn.IsConflict
		}
		if !is(err) {
			t.Errorf("the error is %v", err)
		}
		want := 1
		if slices.Contains(again[failure], request) {
			want = maxAttempts
		}
		if n := proxy.Count(toNetworks); n > want || n < want && failure != "slow" { // on a busy machine one may end before it comes there
			t.Errorf("%d requests were sent, want %d", n, want)
		}
		if got := sdn.RetryAfterOf(err); (failure == "429" || failure == "503") && got != 7*time.Second {
			t.Errorf("the error asks to wait %v, want what Neutron asked for", got)
		}
	})
}

// A request that is sent again after the failures have passed succeeds, whatever they were.
func TestFailuresThatPass(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(*neutrontest.Proxy){
		"429":            func(p *neutrontest.Proxy) { p.Say(getNetworks, 2, neutrontest.Answer{Status: 429}) },
		"500":            func(p *neutrontest.Proxy) { p.Say(getNetworks, 2, neutrontest.Answer{Status: 500}) },
		"half an answer": func(p *neutrontest.Proxy) { p.CutBody(getNetworks, 2, 5) },
		"no answer":      func(p *neutrontest.Proxy) { p.Cut(getNetworks, 2) },
		"hanging":        func(p *neutrontest.Proxy) { p.Hang(getNetworks, 1) },
		"another's page": func(p *neutrontest.Proxy) {
			p.Say(getNetworks, 2, neutrontest.Answer{Status: 200, Body: "<html>maintenance</html>"})
		},
		"not the list": func(p *neutrontest.Proxy) {
			p.Say(getNetworks, 2, neutrontest.Answer{Status: 200, Body: `{"ports": []}`})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDouble()
			d.add("networks", map[string]any{"name": "there"})
			p, proxy := onDouble(t, d, nil)
			if name == "hanging" {
				p.client.timeout = time.Second
			}
			spoil(proxy)
			found, err := sdn.All(p.FindNetworks(t.Context(), sdn.NetworkQuery{}))
			if err != nil || len(found) != 1 {
				t.Errorf("found %d networks, error %v", len(found), err)
			}
		})
	}
}

// So does a change that is sent again, be it that it was done already.
func TestChangesThatPass(t *testing.T) {
	t.Parallel()
	for _, failure := range []string{"429", "503", "no answer", "half an answer", "slow"} {
		t.Run(failure, func(t *testing.T) {
			t.Parallel()
			p, proxy, d := inTrouble(t)
			if failure == "slow" {
				p.client.timeout = time.Second
			}
			failures[failure].spoil(proxy, 2)
			name := "new"
			if n, err := p.UpdateNetwork(t.Context(), "x", sdn.NetworkPatch{Patch: sdn.Patch{Name: &name}}); err != nil || n.Name != name {
				t.Errorf("the network is named %q, error %v", n.Name, err)
			}
			failures[failure].spoil(proxy, 2)
			if err := p.DeleteNetwork(t.Context(), "x"); err != nil || d.count("networks") != 0 {
				t.Errorf("%d networks are left, error %v", d.count("networks"), err)
			}
		})
	}
}

// A Neutron that hangs costs a caller its own time, and says so.
func TestHang(t *testing.T) {
	t.Parallel()
	p, proxy := onDouble(t, newDouble(), nil)
	if err := p.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	proxy.Hang(neutrontest.Call{}, 100)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second) // enough to send it
	defer cancel()
	err := p.Ping(ctx)
	if !sdn.IsUnavailable(err) || !strings.Contains(err.Error(), "has not answered GET of a network in the time there was") {
		t.Errorf("the error is %v", err)
	}
	// Who gives up says nothing of Neutron.
	p.client.breaker.mu.Lock()
	defer p.client.breaker.mu.Unlock()
	if p.client.breaker.failures != 0 {
		t.Errorf("the breaker counts %d failures", p.client.breaker.failures)
	}
}

// What opens the breaker is a Neutron that does not answer, or that what stands in front of it finds away, whatever was asked; what it refuses or
// cannot do does not.
func TestBreakerCounts(t *testing.T) {
	t.Parallel()
	eachTrouble(t, func(t *testing.T, failure, request string) {
		p, proxy, _ := inTrouble(t)
		if failure == "slow" {
			p.client.timeout = 200 * time.Millisecond
		}
		failures[failure].spoil(proxy, 100)
		for range breakerFailures {
			if requests[request](t.Context(), p.client) == nil {
				t.Error("there is no error")
			}
		}
		away := failures[failure].away
		if err := p.client.breaker.allow(); (err != nil) != away {
			t.Errorf("the breaker says %v", err)
		}
		if n := proxy.Count(toNetworks); away && (n > breakerFailures || n < breakerFailures && failure != "slow") {
			t.Errorf("%d requests were sent, want %d", n, breakerFailures)
		}
	})
}

// Callers that give up do not make a Neutron that hangs look well: the breaker opens all the same, and stays open when one of them was let through to look.
func TestBreakerHang(t *testing.T) {
	t.Parallel()
	p, proxy := onDouble(t, newDouble(), nil)
	now := time.Date(2026, 11, 21, 22, 0, 0, 0, time.UTC)
	p.client.breaker.now = func() time.Time { return now }
	if err := p.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.client.timeout = 50 * time.Millisecond
	proxy.Reset()
	proxy.Hang(neutrontest.Call{}, 100)
	giveUp := func() {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		if err := p.client.post(ctx, "/networks", nil, nil); !sdn.IsUnavailable(err) {
			t.Fatalf("the error is %v", err)
		}
	}
	for range breakerFailures {
		if err := p.client.post(t.Context(), "/networks", nil, nil); !sdn.IsUnavailable(err) {
			t.Fatalf("the error is %v", err)
		}
		giveUp()
	}
	for range 2 { // the first is let through
		now = now.Add(breakerPause / 2)
		giveUp()
		giveUp()
	}
	if err := p.client.breaker.allow(); !sdn.IsUnavailable(err) {
		t.Errorf("the breaker is closed: %v", err)
	}
}

// A Neutron that is away is asked until the breaker opens, then nobody waits for it; it is found back by itself, and its extensions are asked for anew.
func TestBreaker(t *testing.T) {
	t.Parallel()
	p, proxy := onDouble(t, newDouble(), nil)
	now := time.Date(2026, 11, 21, 22, 0, 0, 0, time.UTC)
	p.client.breaker.now = func() time.Time { return now }
	if err := p.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	proxy.Reset()
	proxy.Away(true)
	for range 3 * breakerFailures {
		if err := p.client.post(t.Context(), "/networks", nil, nil); !sdn.IsUnavailable(err) {
			t.Fatalf("the error is %v", err)
		}
	}
	if n := proxy.Count(neutrontest.Call{}); n != breakerFailures {
		t.Errorf("%d requests were sent, want %d", n, breakerFailures)
	}
	err := p.Ping(t.Context())
	if !sdn.IsUnavailable(err) || sdn.RetryAfterOf(err) != breakerPause || !strings.Contains(err.Error(), "Neutron: has not answered since 22:00:00") {
		t.Errorf("the error is %v, to be tried after %v", err, sdn.RetryAfterOf(err))
	}
	now = now.Add(breakerPause)
	if err := p.Ping(t.Context()); !sdn.IsUnavailable(err) {
		t.Errorf("the error is %v", err)
	}
	if n := proxy.Count(neutrontest.Call{}); n != breakerFailures+1 {
		t.Errorf("%d requests were sent, want one to look whether Neutron is back", n-breakerFailures)
	}
	now = now.Add(breakerPause)
	proxy.Away(false)
	for range 2 {
		if err := p.Ping(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if n := proxy.Count(neutrontest.Call{Collection: "extensions"}); n != 1 {
		t.Errorf("the extensions were asked for %d times after Neutron came back, want once", n)
	}
}

// A Neutron that is away for minutes is looked for by one of the calls every few seconds, however many there are; all say since when, and when it is back they
// are served.
func TestAwayForMinutes(t *testing.T) {
	t.Parallel()
	p, proxy, _ := inTrouble(t)
	now := time.Date(2026, 11, 21, 22, 0, 0, 0, time.UTC)
	p.client.breaker.now = func() time.Time { return now }
	proxy.Away(true)
	const away = 5 * time.Minute
	for passed := time.Duration(0); passed < away; passed += time.Second {
		for _, send := range requests {
			if err := send(t.Context(), p.client); !sdn.IsUnavailable(err) {
				t.Fatalf("the error is %v", err)
			}
		}
		now = now.Add(time.Second)
	}
	looks := int(away / breakerPause)
	if n := proxy.Count(neutrontest.Call{}); n < looks || n > looks+breakerFailures {
		t.Errorf("%d requests were sent in %v, want %d", n, away, looks)
	}
	now = now.Add(time.Millisecond - breakerPause) // of the last look, within its pause
	if err := p.client.breaker.allow(); err == nil || !strings.Contains(err.Error(), "since 22:00:00") {
		t.Errorf("the error is %v", err)
	}
	proxy.Away(false)
	now = now.Add(breakerPause)
	for _, request := range []string{"POST", "PUT", "GET", "PUT that acts", "DELETE"} {
		if err := requests[request](t.Context(), p.client); err != nil {
			t.Errorf("%s of a Neutron that is back: %v", request, err)
		}
	}
}

// Many calls in trouble at once do not multiply what Neutron has to bear.
func TestBudgetRunsOut(t *testing.T) {
	t.Parallel()
	p, proxy := onDouble(t, newDouble(), nil)
	if err := p.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	proxy.Reset()
	proxy.Say(neutrontest.Call{}, 1000, neutrontest.Answer{Status: 500})
	const calls = 100
	for range calls {
		if err := p.Ping(t.Context()); !sdn.IsUnavailable(err) {
			t.Fatalf("the error is %v", err)
		}
	}
	if n := proxy.Count(neutrontest.Call{}) - calls; n != maxBudget {
		t.Errorf("%d requests were repeated, want the budget of %d", n, maxBudget)
	}
}

// What repeats have taken is given back by successes, one for ten, and no more than there was.
func TestBudgetComesBack(t *testing.T) {
	t.Parallel()
	b := newBudget()
	all := func() (n int) {
		for b.take() {
			n++
		}
		return n
	}
	if n := all(); n != maxBudget {
		t.Errorf("it has %d repeats, want %d", n, maxBudget)
	}
	for range 9 {
		b.gain()
	}
	if n := all(); n != 0 {
		t.Errorf("nine successes give %d repeats", n)
	}
	for range 6 { // tenths do not add up exactly
		b.gain()
	}
	if n := all(); n != 1 {
		t.Errorf("fifteen successes give %d repeats, want one", n)
	}
	for range 100 * maxBudget {
		b.gain()
	}
	if n := all(); n != maxBudget {
		t.Errorf("it has %d repeats after many successes, want %d", n, maxBudget)
	}
}

func TestConnectionRefused(t *testing.T) {
	t.Parallel()
	p, _ := onDouble(t, newDouble(), func(c *Config) { c.Endpoint = "http://127.0.0.1:1" })
	err := p.Ping(t.Context())
	if !sdn.IsUnavailable(err) || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("the error is %v", err)
	}
}

// A budget and a wait: what Neutron asks for is honoured up to a bound and to the caller's deadline.
func TestAwaitRetry(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if awaitRetry(ctx, 1, &sdn.Error{Kind: sdn.KindUnavailable, RetryAfter: 2 * time.Second}) {
		t.Error("it waits although the caller's time is over before")
	}
	if awaitRetry(t.Context(), 1, &sdn.Error{Kind: sdn.KindUnavailable, RetryAfter: maxRetryAfter + time.Second}) {
		t.Error("it waits longer than its bound")
	}
	if !awaitRetry(t.Context(), 1, nil) {
		t.Error("it does not wait")
	}
	cancel()
	if awaitRetry(ctx, 1, nil) {
		t.Error("it waits for a caller that has given up")
	}
}

// Pauses double their bound and are at random within its upper half, so that those that failed together come back one after another; what Neutron asks
// for is never undercut.
func TestPause(t *testing.T) {
	t.Parallel()
	asked := &sdn.Error{Kind: sdn.KindUnavailable, RetryAfter: 3 * time.Second}
	for _, c := range []struct {
		n          int
		err        error
		from, upTo time.Duration
	}{
		{1, nil, retryBackoff.Min / 2, retryBackoff.Min},
		{2, nil, retryBackoff.Min, 2 * retryBackoff.Min},
		{3, nil, 2 * retryBackoff.Min, 4 * retryBackoff.Min},
		{6, nil, retryBackoff.Max / 2, retryBackoff.Max},
		{20, nil, retryBackoff.Max / 2, retryBackoff.Max},
		{1, asked, asked.RetryAfter, asked.RetryAfter + retryBackoff.Min},
		{4, asked, asked.RetryAfter, asked.RetryAfter + retryBackoff.Min},
	} {
		seen := map[time.Duration]bool{}
		for range 200 {
			wait := pause(c.n, c.err)
			if wait < c.from || wait >= c.upTo {
				t.Fatalf("before attempt %d it waits %v, want %v to %v", c.n+1, wait, c.from, c.upTo)
			}
			seen[wait] = true
		}
		if len(seen) < 100 {
			t.Errorf("before attempt %d 200 callers wait for %d times", c.n+1, len(seen))
		}
	}
}
