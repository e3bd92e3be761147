//go:build linux

package main

import (
	"fmt"
	"math"
	"slices"
	"time"
)

const gigabit = 1e9 / 8

// tell adds the rows of one size. What one of them did not reach in time is told in the place of its figure, and the other's figure is there all the same.
func (s *servicesBench) tell(size int, ours, theirs, straight, again *balanced) {
	in := fmt.Sprintf("%s%d Services: ", s.prefix, size)
	one := func(d time.Duration) []time.Duration { return []time.Duration{d} }
	s.reached(in+"the daemon's start until all answer", ours.load, theirs.load, loadLimit, goalProxy)
	s.reached(in+"CPU of that", ours.loadCPU, theirs.loadCPU, 0, goalProxy)
	s.reached(in+"CPU of that in the kernel", ours.loadKernel, theirs.loadKernel, 0, goalProxy)
	s.reached(in+"CPU of that in the kernel, to the goal", ours.loadKernel, one(goalKernelLoad), 0, 1)
	s.reached(in+"one more, what is after the API server's answer, to the goal", ours.told, one(goalOneMore), 0, 1)
	if s.oneMore != 0 {
		s.reached(in+"one more, from its creation, to that of the least number measured", ours.more, one(s.oneMore), 0, 0)
	} else if len(ours.more) > 0 {
		s.oneMore = median(ours.more)
	}
	s.reached(in+"one more, from its creation until the kernel has it", ours.more, theirs.more, changeLimit, goalProxy)
	s.reached(in+"what of that is after the API server's answer", ours.told, theirs.told, changeLimit, goalProxy)
	s.reached(in+"CPU of one more", mean(ours.moreCPU), mean(theirs.moreCPU), 0, goalProxy)
	s.reached(in+"any of these changes, the telling of the kernel by the daemon's own metrics", ours.transaction, theirs.transaction, 0, goalProxy)
	s.reached(in+"one endpoint changed, until the kernel has it", ours.changed, theirs.changed, changeLimit, goalProxy)
	s.memory(in, ours.kib, theirs.kib)
	if s.apart || !ours.loaded() {
		return
	}
	const noise = "noise: straight to straight again, "
	p50, p99 := func(t []time.Duration) time.Duration { return median(slices.Clone(t)) }, func(t []time.Duration) time.Duration { return percentile99(slices.Clone(t)) }
	for _, clock := range []struct {
		name string
		of   func(*balanced) [][]time.Duration
	}{
		{"a connection's first packet until its answer, by the kernel's clock, ", func(b *balanced) [][]time.Duration { return b.exchanges }},
		{"a program's connect(), ", func(b *balanced) [][]time.Duration { return b.connects }},
	} {
		s.turns(in+clock.name+"p50", of(clock.of(ours), p50), of(clock.of(theirs), p50), goalProxy)
		s.turns(in+clock.name+"p99", of(clock.of(ours), p99), of(clock.of(theirs), p99), goalProxy)
		s.turns(in+clock.name+"p50, to straight", of(clock.of(ours), p50), of(clock.of(straight), p50), 0)
		s.turns(in+clock.name+"p99, to straight", of(clock.of(ours), p99), of(clock.of(straight), p99), 0)
		s.turns(in+noise+clock.name+"p99", of(clock.of(straight), p99), of(clock.of(again), p99), 0)
	}
	s.rate(in+"connections a second", "%.0f", 1, ours.rates, theirs.rates, goalProxy)
	s.rate(in+"connections a second, to straight", "%.0f", 1, ours.rates, straight.rates, 0)
	s.rate(in+noise+"connections a second", "%.0f", 1, straight.rates, again.rates, 0)
	s.rate(in+"throughput by a VIP", "%.1f Gbit/s", gigabit, ours.streams, theirs.streams, goalProxy)
	s.rate(in+"throughput by a VIP, to straight", "%.1f Gbit/s", gigabit, ours.streams, straight.streams, goalVIP)
	s.rate(in+noise+"throughput", "%.1f Gbit/s", gigabit, straight.streams, again.streams, 0)
}

// reached compares medians. One who has no sample has taken longer than the limit, which then bounds the ratio; or, where there is none, has not come to it.
func (s *servicesBench) reached(name string, ours, reference []time.Duration, limit time.Duration, goal float64) {
	if len(ours) > 0 && len(reference) > 0 {
		s.add(name, ours, reference, goal)
		return
	}
	tell := func(samples []time.Duration) (time.Duration, string) {
		switch {
		case len(samples) > 0:
			m := median(samples)
			return m, m.Round(10 * time.Microsecond).String()
		case limit > 0:
			return limit, "more than " + limit.String()
		}
		return 0, notReached
	}
	o, ourText := tell(ours)
	r, text := tell(reference)
	to := row{name: name, ours: ourText, reference: text, ratio: math.NaN()}
	if o > 0 && r > 0 && len(ours)+len(reference) > 0 {
		to.ratio, to.goal = float64(o)/float64(r), goal
	}
	s.rows = append(s.rows, to)
}

// notReached stands where a figure would, of one who was late with what comes before.
const notReached = "not reached"

// mean is one sample: ticks of the clock are too few for each.
func mean(samples []time.Duration) []time.Duration {
	if len(samples) == 0 {
		return nil
	}
	sum := time.Duration(0)
	for _, d := range samples {
		sum += d
	}
	return []time.Duration{sum / time.Duration(len(samples))}
}

// memory adds a row of what our daemons have together, and before it one of each where there are several; the goal is of all.
func (s *servicesBench) memory(in string, ours, theirs []float64) {
	add := func(of string, kib []float64, goal float64) {
		s.rows = append(s.rows, compared(in+"memory of "+of, "%.0f MiB", 1024, kib, theirs, goal))
	}
	if len(ours) <= 1 {
		add("the daemon", ours, goalProxy)
		return
	}
	sum := 0.0
	for i, kib := range ours {
		sum += kib
		add(s.ours.programs[i].name, []float64{kib}, 0)
	}
	add("the daemons together", []float64{sum}, goalProxy)
}

// turns compares what was taken in turns: the figures are medians, the ratio is that of the same turns.
func (s *servicesBench) turns(name string, ours, reference []time.Duration, goal float64) {
	to := row{name: name, ours: median(slices.Clone(ours)).Round(100 * time.Nanosecond).String(), reference: notReached, ratio: math.NaN()}
	if len(reference) > 0 {
		to.ratio, to.goal = ratio(ours, reference), goal
		to.reference = median(slices.Clone(reference)).Round(100 * time.Nanosecond).String()
	}
	s.rows = append(s.rows, to)
}

// rate compares what was taken in turns and is the better the more it is.
func (s *servicesBench) rate(name, format string, unit float64, ours, reference []float64, goal float64) {
	to := compared(name, format, unit, ours, reference, goal)
	to.atLeast = true
	s.rows = append(s.rows, to)
}

func compared(name, format string, unit float64, ours, reference []float64, goal float64) row {
	text := func(samples []float64) string {
		if len(samples) == 0 {
			return notReached
		}
		return fmt.Sprintf(format, median(slices.Clone(samples))/unit)
	}
	to := row{name: name, ours: text(ours), reference: text(reference), ratio: math.NaN()}
	if len(ours) > 0 && len(reference) > 0 {
		to.ratio, to.goal = ratio(ours, reference), goal
	}
	return to
}
