package docker

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/kuryr/kuryr/docker/dockertest"
	"github.com/kuryr/kuryr/sdn"
)

// TestStartingEndpointKeepsAddress checks that an endpoint keeps its address from its
// CreateEndpoint on, until its engine ends it or can have forgotten it.
func TestStartingEndpointKeepsAddress(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	n := b.otherIPAM("10.34.0.0/24")
	current := &endpoint{id: newID(), net: n, ip4: "10.34.0.2"}
	b.ok("NetworkDriver.CreateEndpoint", current.createBody())
	for _, c := range []struct {
		name string
		end  func(*endpoint)
	}{
		{"Leave", func(e *endpoint) { b.ok("NetworkDriver.Leave", e.body()) }},
		{"DeleteEndpoint", func(e *endpoint) { b.ok("NetworkDriver.DeleteEndpoint", e.body()) }},
		{"another engine process", func(*endpoint) { b.ok("Plugin.Activate", nil) }},
	} {
		state := b.dump()
		next := &endpoint{id: newID(), net: n, ip4: "10.34.0.2"}
		text := b.fails("NetworkDriver.CreateEndpoint", next.createBody())
		b.contains(text, "10.34.0.2 is in use by another endpoint")
		b.unchanged(state, "an endpoint refused before", c.name)
		c.end(current)
		b.ok("NetworkDriver.CreateEndpoint", next.createBody())
		current = next
	}
	b.ok("NetworkDriver.Join", current.joinBody())
	b.ok("NetworkDriver.Leave", current.body())
	b.ok("NetworkDriver.DeleteEndpoint", current.body())
	b.ok("NetworkDriver.DeleteNetwork", m{"NetworkID": n.id})
	b.clean()
}

// TestStartingEndpointSurvives checks that an endpoint that is being started keeps its address
// after Kuryr was killed and after a repeat of its CreateEndpoint failed.
func TestStartingEndpointSurvives(t *testing.T) {
	t.Parallel()
	p := &dockertest.Provider{}
	b := newBox(t, func(c *Config) {
		p.Provider = c.Provider
		c.Provider, c.RunDir = p, t.TempDir()
	})
	n := b.otherIPAM("10.34.0.0/24")
	first := &endpoint{id: newID(), net: n, ip4: "10.34.0.2"}
	second := &endpoint{id: newID(), net: n, ip4: "10.34.0.2"}
	b.ok("NetworkDriver.CreateEndpoint", first.createBody())
	for _, c := range []struct {
		name   string
		happen func()
	}{
		{"a failed repeat", func() {
			p.Before = func(c dockertest.Call) error {
				if c.Method == "UpdatePort" {
					return sdn.Unavailable(errors.New("503"), "SDN", "the SDN is overloaded")
				}
				return nil
			}
			changed := *first
			changed.mac = "02:42:0a:22:00:02"
			b.fails("NetworkDriver.CreateEndpoint", changed.createBody())
			p.Before = nil
		}},
		{"a kill", b.restart},
	} {
		c.happen()
		state := b.dump()
		text := b.fails("NetworkDriver.CreateEndpoint", second.createBody())
		b.contains(text, "10.34.0.2 is in use by another endpoint")
		b.unchanged(state, "an endpoint refused after", c.name)
	}
	b.ok("Plugin.Activate", nil)
	b.restart() // a new engine process stays known
	b.ok("NetworkDriver.CreateEndpoint", second.createBody())
	b.ok("NetworkDriver.Join", second.joinBody())
	b.ok("NetworkDriver.Leave", second.body())
	b.restart() // so does Leave
	b.ok("NetworkDriver.CreateEndpoint", first.createBody())
	b.ok("NetworkDriver.DeleteEndpoint", first.body())
	b.ok("NetworkDriver.DeleteNetwork", m{"NetworkID": n.id})
	b.clean()
}

