package docker

import (
	"bytes"
	"cmp"
	"context"
	"net/netip"
	"slices"
	"strings"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/kuryr/kuryr/sdn"
)

// endpointRequest is a CreateEndpoint with what its network and its options name in the SDN.
type endpointRequest struct {
	*api.CreateEndpointRequest

	bindings []string // the addresses of the host at which the network publishes ports
	groups   []sdn.ID // its security groups; nil: unspecified
	policy   sdn.ID   // its QoS policy; "": none
}

// createEndpoint binds the port that has the addresses to the endpoint and this host. Where another IPAM driver chose the
// addresses there is none, and it is made.
func (d *Driver) createEndpoint(ctx context.Context, asked *api.CreateEndpointRequest) (any, error) {
	r := &endpointRequest{CreateEndpointRequest: asked}
	answer, forgotten, err := d.bindEndpoint(ctx, r)
	if len(forgotten) == 0 {
		return answer, err
	}
	for _, p := range forgotten {
		connected, err := d.dropForgotten(ctx, p, "its address was given to another")
		if err != nil {
			return nil, err
		}
		if connected {
			return nil, identity.InUse(p)
		}
	}
	answer, _, err = d.bindEndpoint(ctx, r)
	return answer, err
}

// bindEndpoint is createEndpoint up to ports of ours that have the addresses for other endpoints, and may be forgotten.
func (d *Driver) bindEndpoint(ctx context.Context, r *endpointRequest) (answer any, forgotten []sdn.Port, err error) {
	unlock, err := d.locks.lock(ctx, "endpoint/"+r.EndpointID)
	if err != nil {
		return nil, nil, err
	}
	defer unlock()
	network, err := d.network(ctx, r.NetworkID)
	if err != nil {
		return nil, nil, err
	}
	r.bindings = identity.Values(network.Tags, identity.TagBinding)
	if asked := identity.Values(network.Tags, identity.TagPublish); r.Options.Publish == "" && len(asked) > 0 {
		r.Options.Publish = asked[0]
	}
	if err := d.resolve(ctx, network, r); err != nil {
		return nil, nil, err
	}
	subnets, err := d.subnetsOf(ctx, network)
	if err != nil {
		return nil, nil, err
	}
	if err := checkLengths(subnets, r.Addresses); err != nil {
		return nil, nil, err
	}
	ports, err := d.portsAsked(ctx, network, subnets, r)
	if err != nil {
		return nil, nil, err
	}
	if !d.sdn.Capabilities().HasTags() {
		wanted := without(identity.TagPublish + api.PublishProxy)(identity.EndpointOptionTags(r.Options)) // the default
		if err := identity.CheckStored(wanted, nil); err != nil {
			return nil, nil, err
		}
	}
	for _, p := range ports {
		switch {
		case !d.ownPort(p):
			if err := identity.Usable(p, d.host, r.EndpointID); err != nil {
				d.refused(p, r.Addresses)
				return nil, nil, err
			}
		case identity.Elsewhere(p, d.host):
			d.refused(p, r.Addresses)
			return nil, nil, refuse("address %s is in use: its port is bound to host %s", identity.Addresses(p), api.Clip(p.Host, 100))
		case p.DeviceID == "" || p.DeviceID == r.EndpointID:
		case p.Key.Kind == identity.KindEndpoint && p.Host == d.host && !d.isStarting(p.DeviceID):
			forgotten = append(forgotten, p)
		default:
			d.refused(p, r.Addresses)
			return nil, nil, identity.InUse(p)
		}
	}
	if len(forgotten) > 0 {
		return nil, forgotten, identity.InUse(forgotten[0])
	}
	if err := d.checkFloating(ctx, ports, &r.Options); err != nil {
		return nil, nil, err
	}
	if err := d.noteUse(ctx, network); err != nil {
		return nil, nil, err
	}
	d.noteStarting(r.EndpointID) // before another call can find its port
	defer d.endStarting(r.EndpointID)
	port, err := d.portFor(ctx, network, ports, r)
	if sdn.ReasonOf(err) == sdn.MACInUse {
		yielded, failed := d.yieldMAC(ctx, network, r.MAC)
		if failed != nil {
			return nil, nil, failed
		}
		if yielded {
			port, err = d.portFor(ctx, network, ports, r)
		}
	}
	if err != nil {
		return nil, nil, err
	}
	if err := d.keepLate(port); err != nil {
		return nil, nil, err
	}
	failpoint.Here("docker.createendpoint.bound")
	d.notePlugged(ctx, r.EndpointID, r.NetworkID, network, port)
	return api.CreateEndpointResponse{Interface: ungiven(port, subnets, r)}, nil, nil
}

