package docker

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/kuryr/kuryr/sdn/local"
)

// The store that calls are measured against an empty one with.
const (
	benchNetworks  = 1000
	benchEndpoints = 10 // on each
)

// BenchmarkScaleRatio reports for each method what a call costs while the store holds
// 1,000 networks with 10,000 endpoints, as a ratio to an empty one: of medians, taken in
// turn. Nothing is plugged; the stores are on disk and synced, as users' are.
// Plugin.Activate is left out: each engine process sends it once, and it reads all rows.
func BenchmarkScaleRatio(b *testing.B) { benchmarkScale(b, false) }

// BenchmarkScaleRatioNoSync is the same without waiting for the disk: what grows shows more.
func BenchmarkScaleRatioNoSync(b *testing.B) { benchmarkScale(b, true) }

func benchmarkScale(b *testing.B, noSync bool) {
	dir := b.TempDir()
	on := func(name string, noSync bool, scope Scope) (*box, *local.Provider) {
		store := openStore(b, filepath.Join(dir, name), noSync)
		return boxOn(b, store, func(c *Config) {
			c.Scope, c.StateDir = scope, filepath.Join(dir, name+"-state")
			c.unsynced = noSync
			if err := os.MkdirAll(c.StateDir, 0o700); err != nil {
				b.Fatal(err)
			}
		}), store
	}
	full, store := on("full", true, Local)
	fill(full)
	full.driver.closeDatabase()
	if err := store.Close(); err != nil {
		b.Fatal(err)
	}
	boxes := make([]*box, 2)
	for i, name := range []string{"empty", "full"} {
		boxes[i], _ = on(name, noSync, Global)
	}
	took := [2]map[string][]time.Duration{{}, {}}
	for i, box := range boxes {
		box.took = func(method string, d time.Duration) { took[i][method] = append(took[i][method], d) }
	}
	for b.Loop() {
		for _, box := range boxes {
			for range 10 {
				box.story()
			}
		}
	}
	for method, empty := range took[0] {
		full := took[1][method]
		slices.Sort(empty)
		slices.Sort(full)
		b.ReportMetric(float64(full[len(full)/2])/float64(empty[len(empty)/2]), "ratio-"+method)
	}
	b.ReportMetric(0, "ns/op")
}

// fill makes networks as users do: half of them name a range, half leave it to Kuryr.
func fill(b *box) {
	b.t.Helper()
	for i := range benchNetworks {
		n := &network{v4: []*pool{{}}}
		if i%2 == 0 {
			n.v4[0].cidr = fmt.Sprintf("10.%d.%d.0/24", 64+i/256, i%256)
		}
		b.create(n)
		for range benchEndpoints {
			b.run(&endpoint{net: n})
		}
	}
}

// story is a network with one container that publishes a port, from nothing to nothing.
func (b *box) story() {
	b.t.Helper()
	n := b.create(v4Network("10.9.0.0/24"))
	e := b.run(&endpoint{net: n, published: []m{{"Proto": 6, "Port": 80, "HostPort": 8080}}})
	b.stop(e)
	b.remove(n)
	automatic := b.create(&network{v4: []*pool{{}}, v6: []*pool{{}}})
	b.remove(automatic)
	b.ok("NetworkDriver.GetCapabilities", nil)
	b.ok("IpamDriver.GetDefaultAddressSpaces", nil)
	b.ok("NetworkDriver.GwAllocCheck", m{"Options": m{}})
	b.ok("NetworkDriver.DiscoverNew", m{"DiscoveryType": 1, "DiscoveryData": m{"Address": "192.0.2.1", "Self": true}})
	b.swarmStory()
}

// swarmStory is a swarm's network with one task, on a manager that is its only node.
func (b *box) swarmStory() {
	b.t.Helper()
	n := b.allocate(v4Network("10.8.0.0/24"))
	task := b.task(n)
	node := b.onNode(n)
	b.stop(b.run(&endpoint{net: node, ip4: task}))
	b.remove(node)
	b.addressRelease(n.v4[0], task)
	b.unallocate(n)
}
