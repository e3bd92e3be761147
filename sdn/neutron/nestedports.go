package neutron

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/kuryr/kuryr/sdn"
)

// undoTime bounds the removal of a port that could not be attached.
const undoTime = 10 * time.Second

// EnsurePorts creates ports, and attaches those of this host. It deletes a port that cannot be
// attached, unless it was attached before: a container may run on it.
func (p *Nested) EnsurePorts(ctx context.Context, specs []sdn.PortSpec) ([]sdn.Port, error) {
	plain := slices.Clone(specs)
	for i, s := range specs {
		isOwn := s.Host == "" || s.Host == p.host
		if p.mode == NestedMacvlan && s.VNICType == sdn.VNICNormal && isOwn {
			// OVN sends what is for a MAC of two ports to either. If no agent of its plugs one of
			// them, it leaves the MAC to the machine's.
			plain[i].VNICType = sdn.VNICBaremetal
		}
		if s.Host != p.host {
			continue
		}
		if err := p.fits(ctx, s.Network); err != nil {
			return nil, err
		}
		plain[i].Host, plain[i].Tags = "", append(slices.Clone(s.Tags), p.tag)
		if p.mode == NestedVLAN { // no port with a device can be attached
			plain[i].DeviceID = ""
		}
	}
	ports, err := p.Provider.EnsurePorts(ctx, plain)
	errs, byItem := errorsOf(err, len(specs))
	if err != nil && (!byItem || len(ports) != len(specs)) {
		return ports, err
	}
	for i, s := range specs {
		if s.Host != p.host || errs[i] != nil {
			continue
		}
		failpoint.Here("nested.ensureports.made")
		was, known := p.ports.get(ports[i].ID)
		attached, err := p.enter(ctx, ports[i], s.DeviceID)
		if err != nil {
			undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
			if (!known || was.off) && !p.entered(undo, ports[i], s.DeviceID) {
				err = errors.Join(err, p.DeletePorts(undo, []sdn.ID{ports[i].ID}))
			}
			cancel()
		}
		ports[i], errs[i] = attached, err
	}
	return ports, bulk(errs)
}

// errorsOf returns the error of each of n items of a bulk call. If err is one of the whole call,
// byItem is false and each item has it.
func errorsOf(err error, n int) (errs []error, byItem bool) {
	var some *sdn.BulkError
	if errors.As(err, &some) && len(some.Errs) == n {
		return slices.Clone(some.Errs), true
	}
	return slices.Repeat([]error{err}, n), false
}

// entered reports whether a port that EnsurePorts returned may have been attached before, by this
// process or an earlier one.
func (p *Nested) entered(ctx context.Context, port sdn.Port, device string) bool {
	if p.mode == NestedVLAN || port.DeviceID != device {
		return port.DeviceID != "" // in a trunk it is written last, never by the creator of the port
	}
	own, err := p.machine(ctx, true)
	if err != nil || own.NoPortSecurity {
		return !sdn.IsNotFound(err)
	}
	_, lacks := exchanged(own.AllowedPairs, nil, sentBy(port))
	return !lacks
}

// UpdatePort changes a port. Its Host attaches the port to this host, or detaches it.
func (p *Nested) UpdatePort(
	ctx context.Context, id sdn.ID, change sdn.PortPatch,
) (sdn.Port, error) {
	port, err := p.update(ctx, id, change)
	if err != nil {
		p.ports.drop(id)
	}
	return port, err
}

func (p *Nested) update(ctx context.Context, id sdn.ID, change sdn.PortPatch) (sdn.Port, error) {
	if change.Host == nil && (!sends(change) || p.mode != NestedMacvlan) {
		port, err := p.Provider.UpdatePort(ctx, id, change)
		if err != nil {
			return port, err
		}
		return p.view(ctx, port)
	}
	now, err := p.lately(ctx, id)
	if err != nil {
		return sdn.Port{}, err
	}
	switch {
	case change.Host != nil && *change.Host == p.host:
		return p.bind(ctx, now, change)
	case change.Host != nil && p.isHere(now):
		return p.unbind(ctx, now, change)
	}
	if err := p.removePairs(ctx, now, change); err != nil {
		return sdn.Port{}, err
	}
	port, err := p.Provider.UpdatePort(ctx, id, change)
	if err != nil {
		return port, err
	}
	if p.isHere(now) {
		failpoint.Here("nested.updateport.changed")
		if err := p.exchange(ctx, nil, sentBy(port)); err != nil {
			return sdn.Port{}, err
		}
	}
	return p.view(ctx, port)
}

