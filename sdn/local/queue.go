package local

import (
	"context"
	"slices"
	"sync"

	"github.com/kuryr/kuryr/datapath/router"
	"github.com/kuryr/kuryr/sdn"
)

// queue brings changes to the kernel in the order of the store, domain by domain, and remembers what did not get through.
type queue struct {
	mu        sync.Mutex
	tails     map[string]*ticket            // the last ticket of a domain
	barrier   *ticket                       // a ticket of all domains, that those without a tail wait for
	dirty     map[string]*change            // what failed, by domain
	working   map[string]*ticket            // who is changing a domain's shape
	flying    map[string]int                // ports in tickets that are not done
	unreached map[string][]router.Unreached // by domain
	failed    chan struct{}                 // has an element when something became dirty
	news      chan struct{}                 // closed when a port's status may have changed
}

func newQueue() *queue {
	return &queue{
		tails: map[string]*ticket{}, dirty: map[string]*change{}, working: map[string]*ticket{}, flying: map[string]int{}, unreached: map[string][]router.Unreached{},
		failed: make(chan struct{}, 1), news: make(chan struct{}),
	}
}

// ticket is the right to work on some domains once those who had it before are done.
type ticket struct {
	queue   *queue
	all     bool
	changes map[string]*change
	before  []*ticket
	done    chan struct{}
	shared  *shared // nil: it is one caller's
}

// draw makes a ticket for the domains of changes.
func (q *queue) draw(changes map[string]*change) *ticket {
	q.mu.Lock()
	defer q.mu.Unlock()
	tk := &ticket{queue: q, changes: changes, done: make(chan struct{})}
	waits := map[*ticket]bool{}
	for domain, c := range changes {
		before := q.tails[domain]
		if before == nil {
			before = q.barrier
		}
		if before != nil && !waits[before] {
			waits[before] = true
			tk.before = append(tk.before, before)
		}
		q.tails[domain] = tk
		for port := range c.ports {
			q.flying[port]++
		}
	}
	return tk
}

// drawAll makes a ticket for every domain there is or will be.
func (q *queue) drawAll() *ticket {
	q.mu.Lock()
	defer q.mu.Unlock()
	tk := &ticket{queue: q, all: true, done: make(chan struct{})}
	if q.barrier != nil {
		tk.before = append(tk.before, q.barrier)
	}
	for _, t := range q.tails {
		tk.before = append(tk.before, t)
	}
	q.tails, q.barrier = map[string]*ticket{}, tk
	return tk
}

// turn waits until it is the ticket's turn.
func (tk *ticket) turn(ctx context.Context) error {
	for _, t := range tk.before {
		select {
		case <-t.done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// finish passes the turn on, keeping what failed.
func (tk *ticket) finish(failed map[string]*change) {
	q := tk.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	for domain, c := range tk.changes {
		for port := range c.ports {
			if q.flying[port]--; q.flying[port] == 0 {
				delete(q.flying, port)
			}
		}
		if q.tails[domain] == tk {
			delete(q.tails, domain)
		}
		if q.working[domain] == tk {
			delete(q.working, domain)
		}
	}
	if tk.all && q.barrier == tk {
		q.barrier = nil
	}
	for domain, c := range failed {
		q.dirty[domain] = c
	}
	if len(failed) > 0 {
		select {
		case q.failed <- struct{}{}:
		default:
		}
	}
	tk.before = nil
	close(tk.done)
	close(q.news)
	q.news = make(chan struct{})
}

// cancel is finish for a change that was not made.
func (tk *ticket) cancel() {
	waiting := tk.before
	go func() {
		for _, t := range waiting {
			<-t.done
		}
		tk.finish(nil)
	}()
}

// announce wakes who waits for ports.
func (q *queue) announce() {
	q.mu.Lock()
	defer q.mu.Unlock()
	close(q.news)
	q.news = make(chan struct{})
}

// takeAll gives, in the order in which they are to be done, the changes that a ticket's domains need: its own after what failed before.
// From here to finish they are in work.
func (q *queue) takeAll(tk *ticket) []*change {
	q.mu.Lock()
	defer q.mu.Unlock()
	var list []*change
	for _, c := range tk.changes {
		earlier := q.dirty[c.domain]
		if earlier == nil {
			earlier = &change{domain: c.domain} // so that c itself is left as it is
		}
		list = append(list, earlier.then(c))
		delete(q.dirty, c.domain)
	}
	slices.SortFunc(list, makeBeforeBreak)
	for i, c := range list {
		if c.reshapes() {
			q.working[c.domain] = tk
			c.waitFor(list[:i])
		}
	}
	followNetworks(list)
	return list
}

// mayReshape tells whether the domains that a change waits for are as they should be. failed is what did not succeed of the same ticket.
func (q *queue) mayReshape(c *change, failed map[string]*change) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	for domain := range c.behind {
		dirty, worker := q.dirty[domain], q.working[domain]
		if failed[domain] != nil || dirty != nil && dirty.reshapes() || worker != nil && worker != q.working[c.domain] {
			return false
		}
	}
	return true
}

// clean tells whether nothing failed in a domain that is not mended.
func (q *queue) clean(domain sdn.ID) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.dirty[string(domain)] == nil
}

// settled tells whether the kernel has what the store says of a port.
func (q *queue) settled(domain, port sdn.ID) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.flying[string(port)] > 0 {
		return false
	}
	c := q.dirty[string(domain)]
	return c == nil || c.ports[string(port)] == nil
}
