//go:build linux

package trace

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	mnetlink "github.com/mdlayher/netlink"
	vns "github.com/vishvananda/netns"
)

// Site is a namespace that the packet may come through.
type Site struct {
	Name string // for people: "container web", "host"
	NS   vns.NsHandle
	// Tap is the device of the container that calls, in the namespace where its frames come
	// first; "" elsewhere.
	Tap string
}

// Options are what Run needs beside the flow.
type Options struct {
	Sites []Site        // the first is where the probe is sent
	To    int           // the site that is called; -1: none of them, as where the packet leaves the machine
	Wait  time.Duration // for an answer, in all
}

// afterTime bounds the wait for what belongs to an event that ended the matter.
const afterTime = 100 * time.Millisecond

// Run sends the flow's packet and tells what became of it. What stands in the way is in
// the Result; an error means that it could not be looked at.
func Run(ctx context.Context, f Flow, o Options) (Result, error) {
	s, err := newSender(o.Sites[0].NS, f)
	if err != nil {
		return Result{}, err
	}
	defer s.close()
	r := &run{
		probe: s.probe, Options: o, events: make(chan any, 64), done: make(chan struct{}),
		called: make([]map[ends]bool, len(o.Sites)), replies: map[traced]bool{},
		resolving: map[traced]string{}, between: map[traced][2]uint32{},
	}
	defer r.close()
	if err := r.open(); err != nil {
		return Result{}, err
	}
	failed := s.send()
	if failed == nil {
		err = r.collect(ctx)
	}
	return r.result(failed), err
}

// traced is a packet by nftables' number in a namespace.
type traced struct {
	site int
	id   uint32
}

// run is one Run.
type run struct {
	probe
	Options
	events  chan any
	done    chan struct{}
	closers []func() error

	devices   []map[int]device     // by site and index
	called    []map[ends]bool      // with what ends the probe was seen, by site
	replies   map[traced]bool      // packets that answer
	resolving map[traced]string    // packets that look for a neighbour
	between   map[traced][2]uint32 // the devices by which packets came and will go
	seen      []seen
	steps     []step
}

// seen is a sighting that is about the probe.
type seen struct {
	sighting
	kind kind
	text string
}

func (r *run) open() (err error) {
	if r.devices, err = devices(r.Sites); err != nil {
		return err
	}
	for i, site := range r.Sites {
		r.called[i] = map[ends]bool{}
		if _, err := Sweep(site.NS); err != nil {
			return fmt.Errorf("%s: %w", site.Name, err)
		}
		if err := r.openSite(i, site); err != nil {
			return fmt.Errorf("%s: %w", site.Name, err)
		}
	}
	return nil
}

func (r *run) openSite(i int, site Site) error {
	c, err := openCapture(site.NS, r.probe)
	if err != nil {
		return err
	}
	r.start(c.close, func() error { return c.run(i, func(s sighting) { r.tell(s) }) })
	l, err := openListener(site.NS)
	if err != nil {
		return err
	}
	r.start(l.close, func() error { return l.run(i, func(s step) { r.tell(s) }) })
	m, err := setMarks(site.NS, r.probe, site.Tap)
	if err != nil {
		return err
	}
	r.closers = append(r.closers, m.close)
	return nil
}

// start runs what ends when its socket is closed.
func (r *run) start(closer func() error, read func() error) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		// A full buffer loses messages; what came before is worth telling.
		if err := read(); err != nil && !errors.Is(err, os.ErrClosed) && !errors.Is(err, net.ErrClosed) {
			r.tell(err)
		}
	}()
	r.closers = append(r.closers, func() error {
		err := closer()
		<-ended
		return err
	})
}

func (r *run) tell(event any) {
	select {
	case r.events <- event:
	case <-r.done:
	}
}

func (r *run) close() {
	close(r.done)
	for _, c := range r.closers {
		_ = c()
	}
}

// collect takes what comes until the matter is clear, or the time is over.
func (r *run) collect(ctx context.Context) error {
	end := time.NewTimer(r.Wait)
	defer end.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-end.C:
			return nil
		case event := <-r.events:
			var over bool
			switch e := event.(type) {
			case sighting:
				over = r.sight(e)
			case step:
				over = r.step(e)
			case error:
				var lost *mnetlink.OpError
				if !errors.As(e, &lost) {
					return fmt.Errorf("look at the packet: %w", e)
				}
			}
			if over {
				end.Reset(afterTime)
			}
		}
	}
}

// sight keeps what is about the probe and reports whether that ends the matter.
func (r *run) sight(s sighting) bool {
	k, text := r.classify(s.packet, r.called[s.site])
	if k == nothing {
		return false
	}
	if k == request {
		r.called[s.site][s.ends()] = true
	}
	r.seen = append(r.seen, seen{s, k, text})
	return s.site == 0 && !s.out && k != request
}

// step keeps a step of a packet that is about the probe, and reports whether it ends the
// matter. A packet's headers come with its first.
func (r *run) step(s step) bool {
	id := traced{s.site, s.id}
	if s.iif == 0 && s.oif == 0 { // told with the first step of a chain only
		s.iif, s.oif = r.between[id][0], r.between[id][1]
	}
	r.between[id] = [2]uint32{s.iif, s.oif}
	if p, ok := s.packet(); ok {
		flags := byte(0)
		if len(p.transport) > 13 {
			flags = p.transport[13]
		}
		switch r.Protocol {
		case protocolTCP:
			r.replies[id] = flags&tcpACK != 0
		case protocolUDP:
			_, dst, ok := p.ports()
			r.replies[id] = ok && dst == r.source
		default:
			r.replies[id] = len(p.transport) > 0 && (p.transport[0] == 0 || p.transport[0] == 129)
		}
	}
	if text, ok := s.resolves(); ok {
		r.resolving[id] = text
	}
	if len(r.steps) < maxSteps {
		r.steps = append(r.steps, s)
	}
	return s.verdict == verdictDrop && r.resolving[id] == ""
}

// maxSteps bounds what is kept of a ruleset of any length.
const maxSteps = 10_000
