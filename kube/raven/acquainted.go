package raven

import (
	"context"
	"slices"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/sdn"
)

// networksAtOnce is how many networks the SDN is asked for in one query.
const networksAtOnce = 50

// acquainted is nil unless the cluster has ports and the SDN knows not one of the networks that they are on. Then it is another SDN than the one they were made in, or its
// store is empty: what Raven did there would take the cluster's ports for lost and give them up. So Raven waits until the right one is back, or people take the resources away.
func (r *Raven) acquainted(ctx context.Context) error {
	var ports v1.KuryrPortList
	if err := r.Client.List(ctx, &ports); err != nil {
		return err
	}
	var networks []sdn.ID
	for i := range ports.Items {
		networks = append(networks, sdn.ID(ports.Items[i].Spec.Network.ID))
	}
	slices.Sort(networks)
	networks = slices.Compact(networks)
	known, err := r.knowsOne(ctx, networks)
	if err != nil || known {
		return err
	}
	return sdn.Unavailable(nil, "SDN", "it knows none of the %d networks that the cluster's %d KuryrPorts are on: it is another SDN, or its store is empty or elsewhere; nothing is changed until it is back",
		len(networks), len(ports.Items))
}

// knowsOne tells whether the SDN knows one of these networks, or there are none to know.
func (r *Raven) knowsOne(ctx context.Context, networks []sdn.ID) (known bool, err error) {
	for ids := range slices.Chunk(networks, networksAtOnce) {
		err := r.Call(ctx, func(ctx context.Context) error {
			for _, err := range r.SDN.FindNetworks(ctx, sdn.NetworkQuery{Match: sdn.Match{IDs: ids}}) {
				if err != nil {
					return err
				}
				known = true
				break
			}
			return nil
		})
		if err != nil || known {
			return known, err
		}
	}
	return len(networks) == 0, nil
}
