package docker

import (
	"context"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kuryr/kuryr/docker/dockertest"
	"github.com/kuryr/kuryr/sdn"
)

// steps is an SDN that makes a network and each of its subnets by changes of their own, as Neutron
// does. The plugin can be killed right before and right after each change.
type steps struct {
	sdn.Provider
	mu         sync.Mutex
	last, done int // the last is where it dies; 0: nowhere
	dead       bool
}

func newSteps(of sdn.Provider) *steps {
	s := &steps{}
	s.Provider = &dockertest.Provider{
		Provider: of,
		Before: func(c dockertest.Call) error {
			s.pass(c.Changes())
			return nil
		},
		After: func(c dockertest.Call, err error) error {
			s.pass(c.Changes())
			return err
		},
	}
	return s
}

// pass ends the goroutine of a killed plugin. Its deferred functions only release what the next
// process does not have.
func (s *steps) pass(counts bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if counts && s.last > 0 {
		s.done++
		s.dead = s.dead || s.done == s.last
	}
	if s.dead {
		runtime.Goexit()
	}
}

// dieAt makes the plugin die at a step, counted from now; 0: it lives. It reports whether it died.
func (s *steps) dieAt(last int) (died bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	died = s.dead
	s.last, s.done, s.dead = last, 0, false
	return died
}

func (s *steps) EnsureNetwork(ctx context.Context, spec sdn.NetworkSpec) (sdn.Network, error) {
	bare := spec
	bare.Subnets = nil
	n, err := s.Provider.EnsureNetwork(ctx, bare)
	for _, subnet := range spec.Subnets {
		if subnet.Network = n.ID; err == nil {
			_, err = s.EnsureSubnet(ctx, subnet)
		}
	}
	if err != nil {
		return n, err
	}
	return s.Network(ctx, n.ID)
}

// killable is a host whose plugin can be killed, in a bubble of synctest. Its engine is not the only
// one: another has a network. What an engine does not have for a minute is deleted.
type killable struct {
	*box
	steps  *steps
	engine *fakeEngine
	theirs sdn.Network // an existing one
}

// making is a network as Docker asks for it, and the SDN that it does so of.
type making struct {
	wrap   func(sdn.Provider) sdn.Provider
	change func(*Config)
	net    func(*killable) *network
}

func unrouted(c *Config) { c.Routed = false }

var makings = map[string]making{
	"routed": {
		func(p sdn.Provider) sdn.Provider { return p }, func(*Config) {},
		func(*killable) *network { return dualNetwork() },
	},
	"tagless": {
		func(p sdn.Provider) sdn.Provider { return tagless(p) }, unrouted,
		func(*killable) *network { return &network{v4: []*pool{{cidr: "10.60.0.0/24"}}, v6: []*pool{{}}} },
	},
	"existing": {
		func(p sdn.Provider) sdn.Provider { return tagless(p) }, unrouted,
		func(k *killable) *network {
			n := k.zun(k.theirs, "10.50.0.0/24", "")
			n.v6 = []*pool{{cidr: "fd50::/64"}} // which is added
			return n
		},
	},
}

func newKillable(t *testing.T, m making) *killable {
	t.Helper()
	k := &killable{box: newBox(t), engine: newFakeEngine("two")}
	k.steps = newSteps(m.wrap(k.provider))
	k.provider = k.steps
	k.config.Provider, k.config.StateDir = k.steps, t.TempDir()
	k.config.Engine, k.config.ForgetAfter = k.engine, time.Minute
	m.change(&k.config)
	k.restart()
	k.theirs = k.box.theirs("net", "10.50.0.0/24")
	k.engine.has(k.create(v4Network("10.99.0.0/24")))
	k.pass(2 * time.Minute)
	k.engine = newFakeEngine("one")
	k.config.Engine = k.engine
	k.restart()
	k.empty = k.dump()
	return k
}

// killedAt does something of which the plugin can die at a step; 0: it lives. It reports
// whether it died. Then it was started again.
func (k *killable) killedAt(last int, do func()) (died bool) {
	k.t.Helper()
	k.steps.dieAt(last)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		do()
	}()
	<-ended
	if died = k.steps.dieAt(0); died {
		k.restart()
	}
	return died
}

// logf says where the plugin was killed if the test has failed.
func (k *killable) logf(format string, args ...any) {
	if k.t.Failed() {
		k.t.Logf(format, args...)
	}
}

// expire lets what the engine does not have be deleted, also what is only judged after that.
func (k *killable) expire() {
	k.t.Helper()
	k.pass(5 * time.Minute)
}

// nothingLeft checks that the SDN and the database have nothing of the test.
func (k *killable) nothingLeft() {
	k.t.Helper()
	k.pass(15 * time.Minute)
	k.clean()
	for name, text := range k.driver.Intents() {
		kind, _, _ := strings.Cut(name, "/")
		if !strings.Contains(string(text), `"engine":"two"`) || !slices.Contains([]string{"network", "pool"}, kind) {
			k.t.Errorf("row %s is left: %s", name, text)
		}
	}
}

// releasePools is what Docker does with the ranges of a network that it could not create.
func (k *killable) releasePools(n *network) {
	k.t.Helper()
	for _, p := range slices.Concat(n.v4, n.v6) {
		if p.id != "" {
			k.ok("IpamDriver.ReleasePool", m{"PoolID": p.id})
		}
	}
}

// inBubble calls a test of a killable host. Loops of it are not within one bubble, in which all hosts
// would go on.
func inBubble(t *testing.T, of making, test func(k *killable)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(newKillable(t, of)) })
}
