package neutron

import (
	"net/http"
	"sync"
	"testing"

	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/neutron/neutrontest"
)

// Finding 4: a POST whose answer is lost is not sent again before a look, which finds what it made.
func TestFinding04LostAnswer(t *testing.T) {
	t.Parallel()
	for _, lost := range []neutrontest.Call{postNetworks, postSubnets, {Method: "POST", Collection: "subnetpools"}} {
		for name, spoil := range map[string]func(*neutrontest.Proxy){
			"cut":  func(p *neutrontest.Proxy) { p.Cut(lost, 1) },
			"half": func(p *neutrontest.Proxy) { p.CutBody(lost, 1, 30) },
		} {
			d := newDouble()
			p, proxy := onDouble(t, d, nil)
			spoil(proxy)
			if _, err := p.EnsureNetwork(t.Context(), netSpec("10.0.0.0/24", "10.0.1.0/24")); err != nil {
				t.Errorf("%v %s: %v", lost, name, err)
			}
			if _, err := p.EnsureSubnetPool(t.Context(), sdn.SubnetPoolSpec{Base: sdn.Base{Key: testKey("pool")}, Prefixes: prefixes("10.0.0.0/8")}); err != nil {
				t.Errorf("%v %s: %v", lost, name, err)
			}
			if n := proxy.Count(lost); n != 1 {
				t.Errorf("%v %s: sent %d times", lost, name, n)
			}
			if a, b, c := d.count("networks"), d.count("subnets"), d.count("subnetpools"); a != 1 || b != 2 || c != 1 {
				t.Errorf("%v %s: there are %d networks, %d subnets, %d pools", lost, name, a, b, c)
			}
		}
	}
}

// The answer is lost and Neutron is away: the caller is told, and a repeated Ensure finds what was made.
func TestFinding04LostAnswerThenAway(t *testing.T) {
	t.Parallel()
	for _, lost := range []neutrontest.Call{postNetworks, postSubnets} {
		d := newDouble()
		p, proxy := onDouble(t, d, nil)
		proxy.CutAndGo(lost)
		if _, err := p.EnsureNetwork(t.Context(), netSpec("10.0.0.0/24")); !sdn.IsUnavailable(err) {
			t.Errorf("the error is %v", err)
		}
		proxy.Away(false)
		p.client.breaker.done(false, nil)
		n, err := p.EnsureNetwork(t.Context(), netSpec("10.0.0.0/24"))
		if err != nil || len(n.Subnets) != 1 {
			t.Errorf("%d subnets, error %v", len(n.Subnets), err)
		}
		if a, b := d.count("networks"), d.count("subnets"); a != 1 || b != 1 {
			t.Errorf("there are %d networks, %d subnets", a, b)
		}
	}
}

// Without a Key there is nothing to look for: a lost answer is an error, and nothing is sent again.
func TestLostAnswerWithoutKey(t *testing.T) {
	t.Parallel()
	p, proxy := onDouble(t, newDouble(), nil)
	proxy.Cut(postNetworks, 1)
	if _, err := p.EnsureNetwork(t.Context(), sdn.NetworkSpec{}); !sdn.IsUnavailable(err) {
		t.Errorf("the error is %v", err)
	}
	if n := proxy.Count(postNetworks); n != 1 {
		t.Errorf("sent %d times", n)
	}
}

// meet holds requests of a kind until so many are there, and lets them go together.
func meet(method, path string, n int) func(*http.Request) {
	var mu sync.Mutex
	all := make(chan struct{})
	arrived := 0
	return func(r *http.Request) {
		if r.Method != method || r.URL.Path != path {
			return
		}
		mu.Lock()
		if arrived++; arrived == n {
			close(all)
		}
		mu.Unlock()
		<-all
	}
}

// Finding 5: Neutron lets in overlapping subnets that are asked for at the same time. One stays, whichever process made it, and the other is told.
func TestFinding05RacedRange(t *testing.T) {
	t.Parallel()
	d := newDouble()
	d.add("networks", map[string]any{"id": "n"})
	a, _ := onDouble(t, d, nil)
	b, _ := onDouble(t, d, nil)
	a.client.backoff, b.client.backoff = awaitRetry, awaitRetry // each waits for what the other does
	d.arriving = meet(http.MethodPost, "/v2.0/subnets", 2)
	errs := make([]error, 2)
	var both sync.WaitGroup
	for i, p := range []*Provider{a, b} {
		both.Go(func() {
			_, errs[i] = p.EnsureSubnet(t.Context(), sdn.SubnetSpec{Base: sdn.Base{Key: testKey([]string{"a", "b"}[i])}, Network: "n", CIDR: pfx("10.0.0.0/24")})
		})
	}
	both.Wait()
	made := 0
	for _, err := range errs {
		if err == nil {
			made++
		} else if !sdn.IsConflict(err) || sdn.ReasonOf(err) != sdn.Exists || sdn.FieldOf(err) != "cidr" {
			t.Errorf("the error is %v", err)
		}
	}
	if n := d.count("subnets"); n != 1 || made != 1 {
		t.Errorf("%d subnets are there, %d were said to be made", n, made)
	}
}

