//go:build linux

package router

import (
	"context"

	"github.com/kuryr/kuryr/datapath/lb"
	"github.com/kuryr/kuryr/datapath/securitygroup"
)

// Changes of one kind.

func applyShape(ctx context.Context, k *Kernel, d Shape) (Result, error) {
	return k.Set(ctx, Change{Router: d.ID, Shape: &d})
}

func set(ctx context.Context, k *Kernel, c Change) error {
	_, err := k.Set(ctx, c)
	return err
}

func changePorts(ctx context.Context, k *Kernel, router string, remove, add []Port) error {
	return set(ctx, k, Change{Router: router, Ports: Parts[Port]{remove, add}})
}

func changeForwards(ctx context.Context, k *Kernel, router string, remove, add []Forward) error {
	return set(ctx, k, Change{Router: router, Forwards: Parts[Forward]{remove, add}})
}

func changeVIPs(ctx context.Context, k *Kernel, router string, remove, add []VIP) error {
	return set(ctx, k, Change{Router: router, VIPs: Parts[VIP]{remove, add}})
}

func changeFrontends(
	ctx context.Context, k *Kernel, router string, remove []lb.Key, add []lb.Frontend,
	all func() ([]lb.Frontend, error),
) error {
	return set(ctx, k, Change{Router: router, Frontends: Frontends{remove, add, all}})
}

func define(
	ctx context.Context, k *Kernel, router string, groups []securitygroup.Group, sets []securitygroup.Set,
) error {
	return set(ctx, k, Change{Router: router, Groups: groups, Sets: sets})
}
