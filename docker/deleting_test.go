package docker

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/kuryr/kuryr/docker/dockertest"
	endpoints "github.com/kuryr/kuryr/docker/endpoint"
	networks "github.com/kuryr/kuryr/docker/network"
)

// interruptedNetworks calls a function after an endpoint's network was found.
type interruptedNetworks struct {
	endpoints.Networks
	found func()
}

func (i interruptedNetworks) Find(ctx context.Context, id string) (networks.View, error) {
	v, err := i.Networks.Find(ctx, id)
	i.found()
	return v, err
}

// The network is deleted while CreateEndpoint is about to store the endpoint: no port is made.
func TestCreateEndpointAfterDeleteNetwork(t *testing.T) {
	t.Parallel()
	for name, take := range map[string]bool{"Kuryr's addresses": true, "another driver's addresses": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var ports atomic.Int64
			b := newBox(t, func(c *Config) {
				c.Provider = &dockertest.Provider{Provider: c.Provider, Before: func(c dockertest.Call) error {
					if c.Method == "EnsurePorts" {
						ports.Add(1)
					}
					return nil
				}}
			})
			n := &network{id: newID(), v4: []*pool{{cidr: "172.18.0.0/16", space: "LocalDefault"}}}
			e := &endpoint{net: n, id: newID(), ip4: "172.18.0.2"}
			if take {
				n = b.create(dualNetwork())
				e = &endpoint{net: n}
				b.take(e)
			} else {
				b.ok("NetworkDriver.CreateNetwork", m{"NetworkID": n.id, "IPv4Data": []m{n.v4[0].data()}})
			}
			ports.Store(0)
			found := sync.OnceFunc(func() { b.ok("NetworkDriver.DeleteNetwork", m{"NetworkID": n.id}) })
			b.driver.endpoints.Networks = interruptedNetworks{b.driver.endpoints.Networks, found}
			b.contains(b.fails("NetworkDriver.CreateEndpoint", e.createBody()), "is being deleted")
			if n := ports.Load(); n > 0 {
				t.Errorf("%d calls for ports, want none", n)
			}
			b.nothingPlugged()
			if take {
				b.giveBack(e)
				b.release(n)
			}
			b.clean()
		})
	}
}

// CreateEndpoint and DeleteNetwork come concurrently, many times: nothing is left.
func TestCreateEndpointDuringDeleteNetwork(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	created := 0
	for range 60 {
		n := b.create(&network{v4: []*pool{{cidr: "10.50.0.0/24"}}})
		e := &endpoint{net: n}
		b.take(e)
		var calls sync.WaitGroup
		calls.Go(func() {
			_, answer := b.post("NetworkDriver.CreateEndpoint", encode(e.createBody()))
			if answer["Err"] == nil {
				created++
			}
		})
		b.ok("NetworkDriver.DeleteNetwork", m{"NetworkID": n.id})
		calls.Wait()
		b.nothingPlugged()
		b.giveBack(e)
		b.release(n)
	}
	t.Logf("%d endpoints were created", created)
	b.clean()
}
