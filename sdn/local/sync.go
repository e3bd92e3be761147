package local

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/kuryr/kuryr/datapath/router"
	"github.com/kuryr/kuryr/internal/keymutex"
	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/engine"
	"golang.org/x/sync/semaphore"
)

// The sync makes the data path follow the store. It is level-triggered: a commit names the parts that it
// may have changed. A round reads these parts from the store, compares them with what the data path has,
// and applies the difference. So the order of changes does not matter, and parts may
// be named any number of times. Each domain has one goroutine that runs its rounds while there are claims,
// and callers wait for them. Callers that come during a round share the next one.

// heldBackError reports that a domain must keep a network until another domain has taken it over.
type heldBackError struct{ network, domain sdn.ID }

func (e *heldBackError) Error() string {
	return fmt.Sprintf("network %s: not yet taken over by domain %s", e.network, e.domain)
}

// errUnfinished is the error of a round that did not end.
var errUnfinished = errors.New("the round was not finished")

// syncer has the domains of the data path.
type syncer struct {
	p    *Provider
	gate *semaphore.Weighted // a round holds a part of it, a comparison of everything holds all
	// moves locks the networks of a domain while its shape changes.
	moves keymutex.Mutex
	work  sync.WaitGroup // rounds, comparisons of everything, and callers that gave up

	mu      sync.Mutex
	closing bool // no more work on the data path begins
	based   bool // all domains of the data path are known
	domains map[sdn.ID]*target
	holders map[sdn.ID]map[*target]bool // the domains that have a network
	defined map[partKey]int64           // the revisions of the definitions in the store
	failed  chan struct{}               // has an element when parts have failed
	news    chan struct{}               // closed when the status of a port may have changed
}

// wholeGate is the size of the gate: more rounds than can run concurrently.
const wholeGate = 1 << 30

func newSyncer(p *Provider) *syncer {
	return &syncer{
		p: p, gate: semaphore.NewWeighted(wholeGate), domains: map[sdn.ID]*target{},
		holders: map[sdn.ID]map[*target]bool{}, defined: map[partKey]int64{},
		failed: make(chan struct{}, 1), news: make(chan struct{}),
	}
}

// target is a domain of the data path.
type target struct {
	id      sdn.ID
	applied applied // of the round, or of the comparison of everything; what others read of it also needs the mutex

	// The mutex of the syncer guards the rest.
	working   bool   // a goroutine runs the rounds
	next      *round // what the next round does
	busy      map[partKey]int
	failed    map[partKey]bool
	attempts  int             // of Run since a round last left nothing failed
	due       time.Time       // when Run tries again; zero: not decided
	again     bool            // the shape is applied once more, as the host may reach more of it
	assumed   bool            // applied is what the store had; this process has not compared it
	networks  map[sdn.ID]bool // the networks of the applied shape, and those that it keeps for others
	unreached []router.Unreached
}

// round is one run of a target. Its claims are those of the callers that wait for it.
type round struct {
	claims []*claim
	done   chan struct{}
	// When the round is done, extended are the claims in other domains that it has led to.
	extended []*claim
	panicked any            // a defect, for the callers
	freed    []netip.Prefix // what the host does not reach by the domain any more
	refused  error          // why the shape was refused the last time; nil: it was not
}

// claim is what one caller waits for in a domain.
type claim struct {
	target *target
	rank   int
	keys   []partKey
	round  *round
	retry  bool // it waits for what failed before, each part by itself
	// When the round is done, moved are the parts that were in another domain when it read them.
	moved keySet
	err   error
}

// target returns the domain of an id. The caller holds the mutex.
func (s *syncer) target(id sdn.ID) *target {
	t := s.domains[id]
	if t == nil {
		t = &target{id: id, busy: map[partKey]int{}, failed: map[partKey]bool{}}
		s.domains[id] = t
	}
	return t
}

// assume takes what is in the store of domains for what the data path has of them, unless that is known. A
// process that has not compared everything yet changes the data path from there.
func (s *syncer) assume(view func(func(engine.Tx) error) error, keys keySet) {
	for id := range keys {
		if s.isKnown(id) {
			continue
		}
		var shape *router.Shape
		var want *wanted
		err := view(func(b engine.Tx) (err error) {
			shape, want, err = s.p.projectStored(b, id)
			return err
		})
		if err != nil { // what cannot be read cannot be changed either
			s.p.log.Warn("stored router cannot be read whole", "router", id, "err", err)
		}
		if shape != nil {
			s.assumeStored(id, shape, want)
		}
	}
}

