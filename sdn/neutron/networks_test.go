package neutron

import (
	"context"
	"errors"
	"fmt"
	"golang.org/x/sync/errgroup"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/neutron/neutrontest"
)

func netSpec(cidrs ...string) sdn.NetworkSpec {
	spec := sdn.NetworkSpec{Base: sdn.Base{Key: testKey("net"), Name: "net"}}
	for _, c := range cidrs {
		spec.Subnets = append(spec.Subnets, sdn.SubnetSpec{Base: sdn.Base{Key: testKey("sub-" + c)}, CIDR: pfx(c)})
	}
	return spec
}

// Findings 1 and 2: no client chooses an id, so what an object is for goes into the description, in the creating request.
func TestFinding02KeyInTheCreatingRequest(t *testing.T) {
	t.Parallel()
	d := newDouble()
	p, _ := onDouble(t, d, nil)
	spec := netSpec("10.0.0.0/24", "fd00::/64")
	if _, err := p.EnsureNetwork(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	if _, err := p.EnsureSubnetPool(t.Context(), sdn.SubnetPoolSpec{Base: sdn.Base{Key: testKey("pool")}, Prefixes: prefixes("10.0.0.0/8")}); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, body := range d.bodies {
		got = append(got, body["description"].(string))
	}
	want := []string{"kuryr/test/t/net", "kuryr/test/t/sub-10.0.0.0/24", "kuryr/test/t/sub-fd00::/64", "kuryr/test/t/pool"}
	if !slices.Equal(got, want) {
		t.Errorf("the descriptions are %q, want %q", got, want)
	}
}

// Finding 3: tags in a creating request are dropped or refused. They are written afterwards, as a set, only where they differ, and not at all where
// Neutron has none.
func TestFinding03Tags(t *testing.T) {
	t.Parallel()
	d := newDouble()
	p, proxy := onDouble(t, d, nil)
	tags := neutrontest.Call{Method: "PUT", Collection: "networks"}
	spec := netSpec()
	spec.Tags = []string{"b", "a", "a"}
	for range 2 {
		n, err := p.EnsureNetwork(t.Context(), spec)
		if err != nil || !slices.Equal(n.Tags, []string{"a", "b"}) {
			t.Errorf("the tags are %q, error %v", n.Tags, err)
		}
	}
	if n := proxy.Count(tags); n != 1 {
		t.Errorf("tags were written %d times, want once", n)
	}
	without := newDouble()
	without.aliases = slices.DeleteFunc(without.aliases, func(a string) bool { return a == "standard-attr-tag" })
	p, proxy = onDouble(t, without, nil)
	if _, err := p.EnsureNetwork(t.Context(), spec); err != nil {
		t.Error(err)
	}
	if n := proxy.Count(tags); n != 0 {
		t.Errorf("tags were written %d times to a Neutron without", n)
	}
}

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
	a.client.backoff, b.client.backoff = backoff, backoff // each waits for what the other does
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
	a.client.backoff, b.client.backoff = backoff, backoff // each waits for what the other does
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

// A network whose subnets Neutron refuses is taken back.
func TestNetworkIsTakenBack(t *testing.T) {
	t.Parallel()
	d := newDouble()
	d.refuse = func(r *http.Request) (int, string) {
		if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/subnets") {
			return http.StatusConflict, neutronError("OverQuota", "Quota exceeded for resources: ['subnet'].")
		}
		return 0, ""
	}
	p, _ := onDouble(t, d, nil)
	_, err := p.EnsureNetwork(t.Context(), netSpec("10.0.0.0/24"))
	if !sdn.IsExhausted(err) || sdn.ReasonOf(err) != sdn.NoQuota || d.count("networks") != 0 {
		t.Errorf("the error is %v, %d networks are left", err, d.count("networks"))
	}
}

