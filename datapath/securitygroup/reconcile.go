//go:build linux

package securitygroup

import (
	"maps"
	"slices"
	"strings"

	"github.com/google/nftables"

	"github.com/kuryr/kuryr/datapath/nft"
)

// State is everything that a namespace's filter should know. Ports are those that have
// groups or limits; groups and sets that none of them needs do not count.
type State struct {
	Ports  []Port
	Groups []Group
	Sets   []Set
}

// needed leaves of the state's groups what ports have, each of them, and of its sets what
// those groups' rules name.
func (s State) needed() State {
	groups, sets := map[string]bool{}, map[string]bool{}
	for _, p := range s.Ports {
		for _, g := range p.Groups {
			groups[g] = true
		}
	}
	s.Groups = slices.DeleteFunc(slices.Clone(s.Groups), func(g Group) bool { return !groups[g.ID] })
	for _, g := range s.Groups {
		delete(groups, g.ID)
	}
	// One that is not told lets nothing pass: better that than no filter for all the others.
	for _, id := range slices.Sorted(maps.Keys(groups)) {
		s.Groups = append(s.Groups, Group{ID: id, Revision: -1})
	}
	for _, g := range s.Groups {
		for _, r := range g.Rules {
			sets[r.RemoteSet] = true
		}
	}
	s.Sets = slices.DeleteFunc(slices.Clone(s.Sets), func(v Set) bool { return !sets[v.ID] })
	return s
}

// image is what the table should be.
type image struct {
	sets     []nftables.Set
	chains   []nft.Chain
	elements []nft.Element
	ordered  map[string]bool // chains whose rules have an order
}

func (s State) image(known numbering) (image, error) {
	im := image{sets: append(baseSets(), neededSets(s.Groups, s.Sets)...), chains: baseChains(),
		ordered: map[string]bool{}}
	for _, c := range im.chains {
		im.ordered[c.Name] = true
	}
	for _, g := range s.Groups {
		list, err := g.compile()
		if err != nil {
			return im, err
		}
		im.chains = append(im.chains, list...)
	}
	for _, p := range s.Ports {
		if err := p.validate(); err != nil {
			return im, err
		}
	}
	ports := elementsOf(s.Ports, known)
	im.elements = slices.Concat(baseElements(), revisions(s.Groups, s.Sets), ports)
	var limits []nft.Chain
	for _, p := range s.Ports {
		limits = append(limits, p.limitChains()...)
	}
	if len(limits) > 0 {
		im.chains = append(append(im.chains, limitBases()...), limits...)
	}
	for _, p := range profiles(s.Ports, known) {
		im.chains = append(im.chains, p.chains()...)
		im.ordered[p.chain(Egress, false)], im.ordered[p.chain(Ingress, false)] = true, true
		im.ordered[p.chain(Egress, true)], im.ordered[p.chain(Ingress, true)] = true, true
		im.elements = append(im.elements, p.elements()...)
	}
	var groups []string
	for _, g := range s.Groups {
		groups = append(groups, g.ID)
	}
	isOther := func(e nft.Element) bool { return e.Set != setPairs }
	pairs := slices.DeleteFunc(slices.Clone(ports), isOther)
	im.elements = append(im.elements, memberPairs(groups, pairs)...)
	for _, v := range s.Sets {
		im.elements = append(im.elements, v.elements()...)
	}
	return im, nil
}

// Reconcile makes the table hold exactly what s says, or not be there where s has no
// ports. Each difference is given to note: what it is of, what is wanted and what was
// there, "" for nothing. With dry nothing is changed, but something may be queued on the
// connection, which then must be given up. Flows and what is remembered of packets stay,
// unless the table must be recreated.
func (f *Filter) Reconcile(s State, dry bool, note func(object, want, have string)) error {
	exists, err := filter.Exists(f.conn)
	if err != nil {
		return err
	}
	s = s.needed()
	object := "nft table bridge " + tableName
	if len(s.Ports) == 0 {
		if !exists {
			return nil
		}
		ports, err := f.readElements(setPorts, limitSet(Egress), limitSet(Ingress))
		if err != nil {
			return err
		}
		if len(ports) > 0 { // otherwise it is left over from ports that were removed one by one
			note(object, "", "present")
		}
		if dry {
			return nil
		}
		return f.Remove()
	}
	known, err := f.numbering(s.Ports)
	if err != nil {
		return err
	}
	want, err := s.image(known)
	if err != nil {
		return err
	}
	if exists {
		damage, err := f.damage(want)
		if err != nil {
			return err
		}
		if damage == "" {
			return f.repair(want, dry, note)
		}
		note(object, "complete", damage)
	} else {
		note(object, "complete", "")
	}
	if dry {
		return nil
	}
	t := f.begin()
	if exists {
		t.DeleteTable(filter)
	}
	t.make(want)
	return t.commit()
}

