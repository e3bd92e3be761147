//go:build linux

package main

import (
	"fmt"
	"slices"
	"time"
)

const gigabit = 1e9 / 8

// tell adds the rows of one size.
func (s *servicesBench) tell(size int, ours, theirs, straight *balanced) {
	in := fmt.Sprintf("%s%d Services: ", s.prefix, size)
	one := func(d time.Duration) []time.Duration { return []time.Duration{d} }
	if theirs.late {
		s.rows = append(s.rows, row{name: in + "the daemon's start until all answer", ours: median(ours.load).Round(time.Millisecond).String(), reference: "more than " + loadLimit.String(),
			ratio: float64(median(ours.load)) / float64(loadLimit), goal: goalProxy})
	} else {
		s.add(in+"the daemon's start until all answer", ours.load, theirs.load, goalProxy)
		s.add(in+"CPU of that", ours.loadCPU, theirs.loadCPU, goalProxy)
		s.add(in+"CPU of that in the kernel", ours.loadKernel, theirs.loadKernel, goalProxy)
	}
	s.add(in+"CPU of that in the kernel, to the goal", ours.loadKernel, one(goalKernelLoad), 1)
	s.add(in+"one more, what is after the API server's answer, to the goal", ours.told, one(goalOneMore), 1)
	if s.oneMore == 0 {
		s.oneMore = median(ours.more)
	} else {
		s.add(in+"one more, from its creation, to that of the least number measured", ours.more, one(s.oneMore), 0)
	}
	if !theirs.late {
		s.add(in+"one more, from its creation until the kernel has it", ours.more, theirs.more, goalProxy)
		s.add(in+"what of that is after the API server's answer", ours.told, theirs.told, goalProxy)
		s.add(in+"CPU of one more", one(ours.moreCPU), one(theirs.moreCPU), goalProxy)
		s.micros(in+"any of these changes, the telling of the kernel by the daemon's own metrics", ours.transaction, theirs.transaction, goalProxy)
		s.add(in+"one endpoint changed, until the kernel has it", ours.changed, theirs.changed, goalProxy)
		s.memory(in, ours.kib, theirs.kib[0])
	}
	if s.apart {
		return
	}
	if !theirs.late {
		s.micros(in+"a connection's first packet and answer, p50", p50(ours.connects), p50(theirs.connects), goalProxy)
		s.micros(in+"the same, p99, the median of turns", p99(ours.connects), p99(theirs.connects), goalProxy)
		s.rate(in+"connections a second", "%.0f", 1, ours.rates, theirs.rates, goalProxy)
		s.rate(in+"throughput by a VIP", "%.1f Gbit/s", gigabit, ours.streams, theirs.streams, goalProxy)
	}
	s.micros(in+"first packet, p50, to straight", p50(ours.connects), p50(straight.connects), 0)
	s.micros(in+"first packet, p99, to straight", p99(ours.connects), p99(straight.connects), 0)
	s.micros(in+"noise: straight in odd turns to straight in even turns, p99", p99(half(straight.connects, 1)), p99(half(straight.connects, 0)), 0)
	s.rate(in+"connections a second, to straight", "%.0f", 1, ours.rates, straight.rates, 0)
	s.rate(in+"throughput by a VIP, to straight", "%.1f Gbit/s", gigabit, ours.streams, straight.streams, goalVIP)
	s.rate(in+"noise: straight in odd turns to straight in even turns, throughput", "%.1f Gbit/s", gigabit, half(straight.streams, 1), half(straight.streams, 0), 0)
}

// memory adds a row of what our daemons have together, and before it one of each where there are several; the goal is of all.
func (s *servicesBench) memory(in string, ours []float64, theirs float64) {
	add := func(of string, kib, goal float64) {
		s.rows = append(s.rows, row{name: in + "memory of " + of, ours: fmt.Sprintf("%.0f MiB", kib/1024), reference: fmt.Sprintf("%.0f MiB", theirs/1024), ratio: kib / theirs, goal: goal})
	}
	sum, all := 0.0, "the daemon"
	for i, kib := range ours {
		sum += kib
		if len(ours) > 1 {
			add(s.ours.programs[i].name, kib, 0)
			all = "the daemons together"
		}
	}
	add(all, sum, goalProxy)
}

// p50 is of all samples of all turns, p99 the median of the turns' own: one turn that is disturbed is one.
func p50(turns [][]time.Duration) time.Duration { return median(slices.Concat(turns...)) }

func p99(turns [][]time.Duration) time.Duration {
	var each []time.Duration
	for _, t := range turns {
		each = append(each, percentile99(slices.Clone(t)))
	}
	return median(each)
}

// half is every second turn, from the first or the second on.
func half[T any](turns []T, from int) (some []T) {
	for i := from; i < len(turns); i += 2 {
		some = append(some, turns[i])
	}
	return some
}

func (s *servicesBench) micros(name string, ours, reference time.Duration, goal float64) {
	s.rows = append(s.rows, row{name: name, ours: ours.Round(100 * time.Nanosecond).String(), reference: reference.Round(100 * time.Nanosecond).String(), ratio: float64(ours) / float64(reference), goal: goal})
}

// rate compares medians of what is the better the more it is.
func (s *servicesBench) rate(name, format string, unit float64, ours, reference []float64, goal float64) {
	o, r := median(slices.Clone(ours)), median(slices.Clone(reference)) // in the order of turns
	s.rows = append(s.rows, row{name: name, ours: fmt.Sprintf(format, o/unit), reference: fmt.Sprintf(format, r/unit), ratio: o / r, goal: goal, atLeast: true})
}
