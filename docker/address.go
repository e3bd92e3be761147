package docker

import (
	"context"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/kuryr/kuryr/sdn"
)

// unboundName is the name of a port that no endpoint has yet, or has any more (kuryr-libnetwork's).
const unboundName = "kuryr-unbound-port"

type requestAddressResponse struct {
	Address string
	Data    map[string]string
}

func addressAnswer(a netip.Addr, bits int) requestAddressResponse {
	return requestAddressResponse{Address: netip.PrefixFrom(a, bits).String(), Data: map[string]string{}}
}

// requestAddress serves three requests that the engine tells apart by little: a gateway's has a type; an auxiliary address
// has no MAC and comes before the pool has a network; what is left is an endpoint's.
func (d *Driver) requestAddress(ctx context.Context, r *requestAddressRequest) (any, error) {
	subnet, found, err := d.subnetOf(ctx, sdn.ID(r.PoolID))
	if err != nil {
		return nil, err
	}
	if found {
		if r.gateway {
			return gatewayOf(subnet, r.addr)
		}
		return d.endpointAddress(ctx, subnet, r)
	}
	unlock, err := d.locks.lock(ctx, "pool/"+r.PoolID)
	if err != nil {
		return nil, err
	}
	defer unlock()
	p, err := d.sdn.SubnetPool(ctx, sdn.ID(r.PoolID))
	if sdn.IsNotFound(err) {
		return nil, refuse("there is no pool %s", clip(r.PoolID, 60))
	}
	if err != nil {
		return nil, err
	}
	pool, ok := d.enginePool(p)
	if !ok {
		return nil, refuse("pool %s was not made for the engine", clip(r.PoolID, 60))
	}
	switch {
	case r.gateway:
		return d.takeGateway(ctx, pool, r.addr)
	case r.mac == nil && r.addr.IsValid():
		return d.takeAux(ctx, pool, r.addr)
	}
	if subnet, err = d.hiddenSubnet(ctx, pool); err != nil {
		return nil, err
	}
	failpoint.Here("docker.requestaddress.hidden")
	return d.endpointAddress(ctx, subnet, r)
}

// subnetOf is the subnet that was cut from a pool, and whether there is one.
func (d *Driver) subnetOf(ctx context.Context, pool sdn.ID) (sdn.Subnet, bool, error) {
	return sdn.First(d.sdn.FindSubnets(ctx, sdn.SubnetQuery{Pools: []sdn.ID{pool}}))
}

// gatewayOf answers for the gateway of a network that is there already.
func gatewayOf(s sdn.Subnet, asked netip.Addr) (any, error) {
	gateway := s.Gateway
	switch {
	case !asked.IsValid() && !gateway.IsValid():
		gateway = firstHost(s.CIDR)
	case asked.IsValid() && !gateway.IsValid():
		gateway = asked
	}
	if asked.IsValid() && asked != gateway {
		return nil, refuse("the gateway of %s is %s, not %s", s.CIDR, gateway, asked)
	}
	if !gateway.IsValid() || !s.CIDR.Contains(gateway) {
		return nil, refuse("%s has no room for a gateway", s.CIDR)
	}
	return addressAnswer(gateway, s.CIDR.Bits()), nil
}

// takeGateway remembers the gateway of a pool that has no network yet. No port is made: a router's leg will have it.
func (d *Driver) takeGateway(ctx context.Context, pool enginePool, asked netip.Addr) (any, error) {
	gateway := asked
	if !asked.IsValid() {
		gateway = firstHost(pool.cidr)
		for slices.Contains(pool.aux(), gateway) {
			gateway = gateway.Next()
		}
	}
	if !gateway.IsValid() || !pool.cidr.Contains(gateway) {
		if asked.IsValid() {
			return nil, refuse("gateway %s is not in %s", asked, pool.cidr)
		}
		return nil, refuse("%s has no room for a gateway", pool.cidr)
	}
	if slices.Contains(pool.aux(), gateway) {
		return nil, refuse("%s is an auxiliary address already", gateway)
	}
	err := d.changePool(ctx, pool, func(tags []string) ([]string, bool) {
		others := slices.DeleteFunc(slices.Clone(tags), func(t string) bool {
			return strings.HasPrefix(t, tagGateway) && t != tagGateway+gateway.String()
		})
		with, added := withTag(others, tagGateway+gateway.String())
		return with, added || len(others) != len(tags)
	})
	if err != nil {
		return nil, err
	}
	return addressAnswer(gateway, pool.cidr.Bits()), nil
}

