//go:build e2e

package kubernetes_test

import (
	"slices"
	"testing"
)

// ownStages are a Service's life where it has VIPs in its namespace.
var ownStages = []stage{
	{"made", (*steps).make, []string{
		"raven.ownvips.subnet", "raven.ownvips.attached:2", "raven.balancer.applied:3",
		"raven.balancer.applied:4", "raven.float.made", "raven.balancer.told",
		"raven.service.published",
	}, false, placed},
	{"at its ClusterIPs", (*steps).unplace, []string{
		"raven.service.changed", "raven.balancer.deleted:2", "raven.ownvips.retired",
		"raven.float.made", "raven.balancer.told", "raven.share.withdrawn",
	}, true, func(s *steps) []string {
		return append(s.floats("somebody's", "Raven's > first"), "first: 80", "second: 80", "Service: Raven's")
	}},
	{
		"in its namespace again", (*steps).place,
		[]string{
			"raven.balancer.applied:3", "raven.ownvips.attached", "raven.ownvips.subnet:2",
			"raven.balancer.told", "raven.float.made",
		},
		false, placed,
	},
	{"changed", (*steps).change, []string{
		"raven.ownvips.retired", "raven.balancer.retired", "raven.float.sunk", "raven.float.noted",
		"raven.float.led", "raven.balancer.applied:2",
	}, false, func(s *steps) []string {
		return append(s.floats("somebody's > own4"), "first: 80 81", "own4: 80 81", "told: own4", "Service: somebody's")
	}},
	{"hidden", (*steps).hide, []string{
		"raven.ownvips.retired", "raven.float.sunk", "raven.balancer.told",
	}, true, func(s *steps) []string {
		return append(s.floats("somebody's"), "first: 80 81", "Service: nowhere")
	}},
	{"gone", (*steps).drop, []string{
		"raven.service.dismissed", "raven.balancer.deleted", "raven.balancer.released",
		"raven.balancer.deleted:2", "", "raven.float.sunk",
	}, false, func(s *steps) []string {
		return s.floats("somebody's")
	}},
}

// placed is what there is of a Service with VIPs of its own, when it has been made.
func placed(s *steps) []string {
	return append(
		s.floats("somebody's", "Raven's > own4"), "first: 80", "second: 80", "own4: 80", "own6: 80",
		"told: own4", "told: own6", "Service: Raven's",
	)
}

// place has the next Raven give Services VIPs in their namespaces.
func (s *steps) place() {
	s.settings = append(slices.Clone(ravenServices), "--controller-vip-placement=namespace")
}

// unplace has the next Raven leave them their ClusterIPs alone.
func (s *steps) unplace() { s.settings = ravenServices }

// Raven is killed at each of its steps as VIPs in the namespace are made with their
// subnets, floating IPs go there and back, and all of it is taken away. Nothing is there
// twice, and in the end no more than the subnets, which go with the namespace.
func TestServicesKilledWithOwnVIPs(t *testing.T) {
	t.Parallel()
	s := startSteps(t)
	s.place()
	s.rests(func() error { return s.networks(1) })
	s.endpoints()
	s.theirs = s.float()
	s.make()
	for _, step := range []string{
		"raven.ownvips.subnet", "raven.ownvips.attached", "raven.ownvips.subnet:2",
		"raven.ownvips.attached:2",
	} {
		s.dies(step)
	}
	s.rests(func() error { return s.has(placed(s)) })
	s.drop()
	s.rests(func() error { return s.has(s.floats("somebody's")) })
	before := s.things()
	s.pass(ownStages)
	s.same(before)
}
