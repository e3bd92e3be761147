//go:build linux

package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/kuryr/kuryr/bind"
	"github.com/kuryr/kuryr/docker"
	"github.com/kuryr/kuryr/docker/engine"
	"github.com/kuryr/kuryr/internal/admin"
)

// The time in which events that follow one another are one comparison: a part of the grace time, since nothing is removed before
// its end anyway.
const (
	leastSettle = 100 * time.Millisecond
	mostSettle  = 30 * time.Second
)

// errorPause is when a comparison that failed is tried again, if no event of the engine's comes before.
const errorPause = time.Minute

// watchDocker compares with the engine when it comes, when it has taken something away, when a call was not answered, and when the grace time of something that
// is missing ends, until ctx does.
func (d *daemon) watchDocker(ctx context.Context, driver *docker.Driver, memory *docker.Memory, api *engine.Client) {
	came, changed := make(chan struct{}, 1), make(chan struct{}, 1)
	poke := func(c chan struct{}) {
		select {
		case c <- struct{}{}:
		default:
		}
	}
	var watching sync.WaitGroup
	defer watching.Wait()
	watching.Go(func() {
		var id string
		api.Watch(ctx, func() {
			var err error
			if id, err = api.Identity(ctx); err != nil {
				d.log.DebugContext(ctx, "the Docker engine does not tell who it is yet", "error", err)
			}
			poke(came)
		}, func(event engine.Event) {
			switch {
			case event.Type != "network" || event.Action != "create", id == "":
				poke(changed)
			default:
				if err := driver.Seen(ctx, id, event.ID); err != nil && ctx.Err() == nil {
					d.log.WarnContext(ctx, "it is not noted that Docker has a network; the next comparison will", "network", event.ID, "error", err)
				}
				if !event.Ours { // the ranges of another driver's network can be from here
					poke(changed)
				}
			}
		})
	})
	settle := min(max(d.cfg.Docker.ForgetAfter/4, leastSettle), mostSettle)
	if d.cfg.Docker.ForgetAfter == 0 {
		settle = mostSettle
	}
	timer := time.NewTimer(0)
	timer.Stop()
	defer timer.Stop()
	var at time.Time // when the timer fires; zero: it does not
	set := func(t time.Time) {
		if !t.IsZero() && (at.IsZero() || t.Before(at)) {
			at = t
			timer.Reset(time.Until(t))
		}
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-changed:
			set(time.Now().Add(settle))
			continue
		case <-driver.Unanswered():
			set(time.Now().Add(settle))
			continue
		case <-came:
			d.engineCame(ctx)
		case <-timer.C:
		}
		at = time.Time{}
		next, err := memory.Compare(ctx)
		if err != nil && ctx.Err() == nil {
			d.log.WarnContext(ctx, "what Docker has forgotten is not known", "error", err)
			set(time.Now().Add(errorPause))
		}
		if !next.IsZero() && time.Until(next) < leastSettle { // seen once, and due: look again, but not in a circle
			next = time.Now().Add(leastSettle)
		}
		set(next)
	}
}

// engineCame opens the doors through the firewall that an engine has just written: where it does so with the legacy iptables, the kernel tells nobody.
func (d *daemon) engineCame(ctx context.Context) {
	if d.kernel() != nil {
		return
	}
	if _, err := d.parts.datapath.host.OpenDoors(ctx); err != nil && ctx.Err() == nil {
		d.log.WarnContext(ctx, "doors through the host's firewall are not all open", "error", err)
	}
}

// memoryOff tells why nothing is compared with Docker, "" if it is.
func (d *daemon) memoryOff() string {
	if d.front == nil {
		return "Docker is not served by this process"
	}
	if d.memory == nil {
		return "docker.api is empty: Docker is never asked"
	}
	return ""
}