// A network with its subnets costs four requests, one with nothing left to do two, its deletion one.
func TestNetworkRequests(t *testing.T) {
	t.Parallel()
	p, proxy := onDouble(t, newDouble(), nil)
	if err := p.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	count := func(what string, want int, f func() error) {
		t.Helper()
		proxy.Reset()
		if err := f(); err != nil {
			t.Fatal(err)
		}
		if got := proxy.Calls(); len(got) != want {
			t.Errorf("%s: %v, want %d requests", what, got, want)
		}
	}
	var n sdn.Network
	ensure := func() (err error) {
		n, err = p.EnsureNetwork(t.Context(), netSpec("10.0.0.0/24", "fd00::/64"))
		return err
	}
	count("made", 4, ensure)
	count("there", 2, ensure)
	count("read", 0, func() error { _, err := p.Network(t.Context(), n.ID); return err })
	count("its subnets", 0, func() error {
		found, err := sdn.All(p.FindSubnets(t.Context(), sdn.SubnetQuery{Networks: []sdn.ID{n.ID}}))
		if len(found) != 2 {
			t.Errorf("%d subnets were found", len(found))
		}
		return err
	})
	count("found by Key", 0, func() error {
		_, found, err := sdn.First(p.FindNetworks(t.Context(), sdn.NetworkQuery{Match: sdn.Match{Keys: []sdn.Key{testKey("net")}}}))
		if !found {
			t.Error("the network was not found by its Key")
		}
		return err
	})
	count("deleted", 1, func() error { return p.DeleteNetwork(t.Context(), n.ID) })
	if _, err := p.Network(t.Context(), n.ID); !sdn.IsNotFound(err) {
		t.Errorf("what was deleted is still in the cache: %v", err)
	}
}

