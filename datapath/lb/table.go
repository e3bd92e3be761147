//go:build linux

package lb

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/kuryr/kuryr/datapath/nft"
	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/kuryr/kuryr/internal/sortslice"
	"github.com/kuryr/kuryr/sdn"
)

// DefaultName is the name of the tables where Config has none.
const DefaultName = "kuryr_lb"

func (c Config) name() string { return cmp.Or(c.Name, DefaultName) }

func (c Config) log() *slog.Logger {
	if c.Logger == nil {
		return slog.Default()
	}
	return c.Logger
}

func (c Config) run(f func() error) error {
	if c.Run == nil {
		return f()
	}
	return c.Run(f)
}

// Table is what balances in one namespace. All methods may be called concurrently.
type Table struct {
	config Config

	mu     sync.Mutex
	kernel *kernel // nil: not open
	known  bool    // the kernel is as told
	called called
	truth
}

// truth is what was told and, where the kernel is known, is there.
type truth struct {
	frontends map[Key]*frontend // nil: nothing was told yet
	members   map[member]int    // of how many frontends
	leads     map[lead]int      // that the kernel has, for how many frontends
	chains    map[string]bool   // of the inet table
	owed      map[Key]bool      // UDP frontends that may have stale flows; whether the kernel has an element of it
}

var errNotRestored = errors.New("frontends were not restored yet")

// New makes a Table. It does nothing in the kernel before Restore.
func New(c Config) *Table { return &Table{config: c} }

// Restore makes the kernel balance exactly these frontends, and takes over what a former
// process left: what works goes on working all the while. It reads the kernel, once; it
// must be called before Apply, and may be called again at any time. Nothing is changed if
// it fails before the kernel is told; an error after that leaves the Table as it was told
// to be, and the next Restore or Apply finishes it. Errors: IsInvalid, naming the
// frontend and the field.
func (t *Table) Restore(ctx context.Context, all []Frontend) error {
	want, err := byKey(t.config, all)
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.restore(ctx, want)
}

