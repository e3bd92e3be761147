package ipam

import (
	"context"
	"net/netip"
	"slices"
	"testing"

	"github.com/kuryr/kuryr/docker/engine"
)

// fakeEngine is what an engine has.
type fakeEngine struct {
	networks  []engine.Network
	running   []engine.Endpoint
	endpoints map[string][]engine.Endpoint // of containers that do not run too
}

func (f *fakeEngine) List(context.Context) (engine.List, error) {
	return engine.List{
		Engine: "one", Networks: f.networks, Containers: []engine.Container{{State: "running", Endpoints: f.running}},
	}, nil
}

func (f *fakeEngine) Endpoints(_ context.Context, network string) ([]engine.Endpoint, error) {
	return f.endpoints[network], nil
}

// Rows of what the engine has are listed, also without a container that runs; others are not.
func TestListed(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	own, hidden := e.pool("10.50.0.0/24"), e.pool("10.60.0.0/24")
	n := e.network(own)
	name := e.networks[e.row(own).Key]
	a, b := e.take(own, "", mac1), e.take(hidden, "", mac1)
	f := &fakeEngine{endpoints: map[string][]engine.Endpoint{}}
	lister := engine.NewLister(f)
	lister.Attach(e.s.Unlisted)
	listed := func() (got []string) {
		t.Helper()
		l, err := lister.List(t.Context())
		e.must(err)
		for p := range e.s.pools.Rows() {
			if e.s.poolListed(p, l.Content) {
				got = append(got, p.Spec.CIDR.String())
			}
		}
		for h := range e.s.hidden.Rows() {
			if e.s.hiddenListed(h, l.Content) {
				got = append(got, "hidden")
			}
		}
		for row := range e.s.addresses.Rows() {
			if e.s.addressListed(row, l.Content) {
				got = append(got, row.Last.Port.Addresses[0].Addr.String())
			}
		}
		slices.Sort(got)
		return got
	}
	check := func(want ...string) {
		t.Helper()
		if got := listed(); !slices.Equal(got, want) {
			t.Errorf("listed %v, want %v", got, want)
		}
	}
	check()
	e.restart()
	e.idle() // finds the port whose answer was lost
	check()
	at := func(address string) []netip.Addr { return []netip.Addr{prefix(address).Addr()} }
	f.networks = []engine.Network{
		{ID: name, Driver: "kuryr", OurIPAM: true, Subnets: []engine.Subnet{{Range: prefix("10.50.0.0/24")}}},
		{ID: "bridge", Driver: "bridge", OurIPAM: true, Subnets: []engine.Subnet{{Range: prefix("10.60.0.0/24")}}},
	}
	check("10.50.0.0/24", "10.60.0.0/24", "hidden")
	f.endpoints[name] = []engine.Endpoint{{ID: "one", Network: name, Addresses: at(a)}}
	f.running = []engine.Endpoint{{ID: "two", Network: "bridge", Addresses: at(b)}}
	check("10.50.0.0/24", "10.50.0.2", "10.60.0.0/24", "10.60.0.2", "hidden")
	f.networks[1].OurIPAM = false
	check("10.50.0.0/24", "10.50.0.2")
	e.release(hidden, b)
	e.releasePool(hidden)
	end(e, n, own)
}
