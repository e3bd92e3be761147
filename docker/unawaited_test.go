package docker

import (
	"context"
	"iter"
	"testing"
	"time"

	"github.com/kuryr/kuryr/sdn"
)

// awaited counts what is asked of networks and ports, and how much of that somebody waits for.
type awaited struct {
	sdn.Provider
	asked, waits int
}

func (a *awaited) count(ctx context.Context) {
	a.asked++
	if !sdn.IsUnawaited(ctx) {
		a.waits++
	}
}

func (a *awaited) FindNetworks(ctx context.Context, q sdn.NetworkQuery) iter.Seq2[sdn.Network, error] {
	a.count(ctx)
	return a.Provider.FindNetworks(ctx, q)
}

func (a *awaited) UpdateNetwork(ctx context.Context, id sdn.ID, p sdn.NetworkPatch) (sdn.Network, error) {
	a.count(ctx)
	return a.Provider.UpdateNetwork(ctx, id, p)
}

func (a *awaited) DeleteNetwork(ctx context.Context, id sdn.ID) error {
	a.count(ctx)
	return a.Provider.DeleteNetwork(ctx, id)
}

func (a *awaited) FindPorts(ctx context.Context, q sdn.PortQuery) iter.Seq2[sdn.Port, error] {
	a.count(ctx)
	return a.Provider.FindPorts(ctx, q)
}

// Nobody waits for a comparison with the engine, for what it removes, nor for the note that an engine has a network.
func TestNobodyWaitsForComparisons(t *testing.T) {
	t.Parallel()
	c := newClocked(t)
	count := &awaited{Provider: c.provider}
	c.config.Provider = count
	c.again()
	n := c.create(v4Network("10.77.0.0/24"))
	for _, step := range []struct {
		what string
		do   func()
	}{
		{"Seen", func() { c.must(c.driver.Seen(t.Context(), c.engine.view.Engine, n.id)) }},
		{"a comparison", func() { c.engine.has(n); c.compare(0) }},
		{"a removal", func() { c.engine.forgets(n); c.compare(time.Hour); c.compare(time.Hour) }},
	} {
		count.asked, count.waits = 0, 0
		step.do()
		if count.asked == 0 || count.waits > 0 {
			t.Errorf("%s asked %d times, and waited for %d", step.what, count.asked, count.waits)
		}
	}
	c.clean()
}
