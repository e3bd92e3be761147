package raven

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"time"

	"github.com/kuryr/kuryr/internal/backoff"
	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/raven/core"
	"github.com/kuryr/kuryr/sdn"
	corev1 "k8s.io/api/core/v1"
)

// Prepare does what the specification has Raven do at its start: it checks that the
// public network is there, makes the router with a leg there, the VIP network with a leg
// on it, the subnet pools, and asks for the network of the namespace "default", whose leg
// comes with it. Before all that it looks whether this is the SDN that the cluster's
// ports are in. It repeats what fails because the SDN or the API server is away, until
// ctx ends; any other error is what the configuration says and the SDN cannot do, and is
// for people.
func (r *Raven) Prepare(ctx context.Context) error {
	wait := backoff.Backoff{Min: time.Second, Max: 30 * time.Second}
	for {
		err := r.prepare(ctx)
		if err == nil || ctx.Err() != nil || !core.Passing(err) {
			return err
		}
		pause := wait.Next()
		r.Log.WarnContext(ctx, "cannot start yet; it is tried again", "error", err, "in", pause)
		if backoff.Sleep(ctx, pause) != nil {
			return ctx.Err()
		}
	}
}

func (r *Raven) prepare(ctx context.Context) error {
	r.ground.Began = r.Now()
	if err := r.acquainted(ctx); err != nil {
		return err
	}
	if err := r.nameProjects(ctx); err != nil {
		return fmt.Errorf("projects: %w", err)
	}
	public, err := r.publicNetwork(ctx)
	if err != nil {
		return fmt.Errorf("public network: %w", err)
	}
	r.ground.Public = public.ID
	if err := r.nodes.PlanPorts(ctx); err != nil {
		return fmt.Errorf("nodes' network: %w", err)
	}
	if err := r.planVIPs(ctx, public.ID); err != nil {
		return fmt.Errorf("VIP network: %w", err)
	}
	if err := r.checkCollisions(ctx, public); err != nil {
		return err
	}
	if err := r.prepareRouter(ctx, public.ID); err != nil {
		return fmt.Errorf("router: %w", err)
	}
	if err := r.nodes.PreparePorts(ctx); err != nil {
		return fmt.Errorf("nodes' network: %w", err)
	}
	if err := r.prepareSubnetPools(ctx); err != nil {
		return fmt.Errorf("subnet pool: %w", err)
	}
	if err := r.prepareVIPs(ctx); err != nil {
		return fmt.Errorf("VIP network: %w", err)
	}
	if err := r.nodes.PreparePortGroups(ctx); err != nil {
		return fmt.Errorf("nodes' security groups: %w", err)
	}
	if err := r.prepareGroup(ctx); err != nil {
		return fmt.Errorf("security group: %w", err)
	}
	if r.cfg.Services {
		if _, err := r.canBalance(ctx); err != nil { // pods do not wait for it
			r.Log.WarnContext(ctx, "the SDN does not tell what its load balancers can do; Services wait for it", "error", err)
		}
	}
	return r.countPorts(ctx)
}

// publicNetwork finds the external network: the configured one must be there.
func (r *Raven) publicNetwork(ctx context.Context) (sdn.Network, error) {
	wanted := r.cfg.PublicNetwork
	if wanted == "" {
		if id := r.SDN.Capabilities().ExternalNetwork; id != "" {
			wanted = string(id)
		}
	}
	external := true
	var found []sdn.Network
	err := r.Call(ctx, func(ctx context.Context) (err error) {
		found, err = sdn.All(r.SDN.FindNetworks(ctx, sdn.NetworkQuery{External: &external}))
		return err
	})
	if err != nil {
		return sdn.Network{}, err
	}
	var fitting []sdn.Network
	for _, n := range found {
		if wanted == "" || string(n.ID) == wanted || n.Name == wanted {
			fitting = append(fitting, n)
		}
	}
	switch {
	case len(fitting) == 1:
		return fitting[0], nil
	case wanted != "" && len(fitting) == 0:
		return sdn.Network{}, fmt.Errorf("the SDN has no external network %q", wanted)
	case len(fitting) > 1:
		return sdn.Network{}, fmt.Errorf("the SDN has %d external networks that fit %q: name one by its id", len(fitting), wanted)
	}
	r.Log.WarnContext(ctx, "the SDN has no external network: pods have no way out")
	return sdn.Network{}, nil
}

// checkCollisions refuses ranges that something else of the configuration's has, or the
// SDN. A node's address is a warning: it is the kubelet's to write, and one node is not
// to keep the others waiting.
func (r *Raven) checkCollisions(ctx context.Context, public sdn.Network) error {
	claims := r.claimed()
	if public.ID != "" {
		subnets, err := r.SubnetsOf(ctx, public.ID)
		if err != nil {
			return err
		}
		for _, s := range subnets {
			// The host's own network of the embedded SDN may stand for every address.
			if s.CIDR.Bits() > 0 {
				claims = append(claims, core.Claim{What: "the public network's subnet", Prefix: s.CIDR})
			}
		}
	}
	if err := core.Overlap(claims); err != nil {
		return err
	}
	var nodes corev1.NodeList
	if err := r.Client.List(ctx, &nodes); err != nil {
		return err
	}
	for i := range nodes.Items {
		if err := r.nodeCollides(&nodes.Items[i]); err != nil {
			r.Log.WarnContext(ctx, "a node's address collides", "error", err)
		}
	}
	return nil
}

// claimed are the ranges that the cluster has for itself.
func (r *Raven) claimed() (claims []core.Claim) {
	return append(r.otherClaims(), r.vipClaims()...)
}