// What is New is made without a look, before or after; where the answer is lost it is looked for all the same.
func TestNewIsNotLookedFor(t *testing.T) {
	t.Parallel()
	p, proxy := onDouble(t, newDouble(), nil)
	if err := p.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	pool := sdn.SubnetPoolSpec{Base: sdn.Base{Key: testKey("pool")}, Prefixes: prefixes("10.0.0.0/8"), New: true}
	spec := netSpec("10.0.0.0/24", "fd00::/64")
	spec.New, spec.Tags = true, []string{"a"}
	proxy.Reset()
	if _, err := p.EnsureSubnetPool(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	n, err := p.EnsureNetwork(t.Context(), spec)
	if err != nil || len(n.Subnets) != 2 || !slices.Equal(n.Tags, spec.Tags) {
		t.Fatalf("%d subnets, tags %q, error %v", len(n.Subnets), n.Tags, err)
	}
	if got := proxy.Calls(); len(got) != 4 {
		t.Errorf("%v, want the pool, the network, its tags and its subnets", got)
	}
	d := newDouble()
	p, proxy = onDouble(t, d, nil)
	proxy.Cut(postNetworks, 1)
	proxy.Cut(postSubnets, 1)
	proxy.Cut(neutrontest.Call{Method: "POST", Collection: "subnetpools"}, 1)
	if _, err := p.EnsureSubnetPool(t.Context(), pool); err != nil {
		t.Error(err)
	}
	if _, err := p.EnsureNetwork(t.Context(), spec); err != nil {
		t.Error(err)
	}
	if a, b, c := d.count("networks"), d.count("subnets"), d.count("subnetpools"); a != 1 || b != 2 || c != 1 {
		t.Errorf("there are %d networks, %d subnets, %d pools", a, b, c)
	}
}

// Several hosts mark one existing network at once, and take their marks away: none is lost, none is left.
func TestTagsOfOthersObjects(t *testing.T) {
	t.Parallel()
	d := newDouble()
	d.add("networks", map[string]any{"id": "n", "tags": []any{"the operator's"}})
	mark := func(host string, add bool) error {
		p, _ := onDouble(t, d, nil)
		marks := []string{host + "-lower", host + "-upper"}
		for range 20 {
			n, err := p.Network(t.Context(), "n")
			if err != nil {
				return err
			}
			tags := without(n.Tags, marks)
			if add {
				tags = append(tags, marks...)
			}
			_, err = p.UpdateNetwork(t.Context(), "n", sdn.NetworkPatch{Patch: sdn.Patch{IfRevision: n.Revision, Tags: &tags}})
			if sdn.ReasonOf(err) != sdn.Stale {
				return err
			}
		}
		return errors.New("always stale")
	}
	for _, add := range []bool{true, false} {
		var all errgroup.Group
		for _, host := range []string{"h1", "h2", "h3"} {
			all.Go(func() error { return mark(host, add) })
		}
		if err := all.Wait(); err != nil {
			t.Fatal(err)
		}
		d.mu.Lock()
		left := fmt.Sprint(d.objects["networks"][0]["tags"])
		d.mu.Unlock()
		if n := strings.Count(left, "-lower") + strings.Count(left, "-upper"); add && n != 6 || !add && n != 0 || !strings.Contains(left, "the operator's") {
			t.Errorf("after marks were added (%v) the tags are %s", add, left)
		}
	}
}

// One tag more or less of what is in the cache is one request, which leaves others' tags alone; the condition is checked, and one on what was before such
// a change does not hold after it.
func TestOneTag(t *testing.T) {
	t.Parallel()
	d := newDouble()
	d.add("networks", map[string]any{"id": "n"})
	p, proxy := onDouble(t, d, nil)
	n, err := p.Network(t.Context(), "n")
	if err != nil {
		t.Fatal(err)
	}
	proxy.Reset()
	proxy.Say(neutrontest.Call{Method: "PUT", Collection: "networks"}, 1, neutrontest.Answer{Status: 201})
	proxy.Say(neutrontest.Call{Method: "DELETE", Collection: "networks"}, 1, neutrontest.Answer{Status: 204})
	for _, tags := range [][]string{{"a"}, {}} {
		got, err := p.UpdateNetwork(t.Context(), "n", sdn.NetworkPatch{Patch: sdn.Patch{IfRevision: n.Revision, Tags: &tags}})
		if err != nil || !slices.Equal(got.Tags, tags) {
			t.Errorf("the tags are %q, error %v", got.Tags, err)
		}
		if now, err := p.Network(t.Context(), "n"); err != nil || now.Revision != got.Revision || got.Revision <= n.Revision {
			t.Errorf("the revision was %d, is told as %d and then as %d, error %v", n.Revision, got.Revision, now.Revision, err)
		}
		n = got
	}
	want := []neutrontest.Call{{Method: "PUT", Collection: "networks"}, {Method: "DELETE", Collection: "networks"}}
	if got := proxy.Calls(); !slices.Equal(got, want) {
		t.Errorf("the requests are %v, want %v", got, want)
	}
	if _, err := p.UpdateNetwork(t.Context(), "n", sdn.NetworkPatch{Patch: sdn.Patch{IfRevision: n.Revision + 5, Tags: &[]string{"b"}}}); sdn.ReasonOf(err) != sdn.Stale {
		t.Errorf("the error is %v", err)
	}
}

// What the cache holds grows old, and what contradicts it drops it.
func TestCache(t *testing.T) {
	t.Parallel()
	d := newDouble()
	d.add("networks", map[string]any{"id": "n", "name": "old"})
	p, proxy := onDouble(t, d, nil)
	now := time.Now()
	p.cache.networks.now = func() time.Time { return now }
	name := func() string {
		t.Helper()
		n, err := p.Network(t.Context(), "n")
		if err != nil {
			t.Fatal(err)
		}
		return n.Name
	}
	name()
	d.mu.Lock()
	d.objects["networks"][0]["name"] = "new"
	d.mu.Unlock()
	if got := name(); got != "old" {
		t.Errorf("the name is %q before the cache is old", got)
	}
	now = now.Add(cacheAge)
	if got := name(); got != "new" {
		t.Errorf("the name is %q after the cache is old", got)
	}
	change := "mine"
	if _, err := p.UpdateNetwork(t.Context(), "n", sdn.NetworkPatch{Patch: sdn.Patch{Name: &change}}); err != nil || name() != "mine" {
		t.Errorf("the name is %q after an own change, error %v", name(), err)
	}
	proxy.Reset()
	if _, err := p.UpdateNetwork(t.Context(), "n", sdn.NetworkPatch{Patch: sdn.Patch{IfRevision: 999, Name: &change}}); sdn.ReasonOf(err) != sdn.Stale {
		t.Errorf("the error is %v", err)
	}
	name()
	if n := proxy.Count(getNetworks); n != 1 {
		t.Errorf("after a stale change it was read %d times, want once", n)
	}
}

// What other hosts change is read anew for each use where that was asked for, by its Key too, and a change of one tag is made on its condition.
func TestUncached(t *testing.T) {
	t.Parallel()
	d := newDouble()
	key := sdn.Key{Owner: "test", Kind: "network", Name: "n"}
	d.add("networks", map[string]any{"id": "n", "description": key.String(), "name": "old", "revision_number": 1})
	p, _ := onDouble(t, d, func(c *Config) { c.Uncached = true })
	n, err := p.Network(t.Context(), "n")
	if err != nil {
		t.Fatal(err)
	}
	d.mu.Lock()
	d.objects["networks"][0]["name"], d.objects["networks"][0]["revision_number"] = "new", 2
	d.mu.Unlock()
	if now, err := p.Network(t.Context(), "n"); err != nil || now.Name != "new" {
		t.Errorf("the network is %q, error %v", now.Name, err)
	}
	found, _, err := sdn.First(p.FindNetworks(t.Context(), sdn.NetworkQuery{Match: sdn.Match{Keys: []sdn.Key{key}}}))
	if err != nil || found.Name != "new" {
		t.Errorf("the network of the key is %q, error %v", found.Name, err)
	}
	_, err = p.UpdateNetwork(t.Context(), "n", sdn.NetworkPatch{Patch: sdn.Patch{IfRevision: n.Revision, Tags: &[]string{"b"}}})
	if sdn.ReasonOf(err) != sdn.Stale {
		t.Errorf("the error of a change that another has overtaken is %v", err)
	}
}

// A network or a subnet that Neutron says is not there is not given out of the cache again.
func TestCacheForgetsWhatIsGone(t *testing.T) {
	t.Parallel()
	d := newDouble()
	d.add("networks", map[string]any{"id": "n"})
	p, proxy := onDouble(t, d, nil)
	if _, err := p.Network(t.Context(), "n"); err != nil {
		t.Fatal(err)
	}
	d.mu.Lock()
	d.objects["networks"] = nil
	d.mu.Unlock()
	proxy.Say(neutrontest.Call{Method: "POST", Collection: "ports"}, 1, neutrontest.Answer{Status: 404, Body: `{"NeutronError": {"type": "NetworkNotFound", "message": "Network n could not be found."}}`})
	if _, err := p.EnsurePorts(t.Context(), []sdn.PortSpec{{Network: "n"}}); err == nil {
		t.Error("a port was made on a network that is not there")
	}
	if _, err := p.Network(t.Context(), "n"); !sdn.IsNotFound(err) {
		t.Errorf("the error is %v", err)
	}
}

// What is no longer fresh is given at once, and read again once behind the caller's back.
func TestCacheRenews(t *testing.T) {
	t.Parallel()
	d := newDouble()
	d.add("networks", map[string]any{"id": "n", "name": "old"})
	p, proxy := onDouble(t, d, nil)
	var passed atomic.Int64
	p.cache.networks.now = func() time.Time { return time.Unix(0, passed.Load()) }
	name := func() string {
		t.Helper()
		n, err := p.Network(t.Context(), "n")
		if err != nil {
			t.Fatal(err)
		}
		return n.Name
	}
	name()
	d.mu.Lock()
	d.objects["networks"][0]["name"] = "new"
	d.mu.Unlock()
	proxy.Reset()
	passed.Add(int64(cacheFresh))
	if got := name(); got != "old" {
		t.Errorf("the name is %q, want what was held", got)
	}
	for deadline := time.Now().Add(10 * time.Second); name() != "new"; runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatal("it was never read again")
		}
	}
	if n := proxy.Count(getNetworks); n != 1 {
		t.Errorf("it was read again %d times, want once", n)
	}

	// One that has gone is dropped.
	d.mu.Lock()
	d.objects["networks"] = nil
	d.mu.Unlock()
	passed.Add(int64(cacheFresh))
	for deadline := time.Now().Add(10 * time.Second); ; runtime.Gosched() {
		if _, err := p.Network(t.Context(), "n"); sdn.IsNotFound(err) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("a network that has gone is still there")
		}
	}
}