func (s *syncer) assumeStored(domain sdn.ID, shape *router.Shape, want *wanted) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.based && s.domains[domain] == nil {
		t := s.target(domain)
		t.assumed = true
		s.set(t, shape, want)
	}
}

func (s *syncer) isKnown(domain sdn.ID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.based || s.domains[domain] != nil
}

// expect returns claims for the parts that a transaction is about to change. From then on they are not
// settled. The caller joins or drops the claims.
func (s *syncer) expect(b engine.Tx, keys keySet) (claims []*claim, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, parts := range keys {
		t := s.domains[id]
		var list []partKey
		for k, changed := range parts {
			if changed || t != nil && !t.settled(k) {
				list = append(list, k)
			}
		}
		if len(list) == 0 {
			continue
		}
		rank, err := rankOf(b, id)
		if err != nil {
			return nil, err
		}
		claims = append(claims, &claim{target: s.target(id), rank: rank, keys: list})
	}
	for _, c := range claims {
		c.busy(1)
	}
	return claims, nil
}

// rankOf orders domains so that a network comes to one before it leaves another: first the own domains of
// networks, then routers, then domains that go.
func rankOf(b engine.Tx, id sdn.ID) (int, error) {
	r, err := engine.Routers.Get(b, id)
	if err != nil {
		return 0, err
	}
	if r != nil && len(r.Interfaces) > 0 {
		return 1, nil
	}
	n, err := engine.Networks.Get(b, id)
	if err != nil {
		return 0, err
	}
	if n != nil && n.Own {
		return 0, nil
	}
	return 2, nil
}

func (c *claim) busy(by int) {
	for _, k := range c.keys {
		if c.target.busy[k] += by; c.target.busy[k] == 0 {
			delete(c.target.busy, k)
		}
	}
}

// join puts claims into the next rounds of their domains. What they are about is in the store.
func (s *syncer) join(claims []*claim) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range claims {
		c.enqueue()
	}
}

// enqueue puts a claim into the next round of its domain. The caller holds the mutex.
func (c *claim) enqueue() {
	t := c.target
	if t.next == nil {
		t.next = &round{done: make(chan struct{})}
	}
	c.round, c.err = t.next, errUnfinished
	t.next.claims = append(t.next.claims, c)
}

// drop forgets claims of a change that was not made.
func (s *syncer) drop(claims []*claim) {
	if len(claims) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range claims {
		c.busy(-1)
	}
	s.announce()
}

// prune forgets a domain that is not there. The caller holds the mutex.
func (s *syncer) prune(t *target) {
	if s.domains[t.id] == t && t.next == nil && len(t.busy)+len(t.failed)+len(t.networks) == 0 && !t.applied.unsure {
		delete(s.domains, t.id)
	}
}

