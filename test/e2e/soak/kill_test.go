//go:build e2e

package soak_test

import (
	"context"
	"math/rand/v2"
	"os"
	"syscall"
	"time"
)

// killing kills the two daemons, at random and in turns, until ctx ends, and leaves both
// running. It counts what it did.
func (s *soak) killing(ctx context.Context) map[string]int {
	random := rand.New(rand.NewPCG(s.seed, 1<<32))
	kills := map[string]int{}
	between := func(least, most time.Duration) { wait(ctx, least+time.Duration(random.Int64N(int64(most-least)))) }
	for {
		between(time.Second, 5*time.Second)
		if ctx.Err() != nil {
			return kills
		}
		switch n := random.IntN(10); n {
		case 0, 1, 2, 3, 4, 5:
			sig, what := syscall.SIGKILL, "kuryr KILL"
			if n == 0 {
				sig, what = syscall.SIGTERM, "kuryr TERM"
			}
			kills[what]++
			if err := s.KillKuryr(sig); err != nil {
				s.bad("kuryr does not end by %s: %v", sig, err)
			}
			between(0, 2*time.Second)
			s.startKuryr()
		default:
			sig, what := syscall.SIGKILL, "dockerd KILL"
			if n == 6 {
				sig, what = syscall.SIGTERM, "dockerd TERM"
			}
			kills[what]++
			_ = s.StopDocker(sig)
			// Both daemons away at once, now and then.
			if random.IntN(4) == 0 {
				kills["both"]++
				_ = s.KillKuryr(syscall.SIGKILL)
				s.startKuryr()
			}
			// With and without live restore, which the engine reads at its start.
			live := `{"live-restore": false}`
			if random.IntN(2) == 0 {
				live = `{"live-restore": true}`
				kills["then with live restore"]++
			}
			if err := os.WriteFile(s.Path("/etc/docker/daemon.json"), []byte(live), 0o600); err != nil {
				s.bad("%v", err)
			}
			s.startDocker()
		}
	}
}

func (s *soak) startKuryr() {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	if err := s.StartKuryr(ctx, nil, forgetful); err != nil {
		s.bad("kuryr does not start after a kill: %v", err)
	}
}

// startDocker starts the engine as its systemd unit does: again where it ends before it answers, three times in all.
func (s *soak) startDocker() {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	const starts = 3
	for i := 1; ; i++ {
		err := s.StartDocker(ctx)
		if err == nil {
			return
		}
		if i == starts || ctx.Err() != nil {
			s.bad("the engine does not start after a kill: %v", err)
			return
		}
		s.t.Logf("start %d of the engine after a kill: %v", i, err)
	}
}
