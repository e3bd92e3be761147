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
	one := func(d time.Duration) figure { return figure{[]time.Duration{d}, 0} }
	s.reached(in+"the daemon's start until all answer", figure{ours.load, ours.lateLoad}, figure{theirs.load, theirs.lateLoad}, goalProxy)
	s.reached(in+"CPU of that", figure{ours.loadCPU, 0}, figure{theirs.loadCPU, 0}, goalProxy)
	s.reached(in+"CPU of that in the kernel", figure{ours.loadKernel, 0}, figure{theirs.loadKernel, 0}, goalProxy)
	s.reached(in+"CPU of that in the kernel, to the goal", figure{ours.loadKernel, 0}, one(goalKernelLoad), 1)
	s.reached(in+"one more, what is after the API server's answer, to the goal", figure{ours.told, 0}, one(goalOneMore), 1)
	if s.oneMore != 0 {
		s.reached(in+"one more, from its creation, to that of the least number measured", figure{ours.more, ours.lateMore}, one(s.oneMore), 0)
	} else if len(ours.more) > 0 {
		s.oneMore = median(ours.more)
	}
	s.reached(in+"one more, from its creation until the kernel has it", figure{ours.more, ours.lateMore}, figure{theirs.more, theirs.lateMore}, goalProxy)
	s.reached(in+"what of that is after the API server's answer", figure{ours.told, 0}, figure{theirs.told, 0}, goalProxy)
	s.reached(in+"CPU of one more", figure{mean(ours.moreCPU), 0}, figure{mean(theirs.moreCPU), 0}, goalProxy)
	s.reached(in+"any of these changes, the telling of the kernel by the daemon's own metrics", figure{ours.transaction, 0}, figure{theirs.transaction, 0}, goalProxy)
	s.reached(in+"one endpoint changed, until the kernel has it", figure{ours.changed, ours.lateChanged}, figure{theirs.changed, theirs.lateChanged}, goalProxy)
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

// figure is the median of samples. Where there is none it is more than what was given for it, if it was begun.
type figure struct {
	samples []time.Duration
	late    time.Duration
}

func (f figure) tell() (value time.Duration, text string) {
	switch {
	case len(f.samples) > 0:
		value = median(f.samples)
		return value, value.Round(10 * time.Microsecond).String()
	case f.late > 0:
		return f.late, "more than " + f.late.String()
	}
	return 0, notReached
}

// notReached stands where a figure would, of one who was late with what comes before.
const notReached = "not reached"

// reached compares figures. The ratio to one that is a bound is a bound itself; two bounds have none.
func (s *servicesBench) reached(name string, ours, reference figure, goal float64) {
	o, ourText := ours.tell()
	r, text := reference.tell()
	to := row{name: name, ours: ourText, reference: text, ratio: math.NaN()}
	if ourText != notReached && text != notReached && len(ours.samples)+len(reference.samples) > 0 {
		to.ratio, to.goal = float64(o)/float64(r), goal
	}
	s.rows = append(s.rows, to)
}

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
