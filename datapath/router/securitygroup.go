//go:build linux

package router

import (
	"context"
	"fmt"
	"os"
	"slices"

	"github.com/kuryr/kuryr/datapath/securitygroup"
	"github.com/vishvananda/netlink"
)

// UpdateGroups tells the router's filter what these security groups and address groups
// are now. Those that it knows at the revision given cost nothing. It must know a group
// before a port has it. The error is os.ErrNotExist if the router has no namespace.
func (k *Kernel) UpdateGroups(
	ctx context.Context, router string, groups []securitygroup.Group, sets []securitygroup.Set,
) error {
	if err := ctx.Err(); err != nil || len(groups)+len(sets) == 0 {
		return err
	}
	k.gate.RLock()
	defer k.gate.RUnlock()
	defer k.lock(router)()
	s, err := k.openRouter(router)
	if err != nil {
		return err
	}
	if s == nil {
		return fmt.Errorf("security groups of router %s: %w", router, os.ErrNotExist)
	}
	defer s.close()
	return s.filtering(router, func(p *securitygroup.Filter) error { return p.UpdateGroups(groups, sets) })
}

// filtering calls work with the namespace's filter.
func (s *space) filtering(router string, work func(*securitygroup.Filter) error) (err error) {
	defer s.note(&err)
	if err := work(securitygroup.In(s.nft)); err != nil {
		return fmt.Errorf("filter of router %s: %w", router, err)
	}
	return nil
}

// filterPorts tells the filter about ports. With those of remove that are not filtered in
// add it is not done until the guard has forgotten them, so that none of them can send
// unfiltered: that is for the function it returns.
func (s *space) filterPorts(router string, remove, add []Port) (after func() error, err error) {
	var changed, gone, bare []Port
	for _, p := range remove {
		i := slices.IndexFunc(add, func(q Port) bool { return q.ID == p.ID })
		switch {
		case i >= 0 && (add[i].Filtered() || !p.Filtered()):
			changed = append(changed, p)
		case i >= 0:
			gone, bare = append(gone, p), append(bare, add[i])
		default:
			gone = append(gone, p)
		}
	}
	err = s.filtering(router, func(p *securitygroup.Filter) error {
		return p.UpdatePorts(filteredPorts(changed), filteredPorts(add))
	})
	return func() error {
		return s.filtering(router, func(p *securitygroup.Filter) error {
			return p.UpdatePorts(filteredPorts(gone), filteredPorts(bare))
		})
	}, err
}

// filteredPorts are what the filter must know of those that are filtered or have limits.
func filteredPorts(ports []Port) []securitygroup.Port {
	var list []securitygroup.Port
	for _, p := range ports {
		if !p.Filtered() && p.Limits == (securitygroup.Limits{}) {
			continue
		}
		own := securitygroup.Port{Tap: TapName(p.ID), Limits: p.Limits}
		if p.Filtered() {
			own.Groups, own.Addrs, own.OnLink = p.Groups, p.Addrs, p.OnLink
		}
		for _, a := range p.Allowed {
			own.Pairs = append(own.Pairs, a.Prefix)
		}
		list = append(list, own)
	}
	return list
}

// compareFilter is the router's part of a comparison of everything.
func (s *space) compareFilter(r *run, ports []Port, groups []securitygroup.Group, sets []securitygroup.Set) error {
	want := securitygroup.State{Ports: filteredPorts(ports), Groups: groups, Sets: sets}
	err := s.filtering(r.router, func(p *securitygroup.Filter) error {
		return p.Reconcile(want, r.dry, func(object, want, have string) {
			r.diffs = append(r.diffs, Difference{Router: r.router, Object: object, Want: want, Have: have})
		})
	})
	if r.dry {
		s.bad = true // what it would have done may be queued
	}
	return err
}

// moveFilter has ports that come from another namespace be filtered here before they
// come. Groups that are not known here let nothing pass.
func (s *space) moveFilter(r *run, from *space, taps []netlink.Link) error {
	var names []string
	for _, l := range taps {
		names = append(names, l.Attrs().Name)
	}
	var known securitygroup.Profiles
	err := from.filtering(r.router, func(p *securitygroup.Filter) (err error) {
		known, err = p.Profiles(names)
		return err
	})
	if err != nil {
		return err
	}
	return s.filtering(r.router, func(p *securitygroup.Filter) error { return p.Expect(known) })
}
