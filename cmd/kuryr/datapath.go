//go:build linux

package main

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"sync"

	"github.com/kuryr/kuryr/datapath/firewall"
	"github.com/kuryr/kuryr/datapath/router"
)

// datapath is the routers' kernel with the host's forwarding switch. The switch is turned for a
// family when the first router comes that has an uplink and a network of the family, so that a
// machine that does not need it keeps its own setting.
type datapath struct {
	*router.Kernel
	host *firewall.Host
	log  *slog.Logger

	mu        sync.Mutex
	v4, v6    bool                  // turned by this process
	reconcile func(context.Context) // puts back what others took from the kernel; nil before the daemon serves
}

// tableLost is told when something was taken from our nftables table in the host.
func (d *datapath) tableLost(ctx context.Context) {
	d.mu.Lock()
	reconcile := d.reconcile
	d.mu.Unlock()
	if reconcile != nil {
		reconcile(ctx)
	}
}

// onLoss says what puts back what others took from the kernel.
func (d *datapath) onLoss(reconcile func(context.Context)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.reconcile = reconcile
}

// Set turns the switch before it applies a shape.
func (d *datapath) Set(ctx context.Context, c router.Change) (router.Result, error) {
	if c.Shape != nil {
		if err := d.forward(ctx, false, *c.Shape); err != nil {
			return router.Result{}, err
		}
	}
	return d.Kernel.Set(ctx, c)
}

// Reconcile turns the switch before it compares the kernel.
func (d *datapath) Reconcile(ctx context.Context, s router.State) (router.Report, error) {
	forwarding := d.forward(ctx, true, s.Shapes...)
	report, err := d.Kernel.Reconcile(ctx, s)
	return report, errors.Join(forwarding, err)
}

// forward turns the switch for the routers' families, unless it did before. again is for a
// switch that may have been turned off since.
func (d *datapath) forward(ctx context.Context, again bool, shapes ...router.Shape) error {
	v4, v6 := families(shapes)
	d.mu.Lock()
	defer d.mu.Unlock()
	v4, v6 = v4 && (again || !d.v4), v6 && (again || !d.v6)
	if v4 {
		if err := d.host.EnableForwarding(ctx, true, false); err != nil {
			return err
		}
		d.v4 = true
	}
	if v6 {
		err := d.host.EnableForwarding(ctx, false, true)
		if errors.Is(err, fs.ErrNotExist) && d.v6 {
			return nil // known already
		}
		if errors.Is(err, fs.ErrNotExist) {
			d.log.WarnContext(ctx, "the kernel has no IPv6: IPv6 networks do not reach the outside")
		} else if err != nil {
			return err
		}
		d.v6 = true
	}
	return nil
}

// inUse tells which families this process has turned the switch for.
func (d *datapath) inUse() (v4, v6 bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.v4, d.v6
}

// families tells which families have a network behind an uplink.
func families(shapes []router.Shape) (v4, v6 bool) {
	for _, shape := range shapes {
		if shape.Uplink == nil {
			continue
		}
		for _, b := range shape.Bridges {
			for _, a := range b.Addrs {
				v4 = v4 || a.Addr().Is4()
				v6 = v6 || a.Addr().Is6()
			}
		}
	}
	return v4, v6
}
