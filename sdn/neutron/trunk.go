package neutron

import (
	"context"
	"fmt"
	"iter"
	"math/rand/v2"
	"net/url"
	"slices"

	gc "github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/trunks"
	"github.com/kuryr/kuryr/internal/valid"
	"github.com/kuryr/kuryr/sdn"
)

// trunkWire is a trunk as Neutron says it. gophercloud's Trunk has none of what the cache and
// collection need in common of all nouns (meta).
type trunkWire struct {
	meta
	Parent   sdn.ID        `json:"port_id"`
	Subports []subportWire `json:"sub_ports"`
	AdminUp  bool          `json:"admin_state_up"`
}

// subportWire is a subport. All of Kuryr's are VLANs.
type subportWire = gc.Subport

func vlanSubport(port sdn.ID, vlan int) subportWire {
	return subportWire{PortID: string(port), SegmentationType: "vlan", SegmentationID: vlan}
}

var trunks = collection[*trunkWire]{title: "trunk", item: "trunk", items: "trunks", path: "/trunks"}

const vlanRaces = 10 // how often a VLAN is chosen again because another process was faster

func (w *trunkWire) decode(o *owner) sdn.Trunk {
	t := sdn.Trunk{Meta: w.meta.decode(o), Parent: w.Parent, Disabled: !w.AdminUp}
	for _, s := range w.Subports {
		t.Subports = append(t.Subports, sdn.Subport{Port: sdn.ID(s.PortID), VLAN: s.SegmentationID})
	}
	return t
}

// needTrunks refuses if Neutron has no trunks.
func (p *Provider) needTrunks(ctx context.Context) error {
	return p.needExtension(ctx, "trunk", "trunk",
		"this Neutron has no trunks: its service plugin is not loaded")
}

// Trunk asks Neutron for a trunk.
func (p *Provider) Trunk(ctx context.Context, id sdn.ID) (sdn.Trunk, error) {
	if err := p.needTrunks(ctx); err != nil {
		return sdn.Trunk{}, err
	}
	w, err := trunks.read(ctx, p, id)
	return decoded(p.owner, w, err)
}

// FindTrunks streams the trunks that match.
func (p *Provider) FindTrunks(ctx context.Context, q sdn.TrunkQuery) iter.Seq2[sdn.Trunk, error] {
	if err := p.needTrunks(ctx); err != nil {
		return failed[sdn.Trunk](err)
	}
	filter := p.query(q.Match)
	addIDs(filter, "port_id", q.Parents)
	return matching(ctx, p, trunks, filter, q.Matches, nil)
}

// EnsureTrunk needs no look after making: Neutron gives a port one trunk at most.
func (p *Provider) EnsureTrunk(ctx context.Context, spec sdn.TrunkSpec) (sdn.Trunk, error) {
	p.owner.note(spec.Project)
	if err := valid.Base("trunk", spec.Base); err != nil {
		return sdn.Trunk{}, err
	}
	if err := p.needTrunks(ctx); err != nil {
		return sdn.Trunk{}, err
	}
	w, _, err := ensure(ctx, p, trunks, spec.Base, before, func(ctx context.Context) (*trunkWire, error) {
		body := p.body(spec.Base)
		body["port_id"] = spec.Parent
		setNot(body, "admin_state_up", nonZero(spec.Disabled))
		return trunks.create(ctx, p, body)
	})
	if err != nil {
		return sdn.Trunk{}, err
	}
	p.cache.ports.drop(spec.Parent) // Neutron writes into its binding
	if spec.Parent != w.Parent {
		return sdn.Trunk{}, immutable("trunk", w.ID, "parent", w.Parent, spec.Parent)
	}
	body := map[string]any{}
	setNot(body, "admin_state_up", unless(nonZero(spec.Disabled), !w.AdminUp, is))
	w, err = finished(ctx, p, trunks, w, spec.Base, body)
	return decoded(p.owner, w, err)
}

// UpdateTrunk changes a trunk.
func (p *Provider) UpdateTrunk(ctx context.Context, id sdn.ID, change sdn.TrunkPatch) (sdn.Trunk, error) {
	if err := p.needTrunks(ctx); err != nil {
		return sdn.Trunk{}, err
	}
	body := map[string]any{}
	setNot(body, "admin_state_up", change.Disabled)
	w, err := patch(ctx, p, trunks, id, change.Patch, body)
	return decoded(p.owner, w, err)
}

