package neutron

import (
	"context"
	"errors"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kuryr/kuryr/sdn"
)

const (
	bulksAtOnce = 2 // concurrent requests for many ports of one call
	// headroom is how many times as many free addresses as ports a network must have for a
	// bulk request: Neutron before 20.5, 21.2, 22.1 and 23.1 loses the addresses of a
	// bulk that fails half way.
	headroom = 2
)

// EnsurePorts looks for all Keys by one request and makes what is missing. It makes many
// ports by one request if no address and no MAC is chosen and the network has room, one
// by one otherwise.
//
// It does not look first for a port whose MAC is given and is part of its Key's name:
// Neutron refuses a second port with a MAC on a network, and EnsurePorts looks then. Such
// a Key must contain nothing that changes.
func (p *Provider) EnsurePorts(ctx context.Context, specs []sdn.PortSpec) ([]sdn.Port, error) {
	b := &portBatch{p: p, specs: specs, out: make([]sdn.Port, len(specs)), errs: make([]error, len(specs))}
	var keys, again []int
	first := map[sdn.Key]bool{}
	for i, spec := range specs {
		p.owner.note(spec.Project)
		b.errs[i] = checkSpec(spec)
		switch {
		case b.errs[i] != nil:
		case spec.Key.IsZero():
			b.todo = append(b.todo, i)
		case first[spec.Key]:
			again = append(again, i)
		default:
			first[spec.Key] = true
			b.todo, keys = append(b.todo, i), append(keys, i)
		}
	}
	slices.SortFunc(keys, func(i, j int) int { return strings.Compare(specs[i].Key.String(), specs[j].Key.String()) })
	for _, i := range keys { // in order, so that two batches do not wait for each other
		unlock, err := p.locks.lock(ctx, ports.path+" "+specs[i].Key.String())
		if err != nil {
			return b.out, err
		}
		defer unlock()
	}
	b.run(ctx)
	for _, i := range again { // two specs of one call have one Key
		b.todo = []int{i}
		b.run(ctx)
	}
	return b.out, bulk(b.errs)
}

// portBatch is one call of EnsurePorts. Its slices are by position in the call. One
// goroutine at a time writes an element.
type portBatch struct {
	p     *Provider
	specs []sdn.PortSpec
	todo  []int // neither there nor failed yet
	out   []sdn.Port
	errs  []error
	read  func(sdn.Port) // into the cache what the last look found
}

// identity is what a port is found by.
type identity struct {
	project string
	key     sdn.Key
}

// identity returns that of a spec.
func (b *portBatch) identity(i int) identity {
	return identity{b.p.projectOf(b.specs[i].Base), b.specs[i].Key}
}

// run makes and adopts the ports of todo. Between two attempts at a port it looks for its
// Key.
func (b *portBatch) run(ctx context.Context) {
	defer func() {
		for i, err := range b.errs {
			if err != nil {
				b.errs[i] = portError(err, specPatch(b.specs[i]))
			}
		}
	}()
	b.check(ctx)
	b.adopt(ctx, b.where(func(i int) bool { return !b.specs[i].Key.IsZero() && !guarded(b.specs[i]) }))
	for n := 1; len(b.todo) > 0; n++ {
		made, tried := make([]*portWire, len(b.specs)), b.todo
		b.make(ctx, made)
		b.judge(ctx, made)
		if b.again(ctx, n, tried) {
			continue
		}
		if len(b.todo) > 0 && (n == maxRaces || !b.p.client.backoff(ctx, n, nil)) {
			for _, i := range b.todo {
				b.errs[i] = madeTwice("port", b.specs[i].Key)
			}
			b.todo = nil
		}
	}
}

// guarded reports whether Neutron refuses a second port of the spec, as its Key names its
// MAC.
func guarded(spec sdn.PortSpec) bool {
	return spec.MAC != nil && strings.Contains(spec.Key.Name, spec.MAC.String())
}

// where returns the positions of todo that fit.
func (b *portBatch) where(fits func(i int) bool) []int {
	return slices.DeleteFunc(slices.Clone(b.todo), func(i int) bool { return !fits(i) })
}

// done removes positions from todo.
func (b *portBatch) done(which func(i int) bool) { b.todo = slices.DeleteFunc(b.todo, which) }

// check fails the specs whose addresses no subnet can give.
func (b *portBatch) check(ctx context.Context) {
	for _, i := range b.todo {
		b.errs[i] = b.p.checkAddresses(ctx, b.specs[i].Addresses)
	}
	b.done(func(i int) bool { return b.errs[i] != nil })
}