// wait returns when the data path has what the claims are about. If ctx ends first, the rounds run all the
// same.
func (s *syncer) wait(ctx context.Context, claims []*claim) error {
	slices.SortFunc(claims, func(a, b *claim) int { return cmp.Compare(a.rank, b.rank) })
	var errs []error
	for i, c := range claims {
		err := s.await(ctx, c)
		var held *heldBackError
		if errors.As(err, &held) {
			if err = s.pursue(ctx, keySet{held.domain: {shapeKey: true}}); err == nil {
				s.repeat(c)
				err = s.await(ctx, c)
			}
		}
		if err != nil && ctx.Err() != nil && c.unfinished() {
			s.detach(ctx, claims[i:])
			return ctx.Err()
		}
		if err == nil && len(c.moved) > 0 {
			err = s.pursue(ctx, c.moved)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// detach waits in the place of a caller that has given up.
func (s *syncer) detach(ctx context.Context, claims []*claim) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closing {
		s.work.Go(func() { _ = s.wait(context.WithoutCancel(ctx), claims) })
	}
}

// quiesce waits until no round is at work, and lets no more begin.
func (s *syncer) quiesce() {
	s.mu.Lock()
	s.closing = true
	s.mu.Unlock()
	s.work.Wait()
}

// pursue waits for parts in other domains.
func (s *syncer) pursue(ctx context.Context, keys keySet) error {
	var claims []*claim
	err := s.p.view(func(b engine.Tx) (err error) {
		if err = keys.follow(b); err != nil {
			return err
		}
		s.assume(func(read func(engine.Tx) error) error { return read(b) }, keys)
		claims, err = s.expect(b, keys)
		return err
	})
	if err != nil {
		return err
	}
	s.join(claims)
	return s.wait(ctx, claims)
}

// follow adds the domains that ports are in now. They may have moved again.
func (s keySet) follow(b engine.Tx) error {
	for _, parts := range maps.Clone(s) {
		for k := range parts {
			if k.part != portPart {
				continue
			}
			r, err := engine.Ports.Get(b, k.id)
			if err != nil {
				return err
			}
			if r == nil {
				continue
			}
			domain, err := engine.DomainOf(b, r.Network)
			if err != nil {
				return err
			}
			s.add(domain, k, false)
		}
	}
	return nil
}

// repeat puts a claim into a further round. Its domain may have been pruned and made again since.
func (s *syncer) repeat(c *claim) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.target = s.target(c.target.id)
	c.busy(1)
	c.enqueue()
}

func (c *claim) unfinished() bool {
	select {
	case <-c.round.done:
		return false
	default:
		return true
	}
}

// await waits for the round of a claim, and for the rounds that it leads to.
func (s *syncer) await(ctx context.Context, c *claim) error {
	s.mu.Lock()
	s.start(c.target)
	s.mu.Unlock()
	select {
	case <-c.round.done:
	case <-ctx.Done():
		if c.unfinished() {
			return ctx.Err()
		}
	}
	if c.round.panicked != nil {
		panic(c.round.panicked)
	}
	for _, other := range c.round.extended {
		_ = s.await(ctx, other) // Run tries again
	}
	return c.err
}

// start lets the rounds of a domain run. The caller holds the mutex.
func (s *syncer) start(t *target) {
	switch {
	case t.working || t.next == nil:
	case s.closing:
		s.finish(t, t.take())
	default:
		t.working = true
		s.work.Go(func() { s.rounds(t) })
	}
}

// take removes the next round. The caller holds the mutex.
func (t *target) take() *round {
	r := t.next
	t.next = nil
	return r
}

// rounds runs the rounds of a domain until there are no claims.
func (s *syncer) rounds(t *target) {
	for s.pending(t) {
		if s.gate.Acquire(context.Background(), 1) == nil { // always: it fails only when its context ends
			s.round(t)
			s.gate.Release(1)
		}
	}
}

// pending reports whether there is a next round. If there is none, the goroutine of the rounds ends.
func (s *syncer) pending(t *target) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	t.working = t.next != nil
	return t.working
}