// lately returns a port as this process left it, or as the SDN's provider found it. Another program
// may have changed it since: a caller compares its revision then, or does what is right anyway.
func (p *Nested) lately(ctx context.Context, id sdn.ID) (sdn.Port, error) {
	if h, ok := p.ports.get(id); ok {
		return h.port, nil
	}
	q := sdn.PortQuery{Match: sdn.Match{IDs: []sdn.ID{id}}}
	port, found, err := sdn.First(p.Provider.FindPorts(ctx, q))
	if err == nil && !found {
		err = sdn.NotFound("port", id)
	}
	return port, err
}

// bind changes a port, with the tag first, and attaches it.
func (p *Nested) bind(
	ctx context.Context, now sdn.Port, change sdn.PortPatch,
) (sdn.Port, error) {
	if err := p.fits(ctx, now.Network); err != nil {
		return sdn.Port{}, err
	}
	tags := slices.Clone(now.Tags)
	if change.Tags != nil {
		tags = slices.Clone(*change.Tags)
	}
	if !slices.Contains(tags, p.tag) {
		tags = append(tags, p.tag)
	}
	device := now.DeviceID
	if change.DeviceID != nil {
		device = *change.DeviceID
	}
	change.Host, change.Tags = nil, &tags
	if p.mode == NestedVLAN { // no port with a device can be attached
		change.DeviceID, change.DeviceOwner = nil, nil
	}
	if err := p.removePairs(ctx, now, change); err != nil {
		return sdn.Port{}, err
	}
	port, err := p.Provider.UpdatePort(ctx, now.ID, change)
	if err != nil {
		return sdn.Port{}, err
	}
	failpoint.Here("nested.bind.tagged")
	return p.enter(ctx, port, device)
}

// removePairs removes a port's pairs from the machine's port before what it sends as changes: after that
// the old pairs would be unknown.
func (p *Nested) removePairs(ctx context.Context, now sdn.Port, change sdn.PortPatch) error {
	if p.mode != NestedMacvlan || !sends(change) || !p.isHere(now) {
		return nil
	}
	err := p.exchange(ctx, sentBy(now), nil)
	failpoint.Here("nested.hush.left")
	return err
}

// sends reports whether a change is of what a port may send as.
func sends(change sdn.PortPatch) bool {
	return change.MAC != nil || change.Addresses != nil || change.AllowedPairs != nil
}

// enter attaches a port that has the tag, and then gives it its device.
func (p *Nested) enter(ctx context.Context, port sdn.Port, device string) (sdn.Port, error) {
	p.ports.drop(port.ID) // it may have been detached before
	if !slices.Contains(port.Tags, p.tag) {
		return sdn.Port{}, untagged()
	}
	if port.DeviceID != "" && port.DeviceID != device {
		return sdn.Port{}, taken(port)
	}
	h, err := held{port: port}, error(nil)
	if p.mode == NestedMacvlan {
		err = p.exchange(ctx, nil, sentBy(port))
	} else {
		h, err = p.join(ctx, port, device)
	}
	if err != nil {
		return sdn.Port{}, err
	}
	p.hold(h)
	return p.attached(ctx, h.port, h.vlan)
}

// join makes a port a subport of the machine's trunk, which Neutron does only while it has no
// device, and gives it its device.
func (p *Nested) join(ctx context.Context, port sdn.Port, device string) (held, error) {
	trunk, err := p.trunk(ctx)
	if err != nil {
		return held{}, err
	}
	joined, err := p.AttachSubports(ctx, trunk, []sdn.Subport{{Port: port.ID}})
	if err != nil {
		return held{}, p.lost(ctx, err)
	}
	failpoint.Here("nested.join.attached")
	if port.DeviceID == device {
		port, err = p.Provider.Port(ctx, port.ID) // the SDN has written into it
	} else {
		// It is at another revision since. From here on its tag and its device are this machine's.
		port, err = p.Provider.UpdatePort(ctx, port.ID, sdn.PortPatch{DeviceID: &device})
	}
	if err == nil && !slices.Contains(port.Tags, p.tag) {
		err = taken(port)
	}
	return held{port: port, vlan: joined[0].VLAN}, err
}

func taken(port sdn.Port) error {
	return sdn.Conflict(sdn.Stale, "port", "device_id",
		"port %s is another's now, with device %q", port.ID, port.DeviceID)
}

