package local

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/kuryr/kuryr/datapath/router"
	"github.com/kuryr/kuryr/datapath/securitygroup"
	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/engine"
)

// definitions are security groups and address groups that a domain must be told of.
type definitions struct {
	groups map[sdn.ID]securitygroup.Group
	sets   map[sdn.ID]securitygroup.Set
}

func newDefinitions() definitions {
	return definitions{map[sdn.ID]securitygroup.Group{}, map[sdn.ID]securitygroup.Set{}}
}

// reader reads what parts of a domain are in the store.
type reader struct {
	engine.Tx
	sync   *syncer
	domain *target
	shaped bool // the shape is one of the parts
	want   *wanted
}

// errNoBridge is the error of a port that cannot be applied before the shape.
var errNoBridge = errors.New("the router does not have the network yet")

// read returns the parts of the keys as they are in the store by now.
func (s *syncer) read(t *target, keys []partKey) (*wanted, error) {
	r := &reader{sync: s, domain: t, shaped: slices.Contains(keys, shapeKey), want: newWanted()}
	err := s.p.view(func(b engine.Tx) error {
		r.Tx = b
		for _, k := range keys {
			if err := r.part(k); err != nil {
				return err
			}
		}
		return nil
	})
	return r.want, err
}

func (r *reader) part(k partKey) (err error) {
	switch k.part {
	case shapePart:
		return r.shape()
	case portPart:
		return r.port(k.id)
	case forwardPart:
		return r.forward(k.forward)
	case balancePart:
		var elsewhere sdn.ID
		r.want.balances[k.addr], elsewhere, err = projectBalance(r.Tx, r.domain.id, k)
		r.moved(k, elsewhere)
	case groupPart:
		return r.group(k.id)
	case setPart:
		return r.set(k.id)
	}
	return err
}

// shape reads the domain itself. A domain that goes is held back while one of its networks has not yet come
// to the domain that it is in now: its ports' links would be lost. One that stays keeps them until then.
func (r *reader) shape() (err error) {
	r.want.shaped = true
	if r.want.shape, err = r.sync.p.projectDomain(r.Tx, r.domain.id); err != nil {
		return err
	}
	stays := networksIn(r.want.shape)
	for network := range r.sync.networksOf(r.domain) {
		if stays[network] {
			continue
		}
		to, err := engine.DomainOf(r.Tx, network)
		if err != nil {
			return err
		}
		if to == "" || to == r.domain.id || r.sync.has(to, network) {
			continue
		}
		if r.want.shape == nil {
			return &heldBackError{network, to}
		}
		r.want.kept[network] = true
	}
	if len(r.want.kept) > 0 {
		r.want.later = append(r.want.later, shapeKey)
	}
	return nil
}

func (r *reader) port(id sdn.ID) error {
	row, err := engine.Ports.Get(r.Tx, id)
	if err != nil {
		return err
	}
	r.want.ports[string(id)] = nil
	if row == nil || !row.Plugged() {
		return nil
	}
	domain, err := engine.DomainOf(r.Tx, row.Network)
	if err != nil {
		return err
	}
	if domain != r.domain.id {
		if r.moved(portKey(id), domain); domain != "" && !r.sync.has(domain, row.Network) {
			delete(r.want.ports, string(id)) // it stays until its network goes there with it
			r.want.later = append(r.want.later, portKey(id))
		}
		return nil
	}
	if !r.shaped && !r.sync.hasBridge(r.domain, row.Network) {
		return errNoBridge
	}
	p, err := projectPort(r.Tx, row)
	if err != nil {
		return err
	}
	r.want.ports[string(id)] = p
	for _, g := range p.Groups {
		if err := r.group(sdn.ID(g)); err != nil {
			return err
		}
	}
	return nil
}

// moved notes that a part has gone to another domain. Its change is not in the data path before it is there.
func (r *reader) moved(k partKey, to sdn.ID) {
	if to != "" {
		r.want.moved[k] = to
	}
}

func (r *reader) forward(id forwardID) error {
	if _, known := r.want.forwards[id]; known {
		return nil
	}
	r.want.forwards[id] = nil
	row, err := engine.Forwards.By(r.Tx, "tuple", engine.Tuple(sdn.Protocol(id.protocol), id.port, id.address, true))
	if err != nil || row == nil || row.Router != r.domain.id {
		return err
	}
	if down, err := engine.UplinkDown(r.Tx, row.Router); down || err != nil {
		return err
	}
	for _, f := range projectForward(row) { // the other ports of a range are asked for with it
		r.want.forwards[identify(f)] = &f
	}
	return nil
}