// look finds the ports with the Keys of the specs at the positions, the oldest first. If
// it fails, so have these specs.
func (b *portBatch) look(ctx context.Context, at []int) map[identity][]*portWire {
	if len(at) == 0 {
		return nil
	}
	b.read = b.p.cache.ports.reading()
	q := url.Values{}
	for _, i := range at {
		q.Add("description", b.specs[i].Key.String())
	}
	found := map[identity][]*portWire{}
	for w, err := range ports.find(ctx, b.p, q) {
		if err != nil {
			for _, i := range at {
				if b.errs[i] == nil {
					b.errs[i] = err
				}
			}
			return found
		}
		if key, ok := sdn.ParseKey(w.Description); ok {
			id := identity{w.Project, key}
			found[id] = append(found[id], w)
		}
	}
	for _, twins := range found {
		slices.SortFunc(twins, func(a, b *portWire) int { return older(&a.meta, &b.meta) })
	}
	return found
}

// adopt finishes the ports of todo that exist.
func (b *portBatch) adopt(ctx context.Context, at []int) {
	found := b.look(ctx, at)
	b.done(func(i int) bool { return b.errs[i] != nil })
	at = slices.DeleteFunc(at, func(i int) bool { return b.errs[i] != nil || found[b.identity(i)] == nil })
	atOnce(len(at), portsAtOnce, func(n int) { b.finish(ctx, at[n], found[b.identity(at[n])][0]) })
	b.done(func(i int) bool { return slices.Contains(at, i) })
}

// finish changes an existing port to what its spec says.
func (b *portBatch) finish(ctx context.Context, i int, w *portWire) {
	spec := b.specs[i]
	port, err := w.decode(b.p.owner)
	if err != nil {
		b.errs[i] = err
		return
	}
	change, differs, err := difference(port, spec)
	switch {
	case err != nil:
	case differs:
		port, err = b.p.changePort(ctx, port.ID, change)
	default:
		b.read(port)
	}
	if err != nil {
		b.errs[i] = err
		return
	}
	b.out[i], b.errs[i] = asAsked(port, spec.Addresses), nil
}

// make sends the POSTs for todo.
func (b *portBatch) make(ctx context.Context, made []*portWire) {
	var single []int
	perNetwork := map[sdn.ID][]int{}
	for _, i := range b.todo {
		if spec := b.specs[i]; spec.MAC != nil || chooses(spec.Addresses) {
			single = append(single, i)
		} else {
			perNetwork[spec.Network] = append(perNetwork[spec.Network], i)
		}
	}
	var jobs [][]int
	for network, at := range perNetwork {
		if len(at) == 1 || !b.p.roomFor(ctx, network, headroom*len(at)) {
			single = append(single, at...)
			continue
		}
		jobs = slices.AppendSeq(jobs, slices.Chunk(at, b.p.pace.bulk(b.p.client.timeout)))
	}
	atOnce(2, 2, func(half int) {
		if half == 0 {
			atOnce(len(jobs), bulksAtOnce, func(n int) { b.post(ctx, jobs[n], made) })
		} else {
			atOnce(len(single), portsAtOnce, func(n int) { b.post(ctx, single[n:n+1], made) })
		}
	})
}

// post makes the ports at the positions by one request. If Neutron refuses several, post
// asks for each half, so that those that can be made are.
func (b *portBatch) post(ctx context.Context, at []int, made []*portWire) {
	bodies := make([]map[string]any, len(at))
	for n, i := range at {
		bodies[n] = b.p.newPortBody(b.specs[i])
	}
	var answer []*portWire
	err := b.p.posting.take(ctx)
	if err != nil {
		for _, i := range at {
			b.errs[i] = err
		}
		return
	}
	begin := b.p.client.now()
	if len(at) == 1 {
		var w *portWire
		w, err = ports.create(ctx, b.p, bodies[0])
		for n := 1; n < maxRaces && sdn.ReasonOf(err) == sdn.AddressInUse && !chooses(b.specs[at[0]].Addresses); n++ {
			// Neutron chose an address that another request took first, and made nothing.
			w, err = ports.create(ctx, b.p, bodies[0])
		}
		answer = []*portWire{w}
	} else {
		answer, err = ports.createBulk(ctx, b.p.client.extended(len(bodies)), bodies)
	}
	b.p.posting.give()
	if err == nil {
		b.p.pace.took(len(at), b.p.client.now().Sub(begin))
	} else if retryable(err) && !isBusy(err) {
		b.p.pace.lost(len(at), b.p.client.timeout)
	}
	if sdn.IsNotFound(err) { // the cache has an outdated network
		for _, i := range at {
			b.p.cache.forgetNetwork(b.specs[i].Network)
		}
	}
	var noNetwork *sdn.Error
	switch {
	case err == nil:
		for n, i := range at {
			made[i] = answer[n]
		}
	case len(at) == 1 || sdn.IsUnavailable(err) || errors.As(err, &noNetwork) && noNetwork.Kind == sdn.KindNotFound && noNetwork.Noun == "network":
		for _, i := range at {
			b.errs[i] = err
		}
	default:
		b.post(ctx, at[:len(at)/2], made)
		b.post(ctx, at[len(at)/2:], made)
	}
}

