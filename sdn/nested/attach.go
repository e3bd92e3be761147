package nested

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/kuryr/kuryr/sdn"
)

// undoTime bounds what takes back a port that could not be attached.
const undoTime = 10 * time.Second

// EnsurePorts makes ports, and attaches those that are to be bound to this host. What cannot be attached is not made; what was attached before this call
// stays, for a container may run on it, and is found by its Key.
func (p *Provider) EnsurePorts(ctx context.Context, specs []sdn.PortSpec) ([]sdn.Port, error) {
	plain := slices.Clone(specs)
	for i, s := range specs {
		if p.mode == Macvlan && s.VNICType == sdn.VNICNormal && (s.Host == "" || s.Host == p.host) {
			// OVN sends what is for a MAC of two ports to either; of one that is plugged by no agent of its it leaves the MAC to the machine's.
			plain[i].VNICType = sdn.VNICBaremetal
		}
		if s.Host != p.host {
			continue
		}
		if err := p.fits(ctx, s.Network); err != nil {
			return nil, err
		}
		plain[i].Host, plain[i].Tags = "", append(slices.Clone(s.Tags), p.tag)
		if p.mode == VLAN { // which no port can be attached by that has a device
			plain[i].DeviceID = ""
		}
	}
	ports, err := p.Provider.EnsurePorts(ctx, plain)
	errs := make([]error, len(specs))
	var some *sdn.BulkError
	switch {
	case errors.As(err, &some) && len(some.Errs) == len(specs) && len(ports) == len(specs):
		copy(errs, some.Errs)
	case err != nil:
		return ports, err
	}
	for i, s := range specs {
		if s.Host != p.host || errs[i] != nil {
			continue
		}
		failpoint.Here("nested.ensureports.made")
		was, known := p.holds(ports[i].ID)
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
	if slices.ContainsFunc(errs, func(err error) bool { return err != nil }) {
		return ports, &sdn.BulkError{Errs: errs}
	}
	return ports, nil
}

// entered tells whether a port that EnsurePorts gave may have been attached before, by this process or one before it. Where that cannot be told it may.
func (p *Provider) entered(ctx context.Context, port sdn.Port, device string) bool {
	if p.mode == VLAN || port.DeviceID != device {
		return port.DeviceID != "" // which in a trunk is written last, never by who makes the port
	}
	own, err := p.ownNow(ctx)
	if err != nil || own.NoPortSecurity {
		return !sdn.IsNotFound(err)
	}
	_, lacks := exchanged(own.AllowedPairs, nil, pairs(port))
	return !lacks
}

// UpdatePort changes a port. To bind it to this host attaches it, to unbind it takes it off.
func (p *Provider) UpdatePort(ctx context.Context, id sdn.ID, change sdn.PortPatch) (sdn.Port, error) {
	port, err := p.update(ctx, id, change)
	if err != nil {
		p.forget(id)
	}
	return port, err
}

func (p *Provider) update(ctx context.Context, id sdn.ID, change sdn.PortPatch) (sdn.Port, error) {
	if change.Host == nil && (!sends(change) || p.mode != Macvlan) {
		port, err := p.Provider.UpdatePort(ctx, id, change)
		if err != nil {
			return port, err
		}
		return (&view{p: p}).see(ctx, port)
	}
	now, err := p.lately(ctx, id)
	if err != nil {
		return sdn.Port{}, err
	}
	switch {
	case change.Host != nil && *change.Host == p.host:
		return p.bind(ctx, now, change)
	case change.Host != nil && p.here(now):
		return p.unbind(ctx, now, change)
	}
	if err := p.hush(ctx, now, change); err != nil {
		return sdn.Port{}, err
	}
	port, err := p.Provider.UpdatePort(ctx, id, change)
	if err != nil {
		return port, err
	}
	if p.here(now) {
		failpoint.Here("nested.updateport.changed")
		if err := p.exchange(ctx, nil, pairs(port)); err != nil {
			return sdn.Port{}, err
		}
	}
	return (&view{p: p}).see(ctx, port)
}

// lately is a port as it is known without asking, if it is: as this process left it when it attached it, or as the SDN's provider has it of its last calls. Another may have
// changed it since, so what is done because of it is right whatever has become of the port, or is compared with its revision at that time.
func (p *Provider) lately(ctx context.Context, id sdn.ID) (sdn.Port, error) {
	if h, ok := p.holds(id); ok {
		return h.port, nil
	}
	port, found, err := sdn.First(p.Provider.FindPorts(ctx, sdn.PortQuery{Match: sdn.Match{IDs: []sdn.ID{id}}}))
	if err == nil && !found {
		err = sdn.NotFound("port", id)
	}
	return port, err
}

// bind changes a port, with the tag first, and attaches it.
func (p *Provider) bind(ctx context.Context, now sdn.Port, change sdn.PortPatch) (sdn.Port, error) {
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
	if p.mode == VLAN { // which no port can be attached by that has a device
		change.DeviceID, change.DeviceOwner = nil, nil
	}
	if err := p.hush(ctx, now, change); err != nil {
		return sdn.Port{}, err
	}
	port, err := p.Provider.UpdatePort(ctx, now.ID, change)
	if err != nil {
		return sdn.Port{}, err
	}
	failpoint.Here("nested.bind.tagged")
	return p.enter(ctx, port, device)
}

// hush takes a port off the machine's for a change of what it sends as: after that nobody would know what it was.
func (p *Provider) hush(ctx context.Context, now sdn.Port, change sdn.PortPatch) error {
	if p.mode != Macvlan || !sends(change) || !p.here(now) {
		return nil
	}
	err := p.exchange(ctx, pairs(now), nil)
	failpoint.Here("nested.hush.left")
	return err
}

// sends tells whether a change is of what a port may send as.
func sends(change sdn.PortPatch) bool {
	return change.MAC != nil || change.Addresses != nil || change.AllowedPairs != nil
}

// enter attaches a port that has the tag, and then gives it its device.
func (p *Provider) enter(ctx context.Context, port sdn.Port, device string) (sdn.Port, error) {
	p.forget(port.ID) // it may have been taken off before
	if !slices.Contains(port.Tags, p.tag) {
		return sdn.Port{}, untagged()
	}
	if port.DeviceID != "" && port.DeviceID != device {
		return sdn.Port{}, taken(port)
	}
	h, err := held{port: port}, error(nil)
	if p.mode == Macvlan {
		err = p.exchange(ctx, nil, pairs(port))
	} else {
		h, err = p.join(ctx, port, device)
	}
	if err != nil {
		return sdn.Port{}, err
	}
	p.hold(h)
	return p.attached(ctx, h.port, h.vlan)
}

// join makes a port a subport of the machine's trunk, which the SDN attaches only while it has no device, and gives it its device.
func (p *Provider) join(ctx context.Context, port sdn.Port, device string) (held, error) {
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
	} else { // at no revision, for that is another since: from here on the port is this machine's, and nobody else's who looks at its tag
		port, err = p.Provider.UpdatePort(ctx, port.ID, sdn.PortPatch{DeviceID: &device})
	}
	if err == nil && !slices.Contains(port.Tags, p.tag) {
		err = taken(port)
	}
	return held{port: port, vlan: joined[0].VLAN}, err
}

