//go:build linux

package router

import (
	"github.com/kuryr/kuryr/datapath/securitygroup"
	"github.com/vishvananda/netlink"
)

// filtering calls work with the namespace's filter.
func (s *space) filtering(work func(*securitygroup.Filter) error) (err error) {
	defer s.note(&err)
	return work(securitygroup.In(s.nft))
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
	err := s.filtering(func(p *securitygroup.Filter) error {
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
	err := from.filtering(func(p *securitygroup.Filter) (err error) {
		known, err = p.Profiles(names)
		return err
	})
	if err != nil {
		return err
	}
	return s.filtering(func(p *securitygroup.Filter) error { return p.Expect(known) })
}