// judge looks at the requests that were just sent. It deletes a port that could not be
// bound. It looks for one that was refused, whose answer was lost, or that Neutron was
// too busy for. Of two that processes made concurrently for one Key, it deletes the
// younger. What must still be made stays in todo.
func (b *portBatch) judge(ctx context.Context, made []*portWire) {
	tried := b.todo
	b.todo = nil
	b.unbindable(ctx, tried, made)
	unsure := slices.DeleteFunc(slices.Clone(tried), func(i int) bool {
		spec := b.specs[i]
		switch {
		case spec.Key.IsZero():
			return true
		case b.errs[i] != nil:
			return !sdn.IsUnavailable(b.errs[i]) && !sdn.IsConflict(b.errs[i]) || sdn.FieldOf(b.errs[i]) == "host"
		}
		return guarded(spec)
	})
	failed := slices.Clone(b.errs)
	found := b.look(ctx, unsure)
	var adopted, kept, leaving []int
	for _, i := range tried {
		twins := found[b.identity(i)]
		switch {
		case made[i] == nil && len(twins) > 0:
			adopted = append(adopted, i)
		case made[i] == nil:
			b.errs[i] = failed[i]
		case b.errs[i] != nil: // it could not be looked for
		case isYounger(made[i], twins):
			leaving = append(leaving, i)
		default:
			if now := slices.IndexFunc(twins, func(w *portWire) bool { return w.ID == made[i].ID }); now >= 0 {
				made[i] = twins[now] // its revision may have gone up since
			}
			kept = append(kept, i)
		}
	}
	atOnce(len(kept), portsAtOnce, func(n int) { b.keep(ctx, kept[n], made[kept[n]]) })
	atOnce(len(adopted), portsAtOnce, func(n int) { b.finish(ctx, adopted[n], found[b.identity(adopted[n])][0]) })
	atOnce(len(leaving), portsAtOnce, func(n int) {
		i := leaving[n]
		b.errs[i] = ports.erase(ctx, b.p, sdn.ID(made[i].ID), 0)
	})
	b.todo = slices.DeleteFunc(leaving, func(i int) bool { return b.errs[i] != nil })
	b.adopt(ctx, slices.Clone(b.todo))
}

// again takes up what Neutron was too busy for, after the wait that Neutron asked for and
// another look. Without a Key it cannot tell if the port was made. It reports whether
// anything must be made again.
func (b *portBatch) again(ctx context.Context, n int, tried []int) bool {
	var at []int
	var longest error
	for _, i := range tried {
		err := b.errs[i]
		if b.specs[i].Key.IsZero() || !isBusy(err) {
			continue
		}
		if at = append(at, i); longest == nil || sdn.RetryAfterOf(err) > sdn.RetryAfterOf(longest) {
			longest = err
		}
	}
	if len(at) == 0 || !b.p.client.makeAgain(ctx, n, longest) {
		return false
	}
	for _, i := range at {
		b.errs[i] = nil
	}
	b.todo = append(b.todo, at...)
	b.adopt(ctx, at)
	return true
}

// isYounger reports whether a port that was just made has a duplicate that is not younger, by
// Neutron's clock of seconds. Two of the same second that see each other both go; then
// both calls look again.
func isYounger(mine *portWire, twins []*portWire) bool {
	return slices.ContainsFunc(twins, func(other *portWire) bool {
		return other.ID != mine.ID && !mine.Created.Before(other.Created.Time)
	})
}

