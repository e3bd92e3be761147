package docker

import (
	"bytes"
	"context"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/kuryr/kuryr/sdn"
)

// Besides ports of ours an endpoint can have one that somebody else made: its user, another program (Zun), or kuryr-libnetwork.
//
// One that kuryr-libnetwork made for an endpoint is told by its tag or its names, gets a Key when it is used, and is ours from then on. Any other is lent:
// it keeps its name, its description, its own device and all that its user gave it, it is never deleted, and what was set for the time that the
// endpoint has it is undone. What that is the port's tags tell; they are written before anything is set, and taken off after all is undone.

// ownPort tells whether a port is one that goes with its endpoint's addresses: ours, or kuryr-libnetwork's on this host or nowhere.
func (d *Driver) ownPort(p sdn.Port) bool {
	return d.names.Ours(p.Meta, identity.KindPort, identity.KindEndpoint) || identity.PeersPort(p) && !identity.Elsewhere(p, d.host)
}

// adopt takes a port that kuryr-libnetwork made over.
func (d *Driver) adopt(ctx context.Context, port sdn.Port, mac net.HardwareAddr, key sdn.Key) (sdn.Port, error) {
	if port.DeviceID != "" {
		return port, identity.InUse(port)
	}
	patch := sdn.PortPatch{Patch: sdn.Patch{IfRevision: port.Revision, Key: &key}}
	if mac != nil && !bytes.Equal(mac, port.MAC) {
		patch.MAC = mac
	}
	adopted, err := d.sdn.UpdatePort(ctx, port.ID, patch)
	if sdn.ReasonOf(err) == sdn.Stale {
		err = identity.InUse(port)
	}
	return adopted, err
}

// borrow gives a port that its user made to an endpoint. What is to be undone is written down first.
func (d *Driver) borrow(ctx context.Context, port sdn.Port, r *endpointRequest) (sdn.Port, error) {
	if err := identity.Usable(port, d.host, r.EndpointID); err != nil {
		return port, err
	}
	if option := changesPort(r.Options); option != "" {
		return port, refuse("port %s is not Kuryr's and stays as its user made it: leave out %s", port.ID, option)
	}
	var set []string
	for _, was := range port.Tags {
		if strings.HasPrefix(was, identity.TagSet) || strings.HasPrefix(was, identity.TagMAC) {
			set = append(set, was) // by a call that did not come to its end
		}
	}
	patch := sdn.PortPatch{}
	if port.DeviceID == "" {
		patch.DeviceID = &r.EndpointID
	}
	if owner := sdn.OwnerContainer; port.DeviceOwner == "" {
		patch.DeviceOwner = &owner
		set, _ = identity.With(set, identity.TagSet+identity.SetOwner)
	}
	if port.Host == "" {
		if !d.sdn.Capabilities().HostBinding {
			return port, d.unbindable(port, nil)
		}
		patch.Host = &d.host
		set, _ = identity.With(set, identity.TagSet+identity.SetHost)
	}
	if r.MAC != nil && !bytes.Equal(r.MAC, port.MAC) {
		if !d.sdn.Capabilities().ChooseMAC || port.Host != "" {
			return port, fixedMAC(port, nil)
		}
		patch.MAC = r.MAC
		if len(identity.Values(set, identity.TagMAC)) == 0 {
			set = append(set, identity.TagMAC+port.MAC.String())
		}
	}
	tags := slices.DeleteFunc(boundTags(r), func(t string) bool { return t == identity.TagPort })
	tags = slices.Concat(identity.UserTags(port.Tags), []string{identity.TagExistingPort, identity.TagBorrower + d.sdn.Installation()}, tags, set)
	lent, err := port, error(nil)
	if len(tags) != len(port.Tags) || !identity.HasAll(port.Tags, tags) {
		lent, err = d.sdn.UpdatePort(ctx, port.ID, sdn.PortPatch{Patch: sdn.Patch{IfRevision: port.Revision, Tags: &tags}})
		failpoint.Here("docker.createendpoint.lent")
		if err == nil && !identity.HasAll(lent.Tags, tags) {
			return port, refuse("port %s is not Kuryr's, and using it needs tags, which this SDN does not have (a Neutron has them with the extension standard-attr-tag)", port.ID)
		}
	}
	if err == nil {
		d.lend(r, port)
	}
	if err == nil && (patch.DeviceID != nil || patch.DeviceOwner != nil || patch.Host != nil || patch.MAC != nil) {
		patch.IfRevision = lent.Revision
		lent, err = d.sdn.UpdatePort(ctx, port.ID, patch)
	}
	switch {
	case sdn.ReasonOf(err) == sdn.Stale:
		err = refuseFor(err, "address %s was taken by another endpoint", identity.Addresses(port))
	case sdn.IsDenied(err) && patch.MAC != nil && patch.Host != nil: // an SDN may not tell which of the two it forbids
		err = refuseFor(err, "the SDN does not let Kuryr both bind port %s to host %s and change its MAC: give its MAC, %s, by --mac-address; or its credentials need the right to set binding:host_id and mac_address",
			port.ID, d.host, port.MAC)
	case sdn.IsDenied(err) && patch.MAC != nil:
		err = fixedMAC(port, err)
	case sdn.IsDenied(err):
		err = d.unbindable(port, err)
	}
	return lent, err
}

