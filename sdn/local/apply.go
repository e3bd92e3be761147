package local

import (
	"context"
	"errors"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/kuryr/kuryr/datapath/fabric"
	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/kuryr/kuryr/sdn"
)

// change is what the kernel must learn about one domain: that it is gone, or else its shape, its forwards and its ports, in this
// order.
type change struct {
	domain   string
	gone     bool           // edits are kept all the same, for a domain that comes back before it went
	shape    *fabric.Domain // nil: unchanged
	ports    map[string]*edit[fabric.Port]
	forwards map[forwardID]*edit[fabric.Forward]
}

// edit replaces an element by another. Several may be there to remove when earlier edits did not get through.
type edit[T any] struct {
	remove []T
	add    *T
}

// forwardID is what tells a domain's forwards apart.
type forwardID struct {
	address  string
	protocol uint8
	port     uint16
}

func identify(f *fabric.Forward) forwardID { return forwardID{f.Address.String(), f.Protocol, f.Port} }

func (c *change) port(old, new *fabric.Port) {
	id := ""
	if old != nil {
		id = old.ID
	} else {
		id = new.ID
	}
	if c.ports == nil {
		c.ports = map[string]*edit[fabric.Port]{}
	}
	c.ports[id] = c.ports[id].then(old, new)
}

func (c *change) forward(old, new *fabric.Forward) {
	f := old
	if f == nil {
		f = new
	}
	if c.forwards == nil {
		c.forwards = map[forwardID]*edit[fabric.Forward]{}
	}
	c.forwards[identify(f)] = c.forwards[identify(f)].then(old, new)
}

// then is e followed by the replacement of old by new, where e may be nil, or may have failed halfway: what it was to add is removed too,
// unless it is what is to be there in the end.
func (e *edit[T]) then(old, new *T) *edit[T] {
	next := &edit[T]{add: new}
	remove := func(v T) {
		same := func(w T) bool { return reflect.DeepEqual(v, w) }
		if (new == nil || !same(*new)) && !slices.ContainsFunc(next.remove, same) {
			next.remove = append(next.remove, v)
		}
	}
	if e != nil {
		for _, v := range e.remove {
			remove(v)
		}
		if e.add != nil {
			remove(*e.add)
		}
	}
	if old != nil {
		remove(*old)
	}
	return next
}

func (e *edit[T]) thenEdit(later *edit[T]) *edit[T] {
	if later == nil {
		return e
	}
	next := e
	for i := range later.remove {
		next = next.then(&later.remove[i], nil)
	}
	return next.then(nil, later.add)
}

// then is c followed by later, where c may have failed halfway.
func (c *change) then(later *change) *change {
	if c == nil {
		return later
	}
	next := &change{domain: c.domain, gone: c.gone, shape: c.shape, ports: maps.Clone(c.ports), forwards: maps.Clone(c.forwards)}
	switch {
	case later.gone:
		next.gone, next.shape = true, nil
	case later.shape != nil:
		next.gone, next.shape = false, later.shape
	}
	for id, e := range later.ports {
		if next.ports == nil {
			next.ports = map[string]*edit[fabric.Port]{}
		}
		next.ports[id] = next.ports[id].thenEdit(e)
	}
	for id, e := range later.forwards {
		if next.forwards == nil {
			next.forwards = map[forwardID]*edit[fabric.Forward]{}
		}
		next.forwards[id] = next.forwards[id].thenEdit(e)
	}
	return next
}

func lists[K comparable, T any](edits map[K]*edit[T]) (remove, add []T) {
	for _, e := range edits {
		remove = append(remove, e.remove...)
		if e.add != nil {
			add = append(add, *e.add)
		}
	}
	return remove, add
}

