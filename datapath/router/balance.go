//go:build linux

package router

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/kuryr/kuryr/datapath/lb"
	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/kuryr/kuryr/internal/netns"
)

// A domain balances in its own namespace, before it translates anything else; package lb
// does it, whose truth is in memory: it is the only state that a Fabric keeps. Who comes
// after a restart is asked for all of it once.

// balancers are the tables of domains, by domain. One is there from the first time that
// its domain was told all of what it balances.
type balancers struct {
	mu sync.Mutex
	of map[string]balancer
}

type balancer struct {
	*lb.Table
	ns nsKey // a domain may have gone and come back
}

func (b *balancers) get(domain string, ns nsKey) *lb.Table {
	b.mu.Lock()
	defer b.mu.Unlock()
	if t := b.of[domain]; t.ns == ns {
		return t.Table
	}
	return nil
}

func (b *balancers) note(domain string, ns nsKey, t *lb.Table) {
	b.forget(domain)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.of == nil {
		b.of = map[string]balancer{}
	}
	b.of[domain] = balancer{t, ns}
}

// forget lets go of a domain's table, whose sockets would keep its namespace.
func (b *balancers) forget(domain string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if t := b.of[domain]; t.Table != nil {
		_ = t.Close()
	}
	delete(b.of, domain)
}

func (b *balancers) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, t := range b.of {
		_ = t.Close()
	}
	b.of = nil
}

func (f *Fabric) newTable(domain string) *lb.Table {
	return lb.New(lb.Config{Bridges: bridgePrefix, Logger: f.log, Observe: f.config.Balanced,
		Run: func(open func() error) error {
			ns, err := f.config.Namespaces.Handle(domain)
			if err != nil {
				return err
			}
			defer ns.Close()
			return netns.Do(ns, open)
		}})
}

// UpdateFrontends has the domain balance no more where the keys are, and balance what is
// set, at the cost of what changes. Where this process has not told the domain what it
// balances, it asks for all of that, which then takes the place of the change.
// Connections go on. The error is os.ErrNotExist if the domain has no namespace and
// something is to be set.
func (f *Fabric) UpdateFrontends(
	ctx context.Context, domain string, remove []lb.Key, set []lb.Frontend,
	all func() ([]lb.Frontend, error),
) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	f.gate.RLock()
	defer f.gate.RUnlock()
	defer f.lock(domain)()
	s, err := f.openDomain(domain)
	if err != nil {
		return err
	}
	if s == nil {
		if len(set) > 0 {
			return fmt.Errorf("load balancers of domain %s: %w", domain, os.ErrNotExist)
		}
		return nil
	}
	defer s.close()
	if t := f.balancers.get(domain, s.key); t != nil {
		err = t.Apply(ctx, f.feasibleFrontends(set), remove)
	} else {
		var whole []lb.Frontend
		if whole, err = all(); err == nil {
			err = f.tellFrontends(ctx, s, domain, whole)
		}
	}
	if err != nil {
		return fmt.Errorf("load balancers of domain %s: %w", domain, err)
	}
	failpoint.Here("router.frontends.told")
	return nil
}

// tellFrontends tells a namespace all that it balances.
func (f *Fabric) tellFrontends(ctx context.Context, s *space, domain string, all []lb.Frontend) error {
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
	if err := s.convergeShares(&run{ctx: ctx, domain: domain}, prefixes); err != nil {
		return err
	}
	failpoint.Here("router.frontends.bridges")
	t := f.balancers.get(domain, s.key)
	if t == nil {
		t = f.newTable(domain)
	}
	if err := t.Restore(ctx, f.feasibleFrontends(all)); err != nil {
		f.balancers.forget(domain)
		return errors.Join(err, t.Close())
	}
	if f.balancers.get(domain, s.key) == nil {
		f.balancers.note(domain, s.key, t)
	}
	return nil
}

// compareFrontends is the domain's part of a comparison of everything. What this process
// has not told yet it cannot compare, only tell.
func (f *Fabric) compareFrontends(r *run, s *space, want []lb.Frontend) error {
	t := f.balancers.get(r.domain, s.key)
	if t != nil {
		diffs, err := t.Check(r.ctx)
		if err != nil {
			return fmt.Errorf("load balancers: %w", err)
		}
		for _, d := range diffs {
			r.diffs = append(r.diffs, Difference{Domain: r.domain, Object: "nft " + d.Object, Want: d.Want, Have: d.Have})
		}
	}
	switch {
	case r.dry:
		return nil
	case len(want) > 0:
		return f.tellFrontends(r.ctx, s, r.domain, want)
	case t == nil:
		t = f.newTable(r.domain)
		return errors.Join(t.Remove(r.ctx), t.Close())
	}
	return t.Restore(r.ctx, nil)
}