// unbindable deletes the ports that Neutron made and cannot bind to their host.
func (b *portBatch) unbindable(ctx context.Context, at []int, made []*portWire) {
	at = slices.DeleteFunc(slices.Clone(at), func(i int) bool {
		return made[i] == nil || b.specs[i].Host == "" || made[i].VIFType != vifBindingFailed
	})
	atOnce(len(at), portsAtOnce, func(n int) {
		i := at[n]
		b.errs[i] = errors.Join(cannotBind(b.specs[i].Host), ports.erase(ctx, b.p, sdn.ID(made[i].ID), 0))
		made[i] = nil
	})
}

// keep returns a port that was just made, after its tags are written.
func (b *portBatch) keep(ctx context.Context, i int, w *portWire) {
	if tags := b.specs[i].Tags; tags != nil && !sameSet(tags, w.Tags) {
		if b.errs[i] = ports.setTags(ctx, b.p, w, tags); b.errs[i] != nil {
			return
		}
		w.Revision++
	}
	port, err := w.decode(b.p.owner)
	if b.errs[i] = err; err == nil {
		b.p.cache.ports.put(port)
		b.out[i] = asAsked(port, b.specs[i].Addresses)
	}
}

// turns limits concurrent requests of the process.
type turns chan struct{}

// postsAtOnce limits the concurrent creations of ports: Neutron locks what it allocates
// from and makes one after another, and requests that wait there run into their
// deadlines.
const postsAtOnce = 6

func (t turns) take(ctx context.Context) error {
	select {
	case t <- struct{}{}:
		return nil
	case <-ctx.Done():
		return notSent(sdn.Unavailable(context.Cause(ctx), "Neutron",
			"too many ports are being made to begin this one before the deadline"))
	}
}

func (t turns) give() { <-t }

// newPortBody returns the body of a POST.
func (p *Provider) newPortBody(spec sdn.PortSpec) map[string]any {
	body := p.body(spec.Base)
	for name, value := range portBody(specPatch(spec)) {
		body[name] = value
	}
	body["network_id"] = spec.Network
	if spec.VNICType != sdn.VNICNormal {
		body["binding:vnic_type"] = spec.VNICType
	}
	return body
}

// vast is more addresses than any network has ports.
const vast = 1 << 20

// roomFor reports whether a network has that many free addresses of each of its families.
// It is false if Neutron does not tell.
func (p *Provider) roomFor(ctx context.Context, network sdn.ID, want int) bool {
	subnets, err := p.subnetsOf(ctx, network)
	if err != nil {
		return false
	}
	free := map[bool]int64{}
	for _, s := range subnets {
		v4 := s.CIDR.Addr().Is4()
		if free[v4] >= int64(want) {
			continue
		}
		if total := clamp(count(s.Ranges)); total >= vast {
			free[v4] = total
			continue
		}
		usage, err := p.SubnetUsage(ctx, s.ID)
		if err != nil {
			return false
		}
		free[v4] += usage.Free
	}
	for _, n := range free {
		if n < int64(want) {
			return false
		}
	}
	return true
}

// A pace is how long Neutron took lately to make a port. Bulks are as large as Neutron
// makes in a part of a request's deadline: proxies cut long requests, and what was cut
// must be looked for.
type pace struct {
	mu   sync.Mutex
	each time.Duration // 0: not known
}

const (
	bulkShare  = 3 // a bulk is to take a third of the deadline of one request
	portsATime = 5 // ports of a bulk that one deadline is for
)

// bulk returns how many ports one request may ask for.
func (p *pace) bulk(timeout time.Duration) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.each <= 0 {
		return bulkSize
	}
	return int(min(max(timeout/bulkShare/p.each, 1), time.Duration(bulkSize)))
}

// took notes how long a request for n ports took. A Neutron that is faster again is
// believed step by step.
func (p *pace) took(n int, d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.each = max(d/time.Duration(n), p.each/2)
}

// lost notes that a request for n ports got no answer: the next are half as large.
func (p *pace) lost(n int, timeout time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.each = max(p.each, timeout/bulkShare/time.Duration(max(n/2, 1)))
}

// extended returns the client with the deadline of a request for n ports. If Kuryr gave up earlier,
// Neutron would create ports that no caller gets.
func (c *client) extended(n int) *client {
	p := *c
	p.timeout = max(c.timeout, c.timeout*time.Duration(min(n, bulkSize))/portsATime)
	return &p
}
