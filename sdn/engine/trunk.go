package engine

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"

	"github.com/kuryr/kuryr/internal/valid"
	"github.com/kuryr/kuryr/sdn"
)

// That a port is a subport is in its own row, and in an index by trunk and VLAN: so a change of one
// costs the same in a trunk of thousands. As with Neutron a subport has its parent's host, and the
// device owner that says what it is; both are gone when it leaves. Plugged it is with its parent
// alone: the data path makes its link, and no binding driver one on this machine.

var errNoTrunks = sdn.Unsupported("trunk", "this machine's kernel makes no VLAN links: its module 8021q is missing (modprobe 8021q, or a kernel with CONFIG_VLAN_8021Q, and start Kuryr anew)")

// withTrunks is what every call begins with that is about trunks.
func (e *Engine) withTrunks() error {
	if !e.realm.Supports().VLANs {
		return errNoTrunks
	}
	return nil
}

// showTrunk has the subports in the order of their VLANs.
func (e *Engine) showTrunk(b Tx, r *TrunkRow) (sdn.Trunk, error) {
	e.fillMeta(&r.Meta)
	t := r.Trunk
	t.Subports = subportsOf(b, r.ID)
	return t, nil
}

// subportsOf reads keys alone.
func subportsOf(b Tx, trunk sdn.ID) []sdn.Subport {
	var out []sdn.Subport
	prefix := key(string(trunk), "")
	for k, port := range with(b, Ports.indexTable("trunk"), prefix) {
		out = append(out, sdn.Subport{Port: sdn.ID(port), VLAN: int(binary.BigEndian.Uint16(k[len(prefix):]))})
	}
	return out
}

// EnsureTrunk makes, finishes or adopts a trunk.
func (e *Engine) EnsureTrunk(ctx context.Context, spec sdn.TrunkSpec) (sdn.Trunk, error) {
	return e.EnsureTrunkWith(ctx, spec, nil)
}

// EnsureTrunkWith makes, finishes or adopts a trunk with subports, in one transaction.
func (e *Engine) EnsureTrunkWith(ctx context.Context, spec sdn.TrunkSpec, subports []sdn.Subport) (out sdn.Trunk, err error) {
	if err := errors.Join(e.withTrunks(), valid.Base("trunk", spec.Base), valid.Subports(subports)); err != nil {
		return out, err
	}
	err = e.update(ctx, func(t *tx) error {
		r, err := t.ensureTrunk(spec)
		if err != nil {
			return err
		}
		if _, err = t.attach(r, subports); err != nil {
			return err
		}
		out, err = e.showTrunk(t.Tx, r)
		e.disown(ctx, &out.Meta)
		return err
	})
	if err != nil && !sdn.IsUnavailable(err) {
		return sdn.Trunk{}, err
	}
	return out, err
}

func (t *tx) ensureTrunk(spec sdn.TrunkSpec) (*TrunkRow, error) {
	r, err := Trunks.ensured(t, spec.Base)
	if err != nil {
		return nil, err
	}
	if r == nil {
		return t.makeTrunk(spec)
	}
	return r, t.adoptTrunk(r, spec)
}

func (t *tx) makeTrunk(spec sdn.TrunkSpec) (*TrunkRow, error) {
	parent, err := Ports.Need(t.Tx, spec.Parent)
	switch {
	case err != nil:
		return nil, err
	case parent.Own:
		return nil, inUse("port", parent.ID, "it is the SDN's own (%s)", parent.DeviceOwner)
	}
	if in := t.trunkOf(parent); in != "" {
		return nil, sdn.Conflict(sdn.Exists, "trunk", "parent", "port %s is in trunk %s", parent.ID, in)
	}
	r := &TrunkRow{sdn.Trunk{Meta: newMeta(spec.Base), Parent: parent.ID, Disabled: spec.Disabled}}
	return r, Trunks.put(t, r)
}

func (t *tx) adoptTrunk(r *TrunkRow, spec sdn.TrunkSpec) error {
	if spec.Parent != "" && spec.Parent != r.Parent {
		return immutable("trunk", r.ID, "parent", r.Parent, spec.Parent)
	}
	changed, err := adopt("trunk", &r.Meta, spec.Base)
	if changed = set(&r.Disabled, spec.Disabled) || changed; err != nil || !changed {
		return err
	}
	return Trunks.put(t, r)
}

// trunkOf is the trunk that a port is the parent or a subport of; "" if it is in none.
func (t *tx) trunkOf(r *PortRow) sdn.ID {
	if r.Trunk != "" {
		return r.Trunk
	}
	return Trunks.ID(t.Tx, "parent", string(r.ID))
}

// Trunk gets a trunk.
func (e *Engine) Trunk(ctx context.Context, id sdn.ID) (out sdn.Trunk, err error) {
	if err := e.withTrunks(); err != nil {
		return out, err
	}
	return get(ctx, e, Trunks, id, e.showTrunk)
}

