// Package pool decides how many ports a pool is to have: when it is filled up and by how much, and which ports go when they are not needed.
//
// It is pure: a [View] of a pool at one moment goes in, a [Decision] comes out. It owns the rules and nothing else; it must not ask, change or remember anything, so that
// whoever starts anew decides the same.
//
// # Rules
//
// Fewer than Minimum available, and a batch is made. A pod that waits counts as if it had its port already. Where pods wait on a pool that has nothing for them,
// one port is made by itself first, as one comes sooner than many. Nothing goes beyond Maximum, nor beyond what the cap on all pools leaves. A port above Minimum that
// nobody has claimed for TTL goes, the one that was idle longest first; those above Maximum go at once.
package pool

import (
	"cmp"
	"slices"
	"time"
)

// Policy is how a pool is kept.
type Policy struct {
	Minimum int           // available ports to keep
	Maximum int           // ports in all, bound ones too; 0 is no limit
	Batch   int           // made at once; at least 1
	TTL     time.Duration // how long an available port above Minimum is kept; 0 is for ever
}

// State is where a port is.
type State int

// The states of ports.
const (
	Available State = iota // may be claimed
	Bound                  // is a pod's
	Leaving                // is being given up, and still counts in the SDN
)

// Port is one port of a pool.
type Port struct {
	ID    string
	State State
	Idle  time.Time // since when it has been available
}

// View is a pool at one moment.
type View struct {
	Policy
	Ports   []Port
	Pending int // being made, for no pod in particular
	Waiting int // pods without a port that are to get one of this pool
	Room    int // how many more ports the cap on all pools allows; less than 0 is any number
	// Drained has the pool keep nothing available: what pods wait for alone is made, one by one, and what none waits for goes at once.
	Drained bool
	// Unused says that no pod of the pool is on its node: what is available goes after TTL, down to nothing.
	Unused bool
	Now    time.Time
}

// Limit says what kept a decision from making as many ports as are needed.
type Limit string

// The limits.
const (
	NoLimit   Limit = ""
	AtMaximum Limit = "maximum" // the pool's own
	AtCap     Limit = "cap"     // that on all pools
)

// Decision is what is to be done with a pool.
type Decision struct {
	// Make are the numbers of ports to make, in calls one after another.
	Make []int
	// Delete are the ids of available ports that are to go.
	Delete []string
	// Limit is set where less is made than is needed.
	Limit Limit
	// Again is when a port's time ends, if nothing changes before; the zero time is never.
	Again time.Time
}

// Made is the number of ports to make in all.
func (d Decision) Made() int {
	n := 0
	for _, call := range d.Make {
		n += call
	}
	return n
}

// Decide says what is to be done with a pool.
func Decide(v View) Decision {
	p := v.Policy
	p.Batch = max(p.Batch, 1)
	if v.Drained {
		p.Minimum, p.Batch = 0, 1
	}
	if v.Unused && p.TTL > 0 {
		p.Minimum = 0
	}
	idle := idleFirst(v.Ports)
	free := len(idle) + max(v.Pending, 0)
	keep := p.Minimum + max(v.Waiting, 0)
	if need := keep - free; need > 0 {
		return fill(v, p, need, free)
	}
	return shrink(v, p, idle, free-keep)
}

// fill makes a batch, or more where more is needed, as far as it may.
func fill(v View, p Policy, need, free int) Decision {
	d := Decision{}
	n, limit := max(need, p.Batch), NoLimit
	if p.Maximum > 0 {
		if left := max(p.Maximum-len(v.Ports)-v.Pending, 0); left < n {
			n, limit = left, AtMaximum
		}
	}
	if v.Room >= 0 && v.Room < n {
		n, limit = v.Room, AtCap
	}
	if n < need {
		d.Limit = limit
	}
	if v.Waiting > 0 && free == 0 && n > 1 {
		d.Make = append(d.Make, 1)
		n--
	}
	if n > 0 {
		d.Make = append(d.Make, n)
	}
	return d
}

// shrink lets go of some of the spare ports that nobody needs.
func shrink(v View, p Policy, idle []Port, spare int) Decision {
	d := Decision{}
	above := 0
	if p.Maximum > 0 {
		leaving := 0
		for _, port := range v.Ports {
			if port.State == Leaving {
				leaving++
			}
		}
		above = max(len(v.Ports)+v.Pending-leaving-p.Maximum, 0)
	}
	for i, port := range idle[:min(max(spare, 0), len(idle))] {
		end := port.Idle.Add(p.TTL)
		switch {
		case i < above, v.Drained, p.TTL > 0 && !end.After(v.Now):
			d.Delete = append(d.Delete, port.ID)
		case p.TTL > 0:
			d.Again = end
			return d
		}
	}
	return d
}

// idleFirst are the available ports, the one that has been so longest first.
func idleFirst(ports []Port) []Port {
	var idle []Port
	for _, p := range ports {
		if p.State == Available {
			idle = append(idle, p)
		}
	}
	slices.SortFunc(idle, func(a, b Port) int { return cmp.Or(a.Idle.Compare(b.Idle), cmp.Compare(a.ID, b.ID)) })
	return idle
}