// A read that a change has overtaken is not kept.
func TestCacheOvertaken(t *testing.T) {
	t.Parallel()
	c := newCache[*networkWire](time.Now, cacheAge)
	read := c.reading()
	c.drop("n")
	read(&networkWire{meta: meta{ID: "n"}})
	if _, ok := c.get("n"); ok {
		t.Error("what was read before it was dropped is kept")
	}
}

// What is asked for by a Key's owner and kind is sorted out here, and what is foreign says so.
func TestForeign(t *testing.T) {
	t.Parallel()
	d := newDouble()
	for _, text := range []string{"an operator's words", "kuryr/other/t/x", "kuryr/test/t/x", "kuryr/test/u/x", "kuryr/broken"} {
		d.add("networks", map[string]any{"description": text})
	}
	p, _ := onDouble(t, d, nil)
	all, err := sdn.All(p.FindNetworks(t.Context(), sdn.NetworkQuery{}))
	if err != nil {
		t.Fatal(err)
	}
	var foreign []bool
	for _, n := range all {
		foreign = append(foreign, n.Foreign)
	}
	if !slices.Equal(foreign, []bool{true, true, false, false, true}) || all[0].Description != "an operator's words" || all[2].Description != "" {
		t.Errorf("foreign are %v; descriptions %q and %q", foreign, all[0].Description, all[2].Description)
	}
	ours, err := sdn.All(p.FindNetworks(t.Context(), sdn.NetworkQuery{Match: sdn.Match{Owner: "test", Kind: "t"}}))
	if err != nil || len(ours) != 1 {
		t.Errorf("%d networks are of the kind, error %v", len(ours), err)
	}
}

