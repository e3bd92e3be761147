//go:build e2e

package neutron_test

import (
	"context"
	"strings"
	"syscall"
	"testing"

	"github.com/kuryr/kuryr/test/e2e/neutronlab"
)

// counted lets the host's Kuryr speak with Neutron through a proxy that counts, until the test ends.
func (r *rig) counted(h host) *neutronlab.Counter {
	r.Helper()
	c, err := r.lab.NewCounter(r.ctx)
	if err != nil {
		r.Fatal(err)
	}
	r.fresh(func(context.Context) error { return c.Close() })
	r.restarted(h, "KURYR_NEUTRON_ENDPOINT="+c.Endpoint)
	return c
}

// restarted ends the host's Kuryr and starts it with env added, until the test ends.
func (r *rig) restarted(h host, env ...string) {
	r.Helper()
	again := func(ctx context.Context, env ...string) error {
		if err := h.KillKuryr(syscall.SIGTERM); err != nil {
			return err
		}
		return h.StartKuryr(ctx, env...)
	}
	if err := again(r.ctx, env...); err != nil {
		r.Fatal(err)
	}
	r.fresh(func(ctx context.Context) error { return again(ctx) })
}

// What Docker waits for costs few calls of Neutron.
func TestCalls(t *testing.T) {
	r := shared(t)
	counter := r.counted(r.h1)
	// The first of everything finds out what Neutron can do.
	r.h1.network("warm", "--subnet", "10.70.0.0/24", "--gateway", "10.70.0.1")
	r.h1.docker("run", "--rm", "--network", "warm", "box", "true")
	r.h1.docker("network", "rm", "warm")
	// What Kuryr does by itself now and then is counted too where it falls into a step, so the least of the rounds counts.
	least := map[int][]string{}
	for round := range 3 {
		for i, step := range []struct {
			what string
			most int
			args []string
		}{
			{"network create", 6, []string{"network", "create", "-d", "kuryr", "--ipam-driver", "kuryr", "--subnet", "10.71.0.0/24", "--gateway", "10.71.0.1", "calls"}},
			{"", 0, []string{"create", "--name", "calls", "--network", "calls", "--stop-timeout", "1", "box", "probe", "serve", "7000"}},
			{"container start", 5, []string{"start", "calls"}},
			{"container stop", 3, []string{"stop", "calls"}},
			{"container start", 5, []string{"start", "calls"}},
			{"container stop", 3, []string{"stop", "calls"}},
			{"", 0, []string{"rm", "calls"}},
			{"network delete", 6, []string{"network", "rm", "calls"}},
		} {
			counter.Take()
			r.h1.docker(step.args...)
			calls, spent := counter.Take()
			if step.what == "" {
				continue
			}
			t.Logf("round %d, %s: %d calls, %s of Neutron\n  %s", round, step.what, len(calls), spent, strings.Join(calls, "\n  "))
			if known, ok := least[i]; !ok || len(calls) < len(known) {
				least[i] = calls
			}
			if round == 2 && len(least[i]) > step.most {
				t.Errorf("%s: %d calls of Neutron, at most %d are allowed:\n  %s", step.what, len(least[i]), step.most, strings.Join(least[i], "\n  "))
			}
		}
	}
}