// DeleteTrunk deletes a trunk. Neutron deletes a disabled one only after it is enabled.
func (p *Provider) DeleteTrunk(ctx context.Context, id sdn.ID) error {
	if err := p.needTrunks(ctx); err != nil {
		return err
	}
	p.keepTrunk(id, nil)
	err := trunks.erase(ctx, p, id, 0)
	if !sdn.IsConflict(err) {
		return err
	}
	w, errRead := trunks.read(ctx, p, id)
	switch {
	case sdn.IsNotFound(errRead):
		return nil
	case errRead != nil || w.AdminUp:
		return err
	}
	if _, err := trunks.update(ctx, p, id, int64(w.Revision), map[string]any{"admin_state_up": true}); err != nil {
		return err
	}
	return trunks.erase(ctx, p, id, 0)
}

// keepTrunk stores a trunk that Neutron answers with, and drops what is known for any
// other answer. That saves the read before a change: Neutron refuses one that does not
// fit, and then the trunk is read.
func (p *Provider) keepTrunk(id sdn.ID, w *trunkWire) {
	if w == nil || sdn.ID(w.ID) != id {
		p.cache.trunks.drop(id)
		return
	}
	p.cache.trunks.put(w)
}

// keepSubports stores the trunk that a change of its subports answers with, or drops what is known.
func (p *Provider) keepSubports(id sdn.ID, r gc.UpdateSubportsResult) error {
	w := &trunkWire{}
	err := p.client.typed(r.Err)
	if err == nil {
		err = p.client.typed(r.ExtractInto(w))
	}
	if err != nil {
		w = nil
	}
	p.keepTrunk(id, w)
	return err
}

// AttachSubports adds the ports that are missing by one request, which Neutron does
// wholly or not at all. It chooses VLANs at random among those known to be free, so that
// processes which change one trunk concurrently seldom choose the same. If they do,
// Neutron refuses the later one (DuplicateSubPort), which reads the trunk and chooses
// again. It reads the trunk before it reports that a port is attached or that no VLAN is
// free.
//
// Neutron refuses a port with a device id (conflict, InUse): write that afterwards. It
// keeps the port's description, and so its Key.
func (p *Provider) AttachSubports(ctx context.Context, trunk sdn.ID, subports []sdn.Subport) ([]sdn.Subport, error) {
	if err := valid.Subports(subports); err != nil {
		return nil, err
	}
	if err := p.needTrunks(ctx); err != nil {
		return nil, err
	}
	unlock, err := p.locks.lock(ctx, "subports of "+string(trunk))
	if err != nil {
		return nil, err
	}
	defer unlock()
	for i, s := range subports {
		if s.Port == "" {
			return nil, sdn.Invalid("trunk", fmt.Sprintf("subports[%d].port", i), "is missing")
		}
		defer p.cache.ports.drop(s.Port) // Neutron makes it a subport, and writes into its binding
	}
	w, remembered := p.cache.trunks.get(trunk)
	if remembered {
		if _, missing, err := chooseVLANs(w, subports); err != nil || len(missing) < len(subports) {
			w, remembered = nil, false
		}
	}
	for n := 1; ; n++ {
		if w == nil {
			if w, err = trunks.read(ctx, p, trunk); err != nil {
				return nil, err
			}
			p.keepTrunk(trunk, w)
		}
		all, missing, err := chooseVLANs(w, subports)
		if err != nil || len(missing) == 0 {
			return all, err
		}
		added := gc.AddSubports(once(ctx), p.client.api(), url.PathEscape(string(trunk)),
			gc.AddSubportsOpts{Subports: missing})
		if err = p.keepSubports(trunk, added); err == nil {
			return all, nil
		}
		// Another process may have taken a VLAN, or have attached the very port; an answer that was lost may have been a good one.
		if n == vlanRaces || !sdn.IsUnavailable(err) && sdn.ReasonOf(err) != sdn.Exists && (!remembered || !sdn.IsConflict(err)) {
			return nil, err
		}
		now, errRead := trunks.read(ctx, p, trunk)
		if errRead != nil || !moved(w, now, missing) {
			return nil, err
		}
		w, remembered = now, false
		p.keepTrunk(trunk, w)
	}
}

