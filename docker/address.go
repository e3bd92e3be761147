package docker

import (
	"bytes"
	"context"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/kuryr/kuryr/sdn"
)

// requestAddress serves three requests that the engine tells apart by little: a gateway's has a type; an auxiliary address
// has no MAC and comes before the pool has a network; what is left is an endpoint's.
func (d *Driver) requestAddress(ctx context.Context, r *api.RequestAddressRequest) (any, error) {
	subnet, found, err := d.subnetOf(ctx, r.PoolID.Pool)
	if err != nil {
		return nil, err
	}
	if found && !d.mayGo(subnet) {
		return d.subnetAddress(ctx, subnet, r)
	}
	unlock, err := d.locks.lock(ctx, "pool/"+string(r.PoolID.Pool))
	if err != nil {
		return nil, err
	}
	defer unlock()
	if found || d.deleteEmpty { // it may have gone, or come back, while this call waited
		if subnet, found, err = d.restored(ctx, r.PoolID.Pool); err != nil {
			return nil, err
		}
		if found {
			return d.subnetAddress(ctx, subnet, r)
		}
	}
	p, err := d.sdn.SubnetPool(ctx, r.PoolID.Pool)
	if sdn.IsNotFound(err) {
		return nil, refuse("there is no pool %s", r.PoolID)
	}
	if err != nil {
		return nil, err
	}
	pool, ok := d.enginePool(p)
	if !ok {
		return nil, refuse("pool %s was not made for the engine", r.PoolID)
	}
	if pool.emptied() != "" {
		if subnet, found, err = d.restored(ctx, pool.ID); err == nil && !found {
			err = refuse("there is no pool %s", r.PoolID)
		}
		if err != nil {
			return nil, err
		}
		return d.subnetAddress(ctx, subnet, r)
	}
	switch {
	case r.Gateway:
		return d.takeGateway(ctx, pool, r.Address)
	case r.MAC == nil && r.Address.IsValid() && !r.Serial:
		return d.takeAux(ctx, pool, r.Address)
	}
	if subnet, found, err = d.subnetOf(ctx, pool.ID); err != nil || found { // made again while this call waited
		if err != nil {
			return nil, err
		}
		return d.subnetAddress(ctx, subnet, r)
	}
	if subnet, err = d.hiddenSubnet(ctx, pool); err != nil {
		return nil, err
	}
	failpoint.Here("docker.requestaddress.hidden")
	return d.subnetAddress(ctx, subnet, r)
}

// subnetAddress answers for a pool that a network is made of.
func (d *Driver) subnetAddress(ctx context.Context, s sdn.Subnet, r *api.RequestAddressRequest) (any, error) {
	switch {
	case r.Gateway:
		return gatewayOf(s, r.Address)
	case r.Address.IsValid() && !s.CIDR.Contains(r.Address):
		return nil, refuse("%s is not in %s", r.Address, s.CIDR)
	case r.Address.IsValid() && r.Address == s.Gateway:
		return nil, refuse("address %s is in use: it is the gateway", r.Address)
	case r.PoolID.Node:
		return d.nodeAddress(ctx, s, r)
	case swarms(s):
		return d.managerAddress(ctx, s, r, r.PoolID.Life)
	}
	return d.endpointAddress(ctx, s, r)
}

// gatewayOf answers for the gateway of a network that is there already.
func gatewayOf(s sdn.Subnet, asked netip.Addr) (any, error) {
	gateway := s.Gateway
	switch {
	case !asked.IsValid() && !gateway.IsValid():
		gateway = identity.FirstHost(s.CIDR)
	case asked.IsValid() && !gateway.IsValid():
		gateway = asked
	}
	if asked.IsValid() && asked != gateway {
		return nil, refuse("the gateway of %s is %s, not %s", s.CIDR, gateway, asked)
	}
	if !gateway.IsValid() || !s.CIDR.Contains(gateway) {
		return nil, refuse("%s has no room for a gateway", s.CIDR)
	}
	return api.NewRequestAddressResponse(gateway, s.CIDR.Bits()), nil
}

// takeGateway remembers the gateway of a pool that has no network yet. No port is made: a router's leg will have it.
func (d *Driver) takeGateway(ctx context.Context, pool enginePool, asked netip.Addr) (any, error) {
	gateway := asked
	if !asked.IsValid() {
		gateway = identity.FirstHost(pool.CIDR)
		for slices.Contains(pool.aux(), gateway) {
			gateway = gateway.Next()
		}
	}
	if !gateway.IsValid() || !pool.CIDR.Contains(gateway) {
		if asked.IsValid() {
			return nil, refuse("gateway %s is not in %s", asked, pool.CIDR)
		}
		return nil, refuse("%s has no room for a gateway", pool.CIDR)
	}
	if slices.Contains(pool.aux(), gateway) {
		return nil, refuse("%s is an auxiliary address already", gateway)
	}
	if gateway == d.gatewayOf(pool) && len(pool.aux()) == 0 {
		return api.NewRequestAddressResponse(gateway, pool.CIDR.Bits()), nil // written down, or needs not to be
	}
	err := d.changePool(ctx, pool, func(tags []string) ([]string, bool) {
		others := slices.DeleteFunc(slices.Clone(tags), func(t string) bool {
			return strings.HasPrefix(t, identity.TagGateway) && t != identity.TagGateway+gateway.String()
		})
		with, added := identity.With(others, identity.TagGateway+gateway.String())
		return with, added || len(others) != len(tags)
	})
	if err != nil {
		return nil, err
	}
	return api.NewRequestAddressResponse(gateway, pool.CIDR.Bits()), nil
}