// Apply removes frontends and then sets others, all or nothing, at the cost of what
// changes. It is idempotent: what is not there need not be removed, and what is as it was
// costs nothing. Where the kernel is not as it was left, it is read and changed, as by
// Restore. Stale entries of connection tracking are gone when it returns: those of UDP
// flows to endpoints and frontends that went, and to frontends that had no endpoint.
// Flows to an endpoint that drains go on, whatever else changes and whichever process is
// told so. Connections of TCP and SCTP go on until they end; what was sent to their
// frontends before these came, and not answered, is forgotten soon after. Errors:
// IsInvalid, naming the frontend and the field.
func (t *Table) Apply(ctx context.Context, set []Frontend, remove []Key) error {
	want, err := byKey(t.config, set)
	if err != nil {
		return err
	}
	for _, key := range remove {
		if err := key.validate(); err != nil {
			return err
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	if t.frontends == nil {
		return errNotRestored
	}
	p := t.plan(want, remove)
	if t.known && t.kernel != nil {
		err := t.kernel.commit(ctx, &p.change)
		if err == nil {
			failpoint.Here("lb.apply.told")
			t.accept(p)
			t.came(p.came)
			return errors.Join(t.forget(ctx), t.sweep(ctx, p))
		}
		if !isAbsent(err) {
			t.reopen()
			return err
		}
		t.config.log().Warn("rereading changed balancing tables", "table", t.config.name(), "err", err)
	}
	all := map[Key]Frontend{}
	for key, f := range t.frontends {
		all[key] = f.Frontend
	}
	for key, f := range p.next {
		delete(all, key)
		if f != nil {
			all[key] = f.Frontend
		}
	}
	return t.restore(ctx, all)
}

// byKey checks frontends, of which no two may have one key.
func byKey(c Config, list []Frontend) (map[Key]Frontend, error) {
	m := make(map[Key]Frontend, len(list))
	for _, f := range list {
		if err := f.validate(); err != nil {
			return nil, err
		}
		if f.Inside != nil && len(c.Inside) == 0 {
			return nil, sdn.Invalid("frontend "+f.Key.String(), "inside", "no client of this table is")
		}
		if _, twice := m[f.Key]; twice {
			return nil, sdn.Invalid("frontend "+f.Key.String(), "key", "it is there twice")
		}
		m[f.Key] = f
	}
	return m, nil
}

// plan is a change and what is true when it is made.
type plan struct {
	change
	next    map[Key]*frontend // nil: removed
	members map[member]int    // by how many more or fewer frontends
	leads   map[lead]int
	flows   []Key         // UDP frontends of which entries of connection tracking may be stale
	came    []Key         // frontends that were not there
	unused  []nft.Element // of profiles, and
	drop    []string      // chains that no frontend needs any more
}

func newPlan() *plan {
	return &plan{next: map[Key]*frontend{}, members: map[member]int{}, leads: map[lead]int{}}
}

// plan finds what must be changed.
func (t *Table) plan(set map[Key]Frontend, remove []Key) *plan {
	p := newPlan()
	p.change.chains = t.chains
	for _, key := range remove {
		if _, again := set[key]; !again && t.frontends[key] != nil {
			p.next[key] = nil
		}
	}
	for key, f := range set {
		if had := t.frontends[key]; had == nil || !had.equal(f) {
			p.next[key] = place(f, had)
		}
	}
	for _, key := range slices.SortedFunc(maps.Keys(p.next), compareKeys) {
		had, next := t.frontends[key], p.next[key]
		p.differ(had, next)
		p.count(t.config, had, -1)
		p.count(t.config, next, +1)
		if had == nil { // while there is one, with endpoints or without, nothing passes it that is not led
			p.came = append(p.came, key)
		}
		if key.Protocol != sdn.UDP {
			continue
		}
		if had.misleads(next) {
			p.flows = append(p.flows, key)
		}
		if next == nil {
			p.add = append(p.add, key.cleanup())
		}
	}
	bridges := t.config.Bridges != ""
	for m, n := range p.members {
		before := t.members[m]
		if before == 0 && n > 0 {
			m.elements(bridges, func(e nft.Element) { p.add = append(p.add, e) })
		} else if before > 0 && before+n == 0 {
			m.elements(bridges, func(e nft.Element) {
				p.remove = append(p.remove, e)
				if kept, ok := leaving(e); ok {
					p.add = append(p.add, kept)
				}
			})
		}
	}
	for l := range p.leads {
		if _, there := t.leads[l]; !there {
			p.change.leads = append(p.change.leads, l)
		}
	}
	return p
}

// differ adds what must be done with a frontend's own elements.
func (p *plan) differ(had, next *frontend) {
	before := map[nft.Element]bool{}
	if had != nil {
		had.elements(func(e nft.Element) { before[e] = true })
	}
	if next != nil {
		next.elements(func(e nft.Element) {
			if before[e] {
				delete(before, e)
			} else {
				p.add = append(p.add, e)
			}
		})
	}
	for e := range before {
		p.remove = append(p.remove, e)
	}
}

func (p *plan) count(c Config, f *frontend, by int) {
	if f == nil {
		return
	}
	f.members(c.Bridges != "", func(m member) { p.members[m] += by })
	for g := f; g != nil; g = g.inside {
		p.leads[lead{g.kind(), g.profile()}] += by
	}
}

// accept takes over what a plan that was carried out made true.
func (t *Table) accept(p *plan) {
	for key, f := range p.next {
		if f == nil {
			delete(t.frontends, key)
		} else {
			t.frontends[key] = f
		}
	}
	for m, n := range p.members {
		if t.members[m] += n; t.members[m] == 0 {
			delete(t.members, m)
		}
	}
	for l, n := range p.leads {
		t.leads[l] += n // the kernel keeps what no frontend needs, for the next one; see sweep
	}
	for _, l := range p.change.leads {
		for _, c := range t.kernel.chainsOf(l) {
			t.chains[c.Name] = true
		}
	}
	for _, key := range p.flows {
		t.owed[key] = t.owed[key] || p.next[key] == nil
	}
}

// idleAtMost is how many profiles the kernel keeps that no frontend has. Beside more of
// them than that, making one would cost more and more.
const idleAtMost = 256

// sweep removes profiles that no frontend had before the plan already, when one was made
// and there are too many.
func (t *Table) sweep(ctx context.Context, p *plan) error {
	if t.kernel == nil || len(p.change.leads) == 0 || len(t.leads) <= idleAtMost {
		return nil
	}
	var idle []lead
	keep := map[string]bool{}
	for l, n := range t.leads {
		if _, now := p.leads[l]; n == 0 && !now {
			idle = append(idle, l)
			continue
		}
		for _, c := range t.kernel.chainsOf(l) {
			keep[c.Name] = true
		}
	}
	if len(idle) <= idleAtMost {
		return nil
	}
	var unused []nft.Element
	for _, l := range idle {
		unused = append(unused, l.element())
		delete(t.leads, l)
	}
	var drop []string
	for name := range t.chains {
		if !keep[name] && !t.kernel.isFixed(name) {
			drop = append(drop, name)
			delete(t.chains, name)
		}
	}
	err := t.kernel.tidy(ctx, unused, drop)
	if err != nil {
		t.reopen()
	}
	return err
}

// restore reads the kernel and makes it as wanted.
func (t *Table) restore(ctx context.Context, want map[Key]Frontend) error {
	if err := t.open(); err != nil {
		return err
	}
	have, err := t.kernel.read(ctx)
	if err != nil {
		t.reopen()
		return err
	}
	n, p := t.compare(have, want)
	if !p.empty() {
		if err := t.kernel.commit(ctx, &p.change); err != nil {
			t.reopen()
			return err
		}
	}
	failpoint.Here("lb.restore.told")
	t.truth, t.known = n, true
	t.came(slices.Collect(maps.Keys(want))) // a former process may have ended before it looked
	if err := t.kernel.tidy(ctx, p.unused, p.drop); err != nil {
		t.reopen()
		return err
	}
	return t.forget(ctx)
}

// compare finds what leads from what the kernel has to what is wanted, and what is true then.
func (t *Table) compare(have *state, want map[Key]Frontend) (truth, *plan) {
	n := truth{frontends: make(map[Key]*frontend, len(want)), chains: map[string]bool{}}
	before, all, add := have.frontends(), newPlan(), map[nft.Element]bool{}
	for key, f := range want {
		next := place(f, before[key])
		n.frontends[key] = next
		next.elements(func(e nft.Element) { add[e] = true })
		all.count(t.config, next, +1)
	}
	for m := range all.members {
		m.elements(t.config.Bridges != "", func(e nft.Element) { add[e] = true })
	}
	n.members, n.leads = all.members, all.leads
	p := newPlan()
	p.replace, p.old = len(have.damage) > 0, have.tables
	for l := range n.leads {
		for _, c := range t.kernel.chainsOf(l) {
			n.chains[c.Name] = true
		}
		if p.replace || !have.leads[l] {
			p.change.leads = append(p.change.leads, l)
		}
		add[l.element()] = true
	}
	for _, list := range have.elements {
		for _, e := range list {
			switch {
			case add[e] && !p.replace:
				delete(add, e)
			case add[e]:
			case lasts(e):
				if p.replace {
					add[e] = true
				}
			default:
				switch {
				case p.replace:
				case strings.HasPrefix(e.Set, "profile"):
					p.unused = append(p.unused, e)
				default:
					p.remove = append(p.remove, e)
				}
				if kept, ok := leaving(e); ok {
					add[kept] = true
				}
			}
		}
	}
	for l := range n.leads {
		delete(add, l.element()) // which comes with its chain
	}
	if !p.replace {
		p.change.chains, p.mend = have.chains, have.stale
		for name := range have.chains {
			if !n.chains[name] && !t.kernel.isFixed(name) {
				p.drop = append(p.drop, name)
			}
		}
		p.drop = append(p.drop, have.strays...)
	}
	n.owed = maps.Clone(t.owed)
	if n.owed == nil {
		n.owed = map[Key]bool{}
	}
	for key := range want {
		if key.Protocol == sdn.UDP && !n.owed[key] {
			n.owed[key] = false
		}
	}
	for _, key := range have.udp() {
		if _, wanted := want[key]; !wanted {
			n.owed[key] = true
			add[key.cleanup()] = true
		}
	}
	for _, key := range have.uncollected() {
		n.owed[key] = true
		delete(add, key.cleanup())
		if p.replace {
			add[key.cleanup()] = true
		}
	}
	p.add = slices.Collect(maps.Keys(add))
	return n, p
}

// Check compares the kernel with what was told, changing neither. It reads the whole
// table. What clients are remembered is no difference.
func (t *Table) Check(ctx context.Context) ([]Difference, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.frontends == nil {
		return nil, errNotRestored
	}
	if err := t.open(); err != nil {
		return nil, err
	}
	have, err := t.kernel.read(ctx)
	if err != nil {
		t.reopen()
		return nil, err
	}
	want := make(map[Key]Frontend, len(t.frontends))
	for key, f := range t.frontends {
		want[key] = f.Frontend
	}
	if len(have.damage) > 0 {
		return have.damage, nil
	}
	_, p := t.compare(have, want)
	var list []Difference
	for _, e := range p.remove {
		list = append(list, Difference{Object: "element of " + e.Set, Have: e.String()})
	}
	for _, e := range p.add {
		list = append(list, Difference{Object: "element of " + e.Set, Want: e.String()})
	}
	for _, m := range p.mend {
		list = append(list, Difference{Object: "chain " + m.Name, Want: "its rules", Have: "others"})
	}
	for _, name := range p.drop {
		if t.chains[name] {
			continue // of a profile that no frontend has any more, for the next one that does
		}
		list = append(list, Difference{Object: "chain " + name, Have: "present"})
	}
	for _, l := range p.change.leads {
		list = append(list, Difference{Object: "chain " + l.name(), Want: "present"})
	}
	sortslice.Func(list, func(a, b Difference) int { return cmp.Compare(a.String(), b.String()) })
	return list, nil
}

// Close lets go of the kernel, which balances on, for the next process.
func (t *Table) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lookNoMore()
	t.reopen()
	t.frontends = nil
	return nil
}

// Remove deletes the tables; absent is fine. The Table is then as New made it.
func (t *Table) Remove(ctx context.Context) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lookNoMore()
	if err := t.open(); err != nil {
		return err
	}
	err := t.kernel.remove(ctx)
	t.reopen()
	if err == nil {
		t.frontends = nil
	}
	return err
}

func (t *Table) open() error {
	if t.kernel != nil {
		return nil
	}
	k, err := openKernel(t.config)
	if err != nil {
		return err
	}
	t.kernel = k
	return nil
}

// reopen gives the sockets up, after an error for one, so that the next call opens
// others; the kernel must be read then.
func (t *Table) reopen() {
	if t.kernel != nil {
		t.kernel.close()
	}
	t.kernel, t.known = nil, false
}
