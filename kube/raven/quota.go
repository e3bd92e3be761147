package raven

import (
	"context"
	"errors"
	"slices"
	"time"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/pool"
	"github.com/kuryr/kuryr/kube/raven/core"
	"github.com/kuryr/kuryr/sdn"
)

// quotaPause is how long what the SDN has said of its quota counts. No SDN tells of a change, so it is asked again, by one pool for all, while one is at the cap or the SDN refuses.
const quotaPause = time.Minute

// countPorts tells the cap of what is there at the start.
func (r *Raven) countPorts(ctx context.Context) error {
	r.budget.due(r.Now())
	if err := r.readQuota(ctx); err != nil {
		return err
	}
	var all v1.KuryrPortPoolList
	if err := r.Client.List(ctx, &all); err != nil {
		return err
	}
	for i := range all.Items {
		ports, err := r.PortsOf(ctx, all.Items[i].Name)
		if err != nil {
			return err
		}
		r.budget.set(all.Items[i].Name, len(ports)+len(all.Items[i].Status.Pending))
	}
	return nil
}

// readQuota has the cap be nine tenths of the SDN's quota, which others may need some of, unless the configuration has one. Pools that wait are woken where there is room.
func (r *Raven) readQuota(ctx context.Context) error {
	if r.cfg.MaxPorts > 0 || !r.SDN.Capabilities().Quotas {
		return nil
	}
	var usage map[sdn.Noun]sdn.Usage
	err := r.Call(ctx, func(ctx context.Context) (err error) { usage, err = r.SDN.Usage(ctx, r.cfg.Project); return err })
	if err != nil && !sdn.IsDenied(err) {
		return err
	}
	most := 0
	if limit := usage[sdn.NounPort].Limit; limit > 0 {
		most = int(max(limit*9/10, 1))
	}
	r.wakeCalled(r.budget.limit(most))
	return nil
}

// followQuota asks for the quota again where the pool has come to its end, and tells when the next time is. Where the configuration has the cap, others' giving ports back is all
// that there is to wait for.
func (w *poolWork) followQuota(ctx context.Context, lack error) (again time.Duration, err error) {
	if w.cfg.MaxPorts > 0 || !w.SDN.Capabilities().Quotas || !slices.ContainsFunc(core.Errors(lack), atQuota) {
		return 0, nil
	}
	if w.budget.due(w.Now()) {
		err = w.readQuota(ctx)
	}
	return max(w.budget.askedAt().Add(quotaPause).Sub(w.Now()), time.Second), err
}

// atQuota tells of the cap's end, and of the SDN's.
func atQuota(err error) bool {
	var of core.Short
	var refused *sdn.Error
	return errors.As(err, &of) && of.Limit == pool.AtCap || errors.As(err, &refused) && refused.Kind == sdn.KindExhausted && refused.Reason == sdn.NoQuota
}