func (t *transaction) make(want image) {
	t.AddTable(filter)
	for _, s := range want.sets {
		t.AddSet(filter, s)
	}
	t.narrower = true // a first epoch
	t.AddChains(filter, want.chains)
	t.AddElements(filter, want.elements)
}

// damage says what cannot be changed in place: a set or a base chain that is of another
// kind, or is missing.
func (f *Filter) damage(want image) (string, error) {
	sets, err := f.readSets()
	if err != nil {
		return "", err
	}
	for _, w := range want.sets {
		have := sets[w.Name]
		if have == nil {
			continue
		}
		if !nft.SameSet(have, w) || have.Timeout != w.Timeout || have.Dynamic != w.Dynamic {
			return "another type of set " + w.Name, nil
		}
	}
	chains, err := filter.Chains(f.conn)
	if err != nil {
		return "", err
	}
	for _, w := range want.chains {
		have := chains[w.Name]
		if have == nil {
			continue
		}
		if !nft.SameChain(have, w) {
			return "another type of chain " + w.Name, nil
		}
	}
	return "", nil
}

// repair changes all that differs, in one transaction.
func (f *Filter) repair(want image, dry bool, note func(object, want, have string)) error {
	t := f.begin()
	sets, err := f.readSets()
	if err != nil {
		return err
	}
	chains, err := filter.Chains(f.conn)
	if err != nil {
		return err
	}
	var static []string
	for _, s := range want.sets {
		if sets[s.Name] == nil {
			note("nft set "+s.Name, "present", "")
			t.AddSet(filter, s)
		} else if !s.Dynamic {
			static = append(static, s.Name)
		}
		delete(sets, s.Name)
	}
	// A rule of a chain that is there may go to one that is not yet.
	for _, c := range want.chains {
		if chains[c.Name] == nil {
			note("nft chain "+c.Name, "present", "")
			t.AddChain(filter, c)
		}
	}
	for _, c := range want.chains {
		if chains[c.Name] == nil {
			t.AddRules(filter, c.Name, c.Rules)
		} else if differs, err := t.syncRules(f, c, want.ordered[c.Name]); err != nil {
			return err
		} else if differs {
			note("nft chain "+c.Name, "its rules", "other rules")
		}
		delete(chains, c.Name)
	}
	// A set that goes leaves no elements to be compared.
	have, err := f.readElements(static...)
	if err != nil {
		return err
	}
	gone, more := nft.Difference(have, want.elements)
	for _, e := range gone {
		if e.Set != setRevisions && !isLeftover(e.GoTo) {
			note("nft element "+e.Set, "", e.String())
		}
	}
	for _, e := range more {
		note("nft element "+e.Set, e.String(), "")
	}
	lost, err := f.lost(sets, want)
	if err != nil {
		return err
	}
	isRule := func(e nft.Element) bool { return e.Set != setRevisions }
	if lost || slices.ContainsFunc(gone, isRule) {
		t.narrower = true
	}
	t.DeleteElements(filter, gone)
	t.AddElements(filter, more)
	for _, name := range slices.Sorted(maps.Keys(chains)) {
		if !isLeftover(name) {
			note("nft chain "+name, "", "present")
		}
		t.last = append(t.last, name)
	}
	for _, name := range slices.Sorted(maps.Keys(sets)) {
		if !isLeftover(name) {
			note("nft set "+name, "", "present")
		}
		t.lastSets = append(t.lastSets, name)
	}
	if dry {
		return nil // what is queued goes with the connection, which the caller gives up
	}
	return t.commit()
}

// isLeftover tells what is there for groups and profiles, which ChangePorts leaves when
// the last port goes that had them (see Collect). It is harmless, so it is collected in
// passing and is no difference.
func isLeftover(name string) bool {
	kind, _, found := strings.Cut(name, "-")
	if !found {
		kind, _, found = strings.Cut(name, ofProfile)
	}
	for _, d := range directions {
		if name == limitBase(d) || found && (kind == judges(d, false) || kind == judges(d, true)) {
			return true
		}
	}
	for _, v := range nft.Versions {
		for _, set := range []string{memberSet("", v), memberPairSet("", v), hostSet("", v),
			rangeSet("", v), earlierSet("", v)} {
			if found && kind+"-" == set {
				return true
			}
		}
	}
	return false
}