func taken(port sdn.Port) error {
	return sdn.Conflict(sdn.Stale, "port", "device_id", "port %s is another's meanwhile, with device %q", port.ID, port.DeviceID)
}

// unbind takes a port of this host off the machine's, and then changes it. The tag stays on a port whose tags are not changed: as a rule it is deleted next, and what
// binds it instead writes the tags anyway.
func (p *Provider) unbind(ctx context.Context, now sdn.Port, change sdn.PortPatch) (sdn.Port, error) {
	if err := p.leave(ctx, now, &change.IfRevision); err != nil {
		return sdn.Port{}, err
	}
	failpoint.Here("nested.unbind.left")
	if change.Host = nil; change.Tags != nil {
		tags := p.withoutTag(*change.Tags)
		change.Tags = &tags
	}
	if owner := sdn.OwnerContainer; p.mode == VLAN && change.DeviceOwner == nil {
		change.DeviceOwner = &owner // which Neutron has forgotten
	}
	port, err := p.Provider.UpdatePort(ctx, now.ID, change)
	if err != nil {
		return port, err
	}
	if slices.Contains(port.Tags, p.tag) {
		p.hold(held{port: port, off: true})
	} else {
		p.forget(port.ID)
	}
	return (&view{p: p}).see(ctx, port)
}

