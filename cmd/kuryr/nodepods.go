//go:build linux && kubernetes

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/kuryr/kuryr/bind"
	"github.com/kuryr/kuryr/cmd/kuryr/internal/admin"
	"github.com/kuryr/kuryr/internal/ipproto"
	"github.com/kuryr/kuryr/kube/agent/claim"
)

// pods are the node's, with their ports and how these are plugged.
func (n *clusterNode) pods(ctx context.Context) (admin.Pods, error) {
	view := n.allocator.View()
	out := admin.Pods{Node: n.name, Conflist: n.cfg.Node.Conflist, Waiting: view.Waiting, Ports: []admin.PodPort{}, Pools: []admin.PodPool{}}
	var errs []error
	for _, p := range view.Ports {
		one, err := n.podPort(ctx, p)
		if err != nil {
			errs = append(errs, err)
		}
		out.Ports = append(out.Ports, one)
	}
	for _, p := range view.Pools {
		out.Pools = append(out.Pools, admin.PodPool{
			Name: p.Name, Network: p.Network, Ports: p.Ports, Free: p.Free, Waiting: p.Waiting, Minimum: p.Minimum, Maximum: p.Maximum, Why: p.Why,
		})
	}
	return out, errors.Join(errs...)
}

func (n *clusterNode) podPort(ctx context.Context, p claim.PortView) (admin.PodPort, error) {
	one := admin.PodPort{ID: p.Name, Pool: p.Pool, Status: string(p.Status), MAC: p.Wiring.Port.MAC.String(), Addresses: []string{}, Since: p.Since, Wrong: p.Wrong}
	for _, a := range p.Wiring.Port.Addresses {
		one.Addresses = append(one.Addresses, a.Addr.String())
	}
	one.Network, one.VIF = string(p.Wiring.Port.Network), p.Wiring.Port.VIF.Type
	for _, g := range p.Wiring.Port.Groups {
		one.Groups = append(one.Groups, string(g))
	}
	for _, s := range p.Wiring.Subnets {
		one.Ranges = append(one.Ranges, s.CIDR.String())
		if s.Gateway.IsValid() {
			one.Gateways = append(one.Gateways, s.Gateway.String())
		}
	}
	if p.Wiring.Port.ID == "" { // its object cannot be read
		return one, nil
	}
	state, err := n.binder.State(ctx, p.Wiring.Port)
	if err != nil {
		return one, fmt.Errorf("port %s: %w", p.Name, err)
	}
	one.Link = string(state)
	h := p.Holder
	if h == nil {
		if state == bind.Whole && one.Wrong == "" {
			one.Wrong = "nobody has it, and its interface is there"
		}
		return one, nil
	}
	one.UID, one.Container, one.Interface = p.UID, h.Container, h.Interface
	if h.Pod != nil {
		one.Pod = h.Pod.Namespace + "/" + h.Pod.Name
	}
	for _, w := range h.Want.Published {
		face := w.HostIP
		if !face.IsValid() {
			face = netip.IPv4Unspecified()
		}
		one.HostPorts = append(one.HostPorts, fmt.Sprintf("%s/%s to %d", netip.AddrPortFrom(face, w.HostPort), ipproto.Name(w.Protocol), w.Port))
	}
	if state != bind.Whole && one.Wrong == "" {
		one.Wrong = "its interface is " + one.Link
	}
	return one, nil
}

// Check tells in what journal, API server and kernel do not agree.
func (n *clusterNode) Check(ctx context.Context) (admin.Check, error) {
	all, err := n.pods(ctx)
	check := admin.Check{Differences: []string{}, Findings: []admin.Finding{}}
	for _, p := range all.Ports {
		if p.Wrong == "" {
			continue
		}
		whose := ""
		if p.Pod != "" {
			whose = " of the pod " + p.Pod
		}
		check.Differences = append(check.Differences, "port "+p.ID+whose+": "+p.Wrong)
	}
	if n.services != nil {
		differences, serr := n.services.differences(ctx)
		check.Differences, err = append(check.Differences, differences...), errors.Join(err, serr)
	}
	return check, err
}
