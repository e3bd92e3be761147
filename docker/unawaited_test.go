package docker

import (
	"testing"
	"time"

	"github.com/kuryr/kuryr/docker/dockertest"
	"github.com/kuryr/kuryr/sdn"
)

// awaited counts the calls of an SDN, and how many of them somebody waits for.
type awaited struct{ asked, waits int }

func (a *awaited) of(p sdn.Provider) sdn.Provider {
	return &dockertest.Provider{Provider: p, Before: func(c dockertest.Call) error {
		a.asked++
		if !sdn.IsUnawaited(c.Context) {
			a.waits++
		}
		return nil
	}}
}

// Nobody waits for a comparison with the engine, for what it removes, nor for the note that an engine has a network.
func TestNobodyWaitsForComparisons(t *testing.T) {
	t.Parallel()
	c := newClocked(t)
	count := &awaited{}
	c.config.Provider = count.of(c.provider)
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