// leave takes a port of this host off the machine's if it is still at a revision, which does not matter after that in a trunk: leaving changes it.
func (p *Provider) leave(ctx context.Context, now sdn.Port, ifRevision *int64) error {
	if *ifRevision != 0 && (p.mode == VLAN || *ifRevision != now.Revision) {
		var err error
		if now, err = p.Provider.Port(ctx, now.ID); err != nil {
			return err
		}
		if *ifRevision != now.Revision {
			return sdn.Conflict(sdn.Stale, "port", "revision", "port %s is at revision %d, not %d", now.ID, now.Revision, *ifRevision)
		}
	}
	if p.mode == Macvlan {
		return ignoreAbsent(p.exchange(ctx, pairs(now), nil))
	}
	*ifRevision = 0
	trunk, err := p.trunk(ctx)
	if err == nil {
		err = p.lost(ctx, p.DetachSubports(ctx, trunk, []sdn.ID{now.ID}))
	}
	return ignoreAbsent(err)
}

// DeletePorts deletes ports, after those of this host were taken off the machine's. One that cannot be taken off stays, the others go.
func (p *Provider) DeletePorts(ctx context.Context, ids []sdn.ID) error {
	failed := map[sdn.ID]error{}
	var unknown []sdn.ID
	for _, id := range ids {
		if h, known := p.holds(id); !known {
			unknown = append(unknown, id)
		} else if err := p.deleting(ctx, h.port, new(int64)); err != nil {
			failed[id] = err
		}
	}
	if len(unknown) > 0 {
		for port, err := range p.Provider.FindPorts(ctx, sdn.PortQuery{Match: sdn.Match{IDs: unknown, Tags: []string{p.tag}}}) {
			if err != nil { // any of them may be attached
				for _, id := range unknown {
					failed[id] = err
				}
				break
			}
			if err := p.deleting(ctx, port, new(int64)); err != nil {
				failed[port.ID] = err
			}
		}
	}
	p.forget(ids...)
	var off []sdn.ID
	var at []int // in ids
	errs := make([]error, len(ids))
	for i, id := range ids {
		if errs[i] = failed[id]; errs[i] == nil {
			off, at = append(off, id), append(at, i)
		}
	}
	var err error
	if len(off) > 0 {
		err = p.Provider.DeletePorts(ctx, off)
	}
	if len(failed) == 0 {
		return err
	}
	var some *sdn.BulkError
	several := errors.As(err, &some) && len(some.Errs) == len(off)
	for n, i := range at {
		if errs[i] = err; several {
			errs[i] = some.Errs[n]
		}
	}
	return &sdn.BulkError{Errs: errs}
}

// DeletePort is DeletePorts of one at a revision.
func (p *Provider) DeletePort(ctx context.Context, id sdn.ID, ifRevision int64) error {
	now, err := p.lately(ctx, id)
	if err == nil {
		err = p.deleting(ctx, now, &ifRevision)
	}
	p.forget(id)
	if err != nil {
		return ignoreAbsent(err)
	}
	return p.Provider.DeletePort(ctx, id, ifRevision)
}

// deleting takes a port that goes off the machine's, if it may be attached to it.
func (p *Provider) deleting(ctx context.Context, port sdn.Port, ifRevision *int64) error {
	if !p.here(port) {
		return nil
	}
	err := p.leave(ctx, port, ifRevision)
	failpoint.Here("nested.delete.left")
	return err
}

// fits refuses a network that containers cannot be on, and an SDN that would forget which ports are attached.
func (p *Provider) fits(ctx context.Context, network sdn.ID) error {
	if err := p.needTags(); err != nil {
		return err
	}
	if p.mode != Macvlan {
		return nil
	}
	own, err := p.machine(ctx)
	if err != nil {
		return err
	}
	if own.Network != network {
		return sdn.Invalid("port", "network", "containers that are nested by macvlan are on network %s, that of this virtual machine's own port, and not on %s: use bind.nested: vlan for others",
			own.Network, network)
	}
	return nil
}