// group reads a security group that the domain does not know at its present revision, with the address
// groups that its rules name.
func (r *reader) group(id sdn.ID) error {
	if _, read := r.want.defined.groups[id]; read {
		return nil
	}
	if known, is := r.domain.applied.known[groupKey(id)]; is {
		other := func(s sdn.ID) bool { return !r.current(setKey(s), r.domain.applied.known[setKey(s)]) }
		if r.current(groupKey(id), known) && !slices.ContainsFunc(known.sets, other) {
			return nil
		}
	}
	row, err := engine.SecurityGroups.Get(r.Tx, id)
	if err != nil || row == nil {
		return err
	}
	r.sync.define(groupKey(id), row.Defined)
	g := projectGroup(row)
	r.want.defined.groups[id] = g
	for _, rule := range g.Rules {
		if rule.RemoteSet == "" {
			continue
		}
		if err := r.define(sdn.ID(rule.RemoteSet)); err != nil {
			return err
		}
	}
	return nil
}

// set reads an address group, unless the domain knows it at its present revision.
func (r *reader) set(id sdn.ID) error {
	if known, is := r.domain.applied.known[setKey(id)]; is && r.current(setKey(id), known) {
		return nil
	}
	return r.define(id)
}

// define reads an address group.
func (r *reader) define(id sdn.ID) error {
	if _, read := r.want.defined.sets[id]; read {
		return nil
	}
	row, err := engine.AddressGroups.Get(r.Tx, id)
	if err != nil || row == nil {
		return err
	}
	r.sync.define(setKey(id), row.Defined)
	r.want.defined.sets[id] = projectSet(row)
	return nil
}

// current reports whether a definition is at a revision that the domain knows.
func (r *reader) current(k partKey, known revision) bool {
	is, cached := r.sync.definedAt(k)
	return cached && is == known.number
}

// take makes the data path's state of all domains be what a comparison of everything has applied. A domain
// that is not whole after an error may be that, or what it was.
func (s *syncer) take(ctx context.Context, state router.State, report router.Report, failed error) {
	shapes := map[sdn.ID]*router.Shape{}
	var whole []*target
	s.mu.Lock()
	s.based = true
	for _, d := range state.Shapes {
		shapes[s.target(sdn.ID(d.ID)).id] = &d
	}
	for id, t := range s.domains {
		d, want := shapes[id], partsIn(state, id)
		if failed != nil && !report.Whole[string(id)] {
			s.suspect(t, d, want)
			continue
		}
		s.set(t, d, want)
		clear(t.failed)
		t.recovered()
		t.again, t.assumed = false, false
		whole = append(whole, t)
	}
	s.mu.Unlock()
	for _, t := range whole {
		s.noteUnreached(ctx, t, report.Unreached[string(t.id)])
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range whole {
		s.prune(t)
	}
	s.announce()
}

// set notes what the data path has of a domain. The caller holds the mutex.
func (s *syncer) set(t *target, shape *router.Shape, want *wanted) {
	t.applied = applied{shape: shape}
	t.applied.ports.note(want.ports, nil)
	t.applied.forwards.note(want.forwards, nil)
	t.applied.balances.note(want.balances, nil)
	s.place(t, networksIn(shape))
}

// suspect notes that a comparison has failed in a domain. Of its parts those fail that may not be as wanted. The
// caller holds the mutex.
func (s *syncer) suspect(t *target, shape *router.Shape, want *wanted) {
	a := &t.applied
	a.known, a.unsure = nil, true
	a.ports.assume(want.ports, !t.assumed)
	a.forwards.assume(want.forwards, !t.assumed)
	a.balances.assume(want.balances, !t.assumed)
	a.ports.note(want.ports, errUnfinished)
	a.forwards.note(want.forwards, errUnfinished)
	a.noteBalances(want.balances, errUnfinished)
	networks := networksIn(shape)
	maps.Copy(networks, t.networks)
	s.place(t, networks)
	t.failed[shapeKey] = true
	for id := range a.ports.doubt {
		t.failed[portKey(sdn.ID(id))] = true
	}
	for id := range a.forwards.doubt {
		t.failed[partKey{part: forwardPart, forward: id}] = true
	}
	for addr := range a.balances.doubt {
		t.failed[balanceKey("", addr)] = true
	}
	s.wake()
}

// partsIn returns the parts of a domain in the state of everything.
func partsIn(state router.State, domain sdn.ID) *wanted {
	want, id := newWanted(), string(domain)
	for _, p := range state.Ports[id] {
		want.ports[p.ID] = &p
	}
	for _, f := range state.Forwards[id] {
		want.forwards[identify(f)] = &f
	}
	for _, v := range state.VIPs[id] {
		want.balances[v.Addr] = &balance{vip: v}
	}
	for _, f := range state.Frontends[id] {
		if b := want.balances[f.Addr]; b != nil {
			b.frontends = append(b.frontends, f)
		}
	}
	return want
}