// takeAux remembers an auxiliary address: nobody will get it. One outside the range is fine and means nothing: the engine
// asks for those too.
func (d *Driver) takeAux(ctx context.Context, pool enginePool, addr netip.Addr) (any, error) {
	if addr.Is6() != pool.cidr.Addr().Is6() {
		return nil, refuse("%s is not of the family of %s", addr, pool.cidr)
	}
	if addr == pool.gateway() {
		return nil, refuse("%s is the gateway", addr)
	}
	if pool.cidr.Contains(addr) {
		if err := d.tagPool(ctx, pool, tagAux+addr.String()); err != nil {
			return nil, err
		}
	}
	return addressAnswer(addr, pool.cidr.Bits()), nil
}

// endpointAddress takes an address for an endpoint: a port of its MAC, or one more address of the port that has it.
func (d *Driver) endpointAddress(ctx context.Context, s sdn.Subnet, r *requestAddressRequest) (any, error) {
	switch {
	case r.addr.IsValid() && !s.CIDR.Contains(r.addr):
		return nil, refuse("%s is not in %s", r.addr, s.CIDR)
	case r.addr.IsValid() && r.addr == s.Gateway:
		return nil, refuse("address %s is in use: it is the gateway", r.addr)
	}
	id := strings.ReplaceAll(uuid.NewString(), "-", "")
	if r.mac != nil {
		id = r.mac.String()
	}
	key := d.key(kindPort, string(s.Network)+"/"+id)
	unlock, err := d.locks.lock(ctx, "port/"+key.Name)
	if err != nil {
		return nil, err
	}
	defer unlock()
	var port sdn.Port
	var there bool
	if r.mac != nil {
		if port, there, err = sdn.First(d.sdn.FindPorts(ctx, sdn.PortQuery{Match: sdn.Match{Keys: []sdn.Key{key}}})); err != nil {
			return nil, err
		}
	}
	if there {
		port, err = d.addAddress(ctx, port, s, r.addr)
	} else {
		var ports []sdn.Port
		ports, err = d.sdn.EnsurePorts(ctx, []sdn.PortSpec{{
			Base:        sdn.Base{Key: key, Name: unboundName, Tags: []string{tagPort}},
			Network:     s.Network,
			MAC:         r.mac,
			Addresses:   []sdn.Address{{Subnet: s.ID, Addr: r.addr}},
			DeviceOwner: sdn.OwnerContainer,
		}})
		if err == nil {
			port = ports[0]
		}
	}
	if err != nil {
		if sdn.ReasonOf(err) == sdn.AddressInUse && r.addr.IsValid() {
			return nil, refuseFor(err, "address %s is in use", r.addr)
		}
		return nil, err
	}
	failpoint.Here("docker.requestaddress.taken")
	addr, ok := addressOn(port, s.ID)
	if !ok {
		return nil, refuse("the SDN gave the port no address in %s", s.CIDR)
	}
	return addressAnswer(addr, s.CIDR.Bits()), nil
}

// addAddress gives a port of an endpoint to be an address of a subnet; the one it has there already will do.
func (d *Driver) addAddress(ctx context.Context, port sdn.Port, s sdn.Subnet, addr netip.Addr) (sdn.Port, error) {
	if port.DeviceID != "" {
		return port, refuse("MAC %s is in use by another endpoint of the network", port.MAC)
	}
	has, ok := addressOn(port, s.ID)
	if ok && (!addr.IsValid() || addr == has) {
		return port, nil
	}
	addresses := slices.DeleteFunc(slices.Clone(port.Addresses), func(a sdn.Address) bool { return a.Subnet == s.ID })
	addresses = append(addresses, sdn.Address{Subnet: s.ID, Addr: addr})
	return d.sdn.UpdatePort(ctx, port.ID, sdn.PortPatch{Patch: sdn.Patch{IfRevision: port.Revision}, Addresses: &addresses})
}

func addressOn(p sdn.Port, subnet sdn.ID) (netip.Addr, bool) {
	for _, a := range p.Addresses {
		if a.Subnet == subnet {
			return a.Addr, true
		}
	}
	return netip.Addr{}, false
}
