package docker

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/kuryr/kuryr/sdn"
)

// slow is an SDN whose ports become ACTIVE when they are told to.
type slow struct {
	sdn.Provider
	active chan struct{}
}

func (s *slow) WaitPorts(ctx context.Context, _ []sdn.ID, _ sdn.PortStatus) error {
	select {
	case <-s.active: // also after the time is over
		return nil
	default:
	}
	select {
	case <-s.active:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Join waits for ACTIVE where it is told to, and fails for a port that does not become so.
func TestWaitActive(t *testing.T) {
	t.Parallel()
	s := &slow{active: make(chan struct{})}
	b := newBox(t, func(c *Config) {
		s.Provider = c.Provider
		c.Provider, c.WaitActive = s, time.Millisecond
	})
	n := b.create(dualNetwork())
	e := &endpoint{net: n}
	b.take(e)
	b.ok("NetworkDriver.CreateEndpoint", e.createBody())
	b.contains(b.fails("NetworkDriver.Join", e.joinBody()), "not ACTIVE")
	if b.binder.count() != 0 {
		t.Error("it is still plugged")
	}
	for name := range b.driver.Intents() {
		if strings.HasPrefix(name, "plug/") {
			t.Errorf("row %s is left", name)
		}
	}
	close(s.active)
	b.ok("NetworkDriver.Join", e.joinBody())
	s.active = make(chan struct{})
	b.contains(b.fails("NetworkDriver.Join", e.joinBody()), "not ACTIVE")
	if b.binder.count() != 1 {
		t.Error("a repeat has unplugged it")
	}
	b.stop(e)
	b.remove(n)
	b.clean()
}
