package docker

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/kuryr/kuryr/internal/jsonstore"
	"github.com/kuryr/kuryr/sdn"
)

// An endpoint whose port was deleted in the SDN is deleted at the next start, unless a container has
// its interface.
func TestPortDeletedWhileStopped(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	n := b.create(v4Network("10.1.0.0/24"))
	stays, gone, used := b.run(&endpoint{net: n}), b.run(&endpoint{net: n}), b.run(&endpoint{net: n})
	b.ok("Plugin.Activate", nil) // none is being started
	ports := map[*endpoint]sdn.Port{stays: b.portOf(stays.id), gone: b.portOf(gone.id), used: b.portOf(used.id)}
	b.must(b.provider.DeletePorts(t.Context(), []sdn.ID{ports[gone].ID, ports[used].ID}))
	b.must(b.binder.Unplug(t.Context(), ports[gone]))
	b.must(b.binder.Unplug(t.Context(), ports[stays]))
	b.restart()
	b.reconcile()
	has := func(e *endpoint) bool {
		for name := range b.driver.Intents() {
			if strings.HasSuffix(name, "/"+e.id) {
				return true
			}
		}
		return false
	}
	if !has(stays) || has(gone) || !has(used) {
		t.Errorf("rows of the endpoint that stays: %v, that is gone: %v, that is used: %v", has(stays), has(gone), has(used))
	}
}

// The records from which the previous version publishes by its proxy are there while the container
// runs, also after a kill.
func TestRecordsForPreviousVersion(t *testing.T) {
	t.Parallel()
	b, _ := plainBox(t)
	n := b.create(v4Network("10.1.0.0/24"))
	has := func(when string, want ...string) {
		t.Helper()
		all, err := jsonstore.Load[any](jsonstore.Shared(folderIn(b.config.RunDir, endpointsFolder)))
		b.must(err)
		if got := slices.Sorted(maps.Keys(all)); !slices.Equal(got, want) {
			t.Errorf("%s: records of %v, want %v", when, got, want)
		}
	}
	e := b.start(&endpoint{net: n, published: []m{{"Proto": 6, "Port": 80, "HostIP": "127.0.0.1"}}})
	has("before it publishes")
	b.publish(e)
	has("when it publishes", e.id)
	b.ok("NetworkDriver.Leave", e.body())
	has("after Leave")
	b.ok("NetworkDriver.Join", e.joinBody())
	b.ok("NetworkDriver.DeleteEndpoint", e.body())
	two := b.start(&endpoint{net: n, published: []m{{"Proto": 6, "Port": 80, "HostIP": "127.0.0.1"}}})
	b.publish(two)
	b.driver.proxy.Close()
	b.restart()
	has("after a kill", two.id)
	b.ok("NetworkDriver.Leave", two.body())
	has("after Leave of what was published before the kill")
}