// queue brings changes to the kernel in the order of the store, domain by domain, and remembers what did not get through.
type queue struct {
	mu        sync.Mutex
	tails     map[string]*ticket            // the last ticket of a domain
	barrier   *ticket                       // a ticket of all domains, that those without a tail wait for
	dirty     map[string]*change            // what failed, by domain
	flying    map[string]int                // ports in tickets that are not done
	unreached map[string][]fabric.Unreached // by domain
	failed    chan struct{}                 // has an element when something became dirty
	news      chan struct{}                 // closed when a port's status may have changed
}

func newQueue() *queue {
	return &queue{
		tails: map[string]*ticket{}, dirty: map[string]*change{}, flying: map[string]int{}, unreached: map[string][]fabric.Unreached{},
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

// take gives the change that domain needs when c is to be done: c after what failed before.
func (q *queue) take(c *change) *change {
	q.mu.Lock()
	defer q.mu.Unlock()
	earlier := q.dirty[c.domain]
	delete(q.dirty, c.domain)
	return earlier.then(c)
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

// makeBeforeBreak orders the changes of one transaction so that a network that moves is fetched by the domain it comes to before the one it
// leaves knows it no more: a network's own domain, which is new or gone, comes before routers or after them.
func makeBeforeBreak(a, b *change) int { return rank(a) - rank(b) }

func rank(c *change) int {
	switch {
	case c.gone:
		return 2
	case c.shape != nil && len(c.shape.Bridges) == 1 && c.shape.Bridges[0].Network == c.domain:
		return 0
	}
	return 1
}

// errHeldBack stands for a domain whose shape waits for another's, so that what moves between them is not lost.
var errHeldBack = errors.New("held back until the other domain is as it should be")

// settle does a ticket's work. What cannot be done is kept as dirty.
func (p *Provider) settle(ctx context.Context, tk *ticket) error {
	if err := tk.turn(ctx); err != nil {
		// The turn must not be skipped for the others, but neither may it come late: an own goroutine waits for it and notes the work.
		go func() {
			_ = tk.turn(context.WithoutCancel(ctx))
			failed := map[string]*change{}
			for domain, c := range tk.changes {
				failed[domain] = p.queue.take(c)
			}
			tk.finish(failed)
		}()
		return sdn.Unavailable(err, "data path", "the change is stored, the kernel is to follow")
	}
	failed := map[string]*change{}
	var errs []error
	for _, c := range slices.SortedFunc(maps.Values(tk.changes), makeBeforeBreak) {
		c = p.queue.take(c)
		err := errHeldBack
		if c.shape == nil && !c.gone || len(errs) == 0 {
			err = p.apply(ctx, c)
		}
		if err != nil {
			failed[c.domain] = c
			errs = append(errs, err)
		}
	}
	tk.finish(failed)
	if len(errs) > 0 {
		return sdn.Unavailable(errors.Join(errs...), "data path", "the change is stored, the kernel could not follow yet")
	}
	return nil
}

// apply brings one change to the kernel.
func (p *Provider) apply(ctx context.Context, c *change) error {
	if c.gone {
		if err := p.datapath.DeleteDomain(ctx, c.domain); err != nil {
			return err
		}
		failpoint.Here("local.apply.gone")
		p.noteUnreached(ctx, c.domain, nil)
		return nil
	}
	if c.shape != nil {
		result, err := p.datapath.ApplyDomain(ctx, *c.shape)
		if err != nil {
			return err
		}
		failpoint.Here("local.apply.shape")
		p.noteUnreached(ctx, c.domain, result.Unreached)
	}
	if remove, add := lists(c.forwards); len(remove)+len(add) > 0 {
		if err := p.datapath.UpdateForwards(ctx, c.domain, remove, add); err != nil {
			return err
		}
		failpoint.Here("local.apply.forwards")
	}
	if remove, add := lists(c.ports); len(remove)+len(add) > 0 {
		if err := p.datapath.UpdatePorts(ctx, c.domain, remove, add); err != nil {
			return err
		}
		failpoint.Here("local.apply.ports")
	}
	return nil
}

// noteUnreached remembers what a router's ranges cannot be reached by, and says so when that changes.
func (p *Provider) noteUnreached(ctx context.Context, domain string, list []fabric.Unreached) {
	p.queue.mu.Lock()
	was := p.queue.unreached[domain]
	if len(list) == 0 {
		delete(p.queue.unreached, domain)
	} else {
		p.queue.unreached[domain] = list
	}
	p.queue.mu.Unlock()
	if slices.Equal(was, list) {
		return
	}
	for _, u := range list {
		p.log.WarnContext(ctx, "the host cannot reach a router's range", "router", domain, "prefix", u.Prefix, "reason", u.Reason)
	}
}

func (q *queue) unreachedOf(router sdn.ID) []sdn.Unreached {
	q.mu.Lock()
	defer q.mu.Unlock()
	var out []sdn.Unreached
	for _, u := range q.unreached[string(router)] {
		out = append(out, sdn.Unreached{Prefix: u.Prefix, Reason: u.Reason})
	}
	return out
}

// The pause between attempts of Run to mend the kernel.
const (
	firstPause = time.Second
	lastPause  = time.Minute
)

// Run mends in the background what the kernel refused, until the context ends. It is woken by a failure and then tries again
// with growing pauses.
func (p *Provider) Run(ctx context.Context) error {
	if p.datapath == nil {
		<-ctx.Done()
		return nil
	}
	for pause := firstPause; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-p.queue.failed:
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		}
		if err := p.mend(ctx); err != nil {
			pause = min(2*pause, lastPause)
			p.log.WarnContext(ctx, "the kernel does not follow the store yet", "error", err, "again_in", pause)
			continue
		}
		pause = firstPause
	}
}

// mend tries once more what failed.
func (p *Provider) mend(ctx context.Context) error {
	return p.update(ctx, func(t *tx) error {
		p.queue.mu.Lock()
		defer p.queue.mu.Unlock()
		for domain := range p.queue.dirty {
			t.touch(sdn.ID(domain))
		}
		return nil
	})
}

// Reconcile makes the whole kernel state be what the store says. Changes made meanwhile wait for it.
func (p *Provider) Reconcile(ctx context.Context) (fabric.Report, error) {
	var report fabric.Report
	err := p.whole(ctx, func(s fabric.State) (map[string]*change, error) {
		var err error
		if report, err = p.datapath.Reconcile(ctx, s); err != nil {
			return nil, err
		}
		p.queue.mu.Lock()
		p.queue.dirty = map[string]*change{}
		p.queue.mu.Unlock()
		for _, d := range s.Domains {
			p.noteUnreached(ctx, d.ID, report.Unreached[d.ID])
		}
		return nil, nil
	})
	return report, err
}

// Check compares the kernel with the store, and changes nothing.
func (p *Provider) Check(ctx context.Context) ([]fabric.Difference, error) {
	var diff []fabric.Difference
	err := p.whole(ctx, func(s fabric.State) (map[string]*change, error) {
		var err error
		diff, err = p.datapath.Diff(ctx, s)
		return nil, err
	})
	return diff, err
}

// whole calls f with the whole state when the kernel is done with everything before, and holds up everything after.
func (p *Provider) whole(ctx context.Context, f func(fabric.State) (map[string]*change, error)) error {
	if p.datapath == nil {
		return nil
	}
	// A transaction that changes nothing keeps others from committing between the state and the ticket.
	b, err := p.db.Begin(true)
	if err != nil {
		return closed(err)
	}
	state, err := p.projectAll(b)
	var tk *ticket
	if err == nil {
		tk = p.queue.drawAll()
	}
	_ = b.Rollback()
	if err != nil {
		return err
	}
	if err := tk.turn(ctx); err != nil {
		tk.cancel()
		return err
	}
	failed, err := f(state)
	tk.finish(failed)
	return err
}