// takeAux remembers an auxiliary address: nobody will get it. One outside the range is fine and means nothing: the engine
// asks for those too.
func (d *Driver) takeAux(ctx context.Context, pool enginePool, addr netip.Addr) (any, error) {
	if addr.Is6() != pool.CIDR.Addr().Is6() {
		return nil, refuse("%s is not of the family of %s", addr, pool.CIDR)
	}
	if addr == pool.gateway() {
		return nil, refuse("%s is the gateway", addr)
	}
	if pool.CIDR.Contains(addr) {
		if err := d.tagPool(ctx, pool, identity.TagAux+addr.String()); err != nil {
			return nil, err
		}
	}
	return api.NewRequestAddressResponse(addr, pool.CIDR.Bits()), nil
}

// endpointAddress takes an address for an endpoint: a port of its MAC, or one more address of the port that has it.
func (d *Driver) endpointAddress(ctx context.Context, s sdn.Subnet, r *api.RequestAddressRequest) (any, error) {
	_, answer, err := d.takeAddress(ctx, s, r)
	if err != nil {
		return nil, err
	}
	return answer, nil
}

// takeAddress is endpointAddress, with the port and its further tags.
func (d *Driver) takeAddress(ctx context.Context, s sdn.Subnet, r *api.RequestAddressRequest, tags ...string) (port sdn.Port, answer api.RequestAddressResponse, err error) {
	nonce := strings.ReplaceAll(uuid.NewString(), "-", "")
	name := string(s.Network) + "/" + nonce
	if r.MAC != nil {
		unlock, err := d.locks.lock(ctx, portLock(s.Network, r.MAC.String()))
		if err != nil {
			return port, answer, err
		}
		defer unlock()
		name = string(s.Network) + "/" + r.MAC.String() + "/" + nonce[:8]
	}
	if port, err = d.portWith(ctx, s, r, d.names.GlobalKey(identity.KindPort, name), tags); err != nil {
		return port, answer, err
	}
	if err := d.keepLate(port); err != nil {
		return port, answer, err
	}
	failpoint.Here("docker.requestaddress.taken")
	addr, ok := addressOn(port, s.ID)
	if r.Address.IsValid() && hasAddress(port, r.Address) {
		addr, ok = r.Address, true
	}
	if !ok {
		return port, answer, refuse("the SDN gave the port no address in %s", s.CIDR)
	}
	d.wasReturned(sdn.Address{Subnet: s.ID, Addr: addr})
	return port, api.NewRequestAddressResponse(addr, s.CIDR.Bits()), nil
}

// portWith makes the port that a request asks for, or finds it. A MAC or an address that is in use, or that may not be chosen, tells that it
// may be there, so that looking first would mostly be in vain. It is not where another address was taken before, which engines do with IPv4 first; nor for an address
// given of a subnet that others have too, whose port is mostly one that its user made.
func (d *Driver) portWith(ctx context.Context, s sdn.Subnet, r *api.RequestAddressRequest, key sdn.Key, tags []string) (sdn.Port, error) {
	byMAC := sdn.PortQuery{Networks: []sdn.ID{s.Network}, MACs: []net.HardwareAddr{r.MAC}}
	byAddress := sdn.PortQuery{Subnets: []sdn.ID{s.ID}, Addresses: []netip.Addr{r.Address}}
	if r.Address.IsValid() && !d.names.Ours(s.Meta, identity.KindSubnet, identity.KindHiddenSubnet) {
		if port, found, err := d.portLike(ctx, byAddress, s, r, key); found || err != nil {
			return port, err
		}
	}
	if r.MAC != nil && s.CIDR.Addr().Is6() {
		q := byMAC
		if id, ok := d.madeFor(s.Network, r.MAC); ok {
			q.IDs = []sdn.ID{id} // an SDN's port is found at less cost by its id
		}
		if port, found, err := d.portLike(ctx, q, s, r, key); found || err != nil {
			return port, err
		}
	}
	port, refusal := d.newPort(ctx, s, r, key, tags)
	reason, forbidden := sdn.ReasonOf(refusal), sdn.IsDenied(refusal)
	if r.MAC != nil && (reason == sdn.MACInUse || forbidden) {
		if port, found, err := d.portLike(ctx, byMAC, s, r, key); found || err != nil {
			return port, err
		}
	}
	if r.Address.IsValid() && (reason == sdn.AddressInUse || forbidden) {
		if port, found, err := d.portLike(ctx, byAddress, s, r, key); found || err != nil {
			return port, err
		}
	}
	if reason == sdn.AddressInUse && r.Address.IsValid() {
		return port, refuseFor(refusal, "address %s is in use", r.Address)
	}
	return port, denied(refusal, s)
}

