//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kuryr/kuryr/test/e2e/neutronlab"
	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

// What was published of the Python kuryr-libnetwork: calls of Neutron and its own CPU for a container's start and stop,
// and its memory.
const (
	peerCalls  = 22
	peerCPU    = 146 * time.Millisecond
	peerMemory = 97 // MiB
)

// Goals: of calls for a start and a stop together, of Kuryr's own time in a start, and of memory in MiB.
const (
	goalCalls  = 5 + 3
	goalOwn    = 10 * time.Millisecond
	goalMemory = 40
)

// clockTick is the unit of processes' times in /proc, the same on all of Linux' machines of today.
const clockTick = 10 * time.Millisecond

// neutron measures Kuryr on a real Neutron, in a lab with OVN, through a proxy that counts: Neutron itself takes most of
// every start, so what is told is what Kuryr adds to it.
func neutron(ctx context.Context, b *bench) (err error) {
	l, err := neutronlab.New(ctx, neutronlab.Options{Hosts: 1, Docker: true, Kuryr: b.kuryr})
	if err != nil {
		return err
	}
	defer l.Close()
	counter, err := l.NewCounter(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, counter.Close()) }()
	h := l.Hosts[0]
	if err := h.StartKuryr(ctx, "KURYR_NEUTRON_ENDPOINT="+counter.Endpoint); err != nil {
		return err
	}
	if err := b.addMemory("on Neutron: memory at rest", h.KuryrPid(), goalMemory); err != nil {
		return err
	}
	for _, args := range [][]string{
		{"network", "create", "-d", "kuryr", "--ipam-driver", "kuryr", "--subnet", "10.90.0.0/16", "--gateway", "10.90.0.1", "ours"},
		{"create", "--name", "box", "--network", "ours", "--stop-timeout", "1", "busybox", "sleep", "1000"},
		{"start", "box"}, {"kill", "box"}, // the first of everything
	} {
		if r := h.Docker(ctx, args...); !r.OK() {
			return errors.New(r.String())
		}
	}
	counter.Take()
	before, err := cpuTime(h.KuryrPid())
	if err != nil {
		return err
	}
	calls := 0
	var dearest []string // the calls of the round that had most
	var own, starts, away []time.Duration
	for range b.rounds {
		in, err := inKuryr(ctx, h.Host)
		if err != nil {
			return err
		}
		took, err := timed(ctx, h.Host, "start", "box")
		if err != nil {
			return err
		}
		started, waited := counter.Take()
		out, err := inKuryr(ctx, h.Host)
		if err != nil {
			return err
		}
		own, starts, away = append(own, max(out-in-waited, 0)), append(starts, took), append(away, waited)
		if _, err := timed(ctx, h.Host, "kill", "box"); err != nil {
			return err
		}
		if r := h.Docker(ctx, "wait", "box"); !r.OK() {
			return errors.New(r.String())
		}
		stopped, _ := counter.Take()
		calls += len(started) + len(stopped)
		if round := slices.Concat(started, []string{"(started)"}, stopped); len(round) > len(dearest) {
			dearest = round
		}
	}
	fmt.Fprintf(os.Stderr, " the dearest round was\n  %s\n", strings.Join(dearest, "\n  "))
	after, err := cpuTime(h.KuryrPid())
	if err != nil {
		return err
	}
	each := float64(calls) / float64(b.rounds)
	cpu := (after - before) / time.Duration(b.rounds)
	b.rows = append(b.rows,
		row{name: "on Neutron: its calls, start and stop", ours: fmt.Sprintf("%.1f", each), reference: fmt.Sprintf("peer %d", peerCalls),
			ratio: each / peerCalls, goal: float64(goalCalls) / peerCalls},
		row{name: "on Neutron: Kuryr's CPU, start and stop", ours: cpu.String(), reference: "peer " + peerCPU.String(), ratio: float64(cpu) / float64(peerCPU)})
	b.add("on Neutron: Kuryr's own time in a start, to the goal", own, []time.Duration{goalOwn}, 1)
	b.add("on Neutron: Kuryr's own time in a start, to Neutron's", own, away, 0)
	b.add("on Neutron: Kuryr's own time in a start, to docker start", own, starts, 0)
	if err := b.addMemory("on Neutron: memory after that", h.KuryrPid(), goalMemory); err != nil {
		return err
	}
	return b.addMemory("on Neutron: memory after that, to the peer's", h.KuryrPid(), peerMemory)
}

// inKuryr is the time that Docker's calls have spent in Kuryr so far.
func inKuryr(ctx context.Context, h *privatehost.Host) (sum time.Duration, err error) {
	all, err := spent(ctx, h)
	for _, s := range all {
		sum += s.took
	}
	return sum, err
}

// cpuTime is what a process has had of the processors.
func cpuTime(pid int) (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// After the name, which may hold anything but ends with the last parenthesis: state is field 3, utime 14, stime 15.
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	var sum time.Duration
	for _, f := range fields[11:13] {
		ticks, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, err
		}
		sum += time.Duration(ticks) * clockTick
	}
	return sum, nil
}
