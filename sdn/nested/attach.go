package nested

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/kuryr/kuryr/sdn"
)

// undoTime bounds what takes back a port that could not be attached.
const undoTime = 10 * time.Second

// EnsurePorts makes ports, and attaches those that are to be bound to this host. What cannot be attached is not made.
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
		plain[i].Host, plain[i].DeviceID, plain[i].Tags = "", "", append(slices.Clone(s.Tags), p.tag)
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
		attached, err := p.enter(ctx, ports[i], s.DeviceID)
		if err != nil {
			undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
			err = errors.Join(err, p.DeletePorts(undo, []sdn.ID{ports[i].ID}))
			cancel()
		}
		ports[i], errs[i] = attached, err
	}
	if slices.ContainsFunc(errs, func(err error) bool { return err != nil }) {
		return ports, &sdn.BulkError{Errs: errs}
	}
	return ports, nil
}

// UpdatePort changes a port. To bind it to this host attaches it, to unbind it takes it off.
func (p *Provider) UpdatePort(ctx context.Context, id sdn.ID, change sdn.PortPatch) (sdn.Port, error) {
	sends := change.MAC != nil || change.Addresses != nil || change.AllowedPairs != nil
	if change.Host == nil && (!sends || p.mode != Macvlan) {
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
	port, err := p.Provider.UpdatePort(ctx, id, change)
	if err != nil || !p.here(now) {
		return port, err
	}
	if err := p.exchange(ctx, pairs(now), pairs(port)); err != nil {
		return sdn.Port{}, err
	}
	return p.attached(ctx, port, 0)
}

// lately is a port as the SDN's provider may know it without asking. Of a host's ports that is what this process did to them last, and what is done
// because of it is done at its revision.
func (p *Provider) lately(ctx context.Context, id sdn.ID) (sdn.Port, error) {
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
	port, err := p.Provider.UpdatePort(ctx, now.ID, change)
	if err != nil {
		return sdn.Port{}, err
	}
	if p.mode == Macvlan && p.here(now) {
		if err := p.exchange(ctx, pairs(now), pairs(port)); err != nil {
			return sdn.Port{}, err
		}
	}
	return p.enter(ctx, port, device)
}

// enter attaches a port that has the tag, and then gives it its device.
func (p *Provider) enter(ctx context.Context, port sdn.Port, device string) (sdn.Port, error) {
	if !p.here(port) {
		return sdn.Port{}, untagged()
	}
	vlan := 0
	var err error
	if p.mode == Macvlan {
		err = p.exchange(ctx, nil, pairs(port))
	} else {
		vlan, err = p.join(ctx, port)
	}
	if err != nil {
		return sdn.Port{}, err
	}
	if p.mode == VLAN { // which Neutron has written into
		if port, err = p.Provider.Port(ctx, port.ID); err != nil {
			return sdn.Port{}, err
		}
	}
	for n := 1; device != "" && port.DeviceID != device; n++ {
		if port.DeviceID != "" {
			return sdn.Port{}, sdn.Conflict(sdn.Stale, "port", "device_id", "port %s is %s's meanwhile", port.ID, port.DeviceID)
		}
		given, err := p.Provider.UpdatePort(ctx, port.ID, sdn.PortPatch{Patch: sdn.Patch{IfRevision: port.Revision}, DeviceID: &device})
		if sdn.ReasonOf(err) == sdn.Stale && n < maxRaces {
			given, err = p.Provider.Port(ctx, port.ID)
		}
		if err != nil {
			return sdn.Port{}, err
		}
		port = given
	}
	return p.attached(ctx, port, vlan)
}

// join makes a port a subport of the machine's trunk, and tells its VLAN.
func (p *Provider) join(ctx context.Context, port sdn.Port) (int, error) {
	trunk, err := p.trunk(ctx)
	if err != nil {
		return 0, err
	}
	joined, err := p.AttachSubports(ctx, trunk, []sdn.Subport{{Port: port.ID}})
	if err != nil {
		return 0, p.lost(ctx, err)
	}
	return joined[0].VLAN, nil
}

// unbind takes a port of this host off the machine's, and then changes it.
func (p *Provider) unbind(ctx context.Context, now sdn.Port, change sdn.PortPatch) (sdn.Port, error) {
	if err := p.leave(ctx, now, &change.IfRevision); err != nil {
		return sdn.Port{}, err
	}
	tags := now.Tags
	if change.Tags != nil {
		tags = *change.Tags
	}
	tags = slices.DeleteFunc(slices.Clone(tags), func(t string) bool { return t == p.tag })
	change.Host, change.Tags = nil, &tags
	if owner := sdn.OwnerContainer; p.mode == VLAN && change.DeviceOwner == nil {
		change.DeviceOwner = &owner // which Neutron has forgotten
	}
	return p.Provider.UpdatePort(ctx, now.ID, change)
}

// leave takes a port of this host off the machine's if it is still at a revision, which does not matter after that in a trunk: leaving changes it.
func (p *Provider) leave(ctx context.Context, now sdn.Port, ifRevision *int64) error {
	if *ifRevision != 0 && *ifRevision != now.Revision {
		return sdn.Conflict(sdn.Stale, "port", "revision", "port %s is at revision %d, not %d", now.ID, now.Revision, *ifRevision)
	}
	if p.mode == Macvlan {
		if err := p.exchange(ctx, pairs(now), nil); err != nil {
			return ignoreAbsent(err)
		}
	} else {
		*ifRevision = 0
		trunk, err := p.trunk(ctx)
		if err == nil {
			err = p.lost(ctx, p.DetachSubports(ctx, trunk, []sdn.ID{now.ID}))
		}
		if err != nil {
			return ignoreAbsent(err)
		}
	}
	return nil
}

// DeletePorts deletes ports, after those of this host were taken off the machine's.
func (p *Provider) DeletePorts(ctx context.Context, ids []sdn.ID) error {
	if len(ids) == 0 {
		return nil
	}
	for port, err := range p.Provider.FindPorts(ctx, sdn.PortQuery{Match: sdn.Match{IDs: ids, Tags: []string{p.tag}}}) {
		if err != nil {
			return err
		}
		if err := p.leave(ctx, port, new(int64)); err != nil {
			return err
		}
	}
	return p.Provider.DeletePorts(ctx, ids)
}

// DeletePort is DeletePorts of one at a revision.
func (p *Provider) DeletePort(ctx context.Context, id sdn.ID, ifRevision int64) error {
	now, err := p.lately(ctx, id)
	if err == nil && p.mode == VLAN && p.here(now) { // leaving a trunk changes the port, so the revision is compared before
		now, err = p.Provider.Port(ctx, id)
	}
	if err != nil {
		return ignoreAbsent(err)
	}
	if p.here(now) {
		if err := p.leave(ctx, now, &ifRevision); err != nil {
			return err
		}
	}
	return p.Provider.DeletePort(ctx, id, ifRevision)
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
