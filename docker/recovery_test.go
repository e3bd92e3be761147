package docker

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kuryr/kuryr/docker/dockertest"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/sdn"
)

// A step of the recovery that fails, whatever its error says, is repeated until it succeeds. It
// keeps neither the other steps nor Docker's calls from being done.
func TestRecoveryRepeats(t *testing.T) {
	t.Parallel()
	for name, failure := range map[string]error{
		"unavailable": sdn.Unavailable(nil, "SDN", "it does not answer"),
		"stale":       sdn.Conflict(sdn.Stale, "subnet pool", "", "it was changed"),
		"denied":      &sdn.Error{Kind: sdn.KindDenied},
		"unexpected":  errors.New("unexpected end of JSON input"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { recoverAfter(t, failure) })
		})
	}
}

func recoverAfter(t *testing.T, failure error) {
	var failing atomic.Bool
	var tries atomic.Int64
	b := newBox(t, func(c *Config) {
		c.Provider = &dockertest.Provider{Provider: c.Provider, Before: func(call dockertest.Call) error {
			q, ok := dockertest.Arg[sdn.SubnetPoolQuery](call)
			if !ok || q.Kind != identity.KindLink || len(q.Tags)+len(q.Keys) > 0 {
				return nil
			}
			tries.Add(1)
			if failing.Load() {
				return failure
			}
			return nil
		}}
	})
	n := b.create(v4Network("10.1.0.0/24"))
	gone := b.run(&endpoint{net: n})
	b.must(b.provider.DeletePorts(t.Context(), []sdn.ID{b.portOf(gone.id).ID}))
	b.binder.unplugAll()
	key := sdn.Key{Owner: b.provider.Installation(), Kind: identity.KindPort, Name: string(b.networkOf(n).ID) + "/one"}
	released := b.port(n, sdn.PortSpec{Base: sdn.Base{Key: key, Name: identity.UnboundPort}}, "10.1.0.77")
	b.wrote(owedFolder, "1", encode(m{
		"Method": "IpamDriver.ReleaseAddress", "At": time.Now(), "Port": string(released.ID),
		"Body": m{"PoolID": n.v4[0].id, "Address": "10.1.0.77"},
	}))
	time.Sleep(3 * time.Minute) // in which an endpoint can be starting
	failing.Store(true)
	b.restart()
	b.whileRunning(func() {
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if n := tries.Load(); n < 8 || n > 30 {
			t.Errorf("tried %d times in ten minutes", n)
		}
		if _, err := b.provider.Port(t.Context(), released.ID); !sdn.IsNotFound(err) {
			t.Errorf("the released port: %v", err)
		}
		if _, ok := b.driver.Intents()["endpoint/"+gone.id]; ok {
			t.Error("the endpoint without a port has a row")
		}
		b.stop(b.run(&endpoint{net: n}))
		failing.Store(false)
		time.Sleep(maxBackoff + time.Second)
		tries.Store(0)
		time.Sleep(10 * time.Minute)
	})
	if n := tries.Load(); n > 0 {
		t.Errorf("tried %d times after it succeeded", n)
	}
	for row := range b.driver.Intents() {
		if strings.HasPrefix(row, kindRecovery+"/") {
			t.Errorf("%s is left", row)
		}
	}
}

// After the database was lost, the store imports networks before the addresses on them, so that an
// address whose endpoint Docker does not have is found.
func TestLostAddressIsOrphan(t *testing.T) {
	withEngine(t, func(t *testing.T, c *engineBox) {
		n := c.create(v4Network("10.77.0.0/24"))
		used, unused := c.run(&endpoint{net: n}), &endpoint{net: n}
		c.take(unused)
		c.engine.has(n)
		c.engine.runs(used)
		lost := c.portAt(unused).ID
		c.end()
		c.config.Registerer, c.config.StateDir = nil, t.TempDir()
		c.restart()
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { c.driver.database.Run(ctx) })
		c.end = func() { cancel(); running.Wait() }
		c.expire()
		if _, err := c.provider.Port(t.Context(), lost); !sdn.IsNotFound(err) {
			t.Errorf("the port of the address: %v", err)
		}
		c.engine.stops()
		c.stop(used)
		c.remove(n)
		c.clean()
	})
}
