//go:build linux

package router

import (
	"errors"
	"fmt"
	"sync"

	"github.com/kuryr/kuryr/datapath/lb"
	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/kuryr/kuryr/internal/netns"
)

// A router balances in its own namespace, before it translates anything else; package lb
// does it, whose truth is in memory: it is the only state that a Kernel keeps. Who comes
// after a restart is asked for all of it once.

// balancers are the tables of routers, by router. One is there from the first time that
// its router was told all of what it balances.
type balancers struct {
	mu sync.Mutex
	of map[string]balancer
}

type balancer struct {
	*lb.Table
	ns nsKey // a router may have gone and come back
}

func (b *balancers) get(router string, ns nsKey) *lb.Table {
	b.mu.Lock()
	defer b.mu.Unlock()
	if t := b.of[router]; t.ns == ns {
		return t.Table
	}
	return nil
}

func (b *balancers) note(router string, ns nsKey, t *lb.Table) {
	b.forget(router)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.of == nil {
		b.of = map[string]balancer{}
	}
	b.of[router] = balancer{t, ns}
}

// forget lets go of a router's table, whose sockets would keep its namespace.
func (b *balancers) forget(router string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if t := b.of[router]; t.Table != nil {
		_ = t.Close()
	}
	delete(b.of, router)
}

func (b *balancers) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, t := range b.of {
		_ = t.Close()
	}
	b.of = nil
}

func (k *Kernel) newTable(router string) *lb.Table {
	return lb.New(lb.Config{Bridges: bridgePrefix, Logger: k.log, Observe: k.options.Balanced,
		Run: func(open func() error) error {
			ns, err := k.options.Namespaces.Handle(router)
			if err != nil {
				return err
			}
			defer ns.Close()
			return netns.Do(ns, open)
		}})
}

// setFrontends has the router balance no more where some keys are, and balance what is set,
// at the cost of what changes. Connections go on.
func (k *Kernel) setFrontends(r *run, s *space, f Frontends) error {
	if t := k.balancers.get(r.router, s.key); t != nil {
		if err := t.Apply(r.ctx, k.feasibleFrontends(f.Set), f.Remove); err != nil {
			return err
		}
	} else {
		whole, err := f.All()
		if err != nil {
			return err
		}
		if err := k.tellFrontends(r, s, whole); err != nil {
			return err
		}
	}
	failpoint.Here("router.frontends.told")
	return nil
}

// tellFrontends tells a namespace all that it balances.
func (k *Kernel) tellFrontends(r *run, s *space, all []lb.Frontend) error {
	bridges, err := s.links("bridge", 0)
	if err != nil {
		return err
	}
	for _, b := range bridges {
		if err := lb.LeadUp(s.rt, b); err != nil {
			return err
		}
	}
	prefixes, err := s.onLink(bridges)
	if err != nil {
		return err
	}
	if err := s.convergeShares(r, prefixes); err != nil {
		return err
	}
	failpoint.Here("router.frontends.bridges")
	t := k.balancers.get(r.router, s.key)
	if t == nil {
		t = k.newTable(r.router)
	}
	if err := t.Restore(r.ctx, k.feasibleFrontends(all)); err != nil {
		k.balancers.forget(r.router)
		return errors.Join(err, t.Close())
	}
	if k.balancers.get(r.router, s.key) == nil {
		k.balancers.note(r.router, s.key, t)
	}
	return nil
}

// compareFrontends is the router's part of a comparison of everything. What this process
// has not told yet it cannot compare, only tell.
func (k *Kernel) compareFrontends(r *run, s *space, want []lb.Frontend) error {
	t := k.balancers.get(r.router, s.key)
	if t != nil {
		diffs, err := t.Check(r.ctx)
		if err != nil {
			return fmt.Errorf("load balancers: %w", err)
		}
		for _, d := range diffs {
			r.diffs = append(r.diffs, Difference{Router: r.router, Object: "nft " + d.Object, Want: d.Want, Have: d.Have})
		}
	}
	switch {
	case r.dry:
		return nil
	case len(want) > 0:
		return k.tellFrontends(r, s, want)
	case t == nil:
		t = k.newTable(r.router)
		return errors.Join(t.Remove(r.ctx), t.Close())
	}
	return t.Restore(r.ctx, nil)
}
