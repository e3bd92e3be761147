package neutron

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/neutron/neutrontest"
)

// Which requests are sent again after which answers: reads always, changes that say what is to be where they may not have been done, a POST never.
func TestRepeats(t *testing.T) {
	t.Parallel()
	slow := map[string]string{"Retry-After": "7"}
	get := func(p *Provider) error { return p.client.get(t.Context(), "/networks", nil, nil) }
	post := func(p *Provider) error { return p.client.post(t.Context(), "/networks", map[string]any{}, nil) }
	put := func(p *Provider) error {
		return p.client.put(t.Context(), "/networks/x", 0, map[string]any{"network": nil}, nil)
	}
	conditional := func(p *Provider) error {
		return p.client.put(t.Context(), "/networks/x", 3, map[string]any{"network": nil}, nil)
	}
	act := func(p *Provider) error { return p.client.act(t.Context(), "/networks/x", map[string]any{}, nil) }
	remove := func(p *Provider) error { return p.client.remove(t.Context(), "/networks/x", 0) }
	for _, c := range []struct {
		name   string
		send   func(*Provider) error
		status int // 0: the connection is cut before the answer
		sent   int // requests until there is an error: once, or as often as there are attempts
		wait   time.Duration
	}{
		{"GET 429", get, 429, maxAttempts, 7 * time.Second},
		{"GET 500", get, 500, maxAttempts, 0},
		{"GET 503", get, 503, maxAttempts, 7 * time.Second},
		{"GET cut", get, 0, maxAttempts, 0},
		{"GET 403", get, 403, 1, 0},
		{"POST 429", post, 429, 1, 7 * time.Second},
		{"POST 500", post, 500, 1, 0},
		{"POST 503", post, 503, 1, 7 * time.Second},
		{"POST cut", post, 0, 1, 0},
		{"PUT 503", put, 503, maxAttempts, 7 * time.Second},
		{"PUT 500", put, 500, 1, 0},
		{"PUT cut", put, 0, maxAttempts, 0},
		{"PUT on a condition, cut", conditional, 0, 1, 0},
		{"PUT on a condition 429", conditional, 429, maxAttempts, 7 * time.Second},
		{"PUT that acts, 503", act, 503, 1, 7 * time.Second},
		{"PUT that acts, cut", act, 0, 1, 0},
		{"DELETE 504", remove, 504, maxAttempts, 7 * time.Second},
		{"DELETE 500", remove, 500, 1, 0},
		{"DELETE cut", remove, 0, maxAttempts, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p, proxy := onDouble(t, newDouble(), nil)
			if err := p.Ping(t.Context()); err != nil {
				t.Fatal(err)
			}
			p.http.CloseIdleConnections() // on one that was used before, Go itself sends a GET again
			proxy.Reset()
			all := neutrontest.Call{Collection: "networks"}
			if c.status == 0 {
				proxy.Cut(all, 100)
			} else {
				proxy.Say(all, 100, neutrontest.Answer{Status: c.status, Header: slow})
			}
			err := c.send(p)
			if c.status != 403 && !sdn.IsUnavailable(err) || c.status == 403 && !sdn.IsDenied(err) {
				t.Errorf("the error is %v", err)
			}
			if n := proxy.Count(all); n != c.sent {
				t.Errorf("%d requests were sent, want %d", n, c.sent)
			}
			if c.wait != 0 {
				if got := sdn.RetryAfterOf(err); got != c.wait {
					t.Errorf("the error asks to wait %v, want %v", got, c.wait)
				}
			}
		})
	}
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
			p, proxy := onDouble(t, d, func(c *Config) { c.Timeout = 300 * time.Millisecond })
			spoil(proxy)
			found, err := sdn.All(p.FindNetworks(t.Context(), sdn.NetworkQuery{}))
			if err != nil || len(found) != 1 {
				t.Errorf("found %d networks, error %v", len(found), err)
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
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
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

// Callers that give up do not make a Neutron that hangs look well: the breaker opens all the same, and stays open when one of them was let through to look.
func TestBreakerHang(t *testing.T) {
	t.Parallel()
	p, proxy := onDouble(t, newDouble(), func(c *Config) { c.Timeout = 50 * time.Millisecond })
	now := time.Date(2026, 11, 21, 22, 0, 0, 0, time.UTC)
	p.client.breaker.now = func() time.Time { return now }
	if err := p.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
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

func TestConnectionRefused(t *testing.T) {
	t.Parallel()
	p, _ := onDouble(t, newDouble(), func(c *Config) { c.Endpoint = "http://127.0.0.1:1" })
	err := p.Ping(t.Context())
	if !sdn.IsUnavailable(err) || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("the error is %v", err)
	}
}

// A redirect is not followed: the token would go elsewhere.
func TestRedirect(t *testing.T) {
	t.Parallel()
	p, proxy := onDouble(t, newDouble(), nil)
	elsewhere := neutrontest.NewBefore(t, newDouble())
	proxy.Say(neutrontest.Call{}, 100, neutrontest.Answer{Status: http.StatusFound, Header: map[string]string{"Location": elsewhere.URL}})
	if err := p.Ping(t.Context()); err == nil {
		t.Error("a redirect was followed")
	}
	if n := elsewhere.Count(neutrontest.Call{}); n != 0 {
		t.Errorf("%d requests went elsewhere", n)
	}
}

func TestAnswerTooLarge(t *testing.T) {
	t.Parallel()
	body := &boundedBody{http.NoBody, 0}
	if _, err := body.Read(make([]byte, 1)); !errors.Is(err, errTooLarge) {
		t.Errorf("the error is %v", err)
	}
}

// A budget and a wait: what Neutron asks for is honoured up to a bound and to the caller's deadline.
func TestBackoff(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if backoff(ctx, 1, &sdn.Error{Kind: sdn.KindUnavailable, RetryAfter: 2 * time.Second}) {
		t.Error("it waits although the caller's time is over before")
	}
	if backoff(t.Context(), 1, &sdn.Error{Kind: sdn.KindUnavailable, RetryAfter: maxRetryAfter + time.Second}) {
		t.Error("it waits longer than its bound")
	}
	if !backoff(t.Context(), 1, nil) {
		t.Error("it does not wait")
	}
	cancel()
	if backoff(ctx, 1, nil) {
		t.Error("it waits for a caller that has given up")
	}
}

func TestListPages(t *testing.T) {
	t.Parallel()
	d := newDouble()
	for range 2*pageSize + 10 {
		d.add("networks", map[string]any{})
	}
	p, proxy := onDouble(t, d, nil)
	seen := map[sdn.ID]bool{}
	for n, err := range p.FindNetworks(t.Context(), sdn.NetworkQuery{}) {
		if err != nil {
			t.Fatal(err)
		}
		if seen[n.ID] {
			t.Fatalf("%s was found twice", n.ID)
		}
		seen[n.ID] = true
		if err := p.DeleteNetwork(t.Context(), n.ID); err != nil { // also those that pages follow
			t.Fatal(err)
		}
	}
	if len(seen) != 2*pageSize+10 || d.count("networks") != 0 {
		t.Errorf("%d were found, %d are left", len(seen), d.count("networks"))
	}
	if n := proxy.Count(getNetworks); n != 3 {
		t.Errorf("%d pages were asked for, want 3", n)
	}
}

// A page follows an object that somebody else has deleted meanwhile.
func TestListPageAfterTheDeleted(t *testing.T) {
	t.Parallel()
	d := newDouble()
	for range pageSize + 2 {
		d.add("networks", map[string]any{})
	}
	p, _ := onDouble(t, d, nil)
	pages := 0
	d.arriving = func(r *http.Request) {
		if r.URL.Path == "/v2.0/networks" {
			if pages++; pages == 2 {
				d.mu.Lock()
				defer d.mu.Unlock()
				d.objects["networks"] = append(d.objects["networks"][:pageSize-1:pageSize-1], d.objects["networks"][pageSize:]...)
			}
		}
	}
	found, err := sdn.All(p.FindNetworks(t.Context(), sdn.NetworkQuery{}))
	if err != nil || len(found) != pageSize+2 {
		t.Errorf("found %d, error %v", len(found), err)
	}
}

// Long lists of ids go in several URLs, none longer than servers in front of Neutron take.
func TestListManyIDs(t *testing.T) {
	t.Parallel()
	d := newDouble()
	var ids []sdn.ID
	for range 350 {
		o := map[string]any{}
		d.add("networks", o)
		ids = append(ids, sdn.ID(o["id"].(string)))
	}
	longest := 0
	d.arriving = func(r *http.Request) { longest = max(longest, len(r.URL.String())) }
	p, proxy := onDouble(t, d, nil)
	found, err := sdn.All(p.FindNetworks(t.Context(), sdn.NetworkQuery{Match: sdn.Match{IDs: append(ids, ids[0])}}))
	if err != nil || len(found) != len(ids) {
		t.Errorf("found %d, error %v", len(found), err)
	}
	if n := proxy.Count(getNetworks); n < 4 || longest > 4000 {
		t.Errorf("%d requests, the longest URL %d bytes", n, longest)
	}
}

func TestMandatoryExtensionMissing(t *testing.T) {
	t.Parallel()
	d := newDouble()
	d.aliases = []string{"router"}
	p, _ := onDouble(t, d, nil)
	err := p.Ping(t.Context())
	if !sdn.IsUnsupported(err) || !strings.Contains(err.Error(), "standard-attr-description") {
		t.Errorf("the error is %v", err)
	}
}

// Capabilities follow the extensions; before Neutron was asked they are what is usual.
func TestCapabilities(t *testing.T) {
	t.Parallel()
	d := newDouble()
	d.aliases = []string{"standard-attr-description", "trunk", "address-group", "security-groups-remote-address-group"}
	p, _ := onDouble(t, d, nil)
	if before := p.Capabilities(); !before.Routers || before.Trunks {
		t.Errorf("before Neutron was asked: %+v", before)
	}
	if err := p.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	if after := p.Capabilities(); after.Routers || !after.Trunks || after.WatchPorts {
		t.Errorf("after Neutron was asked: %+v", after)
	}
}

// Finding 9: before release 26 a rule with an address group let everyone in with ML2/OVN, under the same aliases.
func TestFinding09AddressGroups(t *testing.T) {
	t.Parallel()
	d := newDouble()
	d.aliases = append(d.aliases, "address-group", "security-groups-remote-address-group")
	for _, safe := range []bool{false, true} {
		if safe {
			d.aliases = append(d.aliases, "quota-check-limit-default")
		}
		p, _ := onDouble(t, d, nil)
		if err := p.Ping(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := p.Capabilities().AddressGroups; got != safe {
			t.Errorf("address groups are offered: %v, want %v", got, safe)
		}
	}
}