// unbind detaches a port of this host, and then changes it. If the change has no tags, the tag
// stays: the port is mostly deleted next, and a bind writes the tags anyway.
func (p *Nested) unbind(
	ctx context.Context, now sdn.Port, change sdn.PortPatch,
) (sdn.Port, error) {
	if err := p.leave(ctx, now, &change.IfRevision); err != nil {
		return sdn.Port{}, err
	}
	failpoint.Here("nested.unbind.left")
	if change.Host = nil; change.Tags != nil {
		tags := p.withoutTag(*change.Tags)
		change.Tags = &tags
	}
	if owner := sdn.OwnerContainer; p.mode == NestedVLAN && change.DeviceOwner == nil {
		change.DeviceOwner = &owner // Neutron has deleted it
	}
	port, err := p.Provider.UpdatePort(ctx, now.ID, change)
	if err != nil {
		return port, err
	}
	if slices.Contains(port.Tags, p.tag) {
		p.hold(held{port: port, off: true})
	} else {
		p.ports.drop(port.ID)
	}
	return p.view(ctx, port)
}

// leave detaches a port of this host if it is at a revision. In a trunk that changes the revision,
// which leave then sets to 0.
func (p *Nested) leave(ctx context.Context, now sdn.Port, ifRevision *int64) error {
	if *ifRevision != 0 && (p.mode == NestedVLAN || *ifRevision != now.Revision) {
		var err error
		if now, err = p.Provider.Port(ctx, now.ID); err != nil {
			return err
		}
		if *ifRevision != now.Revision {
			return sdn.Conflict(sdn.Stale, "port", "revision",
				"port %s is at revision %d, not %d", now.ID, now.Revision, *ifRevision)
		}
	}
	if p.mode == NestedMacvlan {
		return ignoreAbsent(p.exchange(ctx, sentBy(now), nil))
	}
	*ifRevision = 0
	trunk, err := p.trunk(ctx)
	if err == nil {
		err = p.lost(ctx, p.DetachSubports(ctx, trunk, []sdn.ID{now.ID}))
	}
	return ignoreAbsent(err)
}

// DeletePorts deletes ports, and detaches those of this host first. A port that cannot be detached
// stays; the others are deleted.
func (p *Nested) DeletePorts(ctx context.Context, ids []sdn.ID) error {
	failed := map[sdn.ID]error{}
	var unknown []sdn.ID
	for _, id := range ids {
		if h, known := p.ports.get(id); !known {
			unknown = append(unknown, id)
		} else if err := p.detach(ctx, h.port, new(int64)); err != nil {
			failed[id] = err
		}
	}
	if len(unknown) > 0 {
		q := sdn.PortQuery{Match: sdn.Match{IDs: unknown, Tags: []string{p.tag}}}
		for port, err := range p.Provider.FindPorts(ctx, q) {
			if err != nil { // any of them may be attached
				for _, id := range unknown {
					failed[id] = err
				}
				break
			}
			if err := p.detach(ctx, port, new(int64)); err != nil {
				failed[port.ID] = err
			}
		}
	}
	p.ports.drop(ids...)
	off := slices.DeleteFunc(slices.Clone(ids), func(id sdn.ID) bool { return failed[id] != nil })
	var err error
	if len(off) > 0 {
		err = p.Provider.DeletePorts(ctx, off)
	}
	if len(failed) == 0 {
		return err
	}
	of, _ := errorsOf(err, len(off))
	errs := make([]error, len(ids))
	for i, id := range ids {
		if errs[i] = failed[id]; errs[i] == nil {
			errs[i], of = of[0], of[1:]
		}
	}
	return bulk(errs)
}

// DeletePort is DeletePorts of one port at a revision.
func (p *Nested) DeletePort(ctx context.Context, id sdn.ID, ifRevision int64) error {
	now, err := p.lately(ctx, id)
	if err == nil {
		err = p.detach(ctx, now, &ifRevision)
	}
	p.ports.drop(id)
	if err != nil {
		return ignoreAbsent(err)
	}
	return p.Provider.DeletePort(ctx, id, ifRevision)
}

// detach detaches a port that is deleted next, if it may be attached here.
func (p *Nested) detach(ctx context.Context, port sdn.Port, ifRevision *int64) error {
	if !p.isHere(port) {
		return nil
	}
	err := p.leave(ctx, port, ifRevision)
	failpoint.Here("nested.delete.left")
	return err
}

// fits refuses a network that containers cannot be on, and an SDN without tags.
func (p *Nested) fits(ctx context.Context, network sdn.ID) error {
	if err := p.needTags(); err != nil {
		return err
	}
	if p.mode != NestedMacvlan {
		return nil
	}
	own, err := p.machine(ctx, false)
	if err != nil {
		return err
	}
	if own.Network != network {
		return sdn.Invalid("port", "network", "containers that are nested by macvlan are on "+
			"network %s, that of this virtual machine's own port, and not on %s: "+
			"use bind.nested: vlan for others", own.Network, network)
	}
	return nil
}
