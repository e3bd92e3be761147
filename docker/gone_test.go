package docker

import (
	"strings"
	"testing"

	"github.com/kuryr/kuryr/sdn"
)

// An endpoint whose port was deleted in the SDN is deleted at the next start, unless a container has
// its interface.
func TestPortDeletedWhileStopped(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	n := b.create(&network{v4: []*pool{{cidr: "10.1.0.0/24"}}})
	stays, gone, used := b.run(&endpoint{net: n}), b.run(&endpoint{net: n}), b.run(&endpoint{net: n})
	b.ok("Plugin.Activate", nil) // none is being started
	ports := map[*endpoint]sdn.Port{stays: b.portOf(stays.id), gone: b.portOf(gone.id), used: b.portOf(used.id)}
	b.must(b.provider.DeletePorts(t.Context(), []sdn.ID{ports[gone].ID, ports[used].ID}))
	b.must(b.binder.Unplug(t.Context(), ports[gone]))
	b.must(b.binder.Unplug(t.Context(), ports[stays]))
	b.restart()
	b.must(b.driver.Reconcile(t.Context()))
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
