//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"time"
)

// singles has Services come and go, and endpoints change, one after another: the next when the kernel has been told of the last. Each kind has its time; when one is over, the other is not begun, as
// the daemon is still at what it was late with.
func (s *servicesBench) singles(ctx context.Context, h *balancerHost, to *balanced) error {
	var watch *nftWatch
	if err := h.within(func() (err error) {
		watch, err = watchNFT()
		return err
	}); err != nil {
		return err
	}
	defer watch.close()
	count, took, err := h.transactions(ctx)
	if err != nil {
		return err
	}
	for _, kind := range []struct {
		change func(context.Context, *balancerHost, *nftWatch, *balanced) error
		late   *time.Duration
	}{{s.comeAndGo, &to.lateMore}, {s.moveEndpoints, &to.lateChanged}} {
		err := within(ctx, changeLimit, func(ctx context.Context) error { return kind.change(ctx, h, watch, to) })
		if errors.Is(err, errLate) {
			fmt.Fprintf(os.Stderr, " %s is late: %v …", h.name, err)
			*kind.late = changeLimit
			break
		}
		if err != nil {
			return err
		}
	}
	countAfter, tookAfter, err := h.transactions(ctx)
	if err != nil {
		return err
	}
	if countAfter > count {
		to.transaction = append(to.transaction, time.Duration((tookAfter-took)/(countAfter-count)*float64(time.Second)))
	}
	to.kib, err = h.memory()
	return err
}

func (s *servicesBench) comeAndGo(ctx context.Context, h *balancerHost, watch *nftWatch, to *balanced) error {
	for began := time.Now(); more(began, to.more); {
		if err := s.oneComesAndGoes(ctx, h, watch, to); err != nil {
			return err
		}
	}
	return nil
}

// oneComesAndGoes makes one Service more and takes it away. Its EndpointSlice is there all the time.
func (s *servicesBench) oneComesAndGoes(ctx context.Context, h *balancerHost, watch *nftWatch, to *balanced) error {
	next := s.api.have + len(to.more) // another each time: what went may not be gone everywhere
	before, _, err := h.spent()
	if err != nil {
		return err
	}
	seen := watch.expect(vip(next))
	begin := time.Now()
	if err := s.api.makeService(ctx, next); err != nil {
		return err
	}
	answered := time.Now()
	at, err := seen(ctx)
	if err != nil {
		// The next size has a Service of this name.
		return errors.Join(fmt.Errorf("one Service more: %w", err), s.api.remove(context.WithoutCancel(ctx), next))
	}
	to.more, to.told = append(to.more, at.Sub(begin)), append(to.told, max(0, at.Sub(answered)))
	if err := inNamespace(h.client, func() error { return answers(ctx, s.at(next)) }); err != nil {
		return errors.Join(err, s.api.remove(context.WithoutCancel(ctx), next))
	}
	after, _, err := h.spent()
	if err != nil {
		return err
	}
	to.moreCPU = append(to.moreCPU, after-before)
	seen = watch.expect(vip(next))
	if err := s.api.remove(ctx, next); err != nil {
		return err
	}
	if _, err := seen(ctx); err != nil {
		return fmt.Errorf("that Service goes: %w", err)
	}
	return nil
}

func (s *servicesBench) moveEndpoints(ctx context.Context, _ *balancerHost, watch *nftWatch, to *balanced) error {
	for began := time.Now(); more(began, to.changed); {
		i, spare := rand.IntN(s.api.have), s.api.nextSpare()
		seen := watch.expect(spare)
		begin := time.Now()
		if err := s.api.moveEndpoint(ctx, i, spare); err != nil {
			return err
		}
		at, err := seen(ctx)
		if err != nil {
			return fmt.Errorf("an endpoint changes: %w", err)
		}
		to.changed = append(to.changed, at.Sub(begin))
	}
	return nil
}

// more tells whether there is to be one sample more.
func more(began time.Time, have []time.Duration) bool {
	return len(have) < fewestChanges || len(have) < serviceChanges && time.Since(began) < changesLasting
}
