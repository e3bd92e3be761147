package docker

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/kuryr/kuryr/docker/dockertest"
)

// An address that is requested while CreateNetwork looks up what its network needs is one of that
// network, and not of a network that is hidden.
func TestAddressDuringCreateNetwork(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var armed atomic.Bool
		var calls sync.WaitGroup
		e := &endpoint{net: v4Network("10.1.0.0/24")}
		e.net.options = m{optRouter: "shared"}
		var b *box
		b = newBox(t, func(c *Config) {
			c.Provider = &dockertest.Provider{Provider: c.Provider, Before: func(call dockertest.Call) error {
				if call.Method == "FindRouters" && armed.Swap(false) {
					calls.Go(func() { b.take(e) })
					synctest.Wait()
				}
				return nil
			}}
		})
		body := b.request(e.net)
		armed.Store(true)
		b.ok("NetworkDriver.CreateNetwork", body)
		calls.Wait()
		if has, want := b.portAt(e).Network, b.networkOf(e.net).ID; has != want {
			t.Errorf("the address is on network %s, not %s", has, want)
		}
		b.giveBack(e)
		b.remove(e.net)
		b.clean()
	})
}
