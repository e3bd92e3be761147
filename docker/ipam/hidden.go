package ipam

import (
	"context"
	"net/netip"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/sdn"
)

// HiddenSpec is the network of a pool that another network driver uses: its ports hold addresses,
// and nothing is plugged into it.
type HiddenSpec struct {
	Pool     sdn.ID `json:"pool"`
	PoolSpec        // of the pool, with its gateway
	Swarm    bool   `json:"swarm,omitempty"` // a manager allocates its addresses
}

// HiddenState is a hidden network, with its subnet.
type HiddenState struct {
	Network sdn.ID     `json:"network,omitempty"`
	Subnet  sdn.Subnet `json:"subnet"`
	Key     sdn.Key    `json:"key"`
}

// hiddenSubnet makes the hidden network of a pool, whose range is locked.
func (s *Service) hiddenSubnet(ctx context.Context, p poolRow) (sdn.Subnet, error) {
	state, err := s.hidden.Set(ctx, reconcile.Request[HiddenSpec]{
		Key: p.Key, Owners: []string{s.pools.Ref(p.Key)}, Spec: s.hiddenSpec(p, p.Spec.gateway()),
	})
	if err != nil {
		return sdn.Subnet{}, err
	}
	return state.Subnet, s.TagLater(ctx, p.Key)
}

func (s *Service) hiddenSpec(p poolRow, gateway netip.Addr) HiddenSpec {
	spec := HiddenSpec{Pool: p.Last.ID, PoolSpec: p.Spec, Swarm: s.isGlobal(p.Spec)}
	spec.Gateway = gateway
	return spec
}

type hiddenTarget struct{ *Service }

func (t hiddenTarget) key(o reconcile.Object, spec HiddenSpec, last HiddenState) sdn.Key {
	if !last.Key.IsZero() {
		return last.Key
	}
	return t.Names.Key(identity.KindHidden, string(spec.Pool), o)
}

// Ensure implements reconcile.Target.
func (t hiddenTarget) Ensure(
	ctx context.Context, o reconcile.Object, spec HiddenSpec, last HiddenState,
) (HiddenState, error) {
	key := t.key(o, spec, last)
	state := HiddenState{Key: key}
	data := &api.IPAMData{Pool: spec.CIDR, Gateway: spec.Gateway, AuxAddresses: spec.Aux}
	subnetKey := t.Names.Key(identity.KindHiddenSubnet, string(spec.Pool), o)
	subnet := SubnetSpec(subnetKey, data, Pool{ID: spec.Pool, PoolSpec: spec.PoolSpec}, !spec.Gateway.IsValid())
	tags := []string{t.Names.HostTag()}
	if spec.Swarm { // any host may delete it
		subnet.Tags, tags = append(subnet.Tags, identity.TagSwarm), nil
	}
	network, err := t.SDN.EnsureNetwork(ctx, sdn.NetworkSpec{
		Base:    sdn.Base{Key: key, Name: identity.HiddenTitle(spec.CIDR), Tags: tags},
		Subnets: []sdn.SubnetSpec{subnet},
	})
	if err != nil {
		return state, identity.Outcome(err, true)
	}
	if len(network.Subnets) == 0 {
		return state, sdn.NotFound("subnet", spec.CIDR)
	}
	state.Network = network.ID
	state.Subnet = sdn.Subnet{
		Meta: sdn.Meta{ID: network.Subnets[0], Base: subnet.Base}, Network: network.ID,
		CIDR: spec.CIDR, Pool: subnet.Pool, Gateway: spec.Gateway,
	}
	return state, nil
}

// Delete implements reconcile.Target. The network can have ports of an earlier version, which have
// no row.
func (t hiddenTarget) Delete(ctx context.Context, o reconcile.Object, spec HiddenSpec, last HiddenState) error {
	id := last.Network
	if id == "" {
		match := identity.ByKey(t.key(o, spec, last))
		match.Names = []string{identity.HiddenTitle(spec.CIDR)}
		n, found, err := sdn.First(t.SDN.FindNetworks(ctx, sdn.NetworkQuery{Match: match}))
		if err != nil {
			return err
		}
		if !found {
			return reconcile.ErrAbsent
		}
		id = n.ID
	}
	err := t.SDN.DeleteNetwork(ctx, id)
	if sdn.ReasonOf(err) == sdn.InUse {
		if _, _, err = t.DropPorts(ctx, sdn.PortQuery{Networks: []sdn.ID{id}}); err == nil {
			err = t.SDN.DeleteNetwork(ctx, id)
		}
	}
	if sdn.IsNotFound(err) {
		return reconcile.ErrAbsent
	}
	return err
}