// portFor makes the endpoint's port of those that have its addresses.
func (d *Driver) portFor(ctx context.Context, network sdn.Network, ports []sdn.Port, r *endpointRequest) (sdn.Port, error) {
	switch len(ports) {
	case 0:
		return d.makePort(ctx, network, r)
	case 1:
		if !d.ownPort(ports[0]) {
			return d.borrow(ctx, ports[0], r)
		}
		return d.bindPort(ctx, ports[0], r, nil)
	default:
		if i := slices.IndexFunc(ports, func(p sdn.Port) bool { return !d.ownPort(p) }); i >= 0 {
			return sdn.Port{}, refuse("the addresses are of several ports, of which %s is not Kuryr's: give all that are wanted of it by --ip and --ip6, or its MAC by --mac-address: it has %s",
				ports[i].ID, identity.Addresses(ports[i]))
		}
		return d.joinPorts(ctx, ports, r)
	}
}

// dropForgotten takes away an endpoint that its engine does not know any more: one whose address another IPAM driver has handed out
// anew (the engine never deletes an endpoint whose CreateEndpoint was killed before it answered, nor again one whose DeleteEndpoint failed,
// and of that driver's releases Kuryr does not hear), or one of a network that the engine makes once more. An endpoint that a container has
// stays, which is told.
func (d *Driver) dropForgotten(ctx context.Context, port sdn.Port, why string) (connected bool, err error) {
	unlock, err := d.locks.lock(ctx, "endpoint/"+port.DeviceID)
	if err != nil {
		return false, err
	}
	defer unlock()
	now, err := d.sdn.Port(ctx, port.ID)
	if sdn.IsNotFound(err) || err == nil && now.DeviceID != port.DeviceID {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if connected, err = d.binder.Connected(ctx, now); err != nil {
		return false, &plugError{err}
	}
	if connected {
		return true, nil
	}
	d.log.WarnContext(ctx, "an endpoint that the engine has forgotten is taken away", "endpoint", now.DeviceID, "why", why)
	return false, d.dropEndpoint(ctx, now)
}

// network is findNetwork where there must be one.
func (d *Driver) network(ctx context.Context, id string) (sdn.Network, error) {
	n, found, err := d.findNetwork(ctx, id)
	if err == nil && !found {
		err = refuse("there is no network %s", id)
	}
	return n, err
}

// subnetsOf returns the subnets of a network.
func (d *Driver) subnetsOf(ctx context.Context, network sdn.Network) ([]sdn.Subnet, error) {
	if len(network.Subnets) == 0 {
		return nil, nil
	}
	query := sdn.SubnetQuery{Match: sdn.Match{IDs: network.Subnets}}
	return sdn.All(d.sdn.FindSubnets(ctx, query))
}

// checkLengths checks that addresses have the prefix lengths of their subnets: with another one
// the container would take neighbours for others, or others for neighbours.
func checkLengths(subnets []sdn.Subnet, addresses []netip.Prefix) error {
	for _, a := range addresses {
		at := slices.IndexFunc(subnets, func(s sdn.Subnet) bool { return s.CIDR.Contains(a.Addr()) })
		if at < 0 || subnets[at].CIDR.Bits() == a.Bits() {
			continue
		}
		field := "Interface.Address"
		if a.Addr().Is6() {
			field = "Interface.AddressIPv6"
		}
		return refuse("%s: %s must have the prefix length of its subnet %s", field, a, subnets[at].CIDR)
	}
	return nil
}

// portsAt returns the ports that have the addresses, which are of the subnets.
func (d *Driver) portsAt(
	ctx context.Context, subnets []sdn.Subnet, addresses []netip.Prefix,
) ([]sdn.Port, error) {
	var ports []sdn.Port
	for _, a := range addresses {
		for _, s := range subnets {
			if !s.CIDR.Contains(a.Addr()) || slices.ContainsFunc(ports, func(p sdn.Port) bool { return hasAddress(p, a.Addr()) }) {
				continue
			}
			// One address of one subnet at a time is what an SDN may know the port of.
			port, found, err := sdn.First(d.sdn.FindPorts(ctx, sdn.PortQuery{Subnets: []sdn.ID{s.ID}, Addresses: []netip.Addr{a.Addr()}}))
			if err != nil {
				return nil, err
			}
			if found {
				ports = append(ports, port)
			}
		}
	}
	slices.SortFunc(ports, func(a, b sdn.Port) int { return strings.Compare(string(a.ID), string(b.ID)) })
	return slices.CompactFunc(ports, func(a, b sdn.Port) bool { return a.ID == b.ID }), nil
}

// boundTags are the tags of a port that an endpoint has.
func boundTags(r *endpointRequest) []string {
	tags := append(identity.IDTags(r.EndpointID), identity.TagPort)
	for _, address := range r.bindings {
		tags = append(tags, identity.TagBinding+address)
	}
	return slices.Concat(tags, identity.EndpointOptionTags(r.Options), exposedTags(r.Options.Exposed))
}

// makePort makes the port of an endpoint whose addresses another IPAM driver chose, or nobody.
func (d *Driver) makePort(ctx context.Context, network sdn.Network, r *endpointRequest) (sdn.Port, error) {
	spec := sdn.PortSpec{
		Base:        sdn.Base{Key: d.names.GlobalKey(identity.KindEndpoint, r.EndpointID), Name: identity.PortTitle(r.EndpointID), Tags: boundTags(r)},
		Network:     network.ID,
		MAC:         r.MAC,
		DeviceID:    r.EndpointID,
		DeviceOwner: sdn.OwnerContainer,
		Host:        d.host,

		NoPortSecurity: r.Options.NoPortSecurity,
		AllowedPairs:   r.Options.Allowed,
		Groups:         r.groups,
		QoSPolicy:      r.policy,
	}
	if r.groups != nil && len(r.groups) == 0 {
		spec.Groups, spec.WithoutGroups = nil, true
	}
	for _, a := range r.Addresses {
		spec.Addresses = append(spec.Addresses, sdn.Address{Addr: a.Addr()})
	}
	spec.WithoutAddresses = len(network.Subnets) == 0
	if spec.WithoutAddresses && len(r.Addresses) > 0 {
		return sdn.Port{}, refuse("network %s has no range that %s is in", r.NetworkID, r.Addresses[0].Addr())
	}
	ports, err := d.sdn.EnsurePorts(ctx, []sdn.PortSpec{spec})
	if err != nil {
		d.oweLateEndpoint(ctx, r, spec, err)
		return sdn.Port{}, err
	}
	return ports[0], nil
}

// bindPort gives a port to the endpoint. addresses are the port's new ones, nil leaves them.
func (d *Driver) bindPort(ctx context.Context, port sdn.Port, r *endpointRequest, addresses []sdn.Address) (sdn.Port, error) {
	same := r.MAC == nil || bytes.Equal(r.MAC, port.MAC)
	name, owner, tags := identity.PortTitle(r.EndpointID), sdn.OwnerContainer, boundTags(r)
	asked := r.Options
	if port.DeviceID == r.EndpointID && port.Host == d.host && same && addresses == nil && identity.HasAll(port.Tags, tags) && samePairs(asked.Allowed, port.AllowedPairs) &&
		!port.Key.IsZero() && (r.groups == nil || sameSet(r.groups, port.Groups)) && (r.policy == "" || r.policy == port.QoSPolicy) {
		return port, nil
	}
	tags = append(tags, held(port)...)
	patch := sdn.PortPatch{
		Patch:    sdn.Patch{IfRevision: port.Revision, Name: &name, Tags: &tags},
		DeviceID: &r.EndpointID, DeviceOwner: &owner, Host: &d.host,
	}
	if port.Key.IsZero() {
		key := d.names.GlobalKey(identity.KindPort, string(port.Network)+"/"+string(port.ID))
		patch.Key = &key
	}
	if !same {
		patch.MAC = r.MAC
	}
	if r.groups != nil {
		patch.Groups = &r.groups
	}
	if r.policy != "" {
		patch.QoSPolicy = &r.policy
	}
	if patch.NoPortSecurity = asked.NoPortSecurity; !samePairs(asked.Allowed, port.AllowedPairs) {
		pairs := append([]sdn.AllowedPair{}, asked.Allowed...)
		patch.AllowedPairs = &pairs
	}
	if addresses != nil {
		patch.Addresses = &addresses
	}
	bound, err := d.sdn.UpdatePort(ctx, port.ID, patch)
	d.forgetMade(port.ID)
	switch {
	case sdn.ReasonOf(err) == sdn.Stale:
		return bound, refuseFor(err, "address %s was taken by another endpoint", identity.Addresses(port))
	case sdn.IsDenied(err):
		return bound, d.unbindable(port, err)
	}
	return bound, err
}

func samePairs(a, b []sdn.AllowedPair) bool {
	return slices.EqualFunc(a, b, func(x, y sdn.AllowedPair) bool {
		return x.Prefix == y.Prefix && slices.Equal(x.MAC, y.MAC)
	})
}

// joinPorts makes one port of those that the addresses of a dual-stack endpoint were taken with, which an engine that sends
// no MAC causes. The others are deleted first, since an address has but one port: a killed call leaves the engine without an
// answer, and it gives the addresses back.
func (d *Driver) joinPorts(ctx context.Context, ports []sdn.Port, r *endpointRequest) (sdn.Port, error) {
	port, others := ports[0], ports[1:]
	for i, p := range ports {
		if p.DeviceID == r.EndpointID {
			port, others = p, slices.Delete(slices.Clone(ports), i, i+1)
		}
	}
	addresses := slices.Clone(port.Addresses)
	var ids []sdn.ID
	for _, p := range others {
		addresses = append(addresses, p.Addresses...)
		ids = append(ids, p.ID)
		port.Tags = append(port.Tags, held(p)...)
	}
	if err := d.deletePorts(ctx, ids...); err != nil {
		return sdn.Port{}, err
	}
	failpoint.Here("docker.createendpoint.joining")
	return d.bindPort(ctx, port, r, addresses)
}

// ungiven returns what the engine left open of the interface. Without an IPAM driver it gives no
// addresses, and the container gets those of its port.
func ungiven(port sdn.Port, subnets []sdn.Subnet, r *endpointRequest) api.EndpointInterface {
	var i api.EndpointInterface
	if !r.MACGiven {
		i.MacAddress = port.MAC.String()
	}
	if len(r.Addresses) > 0 {
		return i
	}
	for _, a := range port.Addresses {
		at := slices.IndexFunc(subnets, func(s sdn.Subnet) bool { return s.ID == a.Subnet })
		if at < 0 {
			continue
		}
		field := &i.Address
		if a.Addr.Is6() {
			field = &i.AddressIPv6
		}
		if *field == "" {
			*field = netip.PrefixFrom(a.Addr, subnets[at].CIDR.Bits()).String()
		}
	}
	return i
}

// sameSet tells whether two lists have the same elements, in whatever order.
func sameSet[T cmp.Ordered](a, b []T) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

// port is the port of an endpoint, and whether there is one. A port that is lent and kept a device of its own is found by its tags.
func (d *Driver) port(ctx context.Context, endpoint string) (sdn.Port, bool, error) {
	if id, ok := d.hinted(endpoint); ok {
		p, err := d.sdn.Port(ctx, id)
		if err == nil && d.names.Attached(p, d.host) && identity.IsExistingOf(p, endpoint) {
			return p, true, nil
		}
		if err != nil && !sdn.IsNotFound(err) {
			return sdn.Port{}, false, err
		}
	}
	for _, q := range []sdn.PortQuery{
		{Devices: []string{endpoint}},
		{Match: sdn.Match{Tags: append(identity.IDTags(endpoint), identity.TagExistingPort)}},
	} {
		for p, err := range d.sdn.FindPorts(ctx, q) {
			if err != nil {
				return sdn.Port{}, false, err
			}
			if d.ownPort(p) && p.DeviceID == endpoint || d.names.Attached(p, d.host) &&
				identity.IsExistingOf(p, endpoint) {
				return p, true, nil
			}
		}
	}
	return sdn.Port{}, false, nil
}

// endpointOperInfo tells facts about the port. It never fails: older engines do not start a container without it.
func (d *Driver) endpointOperInfo(ctx context.Context, r *api.EndpointRequest) (any, error) {
	value := map[string]any{}
	find := d.port
	if _, lent := d.hinted(r.EndpointID); lent {
		find = d.portOf // an SDN would have to be asked twice in each start
	}
	port, found, err := find(ctx, r.EndpointID)
	if err != nil {
		d.log.WarnContext(ctx, "no facts about an endpoint", "endpoint", r.EndpointID, "err", err)
	}
	if found {
		value["kuryr.port.id"] = string(port.ID)
		value["kuryr.port.mac"] = port.MAC.String()
		if port.Status != "" {
			value["kuryr.port.status"] = string(port.Status)
		}
		value["kuryr.network.id"] = string(port.Network)
		if exposed := Exposed(port.Tags); exposed != nil {
			value["kuryr.port.exposed"] = exposed
		}
	}
	return api.OperInfoResponse{Value: value}, nil
}

// deleteEndpoint unbinds the port. It stays until its addresses are released, unless it was made by CreateEndpoint or they
// have been released already.
func (d *Driver) deleteEndpoint(ctx context.Context, r *api.EndpointRequest) (any, error) {
	unlock, err := d.locks.lock(ctx, "endpoint/"+r.EndpointID)
	if err != nil {
		return nil, err
	}
	defer unlock()
	known, err := d.unplugKnown(ctx, r.EndpointID)
	if err != nil {
		return nil, err
	}
	if err := d.unpublish(ctx, r.EndpointID); err != nil {
		return nil, err
	}
	failpoint.Here("docker.deleteendpoint.unpublished")
	port, found, err := d.port(ctx, r.EndpointID)
	if err == nil && (!found || identity.Elsewhere(port, d.host)) {
		d.plugged.drop(ctx, r.EndpointID)
		return api.Empty{}, nil
	}
	if err != nil {
		return api.Empty{}, err
	}
	if err := d.letFloat(ctx, port); err != nil {
		return nil, err
	}
	if !known {
		if err := d.unplug(ctx, port); err != nil {
			return nil, err
		}
	}
	failpoint.Here("docker.deleteendpoint.unplugged")
	err = retryStale(func(again bool) error {
		if again {
			if port, found, err = d.port(ctx, r.EndpointID); err != nil || !found {
				return err
			}
		}
		if d.names.Attached(port, d.host) {
			return d.giveBack(ctx, port)
		}
		return ignoreAbsent(d.park(ctx, port)) // an SDN may not have asked whether it is still there
	})
	if err == nil {
		d.plugged.drop(ctx, r.EndpointID)
		d.tidySubnets(ctx, port.Addresses...)
	}
	return api.Empty{}, err
}

// park takes the endpoint from its port, or deletes what no ReleaseAddress will come for.
func (d *Driver) park(ctx context.Context, port sdn.Port) error {
	left, mine := unfreed(port), held(port)
	if len(mine) > 0 {
		left = port.Addresses
	} else if port.Key.Kind == identity.KindEndpoint || len(left) == 0 {
		return d.deletePorts(ctx, port.ID)
	}
	none, name := "", identity.UnboundPort
	patch := sdn.PortPatch{Patch: sdn.Patch{Name: &name}, DeviceID: &none, Host: &none}
	if len(mine) > 0 || len(left) < len(port.Addresses) { // any other goes as soon as its addresses are released, and its tags mean nothing meanwhile
		tags := append(mine, identity.TagPort)
		patch.Tags, patch.IfRevision = &tags, port.Revision // the device and the host are this endpoint's, whatever else has become of the port
	}
	if len(left) < len(port.Addresses) {
		patch.Addresses = &left
	}
	if err := d.guardAgain(ctx, port, &patch); err != nil {
		return err
	}
	_, err := d.sdn.UpdatePort(ctx, port.ID, patch)
	return err
}

// guardAgain takes back what an endpoint was allowed to send: the next one that gets the port asks for itself.
func (d *Driver) guardAgain(ctx context.Context, port sdn.Port, patch *sdn.PortPatch) error {
	if len(port.AllowedPairs) > 0 {
		patch.AllowedPairs = &[]sdn.AllowedPair{}
	}
	if len(identity.Values(port.Tags, identity.TagGuarded)) == 0 {
		return nil
	}
	network, err := d.sdn.Network(ctx, port.Network)
	patch.NoPortSecurity = &network.NoPortSecurity
	return err
}
