package docker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kuryr/kuryr/docker/engine"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/sdn"
)

// Run does what Docker does not wait for, until ctx ends: the database's pending rows, among them
// what a start has to do, and comparisons with Docker. Its error is always nil.
func (d *Driver) Run(ctx context.Context) error {
	ctx = sdn.Unawaited(ctx)
	if err := d.queueRecovery(ctx); err != nil {
		d.log.ErrorContext(ctx, "recovery of earlier state not queued", "err", err)
	}
	d.database.Run(ctx)
	return nil
}

// The one row of what a start has to do. A start makes it anew.
const kindRecovery, recoveryKey = "recovery", "start"

// stepTimeout bounds a step of the recovery, which can list all that the SDN has.
const stepTimeout = 5 * time.Minute

// recoveryTarget brings the rows, the SDN and the host together after a start, by the deletion of a
// row: so the store repeats the steps that fail. Its state is the names of these.
type recoveryTarget struct{ *Driver }

func (d *Driver) newRecovery() {
	type row = reconcile.Row[struct{}, []string]
	d.recovery = reconcile.Register(d.database, kindRecovery, recoveryTarget{d},
		reconcile.Options[struct{}, []string]{
			Timeout: time.Duration(len(d.steps())) * stepTimeout,
			Start:   func(row, bool) reconcile.Action { return reconcile.Drop },
		})
}

func (d *Driver) queueRecovery(ctx context.Context) error {
	err := d.recovery.Import(ctx, []reconcile.Row[struct{}, []string]{{
		Object: reconcile.Object{Key: recoveryKey}, Phase: reconcile.Deleting, Done: true,
	}})
	if err != nil {
		return err
	}
	return d.recovery.RemoveLater(ctx, recoveryKey)
}

// Ensure implements reconcile.Target. No row is wanted.
func (recoveryTarget) Ensure(context.Context, reconcile.Object, struct{}, []string) ([]string, error) {
	return nil, reconcile.ErrUnwanted
}

// Delete implements reconcile.Target.
func (t recoveryTarget) Delete(ctx context.Context, _ reconcile.Object, _ struct{}, left []string) error {
	left, err := t.resume(ctx, left)
	if err != nil {
		return reconcile.Remaining(left, err)
	}
	return nil
}

type recoveryStep struct {
	name string
	do   func(context.Context) error
}

// steps import what earlier versions left, finish what a killed process did not, and compare with
// the SDN. Later steps need the rows of earlier ones, as far as there are any.
func (d *Driver) steps() []recoveryStep {
	return []recoveryStep{
		{"host ports", d.endpoints.RestoreHostPorts},
		{"cleanups", d.earlier.finish},
		{"objects", d.importObjects},
		{"endpoints", d.endpoints.DropGone},
		{"networks", d.networks.Finish},
	}
}

// resume takes the named steps of the recovery, or all if none is named, and compares with Docker.
// A step that fails does not keep the others from being taken: it returns their names.
func (d *Driver) resume(ctx context.Context, names []string) (left []string, err error) {
	var errs []error
	for _, s := range d.steps() {
		if len(names) > 0 && !slices.Contains(names, s.name) {
			continue
		}
		step, cancel := context.WithTimeout(ctx, stepTimeout)
		err := s.do(step)
		cancel()
		if err != nil {
			left, errs = append(left, s.name), append(errs, fmt.Errorf("recover %s: %w", s.name, err))
		}
	}
	d.Compare()
	return left, errors.Join(errs...)
}

// importObjects makes rows of what earlier versions left in the SDN. Without an answer of Docker's
// the networks of kuryr-libnetwork are left to the calls that name them.
func (d *Driver) importObjects(ctx context.Context) error {
	var list engine.List
	if d.config.Engine != nil {
		var err error
		if list, err = d.config.Engine.List(ctx); err != nil {
			d.log.DebugContext(ctx, "Docker's networks unknown at the start", "err", err)
			list = engine.List{}
		}
	}
	return d.earlier.objects(ctx, list)
}
