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

// datapath is the fabric with the host's forwarding switch: it is turned for a family when the first router that has an uplink
// and a network of the family comes, so that a machine that does not need it keeps its own setting.
type datapath struct {
	*router.Fabric
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

// ApplyDomain turns the switch and then does as the fabric.
func (d *datapath) ApplyDomain(ctx context.Context, domain router.Domain) (router.Result, error) {
	if err := d.forward(ctx, false, domain); err != nil {
		return router.Result{}, err
	}
	return d.Fabric.ApplyDomain(ctx, domain)
}

// Reconcile turns the switch and then does as the fabric.
func (d *datapath) Reconcile(ctx context.Context, s router.State) (router.Report, error) {
	forwarding := d.forward(ctx, true, s.Domains...)
	report, err := d.Fabric.Reconcile(ctx, s)
	return report, errors.Join(forwarding, err)
}

// forward turns the switch for the domains' families, unless it did before. again is for a
// switch that may have been turned off since.
func (d *datapath) forward(ctx context.Context, again bool, domains ...router.Domain) error {
	v4, v6 := families(domains)
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
func families(domains []router.Domain) (v4, v6 bool) {
	for _, domain := range domains {
		if domain.Uplink == nil {
			continue
		}
		for _, b := range domain.Bridges {
			for _, a := range b.Addrs {
				v4 = v4 || a.Addr().Is4()
				v6 = v6 || a.Addr().Is6()
			}
		}
	}
	return v4, v6
}