// FindTrunks streams trunks.
func (e *Engine) FindTrunks(ctx context.Context, q sdn.TrunkQuery) iter.Seq2[sdn.Trunk, error] {
	if err := e.withTrunks(); err != nil {
		return broken[sdn.Trunk](err)
	}
	var byParent []scan
	for _, id := range q.Parents {
		byParent = append(byParent, scan{index: "parent", unique: true, prefix: string(id)})
	}
	scans, err := e.scansOf(ctx, Trunks.Noun, q.Match, byParent, byProject(q.Match))
	if err != nil {
		return broken[sdn.Trunk](err)
	}
	return search(ctx, e, Trunks, scans, e.showTrunk, q.Matches)
}

// UpdateTrunk changes a trunk.
func (e *Engine) UpdateTrunk(ctx context.Context, id sdn.ID, change sdn.TrunkPatch) (out sdn.Trunk, err error) {
	if err := errors.Join(e.withTrunks(), valid.Patch("trunk", change.Patch)); err != nil {
		return out, err
	}
	err = e.update(ctx, func(t *tx) error {
		r, err := Trunks.Need(t.Tx, id)
		if err != nil {
			return err
		}
		if err := Trunks.patch(t, &r.Meta, change.Patch); err != nil {
			return err
		}
		if change.Disabled != nil {
			r.Disabled = *change.Disabled
		}
		if err := Trunks.put(t, r); err != nil {
			return err
		}
		out, err = e.showTrunk(t.Tx, r)
		e.disown(ctx, &out.Meta)
		return err
	})
	return out, err
}

// AttachSubports adds ports to a trunk, in one transaction. A port that is of a device IsConflict,
// InUse; one of an external network, which cannot be plugged, IsUnsupported.
func (e *Engine) AttachSubports(ctx context.Context, trunk sdn.ID, subports []sdn.Subport) (out []sdn.Subport, err error) {
	if err := errors.Join(e.withTrunks(), valid.Subports(subports)); err != nil {
		return nil, err
	}
	err = e.update(ctx, func(t *tx) error {
		r, err := Trunks.Need(t.Tx, trunk)
		if err != nil {
			return err
		}
		for _, s := range subports {
			if r.Disabled && !t.isIn(r, s.Port) {
				return errTrunkDown(r)
			}
		}
		out, err = t.attach(r, subports)
		return err
	})
	if err != nil && !sdn.IsUnavailable(err) {
		return nil, err
	}
	return out, err
}

func errTrunkDown(r *TrunkRow) error {
	return inUse("trunk", r.ID, "it is switched off: its subports cannot be changed")
}

// isIn reports whether a port is a subport of the trunk.
func (t *tx) isIn(r *TrunkRow, port sdn.ID) bool {
	return slices.ContainsFunc(subportsOf(t.Tx, r.ID), func(s sdn.Subport) bool { return s.Port == port })
}

// attach gives the VLANs that are asked for before it chooses others.
func (t *tx) attach(r *TrunkRow, subports []sdn.Subport) ([]sdn.Subport, error) {
	parent, err := Ports.Need(t.Tx, r.Parent)
	if err != nil {
		return nil, err
	}
	carrier, err := Networks.Need(t.Tx, parent.Network)
	if err != nil {
		return nil, err
	}
	out := make([]sdn.Subport, len(subports))
	joined := false
	for _, choose := range []bool{false, true} {
		for i, s := range subports {
			if (s.VLAN == 0) != choose {
				continue
			}
			row, err := t.joinable(r, carrier.MTU, fmt.Sprintf("subports[%d]", i), s)
			if err != nil {
				return nil, err
			}
			Ports.touch(t, row)
			if row.Trunk == "" {
				if err := t.join(r, parent, row, s.VLAN); err != nil {
					return nil, err
				}
				joined = true
			}
			out[i] = sdn.Subport{Port: row.ID, VLAN: row.VLAN}
		}
	}
	if !joined {
		return out, nil
	}
	return out, Trunks.put(t, r)
}

// joinable finds a port that is a subport of the trunk, or may become one: mtu is what the parent's interface carries.
func (t *tx) joinable(r *TrunkRow, mtu int, field string, s sdn.Subport) (*PortRow, error) {
	row, err := Ports.Need(t.Tx, s.Port)
	if err != nil || row.Trunk == r.ID {
		return row, err
	}
	n, err := Networks.Need(t.Tx, row.Network)
	if err != nil {
		return nil, err
	}
	switch in := t.trunkOf(row); {
	case in != "":
		return nil, sdn.Conflict(sdn.Exists, "trunk", field+".port", "port %s is in trunk %s", row.ID, in)
	case row.Own:
		return nil, inUse("port", row.ID, "it is the SDN's own (%s)", row.DeviceOwner)
	case row.DeviceID != "":
		return nil, inUse("port", row.ID, "it is of the device %q", row.DeviceID)
	case n.External:
		return nil, errNoPlug
	case n.MTU > mtu:
		return nil, sdn.Invalid("trunk", field+".mtu", "port %s is of a network with an MTU of %d bytes, the parent of one with %d: it must not be larger", row.ID, n.MTU, mtu)
	case s.VLAN == 0:
		return row, nil
	}
	if holder := Ports.ID(t.Tx, "trunk", vlanKey(r.ID, s.VLAN)); holder != "" {
		return nil, sdn.Conflict(sdn.Exists, "trunk", field+".vlan", "VLAN %d is port %s's", s.VLAN, holder)
	}
	return row, nil
}

