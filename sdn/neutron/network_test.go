package neutron

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"

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
	router := sdn.RouterSpec{Base: sdn.Base{Key: testKey("router")}, New: true}
	proxy.Reset()
	if _, err := p.EnsureSubnetPool(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	n, err := p.EnsureNetwork(t.Context(), spec)
	if err != nil || len(n.Subnets) != 2 || !slices.Equal(n.Tags, spec.Tags) {
		t.Fatalf("%d subnets, tags %q, error %v", len(n.Subnets), n.Tags, err)
	}
	if _, err := p.EnsureRouter(t.Context(), router); err != nil {
		t.Fatal(err)
	}
	if got := proxy.Calls(); len(got) != 5 {
		t.Errorf("%v, want the pool, the network, its tags, its subnets and the router", got)
	}
	d := newDouble()
	p, proxy = onDouble(t, d, nil)
	proxy.Cut(postNetworks, 1)
	proxy.Cut(postSubnets, 1)
	proxy.Cut(neutrontest.Call{Method: "POST", Collection: "subnetpools"}, 1)
	proxy.Cut(neutrontest.Call{Method: "POST", Collection: "routers"}, 1)
	if _, err := p.EnsureRouter(t.Context(), router); err != nil {
		t.Error(err)
	}
	if n := d.count("routers"); n != 1 {
		t.Errorf("there are %d routers", n)
	}
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
