package swarm

import (
	"context"
	"iter"
	"net/netip"
	"slices"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/docker/ipam"
	"github.com/kuryr/kuryr/docker/network"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/sdn"
)

// share is the Spec of this host's part of a network, by the engine's id.
type share struct {
	// Make is the network if a node makes it, because another IPAM driver has its ranges.
	Make sdn.NetworkSpec `json:"make,omitzero"`
	Tags []string        `json:"tags,omitempty"` // of its options
	// Network is the one that a manager allocated, and Ranges are what the engine knows
	// of it.
	Network  sdn.ID         `json:"network,omitempty"`
	Ranges   []netip.Prefix `json:"ranges,omitempty"`
	Internal bool           `json:"internal,omitempty"`
	network.Routing
}

// shareState is what the SDN has of the network.
type shareState struct {
	ID             sdn.ID       `json:"id,omitempty"`
	Project        string       `json:"project,omitempty"`
	MTU            int          `json:"mtu,omitempty"`
	NoPortSecurity bool         `json:"noPortSecurity,omitempty"`
	Tags           []string     `json:"tags,omitempty"` // of its options
	Subnets        []sdn.Subnet `json:"subnets,omitempty"`
}

// CreateNetwork makes a network of the swarm one of this node, and attaches it to its
// router. Other networks are left to docker/network.
func (s *Service) CreateNetwork(ctx context.Context, r *api.CreateNetworkRequest) error {
	if r.Options.Existing.Given() {
		return api.Refuse("a swarm's networks cannot be made of existing ones: " +
			"leave out the options that name them")
	}
	if !IsSwarm(r.NetworkID) {
		return s.Networks.Create(ctx, r)
	}
	unlock, err := s.locks.LockAll(ctx, "network/"+r.NetworkID)
	if err != nil {
		return err
	}
	defer unlock()
	return whileStale(ctx, func() error { return s.join(ctx, r) })
}

func (s *Service) join(ctx context.Context, r *api.CreateNetworkRequest) error {
	if err := finish(ctx, s.share, r.NetworkID); err != nil {
		return err
	}
	n, found, err := s.network(ctx, r.NetworkID)
	if err != nil {
		return err
	}
	if found && isDeleted(n) {
		return api.Refuse("network %s is being deleted", r.NetworkID)
	}
	spec := share{Internal: r.Options.Internal}
	if found && hasSwarm(n.Meta) {
		spec.Network = n.ID
		for _, data := range r.Ranges {
			spec.Ranges = append(spec.Ranges, data.Pool)
		}
	} else if err := s.makeByNode(ctx, r, found, &spec); err != nil {
		return err
	}
	if spec.Routing, err = s.Networks.Routing(ctx, r.Options); err != nil {
		return err
	}
	if found && slices.Contains(n.Tags, s.nodeTag()) {
		if err := s.createdAgain(ctx, r.NetworkID, n); err != nil {
			return err
		}
	}
	_, err = s.share.Set(ctx, reconcile.Request[share]{Key: r.NetworkID, Spec: spec})
	return err
}

// makeByNode describes a network that no manager has allocated.
func (s *Service) makeByNode(ctx context.Context, r *api.CreateNetworkRequest, found bool, spec *share) error {
	for _, data := range r.Ranges {
		if data.AddressSpace == api.LocalSpace || data.AddressSpace == api.GlobalSpace {
			return api.Refuse("the range %s was not requested from kuryr, or is another network's", data.Pool)
		}
	}
	if !found {
		if err := s.Networks.CheckGroups(ctx, r.Options, "", false); err != nil {
			return err
		}
	}
	spec.Tags = slices.Concat(identity.IDTags(r.NetworkID), identity.NetworkOptionTags(r.Options))
	spec.Make = sdn.NetworkSpec{Base: s.networkBase(r.NetworkID), MTU: r.Options.MTU}
	if !found { // of an existing one other hosts change the tags too
		spec.Make.Tags = identity.WithAll(spec.Tags, s.nodeTag())
	}
	for _, data := range r.Ranges {
		subnet := s.subnetSpec(r.NetworkID, data, ipam.Pool{}, !r.Options.Routed())
		spec.Make.Subnets = append(spec.Make.Subnets, subnet)
	}
	return nil
}