// newPort makes the port of a request. What an endpoint's port has besides, CreateEndpoint tells; it also writes the tags, but for
// those that a swarm's manager needs, since there will be none.
func (d *Driver) newPort(ctx context.Context, s sdn.Subnet, r *api.RequestAddressRequest, key sdn.Key, tags []string) (sdn.Port, error) {
	if len(tags) > 0 {
		tags = append(tags, identity.TagPort)
	}
	ports, err := d.sdn.EnsurePorts(ctx, []sdn.PortSpec{{
		Base:        sdn.Base{Key: key, Name: identity.UnboundPort, Tags: tags},
		Network:     s.Network,
		MAC:         r.MAC,
		Addresses:   []sdn.Address{{Subnet: s.ID, Addr: r.Address}},
		DeviceOwner: sdn.OwnerContainer,
	}})
	if err != nil {
		if len(tags) == 0 {
			d.oweLateAddress(ctx, s, r, key, err)
		}
		return sdn.Port{}, err
	}
	if r.MAC != nil {
		d.mu.Lock()
		defer d.mu.Unlock()
		name := madeName(s.Network, r.MAC)
		d.made[name], d.madeAs[ports[0].ID] = ports[0].ID, name
	}
	return ports[0], nil
}

func madeName(network sdn.ID, mac net.HardwareAddr) string {
	return string(network) + "/" + mac.String()
}

func (d *Driver) madeFor(network sdn.ID, mac net.HardwareAddr) (sdn.ID, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	id, ok := d.made[madeName(network, mac)]
	return id, ok
}

// forgetMade lets go of the hint: all addresses of the port are taken.
func (d *Driver) forgetMade(port sdn.ID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.made, d.madeAs[port])
	delete(d.madeAs, port)
}

// denied puts into words what the policy of an SDN forbids on networks that are another project's.
func denied(err error, s sdn.Subnet) error {
	if !sdn.IsDenied(err) {
		return err
	}
	return refuseFor(err, "the SDN does not let Kuryr choose the address or the MAC of a port in %s: give those of a port that is there by --ip and --mac-address", s.CIDR)
}

// portLike answers a request with a port that is there, if there is one like that: one of ours gets the address, and one that its user made has it.
func (d *Driver) portLike(ctx context.Context, q sdn.PortQuery, s sdn.Subnet, r *api.RequestAddressRequest, key sdn.Key) (sdn.Port, bool, error) {
	port, found, err := sdn.First(d.sdn.FindPorts(ctx, q))
	switch {
	case err != nil || !found:
		return port, false, err
	case d.ownPort(port):
		if port.Key.IsZero() {
			port, err = d.adopt(ctx, port, r.MAC, key)
		} else if !bytes.Equal(r.MAC, port.MAC) {
			err = refuse("address %s is in use", r.Address)
		}
		if err == nil {
			port, err = d.addAddress(ctx, port, s, r.Address)
		}
		return port, true, err
	}
	if err := identity.Usable(port, d.host, ""); err != nil {
		return port, true, err
	}
	if _, on := addressOn(port, s.ID); !on || r.Address.IsValid() && !hasAddress(port, r.Address) {
		return port, true, refuse("port %s has MAC %s, but not the address that is asked for: it has %s", port.ID, port.MAC, identity.Addresses(port))
	}
	return port, true, nil
}

// addAddress gives a port of an endpoint to be an address of a subnet; the one it has there already will do.
func (d *Driver) addAddress(ctx context.Context, port sdn.Port, s sdn.Subnet, addr netip.Addr) (sdn.Port, error) {
	if port.DeviceID != "" {
		if addr.IsValid() && hasAddress(port, addr) {
			return port, refuse("address %s is in use", addr)
		}
		return port, refuse("MAC %s is in use by another endpoint of the network", port.MAC)
	}
	has, ok := addressOn(port, s.ID)
	if ok && (!addr.IsValid() || addr == has) {
		return port, nil
	}
	addresses := slices.DeleteFunc(slices.Clone(port.Addresses), func(a sdn.Address) bool { return a.Subnet == s.ID })
	addresses = append(addresses, sdn.Address{Subnet: s.ID, Addr: addr})
	changed, err := d.sdn.UpdatePort(ctx, port.ID, sdn.PortPatch{Patch: sdn.Patch{IfRevision: port.Revision}, Addresses: &addresses})
	if sdn.ReasonOf(err) == sdn.AddressInUse && addr.IsValid() {
		err = refuseFor(err, "address %s is in use", addr)
	}
	return changed, denied(err, s)
}

func addressOn(p sdn.Port, subnet sdn.ID) (netip.Addr, bool) {
	for _, a := range p.Addresses {
		if a.Subnet == subnet {
			return a.Addr, true
		}
	}
	return netip.Addr{}, false
}

func hasAddress(p sdn.Port, addr netip.Addr) bool {
	return slices.ContainsFunc(p.Addresses, func(a sdn.Address) bool { return a.Addr == addr })
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
