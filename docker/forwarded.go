package docker

import (
	"context"
	"net/netip"
	"slices"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/docker/publish"
	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/kuryr/kuryr/sdn"
)

// Where that is asked for (api.OptPublish), ports are published by a floating IP that forwards them: clients keep their addresses, and the host carries
// nothing. Each endpoint has a floating IP for that, of the external network that its router leads to, unless api.OptFloatingIP names one: that is its
// user's if it was there before, may forward to other endpoints too, and stays.

// forwards tells whether a port's endpoint was asked to publish by a floating IP.
func forwards(port sdn.Port) bool {
	asked := identity.Values(port.Tags, identity.TagPublish)
	return len(asked) > 0 && asked[0] == api.PublishFloatingIP
}

// publishForwarded publishes ports by port forwardings of a floating IP.
func (d *Driver) publishForwarded(ctx context.Context, endpoint string, known plugged, ports []publish.Port) error {
	can := d.sdn.Capabilities()
	if !can.FloatingIPs || !can.Forwards {
		return refuse("option %s=%s: this SDN has no floating IPs that forward ports", api.OptPublish, api.PublishFloatingIP)
	}
	var target sdn.Target
	for _, a := range known.Port.Addresses {
		if a.Addr.Is4() {
			target = sdn.Target{Port: known.Port.ID, Addr: a.Addr}
			break
		}
	}
	if !target.Addr.IsValid() {
		return refuse("option %s=%s: the endpoint has no IPv4 address", api.OptPublish, api.PublishFloatingIP)
	}
	made, err := d.forwarder(ctx, endpoint, &known, target)
	if err != nil {
		return err
	}
	failpoint.Here("docker.forward.address")
	return publish.AtFloatingIP(ctx, d.sdn, endpoint, made, target, ports)
}

// forwardKey is the Key of an endpoint's own floating IP that forwards.
func (d *Driver) forwardKey(endpoint string) sdn.Key {
	return d.names.GlobalKey(identity.KindPublish, endpoint+"/4")
}

// forwarder is the floating IP that is to forward to an endpoint. What is to be undone is written down before it is made.
func (d *Driver) forwarder(ctx context.Context, endpoint string, known *plugged, target sdn.Target) (sdn.FloatingIP, error) {
	spec := sdn.FloatingIPSpec{Base: sdn.Base{Key: d.forwardKey(endpoint)}}
	for _, asked := range identity.Values(known.Port.Tags, identity.TagPublishAt) {
		found, err := d.floatingIP(ctx, asked, func(f sdn.FloatingIP) bool { return f.Key == spec.Key || f.ID == known.Forwarder })
		switch {
		case err != nil:
			return sdn.FloatingIP{}, err
		case found == nil:
			if spec.Address, err = netip.ParseAddr(asked); err != nil {
				return sdn.FloatingIP{}, refuse("option %s: there is no floating IP %s", api.OptFloatingIP, asked)
			}
		case found.Key.IsZero():
			if found.Target.Port != "" {
				return sdn.FloatingIP{}, refuse("option %s: floating IP %s is in use", api.OptFloatingIP, found.Address)
			}
			known.Floating, known.Forwarder = true, found.ID
			d.plugged.put(ctx, endpoint, *known)
			return *found, nil
		case found.Key != spec.Key:
			return sdn.FloatingIP{}, refuse("option %s: floating IP %s is in use", api.OptFloatingIP, found.Address)
		default:
			spec.Address = found.Address
		}
	}
	var err error
	if spec.Network, err = d.outside(ctx, known.Port, target); err != nil {
		return sdn.FloatingIP{}, err
	}
	known.Floating = true
	d.plugged.put(ctx, endpoint, *known)
	return d.sdn.EnsureFloatingIP(ctx, spec)
}

// lender is the floating IP, not Kuryr's, that may forward to a port by what its tags ask for; "" where there is none. Of several that have the address
// it is the one that does.
func (d *Driver) lender(ctx context.Context, port sdn.Port) (sdn.ID, error) {
	for _, asked := range identity.Values(port.Tags, identity.TagPublishAt) {
		found, err := d.floatingIPs(ctx, asked)
		if err != nil {
			return "", err
		}
		found = slices.DeleteFunc(found, func(f sdn.FloatingIP) bool { return !f.Key.IsZero() })
		if len(found) == 1 {
			return found[0].ID, nil
		}
		for _, f := range found {
			_, forwards, err := sdn.First(d.sdn.FindForwards(ctx, sdn.ForwardQuery{FloatingIPs: []sdn.ID{f.ID}, Ports: []sdn.ID{port.ID}}))
			if err != nil || forwards {
				return f.ID, err
			}
		}
	}
	return "", nil
}

// dropForwarded ends what floating IPs forward to an endpoint: its own floating IP is deleted, one
// of its user's stays.
func (d *Driver) dropForwarded(ctx context.Context, endpoint string) error {
	if err := d.dropFromUsers(ctx, endpoint); err != nil {
		return err
	}
	match := sdn.Match{Keys: []sdn.Key{d.forwardKey(endpoint)}}
	own, found, err := sdn.First(d.sdn.FindFloatingIPs(ctx, sdn.FloatingIPQuery{Match: match}))
	if err != nil || !found {
		return err
	}
	return d.sdn.DeleteFloatingIP(ctx, own.ID)
}

// dropFromUsers deletes the forwardings to an endpoint from a floating IP that is not Kuryr's: the
// one of its record, or the one that its port's tags name where the record is lost, as at a reboot.
// A port of Kuryr's would take them along when it is deleted, its user's stays.
func (d *Driver) dropFromUsers(ctx context.Context, endpoint string) error {
	r, known := d.plugged.get(endpoint)
	if known {
		return d.dropForwards(ctx, r.Forwarder, r.Port.ID)
	}
	port, found, err := d.port(ctx, endpoint)
	if err != nil || !found || identity.Elsewhere(port, d.host) {
		return err
	}
	forwarder, err := d.lender(ctx, port)
	if err != nil {
		return err
	}
	return d.dropForwards(ctx, forwarder, port.ID)
}

func (d *Driver) dropForwards(ctx context.Context, forwarder, port sdn.ID) error {
	if forwarder == "" {
		return nil
	}
	forwards, err := sdn.All(d.sdn.FindForwards(ctx, sdn.ForwardQuery{FloatingIPs: []sdn.ID{forwarder}, Ports: []sdn.ID{port}}))
	if err != nil || len(forwards) == 0 {
		return ignoreAbsent(err)
	}
	var ids []sdn.ID
	for _, f := range forwards {
		ids = append(ids, f.ID)
	}
	return ignoreAbsent(d.sdn.DeleteForwards(ctx, forwarder, ids))
}
