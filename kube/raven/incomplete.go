package raven

import (
	"context"
	"fmt"
	"slices"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/raven/core"
	"github.com/kuryr/kuryr/sdn"
)

// eraseIncomplete deletes the ports that the SDN returned in a form that no pod can use, such as
// without an address. Each has failed then. Its key stays pending, so that a new port is requested.
func (w *poolWork) eraseIncomplete(
	ctx context.Context, ports []sdn.Port, failed []error, subnets map[sdn.ID]sdn.Subnet,
) error {
	var ids []sdn.ID
	for i, p := range ports {
		if failed[i] != nil {
			continue
		}
		lack := w.lack(&w.object(p, subnets, wished{}).Spec)
		if lack == "" {
			continue
		}
		failed[i] = &sdn.Error{
			Kind: sdn.KindUnavailable, Noun: "port", ID: string(p.ID),
			Detail: fmt.Sprintf("the SDN returned it with %s: it is deleted, and requested again", lack),
		}
		if p.ID != "" {
			ids = append(ids, p.ID)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	return w.Call(ctx, func(ctx context.Context) error { return w.erase(ctx, ids) })
}

// ownSubnets returns the subnets of the pool's network, each of the pool's with its range.
func (w *poolWork) ownSubnets(ctx context.Context) (map[sdn.ID]sdn.Subnet, error) {
	subnets, err := w.SubnetsOf(ctx, sdn.ID(w.pool.Spec.Network))
	for _, id := range w.pool.Spec.Subnets {
		if err == nil && !subnets[sdn.ID(id)].CIDR.IsValid() {
			w.ForgetSubnets(sdn.ID(w.pool.Spec.Network))
			err = sdn.Unavailable(nil, "subnet", "the SDN returned subnet %s with no range", id)
		}
	}
	return subnets, err
}

// lack names what a port of this pool is missing for a pod to use it, "" for nothing.
func (w *poolWork) lack(s *v1.KuryrPortSpec) string {
	switch {
	case s.ID == "":
		return "no id"
	case s.Address == "":
		return "no MAC address"
	case s.Network.ID != w.pool.Spec.Network:
		return fmt.Sprintf("the network %q, not %q", s.Network.ID, w.pool.Spec.Network)
	case len(s.Network.Subnets) == 0:
		return "no address"
	}
	for _, id := range w.pool.Spec.Subnets {
		has := func(on v1.PortSubnet) bool { return on.ID == id && len(on.IPs) > 0 }
		if !slices.ContainsFunc(s.Network.Subnets, has) {
			return "no address on subnet " + id
		}
	}
	return ""
}

// useless reports whether no pod can use a port that an older release has put in the pool, and
// warns of it. An edited spec is restored instead.
func (w *poolWork) useless(p *v1.KuryrPort) bool {
	lack := w.lack(&p.Spec)
	if lack == "" || edited(p) {
		return false
	}
	if p.DeletionTimestamp.IsZero() {
		w.Warn(p, core.EventFailed, "Port", "the port has %s: it is given up", lack)
	}
	return true
}