// nodeCollides tells of an address of the node that is in a range of the cluster's.
func (r *Raven) nodeCollides(n *corev1.Node) error {
	claims := r.claimed()
	for _, a := range n.Status.Addresses {
		addr, err := netip.ParseAddr(a.Address)
		if err != nil {
			continue // a name
		}
		for _, c := range claims {
			if c.Prefix.Contains(addr) {
				return fmt.Errorf("node %s has the address %s, which is in %s %s", n.Name, addr, c.What, c.Prefix)
			}
		}
	}
	return nil
}

// clusterName names the things that the cluster has one of, in Keys.
const clusterName = "cluster"

func (r *Raven) prepareRouter(ctx context.Context, public sdn.ID) error {
	if r.cfg.Router == "" {
		spec := sdn.RouterSpec{Base: r.Base(v1.KeyKindRouter, clusterName, "kuryr-kubernetes", r.cfg.Project)}
		if public != "" {
			spec.Gateway = &sdn.ExternalGateway{Network: public, SNAT: true}
		}
		return r.Call(ctx, func(ctx context.Context) error {
			router, err := r.SDN.EnsureRouter(ctx, spec)
			r.settleRouter(router)
			return err
		})
	}
	var router sdn.Router
	err := r.Call(ctx, func(ctx context.Context) (err error) {
		router, err = one(r.SDN.FindRouters(ctx, sdn.RouterQuery{Match: sdn.Match{IDs: []sdn.ID{sdn.ID(r.cfg.Router)}}}), r.SDN.FindRouters(ctx, sdn.RouterQuery{Match: sdn.Match{Names: []string{r.cfg.Router}}}))
		return err
	})
	if err != nil {
		return fmt.Errorf("%q: %w", r.cfg.Router, err)
	}
	if public != "" && (router.Gateway == nil || router.Gateway.Network != public) {
		return fmt.Errorf("%q has no leg on the public network %s", r.cfg.Router, public)
	}
	r.settleRouter(router)
	return nil
}

// settleRouter notes which router it is, and what has a way out by it.
func (r *Raven) settleRouter(router sdn.Router) {
	r.ground.Router, r.ground.HasWayOut = router.ID, map[bool]bool{}
	r.ground.Project, r.ground.OwnsRouter = router.Project, r.cfg.Router == "" && router.ID != ""
	if router.Gateway != nil {
		for _, a := range router.Gateway.Addresses {
			r.ground.HasWayOut[a.Addr.Is6()] = true
		}
	}
}

// one gives the single object that the first search to find any finds.
func one[T any](searches ...iter.Seq2[T, error]) (found T, err error) {
	for _, search := range searches {
		all, err := sdn.All(search)
		switch {
		case err != nil && !sdn.IsInvalid(err): // what is a name need not be an id
			return found, err
		case len(all) > 1:
			return found, fmt.Errorf("there are %d of that name: give the id", len(all))
		case len(all) == 1:
			return all[0], nil
		}
	}
	return found, errors.New("there is none")
}

func (r *Raven) prepareSubnetPools(ctx context.Context) error {
	r.ground.SubnetPools, r.ground.PrefixLens = nil, nil
	if r.cfg.Network != "" {
		return nil
	}
	for _, id := range r.cfg.SubnetPools {
		var p sdn.SubnetPool
		err := r.Call(ctx, func(ctx context.Context) (err error) { p, err = r.SDN.SubnetPool(ctx, sdn.ID(id)); return err })
		if err != nil {
			return fmt.Errorf("%q: %w", id, err)
		}
		r.ground.SubnetPools, r.ground.PrefixLens = append(r.ground.SubnetPools, p.ID), append(r.ground.PrefixLens, 0)
		r.ground.Nodes.Reach = append(r.ground.Nodes.Reach, p.Prefixes...)
	}
	if len(r.cfg.SubnetPools) > 0 {
		return nil
	}
	for _, p := range r.cfg.Ranges {
		r.ground.Nodes.Reach = append(r.ground.Nodes.Reach, p.Prefix)
		name := "pods-v4"
		if p.Prefix.Addr().Is6() {
			name = "pods-v6"
		}
		spec := sdn.SubnetPoolSpec{Base: r.Base(v1.KeyKindSubnetPool, name, "kuryr-"+name, r.cfg.Project), Prefixes: []netip.Prefix{p.Prefix}, DefaultLen: p.Len}
		err := r.Call(ctx, func(ctx context.Context) error {
			made, err := r.SDN.EnsureSubnetPool(ctx, spec)
			r.ground.SubnetPools, r.ground.PrefixLens = append(r.ground.SubnetPools, made.ID), append(r.ground.PrefixLens, p.Len)
			return err
		})
		if err != nil {
			return fmt.Errorf("%s: %w", p.Prefix, err)
		}
	}
	return nil
}

// prepareGroup makes the security group that lets everything pass, for SDNs where a port
// without one passes nothing: pods reach one another unless a policy says otherwise.
func (r *Raven) prepareGroup(ctx context.Context) error {
	if r.cfg.UnderlayIsolation {
		id, err := r.nodes.Isolate(ctx)
		r.ground.Groups = []string{string(id)}
		return err
	}
	can := r.SDN.Capabilities()
	r.ground.Groups = r.ground.WithNodes(r.cfg.SecurityGroups)
	if len(r.ground.Groups) > 0 || !can.SecurityGroups || can.GrouplessOpen {
		return nil
	}
	group, err := r.OpenGroup(ctx, "pods", "kuryr-pods", r.cfg.Project)
	r.ground.Groups = []string{group}
	return err
}