// join makes a port a subport; VLAN 0 chooses one.
func (t *tx) join(r *TrunkRow, parent, row *PortRow, vlan int) error {
	if vlan == 0 {
		if vlan = t.freeVLAN(r.ID); vlan == 0 {
			return sdn.Exhausted(sdn.NoVLANs, "trunk", "all its %d VLANs are taken", valid.MaxVLAN)
		}
	}
	owner := sdn.OwnerSubport
	return t.changePort(row, sdn.PortPatch{Host: &parent.Host, DeviceOwner: &owner}, func(row *PortRow) bool {
		row.Trunk, row.VLAN = r.ID, vlan
		return true
	})
}

// freeVLAN chooses a VLAN of the trunk, 0 if there is none. It is any, so that one that was just
// given back, whose link may still be there, is seldom given again.
func (t *tx) freeVLAN(trunk sdn.ID) int {
	from := rand.IntN(valid.MaxVLAN)
	for i := range valid.MaxVLAN {
		if vlan := 1 + (from+i)%valid.MaxVLAN; Ports.ID(t.Tx, "trunk", vlanKey(trunk, vlan)) == "" {
			return vlan
		}
	}
	return 0
}

// leave makes a subport a port like others.
func (t *tx) leave(row *PortRow) error {
	none := ""
	return t.changePort(row, sdn.PortPatch{Host: &none, DeviceOwner: &none}, func(row *PortRow) bool {
		row.Trunk, row.VLAN = "", 0
		return true
	})
}

// follow brings the subports of a port that has a trunk to its host.
func (t *tx) follow(parent *PortRow) error {
	trunk := Trunks.ID(t.Tx, "parent", string(parent.ID))
	if trunk == "" {
		return nil
	}
	for _, s := range subportsOf(t.Tx, trunk) {
		row, err := Ports.Need(t.Tx, s.Port)
		if err != nil {
			return err
		}
		if err := t.changePort(row, sdn.PortPatch{Host: &parent.Host}, func(*PortRow) bool { return false }); err != nil {
			return err
		}
	}
	return nil
}

// checkFollows refuses to plug a subport elsewhere than its parent.
func checkFollows(r *PortRow, host *string) error {
	if r.Trunk != "" && host != nil && *host != r.Host {
		return inUse("port", r.ID, "it is a subport of trunk %s: its host is that of the trunk's parent", r.Trunk)
	}
	return nil
}

// checkNotInTrunk refuses to take a port away that a trunk needs.
func (t *tx) checkNotInTrunk(r *PortRow) error {
	if in := t.trunkOf(r); in != "" {
		return inUse("port", r.ID, "it is in trunk %s", in)
	}
	return nil
}

// DetachSubports removes ports from a trunk, in one transaction.
func (e *Engine) DetachSubports(ctx context.Context, trunk sdn.ID, ids []sdn.ID) error {
	if err := e.withTrunks(); err != nil {
		return err
	}
	return e.release(ctx, func(t *tx) error {
		r, err := Trunks.Get(t.Tx, trunk)
		if err != nil || r == nil {
			return err
		}
		left := false
		for _, id := range ids {
			row, err := Ports.Get(t.Tx, id)
			if err != nil {
				return err
			}
			if row == nil || row.Trunk != trunk {
				continue
			}
			if r.Disabled {
				return errTrunkDown(r)
			}
			if err := t.leave(row); err != nil {
				return err
			}
			left = true
		}
		if !left {
			return nil
		}
		return Trunks.put(t, r)
	})
}

// DeleteTrunk deletes a trunk and frees its subports.
func (e *Engine) DeleteTrunk(ctx context.Context, id sdn.ID) error {
	if err := e.withTrunks(); err != nil {
		return err
	}
	return e.release(ctx, func(t *tx) error { return t.deleteTrunk(id) })
}

func (t *tx) deleteTrunk(id sdn.ID) error {
	if !Trunks.has(t.Tx, id) {
		return nil
	}
	for _, s := range subportsOf(t.Tx, id) {
		row, err := Ports.Need(t.Tx, s.Port)
		if err != nil {
			return err
		}
		if err := t.leave(row); err != nil {
			return err
		}
	}
	return Trunks.del(t, id)
}

// ParentOf is the parent of a subport.
func ParentOf(b Tx, r *PortRow) (*PortRow, error) {
	trunk, err := Trunks.Need(b, r.Trunk)
	if err != nil {
		return nil, err
	}
	return Ports.Need(b, trunk.Parent)
}
