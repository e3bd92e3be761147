package engine

import (
	"context"
	"errors"

	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/kuryr/kuryr/internal/valid"
	"github.com/kuryr/kuryr/sdn"
)

// ensureAll makes what several specs ask for in one transaction: all or, where one of them is refused, nothing.
func ensureAll[S, T any](ctx context.Context, e *Engine, specs []S, ensure func(*tx, S) (T, error)) (out []T, err error) {
	err = e.update(ctx, func(t *tx) error {
		out = make([]T, 0, len(specs)) // anew each time the change is run
		for i, spec := range specs {
			if i > 0 {
				failpoint.Here("engine.ensure.next")
			}
			made, err := ensure(t, spec)
			if err != nil {
				return err
			}
			out = append(out, made)
		}
		return nil
	})
	if err != nil && !sdn.IsUnavailable(err) {
		return nil, err
	}
	return out, err
}

// only is the one of a list; where it could not be made there is none.
func only[T any](list []T, err error) (out T, _ error) {
	if len(list) > 0 {
		out = list[0]
	}
	return out, err
}

// EnsureAllNetworks makes, finishes or adopts networks with their subnets, in one transaction.
func (e *Engine) EnsureAllNetworks(ctx context.Context, specs []sdn.NetworkSpec) ([]sdn.Network, error) {
	uplink := 0
	for _, spec := range specs {
		if err := checkNetwork(spec); err != nil {
			return nil, err
		}
		if spec.MTU == 0 && uplink == 0 {
			uplink = e.realm.UplinkMTU(ctx)
		}
	}
	return ensureAll(ctx, e, specs, func(t *tx, spec sdn.NetworkSpec) (out sdn.Network, err error) {
		r, err := t.ensureNetwork(spec, uplink)
		if err != nil {
			return out, err
		}
		return e.showNetwork(t.Tx, r)
	})
}

// EnsureAllSubnets makes, finishes or adopts subnets, in one transaction.
func (e *Engine) EnsureAllSubnets(ctx context.Context, specs []sdn.SubnetSpec) ([]sdn.Subnet, error) {
	return ensureAll(ctx, e, specs, func(t *tx, spec sdn.SubnetSpec) (out sdn.Subnet, err error) {
		r, err := t.ensureSubnet(spec)
		if err != nil {
			return out, err
		}
		return e.showSubnet(t.Tx, r)
	})
}

// EnsureAllSubnetPools makes, finishes or adopts subnet pools, in one transaction.
func (e *Engine) EnsureAllSubnetPools(ctx context.Context, specs []sdn.SubnetPoolSpec) ([]sdn.SubnetPool, error) {
	for _, spec := range specs {
		if err := errors.Join(valid.Base("subnet pool", spec.Base), checkPoolPrefixes(spec.Prefixes)); err != nil {
			return nil, err
		}
	}
	return ensureAll(ctx, e, specs, func(t *tx, spec sdn.SubnetPoolSpec) (out sdn.SubnetPool, err error) {
		r, err := t.ensureSubnetPool(spec)
		if err != nil {
			return out, err
		}
		return e.showSubnetPool(t.Tx, r)
	})
}