// createdAgain deletes the endpoints that an engine has forgotten: it was killed, and of
// a swarm's networks it remembers nothing. An endpoint that a container has stays.
func (s *Service) createdAgain(ctx context.Context, id string, n sdn.Network) error {
	if _, ok := s.share.Get(id); !ok {
		if err := s.adopt(ctx, id, n); err != nil {
			return err
		}
	}
	ports, err := s.endpointPorts(ctx, n.ID)
	if err != nil {
		return err
	}
	for _, p := range ports {
		connected, err := s.Binder.Connected(ctx, p)
		if err != nil {
			return err
		}
		if connected {
			continue
		}
		s.Log.WarnContext(ctx, "deleting forgotten endpoint", "endpoint", p.DeviceID, "network", id)
		if err := s.forgetEndpoint(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

// forgetEndpoint deletes an endpoint whose address the engine will not release. Its port
// goes unless the manager holds that.
func (s *Service) forgetEndpoint(ctx context.Context, p sdn.Port) error {
	for r := range s.address.Rows() {
		if r.Spec.Port == p.ID {
			return s.Queued(ctx, s.address.RemoveTree(ctx, r.Key))
		}
	}
	if err := s.DeleteEndpoint(ctx, p.DeviceID); err != nil || !isManagers(p) {
		return err
	}
	p, err := s.SDN.Port(ctx, p.ID)
	if err != nil {
		return identity.IgnoreAbsent(err)
	}
	return s.dropEndpoint(ctx, p)
}

// endpointPorts returns the ports of ours that endpoints of this host have on a network.
func (s *Service) endpointPorts(ctx context.Context, network sdn.ID) ([]sdn.Port, error) {
	query := sdn.PortQuery{Networks: []sdn.ID{network}, Hosts: []string{s.Host}}
	ports, err := sdn.All(s.SDN.FindPorts(ctx, query))
	return slices.DeleteFunc(ports, func(p sdn.Port) bool {
		return p.DeviceID == "" || !s.Names.Ours(p.Meta, identity.KindPort, identity.KindEndpoint)
	}), err
}

// DeleteNetwork ends this node's part of a network. The network goes with the last one
// that has it.
func (s *Service) DeleteNetwork(ctx context.Context, id string) error {
	if !IsSwarm(id) {
		return s.Networks.Delete(ctx, id)
	}
	unlock, err := s.locks.LockAll(ctx, "network/"+id)
	if err != nil {
		return err
	}
	defer unlock()
	return s.leave(ctx, id)
}

func (s *Service) leave(ctx context.Context, id string) error {
	if _, ok := s.share.Get(id); !ok {
		return free(ctx, s, s.share, reconcile.Row[share, shareState]{Object: reconcile.Object{Key: id}})
	}
	return s.Queued(ctx, s.share.RemoveTree(ctx, id))
}

// ImportDelete stores the end of this node's part of a network, which the previous
// version was asked for. The store is not started.
func (s *Service) ImportDelete(ctx context.Context, id string) error {
	err := s.share.Import(ctx, []reconcile.Row[share, shareState]{{
		Object: reconcile.Object{Key: id}, Phase: reconcile.Deleting,
	}})
	if err != nil {
		return err
	}
	return s.share.RemoveLater(ctx, id)
}

// releaseNodePool is a node's ReleasePool. The pool is the manager's. But the call comes
// right before DeleteNetwork, or in its place if Docker had no answer to CreateNetwork: a
// network without endpoints here is left.
func (s *Service) releaseNodePool(ctx context.Context, pool sdn.ID) error {
	subnet, found, err := s.subnetOf(ctx, pool)
	if err != nil || !found {
		return err
	}
	n, err := s.SDN.Network(ctx, subnet.Network)
	if err != nil {
		return identity.IgnoreAbsent(err)
	}
	id, ok := s.networkOf(n)
	if !ok || !IsSwarm(id) {
		return nil
	}
	unlock, err := s.locks.LockAll(ctx, "network/"+id)
	if err != nil {
		return err
	}
	defer unlock()
	if _, ok := s.share.Get(id); !ok && !slices.Contains(n.Tags, s.nodeTag()) {
		return nil
	}
	if ports, err := s.endpointPorts(ctx, n.ID); err != nil || len(ports) > 0 {
		return err
	}
	return s.leave(ctx, id)
}

// Find returns a network for docker/endpoint.
func (s *Service) Find(ctx context.Context, id string) (network.View, error) {
	if !IsSwarm(id) {
		return s.Networks.Find(ctx, id)
	}
	r, ok := s.share.Get(id)
	if !ok {
		n, found, err := s.network(ctx, id)
		if err != nil {
			return network.View{}, err
		}
		if !found || isDeleted(n) {
			return network.View{}, api.Refuse("there is no network %s", id)
		}
		if err := s.adopt(ctx, id, n); err != nil {
			return network.View{}, err
		}
		r, ok = s.share.Get(id)
	}
	if !ok || r.Phase == reconcile.Deleting || r.Last.ID == "" {
		return network.View{}, api.Refuse("network %s is being deleted", id)
	}
	// Routes and name servers of a subnet are its operator's, who changes them at any
	// time.
	subnets, err := s.subnets(ctx, r.Last.ID)
	if err != nil {
		return network.View{}, err
	}
	return network.View{
		Ref: s.share.Ref(id), ID: r.Last.ID, Project: r.Last.Project, MTU: r.Last.MTU,
		Subnets: subnets, NoPortSecurity: r.Last.NoPortSecurity,
		Options: identity.NetworkOptions(r.Last.Tags),
	}, nil
}

// adopt makes a row of this host's part of a network that has none: the previous version
// made it, or the database was lost.
func (s *Service) adopt(ctx context.Context, id string, n sdn.Network) error {
	subnets, err := s.subnets(ctx, n.ID)
	if err != nil {
		return err
	}
	last := stateOf(n, subnets)
	return s.share.Import(ctx, []reconcile.Row[share, shareState]{{
		Object: reconcile.Object{Key: id}, Phase: reconcile.Wanted, Last: last, Done: true,
	}})
}

func stateOf(n sdn.Network, subnets []sdn.Subnet) shareState {
	return shareState{
		ID: n.ID, Project: n.Project, MTU: n.MTU, NoPortSecurity: n.NoPortSecurity,
		Tags: identity.NetworkOptionTags(identity.NetworkOptions(n.Tags)), Subnets: subnets,
	}
}

type shareTarget struct{ *Service }

// Ensure implements reconcile.Target.
func (t shareTarget) Ensure(
	ctx context.Context, o reconcile.Object, spec share, last shareState,
) (shareState, error) {
	var n sdn.Network
	var subnets []sdn.Subnet
	var err error
	made := !spec.Make.Key.IsZero()
	if made {
		n, err = t.SDN.EnsureNetwork(ctx, spec.Make)
	} else {
		n, err = t.SDN.Network(ctx, spec.Network)
	}
	if err == nil {
		subnets, err = t.subnets(ctx, n.ID)
	}
	if err != nil {
		return last, identity.Outcome(err, made)
	}
	for _, cidr := range spec.Ranges {
		if !slices.ContainsFunc(subnets, func(s sdn.Subnet) bool { return s.CIDR == cidr }) {
			return last, reconcile.Refused(api.Refuse("network %s has no range %s", o.Key, cidr))
		}
	}
	if !isDeleted(n) {
		tags := identity.WithAll(identity.Without(n.Tags, t.leavingTag()), spec.Tags...)
		tags = identity.WithAll(tags, t.nodeTag())
		if spec.Internal {
			tags = identity.WithAll(tags, identity.TagInternal)
		}
		n, err = t.TagNetwork(ctx, n, tags)
	}
	if err == nil && isDeleted(n) {
		err = reconcile.Refused(api.Refuse("network %s is being deleted", o.Key))
	}
	if err != nil {
		return last, identity.Outcome(err, true)
	}
	if last = stateOf(n, subnets); spec.Routed && len(n.Subnets) > 0 {
		_, err = spec.Attach(ctx, t.SDN, t.routerKey(o.Key, spec.Router), n.Subnets, false)
	}
	return last, identity.Outcome(err, true)
}

// Delete implements reconcile.Target. Endpoints with a row are gone by then.
func (t shareTarget) Delete(ctx context.Context, o reconcile.Object, _ share, _ shareState) error {
	n, found, err := t.network(ctx, o.Key)
	if err != nil {
		return err
	}
	if !found {
		if err := t.sweep(ctx); err != nil {
			return err
		}
		return reconcile.ErrAbsent
	}
	if isDeleted(n) {
		return t.drop(ctx, n)
	}
	ports, err := t.endpointPorts(ctx, n.ID)
	if err != nil {
		return err
	}
	for _, p := range ports { // of endpoints without a row, as after the loss of the database
		if err := t.dropEndpoint(ctx, p); err != nil {
			return err
		}
	}
	return t.giveUp(ctx, n, identity.Without(n.Tags, t.nodeTag(), t.leavingTag()))
}

// List implements reconcile.Lister: the networks that this host has. The previous version
// marks those that its engine has deleted.
func (t shareTarget) List(ctx context.Context) iter.Seq2[reconcile.Found[share, shareState], error] {
	return func(yield func(reconcile.Found[share, shareState], error) bool) {
		for _, tag := range []string{t.leavingTag(), t.nodeTag()} {
			for n, err := range t.tagged(ctx, tag) {
				f := reconcile.Found[share, shareState]{Object: reconcile.Object{Key: n.Key.Name}}
				_, joined := t.share.Get(n.Key.Name)
				switch {
				case err != nil:
				case joined:
					continue
				case tag == t.leavingTag():
					f.Phase = reconcile.Deleting
				default:
					var subnets []sdn.Subnet
					subnets, err = t.subnets(ctx, n.ID)
					f.Last = stateOf(n, subnets)
				}
				if !yield(f, err) {
					return
				}
			}
		}
	}
}
