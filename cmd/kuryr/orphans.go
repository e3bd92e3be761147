//go:build linux

package main

import (
	"context"
	"errors"
	"time"

	"github.com/kuryr/kuryr/bind"
	"github.com/kuryr/kuryr/cmd/kuryr/internal/admin"
	"github.com/kuryr/kuryr/docker"
	"github.com/kuryr/kuryr/docker/engine"
)

// The bounds of the time in which following events are one comparison: a part of the grace period.
const (
	minSettle = 100 * time.Millisecond
	maxSettle = 30 * time.Second
)

// watchDocker compares with Docker when it comes and after its events, until ctx ends. Only what its
// list once had is deleted when that lacks it, so a new network is listed without a delay.
func (f *front) watchDocker(ctx context.Context, came func(context.Context)) {
	if f.engine == nil {
		return
	}
	defer f.engine.Close()
	settle := maxSettle
	if grace := f.cfg.Docker.ForgetAfter; grace > 0 {
		settle = min(max(grace/4, minSettle), maxSettle)
	}
	var next time.Time // of the last planned comparison
	timer := time.AfterFunc(settle, f.driver.Compare)
	defer timer.Stop()
	f.engine.Watch(ctx, func() {
		came(ctx)
		f.driver.Compare()
	}, func(event engine.Event) {
		switch now := time.Now(); {
		case event.Type == "network" && event.Action == "create":
			f.driver.Compare()
		case now.After(next):
			next = now.Add(settle)
			timer.Reset(settle)
		}
	})
}

// engineCame opens the doors through the firewall that an engine has just written. The kernel sends
// no event for rules of legacy iptables.
func (d *daemon) engineCame(ctx context.Context) {
	if d.kernel() != nil {
		return
	}
	if _, err := d.parts.datapath.host.OpenDoors(ctx); err != nil && ctx.Err() == nil {
		d.log.WarnContext(ctx, "doors through the host's firewall are not all open", "error", err)
	}
}

// notCompared returns why nothing is compared with Docker; "" if it is.
func (d *daemon) notCompared() string {
	if d.front == nil {
		return "Docker is not served by this process"
	}
	if d.front.engine == nil {
		return "docker.api is empty: Docker is never asked"
	}
	return ""
}

// Orphans implements admin.Repairer.
func (d *daemon) Orphans(ctx context.Context) (admin.Orphans, error) {
	out := admin.Orphans{
		Off: d.notCompared(), After: d.cfg.Docker.ForgetAfter.String(),
		Orphans: []admin.Orphan{}, Unknown: []admin.UnknownNetwork{}, Broken: []admin.Broken{},
	}
	if out.Off != "" {
		return out, nil
	}
	list, err := d.front.engine.List(ctx)
	var orphans []docker.Orphan
	if err == nil {
		orphans, err = d.front.driver.Orphans(ctx)
	}
	if err != nil {
		out.Error = oneLine(err)
		return out, nil
	}
	out.Engine = list.Engine
	for _, o := range orphans {
		found := admin.Orphan{
			Noun: o.Noun, ID: string(o.ID), Name: o.Name, Why: o.Why, Kept: o.Keep, Connected: o.InUse,
			Since: wall(o.Since), Due: wall(o.Due), Changed: wall(o.Changed),
		}
		if o.Kept {
			found.Engine = o.Engine
		}
		out.Orphans = append(out.Orphans, found)
	}
	running, unknown := d.front.driver.Running(ctx, list)
	for _, n := range unknown {
		out.Unknown = append(out.Unknown, admin.UnknownNetwork{ID: n.ID, Name: n.Name})
	}
	for _, b := range d.broken(ctx, running) {
		out.Broken = append(out.Broken, admin.Broken{Container: b.Container, Endpoint: b.ID, State: b.state})
	}
	return out, nil
}

// brokenEndpoint is an endpoint that packets do not pass.
type brokenEndpoint struct {
	docker.Running
	state string
}

// unknownState is the state of an endpoint that has no port.
const unknownState = "unknown"

// broken checks the interfaces of containers that run.
func (d *daemon) broken(ctx context.Context, running []docker.Running) []brokenEndpoint {
	var all []brokenEndpoint
	for _, r := range running {
		if r.Port.ID == "" {
			all = append(all, brokenEndpoint{r, unknownState})
			continue
		}
		state, err := d.front.binder.State(ctx, r.Port)
		switch {
		case err != nil:
			d.log.WarnContext(ctx, "interface state unknown", "port", r.Port.ID, "err", err)
		case state != bind.Whole:
			all = append(all, brokenEndpoint{r, string(state)})
		}
	}
	return all
}

// attach puts loose interfaces of containers back on their bridges.
func (d *daemon) attach(ctx context.Context) (done []string, err error) {
	if d.notCompared() != "" {
		return nil, nil
	}
	list, err := d.front.engine.List(ctx)
	if err != nil {
		return nil, nil // Orphans reports that
	}
	running, _ := d.front.driver.Running(ctx, list)
	for _, b := range d.broken(ctx, running) {
		if b.state != string(bind.Loose) {
			continue
		}
		if e := d.front.binder.Attach(ctx, b.Port); e != nil {
			err = errors.Join(err, e)
			continue
		}
		done = append(done, "put the interface of container "+b.Container+" back on its bridge")
	}
	return done, err
}

// wall removes the monotonic clock from a time.
func wall(t time.Time) time.Time { return t.Round(0) }

// Purge implements admin.Repairer.
func (d *daemon) Purge(ctx context.Context, o admin.PurgeOptions) (admin.Repairs, error) {
	out := admin.Repairs{Done: []string{}, Failed: []string{}}
	if off := d.notCompared(); off != "" {
		return out, errors.New(off)
	}
	purged, err := d.front.driver.Purge(ctx, o.Now, o.Engine)
	for _, p := range purged {
		if p.Err != nil {
			out.Failed = append(out.Failed, p.String()+": "+oneLine(p.Err))
		} else {
			out.Done = append(out.Done, "removed "+p.String())
		}
	}
	if err != nil && len(purged) > 0 {
		out.Failed, err = append(out.Failed, oneLine(err)), nil
	}
	return out, err
}

// Repair repairs what the start sets up: forwarding, doors through the firewall, and the kernel.
func (d *daemon) Repair(ctx context.Context) (admin.Repairs, error) {
	out := admin.Repairs{Done: []string{}, Failed: []string{}}
	before, err := d.findings(ctx)
	if err != nil {
		return out, err
	}
	fail := func(what string, err error) {
		if err != nil {
			out.Failed = append(out.Failed, what+": "+oneLine(err))
		}
	}
	if d.kernel() == nil {
		if v4, v6 := d.parts.datapath.inUse(); v4 || v6 {
			fail("the host's forwarding switch", d.parts.datapath.host.EnableForwarding(ctx, v4, v6))
		}
		_, err = d.parts.datapath.host.OpenDoors(ctx)
		fail("doors through the host's firewall", err)
		r, _ := d.Reconcile(ctx)
		if r.Error != "" {
			out.Failed = append(out.Failed, "the kernel: "+r.Error)
		}
		out.Kernel = r.Kernel
	}
	done, err := d.attach(ctx)
	out.Done = append(out.Done, done...)
	fail("interfaces of containers", err)
	after, err := d.findings(ctx)
	fail("check of the host", err)
	left := map[string]bool{}
	for _, f := range after {
		left[f.What] = true
	}
	for _, f := range before {
		if !left[f.What] && err == nil {
			out.Done = append(out.Done, "no more: "+f.What)
		}
	}
	return out, nil
}