// TestOneAddressForTwoEndpoints checks that of two endpoints that ask for one address
// concurrently, one gets it.
func TestOneAddressForTwoEndpoints(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	n := b.otherIPAM("10.34.0.0/24")
	for range 20 {
		endpoints := []*endpoint{
			{id: newID(), net: n, ip4: "10.34.0.2"},
			{id: newID(), net: n, ip4: "10.34.0.2"},
		}
		created := make([]bool, len(endpoints))
		var calls sync.WaitGroup
		for i, e := range endpoints {
			calls.Go(func() {
				status, answer := b.post("NetworkDriver.CreateEndpoint", encode(e.createBody()))
				created[i] = status == http.StatusOK && answer["Err"] == nil
			})
		}
		calls.Wait()
		if created[0] == created[1] {
			t.Errorf("created: %v", created)
		}
		for _, e := range endpoints {
			b.ok("NetworkDriver.DeleteEndpoint", e.body())
		}
	}
	b.ok("NetworkDriver.DeleteNetwork", m{"NetworkID": n.id})
	b.clean()
}

// moving is a Binder of an engine that has not moved the interfaces into its containers until a test
// says so.
type moving struct {
	*fakeBinder
	moved atomic.Bool
}

func (b *moving) Connected(ctx context.Context, p sdn.Port) (bool, error) {
	if !b.moved.Load() {
		return false, nil
	}
	return b.fakeBinder.Connected(ctx, p)
}

func movingBox(t *testing.T) (*box, *moving) {
	t.Helper()
	binder := &moving{}
	return newBox(t, func(c *Config) {
		binder.fakeBinder = c.Binder.(*fakeBinder)
		c.Binder = binder
	}), binder
}

// TestStartingEndpointKeepsHostPorts checks that an endpoint keeps its host ports until the engine has
// moved its interface, which engine 20.10 does after ProgramExternalConnectivity.
func TestStartingEndpointKeepsHostPorts(t *testing.T) {
	t.Parallel()
	for _, moved := range []bool{false, true} {
		b, binder := movingBox(t)
		n := b.create(dualNetwork())
		published := m{"Proto": 6, "Port": 80, "HostPort": 8080}
		binder.moved.Store(moved)
		first := b.run(&endpoint{net: n, published: []m{published}})
		second := b.run(&endpoint{net: n})
		program := second.program(published)
		b.contains(b.fails("NetworkDriver.ProgramExternalConnectivity", program), "8080")
		if got := b.forwards(first.id); len(got["0.0.0.0"]) != 1 {
			t.Fatalf("moved %v: it lost its host port: %+v", moved, got)
		}
		binder.moved.Store(false) // the container has ended
		if !moved {
			b.ok("Plugin.Activate", nil)
		}
		b.ok("NetworkDriver.ProgramExternalConnectivity", program)
		if got := b.forwards(second.id); len(got["0.0.0.0"]) != 1 {
			t.Errorf("moved %v: published %+v", moved, got)
		}
	}
}

// TestJoinStartsAgain checks that an endpoint that left and joins again is being started.
func TestJoinStartsAgain(t *testing.T) {
	t.Parallel()
	b, _ := movingBox(t)
	n := b.otherIPAM("10.34.0.0/24")
	first := &endpoint{id: newID(), net: n, ip4: "10.34.0.2"}
	second := &endpoint{id: newID(), net: n, ip4: "10.34.0.2"}
	b.ok("NetworkDriver.CreateEndpoint", first.createBody())
	b.ok("NetworkDriver.Join", first.joinBody())
	b.ok("NetworkDriver.Leave", first.body())
	b.ok("NetworkDriver.Join", first.joinBody())
	b.restart()
	text := b.fails("NetworkDriver.CreateEndpoint", second.createBody())
	b.contains(text, "10.34.0.2 is in use by another endpoint")
	b.ok("NetworkDriver.Leave", first.body())
	b.ok("NetworkDriver.CreateEndpoint", second.createBody())
	b.ok("NetworkDriver.DeleteEndpoint", second.body())
	b.ok("NetworkDriver.DeleteNetwork", m{"NetworkID": n.id})
	b.clean()
}
