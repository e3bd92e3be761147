package docker

import (
	"sync/atomic"
	"testing"

	"github.com/kuryr/kuryr/docker/dockertest"
	"github.com/kuryr/kuryr/sdn"
)

// awaited counts the calls of an SDN, and how many of them are not background work.
type awaited struct{ asked, waits atomic.Int64 }

func (a *awaited) of(p sdn.Provider) sdn.Provider {
	return &dockertest.Provider{Provider: p, Before: func(c dockertest.Call) error {
		a.asked.Add(1)
		if !sdn.IsUnawaited(c.Context) {
			a.waits.Add(1)
		}
		return nil
	}}
}

// No caller waits for a comparison with the engine, nor for what it deletes.
func TestUnawaitedComparison(t *testing.T) {
	withEngine(t, func(t *testing.T, c *engineBox) {
		count := &awaited{}
		c.config.Provider = count.of(c.provider)
		c.again()
		c.unlisted("10.77.0.0/24")
		count.asked.Store(0)
		count.waits.Store(0)
		c.expire()
		if count.asked.Load() == 0 || count.waits.Load() > 0 {
			t.Errorf("the SDN was asked %d times, and %d were waited for", count.asked.Load(), count.waits.Load())
		}
		c.clean()
	})
}