// moved reports whether the cause of a refusal may be another change: one of the ports is
// attached, or one of the VLANs is another's.
func moved(before, now *trunkWire, missing []subportWire) bool {
	return slices.ContainsFunc(now.Subports, func(s subportWire) bool {
		return !slices.Contains(before.Subports, s) &&
			slices.ContainsFunc(missing, func(m subportWire) bool {
				return m.PortID == s.PortID || m.SegmentationID == s.SegmentationID
			})
	})
}

// chooseVLANs gives every subport its VLAN: the one it has, the one it wants or a free
// one. missing are those to attach.
func chooseVLANs(w *trunkWire, subports []sdn.Subport) (all []sdn.Subport, missing []subportWire, err error) {
	has := map[sdn.ID]int{}
	owner := map[int]sdn.ID{}
	for _, s := range w.Subports {
		port := sdn.ID(s.PortID)
		has[port], owner[s.SegmentationID] = s.SegmentationID, port
	}
	all = slices.Clone(subports)
	for i, s := range all {
		if vlan, ok := has[s.Port]; ok {
			all[i].VLAN = vlan
			continue
		}
		if s.VLAN == 0 {
			continue
		}
		if other, taken := owner[s.VLAN]; taken {
			return nil, nil, sdn.Conflict(sdn.Exists, "trunk", fmt.Sprintf("subports[%d].vlan", i), "VLAN %d is port %s's", s.VLAN, other)
		}
		owner[s.VLAN] = s.Port
		missing = append(missing, vlanSubport(s.Port, s.VLAN))
	}
	var free []int
	for vlan := 1; vlan <= valid.MaxVLAN; vlan++ {
		if _, taken := owner[vlan]; !taken {
			free = append(free, vlan)
		}
	}
	rand.Shuffle(len(free), func(i, j int) { free[i], free[j] = free[j], free[i] })
	for i, s := range all {
		if s.VLAN != 0 {
			continue
		}
		if len(free) == 0 {
			return nil, nil, sdn.Exhausted(sdn.NoVLANs, "trunk", "all its %d VLANs are taken", valid.MaxVLAN)
		}
		all[i].VLAN, free = free[0], free[1:]
		missing = append(missing, vlanSubport(s.Port, all[i].VLAN))
	}
	return all, missing, nil
}

// DetachSubports sends one request if all ports are attached. If one is not, Neutron
// removes none: then the trunk is read, and those that are attached are removed.
func (p *Provider) DetachSubports(ctx context.Context, trunk sdn.ID, ids []sdn.ID) error {
	if err := p.needTrunks(ctx); err != nil {
		return err
	}
	unlock, err := p.locks.lock(ctx, "subports of "+string(trunk))
	if err != nil {
		return err
	}
	defer unlock()
	for _, id := range ids {
		defer p.cache.ports.drop(id)
	}
	leaving := without(asSet(ids), []sdn.ID{""})
	for n := 1; len(leaving) > 0; n++ {
		opts := gc.RemoveSubportsOpts{Subports: make([]gc.RemoveSubport, len(leaving))}
		for i, id := range leaving {
			opts.Subports[i].PortID = string(id)
		}
		removed := gc.RemoveSubports(once(ctx), p.client.api(), url.PathEscape(string(trunk)), opts)
		err := p.keepSubports(trunk, removed)
		if err == nil {
			return nil
		}
		w, errRead := trunks.read(ctx, p, trunk)
		if sdn.IsNotFound(errRead) {
			return nil
		}
		if errRead != nil {
			return err
		}
		there := slices.DeleteFunc(slices.Clone(leaving), func(id sdn.ID) bool {
			return !slices.ContainsFunc(w.Subports, func(s subportWire) bool { return s.PortID == string(id) })
		})
		if len(there) > 0 && (n == maxRaces || len(there) == len(leaving)) {
			return err
		}
		leaving = there
	}
	return nil
}