func (d *daemon) Memory(ctx context.Context) (admin.Memory, error) {
	out := admin.Memory{Off: d.memoryOff(), After: d.cfg.Docker.ForgetAfter.String(), Forgotten: []admin.Forgotten{}, Unknown: []admin.UnknownNetwork{}, Broken: []admin.Broken{}}
	if out.Off != "" {
		return out, nil
	}
	c, suspects, err := d.memory.Report(ctx)
	if err != nil {
		out.Error = oneLine(err)
		return out, nil
	}
	out.Engine = c.Engine
	for _, s := range suspects {
		out.Forgotten = append(out.Forgotten, admin.Forgotten{
			Noun: s.Noun, ID: string(s.ID), Name: s.Name, Why: s.Why, Kept: s.Kept, Engine: s.Engine, Connected: s.Connected,
			Since: wall(s.Since), Due: wall(s.Due), Changed: s.Updated,
		})
	}
	for _, n := range c.Unknown {
		out.Unknown = append(out.Unknown, admin.UnknownNetwork{ID: n.ID, Name: n.Name})
	}
	for _, b := range d.broken(ctx, c) {
		out.Broken = append(out.Broken, admin.Broken{Container: b.Container, Endpoint: b.ID, State: b.state})
	}
	return out, nil
}

// brokenEndpoint is one that packets do not pass.
type brokenEndpoint struct {
	docker.Running
	state string
}

const unknownToSDN = "unknown"

// broken looks at the interfaces of all containers that run.
func (d *daemon) broken(ctx context.Context, c docker.Comparison) []brokenEndpoint {
	var all []brokenEndpoint
	for _, r := range c.Running {
		if r.Port.ID == "" {
			all = append(all, brokenEndpoint{r, unknownToSDN})
			continue
		}
		state, err := d.binder.State(ctx, r.Port)
		switch {
		case err != nil:
			d.log.WarnContext(ctx, "it is not known how an interface stands", "port", r.Port.ID, "error", err)
		case state != bind.Whole:
			all = append(all, brokenEndpoint{r, string(state)})
		}
	}
	return all
}

// attach puts interfaces that hang loose back in their place.
func (d *daemon) attach(ctx context.Context) (done []string, err error) {
	if d.memory == nil {
		return nil, nil
	}
	c, _, err := d.memory.Report(ctx)
	if err != nil {
		return nil, nil // without Docker nobody knows which; that is told elsewhere
	}
	for _, b := range d.broken(ctx, c) {
		if b.state != string(bind.Loose) {
			continue
		}
		if e := d.binder.Attach(ctx, b.Port); e != nil {
			err = errors.Join(err, e)
			continue
		}
		done = append(done, "put the interface of container "+b.Container+" back on its bridge")
	}
	return done, err
}

// wall takes the monotonic clock from a time, which no reader can use.
func wall(t time.Time) time.Time { return t.Round(0) }

func (d *daemon) Forget(ctx context.Context, o admin.ForgetOptions) (admin.Mended, error) {
	out := admin.Mended{Done: []string{}, Failed: []string{}}
	if off := d.memoryOff(); off != "" {
		return out, errors.New(off)
	}
	removed, err := d.memory.ForgetNow(ctx, o.Now, o.Engine)
	if err != nil {
		return out, err
	}
	for _, r := range removed {
		if r.Err != nil {
			out.Failed = append(out.Failed, r.String()+": "+oneLine(r.Err))
		} else {
			out.Done = append(out.Done, "removed "+r.String())
		}
	}
	return out, nil
}

// Mend does what the start does: switches, doors, and the kernel.
func (d *daemon) Mend(ctx context.Context) (admin.Mended, error) {
	out := admin.Mended{Done: []string{}, Failed: []string{}}
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

// remembers makes what compares with Docker, if Docker may be asked, and gives what keeps doing so.
func (d *daemon) remembers(driver *docker.Driver, binder *bind.Binder) (watch func(context.Context)) {
	if d.cfg.Docker.API == "" {
		return func(context.Context) {}
	}
	api := engine.New(d.cfg.Docker.API, driverNames(d.cfg.Docker)...)
	d.binder = binder
	d.memory = docker.NewMemory(driver, api, d.cfg.Docker.ForgetAfter)
	return func(ctx context.Context) {
		defer api.Close()
		d.watchDocker(ctx, driver, d.memory, api)
	}
}
