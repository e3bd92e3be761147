package docker

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// maxCommits is the most synced commits of the database that one container may cost, from its
// start to its removal.
const maxCommits = 8

// TestCommitsOfAContainer counts the commits of docker run --rm. Commits that no call waits
// for count too, so it takes the mean of several containers.
func TestCommitsOfAContainer(t *testing.T) {
	t.Parallel()
	port := m{"Proto": 6, "Port": 80, "HostPort": 8080}
	for name, c := range map[string]struct {
		network   *network
		published []m
	}{
		"one family":     {v4Network("10.50.0.0/24"), nil},
		"published port": {v4Network("10.50.0.0/24"), []m{port}},
		"two families":   {&network{v4: []*pool{{cidr: "10.50.0.0/24"}}, v6: []*pool{{cidr: "fd50::/64"}}}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			registry := prometheus.NewRegistry()
			b := newBox(t, func(config *Config) {
				config.StateDir, config.Registerer = t.TempDir(), registry
			})
			n := b.create(c.network)
			b.stop(b.run(&endpoint{net: n})) // what a network's first container costs once
			const containers = 10
			before := commits(t, registry)
			for range containers {
				b.stop(b.run(&endpoint{net: n, published: c.published}))
			}
			each := (commits(t, registry) - before) / containers
			t.Logf("%.1f commits for a container", each)
			if each > maxCommits {
				t.Errorf("a container costs %.1f commits, at most %d are allowed", each, maxCommits)
			}
			b.remove(n)
			b.clean()
		})
	}
}

// commits returns the number of commits of the Driver's database.
func commits(t *testing.T, registry *prometheus.Registry) float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "kuryr_intent_commits_total" {
			return f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	t.Fatal("no metric counts commits")
	return 0
}