// round runs the next round of a domain.
func (s *syncer) round(t *target) {
	ctx := context.Background() // a caller that gives up must not interrupt a change of the kernel
	s.mu.Lock()
	r := t.take()
	defer func() {
		if defect := recover(); defect != nil {
			r.panicked = fmt.Sprintf("%v\n\n%s", defect, debug.Stack())
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.finish(t, r)
	}()
	if s.closing {
		s.mu.Unlock()
		return
	}
	claims := r.claims
	var failed []partKey
	for k := range t.failed { // what failed before is done first
		failed = append(failed, k)
	}
	s.mu.Unlock()
	keys := slices.Clone(failed)
	for _, c := range claims {
		keys = append(keys, c.keys...)
	}
	want, err := s.apply(ctx, t, r, keys)
	var refused error
	switch retries := slices.ContainsFunc(claims, func(c *claim) bool { return c.retry }); {
	case err == nil:
		s.note(t, keys, want, nil)
	case retries:
		refused = s.redo(ctx, t, r, failed)
	case len(failed) > 0:
		before, failure := s.apply(ctx, t, r, failed)
		s.note(t, failed, before, failure)
	}
	for _, c := range claims {
		own, failure := want, err
		if err != nil && (len(claims) > 1 || len(failed) > 0) { // what one caller did is not an error of the others
			own, failure = s.apply(ctx, t, r, c.keys)
		}
		if c.retry && failure == nil {
			failure = refused
		}
		if failure == nil {
			c.follow(own.moved)
		}
		s.note(t, c.keys, own, failure)
		c.err = failure
	}
}

// redo applies parts that have failed before. What the data path refuses of them does not keep the others
// from recovering. It returns one of the errors.
func (s *syncer) redo(ctx context.Context, t *target, r *round, keys []partKey) error {
	want, err := s.apply(ctx, t, r, keys)
	if s.note(t, keys, want, err); err == nil || len(keys) == 1 {
		return err
	}
	if at := slices.Index(keys, shapeKey); at >= 0 {
		err := s.redo(ctx, t, r, keys[at:at+1])
		if err != nil && s.isNew(t) {
			return err // there is no domain that could have the parts
		}
		return cmp.Or(err, s.redo(ctx, t, r, slices.Delete(keys, at, at+1)))
	}
	half := len(keys) / 2
	return cmp.Or(s.redo(ctx, t, r, keys[:half]), s.redo(ctx, t, r, keys[half:]))
}

// follow notes the claim's parts among those that have moved.
func (c *claim) follow(moved map[partKey]sdn.ID) {
	c.moved = keySet{}
	if len(moved) == 0 {
		return
	}
	for _, k := range c.keys {
		if to, is := moved[k]; is {
			c.moved.add(to, k, false)
		}
	}
}

// note remembers which parts have failed, and which are done later.
func (s *syncer) note(t *target, keys []partKey, want *wanted, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range keys {
		if err == nil {
			delete(t.failed, k)
		} else {
			t.failed[k] = true
		}
	}
	if err != nil {
		return
	}
	for _, k := range want.later {
		t.failed[k] = true
	}
}

// finish ends a round. The caller holds the mutex.
func (s *syncer) finish(t *target, r *round) {
	for _, c := range r.claims {
		c.busy(-1)
		if errors.Is(c.err, errUnfinished) { // a panic, or no more work begins
			for _, k := range c.keys {
				t.failed[k] = true
			}
		}
	}
	if len(t.failed) > 0 {
		s.wake()
	} else {
		t.recovered()
	}
	s.prune(t)
	r.extended = s.extend(r.freed)
	s.announce()
	close(r.done)
}

// recovered lets Run begin with the shortest pause when parts fail. The caller holds the mutex.
func (t *target) recovered() { t.attempts, t.due = 0, time.Time{} }

// wake lets Run try again what has failed.
func (s *syncer) wake() {
	select {
	case s.failed <- struct{}{}:
	default:
	}
}

// announce wakes those who wait for ports. The caller holds the mutex.
func (s *syncer) announce() {
	close(s.news)
	s.news = make(chan struct{})
}

// changed is told that the store has changed.
func (s *syncer) changed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.announce()
}

// nextNews returns what is closed when the status of a port may have changed.
func (s *syncer) nextNews() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.news
}

// extend lets the host reach ranges that had to wait for others, when those are free. The caller holds the
// mutex.
func (s *syncer) extend(freed []netip.Prefix) (claims []*claim) {
	for _, t := range s.domains {
		waits := func(u router.Unreached) bool { return slices.ContainsFunc(freed, u.Prefix.Overlaps) }
		if !slices.ContainsFunc(t.unreached, waits) {
			continue
		}
		t.again = true
		c := &claim{target: t, keys: []partKey{shapeKey}}
		c.busy(1)
		c.enqueue()
		s.start(t)
		claims = append(claims, c)
	}
	return claims
}

// takeAgain reports whether the shape is to be applied also if it is the applied one.
func (s *syncer) takeAgain(t *target) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	again := t.again
	t.again = false
	return again
}

// noteShape remembers that a domain has the wanted shape.
func (s *syncer) noteShape(t *target, want *wanted) {
	networks := networksIn(want.shape)
	maps.Copy(networks, want.kept)
	s.mu.Lock()
	defer s.mu.Unlock()
	t.applied.shape, t.applied.unsure = want.shape, false
	s.place(t, networks)
}

// networksOf returns the networks that a domain has, or may have, in the data path. The caller runs its round.
func (s *syncer) networksOf(t *target) map[sdn.ID]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	networks := networksIn(t.applied.shape)
	maps.Copy(networks, t.networks)
	return networks
}

