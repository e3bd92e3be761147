package engine

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/kuryr/kuryr/internal/reconcile"
)

// fakeSource is an engine with networks, running endpoints, and all endpoints by network.
type fakeSource struct {
	list  List
	err   error
	on    map[string][]Endpoint
	fails map[string]error
	asked []string
}

func (f *fakeSource) List(context.Context) (List, error) { return f.list, f.err }

func (f *fakeSource) Endpoints(_ context.Context, network string) ([]Endpoint, error) {
	f.asked = append(f.asked, network)
	return f.on[network], f.fails[network]
}

func newFakeSource() *fakeSource {
	subnets := []Subnet{{Range: netip.MustParsePrefix("10.0.0.0/24")}}
	up := Endpoint{ID: "up", Network: "a", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}
	ended := Endpoint{ID: "ended", Network: "a", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.2")}}
	return &fakeSource{
		list: List{
			Engine: "engine",
			Networks: []Network{
				{ID: "a", Subnets: subnets}, {ID: "b", OurIPAM: true, Subnets: subnets}, {ID: "c"},
			},
			Containers: []Container{{State: "running", Endpoints: []Endpoint{up}}},
		},
		on:    map[string][]Endpoint{"a": {up, ended}},
		fails: map[string]error{"c": &statusError{status: 404}},
	}
}

func TestLister(t *testing.T) {
	t.Parallel()
	f := newFakeSource()
	l := NewLister(f)
	var _ reconcile.Engine = l
	l.Attach(func(c *Content) []string {
		if !c.IsRunning("a", "up") || c.IsRunning("a", "ended") {
			t.Error("the running endpoints are not known when networks are chosen")
		}
		return []string{"a", "gone"}
	})
	l.Attach(func(*Content) []string { return []string{"c", "a"} })
	list, err := l.List(t.Context())
	if err != nil || list.Engine != "engine" {
		t.Fatal(list, err)
	}
	if !slices.Equal(f.asked, []string{"a", "c"}) {
		t.Errorf("asked for the endpoints on %v", f.asked)
	}
	c, ok := list.Content.(*Content)
	if !ok {
		t.Fatalf("content %T", list.Content)
	}
	for _, e := range []struct {
		network, id string
		has         bool
	}{
		{"a", "up", true},     // a container that runs has it
		{"a", "ended", true},  // one that ended
		{"a", "none", false},  // none has it
		{"b", "none", true},   // it is unknown: nothing asked for this network
		{"c", "none", false},  // the engine deleted the network while it was listed
		{"gone", "up", false}, // the engine has no such network
	} {
		if got := c.HasEndpoint(e.network, e.id); got != e.has {
			t.Errorf("endpoint %s on %s: listed %v", e.id, e.network, got)
		}
	}
	first, second := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	if !c.HasAddress("a", first) || !c.HasAddress("a", second) || c.HasAddress("b", first) {
		t.Error("addresses of endpoints are wrong")
	}
	if !c.All("a") || c.All("b") || !c.All("gone") {
		t.Error("networks with all endpoints are wrong")
	}
	if !c.Runs("up") || c.Runs("ended") {
		t.Error("running endpoints are wrong")
	}
	if got := c.InRange(netip.MustParsePrefix("10.0.0.0/24")); !slices.Equal(got, []string{"b"}) {
		t.Errorf("networks in the range: %v", got)
	}
	if _, ok := c.Network("b"); !ok {
		t.Error("network b is not listed")
	}
	if _, ok := c.Network("gone"); ok {
		t.Error("network gone is listed")
	}
}

// A list that is not complete is none.
func TestListerFails(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	for name, spoil := range map[string]func(*fakeSource){
		"the list":     func(f *fakeSource) { f.err = broken },
		"the identity": func(f *fakeSource) { f.list.Engine = "" },
		"a network":    func(f *fakeSource) { f.fails["b"] = broken },
	} {
		f := newFakeSource()
		spoil(f)
		l := NewLister(f)
		l.Attach(func(*Content) []string { return []string{"a", "b"} })
		if _, err := l.List(t.Context()); err == nil {
			t.Errorf("%s failed, and there is a list", name)
		}
	}
}
