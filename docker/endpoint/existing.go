package endpoint

import (
	"bytes"
	"context"
	"net"
	"slices"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/sdn"
)

// An existing port keeps its name, its description, its own device and all that its user gave it.
// It is never deleted. An endpoint undoes all that it has set. The tags of the port tell that: they
// are written before the first change and removed after the last. The port's user can write them
// too, so they must agree with the row if it says what was set.

// attach gives an existing port to an endpoint, and reports whether it changed anything.
func (t endpointTarget) attach(
	ctx context.Context, id string, e Spec, port sdn.Port, last *Last,
) (sdn.Port, bool, error) {
	if last.Port.ID != port.ID {
		last.Undo = nil
	}
	patch, set := t.attachment(id, e, port, last.Undo)
	last.Undo = append([]string{}, set...)
	own := slices.DeleteFunc(t.tags(id, e), func(tag string) bool { return tag == identity.TagPort })
	tags := slices.Concat(identity.UserTags(port.Tags),
		[]string{identity.TagExistingPort, identity.TagBorrower + t.Names.Owner}, own, set)
	tagged, changed := port, false
	if len(tags) != len(port.Tags) || !identity.HasAll(port.Tags, tags) {
		var err error
		revised := sdn.PortPatch{Patch: sdn.Patch{IfRevision: port.Revision, Tags: &tags}}
		if tagged, err = t.SDN.UpdatePort(ctx, port.ID, revised); err != nil {
			return port, false, t.attachError(port, sdn.PortPatch{}, err)
		}
		if changed = true; !identity.HasAll(tagged.Tags, tags) {
			return port, false, api.Refuse("port %s is not Kuryr's, and using it needs tags, which this SDN "+
				"does not have (a Neutron has them with the extension standard-attr-tag)", port.ID)
		}
	}
	if patch.DeviceID == nil && patch.DeviceOwner == nil && patch.Host == nil && patch.MAC == nil {
		return tagged, changed, nil
	}
	patch.IfRevision = tagged.Revision
	bound, err := t.SDN.UpdatePort(ctx, port.ID, patch)
	if err != nil {
		return tagged, true, t.attachError(port, patch, err)
	}
	return bound, true, nil
}

// attachment is what an endpoint sets of an existing port, and the tags that say how it is undone.
func (t endpointTarget) attachment(
	id string, e Spec, port sdn.Port, undo []string,
) (patch sdn.PortPatch, set []string) {
	if identity.IsExistingOf(port, id) && slices.Contains(port.Tags, identity.TagBorrower+t.Names.Owner) {
		set = undone(port, undo) // by a call that was cut off, or the one that is repeated
	}
	if port.DeviceID == "" {
		patch.DeviceID = &id
	}
	if owner := sdn.OwnerContainer; port.DeviceOwner == "" {
		patch.DeviceOwner = &owner
		set, _ = identity.With(set, identity.TagSet+identity.SetOwner)
	}
	if port.Host == "" {
		patch.Host = &t.Host
		set, _ = identity.With(set, identity.TagSet+identity.SetHost)
	}
	if mac := e.mac(); mac != nil && !bytes.Equal(mac, port.MAC) {
		patch.MAC = mac
		if len(identity.Values(set, identity.TagMAC)) == 0 {
			set = append(set, identity.TagMAC+port.MAC.String())
		}
	}
	return patch, set
}

func (t endpointTarget) attachError(port sdn.Port, patch sdn.PortPatch, err error) error {
	switch {
	case sdn.ReasonOf(err) == sdn.Stale:
		return taken(port, err)
	case sdn.IsDenied(err) && patch.MAC != nil && patch.Host != nil: // the SDN does not say which
		return api.RefuseFor(err, "the SDN does not let Kuryr both bind port %s to host %s and change its "+
			"MAC: give its MAC, %s, by --mac-address; or its credentials need the right to set "+
			"binding:host_id and mac_address", port.ID, t.Host, port.MAC)
	case sdn.IsDenied(err) && patch.MAC != nil:
		return fixedMAC(port, err)
	case sdn.IsDenied(err):
		return t.unbindable(port, err)
	}
	return err
}

func fixedMAC(port sdn.Port, cause error) error {
	return api.RefuseFor(cause, "port %s has MAC %s, which cannot be changed: give it by --mac-address",
		port.ID, port.MAC)
}

// undone returns the tags of a port that say what is undone. A row that knows it must agree.
func undone(port sdn.Port, undo []string) []string {
	tags := identity.WithPrefix(port.Tags, identity.TagSet)
	if len(identity.Values(port.Tags, identity.TagBorrower)) == 0 {
		// kuryr-libnetwork does not say what it set.
		tags = []string{identity.TagSet + identity.SetHost, identity.TagSet + identity.SetOwner}
	}
	tags = append(tags, identity.WithPrefix(port.Tags, identity.TagMAC)...)
	return slices.DeleteFunc(tags, func(tag string) bool { return undo != nil && !slices.Contains(undo, tag) })
}

// detach undoes attach. undo is what the row says that was set; nil: it does not say.
func (t endpointTarget) detach(ctx context.Context, id string, port sdn.Port, undo []string) error {
	set := undone(port, undo)
	none, patch := "", sdn.PortPatch{}
	if port.DeviceID == id {
		patch.DeviceID = &none
	}
	if slices.Contains(set, identity.TagSet+identity.SetOwner) && port.DeviceOwner == sdn.OwnerContainer {
		patch.DeviceOwner = &none
	}
	if slices.Contains(set, identity.TagSet+identity.SetHost) && port.Host == t.Host {
		patch.Host = &none
	}
	if mac := macBefore(port, set); mac != nil {
		// A bound port keeps its MAC, so that is another step.
		unbound, err := t.SDN.UpdatePort(ctx, port.ID, patch)
		if err != nil {
			return identity.IgnoreAbsent(err)
		}
		patch = sdn.PortPatch{Patch: sdn.Patch{IfRevision: unbound.Revision}, MAC: mac}
	}
	now, err := t.SDN.UpdatePort(ctx, port.ID, patch)
	if err != nil {
		return identity.IgnoreAbsent(err)
	}
	// The answer has tags that the user has added since the port was read.
	tags := identity.UserTags(now.Tags)
	if len(tags) == len(now.Tags) {
		return nil
	}
	revised := sdn.PortPatch{Patch: sdn.Patch{IfRevision: now.Revision, Tags: &tags}}
	_, err = t.SDN.UpdatePort(ctx, port.ID, revised)
	return identity.IgnoreAbsent(err)
}

// macBefore returns the MAC that an existing port had by what is undone, nil if it has that.
func macBefore(port sdn.Port, set []string) net.HardwareAddr {
	for _, text := range identity.Values(set, identity.TagMAC) {
		if mac, err := net.ParseMAC(text); err == nil && !bytes.Equal(mac, port.MAC) {
			return mac
		}
	}
	return nil
}
