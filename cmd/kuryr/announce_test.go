//go:build linux

package main

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kuryr/kuryr/internal/config"
	"github.com/kuryr/kuryr/sdn"
)

// lateSDN answers its first calls with an error.
type lateSDN struct {
	sdn.Provider
	failures int
}

func (l *lateSDN) Ping(context.Context) error {
	if l.failures--; l.failures >= 0 {
		return errors.New("not yet")
	}
	return nil
}

// TestReadyWhenTheSDNAnswers checks that the log says "ready" only when the SDN answers, and says
// once that it is waited for.
func TestReadyWhenTheSDNAnswers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		provider string
		failures int
		end      bool
		want     []string
	}{
		"Neutron answers":       {config.ProviderNeutron, 0, false, []string{"ready"}},
		"Neutron answers later": {config.ProviderNeutron, 7, false, []string{"waiting for Neutron", "ready"}},
		"another process":       {config.ProviderSDN, 2, false, []string{"waiting for kuryr sdn", "ready"}},
		"kuryr is stopped":      {config.ProviderNeutron, 1 << 30, true, []string{"waiting for Neutron"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var log strings.Builder
				d := &daemon{
					cfg: config.Config{Provider: c.provider}, sdn: &lateSDN{failures: c.failures},
					log: slog.New(slog.NewTextHandler(&log, nil)), started: time.Now(),
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				d.announce(ctx)
				if c.end != (ctx.Err() != nil) {
					t.Errorf("ended with %v", ctx.Err())
				}
				var got []string
				for line := range strings.Lines(log.String()) {
					_, text, _ := strings.Cut(line, "msg=")
					for _, want := range c.want {
						if strings.HasPrefix(strings.Trim(text, `"`), want) {
							got = append(got, want)
						}
					}
				}
				if strings.Join(got, ", ") != strings.Join(c.want, ", ") || len(got) != strings.Count(log.String(), "\n") {
					t.Errorf("the log has %q, want %q:\n%s", got, c.want, log.String())
				}
			})
		})
	}
}