// place sets the networks that a domain has in the data path. The caller holds the mutex.
func (s *syncer) place(t *target, networks map[sdn.ID]bool) {
	for n := range t.networks {
		if delete(s.holders[n], t); len(s.holders[n]) == 0 {
			delete(s.holders, n)
		}
	}
	t.networks = networks
	for n := range networks {
		if s.holders[n] == nil {
			s.holders[n] = map[*target]bool{}
		}
		s.holders[n][t] = true
	}
}

// isNew reports whether a domain is not in the data path, as it is new, or gone with all that was in it.
func (s *syncer) isNew(t *target) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return t.applied.shape == nil
}

// hasBridge reports whether a domain has a bridge for the ports of a network, as far as is known. Its shape may
// fail otherwise.
func (s *syncer) hasBridge(t *target, network sdn.ID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return networksIn(t.applied.shape)[network]
}

// holding returns the domains that have a network in the data path.
func (s *syncer) holding(network sdn.ID) (domains []sdn.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for t := range s.holders[network] {
		domains = append(domains, t.id)
	}
	return domains
}

func (s *syncer) noteUnreached(ctx context.Context, t *target, list []router.Unreached) {
	s.mu.Lock()
	was := t.unreached
	t.unreached = list
	s.mu.Unlock()
	if slices.Equal(was, list) {
		return
	}
	for _, u := range list {
		s.p.log.WarnContext(
			ctx, "the host cannot reach a router's range", "router", t.id, "prefix", u.Prefix, "reason", u.Reason,
		)
	}
}

// has reports whether a domain has a network in the data path.
func (s *syncer) has(domain, network sdn.ID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.domains[domain]
	return t != nil && t.networks[network] && !t.again && !t.applied.unsure
}

func (s *syncer) unreachedOf(id sdn.ID) (out []sdn.Unreached) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.domains[id]; t != nil {
		for _, u := range t.unreached {
			out = append(out, sdn.Unreached{Prefix: u.Prefix, Reason: u.Reason})
		}
	}
	return out
}

// settled reports whether the data path has what the store says of a part. The caller holds the mutex.
func (t *target) settled(k partKey) bool {
	if t.busy[k] > 0 || t.failed[k] {
		return false
	}
	switch k.part {
	case portPart:
		return t.applied.ports.certain(string(k.id))
	case balancePart:
		return t.applied.balances.certain(k.addr)
	case forwardPart:
		return true // it has failed where it is not certain
	}
	return !t.applied.unsure
}

// portSettled reports whether the data path has what the store says of a port.
func (s *syncer) portSettled(domain, port sdn.ID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.domains[domain]
	return t == nil || t.settled(portKey(port))
}

// balanceSettled reports whether the data path has what the store says of a load balancer at an address, on a
// domain whose shape has not failed.
func (s *syncer) balanceSettled(domain, balancer sdn.ID, at netip.Addr) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.domains[domain]
	return t == nil || t.settled(balanceKey(balancer, at)) && !t.failed[shapeKey]
}

// unsettled counts the domains with parts that have failed.
func (s *syncer) unsettled() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.domains {
		if len(t.failed) > 0 {
			n++
		}
	}
	return n
}

// redefined notes the revisions of definitions that a transaction has changed.
func (s *syncer) redefined(changes map[engine.RowID]*engine.RowChange) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, c := range changes {
		if !c.Written {
			continue
		}
		switch id.Noun {
		case engine.SecurityGroups.Noun:
			_, after := engine.Rows[*engine.SecurityGroupRow](c)
			if delete(s.defined, groupKey(id.ID)); after != nil {
				s.defined[groupKey(id.ID)] = after.Defined
			}
		case engine.AddressGroups.Noun:
			_, after := engine.Rows[*engine.AddressGroupRow](c)
			if delete(s.defined, setKey(id.ID)); after != nil {
				s.defined[setKey(id.ID)] = after.Defined
			}
		}
	}
}

// define notes the revision of a definition that was read. That of a later change stays.
func (s *syncer) define(k partKey, revision int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.defined[k]; !known {
		s.defined[k] = revision
	}
}

func (s *syncer) definedAt(k partKey) (revision int64, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	revision, known = s.defined[k]
	return revision, known
}