func (d *Driver) unbindable(port sdn.Port, cause error) error {
	return refuseFor(cause, "the SDN does not let Kuryr bind port %s to host %s: its credentials need the right to set binding:host_id, or the port has to be bound already",
		port.ID, d.host)
}

func fixedMAC(port sdn.Port, cause error) error {
	return refuseFor(cause, "port %s has MAC %s, which cannot be changed: give it by --mac-address", port.ID, port.MAC)
}

// giveBack undoes what borrow did. kuryr-libnetwork does not say what it set: the host and the owner.
func (d *Driver) giveBack(ctx context.Context, port sdn.Port) error {
	endpoint := identity.EndpointOf(port)
	set := identity.Values(port.Tags, identity.TagSet)
	if len(identity.Values(port.Tags, identity.TagBorrower)) == 0 {
		set = []string{identity.SetHost, identity.SetOwner}
	}
	none, patch := "", sdn.PortPatch{}
	if port.DeviceID != "" && port.DeviceID == endpoint {
		patch.DeviceID = &none
	}
	if slices.Contains(set, identity.SetOwner) && port.DeviceOwner == sdn.OwnerContainer {
		patch.DeviceOwner = &none
	}
	if slices.Contains(set, identity.SetHost) && port.Host == d.host {
		patch.Host = &none
	}
	if macs := identity.Values(port.Tags, identity.TagMAC); len(macs) > 0 {
		if mac, err := net.ParseMAC(macs[0]); err == nil && !bytes.Equal(mac, port.MAC) {
			// A port that is bound keeps its MAC, so that is another step.
			unbound, err := d.sdn.UpdatePort(ctx, port.ID, patch)
			if err != nil {
				return err
			}
			failpoint.Here("docker.deleteendpoint.returning")
			patch = sdn.PortPatch{Patch: sdn.Patch{IfRevision: unbound.Revision}, MAC: mac}
		}
	}
	// The device and the host are this endpoint's, whatever else has become of the port; but its user may have changed his tags since it was read.
	now, err := d.sdn.UpdatePort(ctx, port.ID, patch)
	if err == nil {
		err = d.untag(ctx, now, endpoint)
	}
	if err == nil {
		d.unlend(endpoint)
	}
	return err
}

// untag takes those tags off a port that were written when it was lent.
func (d *Driver) untag(ctx context.Context, port sdn.Port, endpoint string) error {
	return retryStale(func(again bool) (err error) {
		if again {
			if port, err = d.sdn.Port(ctx, port.ID); err != nil {
				return err
			}
			if identity.EndpointOf(port) != endpoint {
				return nil // another has it by now
			}
		}
		tags := identity.UserTags(port.Tags)
		if len(tags) == len(port.Tags) {
			return nil
		}
		_, err = d.sdn.UpdatePort(ctx, port.ID, sdn.PortPatch{Patch: sdn.Patch{IfRevision: port.Revision, Tags: &tags}})
		return err
	})
}

// changesPort returns an option that changes more of a port than its owner, "" if there is none.
func changesPort(o api.EndpointOptions) string {
	switch {
	case o.Groups != nil:
		return api.OptGroups
	case o.QoSPolicy != "":
		return api.OptQoSPolicy
	case o.NoPortSecurity != nil:
		return api.OptPortSecurity
	case o.Allowed != nil:
		return api.OptAllowed
	}
	return ""
}

// lending is what this process knows of an endpoint's lent port: a hint, not state.
type lending struct {
	port  sdn.ID
	taken []sdn.Address // those of its addresses that the engine has, and will release
}

func (d *Driver) lend(r *endpointRequest, port sdn.Port) {
	l := lending{port: port.ID}
	for _, a := range port.Addresses {
		if slices.ContainsFunc(r.Addresses, func(p netip.Prefix) bool { return p.Addr() == a.Addr }) {
			l.taken = append(l.taken, a)
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lent[r.EndpointID] = l
}

// unlend also remembers that nothing is to be done when the engine releases the addresses.
func (d *Driver) unlend(endpoint string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, a := range d.lent[endpoint].taken {
		d.returned[a] = true
	}
	delete(d.lent, endpoint)
}

func (d *Driver) hinted(endpoint string) (sdn.ID, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	l, ok := d.lent[endpoint]
	return l.port, ok
}

// wasReturned tells whether the address was a lent port's that has been given back, and not been taken since. It forgets it.
func (d *Driver) wasReturned(a sdn.Address) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	was := d.returned[a]
	delete(d.returned, a)
	return was
}