// A call whose context has ended leaves Neutron alone.
func TestEndedContext(t *testing.T) {
	t.Parallel()
	p, proxy := onDouble(t, newDouble(), nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.EnsureNetwork(ctx, netSpec()); !sdn.IsUnavailable(err) {
		t.Errorf("the error is %v", err)
	}
	if n := proxy.Count(neutrontest.Call{}); n != 0 {
		t.Errorf("%d requests were sent", n)
	}
}

// The condition that the provider puts on its own change is tried anew, the caller's is not.
func TestOwnConditionIsTriedAnew(t *testing.T) {
	t.Parallel()
	d := newDouble()
	d.add("networks", map[string]any{"id": "n", "description": ""})
	p, _ := onDouble(t, d, nil)
	changes := 0
	d.arriving = func(r *http.Request) {
		d.mu.Lock()
		defer d.mu.Unlock()
		if r.Method == http.MethodPut && changes < 2 {
			changes++
			d.objects["networks"][0]["revision_number"] = float64(10 + changes)
		}
	}
	words := "words"
	n, err := p.UpdateNetwork(t.Context(), "n", sdn.NetworkPatch{Patch: sdn.Patch{Description: &words}})
	if err != nil || n.Description != "words" {
		t.Errorf("the description is %q, error %v", n.Description, err)
	}
	if _, err := p.UpdateNetwork(t.Context(), "n", sdn.NetworkPatch{Patch: sdn.Patch{Description: &words, IfRevision: 4}}); sdn.ReasonOf(err) != sdn.Stale {
		t.Errorf("the error is %v", err)
	}
}
