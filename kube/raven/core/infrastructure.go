package core

import (
	"context"
	"net/netip"
	"slices"
	"time"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/sdn"
)

// Infrastructure is what the cluster has one of in the SDN, and what all reconcilers build on. Prepare
// writes it before the first of them starts.
type Infrastructure struct {
	Public sdn.ID // the external network; "" is none
	Router sdn.ID
	// Project is the router's. Raven's objects are in it too if the router is its own.
	Project     string
	OwnsRouter  bool
	HasWayOut   map[bool]bool // by whether it is IPv6: the router's gateway has an address of the family
	SubnetPools []sdn.ID      // subnet pools, one of each family
	PrefixLens  []int         // by position in pools; 0 is the pool's own default
	Groups      []string      // of pods' ports, if their namespace names none
	Nodes       NodeNetwork
	Began       time.Time // when this Raven became the leader

	NodeRanges []netip.Prefix // of the nodes' own ports
}

// NodeNetwork is the network of the nodes' own ports, by which nodes and pods reach one another.
// Without an id there is none.
type NodeNetwork struct {
	Network sdn.Network
	Name    string
	Groups  []string // of the nodes' own ports
	// Admit is the group that admits nodes to pods whose ports have groups that users have chosen;
	// "" is none.
	Admit string
	Reach []netip.Prefix // that namespaces' subnets are cut from
}

// WithNodes returns the groups that users have chosen for pods, with the one that admits nodes.
func (g *Infrastructure) WithNodes(groups []string) []string {
	if len(groups) == 0 || g.Nodes.Admit == "" || slices.Contains(groups, g.Nodes.Admit) {
		return groups
	}
	return append(slices.Clone(groups), g.Nodes.Admit)
}

// OpenGroup makes a security group that lets everything pass, and returns its id.
func (r *Core) OpenGroup(ctx context.Context, key, name, project string) (id string, err error) {
	spec := sdn.SecurityGroupSpec{Base: r.Base(v1.KeyKindSecurityGroup, key, name, project)}
	for _, direction := range []sdn.Direction{sdn.Ingress, sdn.Egress} {
		for _, six := range []bool{false, true} {
			spec.Rules = append(spec.Rules, sdn.Rule{Direction: direction, IPv6: six})
		}
	}
	err = r.Call(ctx, func(ctx context.Context) error {
		group, err := r.SDN.ApplySecurityGroup(ctx, spec)
		id = string(group.ID)
		return err
	})
	return id, err
}
