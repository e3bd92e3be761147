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

type hiddenRow = reconcile.Row[HiddenSpec, HiddenState]

// hiddenSubnet makes the hidden network of a pool, whose range is locked.
func (s *Service) hiddenSubnet(ctx context.Context, p poolRow) (sdn.Subnet, error) {
	state, err := s.hidden.Set(ctx, reconcile.Request[HiddenSpec]{
		Key: p.Key, Owners: []string{s.pools.Ref(p.Key)}, Spec: s.hiddenSpec(p, p.Spec.gateway()),
	})
	if err != nil {
		return sdn.Subnet{}, err
	}
	return state.Subnet, s.tagLater(ctx, p.Key)
}

func (s *Service) hiddenSpec(p poolRow, gateway netip.Addr) HiddenSpec {
	spec := HiddenSpec{Pool: p.Last.ID, PoolSpec: p.Spec, Swarm: s.isGlobal(p.Spec)}
	spec.Gateway = gateway
	return spec
}

// hiddenTarget makes hidden networks.
type hiddenTarget struct{ *Service }

// Ensure implements reconcile.Target.
func (t hiddenTarget) Ensure(
	ctx context.Context, o reconcile.Object, spec HiddenSpec, last HiddenState,
) (HiddenState, error) {
	key := last.Key
	if key.IsZero() {
		key = t.names.Key(identity.KindHidden, string(spec.Pool), o)
	}
	state := HiddenState{Key: key}
	data := &api.IPAMData{Pool: spec.CIDR, Gateway: spec.Gateway, AuxAddresses: spec.Aux}
	subnetKey := t.names.Key(identity.KindHiddenSubnet, string(spec.Pool), o)
	subnet := SubnetSpec(subnetKey, data, Pool{ID: spec.Pool, PoolSpec: spec.PoolSpec}, !spec.Gateway.IsValid())
	tags := []string{t.names.HostTag()}
	if spec.Swarm { // any host may delete it
		subnet.Tags, tags = append(subnet.Tags, identity.TagSwarm), nil
	}
	network, err := t.sdn.EnsureNetwork(ctx, sdn.NetworkSpec{
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
		key := last.Key
		if key.IsZero() {
			key = t.names.Key(identity.KindHidden, string(spec.Pool), o)
		}
		match := sdn.Match{Keys: []sdn.Key{key}, Names: []string{identity.HiddenTitle(spec.CIDR)}}
		n, found, err := sdn.First(t.sdn.FindNetworks(ctx, sdn.NetworkQuery{Match: match}))
		if err != nil {
			return err
		}
		if !found {
			return reconcile.ErrAbsent
		}
		id = n.ID
	}
	err := t.sdn.DeleteNetwork(ctx, id)
	if sdn.ReasonOf(err) == sdn.InUse {
		if err = t.dropPorts(ctx, id); err == nil {
			err = t.sdn.DeleteNetwork(ctx, id)
		}
	}
	if sdn.IsNotFound(err) {
		return reconcile.ErrAbsent
	}
	return err
}

// dropPorts deletes the ports of a hidden network that hold addresses.
func (t hiddenTarget) dropPorts(ctx context.Context, network sdn.ID) error {
	var ids []sdn.ID
	for p, err := range t.sdn.FindPorts(ctx, sdn.PortQuery{Networks: []sdn.ID{network}}) {
		if err != nil {
			return err
		}
		if t.names.Ours(p.Meta, identity.KindPort) {
			ids = append(ids, p.ID)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	return t.sdn.DeletePorts(ctx, ids)
}