// Within a process one network's subnets are made one after another.
func TestFinding05OneAfterAnother(t *testing.T) {
	t.Parallel()
	d := newDouble()
	d.add("networks", map[string]any{"id": "n"})
	d.refuse = func(r *http.Request) (int, string) {
		if r.Method == http.MethodPost && len(d.objects["subnets"]) > 0 {
			return http.StatusBadRequest, neutronError("InvalidInput", "Invalid input for operation: Requested subnet with cidr: 10.0.0.0/24 for network: n overlaps with another subnet.")
		}
		return 0, ""
	}
	var mu sync.Mutex
	inside, most := 0, 0
	d.arriving = func(r *http.Request) {
		if r.Method == http.MethodPost {
			mu.Lock()
			inside++
			most = max(most, inside)
			mu.Unlock()
			defer func() { mu.Lock(); inside--; mu.Unlock() }()
		}
	}
	p, _ := onDouble(t, d, nil)
	var all sync.WaitGroup
	for i := range 6 {
		all.Go(func() {
			_, err := p.EnsureSubnet(t.Context(), sdn.SubnetSpec{Base: sdn.Base{Key: testKey(string(rune('a' + i)))}, Network: "n", CIDR: pfx("10.0.0.0/24")})
			if err != nil && sdn.ReasonOf(err) != sdn.Exists {
				t.Errorf("the error is %v", err)
			}
		})
	}
	all.Wait()
	if most != 1 || d.count("subnets") != 1 {
		t.Errorf("%d at once, %d subnets", most, d.count("subnets"))
	}
}

// Two processes make one network at the same time: the younger takes its own back, with its subnets, and both give the same.
func TestTwinsOfTwoProcesses(t *testing.T) {
	t.Parallel()
	d := newDouble()
	a, _ := onDouble(t, d, nil)
	b, _ := onDouble(t, d, nil)
	a.client.backoff, b.client.backoff = awaitRetry, awaitRetry // each waits for what the other does
	d.arriving = meet(http.MethodPost, "/v2.0/networks", 2)
	ids := make([]sdn.ID, 2)
	var both sync.WaitGroup
	for i, p := range []*Provider{a, b} {
		both.Go(func() {
			n, err := p.EnsureNetwork(t.Context(), netSpec())
			if err != nil {
				t.Error(err)
			}
			ids[i] = n.ID
		})
	}
	both.Wait()
	if ids[0] != ids[1] || d.count("networks") != 1 {
		t.Errorf("the networks are %q; %d are there", ids, d.count("networks"))
	}
}

// The older of two stays where the younger goes; where the younger stays, for it was given away, the older goes.
func TestTwinsTheOlder(t *testing.T) {
	t.Parallel()
	for name, goes := range map[string]bool{"the younger goes": true, "the younger stays": false} {
		d := newDouble()
		p, _ := onDouble(t, d, nil)
		looks := 0
		d.arriving = func(r *http.Request) {
			d.mu.Lock()
			defer d.mu.Unlock()
			if r.Method != http.MethodGet || len(d.objects["networks"]) == 0 {
				return
			}
			switch looks++; {
			case looks == 1:
				d.add("networks", map[string]any{"id": "younger", "description": testKey("net").String(), "created_at": "2026-11-21T22:00:01Z"})
			case looks == 3 && goes:
				d.objects["networks"] = d.objects["networks"][:1]
			}
		}
		want := map[bool]sdn.ID{true: "00000000-0000-4000-8000-000000000001", false: "younger"}[goes]
		n, err := p.EnsureNetwork(t.Context(), netSpec())
		if err != nil || n.ID != want || d.count("networks") != 1 {
			t.Errorf("%s: the network is %s, error %v; %d are there", name, n.ID, err, d.count("networks"))
		}
	}
}
