package docker

import (
	"errors"
	"net/http"
	"sync"
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
