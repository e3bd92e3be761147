//go:build linux

package router

import (
	"context"
	"fmt"
)

// run is one pass of comparing and mending. A dry one only writes down what it would mend.
type run struct {
	ctx    context.Context
	dry    bool
	router string
	diffs  []Difference
	// hostAddrs, in a pass over everything, holds the host's addresses by link index, so
	// that they are read once.
	hostAddrs map[int][]string
	// hostLoopbacks, in such a pass, tells which of the host's links have a route of ours to ::1.
	hostLoopbacks map[int]bool
}

// mend notes that object differs and, unless the run is dry, calls fix.
func (r *run) mend(object, want, have string, fix func() error) error {
	if err := r.ctx.Err(); err != nil {
		return err
	}
	r.diffs = append(r.diffs, Difference{Router: r.router, Object: object, Want: want, Have: have})
	if r.dry {
		return nil
	}
	if err := fix(); err != nil {
		return fmt.Errorf("%s: %w", object, err)
	}
	return nil
}

// in returns a run whose differences are noted for another router; the caller takes them
// over with join.
func (r *run) in(router string) *run {
	return &run{ctx: r.ctx, dry: r.dry, router: router, hostAddrs: r.hostAddrs, hostLoopbacks: r.hostLoopbacks}
}

func (r *run) join(other *run) { r.diffs = append(r.diffs, other.diffs...) }
